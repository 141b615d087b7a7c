"""Columns that evolve on read: renamed, dropped and added anew, between writes of real Hudi and compactions of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.timeline.codec.avro_schema import META_COLUMNS
from phantombase.timeline.errors import StalePlanError, UnsupportedError, UsageError
from phantombase.timeline.filter.tree import parse_filter
from phantombase.timeline.format.commit_metadata import LATEST_SCHEMA
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.export import read_any
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import Table
from tests.support.archived_tables import archive, cluster, small_files
from tests.support.change_feeds import at, operations, request
from tests.support.compaction_steps import open_table, run_one
from tests.support.evolved_tables import alter, columns_of, compacted, digest, renamed
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.selection import deep

USUAL = ("v6_parquet_log", "v6_types", "v9_pending")
TABLES = pytest.mark.parametrize(
    "name",
    [
        name if (name := f"v{version}_{case}") in USUAL else deep(name)
        for version in (6, 8, 9)
        for case in ("plain", "pending", "parquet_log", "types")
    ],
)


def rows(table: Table, **options: Any) -> dict[str, dict[str, Any]]:
    """All rows by key, without the names of their files."""
    found = read_table(table.snapshot(cached=False), ReadOptions(**options))
    return {row["id"]: {k: v for k, v in row.items() if k != "_hoodie_file_name"} for row in found.to_pylist()}


def changed(row: dict[str, Any], **names: str | None) -> dict[str, Any]:
    """A row with columns under other names; None: the column is dropped."""
    return {(names.get(k) or k): v for k, v in row.items() if names.get(k, k) is not None}


@TABLES
def test_renamed_and_added_anew(name: str, tmp_path: Path) -> None:
    """`city` is `town` now, another column is `city`, and `n` is dropped: the rows are what they were."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    before = rows(table)
    columns = [one for one in renamed(columns_of(table), city="town") if one["name"] != "n"]
    alter(table, [*columns, {"id": 40, "name": "city", "avro": ["null", "long"]}])
    after = {key: changed(row, city="town", n=None) | {"city": None} for key, row in before.items()}
    assert rows(table) == after
    compacted(path, table)
    assert rows(table) == after
    newest = table.snapshot(cached=False).snapshot().newest_schema()
    done = max(table.snapshot(cached=False).load_timeline().completed_writes.items())[1]
    recorded = table.snapshot(cached=False).commit_metadata(done).extra_metadata
    assert {k: recorded.get(k) for k in newest.recorded} == newest.recorded


@TABLES
def test_a_plan_of_before_the_change(name: str, tmp_path: Path) -> None:
    """The compaction writes the columns of its time; the readers find them under their names of now."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    schedule_compaction(table, ProcessLock(str(path)))
    before = rows(table)
    pending = [i.requested_time for i in table.snapshot(cached=False).load_timeline().pending_merges]
    alter(table, renamed(columns_of(table), city="town", fare="price"))
    after = {key: changed(row, city="town", fare="price") for key, row in before.items()}
    assert rows(table) == after
    compacted(path, table)
    assert rows(table) == after
    for instant in pending:
        done = table.snapshot(cached=False).load_timeline().completed_writes[instant]
        assert LATEST_SCHEMA not in table.commit_metadata(done).extra_metadata  # none was known before the instant


@TABLES
def test_filters_and_columns_go_by_the_names_of_now(name: str, tmp_path: Path) -> None:
    """The bounds in a file's footer have the names of then."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    before = rows(table)
    alter(table, renamed(columns_of(table), city="p2", n="city"))
    value = next(row["n"] for row in before.values() if row["n"] is not None)
    found = rows(table, columns=["id", "city", "p2"], filter=parse_filter(f"city = {value}"))
    wanted = {k: {"id": k, "city": row["n"], "p2": row["city"]} for k, row in before.items() if row["n"] == value}
    assert found == wanted


