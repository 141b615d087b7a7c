"""Reads of ours: projection and partition filter skip I/O, streams equal tables, a moving table is read whole."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import phantombase
from phantombase.timeline.errors import MissingFileError, TableChangedError, UnsupportedError, UsageError
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.read.export import Rows
from phantombase.timeline.read.table_read import Query, ReadOptions, plan_read, read_table
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import run_all
from tests.support.compare_rows import assert_same_rows
from tests.support.decoded_rows import see_decoded
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import one_of, unzip_golden


class Watched(HookedStorage):
    """Never fails; remembers what was listed and opened."""

    def __init__(self, path: Path) -> None:
        super().__init__(LocalStorage(str(path)), self._remember)
        self.seen: list[tuple[str, str]] = []

    def _remember(self, call: Call) -> Any:
        self.seen.append((call.name, call.path))
        return call.do()

    def touched(self, *names: str) -> set[str]:
        """First path component of data paths listed or opened."""
        return {p.split("/")[0] for n, p in self.seen if n in names and p and not p.startswith(HOODIE)}


@one_of("name", "v9_pending", "v6_pending")
def test_a_partition_filter_lists_and_opens_only_that_partition(name: str, tmp_path: Path) -> None:
    """The rows are those of the partition; nothing of the others is listed, opened or asked for."""
    path = unzip_golden(name, tmp_path)
    storage = Watched(path)
    rows = read_table(Table.on(storage), ReadOptions(partition="north"))
    assert storage.touched("list", "open_input", "find", "read") == {"north"}
    everything = read_table(Table.open(str(path)))
    assert_same_rows(rows, everything.filter(pa.compute.equal(everything.column("p"), "north")))


@pytest.mark.parametrize("outside", ["west", "../other", ".hoodie", "north/..", "/etc"])
def test_no_such_partition(outside: str, tmp_path: Path) -> None:
    """One answer for what is not there and for what is no partition; nothing outside the table is looked at."""
    path = unzip_golden("v9_pending", tmp_path)
    with pytest.raises(UsageError, match="no such partition"):
        read_table(Table.open(str(path)), ReadOptions(partition=outside))


@pytest.mark.parametrize("name", ["v6_types", "v9_types", "v9_parquet_log", "v6_event_time", "v9_virtual_keys"])
@pytest.mark.parametrize("columns", [("city",), ("fare", "id"), ("ts",)])
def test_projection(name: str, columns: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows as from a full read; of the base files only these columns and those that merging needs are read."""
    path = unzip_golden(name, tmp_path)
    full = read_table(Table.open(str(path)))
    asked: list[set[str]] = []
    see_decoded(monkeypatch, lambda names, _: asked.append(set(names)))
    table = Table.open(str(path))
    some = read_table(table, ReadOptions(columns=columns))
    assert set(some.schema.names) == set(columns)
    order = [(c, "ascending") for c in columns]
    assert some.select(columns).sort_by(order).equals(full.select(columns).sort_by(order))
    needed = {*columns, *table.config.ordering_fields, "_hoodie_record_key", *table.config.record_key_fields}
    assert asked
    assert all(names <= needed for names in asked)


def test_an_unknown_column_is_named(tmp_path: Path) -> None:
    """And the known ones are listed."""
    path = unzip_golden("v9_plain", tmp_path)
    with pytest.raises(UsageError, match=r"expected .*fare.*; found nope"):
        read_table(Table.open(str(path)), ReadOptions(columns=("fare", "nope")))


@pytest.mark.parametrize("query", [Query.SNAPSHOT, Query.READ_OPTIMIZED])
def test_a_stream_holds_what_a_table_holds(query: Query, tmp_path: Path) -> None:
    """Batch by batch, of the size asked for."""
    path = unzip_golden("v9_two_pending", tmp_path)
    options = ReadOptions(query=query, batch_rows=7)
    scan = plan_read(Table.open(str(path)), options)
    batches = list(scan.batches())
    assert max(b.num_rows for b in batches) <= 7
    assert_same_rows(pa.Table.from_batches(batches, scan.schema), read_table(Table.open(str(path)), options))


