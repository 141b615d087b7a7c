"""Time travel and windows have the columns that the table had then, dropped ones with their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.timeline.errors import UsageError
from phantombase.timeline.read.rows import read_any
from phantombase.timeline.read.table_read import Query, ReadOptions
from phantombase.timeline.table.table import Table
from tests.support.archived_tables import archive
from tests.support.compaction_steps import open_table
from tests.support.evolved_tables import alter, columns_of, compacted, renamed

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
    second = newest(table.reload())
    alter(table.reload(), [one for one in renamed(columns, name="whole") if one["name"] != "age"])
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
