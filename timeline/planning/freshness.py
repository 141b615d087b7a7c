"""Freshness: how long rows have waited outside of base files, and when a compaction must begin to meet a goal (pure).

    lag       the age of the oldest row that is in no base file: what a read-optimized reader lacks. It counts from the
              completion of the row's delta commit, on version 6 from its request. Rows of pending plans count
    free      the oldest row that a new plan can take: its file group is in no plan, and nothing holds it
    due       at the latest moment from which the compaction, with a margin, still completes within the goal

A later plan takes in more rows at the same cost, so the latest moment is the cheapest. Several tables share slots:
`latest_starts` moves the begin of some of them ahead, so that no two need one slot at a time. A goal that cannot be met
makes a compaction due at once. Times are in seconds, or instant times where they are texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import heapify, heapreplace
from itertools import pairwise
from statistics import median

from ..format.instant import real_time
from ..instants.timeline import UNKNOWN_COMPLETION, Timeline
from ..instants.triggers import Trigger
from ..view.view import FileGroup, FileSlice, GroupKey, latest_slice
from .limits import read_bytes
from .options import ScheduleOptions

_LEARNED = 5
"""How many of a table's last compactions the estimate is made of."""
_FIRST_PART = 0.25
"""The part of the goal that the first compaction of a table is expected to take."""
_SAFETY = 1.25
"""What an estimate is multiplied by."""
_LATE = 0.8
"""The part of the goal from which on a lag needs a reason."""
_FIRST_BYTES_S = 32 << 20
"""Bytes that a compaction reads in a second, until that is known."""
_BATCH_PART = 0.2
"""The part of the goal that one plan may take: others get the slot in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestRow:
    """The oldest row of a file group that is in no base file. `time`: when it was written, an instant time. `plan`: the
    pending compaction that contains it. `held`: why no new plan can take it, None if one can or `plan` has it."""

    time: str
    partition: str
    file_id: str
    plan: str | None = None
    held: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """See the module. `source_bytes`: what a plan of all free file groups reads; `log_files`, `log_bytes`: of these the
    logs."""

    oldest: OldestRow | None = None
    free: OldestRow | None = None
    file_groups: int = 0
    source_bytes: int = 0
    log_files: int = 0
    log_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a plan is requested for a goal. `lead_s`: how long before the goal it is due. `urgent_only`: it takes only
    file groups that could not wait for the next plan. `max_bytes`: what it reads at most, None: no limit."""

    lead_s: float
    urgent_only: bool = False
    max_bytes: int | None = None


def oldest_time(slice_: FileSlice, timeline: Timeline) -> str | None:
    """When the oldest row in the logs of a slice was written; None: the logs have no row of a completed write. Of an
    archived write only the beginning of the active timeline is known, before which it completed."""
    return min(_times(slice_, timeline), default=None)


def newest_time(slice_: FileSlice, timeline: Timeline) -> str | None:
    """The same of the newest row."""
    return max(_times(slice_, timeline), default=None)


def _times(slice_: FileSlice, timeline: Timeline) -> Iterator[str]:
    for log in slice_.logs:
        if log.size == 0 or (log.marks is not None and log.marks.is_stray):
            continue
        writes = [w.instant for w in log.marks.writes] if log.marks is not None else []
        # Without a known write, the name of version 6 has the base below the log, and so only shows "archived".
        unnamed = log.name.instant if timeline.layout.has_completion_times else ""
        for instant in writes or [unnamed]:
            done = timeline.completion_time(instant) if instant else UNKNOWN_COMPLETION
            if done is not None:
                yield timeline.start if done == UNKNOWN_COMPLETION else done


def table_lag(groups: Iterable[FileGroup], timeline: Timeline, held: Mapping[GroupKey, str]) -> Lag:
    """The lag of a table. `groups`: those that are not replaced. `held`: file groups that no plan can take, with the
    reason; of pending compactions and damaged files the groups themselves tell."""
    oldest: OldestRow | None = None
    free: OldestRow | None = None
    count = size = log_files = log_bytes = 0
    for group in groups:
        slice_ = latest_slice(group)
        time = oldest_time(slice_, timeline) if slice_ is not None else None
        if slice_ is None or time is None:
            continue
        plan = group.pending_compaction
        why = held.get(group.key) or (str(group.flaws[0].error()) if group.flaws else None)
        row = OldestRow(
            time=time, partition=group.partition, file_id=group.file_id, plan=plan, held=None if plan else why
        )
        oldest = row if oldest is None or time < oldest.time else oldest
        if plan is None and why is None:
            free = row if free is None or time < free.time else free
            size += read_bytes(slice_)
            log_files, log_bytes = log_files + len(slice_.logs), log_bytes + sum(log.size for log in slice_.logs)
        count += 1
    found = Lag(oldest=oldest, free=free, file_groups=count, source_bytes=size)
    return replace(found, log_files=log_files, log_bytes=log_bytes)


