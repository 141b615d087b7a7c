"""Hudi's record index of a table: its definition, whether keys must be unique over all partitions, what a change means.

The record index is global up to Hudi 1.0; since 1.1 it can be per partition, as its definition says. If a key of a
global index is written a second time, in another partition, every later Hudi write fails, because the index cannot be
built over two rows of one key. This also holds after a phantombase write has removed the index from hoodie.properties.
So the check uses the index's folder: Hudi removes the folder when it drops the index, phantombase keeps it. When
phantombase removes the entire metadata table, it puts a mark instead.

Hudi's writers find rows by this index: they insert a key without an entry, so its row is doubled. phantombase finds
rows in the files. An index that lacks entries must not be kept, since each write that keeps it makes it look current.
Hudi 1.2.0 itself makes such an index: a restore to a savepoint from before the index removes its entries, but not
its name in hoodie.properties."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import MalformedError, MissingFileError
from ..format.file_name import parse_data_file
from ..instants.timeline import Timeline
from ..storage.contract import Entry, Storage, listed_if_there
from ..storage.folders import METADATA_FOLDER, RECORDS
from ..storage.snapshot import SnapshotStorage
from ..table.table import Snapshot, Table, open_metadata_table
from .index_definitions import definitions_in, secondary_index_in, stored_definitions
from .records.keys import RECORD_INDEX, SECONDARY_INDEX, RowIndex, RowsChange, Upkeep, new_file_ids, upkeep
from .valid_instants import ARTIFICIAL, refuse_uncompleted

if TYPE_CHECKING:
    import pyarrow as pa


def record_index_is_partitioned(index_defs: bytes | None) -> bool:
    """Whether the record index separates keys by partition (possible since 1.1); without a definition it does not.
    MalformedError: damaged definitions."""
    options = definitions_in(index_defs).get("record_index", {}).get("indexOptions", {})
    return isinstance(options, dict) and str(options.get("isPartitioned", "")).lower() == "true"


def followed_indexes(table: Table) -> dict[str, tuple[RowIndex, pa.DataType]]:
    """The secondary indexes that a write can keep true, and the types of their columns. MalformedError: damaged
    definitions."""
    named = [name for name in table.config.built_metadata_partitions if name.startswith(SECONDARY_INDEX)]
    seen = table.with_timeline(table.load_timeline()) if named else None
    if seen is None or not seen.timeline.completed_writes or (schema := seen.newest_schema()).evolved is not None:
        return {}
    from .records.entries import cannot_index_column  # late: it takes pyarrow

    definitions = definitions_in(stored_definitions(table.storage))
    found = ((name, secondary_index_in(definitions, name)) for name in named)
    return {
        name: (index, schema.arrow.field(index.column).type)
        for name, index in found
        if index is not None and not cannot_index_column(schema.arrow, index.column) and _is_whole(table.storage, index)
    }


def _is_whole(storage: Storage, index: RowIndex) -> bool:
    """Whether the file groups of a secondary index are numbered from 0: their number decides where an entry is."""
    ids = sorted(_file_ids(storage, index.partition))
    return bool(ids) and ids == list(new_file_ids(index.partition, len(ids)))


GLOBAL_KEYS_MARK = f"{RECORDS}/global_record_index"
"""There was a global record index when the metadata table was turned off. The mark counts while it is off."""


_OF_ALL = re.compile(r"record-index-[0-9]{4,}-0")
"""File ids of a global index. File ids of an index per partition also contain the partition's name."""


def keys_are_global(table: Table) -> bool:
    """Whether a key may occur in one partition only, as far as the table shows this.
    A table that Hudi writes with GLOBAL_SIMPLE or GLOBAL_BLOOM does not. MalformedError: damaged definitions."""
    config, storage = table.config, table.storage
    if not config.metadata_partitions:
        return storage.find(GLOBAL_KEYS_MARK) is not None
    if RECORD_INDEX not in config.metadata_partitions and not _files(storage):
        return False
    return not record_index_is_partitioned(stored_definitions(storage))


def has_one_record_index(table: Table) -> bool:
    """Whether the metadata table has a global record index that can be kept: without a sign that entries are missing
    (`missing_entries`). MalformedError: damaged definitions."""
    return is_global(table) and not missing_entries(table)


def is_global(table: Table) -> bool:
    """Whether the metadata table has a record index over all partitions, with file groups. MalformedError: damaged
    definitions."""
    if RECORD_INDEX not in table.config.built_metadata_partitions:
        return False
    groups = _file_ids(table.storage)
    of_all = bool(groups) and all(_OF_ALL.fullmatch(file_id) for file_id in groups)
    return of_all and not record_index_is_partitioned(stored_definitions(table.storage))


