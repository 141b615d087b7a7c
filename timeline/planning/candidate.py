"""A file slice that may be compacted, in the planner's form (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from ..errors import UsageError
from ..format.instant import parse_time
from ..instants.timeline import Timeline
from ..view.view import FileSlice
from .log_runs import LogPiece, LogRun
from .universal import MergeKind, Picking, PickOptions, Stack, pick

HAS_LOGS = "it has log files"
"""The reason, if every file slice with log files is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceStats:
    """Rows of the base file and entries of the logs, `deletes` of them; the content of the logs, piece by piece. None
    if not asked for. `unreadable`: why they are unknown although they were asked for."""

    base_rows: int | None = None
    log_rows: int | None = None
    deletes: int | None = None
    runs: tuple[LogRun, ...] | None = None
    unreadable: str | None = None

    @property
    def merged_at(self) -> str:
        """The newest log compaction in the slice; "" if there is none, or if it was not asked for."""
        return max((p.instant for run in self.runs or () for p in run.pieces if p.replaced), default="")

    @property
    def rows(self) -> int:
        """All rows, as far as they were asked for."""
        return (self.base_rows or 0) + (self.log_rows or 0)


NO_STATS = SliceStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What to do with a slice, and why. `pieces`: those of its log pieces that a minor compaction merges.

    `waited_s`: upper limit of the time that the oldest log has waited, None if unknown.
    """

    slice: FileSlice
    stats: SliceStats
    kind: MergeKind
    why: str
    waited_s: float | None
    pieces: tuple[LogPiece, ...] = ()

    @property
    def merged(self) -> FileSlice:
        """The slice with only those files that will be merged."""
        if self.kind is not MergeKind.MINOR:
            return self.slice
        files = {f for piece in self.pieces for f in (*piece.files, *piece.replaced)}
        return replace(self.slice, base=None, logs=tuple(log for log in self.slice.logs if log in files))


def candidate_of(
    slice_: FileSlice, stats: SliceStats, timeline: Timeline, now: datetime, options: PickOptions
) -> Candidate:
    """What the rules choose for a slice with log files. `now`: the table's clock. The universal rules need `runs`."""
    waited_s = _age_s(_oldest(slice_, timeline), now)
    if options.picking is Picking.ALL:
        return Candidate(slice=slice_, stats=stats, kind=MergeKind.MAJOR, why=HAS_LOGS, waited_s=waited_s)
    runs = stats.runs
    assert runs is not None
    pieces = [piece for run in runs for piece in run.pieces]
    stack = Stack(
        base=slice_.base_bytes,
        logs=tuple(piece.log_bytes for piece in pieces),
        delta_commits=sum(max(1, len(piece.replaced)) for piece in pieces),
        age_s=_age_s(slice_.base_instant, now),
        deleted_share=stats.deletes / stats.base_rows if stats.deletes is not None and stats.base_rows else None,
    )
    picked = pick(stack, options, now)
    kind, why, merged = picked.kind, picked.why, tuple[LogPiece, ...]()
    if kind is MergeKind.MINOR and not (timeline.layout.has_completion_times or options.readers_1x_only):
        kind, why = MergeKind.MAJOR, f"{why}; a minor compaction needs readers-1x-only on version 6"
    elif kind is MergeKind.MINOR:
        merged = runs[-1].pieces[-picked.logs :]
        if len(merged) < 2:
            kind, merged = MergeKind.NONE, ()
            why = f"{why}; but a pending or rolled back write lies between them"
    return Candidate(slice=slice_, stats=stats, kind=kind, why=why, waited_s=waited_s, pieces=merged)


def _oldest(slice_: FileSlice, timeline: Timeline) -> str:
    """The first delta commit of a slice's logs; on version 6 the first that could be."""
    if timeline.layout.has_completion_times:
        return min((log.name.instant for log in slice_.logs), default=slice_.base_instant)
    later = (t for t, i in timeline.completed_writes.items() if i.action == "deltacommit" and t > slice_.base_instant)
    return slice_.base_instant if slice_.base is None else min(later, default=slice_.base_instant)


def _age_s(time: str, now: datetime) -> float | None:
    try:
        return (now - parse_time(time)).total_seconds()
    except UsageError:
        return None
