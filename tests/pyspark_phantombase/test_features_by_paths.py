"""Every feature of a table on every path that reads it: the rows of `read`, whichever way they come.

Spark's own reader is played by pyarrow, which finds columns by their name of today as well. No JVM runs."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase import ExecuteOptions, Executor, compact, read, read_table, schedule, writer
from phantombase.compactor_daemon.cli.main import app as daemon_app
from phantombase.timeline.audit.validate import all_files, repair_times
from phantombase.timeline.cli.main import app as timeline_app
from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import DataFile, FileSlice
from pyspark_phantombase.batch_reader import (
    BatchReader,
    SlicePartition,
    _planned,
    only_base,
    parted,
    plan_tasks,
    read_alike,
    table_columns,
    task_batches,
)
from pyspark_phantombase.options import source_options
from tests.support.compare_rows import assert_same_rows
from tests.support.evolved_tables import alter, columns_of, renamed
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep

Rows = list[str]


def golden(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = unzip_golden(name, folder)
        table = Table.open(str(path))
        repair_times(table, all_files(table))  # unpacking has changed them, and they count on version 6
        return path

    return make


def evolved(name: str, **names: str) -> Callable[[Path], Path]:
    """Columns under other names, and one dropped whose name a new one has."""

    def make(folder: Path) -> Path:
        path = unzip_golden(name, folder)
        table = Table.open(str(path))
        columns = [one for one in renamed(columns_of(table), **names) if one["name"] != "n"]
        alter(table, [*columns, {"id": 40, "name": "n", "avro": ["null", "long"]}])
        return path

    return make


def replaced(folder: Path) -> Path:
    """File groups that were replaced, a deletion, and base files alone."""
    path = folder / "t"
    rows = {"id": ["a", "b", "c", "d"], "p": ["x", "x", "y", "z"], "ts": [1] * 4}
    described = writer(pa.table(rows)).table("t").key("id").partition("p").ordering("ts")
    described.bulk_insert(str(path))
    writer(pa.table({"id": ["e"], "p": ["x"], "ts": [2]})).insert_overwrite(str(path))
    writer(pa.table({"id": ["d"], "p": ["z"]})).delete(str(path))
    return path


def without_meta_columns(folder: Path) -> Path:
    """Virtual keys as they are written here: updates in log files and a base file alone."""
    path = folder / "t"
    rows = {"id": ["a", "b", "c", "d"], "p": ["x", "x", "y", "z"], "ts": [1] * 4, "fare": [0.5, None, 2.5, 3.5]}
    described = (
        writer(pa.table(rows))
        .table("t")
        .conf({"hoodie.populate.meta.fields": "false"})
        .key("id")
        .partition("p")
        .ordering("ts")
    )
    described.bulk_insert(str(path))
    writer(pa.table({"id": ["a", "e"], "p": ["x", "y"], "ts": [2, 2], "fare": [9.5, 9.5]})).upsert(str(path))
    return path


FEATURES = {
    "pending compaction": golden("v9_pending"),
    "nested types": golden("v9_types"),
    "virtual keys": golden("v9_virtual_keys"),
    "virtual keys of ours": without_meta_columns,
    "replaced groups": replaced,
    "other names": evolved("v9_plain", city="town", fare="price"),
    "exchanged names": evolved("v9_pending", city="p2", id="id"),
}
OF_VERSION_6 = {
    "pending compaction": golden("v6_pending"),
    "other names": evolved("v6_plain", city="town"),
    "virtual keys": golden("v6_virtual_keys"),
}


def plain(batches: Iterable[pa.RecordBatch | pa.Table], columns: list[str]) -> Rows:
    """Rows in one order, as texts; names of files are left out."""
    kept = [name for name in columns if not name.startswith("_hoodie_file")]
    return sorted(repr([row.get(name) for name in kept]) for one in batches for row in one.to_pylist())


def by_source(path: str, **options: str) -> Iterable[pa.RecordBatch]:
    given = source_options({"path": path, **options})
    columns = table_columns(given)
    return (batch for scan in plan_tasks(given, columns) for batch in task_batches(SlicePartition(scan), columns))


def by_frame(path: str) -> Iterable[pa.RecordBatch | pa.Table]:
    """As `spark_read`: what is left to Spark's own reader by name, and the rest."""
    given = source_options({"path": path})
    scan, native = _planned(given.open(), given)
    for one in parted(replace(scan, slices=tuple(s for s in scan.slices if s not in native)), given.task_bytes):
        yield from one.batches()
    for slice_ in native:
        assert slice_.base is not None
        yield pq.ParquetFile(f"{path}/{slice_.base.path}").read()


