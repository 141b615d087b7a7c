"""What `status` shows of a table; nothing is changed.

table_status   pending compactions: what storage shows, and ZooKeeper if it is asked; the daemon's part of the report
               of a table (`timeline.dashboard`)
outlook        logs that no plan holds yet, when the next plan is due, and what a clean could remove"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

from phantombase.timeline.dashboard.compactions import Backlog, completed_compactions, view_backlog
from phantombase.timeline.dashboard.overview import FLAT, Clock, Known, NextPlan, next_plan, table_pauses
from phantombase.timeline.dashboard.verdict import Freshness, TablePause, TableVerdict
from phantombase.timeline.errors import MalformedError, PhantombaseError
from phantombase.timeline.format.clean import decode_clean_plan
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.rollback_plan import decode_restore_plan, decode_rollback_plan
from phantombase.timeline.instants.timeline import Timeline, pending_writer
from phantombase.timeline.instants.triggers import TriggerOptions
from phantombase.timeline.locks.heartbeat import Heartbeat, is_live, read_heartbeat
from phantombase.timeline.service.table_state import ServedState
from phantombase.timeline.shown import Shown
from phantombase.timeline.table.in_progress import clustering_in_rollback, rollbacks_of_completed
from phantombase.timeline.table.table import Snapshot, Table, from_one_snapshot
from phantombase.timeline.view.view import OldestRow, TableView, table_lag

from ..attempt.failures import CLUSTERING, read_failures
from ..attempt.pending_clusterings import is_of_hudi, planned_clustering
from ..attempt.validity import Validity
from ..cleaning.choice import CleanOptions
from ..cleaning.plan import whole, would_clean
from ..fleet.claims import Claim
from .lag import PlanState, why_behind
from .pending import (
    Claimed,
    ClaimRow,
    PendingCompaction,
    StatusOptions,
    of_claim,
    pending_compaction,
    planned_by_daemons,
)
from .snapshot import ServiceRun, clustering_snapshots, pending_snapshots, service_runs

_IN_PROGRESS = {
    "restore": "`compactor-daemon restore TABLE`",
    "rollback": "the next write",
    "clean": "`compactor-daemon clean TABLE`, or Hudi's next clean",
    "clustering": "`compactor-daemon cluster TABLE`; a plan of Hudi: its clustering",
    "indexing": "Hudi's indexer (`HoodieIndexer --mode execute`; `--mode dropindex` gives the index up)",
    "replacecommit": "a clustering: `compactor-daemon cluster TABLE`, or Hudi's; an overwrite: the next write",
}
"""Actions that block others while they are in progress, and what finishes each if its process is dead."""
_PLANS: Mapping[str, Callable[[bytes, str], Any]] = {
    "clean": decode_clean_plan,
    "restore": decode_restore_plan,
    "rollback": decode_rollback_plan,
}
_OPTIONS = StatusOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanable(Shown):
    """What a clean could remove. `why`: the reason if it is nothing."""

    files: int
    bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook(Shown):
    backlog: Known[Backlog]
    next_plan: Known[NextPlan]
    cleanable: Known[Cleanable]
    freshness: Known[Freshness]


Fact = TypeVar("Fact")


def outlook(
    table: Snapshot,
    state: ServedState | None,
    trigger: TriggerOptions,
    clean: CleanOptions,
    pending: Sequence[PendingCompaction] = (),
) -> Outlook:
    """The outlook of a table. `state`: at this snapshot; None: it could not be read, so it is tried again. `trigger`,
    `clean`: the options with which plans are requested, and cleans run. `pending`: its compactions."""
    seen = cache(lambda: from_one_snapshot(lambda: _loaded(table)) if state is None else (table, _view(table, state)))
    return Outlook(
        backlog=Known.of(lambda: view_backlog(seen()[1])),
        next_plan=Known.of(lambda: _next_plan(table, trigger)),
        cleanable=Known.of(lambda: _cleanable(*seen(), clean)),
        freshness=Known.of(lambda: _freshness(*seen(), trigger.freshness_s, pending)),
    )


def _next_plan(table: Snapshot, trigger: TriggerOptions) -> NextPlan:
    """For a goal of freshness, what it says of this table alone: a daemon also knows the others."""
    found = next_plan(table.timeline, table.now(), trigger)
    if trigger.freshness_s is None:
        return found
    from phantombase.timeline.planning.options import ScheduleOptions
    from phantombase.timeline.planning.schedule import fresh_trigger  # late: `status` starts without pyarrow

    asked = fresh_trigger(table, ScheduleOptions(freshness_s=trigger.freshness_s))
    return found if asked is None else replace(found, due=asked.fired, why=asked.why)


def _freshness(
    table: Table, view: TableView, goal_s: float | None, pending: Sequence[PendingCompaction]
) -> Freshness | None:
    """None: the table has no log files, so nothing is ever outside of base files."""
    if not table.config.has_logs:
        return None
    row = table_lag(view.living(), view.timeline, {}).oldest
    if row is not None:
        from phantombase.timeline.planning.schedule import busy_file_groups  # late: as above

        busy = busy_file_groups(table.with_timeline(view.timeline)).groups
        row = table_lag(view.living(), view.timeline, busy).oldest
    age_s = None if row is None else Clock.of(table).age(row.time)
    return freshness_of(row, max(0.0, age_s or 0.0), goal_s, view.timeline, pending)


def freshness_of(
    row: OldestRow | None, lag_s: float, goal_s: float | None, timeline: Timeline, pending: Sequence[PendingCompaction]
) -> Freshness:
    """The lag against a goal, and the reason. `row`: see `why_behind`. `pending`: the compactions."""
    plans = [
        PlanState(instant=one.instant, state=one.state, why=one.why, run_s=one.work.for_s if one.work else None)
        for one in pending
    ]
    held = None if (writer := pending_writer(timeline)) is None else writer.requested_time
    return Freshness(lag_s=lag_s, goal_s=goal_s, why=why_behind(row, lag_s, goal_s, plans, writer=held))


def _loaded(table: Table) -> tuple[Snapshot, TableView]:
    seen = table.snapshot()
    return seen, whole(seen, seen.load_view())


def _view(table: Snapshot, state: ServedState) -> TableView:
    groups = tuple(group for files in state.partitions.values() for group in files.groups)
    return whole(table, TableView(timeline=state.timeline, facts=table.facts.load(state.timeline), groups=groups))


def _cleanable(table: Table, view: TableView, options: CleanOptions) -> Cleanable:
    found = would_clean(table, view, options)
    return Cleanable(files=found.files, bytes=found.bytes, why=found.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWrite(Shown):
    """A pending delta commit. `alive`: None if its writer has no heartbeat, as many Hudi writers. `holds`: the
    compactions that cannot be decided before the write has ended."""

    instant: str
    state: str
    age_s: float | None
    alive: bool | None
    heartbeat_s: float | None
    host: str | None
    pid: int | None
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InProgress(Shown):
    """A clean, restore, rollback, clustering or overwrite that has begun and not completed, or a clustering whose
    rollback is in progress. `todo`: what finishes it."""

    instant: str
    action: str
    age_s: float | None
    todo: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentCompaction(Shown):
    instant: str
    completion_time: str | None
    by: str | None
    file_groups: int | None
    rows: int | None
    bytes_written: int | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSuccess(Shown):
    """The newest completed compaction; on version 6 its age is that of its request."""

    instant: str
    ago_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus(Shown):
    """The state of a table's compactions and clusterings. `claims`: whether ZooKeeper was asked, and answered.
    `overdue`: a number. `clusterings`: the pending ones, and those that daemons plan (see `planned_by_daemons`)."""

    table: str
    claims: str
    claims_problem: PhantombaseError | None
    slo_s: float | None
    overdue: int
    pending: tuple[PendingCompaction, ...]
    clusterings: tuple[PendingCompaction, ...]
    writes: tuple[PendingWrite, ...]
    in_progress: tuple[InProgress, ...]
    services: tuple[ServiceRun, ...]
    recent: tuple[RecentCompaction, ...]
    last_success: LastSuccess | None
    paused: tuple[TablePause, ...] = ()
    outlook: Outlook | None = field(default=None, metadata=FLAT)
    verdict: TableVerdict | None = field(default=None, metadata=FLAT)


def table_status(
    table: Snapshot,
    claims: Claimed = None,
    options: StatusOptions = _OPTIONS,
    clock: Clock | None = None,
    later: Callable[[], Timeline] | None = None,
) -> TableStatus:
    """The status of a table; run it under `from_one_snapshot`. `clock`: now by default. `later`: loads the timeline
    once more, after what is pending was read. `claims` were read before. So a
    claim that was released since then may still be shown, and a claim that was taken since is missing; the heartbeat
    shows its holder. An instant that completes during the snapshot is left out."""
    timeline = table.timeline
    found, clusterings = pending_snapshots(table), clustering_snapshots(table)
    own = read_failures(table.storage, CLUSTERING)
    beats = {i: read_heartbeat(table.storage, i.requested_time) for i in timeline.pending_delta_commits}
    after = table.snapshot(cached=False).timeline if later is None else later()
    now = table.with_timeline(after)
    clock = clock or Clock.of(table)
    still = {i.requested_time for i in after.instants if not i.completed}
    writing = {i.requested_time for i in after.pending_delta_commits}
    pending = tuple(
        pending_compaction(i, found[i.requested_time], claims, clock, options)
        for i in timeline.pending_merges
        if i.requested_time in still
    )
    rows = [
        *(
            pending_compaction(i, s, claims, clock, options)
            for i, s in clusterings.items()
            if i.requested_time in still
        ),
        planned_by_daemons(own, claims, clock, options.retry),
    ]
    recent = tuple(
        RecentCompaction(
            instant=one.instant,
            completion_time=one.completion_time,
            by=one.by,
            file_groups=one.file_groups,
            rows=one.rows_out,
            bytes_written=one.bytes_out,
            problem=one.problem,
        )
        for one in completed_compactions(now, options.recent)
    )
    done = next(filter(after.is_compaction, reversed(after.completed)), None)
    unknown = claims if isinstance(claims, PhantombaseError) else None
    return TableStatus(
        table=table.storage.base_path,
        claims="not asked" if claims is None else "known" if unknown is None else "unknown",
        claims_problem=unknown,
        slo_s=options.slo_s,
        overdue=sum(bool(one.overdue) for one in pending),
        pending=pending,
        clusterings=tuple(row for row in rows if row is not None),
        writes=tuple(_write(i, beat, pending, clock) for i, beat in beats.items() if i.requested_time in writing),
        in_progress=tuple(_in_progress(now, clock)),
        services=service_runs(table.storage, after, clock),
        recent=recent,
        last_success=None
        if done is None
        else LastSuccess(instant=done.requested_time, ago_s=clock.age(after.completed_at(done))),
        paused=tuple(table_pauses(table, clock)),
    )


def _in_progress(table: Snapshot, clock: Clock) -> Iterator[InProgress]:
    commands = {
        r.instant: f"`compactor-daemon rollback TABLE {r.target}`, or Hudi" for r in rollbacks_of_completed(table)
    }
    found = [
        (instant, commands.get(instant.requested_time) or _unreadable(table, instant) or finishes)
        for action, finishes in _IN_PROGRESS.items()
        for instant in table.timeline.pending(action)
    ]
    if (clustering := clustering_in_rollback(table)) is not None:
        found.append((clustering, f"`compactor-daemon rollback TABLE {clustering.requested_time}`"))
    for instant, todo in found:
        age_s = clock.age(instant.requested_time)
        yield InProgress(instant=instant.requested_time, action=instant.action, age_s=age_s, todo=todo)


def _unreadable(table: Table, instant: Instant) -> str | None:
    """What to do about an action whose plan cannot be read, or a clustering's inflight file: its command ends in an
    error, too."""
    try:
        if instant.action in _PLANS:
            table.files.plan_there(instant, _PLANS[instant.action])
        if instant.family == "replacecommit" and (pending := planned_clustering(table, instant)) is not None:
            is_of_hudi(table, pending)
    except MalformedError as error:
        return error.todo
    return None


def claim_rows(table: str, claims: Mapping[str, Claim], clock: Clock) -> list[ClaimRow]:
    """The holders of a table's claims by instant, earliest first."""
    return [ClaimRow(table=table, instant=one, work=of_claim(claims[one], clock)) for one in sorted(claims)]


