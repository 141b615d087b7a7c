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

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import MalformedError, MissingFileError
from ..format.file_name import parse_data_file
from ..instants.timeline import Timeline
from ..storage.contract import Entry, Storage, listed_if_there
from ..storage.folders import METADATA_FOLDER, RECORDS
from ..storage.snapshot import SnapshotStorage
from ..table.table import Snapshot, Table, open_metadata_table
from .records.keys import (
    COLUMN_STATS,
    EXPRESSION_INDEX,
    RECORD_INDEX,
    SECONDARY_INDEX,
    RowIndex,
    Upkeep,
    new_file_ids,
    upkeep,
)
from .valid_instants import ARTIFICIAL, refuse_uncompleted

if TYPE_CHECKING:
    import pyarrow as pa

INDEX_DEFINITIONS = ".hoodie/.index_defs/index.json"


def record_index_is_partitioned(index_defs: bytes | None) -> bool:
    """Whether the record index separates keys by partition (possible since 1.1); without a definition it does not.
    MalformedError: damaged definitions."""
    options = definitions_in(index_defs).get("record_index", {}).get("indexOptions", {})
    return isinstance(options, dict) and str(options.get("isPartitioned", "")).lower() == "true"


def definitions_in(content: bytes | None) -> dict[str, Any]:
    """Definitions by the name of the index; none without a file. MalformedError: damaged."""
    if content is None:
        return {}
    try:
        definitions = json.loads(content)["indexDefinitions"]
        if not all(isinstance(d, dict) for d in definitions.values()):
            raise TypeError("an index definition is not an object")
        return dict(definitions)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedError(
            "damaged index definitions",
            path=INDEX_DEFINITIONS,
            found=str(error),
            todo="Move this file away, then `compactor-daemon metadata TABLE --rebuild` builds all indexes again but "
            "secondary ones. Those it builds if --indexes names them and their columns.",
        ) from error


def put_definitions(
    storage: Storage,
    columns: Sequence[str] | None,
    version: str,
    indexes: Sequence[RowIndex],
    expressions: Collection[str] = (),
) -> None:
    """Adds the definitions of built indexes to `INDEX_DEFINITIONS`, as Hudi 1.x has them. `columns`: with statistics,
    None: no such index; `version`: how these are stored; `expressions`: indexes that were taken out. MalformedError:
    damaged definitions."""
    definitions, absent = definitions_in(stored_definitions(storage)), definitions_in(_stored(storage, _ABSENT))
    if columns is not None:
        definitions[COLUMN_STATS] = _definition(COLUMN_STATS, COLUMN_STATS, columns, {}, version)
    definitions |= {one.partition: _of_rows(one) for one in indexes}
    own = {name: absent[name] for name in expressions if name in absent}
    definitions |= {name: {key: of[key] for key in of if key != UNBUILDABLE} for name, of in own.items()}
    if columns is not None or indexes or expressions:
        storage.overwrite(INDEX_DEFINITIONS, _encoded(definitions))
        if expressions or any(one.column for one in indexes):
            _save_absent(storage, absent, definitions)


_ABSENT = f"{RECORDS}/secondary_indexes"
"""Definitions of secondary and expression indexes that phantombase took out or began to build, in the form of
`INDEX_DEFINITIONS`."""


READ_AS_DEFINED = (SECONDARY_INDEX, EXPRESSION_INDEX)
"""How the names begin of the indexes that Hudi's readers use by their definitions alone."""


def known_definitions(storage: Storage) -> dict[str, Any]:
    """The definitions of indexes, also of those that phantombase has taken out. MalformedError: damaged definitions."""
    return definitions_in(_stored(storage, _ABSENT)) | definitions_in(stored_definitions(storage))


def keep_definitions(storage: Storage, indexes: Sequence[RowIndex]) -> None:
    """Keeps the definitions of secondary indexes that are to be made visible, for the run after a death."""
    if indexes:
        absent = definitions_in(_stored(storage, _ABSENT)) | {one.partition: _of_rows(one) for one in indexes}
        _save_absent(storage, absent, definitions_in(stored_definitions(storage)))


def take_out_definitions(storage: Storage, names: Collection[str]) -> None:
    """Removes the definitions of secondary and expression indexes, by which Hudi's readers skip files even if
    hoodie.properties does not name the index any more (1.2.0, seen). They are kept for a run that builds the index
    again. Call it before the index leaves hoodie.properties. MalformedError: damaged definitions."""
    there = definitions_in(stored_definitions(storage))
    gone = {name: one for name, one in there.items() if name in names and name.startswith(READ_AS_DEFINED)}
    if gone:
        left = {name: one for name, one in there.items() if name not in gone}
        _save_absent(storage, definitions_in(_stored(storage, _ABSENT)) | gone, left)
        storage.overwrite(INDEX_DEFINITIONS, _encoded(left))


