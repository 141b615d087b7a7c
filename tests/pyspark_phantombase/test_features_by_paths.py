"""Every feature of a table on every path that reads it: the rows of `read`, whichever way they come.

Spark's own reader is played by pyarrow, which finds columns by their name of today as well. No JVM runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase import ExecuteOptions, Executor, compact, read, schedule, writer
from phantombase.timeline.cli.main import app
from phantombase.timeline.table.table import Table
from pyspark_phantombase.batch_reader import SliceTask, task_batches
from pyspark_phantombase.frame import _planned
from pyspark_phantombase.options import source_options
from pyspark_phantombase.planned import parted, plan_tasks, table_columns
from tests.support.evolved_tables import alter, columns_of, renamed
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep

pytestmark = pytest.mark.spark
Rows = list[str]


def golden(name: str) -> Callable[[Path], Path]:
    return lambda folder: unzip_golden(name, folder)


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


FEATURES = {
    "pending compaction": golden("v9_pending"),
    "nested types": golden("v9_types"),
    "virtual keys": golden("v9_virtual_keys"),
    "replaced groups": replaced,
    "other names": evolved("v9_plain", city="town", fare="price"),
    "exchanged names": evolved("v9_pending", city="p2", id="id"),
}
OF_VERSION_6 = {"pending compaction": golden("v6_pending"), "other names": evolved("v6_plain", city="town")}


def plain(batches: Iterable[pa.RecordBatch | pa.Table], columns: list[str]) -> Rows:
    """Rows in one order, as texts; names of files are left out."""
    kept = [name for name in columns if not name.startswith("_hoodie_file")]
    return sorted(repr([row.get(name) for name in kept]) for one in batches for row in one.to_pylist())


def by_source(path: str, **options: str) -> Iterable[pa.RecordBatch]:
    given = source_options({"path": path, **options})
    columns = table_columns(given)
    return (batch for scan in plan_tasks(given, columns) for batch in task_batches(SliceTask(scan), columns))


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
        assert CliRunner().invoke(app, ["validate", path]).exit_code == 0
