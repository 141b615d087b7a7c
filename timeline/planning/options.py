"""All options of a request for a compaction, for every entry point, and the combinations that contradict; and when it
must begin, so that the lag of a table (`view.Lag`) meets a goal of freshness (pure).

By a goal it is due at the latest moment from which the compaction, with a margin, still completes within the goal. A
later plan takes in more rows at the same cost, so the latest moment is the cheapest. Several tables share slots:
`latest_starts` moves the begin of some of them ahead, so that no two need one slot at a time. A goal that cannot be met
makes a compaction due at once. Times are in seconds, or instant times where they are texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from heapq import heapify, heapreplace
from itertools import pairwise
from statistics import median
from typing import Any

from ..errors import UsageError
from ..format.instant import real_time
from ..instants.timeline import Timeline
from ..instants.triggers import Trigger, TriggerOptions, TriggerStrategy, UrgencyOptions, triggered, unplanned
from ..option import idle_of, option, spelled_class
from ..view.view import OldestRow
from .limits import BoundOptions, Picking, PickOptions
from .strategies import StrategyOptions


@spelled_class
@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(TriggerOptions, UrgencyOptions, StrategyOptions, PickOptions, BoundOptions):
    """When to request a compaction (trigger, urgency), of what (strategy, picking), and how much of it (bounds).
    `incremental`: skip partitions that were not written since the last plan and in which it left nothing out; else all
    are examined. `exclude`: shell patterns of complete partition paths, or of `partition/file group id`.
    `where`: a predicate over partition columns, as filters of reads; other partitions are left out."""

    incremental: bool = option(True, "look only at partitions written since the last plan, and at what it left out")
    exclude: tuple[str, ...] = option(
        (),
        "leave out partitions, or single file groups as PARTITION/ID; may be repeated",
        flag="exclude_partition",
        metavar="PATTERN",
    )
    where: str | None = option(
        None, "only partitions of which this may hold, like \"day >= '2026-11-01'\"", metavar="PREDICATE"
    )

    def __post_init__(self) -> None:
        for options in (TriggerOptions, UrgencyOptions, StrategyOptions, PickOptions, BoundOptions):
            options.__post_init__(self)
        if self.where is not None:
            from ..filter.tree import parse_filter  # late: few plans have a predicate

            parse_filter(self.where)
        waits = [n for n in _WAITS if getattr(self, n) != getattr(ScheduleOptions, n)]
        if self.strategy is TriggerStrategy.ALWAYS and waits and self.freshness_s is None:
            what = "with the trigger always everything is due at once"
            raise UsageError(what, expected="another trigger", found=", ".join(waits).replace("_", "-"))
        if self.freshness_s is not None and self.picking is Picking.UNIVERSAL:
            raise UsageError(
                "freshness needs compactions that write base files",
                expected=f"picking {Picking.ALL.value}",
                found=f"picking {Picking.UNIVERSAL.value}, which may merge log files with each other only",
            )
        if self.target_io_bytes is not None and self.strategy_io_mb != StrategyOptions.strategy_io_mb:
            raise UsageError(
                "two limits of what a plan reads and writes",
                expected="target-io, or hoodie.compaction.target.io",
                found=f"{self.target_io_bytes} bytes and {self.strategy_io_mb} MB",
            )

    @property
    def idle(self) -> tuple[str, ...]:
        """Fields that differ from their defaults, and that a request does not use with the others."""
        at_once = self.strategy is TriggerStrategy.ALWAYS and self.picking is Picking.ALL
        unused = {"compaction_trigger": self.picking is Picking.ALL, "partition_idle_s": at_once}
        return (*super().idle, *idle_of(self, unused))

    def excluded_by(self, partition: str, file_id: str) -> str | None:
        """The pattern that leaves a file group out; None: none does."""
        names = (partition, f"{partition}/{file_id}".lstrip("/"))
        return next((p for p in self.exclude if any(fnmatchcase(name, p) for name in names)), None)


_WAITS = ("max_delta_commits", "max_delta_seconds", "urgency", "max_interval_s", "partition_urgency")
"""Options that say how long to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Whether to plan now: everything, or only urgent file groups; and why or why not."""

    everything: bool
    urgent: bool
    why: str

    def __bool__(self) -> bool:
        return self.everything or self.urgent


def due(
    timeline: Timeline,
    now: datetime,
    options: ScheduleOptions,
    *,
    left_out: bool = False,
    trigger: Trigger | None = None,
) -> Due:
    """Whether something is due, by the timeline alone. `now`: by the table; `left_out`: by the last request; `trigger`:
    what it says, where the timeline does not tell."""
    trigger = trigger or triggered(timeline, now, options)
    urgent = not trigger.fired and not trigger.held and options.fires(*unplanned(timeline, now), left_out=left_out)
    return Due(
        everything=trigger.fired, urgent=urgent, why=f"{trigger.why}, but some is urgent" if urgent else trigger.why
    )


PLAN_NOW = ScheduleOptions(strategy=TriggerStrategy.ALWAYS)
"""Every file group with logs, now."""
PLAN_NAMED = replace(PLAN_NOW, incremental=False)
"""For plans of named file groups: they are looked for everywhere."""


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
    why = f"a row is outside of base files for {age_s:,.0f} s, a plan is due {lead_s:,.0f} s before {goal_s:,.0f} s"
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


def requests_of(given: Mapping[str, Any]) -> ScheduleOptions:
    """The options of a method. UsageError: one of them is never used with the others."""
    options = ScheduleOptions(**given)
    if idle := [name for name in options.idle if name in given]:
        raise UsageError(
            f"{', '.join(idle)} means nothing here",
            found=f"strategy {options.strategy.value}, picking {options.picking.value}",
            todo="Leave it out, or choose a strategy or a picking that uses it.",
        )
    return options
