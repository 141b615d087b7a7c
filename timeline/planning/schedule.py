"""Requests a compaction: one undivided section under the table lock.

The section reads hoodie.properties again, refuses tables that no compaction may change, evaluates the trigger, loads
timeline and view, leaves out file groups that a compactor would refuse, checks that no pending write could write under
the plan, chooses an instant greater than every time on storage, and makes the plan visible by put-if-absent.

`drafts` builds plans as Hudi writes them from the planner's choice. `plan_everything` plans every file group with log
files, like `planner.plan_compaction` without limits, for very many. It applies the planner's rules only to file groups
that are not plain (`view.plain_slices`); of plain ones, nearly all, it keeps only the bytes of the operation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..clocks import clock_ms
from ..codec.avro_container import OnDemand
from ..errors import LockError
from ..event_log import get_logger
from ..format.compaction_plan import CompactionOperation, CompactionPlan, decode_plan, encode_plan
from ..format.instant import Instant, State, later
from ..instants.instant_files import Torn
from ..instants.triggers import Trigger, TriggerStrategy, held_back
from ..locks.heartbeat import put_wanted, remove_wanted
from ..locks.pause import COMPACTION, refuse_paused
from ..locks.table_lock import TableLock
from ..merge.table_rules import slice_rules
from ..metadata_table.record_index import check_keepable
from ..read.pruning import outside_of
from ..shown import Shown
from ..table.in_progress import READ_INSIDE, clustered_file_groups, exclusive, merges_no_logs
from ..table.table import Snapshot, Table, put_requested
from ..view.view import GroupKey, Lag, table_lag
from .limits import Cost, MergeKind, Picking, shared
from .log_compaction import LOG_STRATEGY, log_operation
from .operation import HAS_LOGS, PackedPlan, PackedSlices, operation
from .options import PLAN_NOW, Pace, ScheduleOptions, estimated_s, goal_trigger, paced, past_runs, write_interval_s
from .partition_walk import NOTES, PlanNotes, Waiting, encode_notes
from .planner import Check, PartitionGroups, Plan, Planned, Planner, Situation, SliceMeasure, plan_compaction
from .survey import Survey, is_due


def drafts(
    planned: Planned, waiting: Sequence[Waiting], left_out: Sequence[str], why: str = ""
) -> list[CompactionPlan]:
    """The plan of each request, in the order of their instants; `why`: one was due. The last plan records where the
    next planning must look. Hudi 1.2 looks for logs only in partitions written since the last plan, and in those it
    left out, on version 6 too (0.15 does not)."""
    found = [kind_of for plan in planned.plans for kind_of in _by_kind(plan)]
    result: list[CompactionPlan] = []
    for number, (kind, operations, reasons) in enumerate(found, 1):
        notes = encode_notes(planned.notes, reasons, waiting if number == len(found) else None, why)
        plan = CompactionPlan(
            operations=operations, extra_metadata={NOTES: notes}, missing_schedule_partitions=tuple(left_out)
        )
        if kind is MergeKind.MINOR:
            plan = replace(
                plan,
                strategy=LOG_STRATEGY,
                preserve_hoodie_metadata=True,
                missing_schedule_partitions=(),
                action="logcompaction",
            )
        result.append(plan)
    return result


def _by_kind(plan: Plan) -> Iterator[tuple[MergeKind, Sequence[CompactionOperation], dict[str, str]]]:
    """Each kind in a plan, its operations, and the reasons why file groups are in it."""
    if isinstance(plan, PackedPlan):
        yield MergeKind.MAJOR, plan.operations, {}
        return
    for kind, make in (
        (MergeKind.MINOR, lambda c: log_operation(c.slice, c.pieces)),
        (MergeKind.MAJOR, lambda c: operation(c.slice)),
    ):
        if chosen := [c for c in plan if c.kind is kind]:
            reasons = {"/".join(c.slice.key): c.why for c in chosen if c.why != HAS_LOGS}
            yield kind, OnDemand(chosen, make), reasons


def takes_everything(options: ScheduleOptions, *, all_due: bool) -> bool:
    """Whether every file group with log files is planned, whatever the content of the files."""
    chosen = (
        options.limited or options.strategies or options.exclude or options.where or options.picking is not Picking.ALL
    )
    return all_due and not chosen


def plan_everything(
    looks: Iterable[PartitionGroups],
    situation: Situation,
    options: ScheduleOptions,
    measure: SliceMeasure,
    check: Check,
) -> Planned:
    """As `plan_compaction`, for options that `takes_everything`; `looks` may have plain slices."""
    planner, found = Planner(situation, options, measure, check), PackedSlices()
    for snapshot in looks:
        others = [candidate.slice for candidate in planner.candidates(snapshot)]
        partition = snapshot.waiting.folder
        found.add(partition, planner.take(snapshot.plain, partition), others)
    order = found.largest_logs_first()
    plans = shared(found.io_bytes(order), order, options.max_plans)
    read, written = found.read_bytes, found.write_bytes
    total = Cost(slices=len(found), source_bytes=read, io_bytes=read + written)
    return planner.outcome(tuple(map(found.plan, plans)), total, found.files - len(found))


_log = get_logger()
_NOTHING_LEFT: Mapping[GroupKey, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested(Shown):
    instant: str
    plan: CompactionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled(Shown):
    """The requested plans, or in a dry run those that would be requested, with instants; `why`: the reason for none.
    `notes` None: the trigger has not fired, nothing was examined."""

    requested: tuple[Requested, ...]
    why: str
    notes: PlanNotes | None = None

    @property
    def instant(self) -> str | None:
        return self.requested[0].instant if self.requested else None

    @property
    def plan(self) -> CompactionPlan | None:
        return self.requested[0].plan if self.requested else None


def schedule_compaction(
    table: Table,
    lock: TableLock,
    options: ScheduleOptions = PLAN_NOW,
    *,
    only: Collection[GroupKey] | None = None,
    pace: Pace | None = None,
    check: Callable[[Snapshot, CompactionPlan], None] = lambda table, plan: None,
    dry_run: bool = False,
) -> Scheduled:
    """Plans the file groups that are due, and makes each plan visible atomically. If only a pending write prevents a
    due plan, writers are asked to wait (see `put_wanted`). `only`: no other file groups than these are planned; with
    options that are not incremental. `pace`: see `fresh_trigger`. `check`: raises where a plan could not be executed;
    none is requested then. `dry_run`: nothing is changed. LockError, PausedError, UnknownStateError, ClockError:
    nothing was changed. UnsupportedError, MalformedError: nothing was changed, and no compaction of this table could be
    executed. File groups that cannot be compacted are left out."""
    with exclusive(table, lock, "schedule a compaction", READ_INSIDE) as table:
        found = choose_plans(table, options, only=only, pace=pace, dry_run=dry_run)
        for requested in found.requested:
            check(table, requested.plan)
        if not dry_run:
            put_plans(table, found)
        return found


def choose_plans(
    table: Snapshot,
    options: ScheduleOptions,
    *,
    only: Collection[GroupKey] | None = None,
    pace: Pace | None = None,
    dry_run: bool = False,
    without: str | None = None,
) -> Scheduled:
    """The plans that `schedule_compaction` makes visible; the caller holds the lock. `without`: as if this pending
    compaction were not on the timeline; the new plans come after it."""
    timeline = table.timeline
    if without is not None:
        others = (i for i in timeline.instants if i.requested_time != without or i not in timeline.pending_compactions)
        table = table.with_timeline(replace(timeline, instants=tuple(others)))
    table.config.check_changeable()
    check_keepable(table, moves_rows=False)
    fresh = fresh_trigger(table, options, pace)
    asked = is_due(table, options, fresh)
    if not asked:
        return Scheduled(requested=(), why=f"not due: {asked.why}")
    if not dry_run:
        refuse_paused(table.storage, COMPACTION)
    if fresh is not None and fresh.fired and pace is not None:
        options, urgent_only = paced(options, pace)
        asked = replace(asked, everything=not urgent_only, urgent=urgent_only)
    facts = table.load_facts()
    survey = Survey(table, facts, options)
    busy = busy_file_groups(table)
    situation = Situation(
        timeline=table.timeline,
        facts=facts,
        now=table.now(),
        busy=busy.groups,
        no_minor=busy.no_minor,
        all_due=asked.everything,
        only=only,
        outside=outside_partitions(table, options),
    )
    planned = _planned(survey, situation, options)
    if not dry_run:
        _warn(table, planned.notes)
    table.views.check_unchanged()
    if not planned.plans:
        if not dry_run:
            _ask_writers_to_wait(table, planned, options)
        return Scheduled(requested=(), why=planned.why, notes=planned.notes)
    time = table.times.next_plan_time(timeline, dry_run=dry_run)
    waiting = survey.waiting(planned)
    plans = drafts(planned, waiting, survey.left_out(waiting), asked.why)
    requested = tuple(Requested(instant=later(time, number), plan=plan) for number, plan in enumerate(plans))
    return Scheduled(requested=requested, why=f"{planned.why}; {asked.why}", notes=planned.notes)


def put_plans(table: Table, found: Scheduled) -> None:
    """Makes the plans of `choose_plans` visible; in the same section."""
    for one in found.requested:
        instant = Instant(requested_time=one.instant, action=one.plan.action, state=State.REQUESTED)
        put_requested(table, instant, encode_plan(one.plan))
    # Last: writers must always find the record or a plan. The plan is there already if the lock is lost now.
    if found.requested:
        with suppress(LockError):
            remove_wanted(table.storage)


def read_lag(table: Snapshot, left: Mapping[GroupKey, str] = _NOTHING_LEFT, options: ScheduleOptions = PLAN_NOW) -> Lag:
    """The lag of a table. `left`: the file groups that the last plan left out, with the reason. `options`: what plans
    leave out by name is held, too. Errors as of `Table.load_view`, `busy_file_groups` and `outside_partitions`."""
    view, held = table.load_view(), {**left, **busy_file_groups(table).groups}
    if options.exclude or options.where is not None:
        outside = outside_partitions(table, options)
        for group in view.living():
            if options.excluded_by(*group.key) or (outside is not None and outside(group.partition)):
                held[group.key] = "left out of plans"
    return table_lag(view.living(), view.timeline, held)


def fresh_trigger(table: Snapshot, options: ScheduleOptions, pace: Pace | None = None) -> Trigger | None:
    """What a goal of freshness says; None: there is none, or no plan may be requested. Without a `pace`, a plan is due
    if after the next write, as far as the table shows when that comes, it would be too late."""
    goal_s, timeline = options.freshness_s, table.timeline
    if goal_s is None or held_back(timeline, options) is not None:
        return None
    if pace is None:
        pace = Pace(lead_s=estimated_s(past_runs(timeline), goal_s) + write_interval_s(timeline))
    return goal_trigger(read_lag(table, options=options).free, table.now(), goal_s, pace.lead_s)


def outside_partitions(table: Snapshot, options: ScheduleOptions) -> Callable[[str], bool] | None:
    """Which partitions a plan leaves out by `where`; None: there is no such option. UsageError: see `outside_of`."""
    if options.where is None:
        return None
    return outside_of(options.where, table.config, slice_rules(table, table.newest_schema()).schema)


def _planned(survey: Survey, situation: Situation, options: ScheduleOptions) -> Planned:
    if situation.only is None and survey.finds_plain and takes_everything(options, all_due=situation.all_due):
        looks = survey.looks(aside=situation.busy.keys())
        return plan_everything(looks, situation, options, survey.measure, survey.refused)
    return plan_compaction(survey.looks(), situation, options, survey.measure, survey.refused)


def _warn(table: Table, notes: PlanNotes) -> None:
    """Logs file groups that cannot be merged: they are not compacted until that changes."""
    if left := notes.unmergeable:
        _log.warning(
            "left_out",
            table=table.storage.base_path,
            file_groups=len(left),
            first=left[0].path,
            why=left[0].why,
            todo="`compactor-daemon schedule TABLE --dry-run` lists them.",
        )


def _ask_writers_to_wait(table: Table, planned: Planned, options: ScheduleOptions) -> None:
    """Asks writers to wait if nothing was planned because of a pending write, see `locks.heartbeat`."""
    if planned.waits_for is None:
        remove_wanted(table.storage)
    elif options.strategy is not TriggerStrategy.ALWAYS or options.freshness_s is not None:
        put_wanted(table.storage, options.gate_s, clock_ms())


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """File groups in pending log compactions and clusterings, with the reason: they are not planned. `unreadable`:
    pending log compactions with unreadable plans, whose file groups are unknown. `hashed`: `merges_no_logs`."""

    groups: Mapping[GroupKey, str]
    unreadable: tuple[str, ...] = ()
    hashed: bool = False

    @property
    def no_minor(self) -> str | None:
        """Why no log compaction may be planned. Compactions may: no process merges logs that a base file contains."""
        if self.hashed:
            return "log files of consistent-hashing buckets are not merged with each other"
        return f"the pending log compaction {self.unreadable[0]} cannot be read" if self.unreadable else None


def busy_file_groups(table: Snapshot) -> Busy:
    """File groups in pending table services other than compactions. MalformedError: an unreadable clustering plan."""
    groups = dict.fromkeys(clustered_file_groups(table), "in a pending clustering")
    unreadable = []
    for instant in table.timeline.pending("logcompaction"):
        plan = table.files.plan(instant, decode_plan)
        if isinstance(plan, Torn):
            unreadable.append(plan.time)
            _log.warning("log_compaction_unreadable", table=table.storage.base_path, error=str(plan.error()))
            continue
        why = f"in the pending log compaction {instant.requested_time}"
        groups |= dict.fromkeys(plan.groups, why)
    return Busy(groups=groups, unreadable=tuple(unreadable), hashed=merges_no_logs(table))
