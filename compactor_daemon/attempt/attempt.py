"""One attempt at a pending compaction, up to its decision: open and stage.

    open    the number e is 1 + the highest number on storage; every earlier attempt must be dead. Storage decides
            which of two processes opens it
    stage   one task per file slice leaves `<position>.ok`; finished slices of dead attempts are adopted. Then barrier
            and closure hold: no write is missing, and no input has changed

No file has a final name before the commit decision (`decide`). A crash at any line leaves either an attempt without an
outcome (the next holder of the claim declares it dead and opens its own) or the outcome `commit` (the next holder
publishes it).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import BarrierError, ConflictError, MissingFileError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.compaction_plan import CompactionPlan
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.log_visibility import Visibility
from phantombase.timeline.instants.reserved_times import attempts
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import process_name
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.storage.snapshot import list_ahead
from phantombase.timeline.table.in_progress import pending_replacing_writes
from phantombase.timeline.table.table import Table, TableSchema
from phantombase.timeline.view.view import TableView

from ..options import AttemptOptions
from .hudi_executors import ForeignTrace, foreign_trace, refuse_live
from .inputs import Input, has_barrier, planned_inputs
from .outcome import attempt_dead, decisions, declare_dead, open_next, read_outcome
from .slice_task import SliceChunk, SliceDone, SliceTask, StageSpec, done_slices
from .validity import assess, gather_evidence, refuse

_log = get_logger()

RunTasks = Callable[[list[SliceTask]], list[SliceDone]]
"""Compacts file slices somewhere and returns their records; raises errors of the tree."""

WaitScope = Callable[[], AbstractContextManager[bool]]
"""Entered while an attempt waits for writes. Yields whether it may wait without limit, see `AttemptOptions`."""


def keep_slot() -> AbstractContextManager[bool]:
    """The `WaitScope` of work that keeps its slot while it waits."""
    return nullcontext(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An opened attempt, and what was found when it was opened.

    `barrier`: writes that were pending then and must end before the decision. `trace`: what a dead Hudi executor left.
    """

    instant: str
    number: int
    plan: CompactionPlan
    barrier: frozenset[str]
    trace: ForeignTrace
    table_version: int


def open_attempt(table: Table, instant: str, options: AttemptOptions) -> Attempt:
    """Opens the next attempt, declaring unfinished earlier ones dead (the caller holds the claim).

    `table`: a snapshot suffices if this process has changed nothing since. ConflictError: a Hudi compactor is alive at
    the instant, a pending restore or rollback blocks it (no decision would be valid), or another process opened the
    same attempt concurrently.
    """
    storage = table.storage
    plan = table.compaction_plan(instant)
    trace = foreign_trace(table, instant, {partition for partition, _ in plan.groups})
    refuse_live(trace, table, instant, options)
    refuse(table, instant, assess(table.files.requested_merge(instant), (), "", gather_evidence(table, instant)))
    who = process_name()
    for number in declare_dead(storage, instant, who):
        _log.info("attempt_declared_dead", instant=instant, attempt=number)
    number = open_next(storage, instant, who)
    table = table.snapshot(reload=False)
    _refuse_unscheduled(table, instant, who, plan)
    # The plan is visible to every write that begins from here on. Writes that are pending now may have begun before the
    # plan was visible: they must end before the decision (barrier).
    timeline = table.load_timeline()
    pending = timeline.pending_delta_commits if has_barrier(table, plan) else ()
    # So must older pending replace commits: the file group that one replaces may be cleaned, and the replace commit
    # archived, while this compaction is pending.
    pending += tuple(i for i in pending_replacing_writes(table, timeline) if i.requested_time < instant)
    return Attempt(
        instant=instant,
        number=number,
        plan=plan,
        barrier=frozenset(i.requested_time for i in pending),
        trace=trace,
        table_version=table.config.version,
    )


def _refuse_unscheduled(table: Table, instant: str, who: str, plan: CompactionPlan) -> None:
    """Reads the plan again, now that the attempt is open.

    A process that removes the plan, or file groups from it, ends every open attempt that it finds. It may have missed
    this attempt.
    """
    try:
        if table.compaction_plan(instant).groups == plan.groups:
            return
        found, cause = "file groups were removed from it", None
    except MissingFileError as error:
        found, cause = "the plan was removed", error
    declare_dead(table.storage, instant, who)
    raise ConflictError(
        "this compaction was just unscheduled", path=table.storage.base_path, instant=instant, found=found
    ) from cause


def merge_rules(table: Table, timeline: Timeline, schema: TableSchema, output: OutputOptions) -> SliceRules:
    """How slices are merged and what their ledgers count."""
    rules = slice_rules(
        table, timeline, schema, every_duplicate=table.layout.every_duplicate_compacted, batch_rows=output.batch_rows
    )
    return replace(rules, memory_bytes=output.memory_limit, spill_folder=output.spill_dir, identity=True)


def tasks_for(
    inputs: Iterable[tuple[int, Input]],
    rules: SliceRules,
    schema: TableSchema,
    output: OutputOptions,
    *,
    instant: str,
    attempt: int,
    measure: Measure | None = None,
) -> list[SliceTask]:
    """One task per file to be made; each input comes with its position in the plan."""
    common = StageSpec(
        instant=instant, attempt=attempt, rules=rules, schema_text=schema.file_text, output=output, measure=measure
    )
    return [SliceTask(common, SliceChunk(position=n, slice=one.slice, log=one.log)) for n, one in inputs]


