"""Which partitions must be listed again when a timeline has moved on (pure).

    what changed                                 listed again
    an instant came, moved on or went            the partitions that its file names: a write's statistics, the plan of
                                                 a compaction, clean or rollback
    a write came, moved on or went               every partition with a file that has the write's time in its name
    an instant whose file names no partitions    all: a restore, a rollback whose plan cannot be read

An instant that was archived changes no file, and its writes count as before. What it recorded about file groups is
gone, though: that is left out of the facts without a listing, see `forgotten`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...format.instant import Instant
from ...instants.timeline import Timeline
from .recorded import Recorded, Records
from .table_state import PartitionFiles, TableState


def touched(before: TableState, timeline: Timeline, records: Records) -> frozenset[str] | None:
    """The partitions that may have changed since `before`; None: it may be all of them."""
    if before.timeline.shared_times or timeline.shared_times:
        return None
    old, new = dict(before.records.records), dict(records)
    gone = old.keys() - new.keys()
    named = [_names(old[i], gone=True) for i in gone if not _archived(i, timeline)]
    named += [_names(new[i]) for i in new.keys() - old.keys()]
    named += [_back(before, old[i]) for i in gone]
    if None in named:
        return None
    moved = {i.requested_time for i in old.keys() ^ new.keys() if i.is_write and not _archived(i, timeline)}
    floor = sorted((before.timeline.start, timeline.start))
    passed = _Passed(floor[0], floor[1], before.timeline)
    holding = (n for n, f in before.partitions.items() if not moved.isdisjoint(f.times) or passed.has_any(f))
    return frozenset(holding).union(*(found for found in named if found is not None))


def _names(recorded: Recorded, *, gone: bool = False) -> frozenset[str] | None:
    """The partitions that an instant names. One that is gone and named none was undone by another, which does."""
    return frozenset() if gone and recorded.partitions is None else recorded.partitions


def _archived(instant: Instant, now: Timeline) -> bool:
    """Whether an instant that is not active any more was archived, and its time of completion stays known."""
    timed = instant.completion_time is not None or not now.layout.has_completion_times
    return instant.completed and instant.requested_time < now.start and (timed or not instant.is_write)


def _back(before: TableState, recorded: Recorded) -> frozenset[str]:
    """The partitions that still have files of file groups which an instant replaced."""
    files = ((p, before.partitions[p], ids) for p, ids in recorded.replaced.items() if p in before.partitions)
    return frozenset(p for p, f, ids in files if any((g := f.by_file_id.get(i)) and g.slices for i in ids))


def forgotten(before: TableState, records: Records) -> frozenset[str]:
    """The partitions about whose file groups an instant recorded something that is not active any more."""
    now = {i for i, _ in records}
    gone = (r for i, r in before.records.records if i not in now)
    return frozenset(p for r in gone for p in (*r.bases, *r.replaced, *(r.named or ())) if p in before.partitions)


class _Passed:
    """Times of unknown writes between two starts of the timeline: before the start all count as completed."""

    def __init__(self, first: str, last: str, timeline: Timeline) -> None:
        self._first, self._last, self._timeline = first, last, timeline

    def has_any(self, files: PartitionFiles) -> bool:
        return self._first != self._last and any(map(self._passed, files.times))

    def _passed(self, time: str) -> bool:
        return self._first <= time < self._last and time not in self._timeline.completed_writes


def above(partition: str, others: Iterable[str]) -> bool:
    """Whether one of the other folders is above a folder."""
    return any(p != partition and (not p or partition.startswith(f"{p}/")) for p in others)
