"""Records of `column_stats`, `partition_stats` and `bloom_filters`, by the field names of HoodieMetadataRecord (pure).

Fields that an older schema lacks (0.15 has no `isTightBound` and no `valueType`) are left out when a record is written;
fields that are not set here are null. Hudi merges two records of one key like this (HoodieTableMetadataUtil
.mergeColumnStatsRecords): a new record that is deleted or tight replaces the old one; otherwise bounds are widened and
counts added. So `partition_stats` records of a write need not include older values: they are not tight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...parquet.bloom import BloomFilter
from ..records.keys import MetadataRecord, bloom_filter_key, column_stats_key, partition_stats_key
from .column_range import ColumnRange
from .indexed_columns import IndexedColumn
from .value_type import IndexVersion, Kind, ValueType

KeyedRecord = tuple[str, MetadataRecord]
"""A record and its key."""

COLUMN_STATS, BLOOM_FILTERS, PARTITION_STATS = 3, 4, 6
"""Field `type` of a record (Hudi MetadataPartitionType)."""

_UNKNOWN = -1
_NO_TYPE = ValueType(Kind.NULL)


def column_stats_records(
    partition: str, file_name: str, ranges: Sequence[ColumnRange], version: IndexVersion
) -> list[KeyedRecord]:
    """One record for each column of a new file, even of a file without rows (as in Hudi for a log file of deletes).

    No records at all if the bounds of one column cannot be stored: a reader never skips a file without records, but it
    may skip a file of which only some records are missing.
    """
    stored = [(column_stats_key(r.column, partition, file_name), _stats(file_name, r, version)) for r in ranges]
    if any(stats is None for _, stats in stored):
        return []
    return [(key, _record(key, COLUMN_STATS, stats)) for key, stats in stored]


def deleted_column_stats_records(
    partition: str, file_name: str, columns: Sequence[IndexedColumn], version: IndexVersion
) -> Iterator[KeyedRecord]:
    """One record for each column of a file that was deleted, as Hudi 0.15 writes them.

    1.x deletes the keys from the metadata table instead, and ignores such records.
    """
    for column in columns:
        key = column_stats_key(column.name, partition, file_name)
        stats = {
            "fileName": file_name,
            "columnName": column.name,
            "minValue": None,
            "maxValue": None,
            "nullCount": _UNKNOWN,
            "valueCount": _UNKNOWN,
            "totalSize": _UNKNOWN,
            "totalUncompressedSize": _UNKNOWN,
            "isDeleted": True,
            "isTightBound": False,
            "valueType": _type_info(_NO_TYPE, version),
        }
        yield key, _record(key, COLUMN_STATS, stats)


def partition_stats_records(
    partition: str, ranges: Sequence[ColumnRange], version: IndexVersion
) -> Iterator[KeyedRecord]:
    """One record for each column over all files that a write added to a partition; Hudi merges it into the older one.

    None for a column without rows, or with bounds that cannot be stored: Hudi has no such columns in `partition_stats`.
    """
    for found in ranges:
        stats = _stats(partition, found, version)
        if found.values and stats is not None:
            key = partition_stats_key(found.column, partition)
            yield key, _record(key, PARTITION_STATS, stats)


def bloom_filter_record(partition: str, file_name: str, instant: str, bloom: BloomFilter) -> KeyedRecord:
    """The filter of a new base file that `instant` wrote."""
    return _bloom(partition, file_name, instant, bloom.type_code, bloom.text.encode(), is_deleted=False)


def deleted_bloom_filter_record(partition: str, file_name: str, instant: str) -> KeyedRecord:
    """The record of a base file that `instant` deleted."""
    return _bloom(partition, file_name, instant, "", b"", is_deleted=True)


def _bloom(partition: str, name: str, instant: str, type_code: str, text: bytes, *, is_deleted: bool) -> KeyedRecord:
    key = bloom_filter_key(partition, name)
    bloom = {"type": type_code, "timestamp": instant, "bloomFilter": text, "isDeleted": is_deleted}
    return key, {"key": key, "type": BLOOM_FILTERS, "BloomFilterMetadata": bloom}


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
        "valueType": _type_info(found.type, version),
    }


def _type_info(kind: ValueType, version: IndexVersion) -> dict[str, Any] | None:
    return kind.type_info() if version is IndexVersion.V2 else None
