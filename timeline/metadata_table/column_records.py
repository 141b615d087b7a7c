"""Records of `column_stats`, `partition_stats` and `bloom_filters`: made for a write, and read as bounds of files.

Fields are named as in HoodieMetadataRecord. Fields that an older schema lacks (0.15 has no `isTightBound` and no
`valueType`) are left out when a record is written; fields that are not set here are null. Hudi merges two records of
one key like this (HoodieTableMetadataUtil.mergeColumnStatsRecords): a new record that is deleted or tight replaces the
old one; otherwise bounds are widened and counts added. So `partition_stats` records of a write need not include older
values: they are not tight.

A reader loses rows if a bound is too narrow. So bounds are read only for types with unambiguous stored values:
integers, dates, texts, and timestamps where the record names the unit (index version 2). There are no bounds for floats
(NaN; zeros of two signs), decimals, bytes, values of another type than the column has now, and dates and times so old
that Hudi may have read them in the old calendar from a footer. Hudi compares texts of log files by UTF-16 code units,
and texts of base files by UTF-8 bytes. The two orders agree on which texts lie between two bounds only if no unit of a
bound is a surrogate or above one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..codec.bloom import BloomFilter
from ..codec.calendar import first_alike
from ..codec.parquet_read import readable
from ..filter.possible import UNKNOWN, Bounds
from ..format.file_name import BaseFileName, LogFileName, parse_data_file
from ..storage.contract import Storage
from ..storage.folders import join
from ..table.table import Table
from .column_range import ColumnRange, merged_ranges
from .indexed_columns import IndexVersion, Kind, ValueType
from .measure import Measure, Measured
from .records.keys import (
    BLOOM_FILTERS,
    COLUMN_STATS,
    PARTITION_STATS,
    MetadataRecord,
    Sizes,
    bloom_filter_key,
    column_stats_key,
    partition_stats_key,
)

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


_WRAPPERS = {
    pa.int32(): ("IntWrapper",),
    pa.int64(): ("LongWrapper", "IntWrapper"),  # a column may have become a long
    pa.string(): ("StringWrapper",),
}
_NAMED = (
    Kind.DATE,
    Kind.TIMESTAMP_MILLIS,
    Kind.TIMESTAMP_MICROS,
    Kind.LOCAL_TIMESTAMP_MILLIS,
    Kind.LOCAL_TIMESTAMP_MICROS,
)
"""Types whose values are stored as integers, so that the record must also name the type."""
_SURROGATES = "\ud800"


def stats_bounds(record: MetadataRecord | None, kind: pa.DataType) -> Bounds:
    """The known bounds of a column of this type (the table's) in the record's file; None: there is no record."""
    stats = (record or {}).get("ColumnStatsMetadata")
    if stats is None or stats.get("isDeleted"):
        return UNKNOWN
    rows, nulls = stats.get("valueCount"), stats.get("nullCount")
    if rows is None or nulls is None or rows < 0 or nulls < 0:
        return UNKNOWN
    low, high = (_value(stats.get(name), stats.get("valueType"), kind) for name in ("minValue", "maxValue"))
    if low is None or high is None:
        return UNKNOWN
    return Bounds(low=low, high=high, nulls=nulls > 0)


def _value(wrapped: Any, named: Any, kind: pa.DataType) -> int | str | None:
    """A bound in the form of `filter.possible.comparable`; None if it is uncertain."""
    if not isinstance(wrapped, tuple):
        return None
    wrapper, value = wrapped[0].rpartition(".")[2], wrapped[1].get("value")
    found = ValueType.of(kind)
    if found is not None and found.kind in _NAMED:
        of_kind = isinstance(named, dict) and named.get("typeOrdinal") == found.kind
        certain = of_kind and wrapper in ("IntWrapper", "LongWrapper") and isinstance(value, int)
        return value if certain and value >= first_alike(kind) else None
    if wrapper not in _WRAPPERS.get(kind, ()):
        return None
    if isinstance(value, str):
        return value if all(unit < _SURROGATES for unit in value) else None
    return value if isinstance(value, int) else None


_THREADS = 8


@dataclass(frozen=True, slots=True)
class _Known:
    """A file's partition, its name, and what is known about it; `bloom`: the filter of a base file, if it has one."""

    partition: str
    name: str
    ranges: tuple[ColumnRange, ...]
    bloom: BloomFilter | None


def index_records(
    table: Table, files: Sizes, instant: str, measure: Measure | None, wanted: Collection[str], measured: Measured
) -> Iterator[tuple[str, KeyedRecord]]:
    """The records for the `wanted` index partitions, each with its partition; records of files before partition stats.
    `measured`: ranges that are known already. A file is read if its ranges are unknown, or known for other columns than
    the needed ones. A base file without a bloom filter gets no filter record."""
    columns = [] if measure is None else [(c.name, c.type) for c in measure.columns]

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
    with ThreadPoolExecutor(_THREADS) as pool:
        for found in pool.map(known, places):
            if found is None:
                continue
            if COLUMN_STATS in wanted and measure is not None:
                for keyed in column_stats_records(found.partition, found.name, found.ranges, measure.version):
                    yield COLUMN_STATS, keyed
            if found.bloom is not None:
                yield BLOOM_FILTERS, bloom_filter_record(found.partition, found.name, instant, found.bloom)
            of_partition[found.partition] = merged_ranges([of_partition[found.partition], found.ranges])
    if PARTITION_STATS in wanted and measure is not None:
        for partition, ranges in of_partition.items():
            for keyed in partition_stats_records(partition, ranges, measure.version):
                yield PARTITION_STATS, keyed


def _bloom(storage: Storage, path: str) -> BloomFilter | None:
    with storage.open_input(path, whole=False) as source, readable("file", path):
        footer = pq.read_metadata(source).metadata or {}
    text, code = footer.get(b"org.apache.hudi.bloomfilter"), footer.get(b"hoodie_bloom_filter_type_code")
    return None if text is None or code is None else BloomFilter(code.decode(), text.decode())
