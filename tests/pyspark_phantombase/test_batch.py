"""`spark.read.format("phantombase")` gives what `read_table` gives, row for row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from phantombase import MissingFileError, ReadOptions, UnsupportedError, UsageError, read_table
from phantombase.timeline.read.table_read import Query
from pyspark_phantombase import DefaultSource
from pyspark_phantombase.batch_reader import BatchReader, table_columns
from pyspark_phantombase.options import source_options
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import GOLDEN, unzip_golden
from tests.support.selection import deep

pytestmark = pytest.mark.spark


def loaded(spark: Any, path: Path, **options: str) -> Any:
    return spark.read.format("phantombase").options(**options).load(str(path))


FOR_SPARK = ("v9_types", "v6_complex_key", "v9_parquet_log", "v6_two_pending", "v9_virtual_keys", "v6_clustered")
"""Golden tables that differ for Spark: types, partitions, log formats, plans, meta columns, replaced files."""


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
