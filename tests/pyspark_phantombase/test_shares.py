"""A large base file without logs is read by several tasks, each row once; one with logs by one task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase import read_table, writer
from pyspark_phantombase.batch_reader import BatchReader, SliceTask, task_batches
from pyspark_phantombase.options import source_options
from pyspark_phantombase.planned import table_columns
from tests.support.compare_rows import assert_same_rows
from tests.support.selection import deep

pytestmark = pytest.mark.spark


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


def planned(path: Path, **options: str) -> tuple[list[SliceTask], list[pa.Table]]:
    """The tasks of a query, and the rows of each."""
    given = source_options({"path": str(path), **options})
    columns = table_columns(given)
    tasks: list[Any] = BatchReader(given, columns).partitions()
    schema = next(batch for task in tasks for batch in task_batches(task, columns)).schema
    return tasks, [pa.Table.from_batches(task_batches(task, columns), schema=schema) for task in tasks]


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


@pytest.mark.deep
def test_spark_reads_the_shares(spark: Any, rides: Path) -> None:
    frame = spark.read.format("phantombase").option("task_bytes", "20000").load(str(rides))
    assert frame.selectExpr("spark_partition_id() task").distinct().count() > 2
    assert_same_rows(frame.toArrow(), read_table(rides))
