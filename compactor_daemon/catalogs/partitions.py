"""Which partitions of a table were written or deleted since its last sync.

A table of a catalog says up to which write it was synced (`Mark`). Writes that completed later are on the active
timeline if that has the write of the mark: archiving goes from the oldest instant on and never passes a pending one,
and a mark never passes one either. Otherwise all partitions are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from phantombase.timeline.format.commit_metadata import WriteStat
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.table.table import Table

from .tables import COMPLETED_MARK, MARK

_EMPTIES = ("DELETE_PARTITION", "INSERT_OVERWRITE_TABLE")
"""Operations that replace all file groups of partitions; those that they write nothing to are gone."""
_MANY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The newest write that a sync has seen. `completed`: its completion time; on version 6 that of its request: Hudi
    0.15.0 takes the later writes from there, and again those that completed after it."""

    time: str
    completed: str | None

    @property
    def parameters(self) -> dict[str, str]:
        return {MARK: self.time, COMPLETED_MARK: self.completed or self.time}

    @staticmethod
    def of(parameters: Mapping[str, str]) -> Mark | None:
        """That of a table in the catalog."""
        time = parameters.get(MARK)
        return Mark(time=time, completed=parameters.get(COMPLETED_MARK)) if time else None

    @staticmethod
    def at(timeline: Timeline) -> Mark | None:
        """The newest completed write below every pending one, which may complete later; None: there is none."""
        pending = min((i.requested_time for i in timeline.inflight_writers), default="~")
        below = [i for i in timeline.completed if i.requested_time < pending]
        newest = max(below, key=timeline.moment_of, default=None)
        return None if newest is None else Mark(time=newest.requested_time, completed=timeline.moment_of(newest))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanges:
    """`written`: partitions that the catalog may lack. `gone`: that it must not have. `all`: `written` are all."""

    written: frozenset[str]
    gone: frozenset[str]
    all: bool


def changes_since(table: Table, timeline: Timeline, mark: Mark | None) -> PartitionChanges:
    """The changes since a mark; None: there is none. Errors: see `Table.partitions`, `Table.commit_metadata`."""
    since = _writes_since(timeline, mark)
    last = _last_of_each(table, timeline, timeline.completed if since is None else since)
    gone = frozenset(partition for partition, what in last.items() if what is _What.DELETED)
    if since is None:
        return PartitionChanges(written=frozenset(table.partitions()) - gone, gone=gone, all=True)
    new = frozenset(partition for partition, what in last.items() if what is _What.WRITTEN)
    return PartitionChanges(written=new, gone=gone, all=False)


def is_behind(timeline: Timeline, mark: Mark | None) -> bool:
    """Whether a mark should be moved though nothing has changed: the write that it names may be archived soon."""
    since = _writes_since(timeline, mark)
    return since is None or len(since) >= max(_MANY, len(timeline.completed) // 2)


def _writes_since(timeline: Timeline, mark: Mark | None) -> Sequence[Instant] | None:
    """The writes that completed after a mark; None: they are not all on the active timeline."""
    if mark is None or timeline.may_be_archived_later:
        return None
    marked = timeline.completed_writes.get(mark.time)
    if marked is None or (timeline.layout.has_completion_times and mark.completed != timeline.moment_of(marked)):
        return None
    return [i for i in timeline.completed if timeline.moment_of(i) > timeline.moment_of(marked)]


class _What(Enum):
    """What became of a partition. KEPT: a write has changed file groups that were there before it, so the partition is
    older than that write: an earlier sync, or an earlier one of these writes, has shown it."""

    WRITTEN = "written"
    KEPT = "kept"
    DELETED = "deleted"


def _last_of_each(table: Table, timeline: Timeline, writes: Sequence[Instant]) -> dict[str, _What]:
    found: dict[str, _What] = {}
    for write in sorted(writes, key=timeline.moment_of):
        if timeline.is_compaction(write):
            continue
        metadata = table.commit_metadata(write)
        if metadata.operation_type in _EMPTIES:
            found |= dict.fromkeys(metadata.partition_to_replace_file_ids or {}, _What.DELETED)
        for partition, stats in metadata.partition_to_write_stats.items():
            if stats and found.get(partition) is not _What.WRITTEN:
                older = any(_is_older_group(stat, write.requested_time) for stat in stats)
                found[partition] = _What.KEPT if older else _What.WRITTEN
    return found


def _is_older_group(stat: WriteStat, instant: str) -> bool:
    """Whether a write has changed a file group that was there before it, as far as its commit shows that."""
    before = stat.prev_commit or ""
    return bool(stat.base_file) or (before.isdecimal() and before < instant)
