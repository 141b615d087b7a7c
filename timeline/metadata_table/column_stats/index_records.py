"""What the index partitions are told of new files."""

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
    """A file's place and what is known of it; `bloom` of a base file that has one."""

    partition: str
    name: str
    ranges: tuple[ColumnRange, ...]
    bloom: BloomFilter | None


def index_records(
    table: Table, files: Sizes, instant: str, measure: Measure | None, wanted: Collection[str], measured: Measured
) -> Iterator[tuple[str, KeyedRecord]]:
    """Records with their index partitions, of those that are `wanted`; file by file, partitions' own at the end.

    `measured`: what is known; other files, and those of which other columns are known than are asked for now, are read,
    in their places. A base file without a bloom filter has no record of one.
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
    with storage.open_input(path) as source, readable("file", path):
        said = pq.read_metadata(source).metadata or {}
    text, code = said.get(b"org.apache.hudi.bloomfilter"), said.get(b"hoodie_bloom_filter_type_code")
    return None if text is None or code is None else BloomFilter(code.decode(), text.decode())
