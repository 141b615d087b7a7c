"""Reads as of an instant: ours equal real Hudi's at every point of a history."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.timeline.errors import UsageError
from phantombase.timeline.read.table_read import ReadOptions, read_table
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import EVENT_TIME, SharedTable
from tests.hudi.judge.client import Judge
from tests.support.selection import versions

pytestmark = pytest.mark.interop


@versions(9, deep=(8, 6))
def test_as_of_every_instant(version: int, judge: Judge, tmp_path: Path) -> None:
    """Upserts, a delete, a pending plan with writes on the phantom slices, a compaction of ours, more writes.

    Before the first instant the table is empty; with the compaction still pending and after it both agree.
    """
    table = SharedTable(judge=judge, path=tmp_path / "t", version=version, options=EVENT_TIME)
    rows = Rows(3)
    table.create(rows(range(60), 1))
    table.upsert(rows(range(20, 50), 2))
    table.hudi_schedules()
    table.upsert(rows(range(30, 70), 3))
    check_all(table)
    table.we_compact()
    table.delete(rows(range(5), 9))
    table.upsert(rows(range(40, 80), 4))
    check_all(table)


def check_all(table: SharedTable) -> None:
    """Every completed write's instant, as both see it."""
    opened = table.open()
    for instant in opened.load_timeline().completed_writes:
        ours = read_table(opened, ReadOptions(as_of=instant))
        same(ours, table.judge.read(table.path, as_of=instant))
    assert read_table(opened, ReadOptions(as_of="20000101000000000")).num_rows == 0


@versions(6, deep=(9, 8))
def test_as_of_a_cleaned_point_is_refused(version: int, judge: Judge, tmp_path: Path) -> None:
    """Hudi refuses it too: files of that time are gone."""
    table = SharedTable(judge=judge, path=tmp_path / "t", version=version, options=EVENT_TIME)
    rows = Rows(4)
    table.create(rows(range(20), 1))
    first = next(iter(table.open().load_timeline().completed_writes))
    for ts in (2, 3):
        table.upsert(rows(range(20), ts))
        table.we_schedule()
        table.we_compact()
    judge.clean(table.path, retain_commits=1)
    assert any(i.action == "clean" for i in table.open().load_timeline().instants)
    with pytest.raises(UsageError, match="cleaned"):
        read_table(table.open(), ReadOptions(as_of=first))
