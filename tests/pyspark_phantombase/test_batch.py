"""`spark.read.format("phantombase")` gives what `read_table` gives, row for row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from phantombase import MissingFileError, ReadOptions, Table, UnsupportedError, UsageError, read_table
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.read.table_read import Query
from pyspark_phantombase import DefaultSource
from pyspark_phantombase.batch_reader import BatchReader, table_columns
from pyspark_phantombase.options import source_options
from tests.support.compaction_steps import open_table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import GOLDEN, unzip_golden
from tests.support.selection import deep
from tests.support.trips import rows, trips

pytestmark = pytest.mark.spark


def loaded(spark: Any, path: Path, **options: str) -> Any:
    return spark.read.format("phantombase").options(**options).load(str(path))


FOR_SPARK = ("v9_types", "v6_two_pending", "v9_virtual_keys")
"""Golden tables that differ for Spark: types, plans, meta columns."""


@pytest.mark.parametrize("name", [n if n in FOR_SPARK else deep(n) for n in GOLDEN])
def test_every_golden_table(spark: Any, name: str, tmp_path: Path) -> None:
    """Pending plans, phantom slices, deletes, all types: each row in each column, with the table's own types."""
    path = unzip_golden(name, tmp_path)
    rows = loaded(spark, path).toArrow()
    wanted = read_table(path)
    assert_same_rows(rows, wanted)
    assert rows.num_rows