@pytest.mark.parametrize("logged", [True, False])
def test_bounds_in_a_footer_have_the_names_of_then(logged: bool, tmp_path: Path) -> None:
    """No log entry matches, and by the names of now no row group either: the base rows were lost."""
    path = tmp_path / "t"
    of_base = {"id": ["x", "y"], "ts": [1, 1], "low": [1, 2], "high": [101, 102]}
    made = writer(pa.table(of_base)).table("t").key("id").ordering("ts")
    made.upsert(str(path))
    if logged:
        writer(pa.table({"id": ["y"], "ts": [2], "low": [1], "high": [0]})).upsert(str(path))
    table = open_table(path)
    alter(table, renamed(columns_of(table), low="high", high="low"))
    found = rows(table, columns=["id", "low", "high"], filter=parse_filter("low > 100"))
    of_log = {} if logged else {"y": {"id": "y", "low": 102, "high": 2}}
    assert found == {"x": {"id": "x", "low": 101, "high": 1}, **of_log}


def test_twice_renamed(tmp_path: Path) -> None:
    """Each file has the names of its time."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    before = rows(table)
    first = columns_of(table)
    alter(table, renamed(first, city="town"))
    compacted(path, table)
    alter(table, renamed(first, city="place"))
    assert rows(table) == {key: changed(row, city="place") for key, row in before.items()}


@one_of("version", 9, 6)
@pytest.mark.parametrize("anew", [True, False])
def test_log_files_with_other_names_are_not_merged_with_each_other(anew: bool, version: int, tmp_path: Path) -> None:
    """Copied blocks get the time of the log compaction, and readers take their columns for those of that time: values
    of renamed columns were gone, and those of dropped ones were back."""
    path, given = tmp_path / "t", {"id": ["a", "b"], "city": ["x", "y"]}
    for ts in range(1, 6):
        made = writer(pa.table({**given, "ts": [ts, ts]})).table("t", version=version).key("id").ordering("ts")
        (made.delete if ts == 3 else made.upsert)(str(path))
    table = open_table(path)
    planned = table.instant_path(table.files.requested_merge(request(table, at(1))))
    plan = (path / planned).read_bytes()
    (path / planned).unlink()
    own = columns_of(table)
    others = [one for one in own if one["name"] != "city"]
    alter(
        table, [*others, {"id": 40, "name": "city", "avro": ["null", "string"]}] if anew else renamed(own, city="town")
    )
    before = rows(table)
    assert {row["city" if anew else "town"] for row in before.values()} == ({None} if anew else {"x", "y"})
    assert operations(table.snapshot(cached=False)) == []
    instant = table.snapshot().next_time()
    (path / planned).with_name(f"{instant}.logcompaction.requested").write_bytes(plan)  # as Hudi may plan it
    with pytest.raises(StalePlanError, match=f"unschedule TABLE {instant}"):
        run_one(table.snapshot(cached=False), instant)
    assert rows(table) == before


@one_of("name", "v6_archived", "v9_archived")
def test_columns_before_the_first_change(name: str, tmp_path: Path) -> None:
    """By the commit before it, also an archived one."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    before = rows(table)
    alter(table, renamed(columns_of(table), city="town"))
    assert rows(table) == {key: changed(row, city="town") for key, row in before.items()}
    for file in (path / table.config.timeline_folder).glob("*commit*"):
        if LATEST_SCHEMA not in str(file.read_bytes()) and "compaction" not in file.name:
            file.unlink()
    table = open_table(path)
    assert table.snapshot().newest_schema().names.at("20200101000000000") == {"town": "city"}


@one_of("version", 9, 6)
def test_parts_of_columns_are_not_renamed(version: int, tmp_path: Path) -> None:
    """Nor dropped by the first change, which no record of numbers shows."""
    table = open_table(unzip_golden(f"v{version}_types", tmp_path))
    columns = columns_of(table)
    (place,) = (one for one in columns if one["name"] == "loc")
    record = next(one for one in place["avro"] if one != "null")
    record["fields"][0]["name"] = "latitude"
    alter(table, columns)
    with pytest.raises(UnsupportedError, match=r"part .* of a column was renamed or dropped"):
        rows(table)


