"""Column statistics and filters as we make them are those that real Hudi writes for the same files, or better."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase import writer
from phantombase.timeline.codec.arrow_schema import arrow_schema
from phantombase.timeline.codec.bloom import BloomFilter
from phantombase.timeline.metadata_table.column_range import ColumnRange, merged_ranges
from phantombase.timeline.metadata_table.index_definitions import INDEX_DEFINITIONS
from phantombase.timeline.metadata_table.indexed_columns import (
    IndexedColumn,
    IndexVersion,
    columns_to_index,
    index_version,
)
from phantombase.timeline.metadata_table.measure import (
    KeyedRecord,
    bloom_filter_record,
    column_stats_records,
    partition_stats_records,
    ranges_of_log,
    ranges_of_parquet,
)
from phantombase.timeline.metadata_table.read import read_entries
from phantombase.timeline.table.table import Table, open_metadata_table
from tests.hudi.cases.shared_table import EVENT_TIME, SharedTable
from tests.hudi.judge.client import Judge
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop

Stored: TypeAlias = tuple[str, KeyedRecord, bool]
"""(partition of the metadata table, record and its key, whether it is of a base file)."""

METADATA = EVENT_TIME | {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.cleaner.commits.retained": 1,
}
WORDS = ("\ufffd", "\U0001f600", "a")

WRONG = {"nan": {"minValue", "maxValue"}, "small_nan": {"minValue", "maxValue"}, "nothing": {"minValue", "maxValue"}}
"""Hudi's bounds of base files that hold not what is there: 0.0 to 0.0 for floats with a NaN, 0 to 0 for nulls. Those of
its log files have NaN."""
LONG = {"minValue", "maxValue", "nullCount"}
"""What Hudi has lost of base files with texts beyond 4 KiB: it says that all are null."""
UTF16 = {"maxValue"}
"""Hudi merges the bounds of a partition's files by UTF-16 units, which puts U+FFFD above U+1F600; Spark does not."""
NESTED = {"struct", "list", "map"}
"""Hudi 0.15 has records of these in log files, without bounds."""


def typed_rows(ids: Sequence[int], ts: int) -> pa.Table:
    """A column of each type that Spark can write, every seventh value null."""

    def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if i % 7 == 3 else value for i, value in zip(ids, values, strict=True)], kind)

    cents = [Decimal(i) / 100 - 1 for i in ids]
    nans = [math.nan if i % 5 == 0 else float(i) for i in ids]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "ts": pa.array([ts] * len(ids), pa.int64()),
            "p": ["odd" if i % 2 else "even" for i in ids],
            "flag": column([i % 3 == 0 for i in ids], pa.bool_()),
            "short": column(ids, pa.int16()),
            "int": column([i * ts for i in ids], pa.int32()),
            "float": column([i / 3 for i in ids], pa.float32()),
            "double": column([-i / 3 for i in ids], pa.float64()),
            "nan": column(nans, pa.float64()),
            "small_nan": column(nans, pa.float32()),
            "text": column([WORDS[i % 3] + str(i) for i in ids], pa.string()),
            "long_text": column([str(i) * 5000 for i in ids], pa.string()),
            "bytes": column([bytes([i]) + b"x" for i in ids], pa.binary()),
            "day": column([i - 5 for i in ids], pa.date32()),
            "at": column([i * 1_000_001 - 5 for i in ids], pa.timestamp("us", tz="UTC")),
            "dec": column(cents, pa.decimal128(10, 2)),
            "wide": column(cents, pa.decimal128(30, 15)),
            "wider": column(cents, pa.decimal128(38, 18)),
            "nothing": pa.nulls(len(ids), pa.int32()),
            "struct": [{"a": i} for i in ids],
            "list": [[i] for i in ids],
            "map": pa.array([[("k", i)] for i in ids], pa.map_(pa.string(), pa.int32())),
        }
    )


