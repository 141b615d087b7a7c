"""The report of a served table: made once from a snapshot and what the daemons know, drawn as JSON, pages, metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from ..errors import PhantombaseError
from ..format.instant import MERGES
from ..instants.timeline import Timeline, since_completed, since_request
from ..instants.triggers import TriggerOptions
from ..locks.section import LockSeen
from ..service.table_state import ServedState
from ..table.table import Table, from_one_snapshot
from ..terminal.text_table import Row
from .compactions import CompletedCompaction, completed_compactions
from .debt import Debt, table_debt
from .health import Health, health_of
from .overview import NextPlan, Overview, PendingReport, next_plan, overview
from .values import FLAT, OPTIONAL, Clock, Known

_COMPACTIONS = 10
_HOUR_S = 3600.0
_TRIGGER = TriggerOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What happened on a table. `last_...`: requested times. `oldest_pending_s`: age of the oldest pending compaction.

    `utc_offset_s`: of the zone of its instants.
    """

    last_write: str | None
    seconds_since_write: float | None
    writes_last_hour: int
    compactions_last_hour: int
    last_compaction: str | None
    delta_commits_since_compaction: int
    delta_commits_since_request: int
    seconds_since_compaction: float | None
    pending_compactions: int
    oldest_pending_s: float | None
    utc_offset_s: int
    active_instants: int
    timeline_start: str | None
    pending_instants: int


def _activity(timeline: Timeline, pending: Sequence[PendingReport], clock: Clock) -> Activity:
    compactions = [i for i in timeline.completed if timeline.is_compaction(i)]
    done_s = [clock.age(timeline.completed_at(i)) for i in compactions]
    written_s = [clock.age(i.requested_time) for i in timeline.completed if i.action == "deltacommit"]
    merges = [one for one in pending if one.action in MERGES]
    asked, done = since_request(timeline), since_completed(timeline)
    return Activity(
        last_write=timeline.latest_completed or None,
        seconds_since_write=clock.age(timeline.latest_completed),
        writes_last_hour=_within_hour(written_s),
        compactions_last_hour=_within_hour(done_s),
        last_compaction=compactions[-1].requested_time if compactions else None,
        delta_commits_since_compaction=0 if done is None else done.commits,
        delta_commits_since_request=0 if asked is None else asked.commits,
        seconds_since_compaction=done_s[-1] if done_s else None,
        pending_compactions=len(merges),
        oldest_pending_s=max((one.age_s or 0.0 for one in merges), default=None),
        utc_offset_s=round((clock.now - datetime.now(UTC).replace(tzinfo=None)).total_seconds()),
        active_instants=len(timeline.instants),
        timeline_start=timeline.start or None,
        pending_instants=len(pending),
    )


def _within_hour(ages_s: Sequence[float | None]) -> int:
    return sum(age is not None and age < _HOUR_S for age in ages_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDetails:
    """What only the page of a table shows. `now`: in its zone. `trend`: its debt over the last day.

    `fleet_info`: as in the JSON of `compactor-daemon status`.
    """

    overview: Overview = field(metadata=FLAT)
    timezone: str
    now: str
    compactions: tuple[CompletedCompaction, ...]
    trend: Sequence[Row] = ()
    next_plan: NextPlan | Row
    fleet_info: Row | None
    fleet_info_problem: PhantombaseError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """A served table. `debt`, `activity`, `work`: None if it cannot be read; then `name` and `pending` as far as known.

    `work`: what daemons know of its pending compactions. `lock`: which process holds the table lock.
    """

    served_as: str
    path: str
    health: Health = field(metadata=FLAT)
    slo_s: float | None
    debt: Debt | None = field(default=None, metadata=FLAT)
    activity: Activity | None = field(default=None, metadata=FLAT)
    work: Sequence[Row] | None = field(default=None, metadata=OPTIONAL)
    details: TableDetails | None = field(default=None, metadata=FLAT)
    name: str | None = field(default=None, metadata=OPTIONAL)
    pending: tuple[PendingReport, ...] | None = field(default=None, metadata=OPTIONAL)
    lock: LockSeen | None = field(default=None, metadata=OPTIONAL)


def table_report(
    served_as: str,
    table: Table,
    state: ServedState,
    slo_s: float | None,
    about: Callable[[], Known[Row]],
    *,
    whole: bool,
) -> TableReport:
    """The report of a table that can be read. `about`: what daemons know of it. `whole`: with `details`.

    PhantombaseError: it cannot be read.
    """
    kinds = state.kinds if whole else None
    shown = from_one_snapshot(lambda: overview(table.snapshot(), pending_only=not whole, kinds=kinds))
    clock = Clock.of(table)
    asked = whole or any(one.action in MERGES for one in shown.pending)
    fleet: Known[Row] = about() if asked else Known()
    work = (fleet.fact or {}).get("pending", ())
    refused = next((f.refused for f in state.partitions.values() if f.refused is not None), None)
    report = TableReport(
        served_as=served_as,
        path=table.storage.base_path,
        health=health_of(shown.pending, slo_s, work, refused),
        slo_s=slo_s,
        debt=table_debt(len(state.partitions), (d for files in state.partitions.values() for d in files.debts)),
        activity=_activity(state.timeline, shown.pending, clock),
    )
    if not whole:
        return replace(report, work=work)
    details = TableDetails(
        overview=shown,
        timezone="UTC" if table.config.utc_timezone else table.clock.timezone,
        now=clock.now.strftime("%Y-%m-%d %H:%M:%S"),
        compactions=completed_compactions(table, state.timeline, _COMPACTIONS),
        next_plan=(fleet.fact or {}).get("next_plan") or next_plan(state.timeline, clock.now, _TRIGGER),
        fleet_info=fleet.fact,
        fleet_info_problem=fleet.problem,
    )
    return replace(report, details=details)
