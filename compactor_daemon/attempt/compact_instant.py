"""Executes pending compactions of one table: claim, attempt, publish, retire; earliest instant first.

The decision of an attempt: under the table lock, check that nothing has changed, then write `commit`, which is final.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import MappingProxyType

from phantombase.timeline.audit.group_ledger import LEDGER, decode_ledgers
from phantombase.timeline.clock.now import clock_ms
from phantombase.timeline.errors import (
    AttemptDeadError,
    ConflictError,
    MalformedError,
    MissingFileError,
    PhantombaseError,
    UsageError,
)
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.compaction_plan import CompactionPlan
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Layout, Slicing
from phantombase.timeline.instants.attempt_names import COMMITTED
from phantombase.timeline.instants.reserved_times import reserve
from phantombase.timeline.locks.heartbeat import heartbeat
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.update import check_keepable
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.read.slice_log import check_slice
from phantombase.timeline.read.table_rules import slice_rules
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.probe import probe_partitions
from phantombase.timeline.storage.snapshot import latest
from phantombase.timeline.table.table import Table, TableSchema, consistent

from ..decisions.commit import compaction_commit, log_compaction_commit
from ..decisions.completed import completed_compaction
from ..decisions.hudi_executors import ForeignWatch
from ..decisions.validity import refuse, validity_of
from ..execution.runners import Runner, SliceProgress
from ..execution.slice_task import SliceTask
from ..options import AttemptOptions
from ..records.failures import WorkNote
from ..records.outcome import CommitDecision, Placement, attempt_dead, find_decision, read_outcome, write_outcome
from ..records.slice_done import SliceDone
from ..time_limit import Limit
from .attempt import Aside, Attempt, open_attempt, stage, stay
from .inputs import planned_inputs
from .publish import check_unchanged, publish
from .retire import retire


def decide_commit(
    table: Table,
    attempt: Attempt,
    done: list[SliceDone],
    schema: TableSchema,
    lock: TableLock,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> CommitDecision:
    """Decides under the table lock. ConflictError, AttemptDeadError: nothing is published."""
    with lock.hold("decide a compaction") as section:
        table = table.still()
        check_unchanged(table, attempt.table_version, attempt.instant)
        _check_undisturbed(table, attempt)
        timeline = table.load_timeline()
        table.times.check_reached(attempt.instant, timeline)
        completion = table.completion_time(timeline)
        decision = build_decision(
            table.layout,
            attempt,
            done,
            schema,
            completion,
            table.config.timeline_folder,
            oldest=timeline.start,
            properties=properties,
        )
        # A write that was merged may have been rolled back since the view was loaded.
        refuse(table, decision.instant, validity_of(table, decision))
        if completion is not None:
            reserve(table.storage, attempt.instant, attempt.number, completion)
        section.check()
        write_outcome(table.storage, attempt.instant, attempt.number, decision.to_json(), decision.nonce)
        return decision


def _check_undisturbed(table: Table, attempt: Attempt) -> None:
    instant = attempt.instant
    try:
        plan = table.compaction_plan(instant)
    except MissingFileError as error:
        raise ConflictError(
            "this compaction was meanwhile unscheduled, or rolled back and removed",
            path=error.path,
            instant=instant,
            todo="This attempt published nothing.",
        ) from error
    if plan.groups != attempt.plan.groups:
        raise ConflictError(
            "file groups were taken out of this plan meanwhile",
            path=table.storage.base_path,
            instant=instant,
            todo="This attempt published nothing. Run again.",
        )
    done = completed_compaction(table, instant)
    if done is not None:
        raise ConflictError("another process completed this compaction", path=table.instant_path(done), instant=instant)
    ForeignWatch(table, instant, attempt.number, attempt.trace).snapshot()


def build_decision(
    layout: Layout,
    attempt: Attempt,
    done: list[SliceDone],
    schema: TableSchema,
    completion: str | None,
    timeline_folder: str,
    *,
    oldest: str,
    properties: Mapping[str, str],
) -> CommitDecision:
    """The `commit` record. It depends on the arguments alone, except for its random nonce."""
    completed = Instant(
        requested_time=attempt.instant, action=attempt.plan.action, state=State.COMPLETED, completion_time=completion
    )
    commit = log_compaction_commit if attempt.plan.merges_logs else compaction_commit
    placements = tuple(
        Placement(staged=d.staged, final=d.final, size=d.size, output=d.output)
        for d in done
        if d.staged is not None and d.final is not None
    )
    return CommitDecision(
        instant=attempt.instant,
        attempt=attempt.number,
        nonce=uuid.uuid4().hex,
        table_version=attempt.table_version,
        completion_time=completion,
        completed_path=f"{timeline_folder}/{layout.file_name(completed)}",
        content=encode_commit(commit(done, schema, properties), layout.encoding),
        placements=placements,
        merged=tuple(sorted({instant for d in done for instant in d.merged or ()})),
        oldest=oldest,
        passed=_passed(layout, attempt, done),
    )


def _passed(layout: Layout, attempt: Attempt, done: list[SliceDone]) -> tuple[str, ...]:
    """The replaced file groups, which were left out: they have no inputs.

    Their replace commit may be rolled back before this decision is published. Then logs on the plan's slice would hide
    the rows below them. Only version 6 has such logs: from version 8 on, no log is named after the plan.
    """
    if attempt.plan.merges_logs or layout.slicing is not Slicing.BY_BASE_INSTANT:
        return ()
    return tuple(f"{d.partition}/{d.file_id}" for d in done if not d.inputs)


_PREFLIGHT_THREADS = 8

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """One executed instant.

    `rows` and `bytes_written` count the base files written. `rows_read` counts the rows of the merged base files and
    the entries of the merged logs. `bytes_read` is the size of these files; base files that a cleaner removed before
    the count are missing in it.
    """

    instant: str
    attempt: int
    file_groups: int
    rows: int
    bytes_written: int
    rows_read: int
    bytes_read: int
    seconds: float
    resumed: bool


def pending_instants(table: Table, only: str | None = None) -> tuple[str, ...]:
    """Pending compactions and log compactions, earliest first; UsageError when `only` is not one of them."""
    pending = tuple(i.requested_time for i in table.load_timeline().pending_merges)
    if only is None:
        return pending
    if only not in pending:
        raise UsageError(
            "not a pending compaction",
            path=table.storage.base_path,
            instant=only,
            expected=", ".join(pending) or None,
            found=None if pending else "none is pending",
            todo="`timeline show TABLE` lists the instants.",
        )
    return (only,)


def preflight(table: Table, instants: Sequence[str]) -> dict[str, PhantombaseError]:
    """Finds the instants that would be refused, before anything in the table changes: the error of each.

    `table`: a snapshot suffices (`Table.still`), since nothing is decided here.
    MissingFileError: a plan names a file that is not there. UnsupportedError: a log block cannot be merged. Only
    headers of log blocks are read. Decided instants are not checked, because publishing reads no log blocks. An error
    that concerns all instants is raised: one of the table's schema, for example, or ClockError when this process must
    not choose a completion time.
    """
    table.facts.read_ahead(table.load_timeline())
    refused: dict[str, PhantombaseError] = {}
    plans: dict[str, CompactionPlan] = {}
    for instant in instants:
        with _noted(refused, instant):
            if find_decision(table.storage, instant) is None:
                plans[instant] = table.compaction_plan(instant)
    if not plans:
        return refused
    try:
        looks = chain([table], iter(table.still, None))
        view = consistent(lambda: next(looks).load_plan_view(plans.values()))
    except PhantombaseError:
        if len(plans) == 1:
            raise
        # An error in the partitions of one plan must not refuse the others: check each plan alone.
        for instant in plans:
            with _noted(refused, instant):
                refused |= preflight(table, [instant])
        return refused
    if table.layout.has_completion_times:
        table.times.check_zone(view.timeline)
    schema = table.newest_schema(view.timeline)
    rules = slice_rules(table, view.timeline, schema)
    with ThreadPoolExecutor(_PREFLIGHT_THREADS) as pool:
        for instant, plan in plans.items():
            with _noted(refused, instant):
                table.times.check_reached(instant, view.timeline)
                inputs = planned_inputs(table, view, plan, instant, rules)
                check = partial(check_slice, table.storage, rules=rules)
                list(pool.map(check, (one.slice for one in inputs)))
    return refused


@contextmanager
def _noted(refused: dict[str, PhantombaseError], instant: str) -> Iterator[None]:
    try:
        yield
    except PhantombaseError as error:
        refused[instant] = error


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
    aside: Aside = stay,
) -> Compacted:
    """Brings one pending compaction to its end; the caller holds the claim.

    If an attempt that died had decided, its decision is published; otherwise a new attempt is opened, staged and
    decided. StoppedError: the limit was reached before the decision; the attempt stays without a outcome, and the next
    run adopts its finished slices. `on_note` gets each new note of the heartbeat. The wait for writes runs inside
    `aside`.
    """
    started = time.monotonic()
    seen = table.still()
    table = replace(table, storage=latest(table.storage), config=seen.config)
    check_keepable(table, moves_rows=False)
    storage = table.storage
    limit = limit or Limit()
    work = find_decision(seen.storage, instant) or open_attempt(seen, instant, options)
    note = WorkNote(attempt=work.attempt if isinstance(work, CommitDecision) else work.number, since_ms=clock_ms())

    def noted(**numbers: int) -> None:
        nonlocal note
        note = replace(note, **numbers)
        on_note(note)

    noted()
    with heartbeat(storage, instant, options.heartbeat_s, note=lambda: note.to_note()):
        if isinstance(work, CommitDecision):
            decision = work
        else:
            watch = ForeignWatch(table, instant, work.number, work.trace, options.foreign_look_s)

            def check() -> None:
                limit.check()
                watch.check()

            def checked(done: int, total: int) -> None:
                check()
                noted(done=done, total=total)
                progress(done, total)

            def run(tasks: list[SliceTask]) -> list[SliceDone]:
                size = sum(t.slice.base_bytes + t.slice.log_bytes for t in tasks)
                noted(done=0, total=len(tasks), bytes=size)
                return runner(storage, tasks, checked)

            @contextmanager
            def waiting() -> Iterator[bool]:
                noted(waiting=1)
                with aside() as is_patient:
                    yield is_patient
                noted(waiting=0)

            with _death_explains_errors(storage, work):
                probe_partitions(storage, {partition for partition, _ in work.plan.groups})
                done, schema = stage(table, work, output, options, run, check, waiting)
                decision = decide_commit(table, work, done, schema, lock, dict(options.properties))
        publish(table, decision, lock)
        seen = retire(table, decision)
    result = _summary(seen.storage, decision, time.monotonic() - started, resumed=isinstance(work, CommitDecision))
    _log.info(
        "compacted",
        instant=instant,
        attempt=decision.attempt,
        file_groups=result.file_groups,
        rows=result.rows,
        seconds=round(result.seconds, 2),
    )
    return result


@contextmanager
def _death_explains_errors(storage: Storage, attempt: Attempt) -> Iterator[None]:
    """Turns any error of an attempt that another process has ended into AttemptDeadError.

    The other process may have removed files that the attempt still uses, so any error may follow.
    """
    try:
        yield
    except PhantombaseError as error:
        try:
            outcome = read_outcome(storage, attempt.instant, attempt.number)
        except MalformedError:  # whether another process ended it is unknown: the first error says more
            raise error from None
        if outcome is None or outcome.kind == COMMITTED or isinstance(error, AttemptDeadError):
            raise
        raise attempt_dead(attempt.instant, attempt.number, outcome) from error


def _summary(storage: Storage, decision: CommitDecision, seconds: float, *, resumed: bool) -> Compacted:
    commit = decode_commit(decision.content, decision.completed_path)
    stats = [s for part in commit.partition_to_write_stats.values() for s in part]
    ledgers = decode_ledgers(commit.extra_metadata[LEDGER], decision.completed_path)
    bases = [storage.find(one.path(one.base)) for one in ledgers if one.base is not None]
    return Compacted(
        instant=decision.instant,
        attempt=decision.attempt,
        file_groups=len(stats),
        rows=sum(s.num_writes for s in stats),
        bytes_written=sum(s.file_size_in_bytes for s in stats),
        rows_read=sum(one.ledger.base_rows + one.ledger.log_entries for one in ledgers),
        bytes_read=sum(e.size for e in bases if e is not None) + sum(s.total_log_size_compacted for s in stats),
        seconds=seconds,
        resumed=resumed,
    )
