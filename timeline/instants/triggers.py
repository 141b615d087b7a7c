"""When a compaction is due: Hudi's triggers, and the urgency of partitions (pure).

A trigger is a function of the timeline, the clock and the options; `timeline.commits_since_compaction` counts the delta
commits. A new trigger is a member of `TriggerStrategy` and a case of `triggered`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from fnmatch import fnmatchcase
from typing import assert_never

from ..errors import UsageError
from ..format.instant import parse_time
from ..option import check_least, idle_of, option, spelled_class
from .timeline import Timeline, delta_commits, since_completed, since_request

GATE_S_MAX = 300.0
"""Longest time that writers can be made to wait, see `locks.heartbeat`."""


class TriggerStrategy(Enum):
    """What must have happened since the last compaction; names are Hudi's, except ALWAYS: plan when asked."""

    ALWAYS = "always"
    NUM_COMMITS = "num-commits"
    NUM_COMMITS_AFTER_LAST_REQUEST = "num-commits-after-last-request"
    TIME_ELAPSED = "time-elapsed"
    NUM_AND_TIME = "num-and-time"
    NUM_OR_TIME = "num-or-time"


BY_TIME = (TriggerStrategy.TIME_ELAPSED, TriggerStrategy.NUM_AND_TIME, TriggerStrategy.NUM_OR_TIME)
"""Those for which seconds count."""


@spelled_class
@dataclass(frozen=True, kw_only=True)
class TriggerOptions:
    """When to request a compaction (stages: trigger, gate). The default strategy is not Hudi's: NUM_COMMITS fires at
    every commit while a plan is pending. ALWAYS ignores `gate_s`: who asks once does not come back."""

    strategy: TriggerStrategy = option(
        TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST,
        "what must have happened since the last compaction",
        flag="trigger",
    )
    max_delta_commits: int = option(5, "delta commits that make a compaction due")
    max_delta_seconds: int = option(3600, "seconds that make a compaction due")
    max_pending: int | None = option(None, "request none while this many compactions are pending; default: no limit")
    gate_s: float = option(30.0, "seconds that writers wait for a due plan on version 6; 0: they never wait")
    freshness_s: float | None = option(
        None,
        "instead of a trigger: as late as the oldest row that is in no base file stays younger than this, like 10m",
        metavar="TIME",
        least=1,
    )

    def __post_init__(self) -> None:
        check_least(self, _LEAST)
        if not 0 <= self.gate_s <= GATE_S_MAX:
            raise UsageError("gate-s is out of range", expected=f"0 to {GATE_S_MAX:g} seconds", found=str(self.gate_s))

    @property
    def idle(self) -> tuple[str, ...]:
        """Fields that differ from their defaults, and that the trigger does not use."""
        fresh, asked = self.freshness_s is not None, self.strategy is TriggerStrategy.ALWAYS
        unused = {
            "strategy": fresh and not asked,
            "gate_s": asked and not fresh,
            "max_delta_commits": fresh or self.strategy is TriggerStrategy.TIME_ELAPSED,
            "max_delta_seconds": fresh or self.strategy not in BY_TIME,
        }
        return idle_of(self, unused)


