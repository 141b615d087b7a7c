"""The read-optimized state of a table, and what of it has changed since it was last published.

A published state is known by its `StateMark`: the newest writes in it, and those that were pending then. Writes that
completed since are found by comparing sets, not times: a compaction is requested before writes that complete before it,
and the clocks of writers differ. Archived ones are found in the archive on versions 8 and 9. If a write of the mark was
undone, or one that the mark lacks may have been archived unseen, everything is compared."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import pyarrow as pa
import xxhash

from phantombase.timeline.errors import MalformedError, MissingFileError, UsageError
from phantombase.timeline.format.commit_metadata import TableSchema
from phantombase.timeline.format.file_name import BaseFileName, parse_data_file
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.instant_files import retained_by
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.read.windows import earliest_to_retain
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.view.view import GroupKey, TableView, latest_base_slice

from .iceberg_files import NAME_MAPPING, PublishedFile, changed_columns, iceberg_columns
from .options import SyncOptions

MARK, HOLDS = "hudi.published", "hudi.holds"
"""The property of an Iceberg table for its mark, and that of a snapshot for the moment that its pin held."""
_LISTED = 1000
"""The newest writes that a mark lists, usually all. A write that began before these is pending, or completed before
them: no clock is slow by that many."""

_SETS = ("writes", "pending", "cleans")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMark:
    """What a published state has. `snapshot`: the one of the catalog that it describes. `since`: the requested time
    from which `writes` are listed. `newest`: the greatest one. `pending`: of writes. `holds`, `held_ms`: the moment of
    the pin, and when it was put, since the epoch. `columns`: see `HudiState.columns_mark`. `cleans`: the times of
    those that were there; `cutoff`: the greatest time that one retains, below which files may be gone."""

    snapshot: int
    since: str
    newest: str
    writes: frozenset[str]
    pending: frozenset[str]
    holds: str
    held_ms: int
    columns: str
    cleans: frozenset[str]
    cutoff: str

    @staticmethod
    def at(
        table: Snapshot, before: StateMark | None, *, snapshot: int, holds: str, held_ms: int, columns: str
    ) -> StateMark:
        """`before`: the mark that it replaces."""
        timeline = table.timeline
        done, pending = timeline.completed, frozenset(timeline.pending_writes)
        since = min([*(i.requested_time for i in done[-_LISTED:]), *pending]) if len(done) > _LISTED else ""
        return StateMark(
            snapshot=snapshot,
            since=since,
            newest=timeline.latest_completed,
            writes=frozenset(_named(timeline, since)),
            pending=pending,
            holds=holds,
            held_ms=held_ms,
            columns=columns,
            cleans=frozenset(i.requested_time for i in _cleans(timeline)),
            cutoff=cutoff_of(table, before),
        )

    def is_old(self, timeline: Timeline, before_ms: int) -> bool:
        """Whether to move the mark though no base file has changed: its pin was put before a time (since the epoch), or
        the writes that it lists may be archived soon."""
        since = [i for i in timeline.completed if i.requested_time > self.newest]
        return self.held_ms < before_ms or 2 * len(since) > len(timeline.completed)

    def to_json(self) -> str:
        found: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**found, **{name: sorted(found[name]) for name in _SETS}})

    @staticmethod
    def parse(text: str | None) -> StateMark | None:
        """None: there is no mark, or it is unreadable."""
        try:
            found = json.loads(text or "")
            found |= {name: frozenset(map(str, found[name])) for name in _SETS}
            return StateMark(**found)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def mark_of(iceberg: Any) -> StateMark | None:
    """None: the newest snapshot is not one that phantombase has described."""
    if iceberg is None or (current := iceberg.current_snapshot()) is None:
        return None
    mark = StateMark.parse(iceberg.properties.get(MARK))
    return mark if mark is not None and mark.snapshot == current.snapshot_id else None


def _named(timeline: Timeline, since: str) -> Mapping[str, Instant]:
    """Completed writes by a text that tells them apart, also those that share a time, and one that was run again."""
    return {
        f"{i.requested_time}{i.family[0]}{i.completion_time or ''}": i
        for i in (*timeline.archived, *timeline.completed, *timeline.hidden)
        if i.is_write and i.requested_time >= since
    }


def writes_since(table: Snapshot, mark: StateMark | None) -> list[Instant] | None:
    """The writes that completed since a mark; None: unknown, or some that it has were undone. Errors: see
    `Table.with_archive`."""
    if mark is None:
        return None
    found, layout = _active_since(table.timeline, mark), table.timeline.layout
    if found is not None or mark.since or not layout.has_completion_times:
        return found
    whole = table.with_archive(table.timeline)
    now = _named(whole, "")
    if mark.writes - now.keys():
        return None
    # What the mark does not list was archived before it: it is older than all that it lists, whose clocks may differ.
    first = min((one[:17] for one in mark.writes), default="")
    newest = max((one[18:] or one[:17] for one in mark.writes), default="")

    def is_new(write: Instant) -> bool:
        return write.requested_time > first or whole.completed_at(write) > newest

    return [write for one, write in now.items() if one not in mark.writes and is_new(write)]


def _active_since(timeline: Timeline, mark: StateMark) -> list[Instant] | None:
    """The same by the active timeline; None: also if some may be archived (pure)."""
    if timeline.starts_behind:
        return None
    now, behind = _named(timeline, mark.since), timeline.may_be_archived_later
    saved = {i.requested_time for i in timeline.instants if i.action == "savepoint"}
    for time in (*mark.pending, mark.newest):
        # Its successors may be archived, too, unless it is there, or would be archived before the first one that is.
        if (not timeline.at(time) or time in saved) and (behind or time <= timeline.start):
            return None
    if any(behind or one[:17] >= timeline.start for one in mark.writes - now.keys()):
        return None
    return [write for one, write in now.items() if one not in mark.writes]


def changed_groups(table: Snapshot, writes: Collection[Instant]) -> frozenset[GroupKey] | None:
    """The file groups whose base files these writes made or replaced; None: one does not say so."""
    found: set[GroupKey] = set()
    active = {*table.timeline.completed, *table.timeline.hidden}
    gone = [write for write in writes if write not in active]
    archived = table.archived_commits(gone) if gone else {}
    for write in writes:
        try:
            metadata = table.files.recorded(write) if write in active else archived.get(write)
        except (MalformedError, MissingFileError):
            if write.family == "replacecommit":
                raise
            metadata = None
        if metadata is None:
            return None
        found |= metadata.replaced_groups
        for partition, stats in metadata.partition_to_write_stats.items():
            for stat in stats:
                name = parse_data_file((stat.path or "").rpartition("/")[2])
                if isinstance(name, BaseFileName):
                    found.add((partition, name.file_id))
    return frozenset(found)


@dataclass(frozen=True, kw_only=True)
class HudiState:
    """A state of the Hudi table. `mark`: what the catalog shows. `writes`: those since then; None: all may be."""

    table: Snapshot
    mark: StateMark | None
    writes: Sequence[Instant] | None
    meta_columns: bool

    @property
    def timeline(self) -> Timeline:
        return self.table.timeline

    @cached_property
    def changed(self) -> frozenset[GroupKey] | None:
        """The file groups that have changed since the mark; None: all may have."""
        return None if self.writes is None else changed_groups(self.table, self.writes)

    @cached_property
    def schema(self) -> TableSchema:
        return self.table.newest_schema()

    @cached_property
    def columns(self) -> pa.Schema:
        """See `iceberg_columns`."""
        return iceberg_columns(self.schema, self.table.storage.base_path, meta_columns=self.meta_columns)

    def columns_mark(self, schema: Any) -> str:
        """Tells whether an Iceberg schema is still the one that was published."""
        return xxhash.xxh3_64_hexdigest(f"{self.meta_columns} {schema}".encode())

    def changed_columns(self, iceberg: Any, where: str) -> tuple[str, ...]:
        """See `iceberg_files.changed_columns`; none if there is no table yet. UnsupportedError: see `columns`."""
        if iceberg is None:
            assert self.columns
            return ()
        schema = iceberg.schema()
        if self.mark is not None and self.writes == [] and self.mark.columns == self.columns_mark(schema):
            return ()  # without the newest commit, which may be large
        return changed_columns(schema, self.columns, where)


def base_files(table: Table, view: TableView, only: Collection[GroupKey] | None) -> dict[str, PublishedFile]:
    """The base files that a read-optimized query reads, by path; `only`: of these file groups. MissingFileError,
    MalformedError: a file is lost or damaged."""
    found: dict[str, PublishedFile] = {}
    for group in view.living():
        slice_ = latest_base_slice(group) if only is None or group.key in only else None
        if slice_ is not None:
            slice_.check_whole(table.storage.base_path)
            assert slice_.base is not None
            records = view.facts.witness.names(group.key).get(str(slice_.base.name), ())
            rows = max((one.rows for one in records), default=0)
            found[slice_.base.path] = PublishedFile(file=slice_.base, rows=rows)
    return found


def broken_snapshots(
    iceberg: Any, table: Snapshot, mark: StateMark | None, changed: Collection[GroupKey] | None
) -> frozenset[int]:
    """The snapshots of an Iceberg table that may lack files: a clean may have removed them, or an undone write made
    them. `changed`: since the mark; None: all may have."""
    if changed is None:
        return frozenset(one.snapshot_id for one in iceberg.snapshots())
    timeline = table.timeline
    cutoff = cutoff_of(table, mark)
    first = min(timeline.counts_from(i) for i in timeline.completed)
    found = set()
    for one in iceberg.snapshots():
        holds = (one.summary and one.summary[HOLDS]) or ""
        needs = earliest_to_retain(timeline, [holds])
        if holds < first or (needs is not None and cutoff > needs):
            found.add(one.snapshot_id)
    return frozenset(found)


def cutoff_of(table: Snapshot, mark: StateMark | None) -> str:
    """The greatest time that a clean retains; those that a mark has seen are not read again."""
    seen, before = (mark.cleans, mark.cutoff) if mark is not None else (frozenset[str](), "")
    new = (i for i in _cleans(table.timeline) if i.requested_time not in seen)
    return max([before, *(_cutoff(table, i) for i in new)])


def _cleans(timeline: Timeline) -> list[Instant]:
    return [i for i in timeline.instants if i.action == "clean"]


def _cutoff(table: Table, clean: Instant) -> str:
    try:
        return retained_by(table.files, clean)
    except (MalformedError, MissingFileError):
        return clean.requested_time


BASE_PATH = "hudi.base-path"
FIXED_PROPERTIES = {
    "format-version": "2",
    "gc.enabled": "false",  # the files are Hudi's: no engine removes them with the table, or as orphans
    "commit.retry.num-retries": "0",  # what lost to another process is no longer the newest state
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_HIVE_ONLY = frozenset(f.name for f in fields(SyncOptions)) - {
    *("to", "database", "name", "partition_fields", "meta_columns", "table_properties")
}


def check_options(options: SyncOptions) -> None:
    defaults = SyncOptions()
    if set_ := sorted(n for n in _HIVE_ONLY if getattr(options, n) != getattr(defaults, n)):
        raise UsageError(
            "options that mean nothing for Iceberg",
            expected="an Iceberg catalog has one table, of the read-optimized view",
            found=", ".join(name.replace("_", "-") for name in set_),
        )
    names = {pair.partition("=")[0] for pair in options.table_properties}
    if own := sorted(names & {*FIXED_PROPERTIES, MARK, BASE_PATH, NAME_MAPPING}):
        raise UsageError(
            "properties of the Iceberg table that phantombase sets itself",
            found=", ".join(own),
            todo="Leave them out of table-properties.",
        )
