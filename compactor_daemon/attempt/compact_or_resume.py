"""Executes a pending compaction or clustering of a table, from its claim to its end; the caller holds the claim.

    attempt   open the next attempt, stage one file for each file slice
    decide    under the table lock, write the commit decision
    publish   give the decided files their final names, put the completed file
    retire    remove staged data

If the process dies before its commit decision, the next run declares the attempt dead and opens the next one, which
adopts the finished file slices. If it dies after its commit decision, the next run publishes that decision; if the
decision is invalid by then (`validity`), its files are reverted and the plan may be executed again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from phantombase.timeline.audit.ledgers import ledger_of
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import AttemptDeadError, MalformedError, PhantombaseError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.compaction_plan import CompactionPlan
from phantombase.timeline.format.ledger import decode_ledgers
from phantombase.timeline.instants.reserved_times import COMMITTED
from phantombase.timeline.locks.heartbeat import heartbeat
from phantombase.timeline.locks.pause import COMPACTION
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.merge.slice_log import check_slice
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.metadata_table.record_index import check_keepable
from phantombase.timeline.prefetch import at_once
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.snapshot import without_snapshot
from phantombase.timeline.storage.staged_file import probed_partitions
from phantombase.timeline.table.history import WorkFacts
from phantombase.timeline.table.table import Table, from_one_snapshot

from ..options import AttemptOptions
from ..unit_of_work import Limit, note_work, unit_of_work
from .attempt import Attempt, WaitScope, decide_commit, keep_slot, open_attempt, stage
from .compaction import Compaction
from .failures import WorkNote
from .hudi_executors import ForeignWatch
from .inputs import expiry_of, planned_inputs
from .job import Job
from .outcome import CommitDecision, attempt_dead, find_decision, read_outcome, remove_attempt
from .pending_clusterings import every_pending
from .publish import publish, retire
from .slice_record import SliceDone
from .slice_task import Runner, SliceProgress, Tasks

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(Shown):
    """One executed instant.

    `rows` and `bytes_written` count the base files written. `rows_read` counts the rows of the merged base files and
    the entries of the merged logs. `bytes_read` is the size of these files, without base files that a cleaner
    removed before the count."""

    instant: str
    attempt: int
    file_groups: int
    rows: int
    bytes_written: int
    rows_read: int
    bytes_read: int
    seconds: float
    resumed: bool


def pending_instants(table: Table, only: str | None = None, *, clusterings: bool = False) -> tuple[str, ...]:
    """Pending compactions and log compactions, earliest first; UsageError when `only` is not one of them.
    `clusterings`: also those. MalformedError: see `pending_clusterings`; not where `only` is a compaction."""
    seen = table.with_timeline(table.load_timeline())
    pending = tuple(i.requested_time for i in seen.timeline.pending_merges)
    if clusterings and only not in pending:
        pending = tuple(sorted((*pending, *(one.time for one in every_pending(seen)))))
    if only is None:
        return pending
    if only not in pending:
        raise UsageError(
            f"not a pending compaction{' or clustering' if clusterings else ''}",
            path=table.storage.base_path,
            instant=only,
            expected=", ".join(pending) or None,
            found=None if pending else "none is pending",
            todo="`timeline show TABLE` lists the instants.",
        )
    return (only,)


def preflight(
    table: Table, instants: Sequence[str], output: OutputOptions | None = None
) -> dict[str, PhantombaseError]:
    """Finds the instants that would be refused, before anything in the table changes: the error of each. `table`: a
    snapshot suffices (`Table.snapshot`), since nothing is decided here. `output`: that of the execution.
    MissingFileError: a plan names a file that does not exist. UnsupportedError: a log block cannot be merged. Only
    headers of log blocks are read. Decided instants are not checked, because publishing reads no log blocks. An error
    that concerns all instants is raised: one of the table's schema, for example, or ClockError when this process must
    not choose a completion time."""
    refused: dict[str, PhantombaseError] = {}
    undecided = list[str]()
    for instant in instants:
        with _collected(refused, instant):
            if find_decision(table.storage, instant) is None:
                undecided.append(instant)
    table.facts.read_ahead(table.load_timeline(), every=bool(undecided))
    plans: dict[str, CompactionPlan] = {}
    for instant in undecided:
        with _collected(refused, instant):
            plans[instant] = table.compaction_plan(instant)
    if not plans:
        return refused
    try:
        snapshots = chain([table], iter(table.snapshot, None))
        view = from_one_snapshot(lambda: next(snapshots).load_plan_view(plans.values()))
    except PhantombaseError:
        if len(plans) == 1:
            raise
        # An error in the partitions of one plan must not refuse the others: check each plan alone.
        for instant in plans:
            with _collected(refused, instant):
                refused |= preflight(table, [instant], output)
        return refused
    if table.layout.has_completion_times:
        table.times.check_zone(view.timeline)
    seen = table.with_timeline(view.timeline)
    schema = seen.newest_schema()
    rules = slice_rules(seen, schema)
    for instant, plan in plans.items():
        with _collected(refused, instant):
            table.times.check_reached(instant, view.timeline)
            inputs = planned_inputs(table, view, plan, instant, rules)
            expiry_of(seen, view, plan, schema, output or OutputOptions(), instant)
            at_once((one.slice for one in inputs), partial(check_slice, table.storage, rules=rules))
    return refused


@contextmanager
def _collected(refused: dict[str, PhantombaseError], instant: str) -> Iterator[None]:
    try:
        yield
    except PhantombaseError as error:
        refused[instant] = error


def _said(done: Compacted) -> WorkFacts:
    return WorkFacts(
        instant=done.instant,
        bytes_read=done.bytes_read,
        bytes_written=done.bytes_written,
        rows_read=done.rows_read,
        rows_written=done.rows,
    )


@unit_of_work(COMPACTION, _said)
def compact_instant(
    table: Table,
    instant: str,
    *,
    lock: TableLock,
    runner: Runner,
    progress: SliceProgress,
    output: OutputOptions,
    options: AttemptOptions,
    limit: Limit | None = None,
    on_note: Callable[[WorkNote], None] = lambda _: None,
    wait_scope: WaitScope = keep_slot,
    job: Job | None = None,
) -> Compacted:
    """Brings one pending compaction to its end, or a clustering, the `job`; the caller holds the claim.

    If a dead attempt had decided, its decision is published; otherwise a new attempt is opened, staged and
    decided. StoppedError: the limit was reached before the decision; the attempt remains undecided, and the next run
    adopts its finished slices. `on_note` gets each new note of the heartbeat. Waits for writes run
    inside `wait_scope`."""
    started = time.monotonic()
    seen = table.snapshot()
    table = replace(table, storage=without_snapshot(table.storage), config=seen.config)
    if job is None:  # else the caller has
        check_keepable(table, moves_rows=False)
    storage = table.storage
    limit = limit or Limit()
    work = find_decision(seen.storage, instant) or open_attempt(seen, instant, options, job)
    if isinstance(work, CommitDecision):
        note_work(instant=instant, why="a process had decided it, and ended")
    elif isinstance(work.job, Compaction):
        note_work(instant=instant, **work.job.facts)
    else:
        note_work(instant=instant, why="planned before")
    if job is not None:
        note_work(kind=job.name)
    note = WorkNote(attempt=work.attempt if isinstance(work, CommitDecision) else work.number, since_ms=clock_ms())

    def report(**numbers: int) -> None:
        nonlocal note
        note = replace(note, **numbers)
        on_note(note)

    report()

    with heartbeat(storage, instant, options.heartbeat_s, note=lambda: note.to_note(), at_once=True) as beats:
        if isinstance(work, CommitDecision):
            decision = work
        else:
            decision = decide(
                table,
                work,
                lock,
                runner=runner,
                progress=progress,
                output=output,
                options=options,
                check=limit.check,
                report=report,
                wait_scope=wait_scope,
                begun=beats.check_begun,
            )
        beats.check_begun()
        # A request to an object store that failed may still be answered: until then no process cancels a clustering.
        beats.keep_on_error = job is not None and not storage.is_file_system
        publish(table, decision, lock)
        storage = retire(table, decision, beats).storage
    result = _summary(storage, decision, time.monotonic() - started, resumed=isinstance(work, CommitDecision))
    _log.info(
        "compacted" if job is None else "clustered",
        instant=instant,
        attempt=decision.attempt,
        file_groups=result.file_groups,
        rows=result.rows,
        seconds=round(result.seconds, 2),
    )
    return result


def decide(
    table: Table,
    work: Attempt,
    lock: TableLock,
    *,
    runner: Runner,
    progress: SliceProgress,
    output: OutputOptions,
    options: AttemptOptions,
    check: Callable[[], None] = lambda: None,
    report: Callable[..., None] = lambda **_: None,
    wait_scope: WaitScope = keep_slot,
    begun: Callable[[], None] = lambda: None,
) -> CommitDecision:
    """Brings an opened attempt to its decision. `check`: raises where the work must end. `report`: gets what changes in
    the note of the heartbeat. `begun`: raises its error, before anything is staged."""
    storage, job = table.storage, work.job
    watch = ForeignWatch(table, work.instant, work.number, work.trace, options.foreign_poll_s, requested=job.requested)

    def check_all() -> None:
        check()
        watch.check()

    def checked(done: int, total: int) -> None:
        check_all()
        report(done=done, total=total)
        progress(done, total)

    def run(tasks: Tasks) -> list[SliceDone]:
        check_tried()
        report(done=0, total=len(tasks), bytes=sum(task.read_bytes for task in tasks))
        return runner(storage, tasks, checked)

    @contextmanager
    def waiting() -> Iterator[bool]:
        report(waiting=1)
        with wait_scope() as is_patient:
            yield is_patient
        report(waiting=0)

    def check_tried() -> None:
        begun()
        probed()

    with _death_explains_errors(storage, work), probed_partitions(storage, job.partitions) as probed:
        done, schema = stage(table, work, output, options, run, check_all, waiting)
        note_work(core_seconds=sum(one.seconds for one in done))
        check_tried()  # every slice may have been adopted
        return decide_commit(table, work, done, schema, lock, dict(options.properties))


@contextmanager
def _death_explains_errors(storage: Storage, attempt: Attempt) -> Iterator[None]:
    """Turns any error of an attempt that another process has ended into AttemptDeadError. The other process may have
    removed files that the attempt still uses, so any error may follow."""
    try:
        yield
    except PhantombaseError as error:
        try:
            outcome = read_outcome(storage, attempt.instant, attempt.number)
        except MalformedError:  # whether another process ended it is unknown: the first error says more
            raise error from None
        if outcome is not None and outcome.cancelled is not None:
            _log.info("cancelled", instant=attempt.instant, attempt=attempt.number, by=outcome.cancelled)
            with suppress(PhantombaseError):  # the first error is the one to raise; the end of the instant removes them
                remove_attempt(storage, attempt.instant, attempt.number)
        if outcome is None or outcome.kind == COMMITTED or isinstance(error, AttemptDeadError):
            raise
        raise attempt_dead(attempt.instant, attempt.number, outcome) from error


def _summary(storage: Storage, decision: CommitDecision, seconds: float, *, resumed: bool) -> Compacted:
    commit = decode_commit(decision.content, decision.completed_path)
    stats = [s for part in commit.partition_to_write_stats.values() for s in part]
    ledgers = decode_ledgers(ledger_of(commit) or "", decision.completed_path)
    if expired := sum(one.ledger.expired for one in ledgers):
        _log.info("rows_left_out", instant=decision.instant, rows=expired, why="past their time")
    note_work(files_before=sum(len(one.inputs) for one in ledgers))
    note_work(files_after=sum(len(one.outputs) for one in ledgers))
    bases = [storage.find(one.path(one.base)) for one in ledgers if one.base is not None]
    read = sum(e.size for e in bases if e is not None) + sum(s.total_log_size_compacted for s in stats)
    return Compacted(
        instant=decision.instant,
        attempt=decision.attempt,
        file_groups=len(stats),
        rows=sum(s.num_writes for s in stats),
        bytes_written=sum(s.file_size_in_bytes for s in stats),
        rows_read=sum(one.ledger.base_rows + one.ledger.log_entries for one in ledgers),
        bytes_read=sum(one.bytes for one in decision.replaced) or read,
        seconds=seconds,
        resumed=resumed,
    )