def test_a_file_cleaned_away_after_listing_means_reading_again(tmp_path: Path) -> None:
    """The first try meets a file that is gone; the second lists anew and gets the whole answer."""
    path = unzip_golden("v9_compacted_cleaned", tmp_path)
    expected = read_table(Table.open(str(path)))

    class Cleaning(Watched):
        gone = True

        def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
            if self.gone and path.endswith(".parquet"):
                self.gone = False
                raise MissingFileError("no such file", path=path)
            return super().open_input(path, whole=whole)

    assert_same_rows(read_table(Table.on(Cleaning(path))), expected)


@one_of("name", "v6_plain", "v9_plain")
def test_files_of_captured_changes_hold_no_rows(name: str, tmp_path: Path) -> None:
    """They lie beside the log files of a table with change data capture."""
    path = unzip_golden(name, tmp_path)
    expected = read_table(Table.open(str(path)))
    properties = path / HOODIE / "hoodie.properties"
    properties.write_bytes(properties.read_bytes() + b"\nhoodie.table.cdc.enabled=true\n")
    for log in [*path.rglob(".*.log.*-*-*")]:
        log.with_name(f"{log.name}.cdc").write_bytes(b"not rows")
    assert_same_rows(read_table(Table.open(str(path), reading=True)), expected)


def test_marks_of_deletion_are_booleans(tmp_path: Path) -> None:
    """A number there is no mark to Hudi 0.15, which keeps the row."""
    table = Table.open(str(unzip_golden("v6_plain", tmp_path)))
    timeline = table.load_timeline()
    schema = json.loads(table.with_timeline(timeline).newest_schema().commit_text)
    schema["fields"].append({"name": "_hoodie_is_deleted", "type": ["null", "int"]})
    with pytest.raises(UnsupportedError, match="another type than boolean"):
        slice_rules(table.with_timeline(timeline), table.schema(json.dumps(schema)))


@one_of("name", "v9_pending", "v6_pending")
def test_a_compaction_cleaned_behind_before_listing_means_reading_again(name: str, tmp_path: Path) -> None:
    """Loaded before: the timeline. Gone since: the files it takes for the newest. Not a read of the logs alone."""
    path = unzip_golden(name, tmp_path)
    expected = read_table(Table.open(str(path)))
    (pending,) = Table.open(str(path)).load_timeline().pending_compactions
    groups = Table.open(str(path)).load_view().groups
    below = [s for g in groups for s in g.slices if s.base_instant < pending.requested_time]
    files = [f.path for s in below for f in (s.base, *s.logs) if f is not None]

    class Cleaned(Watched):
        def list(self, folder: str) -> list[Entry]:
            if folder == "north" and (path / files[0]).exists():
                run_all(Table.open(str(path)))
                (path / Table.open(str(path)).config.timeline_folder / "29990101000000000.clean.requested").touch()
                for file in files:
                    (path / file).unlink()
            return super().list(folder)

    table = Table.on(Cleaned(path))
    with pytest.raises(TableChangedError, match="compacted and cleaned"):
        table.load_view()
    assert_same_rows(read_table(table), expected)


def test_an_upgrade_while_reading_is_noticed(tmp_path: Path) -> None:
    """A Hudi 1.x writer moves the timeline: half of two layouts must not pass for an empty table."""
    path = unzip_golden("v6_plain", tmp_path / "6")
    newer = unzip_golden("v9_plain", tmp_path / "9")
    table = Table.open(str(path))
    shutil.rmtree(path)
    shutil.copytree(newer, path)
    with pytest.raises((TableChangedError, MissingFileError)):
        table.load_view()
    assert_same_rows(read_table(table), read_table(Table.open(str(newer))))


def test_as_of_behind_a_pending_write_is_refused(tmp_path: Path) -> None:
    """Its rows may still appear there."""
    path = unzip_golden("v9_plain", tmp_path)
    (path / HOODIE / "timeline" / "20270101000000000.deltacommit.requested").touch()
    with pytest.raises(UsageError, match="pending write"):
        read_table(Table.open(str(path)), ReadOptions(as_of="20280101000000000"))
    assert read_table(Table.open(str(path)), ReadOptions(as_of="20261231000000000")).num_rows > 0


# `phantombase.read`: a read as a value that Arrow, DuckDB, Polars and pandas take, again and again.


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