@one_of("version", 9, 6)
def test_a_column_with_parts_is_dropped(version: int, tmp_path: Path) -> None:
    """By the first change, too. A column that gets its name is another one."""
    table = open_table(unzip_golden(f"v{version}_types", tmp_path))
    before = rows(table)
    kept = [one for one in columns_of(table) if one["name"] != "loc"]
    alter(table, kept)
    assert rows(table) == {key: changed(row, loc=None) for key, row in before.items()}
    alter(table, [*kept, {"id": 40, "name": "loc", "avro": ["null", "string"]}])
    assert rows(table) == {key: row | {"loc": None} for key, row in before.items()}


def test_a_table_without_rows_of_another_type(tmp_path: Path) -> None:
    """A widened column: ids as ints in older files."""
    table = open_table(unzip_golden("v9_pending", tmp_path))
    before = rows(table)
    columns = columns_of(table)
    (number,) = (one for one in columns if one["name"] == "n")
    number["avro"] = ["null", "long"]
    alter(table, columns)
    assert read_table(table.snapshot(cached=False), ReadOptions()).schema.field("n").type == pa.int64()
    assert rows(table) == before


@pytest.mark.parametrize("version", [6, 9])
def test_a_float_becomes_a_double(version: int, tmp_path: Path) -> None:
    """1.1 stays 1.1, in base files and logs, before and after a compaction."""
    for key, ts in (("base", 1), ("log", 1), ("log", 2)):
        given = pa.table({"id": [key], "f": pa.array([1.1], pa.float32()), "ts": [ts]})
        writer(given).table("t", version=version).key("id").ordering("ts").upsert(str(tmp_path))
    table = open_table(tmp_path)
    alter(table, [{**one, "avro": ["null", "double"]} if one["name"] == "f" else one for one in columns_of(table)])
    for _ in range(2):
        assert {key: row["f"] for key, row in rows(table).items()} == {"base": 1.1, "log": 1.1}
        compacted(tmp_path, table)


@pytest.mark.parametrize("kind", ["long", "string"])
@one_of("version", 6, 9)
def test_ordering_columns_keep_their_type(version: int, kind: str, tmp_path: Path) -> None:
    """As text the update of ts 10 would lose against the row of ts 9."""
    path = tmp_path / "t"
    for city, ts in (("base", 9), ("log", 10)):
        given = pa.table({"id": ["a"], "city": [city], "ts": pa.array([ts], pa.int32())})
        writer(given).table("t", version=version).key("id").ordering("ts").upsert(str(path))
    table = open_table(path)
    assert rows(table)["a"]["city"] == "log"
    alter(table, [{**one, "avro": ["null", kind]} if one["name"] == "ts" else one for one in columns_of(table)])
    with pytest.raises(UnsupportedError, match=f"ordering column ts changed its type: int, {kind}"):
        rows(table)


@one_of("version", 9, 6)
def test_what_would_change_columns_is_refused_before_anything_is_requested(version: int, tmp_path: Path) -> None:
    """It would have to give numbers to new columns; and files that are clustered may have other names for them."""
    path = tmp_path / "t"
    small_files(path, version)
    table = open_table(path)
    own = read_table(table, ReadOptions()).drop_columns(list(META_COLUMNS))
    alter(table, columns_of(table))
    there = digest(path)
    more = own.append_column("more", pa.array(range(own.num_rows)))
    with pytest.raises(UnsupportedError, match="rows that change the columns of a table with schema evolution on read"):
        writer(more).upsert(str(path))
    with pytest.raises(UnsupportedError, match="rows that change the columns of a table with schema evolution on read"):
        writer(more).insert_overwrite(str(path))
    with pytest.raises(UnsupportedError, match="clustering tables with schema evolution on read"):
        cluster(path)
    assert digest(path) == there


# Time travel and windows have the columns that the table had then, dropped ones with their values.


VERSIONS = pytest.mark.parametrize("version", [6, 9])


def upserted(path: Path, version: int, **columns: list[Any]) -> str:
    """A write of these columns; its moment on the axis of windows."""
    rows = pa.table(columns)
    writer(rows).table("t", version=version).key("id").ordering("ts").upsert(str(path))
    return newest_moment(open_table(path))