PATHS: dict[str, Callable[[str], Iterable[Any]]] = {
    "data source": by_source,
    "tasks of few bytes": lambda path: by_source(path, task_bytes="200000"),
    "Spark's own reader": by_frame,
    "filter that all rows pass": lambda path: by_source(path, filter="id is not null"),
}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("version", "feature"), [*((9, name) for name in FEATURES), *(deep(6, name) for name in OF_VERSION_6)]
)
def test_the_rows_are_those_of_a_read(version: int, feature: str, tmp_path: Path) -> None:
    """Before and after a compaction of ours, by which nothing of a row may change either."""
    path = str((FEATURES if version == 9 else OF_VERSION_6)[feature](tmp_path))
    truth = read(path).to_arrow()
    wanted = plain([truth], truth.column_names)
    for compacted in (False, True):
        if compacted:
            schedule(path, sole_writer=True)
            compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))
        for name, rows in PATHS.items():
            assert plain(rows(path), truth.column_names) == wanted, (name, compacted)
        assert CliRunner().invoke(timeline_app, ["validate", path]).exit_code == 0


@pytest.mark.parametrize("name", ["v9_plain", deep("v6_plain"), deep("v8_plain")])
def test_dropped_partition_columns_are_refused_on_every_path(name: str, tmp_path: Path) -> None:
    """Their values are in the names of folders alone, so a row that is read or written anew would lose them."""
    path = unzip_golden(name, tmp_path)
    properties = path / ".hoodie/hoodie.properties"
    text = re.sub(r"\n[^\n]*drop\.partition\.columns=[^\n]*", "", properties.read_text())
    properties.write_text(f"{text}\nhoodie.datasource.write.drop.partition.columns=true\n")
    (path / ".hoodie/.hoodie.properties.crc").unlink(missing_ok=True)
    rows = pa.table({"id": ["a"], "p": ["x"], "ts": [1]})
    steps: dict[str, Callable[[], Any]] = {
        **{way: partial(lambda rows_of: list(rows_of(str(path))), rows_of) for way, rows_of in PATHS.items()},
        "read": lambda: read(str(path)).to_arrow(),
        "feed": lambda: read(str(path), query="changes", begin="earliest").to_arrow(),
        "upsert": lambda: writer(rows).upsert(str(path)),
        "overwrite": lambda: writer(rows).insert_overwrite(str(path)),
        "schedule": lambda: schedule(str(path), sole_writer=True),
        "compact": lambda: compact(str(path), execute=ExecuteOptions(executor=Executor.LOCAL)),
    }
    for step in steps.values():
        with pytest.raises(UnsupportedError, match=r"dropped partition columns.*expected false; found true"):
            step()
    commands = {timeline_app: "show slices read validate audit", daemon_app: "schedule compact clean archive"}
    for app, names in commands.items():
        for command in names.split():
            found = CliRunner().invoke(app, [command, str(path), *(["--sole-writer"] if app is daemon_app else [])])
            assert "dropped partition columns" in f"{found.output}{found.exception}", command


# A large base file without logs is read by several tasks, each row once; one with logs by one task.


@pytest.fixture
def rides(tmp_path: Path) -> Path:
    """Two base files of 20 row groups each; only that of partition p0 has logs."""
    path = tmp_path / "rides"
    numbers = range(4000)
    rows = pa.table(
        {
            "id": [f"k{number}" for number in numbers],
            "ts": [0] * len(numbers),
            "fare": [number / 3 for number in numbers],
            "p": [f"p{number % 2}" for number in numbers],
        }
    )
    writer(rows).table("rides").key("id").ordering("ts").partition("p").bulk_insert(str(path))
    writer(rows.slice(0, 1).set_column(1, "ts", [[1]])).upsert(str(path))
    for base in path.rglob("*.parquet"):
        if ".hoodie" not in base.parts:
            pq.write_table(pq.read_table(base, partitioning=None), base, row_group_size=100)
    return path


def planned(path: Path, **options: str) -> tuple[list[SlicePartition], list[pa.Table]]:
    """The tasks of a query, and the rows of each."""
    given = source_options({"path": str(path), **options})
    columns = table_columns(given)
    tasks: list[Any] = BatchReader(given, columns).partitions()
    schema = next(batch for task in tasks for batch in task_batches(task, columns)).schema
    return tasks, [pa.Table.from_batches(task_batches(task, columns), schema=schema) for task in tasks]


@pytest.mark.spark
def test_each_row_once(rides: Path) -> None:
    one, whole = planned(rides)
    several, parts = planned(rides, task_bytes="20000")
    assert len(one) == 1
    assert len(several) > 4
    assert [len(task.scan.slices) for task in several] == [1] * len(several)
    assert [task.scan.share for task in several if task.scan.slices[0].logs] == [None]
    assert max(part.num_rows for part in parts) == 2000  # the slice with logs
    assert sorted(pa.concat_tables(parts).column("id").to_pylist()) == sorted(whole[0].column("id").to_pylist())
    assert_same_rows(pa.concat_tables(parts), read_table(rides))


@pytest.mark.spark
@pytest.mark.parametrize(
    "options",
    [
        {"filter": "fare > 100 and fare < 110"},
        {"query": "incremental", "begin": "earliest"},
        deep({"query": "read_optimized"}),
        deep({"columns": "fare", "filter": "id = 'k1001'"}),
    ],
    ids=lambda options: ",".join(options.values()),
)
def test_every_kind_of_query(rides: Path, options: dict[str, str]) -> None:
    _, whole = planned(rides, **options)
    several, parts = planned(rides, task_bytes="20000", **options)
    assert len(several) > 2
    wanted = sorted(map(str, pa.concat_tables(whole).to_pylist()))
    assert sorted(map(str, pa.concat_tables(parts).to_pylist())) == wanted
    assert wanted


