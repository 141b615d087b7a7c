"""Which moment a pin holds, and what a cleaner must not remove, given the moments that pins hold (pure).

A cleaner that retains commits from R on keeps the newest slice below R of every file group, and all later ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..format.instant import Instant, State
from ..instants.timeline import Timeline
from ..view.view import TableView


def moment_to_hold(timeline: Timeline, moment: str) -> str:
    """The moment that a pin holds for a reader of the state at `moment`, on the axis of `Timeline.counts_from`.

    What pends may complete while the reader reads, and count from before that moment: a compaction does, from its
    requested time on, an inflight stitching from the completion time that a dead process decided, and on version 6
    every write. The state at the moment is then another one, and a cleaner may remove what the reader still reads. So
    the moment held is before all of them.
    """
    pending: Collection[Instant] = timeline.pending_writes.values()
    if timeline.layout.has_completion_times:
        pending = [i for i in pending if i.action == "compaction" or _is_decided_clustering(i)]
    first = min((i.requested_time for i in pending), default=None)
    if first is None or moment < first:
        return moment
    counted = (timeline.counts_from(w) for w in timeline.completed_writes.values())
    return max((m for m in counted if m < first), default="")


def _is_decided_clustering(pending: Instant) -> bool:
    return pending.action == "clustering" and pending.state is State.INFLIGHT


def earliest_to_retain(timeline: Timeline, holds: Iterable[str]) -> str | None:
    """The greatest R that leaves the states at these moments, and all later ones, whole; None: any R does.

    It is the first requested time of a write that is not in the earliest of the states: one that completed later, or is
    pending. `timeline`: with its archive if it has completion times, so that nothing is held that it has forgotten.
    """
    earliest = min(holds, default=None)
    if earliest is None:
        return None
    completed = {i.requested_time: i for i in (*timeline.archived, *timeline.instants) if i.is_write and i.completed}
    later = (time for time, write in completed.items() if timeline.counts_from(write) > earliest)
    return min((*later, *timeline.pending_writes), default=None)


def held_files(view: TableView, retain: str | None) -> frozenset[str]:
    """Paths of the files that the states from `retain` on have; None: those of the newest state alone."""
    held: set[str] = set()
    for group in view.groups:
        replaced = view.facts.replaced.get(group.key)
        if replaced is not None and (retain is None or replaced < retain):
            continue
        below = [s.base_instant for s in group.slices if retain is None or s.base_instant < retain]
        first = max(below, default="")
        # A pending compaction's slice is read together with the one before it.
        pending = group.pending_compaction
        if pending is not None and first == pending:
            first = max((time for time in below if time < pending), default="")
        for one in group.slices:
            if one.base_instant >= first:
                held |= {file.path for file in one.files}
    return frozenset(held)