def check_keepable(table: Table, *, moves_rows: bool = True) -> None:
    """UnsupportedError if a change would make a partition of the metadata table wrong, see `upkeep`."""
    upkeep_of(table, RowsChange(moves_rows=moves_rows))


def upkeep_of(table: Table, change: RowsChange) -> Upkeep:
    """What a change means for each partition of the metadata table, see `upkeep`. UnsupportedError: see there."""
    config = table.config
    change = replace(change, knows_keys=change.knows_keys and has_one_record_index(table))
    return upkeep(
        config.built_metadata_partitions, config.building_metadata_partitions, change, table.storage.base_path
    )


def missing_entries(table: Table) -> str:
    """What shows that the record index, if there is one, lacks entries of rows; "": nothing does.

        its file groups           are numbered from 0, each with a file slice
        its files                 are there, as the active delta commits of the metadata table name them
        these delta commits       are completed, and there is one for each write of the table since the first of them
        its entries               are at least one, if the table has rows

    Requests: two listings, and each active delta commit of the metadata table. Contents of files are not read."""
    if RECORD_INDEX not in table.config.built_metadata_partitions:
        return ""
    for _ in range(_LOOKS):
        data = table.with_timeline(table.load_timeline())
        found, seen = _sign_of_loss(data)
        if not found or (data.timeline, seen) == (table.load_timeline(), open_metadata_table(table).timeline):
            break  # otherwise a write may have ended since the first listing
    return found


_LOOKS = 5


def _sign_of_loss(table: Snapshot) -> tuple[str, Timeline | None]:
    """See `missing_entries`, and the metadata table's timeline that was read."""
    from .read import load_metadata_view  # late: it takes pyarrow

    metadata = open_metadata_table(table)
    storage = SnapshotStorage(metadata.storage, {metadata.config.timeline_folder}, metadata.kept)
    data, metadata, numbers = table.timeline, replace(metadata, storage=storage), sorted(_file_ids(table.storage))
    timeline = metadata.timeline
    if not numbers:
        return "it has no file groups", timeline
    of_all = all(_OF_ALL.fullmatch(file_id) for file_id in numbers)
    if of_all and [int(file_id.split("-")[2]) for file_id in numbers] != list(range(len(numbers))):
        return f"it has only the file groups {', '.join(numbers)}", timeline
    try:
        view = load_metadata_view(metadata, {RECORD_INDEX}, witness=True)
        refuse_uncompleted(table, metadata.with_timeline(view.timeline))
    except (MissingFileError, MalformedError) as error:
        return f"{error.what}: {error.path}", timeline
    empty = next((g.file_id for g in view.groups if not g.slices), None)
    if empty is not None and of_all:  # a pending write may open a group of an index for each partition
        return f"file group {empty} has no file slice", timeline
    behind = _unrecorded(data, view.timeline)
    if behind is not None:
        return f"the metadata table lacks the write {behind}", timeline
    named = [one for _, of in view.facts.witness.writes for one in of.get(RECORD_INDEX, ())]
    has_base = any(slice_.base is not None for group in view.groups for slice_ in group.slices)
    if not has_base and not any(one.rows for one in named) and _has_rows(table):
        return "it has no entries, and the table has rows", timeline
    return "", timeline


def _unrecorded(data: Timeline, metadata: Timeline) -> str | None:
    """A completed write of the table without a delta commit of the metadata table, though later than the first one."""
    own = [i for i in metadata.completed if i.family == "deltacommit"]
    exact = metadata.layout.has_completion_times
    first = min((i.requested_time for i in own if exact or not i.requested_time.startswith(ARTIFICIAL)), default="~")
    since = min(map(metadata.completed_at, own), default="~")
    recorded = {i.requested_time for i in own}
    times = (i.requested_time for i in data.completed if data.completed_at(i) > since)
    return next((time for time in times if time > first and time not in recorded), None)


def _has_rows(table: Snapshot) -> bool:
    """Whether an active write of the table has written rows."""
    writes = table.load_facts().witness.writes
    return any(one.rows for _, named in writes for partition in named for one in named[partition])


def mark_global_keys(table: Table) -> None:
    """Puts the mark if the keys are global; call it before the metadata table is turned off."""
    if keys_are_global(table):
        table.storage.put_if_absent(GLOBAL_KEYS_MARK, b"")


def _file_ids(storage: Storage, partition: str = RECORD_INDEX) -> set[str]:
    return {name.file_id for e in _files(storage, partition) if (name := parse_data_file(e.name)) is not None}


def _files(storage: Storage, partition: str = RECORD_INDEX) -> list[Entry]:
    return [e for e in listed_if_there(storage, f"{METADATA_FOLDER}/{partition}") or () if not e.is_folder]