@pytest.mark.spark
@pytest.mark.deep
def test_spark_reads_the_shares(spark: Any, rides: Path) -> None:
    frame = spark.read.format("phantombase").option("task_bytes", "20000").load(str(rides))
    assert frame.selectExpr("spark_partition_id() task").distinct().count() > 2
    assert_same_rows(frame.toArrow(), read_table(rides))


# What is left to Spark's own reader, and what never is.


UTC = pa.timestamp("us", "UTC")


def file_of(fields: list[pa.Field], **options: Any) -> pq.ParquetFile:
    out = io.BytesIO()
    pq.write_table(pa.schema(fields).empty_table(), out, **options)
    return pq.ParquetFile(out)


ID, FARE = pa.field("id", pa.string(), nullable=False), pa.field("fare", pa.float64())


@pytest.mark.parametrize(
    ("of_file", "of_table", "alike"),
    [
        ([ID, FARE], [ID, FARE], True),
        ([ID, FARE], [FARE], True),  # other columns do not matter
        ([ID], [ID, FARE], True),  # null
        ([FARE], [ID, FARE], False),  # required, and not there
        ([ID.with_nullable(True)], [ID], False),  # a null would be an error
        ([ID], [ID.with_nullable(True)], True),
        ([pa.field("fare", pa.float32())], [FARE], False),  # widened through its decimal text
        ([pa.field("fare", pa.int32())], [pa.field("fare", pa.int64())], False),
        ([pa.field("id", pa.binary())], [ID.with_nullable(True)], False),
        ([pa.field("Fare", pa.float64())], [FARE], False),  # Spark takes it for the column
        ([FARE, pa.field("FARE", pa.float64())], [FARE], False),
        ([FARE], [FARE, pa.field("FARE", pa.float64())], False),
        ([pa.field("at", UTC)], [pa.field("at", UTC)], True),
        ([pa.field("at", pa.timestamp("us"))], [pa.field("at", pa.timestamp("us"))], False),
        ([pa.field("at", pa.timestamp("ms", "UTC"))], [pa.field("at", UTC)], False),
        ([pa.field("n", pa.decimal128(10, 2))], [pa.field("n", pa.decimal128(10, 2))], True),
        ([pa.field("n", pa.decimal128(10, 2))], [pa.field("n", pa.decimal128(12, 2))], False),
        ([pa.field("n", pa.list_(pa.int64()))], [pa.field("n", pa.list_(pa.int64()))], False),
        ([pa.field("n", pa.list_(pa.int64())), FARE], [FARE], True),
        ([ID], [pa.field("n", pa.list_(pa.int64()))], False),
        ([ID, pa.field("_hoodie_operation", pa.string())], [ID], False),  # the reader refuses such a table
    ],
)
def test_columns_that_need_no_change(of_file: list[pa.Field], of_table: list[pa.Field], alike: bool) -> None:
    assert read_alike(file_of(of_file), pa.schema(of_table)) is alike


def test_a_file_whose_columns_have_other_names_by_now() -> None:
    """Dropped and added anew, or exchanged, they are there under the same names."""
    assert not read_alike(file_of([FARE]), pa.schema([FARE]), {"fare": None})
    assert not read_alike(file_of([FARE]), pa.schema([pa.field("price", pa.float64())]), {"price": "fare"})


def test_old_moments_are_not_left_to_spark() -> None:
    """It moves them between zones; pyarrow gives them no zone, so that even their types differ."""
    old = file_of([pa.field("at", pa.timestamp("us", "UTC"))], use_deprecated_int96_timestamps=True)
    assert not read_alike(old, pa.schema([pa.field("at", UTC)]))


def slice_of(partition: str, logs: int = 0) -> FileSlice:
    name = BaseFileName(file_id="f-0", token="1-0-1", instant="20260101000000000")
    base = DataFile(partition=partition, name=name, size=10)
    log = LogFileName(file_id="f-0", instant="20260101000000001", version=1, token="1-0-1")
    files = tuple(DataFile(partition=partition, name=log, size=10) for _ in range(logs))
    return FileSlice(partition=partition, file_id="f-0", base_instant=name.instant, base=base, logs=files)


@pytest.mark.parametrize("partition", ["", "p", "day=2026-01-01", "a b/c", "x%3Ay", "a_b", "a.b"])
def test_a_base_file_alone(partition: str) -> None:
    assert only_base(slice_of(partition))
    assert not only_base(slice_of(partition, logs=1))


@pytest.mark.parametrize("partition", ["*", "a[b]", "{a,b}", "a?", "a\\b", "_a", "a/.b"])
def test_names_that_spark_does_not_take_as_they_are(partition: str) -> None:
    assert not only_base(slice_of(partition))
