"""Measures new files for the indexes: the range of each column, if the metadata table has statistics.

The process that writes a file measures it, so that it need not be read again. The committing process reads files that
were not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from ...errors import MissingFileError
from ...format.file_name import LogFileName, parse_data_file
from ...storage.contract import Storage
from ...table.table import Table, TableSchema
from ..records.partitions import COLUMN_STATS, PARTITION_STATS
from .column_range import ColumnRange
from .file_ranges import ranges_of_log, ranges_of_parquet
from .index_definitions import INDEX_DEFINITIONS
from .indexed_columns import IndexedColumn, columns_to_index, index_version
from .value_type import IndexVersion

Measured: TypeAlias = Mapping[str, Sequence[ColumnRange]]
"""Ranges by the final path of a file."""


@dataclass(frozen=True, slots=True)
class Measure:
    """The columns to measure; picklable. `version`: how the ranges will be stored."""

    columns: tuple[IndexedColumn, ...]
    version: IndexVersion
    schema: pa.Schema
    float_as_text: bool

    @staticmethod
    def of(table: Table, schema: TableSchema) -> Measure | None:
        """The measure for a table whose newest rows have this schema; None if no index stores ranges."""
        if not {COLUMN_STATS, PARTITION_STATS} & set(table.config.metadata_partitions):
            return None
        try:
            definitions = table.storage.read(INDEX_DEFINITIONS)
        except MissingFileError:
            definitions = None
        version = table.config.version
        return Measure(
            columns_to_index(schema.file_text, definitions, version),
            index_version(definitions, version),
            schema.arrow,
            table.layout.float_text_in_logs,
        )

    def file(self, storage: Storage, path: str, name: str) -> tuple[ColumnRange, ...]:
        """The ranges of a base or log file whose final name is `name`. Errors: as in any read of the file."""
        with storage.open_input(path) as source:
            if isinstance(parse_data_file(name), LogFileName):
                return ranges_of_log(source, path, self.columns, self.schema, float_as_text=self.float_as_text)
            return ranges_of_parquet(source, path, self.columns)