@pytest.mark.parametrize(
    ("version", "partition_field"),
    [(9, "p"), deep(8, None), deep(6, None), deep(9, None), deep(8, "p"), deep(6, "p")],
    indirect=["version"],
    ids=lambda value: f"v{value}" if isinstance(value, int) else "partitions" if value else "no partitions",
)
def test_records_are_hudis(judge: Judge, version: int, partition_field: str | None, tmp_path: Path) -> None:
    """Of base files, logs of rows and logs of deletes; of partitions; and of filters."""
    table = SharedTable(
        judge=judge, path=tmp_path / "table", version=version, options=METADATA, partition_field=partition_field
    )
    table.create(typed_rows(range(40), 1))
    table.upsert(typed_rows(range(0, 40, 3), 2))
    table.upsert(typed_rows(range(0, 40, 5), 3))
    table.delete(typed_rows(range(4), 4))
    there = _files(table.path)
    _check(table, there, deleted=set())

    table.hudi_schedules()
    table.hudi_compacts()
    for ts in (5, 6):
        table.upsert(typed_rows(range(0, 40, 7), ts))
    judge.clean(table.path, options=METADATA)
    left = _files(table.path)
    deleted = there - left
    assert deleted
    _check(table, left, deleted)


def test_rows_with_nan_are_found_in_our_base_files(judge: Judge, version: int, tmp_path: Path) -> None:
    """NaN is greater than all numbers in Spark, and no statistics of a row group may say otherwise."""
    path = tmp_path / "table"
    rows = pa.table({"id": [1, 2, 3], "ts": [1, 1, 1], "x": [1.0, math.nan, 2.0]})
    writer(rows).table("nans", version=version).key("id").ordering("ts").upsert(str(path))
    judge.sql(f"create table nans_{version} using hudi location '{path}'")
    found = judge.sql(f"select id from nans_{version} where x > 5")
    judge.sql(f"drop table nans_{version}")
    assert found == [{"id": 2}]


@versions(deep=(9,))
def test_files_with_nan_are_not_skipped(judge: Judge, version: int, tmp_path: Path) -> None:
    """By the statistics of our base files and logs: Hudi finds what it finds without them."""
    options = {**METADATA, "hoodie.index.type": "SIMPLE"}
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=options)
    values = {"a": [1.0, math.nan, 2.0], "b": [0.0, -1.0, 0.5], "c": [math.nan, math.nan, None]}

    def rows(part: str) -> pa.Table:
        ids = [f"{part}{i}" for i in range(3)]
        return pa.table({"id": ids, "p": [part] * 3, "ts": [1] * 3, "x": values[part]})

    table.create(rows("b"))
    for part in "acb":
        table.writer(rows(part)).upsert(str(table.path))
    for where in ("x > 1.5", "x = 2.0", "x >= 1.0", "x < 0.25", "x <> 2.0", "x <> double('inf')", "isnan(x)"):
        asked = [{"hoodie.metadata.enable": "true", "hoodie.enable.data.skipping": on} for on in ("true", "false")]
        found = [sorted(judge.select(table.path, ["id"], where=where, options=one).rows) for one in asked]
        assert found[0] == found[1], where


def _check(table: SharedTable, files: set[Path], deleted: set[Path]) -> None:
    data = table.open()
    hudis: dict[tuple[str, str], Mapping[str, Any]] = {
        (partition, key): entry
        for partition in data.config.built_metadata_partitions
        if partition != "files"
        for key, entry in read_entries(data, partition)
    }
    ours = _as_stored(data, _our_records(table, files))
    for place in hudis.keys() - ours.keys():
        stats = hudis[place].get("ColumnStatsMetadata") or hudis[place]["BloomFilterMetadata"]
        left_over = stats["isDeleted"] or stats["fileName"] in {file.name for file in deleted}
        assert left_over or stats["columnName"] in NESTED, f"Hudi has more of {place}: {stats}"
    for place, (entry, is_base) in ours.items():
        assert place in hudis, f"Hudi has nothing of {entry}"
        _compare(entry, hudis[place], is_base)


