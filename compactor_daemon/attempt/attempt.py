"""One attempt at a pending compaction or clustering: open, stage, decide.

    open    the number e is 1 + the highest number on storage; every earlier attempt must be dead. Storage decides
            which of two processes opens it
    stage   one task per file slice leaves `<position>.ok`; finished slices of dead attempts are adopted. Then barrier
            and closure hold: no write is missing, and no input has changed
    decide  under the table lock: check that nothing has changed since the attempt was opened, then write the outcome
            `commit` by put-if-absent. It is final: from then on any process may publish it

No file has a final name before the commit decision. A crash at any line leaves either an attempt without an
outcome (the next holder of the claim declares it dead and opens its own) or the outcome `commit` (the next holder
publishes it)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import BarrierError, ConflictError, MissingFileError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.log_block import Visibility
from phantombase.timeline.instants.reserved_times import attempts, reserve
from phantombase.timeline.locks.heartbeat import process_name
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.snapshot import list_ahead
from phantombase.timeline.table.in_progress import check_version, exclusive
from phantombase.timeline.table.table import Snapshot, Table, TableSchema

from ..options import AttemptOptions
from .compaction import Compaction
from .hudi_executors import ForeignTrace, ForeignWatch, foreign_trace, refuse_live
from .job import Job
from .outcome import (
    CommitDecision,
    Placement,
    attempt_dead,
    decisions,
    declare_dead,
    open_next,
    read_outcome,
    read_outcomes,
    write_outcome,
)
from .publish import not_published
from .slice_record import SliceDone, completed_compaction, done_slices, leave_record
from .slice_task import StageTask, Tasks
from .validity import OF_ATTEMPT, assess, gather_evidence, refuse, validity_of

_log = get_logger()

RunTasks = Callable[[Tasks], list[SliceDone]]
"""Runs tasks somewhere and returns their records; raises errors of the tree."""

WaitScope = Callable[[], AbstractContextManager[bool]]
"""Entered while an attempt waits for writes. Yields whether it may wait without limit, see `AttemptOptions`."""


def keep_slot() -> AbstractContextManager[bool]:
    """The `WaitScope` of work that keeps its slot while it waits."""
    return nullcontext(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An opened attempt, and what was found when it was opened. `barrier`: writes that were pending then and must end
    before the decision. `trace`: what a dead Hudi executor left. `seen`: of an object store, what was listed for the
    barrier, with the records: the first round of `stage` needs nothing newer."""

    instant: str
    number: int
    job: Job
    barrier: frozenset[str]
    trace: ForeignTrace
    table_version: int
    seen: Snapshot | None = None


def open_attempt(table: Table, instant: str, options: AttemptOptions, job: Job | None = None) -> Attempt:
    """Opens the next attempt, declaring unfinished earlier ones dead (the caller holds the claim). `table`: a snapshot
    suffices if this process has changed nothing since. `job`: None is the compaction, or log compaction, of the
    instant. ConflictError: a Hudi executor is alive at the instant, a pending restore or rollback blocks it (no
    decision would be valid), or another process opened the same attempt concurrently."""
    storage = table.storage
    job = job or Compaction.planned(table, instant)
    trace = foreign_trace(table, instant, job.partitions, job.requested)
    refuse_live(trace, table, instant, options)
    refuse(table, job, assess(job.requested, (), "", gather_evidence(table, job)))
    who = process_name()
    for number in declare_dead(storage, instant, who):
        _log.info("attempt_declared_dead", instant=instant, attempt=number)
    number = open_next(storage, instant, who)
    table = table.snapshot(same_settings=True)
    list_ahead(table.storage, [table.config.timeline_folder], records=True)
    _refuse_unscheduled(table, job, who)
    return Attempt(
        instant=instant,
        number=number,
        job=job,
        barrier=job.barrier(table),
        trace=trace,
        table_version=table.config.version,
        seen=None if storage.is_file_system else table,
    )


def _refuse_unscheduled(table: Table, job: Job, who: str) -> None:
    """Reads the plan again, now that the attempt is open. A process that removes the plan, or file groups from it, ends
    every open attempt that it finds. It may have missed this attempt."""
    try:
        if job.is_planned(table):
            return
        found, cause = "file groups were removed from it", None
    except MissingFileError as error:
        found, cause = "the plan was removed", error
    instant = job.requested.requested_time
    declare_dead(table.storage, instant, who)
    raise ConflictError(
        f"this {job.name} was just unscheduled", path=table.storage.base_path, instant=instant, found=found
    ) from cause