def with_write(lag: Lag, time: str) -> Lag:
    """The lag after a delta commit with log files, completed at this time: it is younger than the rows before."""
    row = OldestRow(time=time, partition="", file_id="")
    return replace(lag, oldest=lag.oldest or row, free=lag.free or row)


def past_runs(timeline: Timeline) -> tuple[float, ...]:
    """How long the last completed compactions took from their requests on, the newest last; version 6 does not say."""
    done = [i for i in timeline.completed if timeline.is_compaction(i) and i.completion_time is not None]
    return tuple(_between(i.requested_time, timeline.completed_at(i)) for i in done[-_LEARNED:])


def estimated_s(runs: Sequence[float], goal_s: float) -> float:
    """How long the next compaction will take. Of three and more, the longest is left out: the first one may have
    merged the rows of a year."""
    last = sorted(runs[-_LEARNED:])
    return _SAFETY * (last[-2] if len(last) > 2 else last[-1]) if last else _FIRST_PART * goal_s


def write_interval_s(timeline: Timeline) -> float:
    """The usual time between the last completed delta commits, 0 if there are not enough."""
    times = sorted(timeline.completed_at(i) for i in timeline.completed if i.action == "deltacommit")[-_LEARNED:]
    return median([_between(*pair) for pair in pairwise(times)]) if len(times) > 1 else 0.0


def _between(begin: str, end: str) -> float:
    return max(0.0, (real_time(end) - real_time(begin)).total_seconds())


def latest_starts(jobs: Sequence[tuple[float, float]], slots: int) -> list[float]:
    """When each job must begin at the latest, so that all end by their deadlines on this number of slots. `jobs`:
    deadline and duration. From the last deadline back to the first, each takes the end of the slot that is free for
    longest."""
    free = [-math.inf] * slots  # negative: a heap has its least element first
    heapify(free)
    found = [0.0] * len(jobs)
    for number in sorted(range(len(jobs)), key=lambda n: -jobs[n][0]):
        deadline, duration = jobs[number]
        found[number] = start = min(deadline, -free[0]) - duration
        heapreplace(free, -start)
    return found


def batch_bytes(bytes_s: float | None, goal_s: float) -> int:
    """What one plan reads at most, so that it keeps its slot for a part of the goal. `bytes_s`: that a compaction of
    the table reads in a second, None: unknown."""
    return max(1, round((bytes_s or _FIRST_BYTES_S) * goal_s * _BATCH_PART))


def urgent_age_s(goal_s: float, lead_s: float) -> float:
    """The age from which on a file group is in a plan of the urgent ones only."""
    return max(1.0, (goal_s - lead_s) / 2)


def goal_trigger(free: OldestRow | None, now: datetime, goal_s: float, lead_s: float) -> Trigger:
    """What a goal says. `free`: see the module. `now`: the table's clock. `lead_s`: see `Pace`."""
    if free is None:
        return Trigger(fired=False, why="no row that a plan can take is outside of base files")
    age_s = (now - real_time(free.time)).total_seconds()
    why = f"a row is outside of base files for {age_s:.0f} s, a plan is due {lead_s:.0f} s before {goal_s:g} s"
    return Trigger(fired=age_s + lead_s >= goal_s, why=why)


def paced(options: ScheduleOptions, pace: Pace) -> tuple[ScheduleOptions, bool]:
    """The options of a plan of this pace, and whether only urgent file groups are due."""
    goal_s = options.freshness_s or 0.0
    if pace.max_bytes is not None:
        options = replace(options, max_source_bytes=min(pace.max_bytes, options.max_source_bytes or pace.max_bytes))
    if not pace.urgent_only or options.any_radical:
        return options, False
    age_s = urgent_age_s(goal_s, pace.lead_s)
    return replace(options, max_interval_s=min(age_s, options.max_interval_s or age_s)), True


def is_near(lag_s: float | None, goal_s: float | None) -> bool:
    """Whether a lag needs a reason."""
    return lag_s is not None and goal_s is not None and lag_s >= _LATE * goal_s
