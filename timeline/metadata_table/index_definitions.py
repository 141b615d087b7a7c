"""The definitions of a table's indexes, as Hudi 1.x has them, and of those that phantombase has taken out.

Hudi's readers use secondary and expression indexes by their definitions alone (1.2.0, seen): what no write updates must
not be defined. Its definition is kept for the run that builds it again."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..errors import MalformedError, MissingFileError
from ..storage.contract import Storage, listed_if_there
from ..storage.folders import METADATA_FOLDER, RECORDS
from ..table.table import Table
from .records.keys import COLUMN_STATS, EXPRESSION_INDEX, RECORD_INDEX, SECONDARY_INDEX, RowIndex

INDEX_DEFINITIONS = ".hoodie/.index_defs/index.json"


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


def taken_out_indexes(table: Table) -> dict[str, bool]:
    """The secondary and expression indexes that phantombase took out, and whether each still has its folder: Hudi's
    DROP INDEX, after a CREATE INDEX of that name, removes it (1.2.0, seen). MalformedError: damaged definitions."""
    if not table.layout.has_completion_times or table.storage.find(_ABSENT) is None:  # a snapshot knows it for nothing
        return {}
    absent = set(definitions_in(_stored(table.storage, _ABSENT))) - set(table.config.metadata_partitions)
    return {name: bool(listed_if_there(table.storage, f"{METADATA_FOLDER}/{name}")) for name in sorted(absent)}


def is_half_dropped(table: Table) -> bool:
    """Whether a process died that was dropping the metadata table: no partition is named, and a folder of an index that
    was taken out is there. Its definition was not put back yet, or the folder not removed."""
    with suppress(MalformedError):
        return not table.config.metadata_partitions and any(taken_out_indexes(table).values())
    return False


def put_back_definitions(table: Table) -> None:
    """Defines the secondary indexes again that were taken out: the next metadata table is built with them. Call it once
    hoodie.properties names no partition, while the folders are there. Damaged definitions stay as they are."""
    with suppress(MalformedError):
        can = [name for name, of in definitions_in(_stored(table.storage, _ABSENT)).items() if UNBUILDABLE not in of]
        found = [name for name, there in taken_out_indexes(table).items() if there and name in can]
        put_definitions(table.storage, None, "", (), [name for name in found if name.startswith(SECONDARY_INDEX)])


def unfollowed_signs(table: Table) -> dict[str, str]:
    """The secondary and expression indexes that no write updates, and why; also expression indexes that are defined and
    not there, as after a restore by Hudi. MalformedError: damaged definitions."""
    found = dict.fromkeys(undefined_indexes(table), f"{INDEX_DEFINITIONS} does not define it, so no write updates it")
    config, left = table.config, dict[str, str]()
    if table.layout.has_completion_times and config.metadata_partitions:
        for name in definitions_in(stored_definitions(table.storage)):
            if not name.startswith(READ_AS_DEFINED) or name in config.metadata_partitions:
                continue
            if listed_if_there(table.storage, f"{METADATA_FOLDER}/{name}"):
                left[name] = "hoodie.properties does not name it, so no write updates it, but Hudi's queries use it"
            elif name.startswith(EXPRESSION_INDEX):
                left[name] = f"{INDEX_DEFINITIONS} defines it and it is not there: Hudi's queries by its column fail"
    if left and not table.load_timeline().pending("indexing"):  # else Hudi builds it
        found |= {name: why for name, why in left.items() if name not in config.building_metadata_partitions}
    return found


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


def stored_definitions(storage: Storage) -> bytes | None:
    """The content of `INDEX_DEFINITIONS`; None: there is no such file."""
    return _stored(storage, INDEX_DEFINITIONS)


def _stored(storage: Storage, path: str) -> bytes | None:
    try:
        return storage.read(path)
    except MissingFileError:
        return None
