"""`phantombase.read`: a read as a value that Arrow, DuckDB, Polars and pandas take, again and again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import phantombase
from phantombase.timeline.errors import MissingFileError, TableChangedError, UsageError
from phantombase.timeline.read.rows import Rows
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(unzip_golden("v9_pending", tmp_path))


def test_every_library_gets_the_same_rows(path: str) -> None:
    """Through the C stream and through the methods, twice each."""
    rows = phantombase.read(path, ["id", "fare", "ts"], filter="fare > 50")
    full = read_table(Table.open(path))
    expected = full.filter(pa.compute.greater(full["fare"], 50)).select(["id", "ts", "fare"])
    assert 0 < expected.num_rows < full.num_rows
    assert rows.schema == expected.schema
    for _ in range(2):
        assert_same_rows(rows.to_arrow(), expected)
        assert_same_rows(pa.table(rows), expected)
        assert_same_rows(pa.Table.from_batches(rows.batches(), rows.schema), expected)
        assert_same_rows(rows.to_polars().to_arrow().cast(rows.schema), expected)
        assert_same_rows(pl.DataFrame(rows).to_arrow().cast(rows.schema), expected)
        assert_same_rows(pa.Table.from_pandas(rows.to_pandas(), rows.schema, preserve_index=False), expected)
    relation = rows.to_duckdb(duckdb.connect())
    for _ in range(2):
        assert relation.aggregate("count(*)").fetchall() == [(expected.num_rows,)]


def test_a_limit_opens_no_more_files_than_it_needs(path: str) -> None:
    """The first file slice has enough rows: the second is not opened."""
    opened: list[str] = []
    table = Table.open(path)
    plain = type(table.storage).open_input

    def spy(self: Any, name: str, *, whole: bool = True) -> pa.NativeFile:
        opened.append(name)
        return plain(self, name, whole=whole)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(table.storage), "open_input", spy)
        found = phantombase.read(table, limit=7).to_arrow()
    assert found.num_rows == 7
    assert len({name.split("/")[0] for name in opened if not name.startswith(".hoodie")}) == 1
    assert phantombase.read(table, limit=0).to_arrow().num_rows == 0
    assert phantombase.read(table, limit=10**9).to_arrow().num_rows == read_table(table).num_rows
    with pytest.raises(UsageError, match="limit must be at least 0"):
        phantombase.read(table, limit=-1)


def test_what_cannot_be_read_is_refused_when_the_read_is_described(path: str) -> None:
    with pytest.raises(UsageError, match="no such column"):
        phantombase.read(path, ["nope"])
    with pytest.raises(UsageError, match="no such column in the filter"):
        phantombase.read(path, filter="nope = 1")
    with pytest.raises(UsageError, match="does not have the column's type"):
        phantombase.read(path, filter="ts = 'x'")


def test_another_schema_is_not_passed_off_as_the_one_that_was_described(path: str) -> None:
    """A consumer of the stream was given the first one."""
    rows = phantombase.read(path)
    other = Rows(rows.table, rows.options, rows.schema.remove(0))
    with pytest.raises(TableChangedError, match="schema changed"):
        other.to_arrow()
    with pytest.raises(TableChangedError, match="schema changed"):
        next(other.batches())


def test_a_stream_that_lost_a_file_fails(path: str) -> None:
    """Rows were delivered already, so the stream cannot begin again."""
    rows = Rows.of(Table.open(path), ReadOptions())
    stream = rows.batches()
    next(stream)
    for file in Path(path).rglob("*.parquet"):
        if ".hoodie" not in str(file):
            file.unlink()
    with pytest.raises(MissingFileError, match="read again"):
        list(stream)


def test_what_is_given_goes_over_the_options(path: str) -> None:
    """And what is not given does not."""
    options = ReadOptions(query=Query.READ_OPTIMIZED, columns=("id",), limit=3)
    rows = phantombase.read(path, ["id", "ts"], options=options)
    assert rows.options == replace(options, columns=("id", "ts"))
    assert phantombase.read(path, query="snapshot", options=options).options.query is Query.SNAPSHOT