def undefined_indexes(table: Table) -> tuple[str, ...]:
    """The secondary and expression indexes that hoodie.properties names and nothing defines: a process died in between.
    No reader uses them, and no writer updates them. MalformedError: damaged definitions."""
    named = [name for name in table.config.built_metadata_partitions if name.startswith(READ_AS_DEFINED)]
    return tuple(name for name in named if name not in definitions_in(stored_definitions(table.storage)))


UNBUILDABLE = "unbuildable"
"""Of a definition that is kept: why the service does not build the index again."""


def note_unbuildable(table: Table, name: str, why: str) -> None:
    """Notes why an index that was taken out cannot be built again; `table`: of a section."""
    absent = definitions_in(_stored(table.storage, _ABSENT))
    if name in absent:
        _save_absent(table.storage, absent | {name: {**absent[name], UNBUILDABLE: why}}, {})


def taken_out_indexes(table: Table) -> tuple[str, ...]:
    """The secondary and expression indexes that phantombase has taken out. MalformedError: damaged definitions."""
    if not table.layout.has_completion_times or table.storage.find(_ABSENT) is None:  # a snapshot knows it for nothing
        return ()
    absent = definitions_in(_stored(table.storage, _ABSENT))
    return tuple(sorted(set(absent) - set(table.config.metadata_partitions)))


def unfollowed_signs(table: Table) -> dict[str, str]:
    """The secondary and expression indexes that no write updates, and why. MalformedError: damaged definitions."""
    found = dict.fromkeys(undefined_indexes(table), f"{INDEX_DEFINITIONS} does not define it, so no write updates it")
    if table.layout.has_completion_times and table.config.metadata_partitions:
        for name in definitions_in(stored_definitions(table.storage)):
            is_named = not name.startswith(READ_AS_DEFINED) or name in table.config.metadata_partitions
            if not is_named and listed_if_there(table.storage, f"{METADATA_FOLDER}/{name}"):
                found[name] = "hoodie.properties does not name it, so no write updates it, but Hudi's queries use it"
    return found


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


def _save_absent(storage: Storage, absent: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """Saves those of the `absent` definitions that are not `there`."""
    if kept := {name: one for name, one in absent.items() if name not in there}:
        storage.overwrite(_ABSENT, _encoded(kept))
    else:
        storage.delete(_ABSENT)


def _encoded(definitions: Mapping[str, Any]) -> bytes:
    return json.dumps({"indexDefinitions": definitions}, indent=2).encode()


def _of_rows(index: RowIndex) -> dict[str, Any]:
    if not index.column:
        return _definition(RECORD_INDEX, "", (), {"isPartitioned": "false"}, "V1")
    return _definition(index.partition, "identity", (index.column,), {}, "V2" if index.by_value else "V1")


def secondary_index_in(definitions: Mapping[str, Any], partition: str) -> RowIndex | None:
    """A secondary index as it is defined; None: it is not, or not for one column as it is, or in a later version."""
    found = definitions.get(partition, {})
    fields = found.get("sourceFields")
    if not partition.startswith(SECONDARY_INDEX) or not isinstance(fields, list) or len(fields) != 1:
        return None
    version = found.get("version", "V1")
    if found.get("indexFunction") != "identity" or not isinstance(fields[0], str) or version not in ("V1", "V2"):
        return None
    return RowIndex(partition=partition, column=fields[0], by_value=version == "V2")


def _definition(
    name: str, function: str, fields: Sequence[str], options: Mapping[str, str], version: str
) -> dict[str, Any]:
    kind = "secondary_index" if name.startswith(SECONDARY_INDEX) else name
    named = {"indexName": name, "indexType": kind, "indexFunction": function}
    return {**named, "sourceFields": list(fields), "indexOptions": dict(options), "version": version}


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
    upkeep_of(table, moves_rows)


def upkeep_of(
    table: Table, moves_rows: bool, *, knows_keys: bool = False, same_rows: bool = False, followed: Collection[str] = ()
) -> Upkeep:
    """What a change means for each partition of the metadata table, see `upkeep`. UnsupportedError: see there."""
    config = table.config
    return upkeep(
        config.built_metadata_partitions,
        config.building_metadata_partitions,
        moves_rows=moves_rows,
        where=table.storage.base_path,
        knows_keys=knows_keys and has_one_record_index(table),
        same_rows=same_rows,
        followed=followed,
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


def stored_definitions(storage: Storage) -> bytes | None:
    """The content of `INDEX_DEFINITIONS`; None: there is no such file."""
    return _stored(storage, INDEX_DEFINITIONS)


def _stored(storage: Storage, path: str) -> bytes | None:
    try:
        return storage.read(path)
    except MissingFileError:
        return None
