"""When a compaction is due: Hudi's triggers as a pure function of the timeline, the clock and the options.

Counting follows ScheduleCompactionActionExecutor and CompactionUtils of Hudi 0.15.0 (version 6) and 1.2.0 (8, 9):

    since the last completed compaction   version 6: delta commits requested after it, pending ones too
                                          8 and 9: completed ones, by completion time after its requested time
    since the last request                delta commits requested after the last pending compaction, or where none
                                          pends after the last completed one; pending ones too
    seconds                               from the requested time of the last completed compaction, in whole seconds

Where no compaction is completed yet (nor requested), all delta commits count, and time runs from the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from timeline.active import Timeline
from timeline.errors import UsageError
from timeline.instant import Instant, parse_time
from timeline.option import check_least, option

GATE_S_MAX = 300.0
"""Longest time writers may be asked to wait."""


class TriggerStrategy(Enum):
    """What must have happened since the last compaction; names are Hudi's, but for ALWAYS: plan when asked."""

    ALWAYS = "always"
    NUM_COMMITS = "num-commits"
    NUM_COMMITS_AFTER_LAST_REQUEST = "num-commits-after-last-request"
    TIME_ELAPSED = "time-elapsed"
    NUM_AND_TIME = "num-and-time"
    NUM_OR_TIME = "num-or-time"


@dataclass(frozen=True, kw_only=True)
class TriggerOptions:
    """When a compaction is requested (stages: trigger, gate).

    The default strategy is not Hudi's: NUM_COMMITS fires at every commit while a plan pends. `gate_s` is no matter of
    ALWAYS: whoever asks once does not come back to use the gate.
    """

    strategy: TriggerStrategy = option(
        TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST,
        "what must have happened since the last compaction",
        flag="trigger",
    )
    max_delta_commits: int = option(5, "delta commits that make a compaction due")
    max_delta_seconds: int = option(3600, "seconds that make a compaction due")
    max_pending: int | None = option(None, "request none while so many compactions are pending; default: no limit")
    gate_s: float = option(30.0, "seconds that writers wait for a due plan on version 6; 0: they never wait")

    def __post_init__(self) -> None:
        check_least(self, _LEAST)
        if not 0 <= self.gate_s <= GATE_S_MAX:
            raise UsageError("gate-s is out of range", expected=f"0 to {GATE_S_MAX:g} seconds", found=str(self.gate_s))


_LEAST = {"max_delta_commits": 1, "max_delta_seconds": 0, "max_pending": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """Whether a compaction is due, and why or why not. `held`: none may be requested now, however urgent."""

    fired: bool
    why: str
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Since:
    """Delta commits since an instant, and that instant's requested time."""

    commits: int
    instant: str

    def seconds(self, now: datetime) -> int:
        """Whole seconds on both sides, as Hudi counts. A LOCAL zone's change of the clock counts as time."""
        past = parse_time(self.instant).replace(microsecond=0)
        return round((now.replace(microsecond=0) - past).total_seconds())


def triggered(timeline: Timeline, now: datetime, options: TriggerOptions) -> Trigger:
    """Whether a compaction is due. `now`: the clock in the table's zone (`Table.now`)."""
    pending = len(timeline.pending_compactions)
    if options.max_pending is not None and pending >= options.max_pending:
        why = f"{pending} compactions are pending, the limit is {options.max_pending}"
        return Trigger(fired=False, why=why, held=True)
    if options.strategy is TriggerStrategy.ALWAYS:
        return Trigger(fired=True, why="asked for")
    after_request = options.strategy is TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST
    since = _since_request(timeline) if after_request else _since_completed(timeline)
    if since is None:
        return Trigger(fired=False, why="no delta commit yet")
    seconds = since.seconds(now)
    enough, late = since.commits >= options.max_delta_commits, seconds >= options.max_delta_seconds
    commits_said = f"{since.commits} of {options.max_delta_commits} delta commits"
    seconds_said = f"{seconds} of {options.max_delta_seconds} seconds"
    match options.strategy:
        case TriggerStrategy.TIME_ELAPSED:
            fired, said = late, seconds_said
        case TriggerStrategy.NUM_AND_TIME:
            fired, said = enough and late, f"{commits_said} and {seconds_said}"
        case TriggerStrategy.NUM_OR_TIME:
            fired, said = enough or late, f"{commits_said} or {seconds_said}"
        case _:
            fired, said = enough, commits_said
    return Trigger(fired=fired, why=f"{said} since {since.instant}")


def unplanned(timeline: Timeline, now: datetime) -> tuple[int, float | None]:
    """Delta commits since the last request, and seconds since the first of them, or since that where there is none.

    None: nothing was ever written, or an instant's time is a made-up one.
    """
    since = _since_request(timeline)
    if since is None:
        return 0, None
    first = next(
        (d.requested_time for d in _delta_commits(timeline) if d.requested_time >= since.instant), since.instant
    )
    try:
        return since.commits, (now - parse_time(first)).total_seconds()
    except UsageError:
        return since.commits, None


def commits_since_compaction(timeline: Timeline) -> int:
    """Delta commits since the last completed compaction; all, where there is none."""
    since = _since_completed(timeline)
    return 0 if since is None else since.commits


def _since_request(timeline: Timeline) -> _Since | None:
    last = timeline.pending_compactions[-1:] or _completed_compactions(timeline)[-1:]
    deltas = _delta_commits(timeline)
    if not last:
        return _since_first(deltas, deltas)
    time = last[0].requested_time
    return _Since(commits=sum(d.requested_time > time for d in deltas), instant=time)


def _since_completed(timeline: Timeline) -> _Since | None:
    last = _completed_compactions(timeline)[-1:]
    deltas = _delta_commits(timeline)
    by_completion = timeline.layout.has_completion_times
    counted = [d for d in deltas if d.completed] if by_completion else deltas
    if not last:
        return _since_first(deltas, counted)
    time = last[0].requested_time
    when = [timeline.completion_time(d.requested_time) if by_completion else d.requested_time for d in counted]
    return _Since(commits=sum(w is not None and w > time for w in when), instant=time)


def _since_first(deltas: Sequence[Instant], counted: Sequence[Instant]) -> _Since | None:
    return _Since(commits=len(counted), instant=deltas[0].requested_time) if deltas else None


def _delta_commits(timeline: Timeline) -> tuple[Instant, ...]:
    """By requested time; a completed log compaction is one too."""
    return tuple(i for i in timeline.instants if i.action == "deltacommit")


def _completed_compactions(timeline: Timeline) -> tuple[Instant, ...]:
    """By requested time: in a MERGE_ON_READ table nothing else completes as `commit`."""
    return tuple(i for i in timeline.instants if i.action == "commit" and i.completed)
