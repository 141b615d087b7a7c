"""Whether keys must be unique over all partitions of a table: whether it has Hudi's global record index.

Hudi's record index is global up to 1.0; since 1.1 it can be per partition, as its definition says. If a key of a global
index is written a second time, in another partition, every later Hudi write fails, because the index cannot be built
over two rows of one key. That remains so after a phantombase write has removed the index from hoodie.properties. So the
check uses the index's folder: Hudi removes it when it drops the index, phantombase leaves it. When phantombase removes
the whole metadata table, it leaves a mark instead.
"""

from __future__ import annotations

import re

from ..errors import MissingFileError
from ..format.file_name import parse_data_file
from ..storage.contract import Entry, Storage
from ..storage.folders import RECORDS
from ..table.table import Table
from .column_stats.index_definitions import INDEX_DEFINITIONS, record_index_is_partitioned
from .location import METADATA_FOLDER
from .records.partitions import RECORD_INDEX

GLOBAL_KEYS_MARK = f"{RECORDS}/global_record_index"
"""There was a global record index when the metadata table was turned off. The mark counts while it is off."""

_OF_ALL = re.compile(r"record-index-[0-9]{4,}-0")
"""The file ids of one index for the whole table. Those of an index for each partition have its name in between."""


def keys_are_global(table: Table) -> bool:
    """Whether a key may occur in one partition only, as far as the table shows it.

    A table that Hudi writes with GLOBAL_SIMPLE or GLOBAL_BLOOM does not show it. MalformedError: damaged definitions.
    """
    config, storage = table.config, table.storage
    if not config.metadata_partitions:
        return storage.find(GLOBAL_KEYS_MARK) is not None
    if RECORD_INDEX not in config.metadata_partitions and not _files(storage):
        return False
    return not record_index_is_partitioned(_definitions(storage))


def has_one_record_index(table: Table) -> bool:
    """Whether the metadata table has a record index, with file groups, that is one for the whole table.

    MalformedError: damaged definitions.
    """
    if RECORD_INDEX not in table.config.built_metadata_partitions:
        return False
    groups = {name.file_id for e in _files(table.storage) if (name := parse_data_file(e.name)) is not None}
    of_all = bool(groups) and all(_OF_ALL.fullmatch(file_id) for file_id in groups)
    return of_all and not record_index_is_partitioned(_definitions(table.storage))


def mark_global_keys(table: Table) -> None:
    """Leaves the mark if the keys are global; call it before the metadata table is turned off."""
    if keys_are_global(table):
        table.storage.put_if_absent(GLOBAL_KEYS_MARK, b"")


def _files(storage: Storage) -> list[Entry]:
    try:
        return [e for e in storage.list(f"{METADATA_FOLDER}/{RECORD_INDEX}") if not e.is_folder]
    except MissingFileError:
        return []


def _definitions(storage: Storage) -> bytes | None:
    try:
        return storage.read(INDEX_DEFINITIONS)
    except MissingFileError:
        return None
