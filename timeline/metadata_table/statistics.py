"""What the index partitions are told of new files: read from the files, in their places already."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow.parquet as pq

from timeline.bloom import BloomFilter
from timeline.errors import MissingFileError
from timeline.file_name import BaseFileName, LogFileName, parse_data_file
from timeline.metadata_table.column_range import ColumnRange, merged_ranges
from timeline.metadata_table.file_ranges import ranges_of_log, ranges_of_parquet
from timeline.metadata_table.files_records import Sizes
from timeline.metadata_table.indexed_columns import INDEX_DEFINITIONS, columns_to_index, index_version
from timeline.metadata_table.partitions import BLOOM_FILTERS, COLUMN_STATS, PARTITION_STATS
from timeline.metadata_table.stats_records import (
    Keyed,
    bloom_filter_record,
    column_stats_records,
    partition_stats_records,
)
from timeline.parquet_input import readable
from timeline.rollback_traces import join
from timeline.table import Table, TableSchema

_THREADS = 8


@dataclass(frozen=True, slots=True)
class _Known:
    """A file's place and what was read of it; `bloom` of a base file that has one."""

    partition: str
    name: str
    ranges: tuple[ColumnRange, ...]
    bloom: BloomFilter | None


def index_records(
    table: Table, files: Sizes, instant: str, schema: TableSchema, wanted: Collection[str]
) -> Iterator[tuple[str, Keyed]]:
    """Records with their index partitions, of those that are `wanted`; file by file, partitions' own at the end.

    `schema`: that of the files' newest rows. A base file without a bloom filter has no record of one.
    """
    definitions = _index_definitions(table)
    version = index_version(definitions, table.config.version)
    columns = columns_to_index(schema.file_text, definitions, table.config.version)
    measured = bool({COLUMN_STATS, PARTITION_STATS} & set(wanted))

    def read(place: tuple[str, str]) -> _Known | None:
        partition, text = place
        path, name = join(partition, text), parse_data_file(text)
        if isinstance(name, LogFileName):
            if name.is_cdc or not measured:
                return None
            as_text = table.layout.float_text_in_logs
            with table.storage.open_input(path) as source:
                return _Known(
                    partition, text, ranges_of_log(source, path, columns, schema.arrow, float_as_text=as_text), None
                )
        if not isinstance(name, BaseFileName):
            return None
        with table.storage.open_input(path) as source:
            ranges = ranges_of_parquet(source, path, columns) if measured else ()
        return _Known(partition, text, ranges, _bloom(table, path) if BLOOM_FILTERS in wanted else None)

    of_partition: defaultdict[str, tuple[ColumnRange, ...]] = defaultdict(tuple)
    places = [(partition, name) for partition, names in files.items() for name in names]
    with ThreadPoolExecutor(_THREADS) as pool:
        for known in pool.map(read, places):
            if known is None:
                continue
            if COLUMN_STATS in wanted:
                for keyed in column_stats_records(known.partition, known.name, known.ranges, version):
                    yield COLUMN_STATS, keyed
            if known.bloom is not None:
                yield BLOOM_FILTERS, bloom_filter_record(known.partition, known.name, instant, known.bloom)
            of_partition[known.partition] = merged_ranges([of_partition[known.partition], known.ranges])
    if PARTITION_STATS in wanted:
        for partition, ranges in of_partition.items():
            for keyed in partition_stats_records(partition, ranges, version):
                yield PARTITION_STATS, keyed


def _index_definitions(table: Table) -> bytes | None:
    try:
        return table.storage.read(INDEX_DEFINITIONS)
    except MissingFileError:
        return None


def _bloom(table: Table, path: str) -> BloomFilter | None:
    with table.storage.open_input(path) as source, readable("file", path):
        said = {k.decode(): v.decode() for k, v in (pq.read_metadata(source).metadata or {}).items() if b"bloom" in k}
    text, code = said.get("org.apache.hudi.bloomfilter"), said.get("hoodie_bloom_filter_type_code")
    return BloomFilter(code or "SIMPLE", text) if text is not None else None
