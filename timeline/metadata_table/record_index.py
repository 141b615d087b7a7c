"""Hudi's record index of a table: its definition, and whether keys must be unique over all partitions.

The record index is global up to Hudi 1.0; since 1.1 it can be per partition, as its definition says. If a key of a
global index is written a second time, in another partition, every later Hudi write fails, because the index cannot be
built over two rows of one key. This also holds after a phantombase write has removed the index from hoodie.properties.
So the check uses the index's folder: Hudi removes the folder when it drops the index, phantombase keeps it. When
phantombase removes the entire metadata table, it puts a mark instead."""

from __future__ import annotations

import json
import re
from typing import Any

from ..errors import MalformedError, MissingFileError
from ..format.file_name import parse_data_file
from ..storage.contract import Entry, Storage, listed_if_there
from ..storage.folders import METADATA_FOLDER, RECORDS
from ..table.table import Table
from .records.partitions import RECORD_INDEX

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
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedError("damaged index definitions", path=INDEX_DEFINITIONS, found=str(error)) from error


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
    """Whether the metadata table has a global record index with file groups. MalformedError: damaged definitions."""
    if RECORD_INDEX not in table.config.built_metadata_partitions:
        return False
    groups = {name.file_id for e in _files(table.storage) if (name := parse_data_file(e.name)) is not None}
    of_all = bool(groups) and all(_OF_ALL.fullmatch(file_id) for file_id in groups)
    return of_all and not record_index_is_partitioned(stored_definitions(table.storage))


def mark_global_keys(table: Table) -> None:
    """Puts the mark if the keys are global; call it before the metadata table is turned off."""
    if keys_are_global(table):
        table.storage.put_if_absent(GLOBAL_KEYS_MARK, b"")


def _files(storage: Storage) -> list[Entry]:
    return [e for e in listed_if_there(storage, f"{METADATA_FOLDER}/{RECORD_INDEX}") or () if not e.is_folder]


def stored_definitions(storage: Storage) -> bytes | None:
    """The content of `INDEX_DEFINITIONS`; None: there is no such file."""
    try:
        return storage.read(INDEX_DEFINITIONS)
    except MissingFileError:
        return None