def stage(
    table: Table,
    attempt: Attempt,
    output: OutputOptions,
    options: AttemptOptions,
    run: RunTasks,
    check: Callable[[], None] = lambda: None,
    wait_scope: WaitScope = keep_slot,
) -> tuple[list[SliceDone], TableSchema]:
    """Stages every file slice until barrier and closure hold; returns the records and the table's schema. The view is
    loaded again after the barrier; a file group whose inputs (or schema) changed is merged again. Each round lists the
    pending writes of the barrier before it loads its view, even when it has nothing to merge. So a write that completes
    between the two steps is either in the view, or was seen pending and causes another round. `check` raises when the
    work must end; it is called before each round and while waiting for the barrier. The wait runs inside
    `wait_scope`."""
    storage = table.storage
    adopted: Mapping[str, SliceDone] | None = None
    own: dict[int, SliceDone] = {}
    before: Mapping[int, SliceDone] = {}
    for number in range(options.redo_max):
        check()
        seen = (attempt.seen if number == 0 else None) or table.snapshot(same_settings=True)
        list_ahead(seen.storage, [seen.config.timeline_folder], records=adopted is None)
        waiting = _pending_of(seen, attempt)
        tasks, schema = attempt.job.tasks(seen, attempt.number, output)
        if adopted is None:
            adopted = _adoptable(seen, attempt)
            own = done_slices(seen.storage, attempt.instant, attempt.number)
            before = attempt.job.staged_before(seen, tasks)
        done = {t.position: d for t in tasks if (d := _usable(t, own, adopted, before)) is not None}
        todo = [t for t in tasks if t.position not in done]
        for task in todo:  # the record of a merge of other inputs blocks the new record
            if seen.storage.find(task.record_path) is not None:
                storage.delete(task.record_path)
        if todo:
            _log.info("staging", instant=attempt.instant, attempt=attempt.number, slices=len(todo), adopted=len(done))
            largest_first = sorted(
                todo, key=lambda task: -task.read_bytes
            )  # a large one begun last would be waited for
            own |= {one.position: one for one in run(largest_first)}
        if waiting:
            _wait_for(table, waiting, attempt, options, check, wait_scope)
        elif not todo:
            return [_recorded(storage, t, done[t.position], before) for t in tasks], schema
    raise BarrierError(
        f"the inputs of a file group kept changing under the {attempt.job.name}",
        path=storage.base_path,
        instant=attempt.instant,
        found=f"{options.redo_max} rounds",
        todo="Find the writer that adds log files below the plan. All writers must share the table lock.",
    )


def _adoptable(table: Table, attempt: Attempt) -> dict[str, SliceDone]:
    """Finished slices of earlier (dead) attempts, by fingerprint, whose staged files still exist. A slice that a
    decision names is not adopted: that decision was revoked, and the process that reverts it deletes its files at any
    time. So does the process of a cancelled attempt."""
    named = {p.final for decision in decisions(table.storage, attempt.instant) for p in decision.placements}
    outcomes = read_outcomes(table.storage, attempt.instant)
    found: dict[str, SliceDone] = {}
    for number in attempts(table.storage, attempt.instant):
        outcome = outcomes.get(number)
        if number < attempt.number and (outcome is None or outcome.cancelled is None):
            for done in done_slices(table.storage, attempt.instant, number).values():
                entries = [(file.size, table.storage.find(file.staged)) for file in done.files]
                is_there = all(entry is not None and entry.size == size for size, entry in entries)
                if is_there and named.isdisjoint(file.final for file in done.files):
                    found[done.fingerprint] = done
    return found


def _recorded(storage: Storage, task: StageTask, done: SliceDone, before: Mapping[int, SliceDone]) -> SliceDone:
    """What was staged before the plan gets its record only now: who cancels an attempt that may decide, or retires it,
    removes what its records name."""
    if done is not before.get(task.position):
        return done
    return leave_record(storage, task.record_path, done)


def _usable(
    task: StageTask, own: Mapping[int, SliceDone], adopted: Mapping[str, SliceDone], before: Mapping[int, SliceDone]
) -> SliceDone | None:
    for mine in (own.get(task.position), before.get(task.position)):
        if mine is not None and mine.fingerprint == task.fingerprint and is_current(mine, task.rules.visibility):
            return mine
    theirs = adopted.get(task.fingerprint)
    if theirs is not None and is_current(theirs, task.rules.visibility):
        return replace(theirs, position=task.position)
    return None


def is_current(done: SliceDone, visibility: Visibility) -> bool:
    """Whether the writes that a result left out are still uncommitted, and those that it merged still committed. The
    fingerprint does not show this on version 6: a write has the same log files before and after it completes."""
    if done.uncommitted is None or done.merged is None:
        return False
    newly = any(visibility.is_committed(i) for i in done.uncommitted)
    return not newly and all(visibility.is_committed(i) for i in done.merged)


