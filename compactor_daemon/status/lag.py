"""The lag of a table against its goal of freshness: kept up to date at little cost, and why it is near the goal.

A view is loaded, which lists the partitions, when the table's plans or base files have changed. Delta commits after
that add younger rows, unless a write on version 6 took long; of each, its own file is read at most."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from phantombase.timeline.errors import MalformedError, MissingFileError, TableChangedError
from phantombase.timeline.format.instant import Instant, real_time
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.planning.options import ScheduleOptions, is_near
from phantombase.timeline.planning.partition_walk import PlanNotes, Rule
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.table import Snapshot, Table, from_one_snapshot
from phantombase.timeline.terminal.text_table import human_duration
from phantombase.timeline.view.view import GroupKey, Lag, OldestRow, with_write

_NOTHING_LEFT: Mapping[GroupKey, str] = {}
_ADDS_ROWS_ONLY = ("deltacommit", "clean", "savepoint", "indexing")
_LEFT_FOR_S = 300.0
"""How long file groups that a plan left out count as held."""
_ALWAYS_HELD = (Rule.EXCLUDED, Rule.UNMERGEABLE)
"""Rules by which a file group is left out of each plan; by others it is, if a plan has found nothing else."""


class LagTracker:
    """See the module. Of one table; its methods are not called at the same time."""

    def __init__(self) -> None:
        self._lag: Lag | None = None
        self._known: Timeline | None = None
        self._left: Mapping[GroupKey, str] = _NOTHING_LEFT
        self._left_at = 0.0

    def at(self, table: Snapshot, options: ScheduleOptions) -> Lag | None:
        """The lag of a table; None: it changed at each try to read it. Errors of the tree: see `read_lag`."""
        from phantombase.timeline.planning.schedule import read_lag  # late: `status` starts without pyarrow

        timeline = table.timeline
        if self._left and time.monotonic() - self._left_at > _LEFT_FOR_S:
            self._left, self._known = _NOTHING_LEFT, None
        known = set() if self._known is None else {i.requested_time for i in self._known.completed}
        new = [write for write in timeline.completed if write.requested_time not in known]
        if (
            self._lag is None
            or self._known is None
            or _base(timeline) != _base(self._known)
            or self._is_older(timeline, new)
        ):
            try:
                self._lag = from_one_snapshot(lambda: read_lag(table.snapshot(), self._left, options))
            except (MissingFileError, TableChangedError):
                return self._lag
        elif self._lag.free is None or self._lag.oldest is None:
            for write in new:
                if _has_logs(table, write):
                    self._lag = with_write(self._lag, timeline.completed_at(write))
        self._known = timeline
        return self._lag

    def _is_older(self, timeline: Timeline, new: Iterable[Instant]) -> bool:
        """Whether a new write counts from before the oldest row, as one that took long on version 6 does."""
        free = None if self._lag is None else self._lag.free
        return free is not None and any(timeline.completed_at(write) < free.time for write in new)

    def planned(self, notes: PlanNotes | None, *, found: bool) -> None:
        """What a request has left out; `found`: it has made a plan. None: it has not looked."""
        if notes is not None:
            left = (one for one in notes.left if one.rule in _ALWAYS_HELD or not (found or one.rule is Rule.NO_LOGS))
            self._left = {(one.partition, one.file_id): one.why for one in left}
            self._left_at = time.monotonic()
        self._known = None


def _base(timeline: Timeline) -> frozenset[Instant]:
    """The instants that move rows between logs, plans and base files, or undo them."""
    return frozenset(i for i in timeline.instants if i.action not in _ADDS_ROWS_ONLY)


def _has_logs(table: Table, write: Instant) -> bool:
    """Whether a completed delta commit wrote log files; also if its file cannot be read."""
    try:
        stats = table.commit_metadata(write).partition_to_write_stats
    except (MissingFileError, MalformedError):
        return True
    return any(stat.path and ".log." in stat.path for of in stats.values() for stat in of)


def row_ms(table: Table, row: OldestRow | None) -> int | None:
    """When a row was written, in ms since the epoch; 0 if the table does not show a date."""
    if row is None:
        return None
    then = real_time(row.time) if row.time else None
    return 0 if then is None or then.year < 1970 else table.times.milliseconds(then.strftime("%Y%m%d%H%M%S%f")[:17])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """The state of a pending compaction, see `pending`. `run_s`: for how long a process has worked on it."""

    instant: str
    state: str
    why: str | None = None
    run_s: float | None = None


def why_behind(
    row: OldestRow | None,
    lag_s: float | None,
    goal_s: float | None,
    plans: Iterable[PlanState],
    *,
    writer: str | None = None,
    requested: bool = False,
    slots: str = "",
) -> str | None:
    """Why a lag is near its goal or over it; None: it is not. `row`: the oldest one in no base file. `writer`: a
    pending write that version 6 waits for before a plan. `requested`: a process requests plans for the goal. `slots`:
    that all are in use, in words (pure)."""
    if row is None or goal_s is None or not is_near(lag_s, goal_s):
        return None
    if row.plan is None:
        where = join(row.partition, row.file_id)
        if row.held is not None:
            return f"{where}: {row.held}"
        if writer is not None:
            return f"a plan waits for the write {writer}: version 6 is planned only without pending writes"
        return slots or ("a plan is requested at the next poll" if requested else "no process requests a compaction")
    plan = next((one for one in plans if one.instant == row.plan), None)
    if plan is None:
        return f"compaction {row.plan} is pending"
    if plan.state == "running":
        if plan.run_s is not None and plan.run_s >= goal_s / 2:
            return (
                f"compaction {plan.instant} has run for {human_duration(plan.run_s)}: its file groups are too large "
                "for the goal"
            )
        return f"compaction {plan.instant} is in progress"
    if plan.state == "waiting" and plan.why is None:
        named = f"compaction {plan.instant}"
        alone = f"no process works on {named}: there is no daemon, or it has too few slots"
        return slots or (f"{named} waits for this daemon to take it" if requested else alone)
    return f"compaction {plan.instant} is {plan.state}" + (f": {plan.why}" if plan.why else "")