@pytest.mark.parametrize("name", [deep("v6_two_pending"), "v9_two_pending"])
def test_base_files_alone(spark: Any, name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    rows = loaded(spark, path, **{"hoodie.datasource.query.type": "read_optimized"}).toArrow()
    assert_same_rows(rows, read_table(path, ReadOptions(query=Query.READ_OPTIMIZED)))
    with pytest.raises(AssertionError, match="only ours"):
        assert_same_rows(rows, read_table(path))  # updates are in the logs


def test_as_of(spark: Any, tmp_path: Path) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    earliest = min(read_table(path).column("_hoodie_commit_time").to_pylist())
    rows = loaded(spark, path, **{"as.of.instant": earliest}).toArrow()
    assert_same_rows(rows, read_table(path, ReadOptions(as_of=earliest)))
    assert set(rows.column("_hoodie_commit_time").to_pylist()) == {earliest}


def test_fewer_columns(spark: Any, tmp_path: Path) -> None:
    """By the option, by a schema in any order, and without the meta columns."""
    path = unzip_golden("v9_pending", tmp_path)
    whole = loaded(spark, path)
    some = [c for c in whole.columns if not c.startswith("_hoodie_")]
    assert loaded(spark, path, columns=",".join(some[:2])).columns == some[:2]
    assert loaded(spark, path, meta_columns="false").columns == some
    types = dict(whole.dtypes)
    backwards = some[::-1]
    given = spark.read.format("phantombase").schema(", ".join(f"{c} {types[c]}" for c in backwards)).load(str(path))
    assert given.columns == backwards
    assert_same_rows(given.toArrow(), read_table(path).select(backwards))


def test_it_counts_filters_and_joins(spark: Any, tmp_path: Path) -> None:
    path = unzip_golden("v9_two_pending", tmp_path)
    wanted = read_table(path)
    rows = loaded(spark, path)
    assert rows.count() == wanted.num_rows
    key = wanted.column("_hoodie_record_key")[0].as_py()
    assert rows.where(rows._hoodie_record_key == key).count() == 1
    assert rows.alias("a").join(rows.alias("b"), "_hoodie_record_key").count() == wanted.num_rows


def test_a_task_without_a_scan_has_no_rows(tmp_path: Path) -> None:
    """Spark makes one of an empty list of tasks."""
    from pyspark.sql.datasource import InputPartition

    path = unzip_golden("v9_plain", tmp_path)
    options = source_options({"path": str(path)})
    reader = BatchReader(options, table_columns(options))
    assert list(reader.read(InputPartition(None))) == []


def test_wrong_options_are_errors(spark: Any, tmp_path: Path) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    wrong: list[tuple[dict[str, str], str]] = [
        ({"colums": "id"}, "unknown option of the source phantombase.*Did you mean columns"),
        ({"query": "latest"}, "unknown query type"),
        ({"columns": "no_such"}, "no such column"),
        ({"task_bytes": "many"}, "no number above 0"),
        ({"meta_columns": "perhaps"}, "neither true nor false"),
        ({"query": "snapshot", "hoodie.datasource.query.type": "read_optimized"}, "given twice"),
    ]
    for options, message in wrong:
        with pytest.raises(UsageError, match=f"(?s){message}"):
            DefaultSource({"path": str(path), **options}).schema()
    with pytest.raises(PySparkException, match=f"(?s){wrong[0][1]}"):
        loaded(spark, path, **wrong[0][0]).count()


def test_a_schema_unlike_the_table_is_an_error(spark: Any, tmp_path: Path) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    with pytest.raises(PySparkException, match="the schema of a DataFrame is not that of its table"):
        spark.read.format("phantombase").schema("_hoodie_record_key int").load(str(path)).count()


def test_a_path_without_a_table_is_an_error(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="NotATableError"):
        _ = loaded(spark, tmp_path / "nothing").columns  # Spark Connect asks when it must


def test_a_file_that_was_cleaned_meanwhile_is_an_error(tmp_path: Path) -> None:
    """Never fewer rows: the tasks know what they were to read."""
    path = unzip_golden("v9_plain", tmp_path)
    options = source_options({"path": str(path)})
    reader = BatchReader(options, table_columns(options))
    tasks = reader.partitions()
    next(path.rglob("*.parquet")).unlink()
    with pytest.raises(MissingFileError, match="a file was cleaned while a query read it"):
        [batch for task in tasks for batch in reader.read(task)]


def test_an_old_pyspark_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams need 4.2, whose sources take a limit; before, a module that Spark has not would be missing. To write one,
    4.1, whose sources take Arrow."""
    path = unzip_golden(GOLDEN[0], tmp_path)
    source = DefaultSource({"path": str(path)})
    monkeypatch.setattr("pyspark_phantombase.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"streams of the source phantombase.*PySpark 4\.2 or newer"):
        source.streamReader(source.schema())
    monkeypatch.delattr("pyspark.sql.datasource.DataSourceStreamArrowWriter", raising=False)
    with pytest.raises(UnsupportedError, match=r"writing a stream .*PySpark 4\.1 or newer"):
        source.streamWriter(source.schema(), False)


# Windows in Spark, under this source's names and under Hudi's.


def test_a_window(spark: Any, tmp_path: Path) -> None:
    """The rows are those that a read without Spark gives."""
    path = unzip_golden("v9_event_time", tmp_path)
    timeline = open_table(path).load_timeline()
    begin, end = (timeline.moment_of(timeline.completed[i]) for i in (0, 2))
    expected = read_table(open_table(path), ReadOptions(query=Query.INCREMENTAL, begin=begin, end=end))
    assert expected.num_rows > 0
    hudi = {
        "hoodie.datasource.query.type": "incremental",
        "hoodie.datasource.read.begin.instanttime": begin,
        "hoodie.datasource.read.end.instanttime": end,
        "hoodie.datasource.read.incr.fallback.fulltablescan.enable": "false",
    }
    for options in (hudi, {"query": "incremental", "begin": begin, "end": end}):
        frame = spark.read.format("phantombase").options(**options).load(str(path))
        assert_same_rows(frame.toArrow(), expected)
        assert frame.select("id").count() == expected.num_rows


# From end to end on the PySpark that is installed: Spark writes, Spark's executor compacts, Spark's source reads.


@pytest.mark.parametrize("version", [deep(9), deep(6)])
def test_written_compacted_and_read_by_spark(spark: Any, version: int, tmp_path: Path) -> None:
    path = str(tmp_path / "trips")
    ones = [(n, 1, n / 7) for n in range(300)]
    twos = [(n, 2, 2.0) for n in range(0, 400, 3)]
    if not hasattr(spark.range(1), "_jdf"):
        with pytest.raises(UnsupportedError, match=r"no DataFrame of Spark Connect; .*df\.write\.format"):
            trips(spark.createDataFrame(rows(*ones)), version, 2).upsert(path)
        return
    trips(spark.createDataFrame(rows(*ones)), version, 2).upsert(path)
    update = trips(spark.createDataFrame(rows(*twos)), version, 2)
    assert update.schedule(strategy=TriggerStrategy.ALWAYS).upsert(path).after.scheduled
    wanted = read_table(path)

    command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "compact", path, "--executor", "spark"]
    options = ["--master", "local[2]", "--sole-writer", "--json"]
    compacted = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300, check=False)
    assert compacted.returncode == 0, compacted.stderr[-3000:]
    assert json.loads(compacted.stdout)
    assert not Table.open(path).load_timeline().pending_compactions

    read = spark.read.format("phantombase")
    assert_same_rows(read.load(path).toArrow(), wanted)
    base_files = read.option("hoodie.datasource.query.type", "read_optimized").load(path).toArrow()
    assert_same_rows(base_files, read_table(path, ReadOptions(query=Query.READ_OPTIMIZED)))
    assert_same_rows(base_files, wanted)