def _pending_of(table: Table, attempt: Attempt) -> list[Instant]:
    return attempt.job.waiting(table.with_timeline(table.load_timeline()), attempt.barrier)


def _wait_for(
    table: Table,
    waiting: list[Instant],
    attempt: Attempt,
    options: AttemptOptions,
    check: Callable[[], None],
    wait_scope: WaitScope,
) -> None:
    """AttemptDeadError: another process ended the attempt."""
    _log.info("barrier_waiting", instant=attempt.instant, writes=[i.requested_time for i in waiting])
    deadline = time.monotonic() + options.barrier_s
    with wait_scope() as is_patient:
        while waiting := _pending_of(table, attempt):
            check()
            outcome = read_outcome(table.storage, attempt.instant, attempt.number)
            if outcome is not None:
                raise attempt_dead(attempt.instant, attempt.number, outcome)
            if not is_patient and time.monotonic() > deadline:
                raise _still_pending(table, waiting, attempt, options)
            time.sleep(options.barrier_poll_s)


def _still_pending(table: Table, waiting: list[Instant], attempt: Attempt, options: AttemptOptions) -> BarrierError:
    first = waiting[0]
    return BarrierError(
        attempt.job.waits_for,
        path=table.storage.base_path,
        instant=attempt.instant,
        expected=f"completed or rolled back within {options.barrier_s:g} s",
        found=f"{first.action} {first.requested_time} {first.state.name.lower()} ({len(waiting)} in all)",
        todo="Let the writer finish. If it is dead, the next Hudi writer rolls it back. Then run again.",
    )


def decide_commit(
    table: Table,
    attempt: Attempt,
    done: list[SliceDone],
    schema: TableSchema,
    lock: TableLock,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> CommitDecision:
    """Decides under the table lock. ConflictError, AttemptDeadError: nothing is published."""
    job = attempt.job
    with exclusive(table, lock, f"decide a {job.name}", OF_ATTEMPT, cached=True) as table:
        check_version(table, attempt.table_version, attempt.instant, not_published(job))
        _check_undisturbed(table, attempt)
        table.times.check_reached(attempt.instant, table.timeline)
        completion = table.completion_time()
        decision = build_decision(
            table, attempt, done, schema, completion, oldest=table.timeline.start, properties=properties
        )
        # A write that was merged may have been rolled back since the view was loaded.
        refuse(table, job, validity_of(table, decision))
        if completion is not None:
            reserve(table.storage, attempt.instant, attempt.number, completion)
        write_outcome(table.storage, attempt.instant, attempt.number, decision.to_json(), decision.nonce)
        return decision


def _check_undisturbed(table: Table, attempt: Attempt) -> None:
    instant, job = attempt.instant, attempt.job
    try:
        is_planned = job.is_planned(table)
    except MissingFileError as error:
        raise ConflictError(
            f"this {job.name} was unscheduled, or rolled back and removed",
            path=error.path,
            instant=instant,
            todo="This attempt published nothing.",
        ) from error
    if not is_planned:
        raise ConflictError(
            "file groups were removed from this plan",
            path=table.storage.base_path,
            instant=instant,
            todo="This attempt published nothing. Run again.",
        )
    done = completed_compaction(table, instant, job.requested.family)
    if done is not None:
        raise ConflictError(
            f"another process completed this {job.name}", path=table.instant_path(done), instant=instant
        )
    ForeignWatch(table, instant, attempt.number, attempt.trace, requested=job.requested).check_now()


def build_decision(
    table: Table,
    attempt: Attempt,
    done: list[SliceDone],
    schema: TableSchema,
    completion: str | None,
    *,
    oldest: str,
    properties: Mapping[str, str],
) -> CommitDecision:
    """The `commit` record. It depends on the arguments alone, except for its random nonce."""
    job, layout = attempt.job, table.layout
    completed = Instant(
        requested_time=attempt.instant, action=job.requested.action, state=State.COMPLETED, completion_time=completion
    )
    placements = tuple(
        Placement(staged=file.staged, final=file.final, size=file.size, output=d.output)
        for d in done
        for file in d.files
    )
    return CommitDecision(
        instant=attempt.instant,
        attempt=attempt.number,
        nonce=uuid.uuid4().hex,
        table_version=attempt.table_version,
        completion_time=completion,
        completed_path=f"{table.config.timeline_folder}/{layout.file_name(completed)}",
        content=encode_commit(job.commit(done, schema, properties), layout.encoding),
        placements=placements,
        merged=tuple(sorted({instant for d in done for instant in d.merged or ()})),
        oldest=oldest,
        passed=job.passed(table, done),
        replaced=job.replaced(done),
        skipped=job.skipped(done),
    )
