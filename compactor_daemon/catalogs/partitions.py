"""Which partitions of a table were written or deleted since its last sync.

A table of a catalog says up to which write it was synced (`Mark`). Writes that completed later are on the active
timeline if that has the write of the mark: archiving goes from the oldest instant on and never passes a pending one,
and a mark never passes one either. Otherwise the archive has them, on versions 8 and 9 with their metadata. Where it
has not, all partitions are compared: a folder may be that of a deleted one, whose write is archived once its files are
gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.table.table import Snapshot, Table

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


def changes_since(table: Snapshot, mark: Mark | None) -> PartitionChanges:
    """The changes since a mark; None: there is none. Errors: see `Table.partitions`, `Table.commit_metadata`,
    `load_history`."""
    timeline = table.timeline
    since = _writes_since(timeline, mark)
    if since is not None:
        return _changes(_last_of_each(timeline, {i: table.commit_metadata(i) for i in _writing(timeline, since)}))
    whole = table.with_archive(timeline)
    active = {i: table.commit_metadata(i) for i in _writing(timeline, timeline.completed)}
    archived = _archived_since(whole, mark)
    if archived is not None:
        found = table.archived_commits(_writing(timeline, archived))
        if found.keys() == set(_writing(timeline, archived)):
            return _changes(_last_of_each(timeline, {**found, **active}))
    last = _last_of_each(timeline, active)
    gone = {partition for partition, what in last.items() if what is _What.DELETED}
    there = set(table.partitions())
    replacing = [i for i in whole.archived if i.family == "replacecommit"]
    known = table.archived_commits(replacing)
    emptied = {p for one in known.values() if one.operation_type in _EMPTIES for p in _replaced(one)}
    asked = there if known.keys() != set(replacing) else there & emptied
    gone |= {partition for partition in asked - last.keys() if not _has_files(table, partition)}
    return PartitionChanges(written=frozenset(there - gone), gone=frozenset(gone), all=True)


def _changes(last: Mapping[str, _What]) -> PartitionChanges:
    new, gone = (frozenset(p for p, what in last.items() if what is one) for one in (_What.WRITTEN, _What.DELETED))
    return PartitionChanges(written=new, gone=gone, all=False)


def _replaced(metadata: CommitMetadata) -> Collection[str]:
    return metadata.partition_to_replace_file_ids or ()


def _has_files(table: Table, partition: str) -> bool:
    """Whether a partition has a file of a file group; those of the partition itself are none."""
    try:
        return any(parse_data_file(e.name) is not None for e in table.storage.list(partition) if not e.is_folder)
    except MissingFileError:
        return False


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


def _archived_since(whole: Timeline, mark: Mark | None) -> Sequence[Instant] | None:
    """The archived writes that completed after a mark; None: the archive does not have that of the mark, or not as it
    was then. `whole`: with its archive."""
    if mark is None or not whole.layout.has_completion_times:
        return None
    writes = [i for i in whole.archived if i.is_write]
    marked = next((i for i in writes if i.requested_time == mark.time), None)
    if marked is None or whole.moment_of(marked) != mark.completed:
        return None
    return [i for i in writes if whole.moment_of(i) > whole.moment_of(marked)]


def _writing(timeline: Timeline, writes: Iterable[Instant]) -> list[Instant]:
    return [i for i in writes if not timeline.is_compaction(i)]


class _What(Enum):
    """What became of a partition. KEPT: a write has changed file groups that were there before it, so the partition is
    older than that write: an earlier sync, or an earlier one of these writes, has shown it."""

    WRITTEN = "written"
    KEPT = "kept"
    DELETED = "deleted"


def _last_of_each(timeline: Timeline, writes: Mapping[Instant, CommitMetadata]) -> dict[str, _What]:
    found: dict[str, _What] = {}
    for write in sorted(writes, key=timeline.moment_of):
        metadata = writes[write]
        if metadata.operation_type in _EMPTIES:
            found |= dict.fromkeys(_replaced(metadata), _What.DELETED)
        for partition, stats in metadata.partition_to_write_stats.items():
            if stats and found.get(partition) is not _What.WRITTEN:
                older = any(_is_older_group(stat, write.requested_time) for stat in stats)
                found[partition] = _What.KEPT if older else _What.WRITTEN
    return found


def _is_older_group(stat: WriteStat, instant: str) -> bool:
    """Whether a write has changed a file group that was there before it, as far as its commit shows that."""
    before = stat.prev_commit or ""
    return bool(stat.base_file) or (before.isdecimal() and before < instant)