def single_task(
    table: Table,
    view: TableView,
    plan: CompactionPlan,
    schema: TableSchema,
    output: OutputOptions,
    *,
    instant: str,
    attempt: int,
    position: int,
    measure: Measure | None = None,
) -> SliceTask:
    """The task of one file of a plan, at its `position`, from a view of the plan's partitions."""
    rules = merge_rules(table, view.timeline, schema, output)
    (one,) = planned_inputs(table, view, plan.only(position), instant, rules)
    (task,) = tasks_for([(position, one)], rules, schema, output, instant=instant, attempt=attempt, measure=measure)
    return task


def stage(
    table: Table,
    attempt: Attempt,
    output: OutputOptions,
    options: AttemptOptions,
    run: RunTasks,
    check: Callable[[], None] = lambda: None,
    wait_scope: WaitScope = keep_slot,
) -> tuple[list[SliceDone], TableSchema]:
    """Stages every file slice until barrier and closure hold; returns the records and the table's schema.

    The view is loaded again after the barrier; a file group whose inputs (or schema) changed is merged again. Each
    round lists the pending writes of the barrier before it loads its view, even when it has nothing to merge. So a
    write that completes between the two steps is either in the view, or was seen pending and causes another round.
    `check` raises when the work must end; it is called before each round and while waiting for the barrier. The wait
    runs inside `wait_scope`.
    """
    storage = table.storage
    adopted: Mapping[str, SliceDone] | None = None
    own: dict[int, SliceDone] = {}
    for _ in range(options.redo_max):
        check()
        seen = table.snapshot(reload=False)
        list_ahead(seen.storage, [seen.config.timeline_folder], records=adopted is None)
        waiting = _pending_of(seen, attempt.barrier)
        view = seen.load_plan_view([attempt.plan])
        schema = seen.newest_schema(view.timeline, before=attempt.instant)
        rules = merge_rules(seen, view.timeline, schema, output)
        inputs = planned_inputs(seen, view, attempt.plan, attempt.instant, rules)
        tasks = tasks_for(
            enumerate(inputs),
            rules,
            schema,
            output,
            instant=attempt.instant,
            attempt=attempt.number,
            measure=Measure.of(seen, schema),
        )
        if adopted is None:
            adopted = _adoptable(seen, attempt)
            own = done_slices(seen.storage, attempt.instant, attempt.number)
        done = {t.position: d for t in tasks if (d := _usable(t, own, adopted)) is not None}
        todo = [t for t in tasks if t.position not in done]
        for task in todo:  # the record of a merge of other inputs blocks the new record
            if seen.storage.find(task.record_path) is not None:
                storage.delete(task.record_path)
        if todo:
            _log.info("staging", instant=attempt.instant, attempt=attempt.number, slices=len(todo), adopted=len(done))
            own |= {one.position: one for one in run(todo)}
        if waiting:
            _wait_for(table, waiting, attempt, options, check, wait_scope)
        elif not todo:
            return [done[t.position] for t in tasks], schema
    raise BarrierError(
        "the inputs of a file group kept changing under the compaction",
        path=storage.base_path,
        instant=attempt.instant,
        found=f"{options.redo_max} rounds",
        todo="Find the writer that adds log files below the plan. All writers must share the table lock.",
    )


def _adoptable(table: Table, attempt: Attempt) -> dict[str, SliceDone]:
    """Finished slices of earlier (dead) attempts, by fingerprint, whose staged files still exist.

    A slice that a decision names is not adopted: that decision was revoked, and the process that reverts it deletes its
    files at any time.
    """
    named = {p.final for decision in decisions(table.storage, attempt.instant) for p in decision.placements}
    found: dict[str, SliceDone] = {}
    for number in attempts(table.storage, attempt.instant):
        if number < attempt.number:
            for done in done_slices(table.storage, attempt.instant, number).values():
                entry = table.storage.find(done.staged) if done.staged else None
                is_there = done.staged is None or (entry is not None and entry.size == done.size)
                if is_there and done.final not in named:
                    found[done.fingerprint] = done
    return found


def _usable(task: SliceTask, own: Mapping[int, SliceDone], adopted: Mapping[str, SliceDone]) -> SliceDone | None:
    mine = own.get(task.position)
    if mine is not None and mine.fingerprint == task.fingerprint and _is_current(mine, task.rules.visibility):
        return mine
    theirs = adopted.get(task.fingerprint)
    if theirs is not None and _is_current(theirs, task.rules.visibility):
        return replace(theirs, position=task.position)
    return None


def _is_current(done: SliceDone, visibility: Visibility) -> bool:
    """Whether the writes that a result left out are still uncommitted, and those that it merged still committed.

    The fingerprint does not show this on version 6: a write has the same log files before and after it completes.
    """
    if done.uncommitted is None or done.merged is None:
        return False
    newly = any(visibility.is_committed(i) for i in done.uncommitted)
    return not newly and all(visibility.is_committed(i) for i in done.merged)


def _pending_of(table: Table, barrier: frozenset[str]) -> list[Instant]:
    return [i for i in table.load_timeline().inflight_writers if i.requested_time in barrier]


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
        while waiting := _pending_of(table, attempt.barrier):
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
        "writes that began before this compaction are still pending",
        path=table.storage.base_path,
        instant=attempt.instant,
        expected=f"completed or rolled back within {options.barrier_s:g} s",
        found=f"{first.action} {first.requested_time} {first.state.name.lower()} ({len(waiting)} in all)",
        todo="Let the writer finish. If it is dead, the next Hudi writer rolls it back. Then run again.",
    )