def _compare(ours: Mapping[str, Any], hudis: Mapping[str, Any], is_base: bool) -> None:
    assert ours["type"] == hudis["type"]
    if ours["type"] == 4:
        assert ours["BloomFilterMetadata"] == hudis["BloomFilterMetadata"]
        return
    mine, other = ours["ColumnStatsMetadata"], hudis["ColumnStatsMetadata"]
    unequal = {name for name in other if repr(_zero(mine[name])) != repr(_zero(other[name]))} - {"isTightBound"}
    if not mine["valueCount"]:
        unequal -= {"valueType"}  # where there is no value Hudi says of what type: none
    is_partition = ours["type"] == 6
    if is_base or is_partition or mine["columnName"] in ("nan", "small_nan"):
        unequal -= WRONG.get(mine["columnName"], set())
    if is_base or is_partition:
        unequal -= LONG if mine["columnName"] == "long_text" else set()
    if is_partition and mine["columnName"] == "text":
        unequal -= UTF16
    assert not unequal, f"{ {name: (mine[name], other[name]) for name in unequal} } of {mine}"
    if is_base and mine["columnName"] in ("nan", "small_nan"):
        assert not mine["minValue"][1]["value"] <= 0
        assert mine["maxValue"][1]["value"] == math.inf


def _zero(value: Any) -> Any:
    """Of a bound that is -0.0: 0.0."""
    return (value[0], {"value": 0.0}) if isinstance(value, tuple) and value[1] == {"value": 0.0} else value


def _our_records(table: SharedTable, files: set[Path]) -> Iterator[Stored]:
    data, (columns, stored) = table.open(), _columns(table)
    schema = arrow_schema(data.snapshot().newest_schema().file_text)
    of_partition: dict[str, list[Sequence[ColumnRange]]] = {}
    for file in sorted(files):
        path = file.relative_to(table.path).as_posix()
        folder, is_base = path.rpartition("/")[0], file.suffix == ".parquet"
        with pa.OSFile(str(file)) as source:
            of_parquet = is_base and ranges_of_parquet(source, path, columns)
            ranges = of_parquet or ranges_of_log(source, path, columns, schema)
        of_partition.setdefault(folder, []).append(ranges)
        for keyed in column_stats_records(folder, file.name, ranges, stored):
            yield "column_stats", keyed, is_base
        if is_base:
            said = {name.decode(): value.decode() for name, value in pq.ParquetFile(file).metadata.metadata.items()}
            bloom = BloomFilter(said["hoodie_bloom_filter_type_code"], said["org.apache.hudi.bloomfilter"])
            instant = file.stem.rpartition("_")[2]
            yield "bloom_filters", bloom_filter_record(folder, file.name, instant, bloom), True
    if "partition_stats" in data.config.built_metadata_partitions:
        for folder, parts in of_partition.items():
            for keyed in partition_stats_records(folder, merged_ranges(parts), stored):
                yield "partition_stats", keyed, False


def _columns(table: SharedTable) -> tuple[tuple[IndexedColumn, ...], IndexVersion]:
    definitions = table.path / INDEX_DEFINITIONS
    content = definitions.read_bytes() if definitions.exists() else None
    data = table.open()
    schema_text = data.snapshot().newest_schema().file_text
    return columns_to_index(schema_text, content, table.version), index_version(content, table.version)


def _as_stored(table: Table, records: Iterator[Stored]) -> dict[tuple[str, str], tuple[Mapping[str, Any], bool]]:
    """The records as they are read again, written under the metadata table's own schema."""
    metadata = open_metadata_table(table)
    schema = fastavro.parse_schema(json.loads(metadata.newest_schema().commit_text))
    found = {}
    for partition, (key, record), is_base in records:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, record)
        stream.seek(0)
        read: Any = fastavro.schemaless_reader(
            stream, schema, None, return_record_name=True, return_record_name_override=True
        )
        found[partition, key] = (read, is_base)
    return found


def _files(path: Path) -> set[Path]:
    """The data files."""
    return {
        file
        for file in path.rglob("*")
        if file.is_file()
        and ".hoodie" not in file.parts
        and (file.suffix == ".parquet" or ".log." in file.name)
        and not file.name.endswith(".crc")
    }
