"""Measures files for the indexes: the range of each column, if the metadata table has statistics.

The process that writes a file measures it, so that it need not be read again. The committing process reads files that
were not measured: the footer of a Parquet file, or the rows of a log file.

The statistics in a footer are used if they bound all values. Otherwise the column is read: floats, since Parquet
writers leave NaN out of the statistics (or leave out the statistics, as Hudi's writer does), and columns whose type
changed since. A footer may contain shortened texts, the low bound shortened to a lesser text and the high bound to a
greater one (Parquet format, Statistics). A shortened decimal of variable length would be another number, so such
columns are read too, and so are dates and times of the old calendar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ..codec.arrow_schema import project
from ..codec.avro_schema import parse_avro
from ..codec.calendar import old_calendar
from ..codec.parquet_read import open_parquet, parquet_batches, readable
from ..format.file_name import LogFileName, parse_data_file
from ..format.log_block import BlockKind, HeaderKey, LogBlock, scan_blocks
from ..format.log_decode import decode_rows, decoding
from ..storage.contract import Storage
from ..table.table import Table, TableSchema
from .column_range import ColumnRange, merged_ranges, no_values, range_between, ranges_of_rows
from .indexed_columns import IndexedColumn, IndexVersion, Kind, Value, ValueType, columns_to_index, index_version
from .record_index import stored_definitions
from .records.keys import COLUMN_STATS, PARTITION_STATS

_BATCH_ROWS = 65_536
_PART_BYTES = 32 << 20
_TIMES = frozenset((Kind.DATE, Kind.TIMESTAMP_MILLIS, Kind.TIMESTAMP_MICROS))
_LOG_DATA = (BlockKind.AVRO_DATA, BlockKind.PARQUET_DATA)


def ranges_of_parquet(source: pa.NativeFile, path: str, columns: Sequence[IndexedColumn]) -> tuple[ColumnRange, ...]:
    """The range of each column of a Parquet file. MalformedError, UnsupportedError: as in any read of the file.
    A missing column counts as a column of nulls; a column whose name differs by case has no range."""
    with readable("file", path):
        file = open_parquet(source)
        columns = [c for c in columns if not _is_in_other_letters(c, file.schema_arrow)]
        places = {file.metadata.schema.column(i).path: i for i in range(file.metadata.num_columns)}
        known = {c.name: _of_footer(file, places[c.name], c) for c in columns if c.name in places}
        unknown = [c for c in columns if known.get(c.name) is None]
        read = {r.column: r for r in _of_columns(source, file, unknown)}
        return tuple(_sized(known.get(c.name) or read[c.name], file.metadata, places.get(c.name)) for c in columns)


def _is_in_other_letters(column: IndexedColumn, schema: pa.Schema) -> bool:
    name = column.name.partition(".")[0]
    return name not in schema.names and name.lower() in {there.lower() for there in schema.names}


def ranges_of_log(
    source: pa.NativeFile, path: str, columns: Sequence[IndexedColumn], schema: pa.Schema, *, float_as_text: bool = True
) -> tuple[ColumnRange, ...]:
    """The range of each column over all rows of a log file, whether its blocks count or not.
    `schema`: the table's; `float_as_text` as in `decode_rows`. Deletes have no values. A column that no row has, since
    all rows are updates of other columns, has no range, as in Hudi: a range of nulls would exclude the file."""
    blocks = [(b, _columns_in(b, columns)) for b in scan_blocks(source, path) if b.kind in _LOG_DATA]
    parts = [
        ranges_of_rows(rows, there)
        for block, there in blocks
        for rows in decode_rows(
            block,
            source,
            project(schema, [c.name.partition(".")[0] for c in there]),
            float_as_text=float_as_text,
            part_bytes=_PART_BYTES,
            partial=block.is_partial,
        )
        if rows.num_rows
    ]
    present = {column.name for _, there in blocks for column in there}
    nothing = tuple(no_values(column, 0) for column in columns if column.name in present or not blocks)
    return merged_ranges([nothing, *parts])


def _columns_in(block: LogBlock, columns: Sequence[IndexedColumn]) -> Sequence[IndexedColumn]:
    """The columns that the rows of a data block have: all, unless the block contains partial updates."""
    if not block.is_partial:
        return columns
    with decoding(block):
        names = {field["name"] for field in parse_avro(block.header(HeaderKey.SCHEMA))["fields"]}
    return [column for column in columns if column.name.partition(".")[0] in names]


def _of_footer(file: pq.ParquetFile, place: int, column: IndexedColumn) -> ColumnRange | None:
    """The footer's range of a column, None if it does not bound all values."""
    if column.type.kind in (Kind.FLOAT, Kind.DOUBLE) or _type_at(file.schema_arrow, column.name) != column.type:
        return None
    if column.type.kind in _TIMES and old_calendar(file) is not None:
        return None
    metadata = file.metadata
    parts = [_of_chunk(metadata.row_group(i).column(place), column) for i in range(metadata.num_row_groups)]
    known = [part for part in parts if part is not None]
    return merged_ranges([(no_values(column, 0),), known])[0] if len(known) == len(parts) else None


def _of_chunk(chunk: pq.ColumnChunkMetaData, column: IndexedColumn) -> ColumnRange | None:
    found = chunk.statistics
    if found is None or not found.has_null_count:
        return None
    if found.null_count == chunk.num_values:
        return no_values(column, chunk.num_values)
    if not found.has_min_max or (column.type.kind is Kind.DECIMAL and chunk.physical_type == "BYTE_ARRAY"):
        return None
    try:
        low, high = (_physical(raw, column.type) for raw in (found.min_raw, found.max_raw))
    except UnicodeDecodeError:
        return None  # shortened in the middle of a character
    return range_between(column, low, high, nulls=found.null_count, values=chunk.num_values)


def _physical(raw: bool | int | bytes, kind: ValueType) -> Value:
    """Converts a bound from its form in Parquet to its form in `ColumnRange`."""
    if not isinstance(raw, bytes):
        return raw
    if kind.kind is Kind.STRING:
        return raw.decode()
    return int.from_bytes(raw, "big", signed=True) if kind.kind is Kind.DECIMAL else raw


def _of_columns(
    source: pa.NativeFile, file: pq.ParquetFile, columns: Sequence[IndexedColumn]
) -> tuple[ColumnRange, ...]:
    """The ranges, computed from the values; a missing column counts as a column of nulls."""
    rows = file.metadata.num_rows
    names = sorted({c.name.partition(".")[0] for c in columns} & set(file.schema_arrow.names))
    if not names or not rows:
        return tuple(no_values(c, rows) for c in columns)
    return merged_ranges(ranges_of_rows(batch, columns) for batch in parquet_batches(source, file, names, _BATCH_ROWS))


def _type_at(schema: pa.Schema, path: str) -> ValueType | None:
    name, *inner = path.split(".")
    kind = schema.field(name).type
    for step in inner:
        kind = kind.field(step).type
    return ValueType.of(kind)


def _sized(found: ColumnRange, metadata: pq.FileMetaData, place: int | None) -> ColumnRange:
    if place is None:
        return found
    chunks = [metadata.row_group(i).column(place) for i in range(metadata.num_row_groups)]
    return replace(
        found,
        bytes_=sum(chunk.total_compressed_size for chunk in chunks),
        uncompressed=sum(chunk.total_uncompressed_size for chunk in chunks),
    )


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
        definitions, version = stored_definitions(table.storage), table.config.version
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
