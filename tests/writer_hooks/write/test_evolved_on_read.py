"""Writes of tables whose columns evolve on read: rows in the columns of now, and the history of them carried on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import read, writer
from phantombase.timeline.errors import ConflictError, UnsupportedError
from phantombase.timeline.table.evolved_schema import LATEST_SCHEMA
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit import transaction
from phantombase.writer_hooks.write import write
from phantombase.writer_hooks.write.rows import stage_rows
from tests.support.compaction_steps import open_table
from tests.support.evolved_tables import Column, alter, columns_of, renamed
from tests.support.refused_tables import digest
from tests.support.tables import one_of

HISTORY = ".hoodie/.schema"


def made(path: Path, version: int) -> tuple[Table, list[Column]]:
    """Two rows in a base file and one of them in a log; then `city` becomes `town`, `n` goes and `note` comes."""
    rows = {"id": ["a", "b"], "city": ["x", "y"], "n": [1, 2], "ts": [1, 1]}
    first = writer(pa.table(rows)).table("t", version=version).key("id").ordering("ts")
    first.upsert(str(path))
    writer(pa.table({"id": ["b"], "city": ["z"], "n": [3], "ts": [2]})).upsert(str(path))
    table = open_table(path)
    columns = [one for one in renamed(columns_of(table), city="town") if one["name"] != "n"]
    columns.append({"id": 40, "name": "note", "avro": ["null", "string"]})
    alter(table, columns)
    return table, columns


def rows(path: Path) -> list[tuple[Any, ...]]:
    """The table's rows without Hudi's columns."""
    found = read(str(path), columns=["id", "town", "note", "ts"]).to_arrow().to_pylist()
    return sorted((row["id"], row["town"], row["note"], row["ts"]) for row in found)


def newest(path: Path) -> tuple[str, dict[str, str]]:
    """The time of the newest write, and what it records."""
    table = open_table(path)
    time, instant = max(table.load_timeline().completed_writes.items())
    return time, dict(table.commit_metadata(instant).extra_metadata)


def histories(path: Path) -> dict[str, Any]:
    """The histories of columns by the time of their write."""
    files = sorted((path / HISTORY).glob("*.schemacommit"))
    return {file.name.split("_")[0].split(".")[0]: json.loads(file.read_text()) for file in files}


@one_of("version", 9, 8, 6)
def test_a_write_carries_the_history_on(version: int, tmp_path: Path) -> None:
    """Its rows go to logs, and to small base files that are written anew; older files are read as before."""
    path = tmp_path / "t"
    made(path, version)
    changed, recorded = newest(path)
    history = histories(path)[changed]
    writer(pa.table({"id": ["b"], "town": ["B"], "note": ["log"], "ts": [3]})).upsert(str(path))
    assert rows(path) == [("a", "x", None, 1), ("b", "B", "log", 3)]
    writer(pa.table({"id": ["c"], "town": ["C"], "ts": [1]})).upsert(str(path))
    assert rows(path) == [("a", "x", None, 1), ("b", "B", "log", 3), ("c", "C", None, 1)]
    writer(pa.table({"id": ["a"]})).delete(str(path))
    assert rows(path) == [("b", "B", "log", 3), ("c", "C", None, 1)]
    time, now = newest(path)
    assert now[LATEST_SCHEMA] == recorded[LATEST_SCHEMA]
    assert histories(path)[time] == history


@one_of("version", 6, 9, 8)
def test_a_small_base_file_of_before_is_written_anew(version: int, tmp_path: Path) -> None:
    """Its columns have the names of then."""
    path = tmp_path / "t"
    first = writer(pa.table({"id": ["a"], "city": ["x"], "ts": [1]}))
    first.table("t", version=version).key("id").ordering("ts").upsert(str(path))
    table = open_table(path)
    alter(table, renamed(columns_of(table), city="town"))
    writer(pa.table({"id": ["b"], "town": ["new"], "ts": [1]})).upsert(str(path))
    assert len(list(path.glob("*.parquet"))) == 2
    found = read(str(path), columns=["id", "town"]).to_arrow().to_pylist()
    assert sorted(row["town"] for row in found) == ["new", "x"]
    writer(pa.table({"id": ["c"], "town": ["behind"], "ts": [1]})).insert(str(path))
    found = read(str(path), columns=["id", "town"]).to_arrow().to_pylist()
    assert sorted(row["town"] for row in found) == ["behind", "new", "x"]


def test_a_change_of_columns_meanwhile_is_a_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that leaves names and types as they are: a column that is dropped and added anew is another one."""
    path = tmp_path / "t"
    table, columns = made(path, 9)
    before = rows(path)

    def altered(*args: Any) -> Any:
        alter(table.reload(), [{**one, "id": 41} if one["name"] == "note" else one for one in columns])
        return stage_rows(*args)

    monkeypatch.setattr(write, "stage_rows", altered)
    with pytest.raises(ConflictError, match="the record of the table's columns"):
        writer(pa.table({"id": ["b"], "town": ["B"], "note": ["log"], "ts": [3]})).option(retries=0).upsert(str(path))
    assert rows(path) == before


def test_a_history_of_a_write_that_never_completed_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies between the history and the commit: the next write rolls it back, and writes both."""
    path = tmp_path / "t"
    made(path, 9)
    before = rows(path)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    given = pa.table({"id": ["b"], "town": ["B"], "note": ["log"], "ts": [3]})
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "put_completed", dies)
        with pytest.raises(KeyboardInterrupt):
            writer(given).upsert(str(path))
    assert len(histories(path)) == 2
    assert rows(path) == before
    writer(given).upsert(str(path))
    assert rows(path) == [("a", "x", None, 1), ("b", "B", "log", 3)]
    assert max(histories(path)) == newest(path)[0]


def test_updates_of_some_columns_are_refused(tmp_path: Path) -> None:
    """As by Hudi."""
    path = tmp_path / "t"
    made(path, 9)
    with pytest.raises(UnsupportedError, match="this write of a table with schema evolution on read"):
        writer(pa.table({"id": ["b"], "town": ["B"], "ts": [3]})).merge_into(str(path), update=["town", "ts"])


def test_a_refused_write_keeps_the_metadata_table(tmp_path: Path) -> None:
    """Also where it is asked to drop it."""
    path = tmp_path / "t"
    first = writer(pa.table({"id": ["a"], "city": ["x"], "ts": [1]})).table("t").key("id").ordering("ts")
    first.conf({"hoodie.metadata.enable": "true"}).upsert(str(path))
    table = open_table(path)
    alter(table, columns_of(table))
    there = digest(path)
    more = writer(pa.table({"id": ["a"], "more": ["x"], "ts": [1]})).option(drop_metadata_table=True)
    with pytest.raises(UnsupportedError, match="rows that change the columns of a table with schema evolution on read"):
        more.upsert(str(path))
    assert digest(path) == there
