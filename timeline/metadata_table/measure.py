"""Column statistics of files: measured for the indexes, recorded in the metadata table, and read as bounds.

The process that writes a file measures it, so that it need not be read again. The committing process reads files that
were not measured: the footer of a Parquet file, or the rows of a log file. The statistics in a footer are used if they
bound all values. Otherwise the column is read: floats, since Parquet writers leave NaN out of the statistics (or leave
out the statistics, as Hudi's writer does), and columns whose type changed since. A footer may contain shortened texts,
the low bound shortened to a lesser text and the high bound to a greater one (Parquet format, Statistics). A shortened
decimal of variable length would be another number, so such columns are read too, and so are dates and times of the old
calendar.

Records of `column_stats`, `partition_stats` and `bloom_filters` have the names of HoodieMetadataRecord. Fields that an
older schema lacks (0.15 has no `isTightBound` and no `valueType`) are left out when a record is written; fields that
are not set here are null. Hudi merges two records of one key like this
(HoodieTableMetadataUtil.mergeColumnStatsRecords): a new record that is deleted or tight replaces the old one; otherwise
bounds are widened and counts added. So `partition_stats` records of a write need not include older values: they are not
tight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ..codec.arrow_schema import project
from ..codec.avro_schema import parse_avro
from ..codec.bloom import BloomFilter
from ..codec.calendar import old_calendar
from ..codec.parquet_read import open_parquet, parquet_batches, readable
from ..format.file_name import BaseFileName, LogFileName, parse_data_file
from ..format.log_block import BlockKind, HeaderKey, LogBlock, scan_blocks
from ..format.log_decode import decode_rows, decoding
from ..prefetch import prefetched
from ..storage.contract import Storage
from ..storage.folders import join
from ..table.table import Table, TableSchema
from .column_range import FLOATS, ColumnRange, merged_ranges, no_values, range_between, ranges_of_rows
from .expression_index import Expression, expressions_in
from .index_definitions import definitions_in, stored_definitions
from .indexed_columns import IndexedColumn, IndexVersion, Kind, Value, ValueType, columns_to_index, index_version
from .records.keys import (
    BLOOM_FILTERS,
    COLUMN_STATS,
    EXPRESSION_INDEX,
    PARTITION_STATS,
    MetadataRecord,
    Sizes,
    bloom_filter_key,
    column_stats_key,
    expression_stats_key,
    partition_stats_key,
)

_BATCH_ROWS = 65_536
_PART_BYTES = 32 << 20
_TIMES = frozenset((Kind.DATE, Kind.TIMESTAMP_MILLIS, Kind.TIMESTAMP_MICROS))
_LOG_DATA = (BlockKind.AVRO_DATA, BlockKind.PARQUET_DATA)


def ranges_of_parquet(source: pa.NativeFile, path: str, columns: Sequence[IndexedColumn]) -> tuple[ColumnRange, ...]:
    """The range of each column of a Parquet file. MalformedError, UnsupportedError: as in any read of the file.
    A missing column counts as a column of nulls; a column whose name differs by case has no range."""
    with readable("file", path):
        file = open_parquet(source)
        there = file.schema_arrow
        columns = _in_these_letters(columns, there.names)
        places = {file.metadata.schema.column(i).path: i for i in range(file.metadata.num_columns)}
        plain = [c for c in columns if c.name in places and not isinstance(c, Expression)]
        known = {c.name: _of_footer(file, there, places[c.name], c) for c in plain}
        unknown = [c for c in columns if known.get(c.name) is None]
        read = {r.column: r for r in _of_columns(source, file, unknown)}
        return tuple(_sized(known.get(c.name) or read[c.name], file.metadata, places.get(c.name)) for c in columns)


def _in_these_letters(columns: Sequence[IndexedColumn], names: Sequence[str]) -> Sequence[IndexedColumn]:
    """The columns, without those that are among the names of a file in other letters only."""
    exact, any_case = frozenset(names), frozenset(name.lower() for name in names)
    tops = ((column, _top(column)) for column in columns)
    return [column for column, top in tops if top in exact or top.lower() not in any_case]


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
            project(schema, list(dict.fromkeys(map(_top, there)))),
            float_as_text=float_as_text,
            part_bytes=_PART_BYTES,
            partial=block.is_partial,
        )
        if rows.num_rows
    ]
    present = {column.name for _, there in blocks for column in there}
    nothing = tuple(no_values(column, 0) for column in columns if column.name in present or not blocks)
    return merged_ranges([nothing, *parts])


def _top(column: IndexedColumn) -> str:
    """The column of the table in which it is."""
    return column.path.partition(".")[0]


def _columns_in(block: LogBlock, columns: Sequence[IndexedColumn]) -> Sequence[IndexedColumn]:
    """The columns that the rows of a data block have: all, unless the block contains partial updates."""
    if not block.is_partial:
        return columns
    with decoding(block):
        names = {field["name"] for field in parse_avro(block.header(HeaderKey.SCHEMA))["fields"]}
    return [column for column in columns if _top(column) in names]


def _of_footer(file: pq.ParquetFile, there: pa.Schema, place: int, column: IndexedColumn) -> ColumnRange | None:
    """The footer's range of a column, None if it does not bound all values. `there`: the file's columns."""
    if column.type.kind in FLOATS or _type_at(there, column.name) != column.type:
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


def lacks_bounds(storage: Storage, path: str, column: str) -> bool:
    """Whether the footer of a base file has no bounds of a column that has values; False for a log file. Errors: as in
    any read of the file."""
    if not isinstance(parse_data_file(path.rpartition("/")[2]), BaseFileName):
        return False
    with storage.open_input(path, whole=False) as source, readable("file", path):
        metadata = pq.read_metadata(source)
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    chunks = (group.column(i) for group in groups for i in range(metadata.num_columns))
    of_column = [(one.statistics, one.num_values) for one in chunks if one.path_in_schema == column]
    return any(s is None or not (s.has_min_max or (s.has_null_count and s.null_count == n)) for s, n in of_column)


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
    names = sorted(set(map(_top, columns)) & set(file.schema_arrow.names))
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
    """The columns to measure, those of expression indexes last; picklable. `version`: how the ranges of the others will
    be stored."""

    columns: tuple[IndexedColumn, ...]
    version: IndexVersion
    schema: pa.Schema
    float_as_text: bool

    @staticmethod
    def of(table: Table, schema: TableSchema, defined: Mapping[str, Any] | None = None) -> Measure | None:
        """The measure for a table whose newest rows have this schema; None if no index stores ranges. `defined`:
        definitions of its expression indexes; None: those that readers see."""
        names = table.config.metadata_partitions
        is_wanted = not {COLUMN_STATS, PARTITION_STATS}.isdisjoint(names)
        if not is_wanted and not any(name.startswith(EXPRESSION_INDEX) for name in names):
            return None
        definitions, version = stored_definitions(table.storage), table.config.version
        known = definitions_in(definitions) if defined is None else defined
        said = [one for one in expressions_in(known, names, schema).values() if one is not None]
        if not is_wanted and not said:
            return None
        return Measure(
            (*(columns_to_index(schema.file_text, definitions, version) if is_wanted else ()), *said),
            index_version(definitions, version),
            schema.arrow,
            table.config.merges_as_1x,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns with statistics."""
        return tuple(column.name for column in self.columns if not isinstance(column, Expression))

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The expressions whose values are measured."""
        return tuple(column for column in self.columns if isinstance(column, Expression))

    def file(self, storage: Storage, path: str, name: str) -> tuple[ColumnRange, ...]:
        """The ranges of a base or log file whose final name is `name`. Errors: as in any read of the file."""
        with storage.open_input(path) as source:
            if isinstance(parse_data_file(name), LogFileName):
                return ranges_of_log(source, path, self.columns, self.schema, float_as_text=self.float_as_text)
            return ranges_of_parquet(source, path, self.columns)


KeyedRecord = tuple[str, MetadataRecord]
"""A record and its key."""

_TYPE_COLUMN_STATS, _TYPE_BLOOM_FILTERS, _TYPE_PARTITION_STATS = 3, 4, 6
"""Field `type` of a record (Hudi MetadataPartitionType)."""


def column_stats_records(
    partition: str, file_name: str, ranges: Sequence[ColumnRange], version: IndexVersion
) -> list[KeyedRecord]:
    """One record for each column of a new file, even of a file without rows (as in Hudi for a log file of deletes).
    No records at all if the bounds of one column cannot be stored: a reader never skips a file without records, but it
    may skip a file of which only some records are missing."""
    stored = [(column_stats_key(r.column, partition, file_name), _stats(file_name, r, version)) for r in ranges]
    if any(stats is None for _, stats in stored):
        return []
    return [(key, _record(key, _TYPE_COLUMN_STATS, stats)) for key, stats in stored]


def partition_stats_records(
    partition: str, ranges: Sequence[ColumnRange], version: IndexVersion
) -> Iterator[KeyedRecord]:
    """One record for each column over all files that a write added to a partition; Hudi merges it into the older one.
    None for a column without rows, or with bounds that cannot be stored: Hudi has no such columns in
    `partition_stats`."""
    for found in ranges:
        stats = _stats(partition, found, version)
        if found.values and stats is not None:
            key = partition_stats_key(found.column, partition)
            yield key, _record(key, _TYPE_PARTITION_STATS, stats)


def expression_record(said: Expression, partition: str, found: ColumnRange, file_name: str = "") -> KeyedRecord | None:
    """The record of one file in an expression index; without a `file_name` that of a partition. None: its values have
    no bounds that can be stored."""
    of_column = replace(found, column=said.column)
    stats = None if found.unknown else _stats(file_name or partition, of_column, said.version)
    if stats is None:
        return None
    if file_name:
        key = column_stats_key(said.column, partition, file_name)
    else:
        key = expression_stats_key(said.column, partition)
    return key, _record(key, _TYPE_COLUMN_STATS if file_name else _TYPE_PARTITION_STATS, stats)


def bloom_filter_record(partition: str, file_name: str, instant: str, bloom: BloomFilter) -> KeyedRecord:
    """The filter of a new base file that `instant` wrote."""
    key, text = bloom_filter_key(partition, file_name), bloom.text.encode()
    fields = {"type": bloom.type_code, "timestamp": instant, "bloomFilter": text, "isDeleted": False}
    return key, {"key": key, "type": _TYPE_BLOOM_FILTERS, "BloomFilterMetadata": fields}


def _record(key: str, kind: int, stats: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"key": key, "type": kind, "ColumnStatsMetadata": stats}


def _stats(name: str, found: ColumnRange, version: IndexVersion) -> dict[str, Any] | None:
    """The statistics; None if a bound cannot be stored."""
    low = None if found.low is None else found.type.low_bound(found.low, version)
    high = None if found.high is None else found.type.high_bound(found.high, version)
    if (low is None, high is None) != (found.low is None, found.high is None):
        return None
    return {
        "fileName": name,
        "columnName": found.column,
        "minValue": low,
        "maxValue": high,
        "nullCount": found.nulls,
        "valueCount": found.values,
        "totalSize": found.bytes_,
        "totalUncompressedSize": found.uncompressed,
        "isDeleted": False,
        "isTightBound": False,
        "valueType": found.type.type_info() if version is IndexVersion.V2 else None,
    }


@dataclass(frozen=True, slots=True)
class _Known:
    """A file's partition, its name, and what is known about it; `bloom`: the filter of a base file, if it has one."""

    partition: str
    name: str
    ranges: tuple[ColumnRange, ...]
    bloom: BloomFilter | None