def newest_moment(table: Table) -> str:
    """When the newest write became visible."""
    timeline = table.load_timeline()
    return max(timeline.moment_of(one) for one in timeline.completed)


def newest(table: Table) -> str:
    return max(table.load_timeline().completed_writes)


def found(path: Path, **options: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns without Hudi's own, and the rows."""
    rows = read_any(open_table(path), ReadOptions(**options))
    rows = rows.select([name for name in rows.column_names if not name.startswith("_hoodie")])
    return rows.column_names, sorted(rows.to_pylist(), key=lambda row: str(row))


@VERSIONS
def test_a_column_added_later(version: int, tmp_path: Path) -> None:
    """It is not there in the state, and in the window, of before."""
    end = upserted(tmp_path, version, id=["a"], ts=[1])
    then = newest(open_table(tmp_path))
    upserted(tmp_path, version, id=["a", "b"], ts=[2, 2], more=["x", "y"])
    assert found(tmp_path)[0] == ["id", "ts", "more"]
    old = ["id", "ts"], [{"id": "a", "ts": 1}]
    assert found(tmp_path, as_of=then) == old
    assert found(tmp_path, as_of=then, query=Query.READ_OPTIMIZED) == old
    assert found(tmp_path, begin="earliest", end=end, query=Query.INCREMENTAL) == old
    assert found(tmp_path, begin="earliest", query=Query.INCREMENTAL)[0] == ["id", "ts", "more"]
    stream = {"begin": "earliest", "end": end, "query": Query.INCREMENTAL, "newest_columns": True}
    assert found(tmp_path, **stream) == (["id", "ts", "more"], [{"id": "a", "ts": 1, "more": None}])
    with pytest.raises(UsageError, match="no such column"):
        found(tmp_path, as_of=then, columns=("more",))
    changes, _ = found(tmp_path, begin="earliest", end=end, query=Query.CHANGES)
    assert "more" not in changes


@VERSIONS
def test_columns_that_evolve_on_read(version: int, tmp_path: Path) -> None:
    """Renamed and dropped since, before and after the first change; a compaction changes nothing of it."""
    upserted(tmp_path, version, id=["a"], ts=[1], name=["n"], age=[25])
    upserted(tmp_path, version, id=["a", "b"], ts=[2, 2], name=["n2", "m"], age=[26, 27])
    table = open_table(tmp_path)
    first = newest(table)
    columns = columns_of(table)
    alter(table, [one for one in renamed(columns, name="full") if one["name"] != "age"])
    second = newest(table.snapshot(cached=False))
    alter(table.snapshot(cached=False), [one for one in renamed(columns, name="whole") if one["name"] != "age"])
    old = [{"id": "a", "ts": 2, "name": "n2", "age": 26}, {"id": "b", "ts": 2, "name": "m", "age": 27}]

    def check() -> None:
        assert found(tmp_path, as_of=first) == (["id", "ts", "name", "age"], old)
        later = [{"id": row["id"], "ts": row["ts"], "full": row["name"]} for row in old]
        assert found(tmp_path, as_of=second) == (["id", "ts", "full"], later)
        now = [{"id": row["id"], "ts": row["ts"], "whole": row["name"]} for row in old]
        assert found(tmp_path) == (["id", "ts", "whole"], now)
        assert found(tmp_path, as_of=first, filter="age > 26")[1] == old[1:]

    check()
    compacted(tmp_path, table)
    check()


@VERSIONS
def test_columns_of_an_archived_write(version: int, tmp_path: Path) -> None:
    """Where the write of then has left the active timeline, its archive tells them."""
    upserted(tmp_path, version, id=["a"], ts=[1])
    then = newest(open_table(tmp_path))
    for number in range(2, 9):
        upserted(tmp_path, version, id=["b"], ts=[number], more=["x"])
    archive(tmp_path)
    assert then not in open_table(tmp_path).load_timeline().completed_writes
    assert found(tmp_path, as_of=then) == (["id", "ts"], [{"id": "a", "ts": 1}])