_LEAST = {"max_delta_commits": 1, "max_delta_seconds": 0, "max_pending": 1, "freshness_s": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """Whether a compaction is due, and why or why not. `held`: none may be requested now, even if urgent."""

    fired: bool
    why: str
    held: bool = False


def held_back(timeline: Timeline, options: TriggerOptions) -> Trigger | None:
    """Why no compaction may be requested now."""
    pending = len(timeline.pending_compactions)
    if options.max_pending is None or pending < options.max_pending:
        return None
    why = f"{pending} compactions are pending, the limit is {options.max_pending}"
    return Trigger(fired=False, why=why, held=True)


def triggered(timeline: Timeline, now: datetime, options: TriggerOptions) -> Trigger:
    """Whether a compaction is due by its trigger; for a goal of freshness see `planning.schedule.fresh_trigger`. `now`:
    the clock in the table's zone (`Table.now`)."""
    if (held := held_back(timeline, options)) is not None:
        return held
    if options.strategy is TriggerStrategy.ALWAYS:
        return Trigger(fired=True, why="asked for")
    after_request = options.strategy is TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST
    since = since_request(timeline) if after_request else since_completed(timeline)
    if since is None:
        return Trigger(fired=False, why="no delta commit yet")
    seconds = since.seconds(now)
    enough, late = since.commits >= options.max_delta_commits, seconds >= options.max_delta_seconds
    commits_since = f"{since.commits:,} of {options.max_delta_commits:,} delta commits"
    seconds_since = f"{seconds:,} of {options.max_delta_seconds:,} seconds"
    match options.strategy:
        case TriggerStrategy.TIME_ELAPSED:
            fired, what = late, seconds_since
        case TriggerStrategy.NUM_AND_TIME:
            fired, what = enough and late, f"{commits_since} and {seconds_since}"
        case TriggerStrategy.NUM_OR_TIME:
            fired, what = enough or late, f"{commits_since} or {seconds_since}"
        case TriggerStrategy.NUM_COMMITS | TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST:
            fired, what = enough, commits_since
        case _:
            assert_never(options.strategy)
    return Trigger(fired=fired, why=f"{what} since {since.instant}")


def unplanned(timeline: Timeline, now: datetime) -> tuple[int, float | None]:
    """Delta commits since the last request, and seconds since the first of them, or since the request if there is none.
    None: nothing was ever written, or the instant's time is not a real time."""
    since = since_request(timeline)
    if since is None:
        return 0, None
    first = next(
        (d.requested_time for d in delta_commits(timeline) if d.requested_time >= since.instant), since.instant
    )
    try:
        return since.commits, (now - parse_time(first)).total_seconds()
    except UsageError:
        return since.commits, None


class Urgency(Enum):
    """RADICAL: as soon as a file group has a log file. GENTLE: with the trigger, or with a log `max_interval_s` old."""

    GENTLE = "gentle"
    RADICAL = "radical"


@spelled_class
@dataclass(frozen=True, kw_only=True)
class UrgencyOptions:
    """Urgency of the table, and of partitions by pattern: the first match counts (Paimon's lookup compaction).
    `partition_urgency`: shell patterns of complete partition paths, like `2026/11/*=radical`."""

    urgency: Urgency = option(Urgency.GENTLE, "at the trigger (gentle), or as soon as there is a log file (radical)")
    max_interval_s: float | None = option(None, "gentle: seconds after which a log file is due without the trigger")
    partition_urgency: tuple[str, ...] = option((), "urgency of partitions, PATTERN=gentle or PATTERN=radical")
    partition_idle_s: float | None = option(
        None, "seconds without a write after which a partition gets its last, full compaction without the trigger"
    )

    def __post_init__(self) -> None:
        check_least(self, {"max_interval_s": 1, "partition_idle_s": 1})
        levels = [level for _, level in self._patterns()] + [self.urgency]
        if self.max_interval_s is not None and Urgency.GENTLE not in levels:
            raise UsageError(
                "max-interval has no effect with radical: log files are due at once",
                expected="urgency=gentle, or no max-interval",
                found=f"max-interval {self.max_interval_s:g} s",
            )

    def _patterns(self) -> Iterator[tuple[str, Urgency]]:
        for text in self.partition_urgency:
            pattern, _, level = text.rpartition("=")
            if not pattern or level not in {u.value for u in Urgency}:
                raise UsageError("not an urgency of partitions", expected="PATTERN=gentle or =radical", found=text)
            yield pattern, Urgency(level)

    def of(self, partition: str) -> Urgency:
        return next((u for pattern, u in self._patterns() if fnmatchcase(partition, pattern)), self.urgency)

    def is_due(self, partition: str, waiting_s: float | None) -> bool:
        """Whether a log that has waited this long (None: unknown) is due although the trigger has not fired."""
        if self.of(partition) is Urgency.RADICAL:
            return True
        return self.max_interval_s is not None and waiting_s is not None and waiting_s >= self.max_interval_s

    @property
    def least_wait_s(self) -> float | None:
        """How long a log file waits at least that is due by its age alone, or that of its partition; None: none is."""
        return min((s for s in (self.max_interval_s, self.partition_idle_s) if s is not None), default=None)

    @property
    def any_radical(self) -> bool:
        """Whether anything is due as soon as it has a log file."""
        return Urgency.RADICAL in (self.urgency, *(level for _, level in self._patterns()))

    def fires(self, commits: int, waiting_s: float | None, *, left_out: bool = False) -> bool:
        """Whether anything can be due. `commits`: since the last request; `waiting_s`: since the first of them, or
        since the request if there is none; `left_out`: whether the last request left something out."""
        if (commits or left_out) and self.any_radical:
            return True
        least_s = self.least_wait_s
        return least_s is not None and waiting_s is not None and waiting_s >= least_s