def work_rows(status: TableStatus) -> list[ClaimRow]:
    """The processes that work on a table's instants; raises the error of the first instant that cannot be read."""
    found = (*status.pending, *status.clusterings)
    for one in found:
        if one.problem is not None and one.file_groups is None:
            raise one.problem
    return [ClaimRow(table=status.table, instant=one.instant, work=one.work) for one in found if one.work]


def _write(
    instant: Instant, beat: Heartbeat | None, pending: Sequence[PendingCompaction], clock: Clock
) -> PendingWrite:
    age_s, owner = clock.age(instant.requested_time), beat.owner if beat is not None else None
    return PendingWrite(
        instant=instant.requested_time,
        state=instant.state.name.lower(),
        age_s=age_s,
        alive=None if beat is None else is_live(beat, clock.now_ms),
        heartbeat_s=clock.since(beat.beat_ms) if beat is not None else None,
        host=owner.host if owner is not None else None,
        pid=owner.pid if owner is not None else None,
        holds=tuple(one.instant for one in pending if _holds(age_s, one)),
    )


def _holds(age_s: float | None, compaction: PendingCompaction) -> bool:
    """Whether a compaction cannot be decided before a write has ended: the write was pending when the attempt began. A
    future attempt will wait for all writes that are pending when it begins."""
    if compaction.validity not in (None, Validity.INVALID):
        return False
    began_s = compaction.work.for_s if compaction.work else None
    return began_s is None or age_s is None or age_s >= began_s
