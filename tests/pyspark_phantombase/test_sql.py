"""Spark SQL: the functions that show and compact a table, views over it, and what Spark's catalog cannot keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import pyspark_phantombase
from phantombase import NotATableError, Table, UsageError, read_table
from phantombase.timeline.dashboard.compactions import plan_facts
from phantombase.timeline.dashboard.overview import as_json, overview
from pyspark_phantombase import DefaultSource
from pyspark_phantombase.table_functions import FUNCTIONS
from tests.support.golden_tables import unzip_golden


def rows(name: str, *given: Any, **named: Any) -> list[dict[str, Any]]:
    """What a function yields, by its columns."""
    function, columns = FUNCTIONS[name]
    return [dict(zip(columns, row, strict=True)) for row in function().eval(*given, **named)]


def test_functions_give_what_the_commands_print(tmp_path: Path) -> None:
    path = str(unzip_golden("v9_two_pending", tmp_path))
    table = Table.open(path)
    assert rows("phantombase_show", path) == as_json(overview(table))["instants"]
    first, second = (one.requested_time for one in table.load_timeline().pending_compactions)
    plans = rows("phantombase_plan", path)
    assert [one["instant"] for one in plans] == [first, second]
    assert rows("phantombase_plan", path, second) == plans[1:]
    (operation,) = plan_facts(table, first)["operations"]
    assert {name: plans[0][name] for name in operation} == operation


def test_compact_by_a_function(tmp_path: Path) -> None:
    """Pending ones; then also what is requested first, which needs to know of other writers."""
    path = str(unzip_golden("v9_two_pending", tmp_path))
    before = read_table(path).num_rows
    first, second = (one["instant"] for one in rows("phantombase_plan", path))
    assert [one["instant"] for one in rows("phantombase_compact", path, instant=second)] == [second]
    assert [one["instant"] for one in rows("phantombase_compact", path)] == [first]
    with pytest.raises(UsageError, match="which other processes write"):
        rows("phantombase_compact", path, schedule=True)
    with pytest.raises(UsageError, match="Give one of them"):
        rows("phantombase_compact", path, schedule=True, sole_writer=True, instant=first)
    assert sum(one["rows"] for one in rows("phantombase_compact", path, schedule=True, sole_writer=True)) == before
    assert rows("phantombase_plan", path) == []
    assert read_table(path).num_rows == before
    with pytest.raises(NotATableError):
        rows("phantombase_compact", str(tmp_path / "none"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_of_another_type(name: str, tmp_path: Path) -> None:
    """Spark checks none: the text 'false' would count as true."""
    path = str(unzip_golden("v9_plain", tmp_path))
    own: dict[str, dict[str, Any]] = {
        "phantombase_show": {"archived": "false"},
        "phantombase_plan": {"instant": 1},
        "phantombase_compact": {"schedule": True, "sole_writer": "false"},
    }
    wrongs: tuple[dict[str, Any], ...] = (
        {"path": None},
        {"path": path, **own[name]},
        {"path": path, "storage_options": {1: 2}},
    )
    for wrong in wrongs:
        with pytest.raises(UsageError):
            rows(name, **wrong)
    assert rows("phantombase_plan", path) == []


def test_a_catalog_keeps_no_table(tmp_path: Path) -> None:
    """Spark would read the table without its path; the error names what works. Spark hands over these options."""
    path = str(unzip_golden("v9_plain", tmp_path))
    given = {"owner": "me", "path": path, "location": f"file:{path}", "provider": "phantombase"}
    for options in (given, {}):
        with pytest.raises(UsageError, match="CREATE TEMPORARY VIEW name USING phantombase OPTIONS"):
            DefaultSource(options).schema()


@pytest.mark.spark
@pytest.mark.deep
def test_in_sql(spark: Any, tmp_path: Path) -> None:
    path = unzip_golden("v9_two_pending", tmp_path)
    wanted = read_table(path)
    pyspark_phantombase.register(spark)

    def one(query: str) -> Any:
        return spark.sql(query.format(path=path)).collect()

    assert len(one("SELECT * FROM phantombase_show('{path}') WHERE state = 'requested'")) == 2
    (logs,) = {len(row.logs) for row in one("SELECT logs FROM phantombase_plan('{path}')")}
    assert logs == 1
    done = one("SELECT instant, rows FROM phantombase_compact('{path}', schedule => true, sole_writer => true)")
    assert sum(row.rows for row in done[:2]) == wanted.num_rows
    for name, meta in (("v", "true"), ("w", "false")):
        one(f"CREATE TEMPORARY VIEW {name} USING phantombase OPTIONS (path '{{path}}', meta_columns '{meta}')")
        assert one(f"SELECT count(*) FROM {name}")[0][0] == wanted.num_rows
        one(f"INSERT INTO {name} SELECT * FROM {name}")
    assert read_table(path).num_rows == wanted.num_rows
    assert read_table(path).schema.names == wanted.schema.names
    for query in (
        "CREATE TABLE t USING phantombase LOCATION '{path}'",
        "CREATE TABLE t USING phantombase LOCATION '{path}2' AS SELECT 'a' id",
    ):
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW name USING phantombase"):
            one(query)
    one("CREATE TABLE own (id string) USING phantombase LOCATION '{path}'")  # Spark asks the source for nothing
    for query in ("SELECT * FROM own", "INSERT INTO own VALUES ('a')"):
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW name USING phantombase"):
            one(query)
    one("DROP TABLE own")
    with pytest.raises(PySparkException, match="no such folder"):
        one("SELECT * FROM phantombase_show('{path}/none')")