def index_records(
    table: Table, files: Sizes, instant: str, measure: Measure | None, wanted: Collection[str], measured: Measured
) -> Iterator[tuple[str, KeyedRecord | None]]:
    """The records for the `wanted` index partitions, each with its partition; records of files before partition stats.
    `measured`: ranges that are known already. A file is read if its ranges are unknown, or known for other columns than
    the needed ones. A base file without a bloom filter gets no filter record. None for a record: an expression index
    cannot hold the values."""
    columns = [] if measure is None else [(c.name, c.type) for c in measure.columns]
    expressions = () if measure is None else measure.expressions
    said = {one.name: one for one in expressions if one.partition in wanted}
    plain = frozenset(() if measure is None else measure.names)

    def known(place: tuple[str, str]) -> _Known | None:
        partition, text = place
        path, name = join(partition, text), parse_data_file(text)
        if name is None or (isinstance(name, LogFileName) and name.is_cdc):
            return None
        ranges = measured.get(path, ())
        if measure is not None and [(r.column, r.type) for r in ranges] != columns:
            ranges = measure.file(table.storage, path, text)
        is_asked = isinstance(name, BaseFileName) and BLOOM_FILTERS in wanted
        return _Known(partition, text, tuple(ranges), _bloom(table.storage, path) if is_asked else None)

    of_partition: defaultdict[str, tuple[ColumnRange, ...]] = defaultdict(tuple)
    places = [(partition, name) for partition, names in files.items() for name in names]
    for found in prefetched(places, known):
        if found is None:
            continue
        own = {r.column: r for r in found.ranges}
        if COLUMN_STATS in wanted and measure is not None:
            of_columns = [r for r in found.ranges if r.column in plain]
            for keyed in column_stats_records(found.partition, found.name, of_columns, measure.version):
                yield COLUMN_STATS, keyed
        for one in said.values():
            if one.name in own:
                yield one.partition, expression_record(one, found.partition, own[one.name], found.name)
            elif isinstance(parse_data_file(found.name), BaseFileName):  # a log file may be of updates of other columns
                yield one.partition, None
        if found.bloom is not None:
            yield BLOOM_FILTERS, bloom_filter_record(found.partition, found.name, instant, found.bloom)
        of_partition[found.partition] = merged_ranges([of_partition[found.partition], found.ranges])
    for partition, ranges in of_partition.items():
        if PARTITION_STATS in wanted and measure is not None:
            of_columns = [r for r in ranges if r.column in plain]
            for keyed in partition_stats_records(partition, of_columns, measure.version):
                yield PARTITION_STATS, keyed
        for r in (r for r in ranges if r.column in said):
            yield said[r.column].partition, expression_record(said[r.column], partition, r)


def _bloom(storage: Storage, path: str) -> BloomFilter | None:
    with storage.open_input(path, whole=False) as source, readable("file", path):
        footer = pq.read_metadata(source).metadata or {}
    text, code = footer.get(b"org.apache.hudi.bloomfilter"), footer.get(b"hoodie_bloom_filter_type_code")
    return None if text is None or code is None else BloomFilter(code.decode(), text.decode())
