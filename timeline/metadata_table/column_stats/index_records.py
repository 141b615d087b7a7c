"""The records of new files in the index partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow.parquet as pq

from ...format.file_name import BaseFileName, LogFileName, parse_data_file
from ...parquet.bloom import BloomFilter
from ...parquet.read import readable
from ...storage.contract import Storage
from ...storage.folders import join
from ...table.table import Table
from ..records.files import Sizes
from ..records.partitions import BLOOM_FILTERS, COLUMN_STATS, PARTITION_STATS
from .column_range import ColumnRange, merged_ranges
from .measure import Measure, Measured
from .records import KeyedRecord, bloom_filter_record, column_stats_records, partition_stats_records

_THREADS = 8


@dataclass(frozen=True, slots=True)
class _Known:
    """A file's partition, its name, and what is known about it; `bloom`: of a base file that has a filter."""

    partition: str
    name: str
    ranges: tuple[ColumnRange, ...]
    bloom: BloomFilter | None


def index_records(
    table: Table, files: Sizes, instant: str, measure: Measure | None, wanted: Collection[str], measured: Measured
) -> Iterator[tuple[str, KeyedRecord]]:
    """The records for the `wanted` index partitions, each with its partition: file by file, those of partitions last.

    `measured`: ranges that are known already. A file is read if its ranges are not known, or are known for other
    columns than are needed now. A base file without a bloom filter gets no filter record.
    """
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
