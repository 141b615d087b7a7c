"""Leaves out file slices by the column statistics of the metadata table, before any of their files is opened.

Each value of a merged row is that of a row of one file of its slice; after partial updates, of several files. So a
slice has no matching row if some condition of the filter holds in no file. A file without statistics may hold any row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from ..avro.schema import COMMIT_SEQNO, COMMIT_TIME, FILE_NAME
from ..errors import MalformedError, MissingFileError, UnsupportedError
from ..event_log import get_logger
from ..filter.possible import UNKNOWN, Bounds, BoundsOf, may_match_together
from ..metadata_table.column_stats.bounds import stats_bounds
from ..metadata_table.read import read_entries
from ..metadata_table.records.keys import column_stats_key
from ..metadata_table.records.partitions import COLUMN_STATS
from ..table.table import Table
from ..view.view import BaseFile, FileSlice, LogFile
from .where import Where

LEAST_FILES = 32
"""With fewer files their own footers cost less than the index."""

_NOT_STORED = {COMMIT_TIME, COMMIT_SEQNO, FILE_NAME}
"""Compactions write these anew, so a file's statistics need not be those of the rows that a reader gets."""

_log = get_logger()


def skip(table: Table, slices: Sequence[FileSlice], where: Where | None) -> tuple[FileSlice, ...]:
    """The slices that may have a matching row. An index that cannot be read is not used; the log says so.

    The view of the slices must have been loaded before: then each of its files has its whole statistics, or none.
    """
    if where is None or COLUMN_STATS not in table.config.built_metadata_partitions:
        return tuple(slices)
    files = [file for slice_ in slices for file in slice_.files]
    if len(files) < LEAST_FILES:
        return tuple(slices)
    try:
        known = _bounds(table, files, where.schema, sorted(where.columns - _NOT_STORED))
    except (MalformedError, UnsupportedError, MissingFileError) as error:
        _log.warning("column_statistics_not_used", path=table.storage.base_path, reason=str(error))
        return tuple(slices)

    def bounds(file: BaseFile | LogFile) -> BoundsOf:
        return lambda column: known.get((file.path, column), UNKNOWN)

    return tuple(s for s in slices if may_match_together(where.filter, [bounds(file) for file in s.files]))


def _bounds(
    table: Table, files: Sequence[BaseFile | LogFile], schema: pa.Schema, columns: Sequence[str]
) -> Mapping[tuple[str, str], Bounds]:
    """What the index knows, by path and column."""
    keys = {
        column_stats_key(column, file.partition, str(file.name)): (file.path, column)
        for file in files
        for column in columns
    }
    entries = read_entries(table, COLUMN_STATS, keys.keys())
    return {keys[key]: stats_bounds(record, schema.field(keys[key][1]).type) for key, record in entries if key in keys}
