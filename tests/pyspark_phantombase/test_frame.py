"""`phantombase.spark_read` gives what `read_table` gives, row for row, whichever reader reads a file slice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

from phantombase import ReadOptions, UsageError, read_table, spark_read, writer
from phantombase.timeline.read.pins import live_pins, release
from phantombase.timeline.read.table_read import Query
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import GOLDEN, unzip_golden
from tests.support.selection import deep

pytestmark = pytest.mark.spark

FEW = ("v9_two_pending",)
READ_OPTIMIZED = ReadOptions(query=Query.READ_OPTIMIZED)


@pytest.mark.parametrize("name", [name if name in FEW else deep(name) for name in GOLDEN])
def test_every_golden_table(spark: Any, name: str, tmp_path: Path) -> None:
    """Merged, and base files alone, which Spark reads where their types allow."""
    path = unzip_golden(name, tmp_path)
    whole = spark_read(spark, str(path))
    assert_same_rows(whole.toArrow(), read_table(path))
    assert [(f.name, f.dataType) for f in whole.schema] == [
        (f.name, f.dataType) for f in spark.read.format("phantombase").load(str(path)).schema
    ]
    base_files = spark_read(spark, str(path), query="read_optimized")
    assert_same_rows(base_files.toArrow(), read_table(path, READ_OPTIMIZED))


def rows(first: int, last: int, ts: int = 0) -> pa.Table:
    numbers = range(first, last)
    partitions = pa.array([f"p{number % 2}" for number in numbers])
    fares = pa.array([number / 2 + ts for number in numbers])
    keys = pa.array([f"k{number:04d}" for number in numbers])
    return pa.table({"id": keys, "ts": pa.array([ts] * len(keys), pa.int64()), "fare": fares, "p": partitions})


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A base file without logs, and one with logs."""
    path = tmp_path / "table"
    use = writer(rows(0, 200)).table("mixed").key("id").ordering("ts").partition("p")
    use.bulk_insert(str(path))
    changed = rows(0, 20, ts=1).filter(pa.compute.equal(rows(0, 20).column("p"), "p0"))
    writer(changed).upsert(str(path))
    return path


def test_both_readers_of_one_plan(spark: Any, mixed: Path) -> None:
    """Spark reads the base file without logs, by columns and filters; both parts are as of the call."""
    frame = spark_read(spark, str(mixed))
    assert len(frame.inputFiles()) == 1
    wanted = read_table(mixed)
    writer(rows(0, 200, ts=2)).upsert(str(mixed))
    assert_same_rows(frame.toArrow(), wanted)
    assert frame.where("p = 'p1' and fare > 50").count() == sum(n % 2 and n / 2 > 50 for n in range(200))
    plan = frame.where("p = 'p1' and fare > 50").select("id")._jdf.queryExecution().executedPlan().toString()
    assert "GreaterThan(fare,50.0)" in plan
    assert "_hoodie_commit_time" not in plan.partition("FileScan")[2]
    assert spark_read(spark, str(mixed)).inputFiles() == []


def test_options_of_the_source(spark: Any, mixed: Path) -> None:
    fewer = spark_read(spark, str(mixed), columns="id,fare", partition="p1")
    assert fewer.columns == ["id", "fare"]
    assert fewer.count() == 100
    assert spark_read(spark, str(mixed), meta_columns="false").columns == ["id", "ts", "fare", "p"]
    one = spark_read(spark, str(mixed), filter="id = 'k0021'")
    assert [row.id for row in one.collect()] == ["k0021"]
    assert one.inputFiles() == []
    assert spark_read(spark, str(mixed), filter="p = 'p9'").count() == 0
    with pytest.raises(UsageError, match="unknown option"):
        spark_read(spark, str(mixed), colums="id")


def test_a_session_that_passes_over_missing_files(spark: Any, mixed: Path) -> None:
    """Never fewer rows."""
    frame = spark_read(spark, str(mixed))
    (file,) = frame.inputFiles()
    Path(file.removeprefix("file://")).unlink()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(Py4JJavaError, match="FILE_NOT_EXIST"):
            frame.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


@pytest.mark.parametrize("partition", ["{a,b}", "x/a:b", "_hidden", *map(deep, ("a b", "x%3Ay", "[ab]", "ü*", "h=1"))])
def test_odd_names_of_partitions(spark: Any, partition: str, tmp_path: Path) -> None:
    path = tmp_path / "table"
    odd = rows(0, 10).set_column(3, "p", pa.array([partition] * 10))
    writer(odd).table("odd").key("id").ordering("ts").partition("p").bulk_insert(str(path))
    assert_same_rows(spark_read(spark, str(path)).toArrow(), read_table(path))


def test_moments_and_decimals_in_another_zone(spark: Any, tmp_path: Path) -> None:
    """Old dates are not moved to another calendar, and a zone of the session moves nothing."""
    path = tmp_path / "table"
    odd = rows(0, 3)
    days = [-800_000, 0, 20_000]
    odd = odd.append_column("day", pa.array(days, pa.date32()))
    odd = odd.append_column("at", pa.array([day * 86_400_000_000 + 1 for day in days], pa.timestamp("us", "UTC")))
    odd = odd.append_column("amount", pa.array(["-1.25", "0.00", None]).cast(pa.decimal128(20, 2)))
    writer(odd).table("odd").key("id").ordering("ts").bulk_insert(str(path))
    writer(odd.slice(0, 1)).upsert(str(path))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        for query in ("snapshot", "read_optimized"):
            frame = spark_read(spark, str(path), query=query)
            assert bool(frame.inputFiles()) == (query == "read_optimized")
            found = frame.selectExpr(
                "id", "unix_micros(at) at", "unix_date(day) day", "string(amount) amount"
            ).toArrow()
            assert sorted(found.column("day").to_pylist()) == days
            assert sorted(found.column("at").to_pylist()) == [day * 86_400_000_000 + 1 for day in days]
            assert set(found.column("amount").to_pylist()) == {"-1.25", "0.00", None}
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_pin_is_taken(spark: Any, mixed: Path) -> None:
    """Before the plan; it expires."""
    spark_read(spark, str(mixed), pin="copy", pin_for="5m")
    storage = Table.open(str(mixed)).storage
    assert [pin.name for pin in live_pins(storage)] == ["copy"]
    release(storage, "copy")


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_both_zeros_are_one_value(spark: Any, kind: pa.DataType, tmp_path: Path) -> None:
    """Parquet's filter by dictionary takes them for two."""
    path = tmp_path / "table"
    zeros = rows(0, 40).append_column("zero", pa.array([-0.0] * 40, kind))
    writer(zeros).table("zeros").key("id").ordering("ts").partition("p").bulk_insert(str(path))
    frame = spark_read(spark, str(path))
    assert frame.inputFiles()
    assert frame.where("zero = 0").count() == 40
    assert frame.where("zero in (0, 5)").count() == 40
    assert frame.where("zero >= 0").count() == 40


def test_a_path_that_spark_takes_for_a_pattern(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "a[1]{b}"
    writer(rows(0, 4)).table("t").key("id").ordering("ts").partition("p").bulk_insert(str(path))
    assert spark_read(spark, str(path)).count() == 4
