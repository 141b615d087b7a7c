"""Delta commits since the last compaction, as Hudi counts them (pure).

Counting follows ScheduleCompactionActionExecutor and CompactionUtils of Hudi 0.15.0 (version 6) and 1.2.0 (8, 9):

    since the last completed compaction   version 6: delta commits requested after it, pending ones too
                                          8 and 9: completed ones, by completion time after its requested time
    since the last request                delta commits requested after the last pending compaction, or if none is
                                          pending after the last completed one; pending delta commits too
    seconds                               from the requested time of the last completed compaction, in whole seconds

If no compaction is completed (or requested) yet, all delta commits count, and time runs from the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..format.instant import Instant, real_time
from .timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class SinceCompaction:
    """Delta commits since an instant, and that instant's requested time."""

    commits: int
    instant: str

    def seconds(self, now: datetime) -> int:
        """Both times are cut to whole seconds, as in Hudi. A clock change of a LOCAL zone counts as elapsed time.

        Behind an instant that is no date, from the next real time on.
        """
        past = real_time(self.instant).replace(microsecond=0)
        return round((now.replace(microsecond=0) - past).total_seconds())


def commits_since_compaction(timeline: Timeline) -> int:
    """Delta commits since the last completed compaction, or all if there is none."""
    since = since_completed(timeline)
    return 0 if since is None else since.commits


def since_request(timeline: Timeline) -> SinceCompaction | None:
    """Delta commits since the last request of a compaction; None: there is no delta commit yet."""
    last = timeline.pending_compactions[-1:] or _completed_compactions(timeline)[-1:]
    deltas = delta_commits(timeline)
    if not last:
        return _since_first(deltas, deltas)
    time = last[0].requested_time
    return SinceCompaction(commits=sum(d.requested_time > time for d in deltas), instant=time)


def since_completed(timeline: Timeline) -> SinceCompaction | None:
    """Delta commits since the last completed compaction; None: there is no delta commit yet."""
    last = _completed_compactions(timeline)[-1:]
    deltas = delta_commits(timeline)
    by_completion = timeline.layout.has_completion_times
    counted = [d for d in deltas if d.completed] if by_completion else deltas
    if not last:
        return _since_first(deltas, counted)
    time = last[0].requested_time
    when = [timeline.completion_time(d.requested_time) if by_completion else d.requested_time for d in counted]
    return SinceCompaction(commits=sum(w is not None and w > time for w in when), instant=time)


def _since_first(deltas: Sequence[Instant], counted: Sequence[Instant]) -> SinceCompaction | None:
    return SinceCompaction(commits=len(counted), instant=deltas[0].requested_time) if deltas else None


def delta_commits(timeline: Timeline) -> tuple[Instant, ...]:
    """Delta commits by requested time; a completed log compaction is one too."""
    return tuple(i for i in timeline.instants if i.action == "deltacommit")


def _completed_compactions(timeline: Timeline) -> tuple[Instant, ...]:
    """Completed compactions by requested time: in a MERGE_ON_READ table no other action completes as `commit`."""
    return tuple(i for i in timeline.instants if i.action == "commit" and i.completed)
