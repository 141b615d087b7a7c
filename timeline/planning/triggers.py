"""When a compaction is due: Hudi's triggers as a pure function of the timeline, the clock and the options (pure).

`since_compaction` counts the delta commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ..errors import UsageError
from ..format.instant import parse_time
from ..instants.timeline import Timeline, delta_commits, since_completed, since_request
from ..locks.writer_gate import GATE_S_MAX
from ..option import check_least, option


class TriggerStrategy(Enum):
    """What must have happened since the last compaction; names are Hudi's, except ALWAYS: plan when asked."""

    ALWAYS = "always"
    NUM_COMMITS = "num-commits"
    NUM_COMMITS_AFTER_LAST_REQUEST = "num-commits-after-last-request"
    TIME_ELAPSED = "time-elapsed"
    NUM_AND_TIME = "num-and-time"
    NUM_OR_TIME = "num-or-time"


@dataclass(frozen=True, kw_only=True)
class TriggerOptions:
    """When to request a compaction (stages: trigger, gate).

    The default strategy is not Hudi's: NUM_COMMITS fires at every commit while a plan is pending. ALWAYS ignores
    `gate_s`: a process that asks once does not come back to use the gate.
    """

    strategy: TriggerStrategy = option(
        TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST,
        "what must have happened since the last compaction",
        flag="trigger",
    )
    max_delta_commits: int = option(5, "delta commits that make a compaction due")
    max_delta_seconds: int = option(3600, "seconds that make a compaction due")
    max_pending: int | None = option(None, "request none while this many compactions are pending; default: no limit")
    gate_s: float = option(30.0, "seconds that writers wait for a due plan on version 6; 0: they never wait")

    def __post_init__(self) -> None:
        check_least(self, _LEAST)
        if not 0 <= self.gate_s <= GATE_S_MAX:
            raise UsageError("gate-s is out of range", expected=f"0 to {GATE_S_MAX:g} seconds", found=str(self.gate_s))


_LEAST = {"max_delta_commits": 1, "max_delta_seconds": 0, "max_pending": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """Whether a compaction is due, and why or why not. `held`: none may be requested now, even if urgent."""

    fired: bool
    why: str
    held: bool = False


def triggered(timeline: Timeline, now: datetime, options: TriggerOptions) -> Trigger:
    """Whether a compaction is due. `now`: the clock in the table's zone (`Table.now`)."""
    pending = len(timeline.pending_compactions)
    if options.max_pending is not None and pending >= options.max_pending:
        why = f"{pending} compactions are pending, the limit is {options.max_pending}"
        return Trigger(fired=False, why=why, held=True)
    if options.strategy is TriggerStrategy.ALWAYS:
        return Trigger(fired=True, why="asked for")
    after_request = options.strategy is TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST
    since = since_request(timeline) if after_request else since_completed(timeline)
    if since is None:
        return Trigger(fired=False, why="no delta commit yet")
    seconds = since.seconds(now)
    enough, late = since.commits >= options.max_delta_commits, seconds >= options.max_delta_seconds
    commits_since = f"{since.commits} of {options.max_delta_commits} delta commits"
    seconds_since = f"{seconds} of {options.max_delta_seconds} seconds"
    match options.strategy:
        case TriggerStrategy.TIME_ELAPSED:
            fired, what = late, seconds_since
        case TriggerStrategy.NUM_AND_TIME:
            fired, what = enough and late, f"{commits_since} and {seconds_since}"
        case TriggerStrategy.NUM_OR_TIME:
            fired, what = enough or late, f"{commits_since} or {seconds_since}"
        case _:
            fired, what = enough, commits_since
    return Trigger(fired=fired, why=f"{what} since {since.instant}")


def unplanned(timeline: Timeline, now: datetime) -> tuple[int, float | None]:
    """Delta commits since the last request, and seconds since the first of them, or since the request if there is none.

    None: nothing was ever written, or the instant's time is not a real time.
    """
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
