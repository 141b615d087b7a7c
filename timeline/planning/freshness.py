"""Freshness: when a compaction must begin, so that the lag of a table (`view.Lag`) meets a goal (pure).

It is due at the latest moment from which the compaction, with a margin, still completes within the goal. A later plan
takes in more rows at the same cost, so the latest moment is the cheapest. Several tables share slots: `latest_starts`
moves the begin of some of them ahead, so that no two need one slot at a time. A goal that cannot be met makes a
compaction due at once. Times are in seconds, or instant times where they are texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import heapify, heapreplace
from itertools import pairwise
from statistics import median

from ..format.instant import real_time
from ..instants.timeline import Timeline
from ..instants.triggers import Trigger
from ..view.view import OldestRow
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
class Pace:
    """How a plan is requested for a goal. `lead_s`: how long before the goal it is due. `urgent_only`: it takes only
    file groups that could not wait for the next plan. `max_bytes`: what it reads at most, None: no limit."""

    lead_s: float
    urgent_only: bool = False
    max_bytes: int | None = None


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
    """What a goal says. `free`: see `Lag`. `now`: the table's clock. `lead_s`: see `Pace`."""
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
