"""A file slice that may be compacted, as the planner sees it (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from timeline.active import Timeline
from timeline.errors import UsageError
from timeline.instant import parse_time
from timeline.picker import Kind, Picking, PickOptions, Stack, pick
from timeline.view import FileSlice, LogFile

HAS_LOGS = "it has log files"
"""Why, where every file slice with log files is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceStats:
    """Rows of the base file and entries of the logs, `deletes` of them; None where nobody asked."""

    base_rows: int | None = None
    log_rows: int | None = None
    deletes: int | None = None

    @property
    def rows(self) -> int:
        """All rows, as far as asked for."""
        return (self.base_rows or 0) + (self.log_rows or 0)


NO_STATS = SliceStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What is to be done with a slice, and why. `logs`: the log files merged. `waited_s`: how long the oldest log has
    waited at most, None where unknown."""

    slice: FileSlice
    stats: SliceStats
    kind: Kind
    logs: tuple[LogFile, ...]
    why: str
    waited_s: float | None


def candidate_of(
    slice_: FileSlice, stats: SliceStats, timeline: Timeline, now: datetime, options: PickOptions
) -> Candidate:
    """What the rules pick of a slice with log files. `now`: the table's clock."""
    waited_s = _age_s(_oldest(slice_, timeline), now)
    if options.picking is Picking.ALL:
        return Candidate(slice=slice_, stats=stats, kind=Kind.MAJOR, logs=slice_.logs, why=HAS_LOGS, waited_s=waited_s)
    instants = _log_instants(slice_, timeline)
    deleted = stats.deletes / stats.base_rows if stats.deletes is not None and stats.base_rows else None
    stack = Stack(
        base=slice_.base_bytes,
        logs=tuple(log.size for log in slice_.logs),
        delta_commits=len(set(instants)),
        age_s=_age_s(slice_.base_instant, now),
        deleted_share=deleted,
    )
    picked = pick(stack, options, now)
    kind, count, why = picked.kind, picked.logs, picked.why
    if kind is Kind.MINOR and not (timeline.layout.has_completion_times or options.readers_1x_only):
        kind, count = Kind.MAJOR, len(slice_.logs)
        why = f"{why}; a minor compaction needs readers-1x-only on version 6"
    # All log files of one delta commit or none: a log-compacted block stands for whole instants.
    while 0 < count < len(instants) and instants[-count] == instants[-count - 1]:
        count += 1
    return Candidate(
        slice=slice_,
        stats=stats,
        kind=kind,
        logs=slice_.logs[len(slice_.logs) - count :],
        why=why,
        waited_s=waited_s,
    )


def _log_instants(slice_: FileSlice, timeline: Timeline) -> list[str]:
    """The delta commit of each log file; version 6 names only the slice's base instant: each file counts as its own."""
    if timeline.layout.has_completion_times:
        return [log.name.instant for log in slice_.logs]
    return [str(log.name) for log in slice_.logs]


def _oldest(slice_: FileSlice, timeline: Timeline) -> str:
    """The first delta commit of a slice's logs; on version 6 the first that could be it."""
    if timeline.layout.has_completion_times:
        return min((log.name.instant for log in slice_.logs), default=slice_.base_instant)
    later = (t for t, i in timeline.completed_writes.items() if i.action == "deltacommit" and t > slice_.base_instant)
    return slice_.base_instant if slice_.base is None else min(later, default=slice_.base_instant)


def _age_s(time: str, now: datetime) -> float | None:
    try:
        return (now - parse_time(time)).total_seconds()
    except UsageError:
        return None
