"""Whether a table's keys are to be unique over all its partitions: whether it has Hudi's global record index.

Hudi's record index is global up to 1.0; since 1.1 it can be one for each partition, which its definition says. A key of
a global index that is written a second time, in another partition, makes every later Hudi write fail: the index cannot
be built over two rows of one key. This holds also once our own write has taken the index out of hoodie.properties. So
what counts is the index's folder, which Hudi removes when it drops the index, and we leave; and where we have removed
the whole metadata table, a mark that we leave instead.
"""

from __future__ import annotations

from ..errors import MissingFileError
from ..storage.contract import Storage
from ..storage.folders import RECORDS
from ..table.table import Table
from .column_stats.indexed_columns import INDEX_DEFINITIONS, record_index_is_partitioned
from .location import METADATA_FOLDER
from .records.partitions import RECORD_INDEX

GLOBAL_KEYS_MARK = f"{RECORDS}/global_record_index"
"""There was a global record index when the metadata table was turned off. It counts while that is off."""


def keys_are_global(table: Table) -> bool:
    """Whether a key may be in one partition only, as far as the table shows it.

    A table that Hudi writes with GLOBAL_SIMPLE or GLOBAL_BLOOM shows nothing. MalformedError: damaged definitions.
    """
    config, storage = table.config, table.storage
    if not config.metadata_partitions:
        return storage.find(GLOBAL_KEYS_MARK) is not None
    if RECORD_INDEX not in config.metadata_partitions and not _has_files(storage):
        return False
    return not record_index_is_partitioned(_definitions(storage))


def mark_global_keys(table: Table) -> None:
    """Leaves the mark where the keys are global: to be called before the metadata table is turned off."""
    if keys_are_global(table):
        table.storage.put_if_absent(GLOBAL_KEYS_MARK, b"")


def _has_files(storage: Storage) -> bool:
    try:
        return any(not e.is_folder for e in storage.list(f"{METADATA_FOLDER}/{RECORD_INDEX}"))
    except MissingFileError:
        return False


def _definitions(storage: Storage) -> bytes | None:
    try:
        return storage.read(INDEX_DEFINITIONS)
    except MissingFileError:
        return None
