"""Savepoints of phantombase and of real Hudi: one record, kept by both cleaners, deleted and restored by either."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.timeline.format.savepoint import Savepoint
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.recovery.savepoint import KeptSavepoint, create_savepoint, delete_savepoint, savepoints
from phantombase.timeline.table.table import Table
from tests.hudi.cases.rows import Rows, same, without_files
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import Judge
from tests.support.selection import versions

pytestmark = pytest.mark.interop

LOCK = ProcessLock("savepoints")


def keep(table: Table, instant: str | None = None) -> KeptSavepoint:
    return create_savepoint(table, LOCK, instant, user="who", comment="why")


def files_of(savepoint: Savepoint) -> dict[str, set[str]]:
    return {partition: set(names) for partition, names in savepoint.files.items()}


@pytest.fixture
def table(judge: Judge, version: int, tmp_path: Path) -> SharedTable:
    """With a compaction that is pending: the state has the slice below it."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version), Rows(seed=6)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(10), 2))
    table.hudi_schedules()
    table.upsert(rows(range(5), 3))
    return table


@versions(9, deep=(8, 6))
@pytest.mark.parametrize("compacted", [True, False])
def test_the_record_is_that_of_hudi(compacted: bool, table: SharedTable, judge: Judge) -> None:
    """Beside a pending compaction Hudi names only the logs behind the plan, without what they are merged with."""
    if compacted:
        table.we_compact()
        table.upsert(Rows(seed=7)(range(5), 4))
    instant = judge.savepoint(table.path)
    assert instant is not None
    [of_hudi] = savepoints(table.open())
    assert of_hudi.instant == instant
    delete_savepoint(table.open(), LOCK, instant)
    assert savepoints(table.open()) == ()
    ours = keep(table.open())
    assert ours.instant == instant
    if compacted:
        assert files_of(ours.savepoint) == files_of(of_hudi.savepoint)
    else:
        bases = [n for names in of_hudi.savepoint.files.values() for n in names if n.endswith(".parquet")]
        assert bases == []
        assert all(set(names) < files_of(ours.savepoint)[p] for p, names in files_of(of_hudi.savepoint).items())
    judge.delete_savepoint(table.path, instant)
    assert savepoints(table.open()) == ()


@versions(9, deep=(8, 6))
def test_hudi_cleans_around_it(table: SharedTable, judge: Judge) -> None:
    kept = keep(table.open())
    options = ReadOptions(as_of=kept.instant)
    before = read_table(table.open(), options)
    table.we_compact()
    rows = Rows(seed=7)
    for ts in (4, 5):
        table.upsert(rows(range(20), ts))
        table.we_compact(table.we_schedule())
    judge.clean(table.path)
    there = {path.name for path in table.path.glob("*/*")}
    for names in kept.savepoint.files.values():
        assert set(names) <= there
    delete_savepoint(table.open(), LOCK, kept.instant)
    table.upsert(rows(range(2), 6))
    judge.clean(table.path)
    there = {path.name for path in table.path.glob("*/*")}
    assert not any(set(names) <= there for names in kept.savepoint.files.values())
    assert before.num_rows == 20
    table.agree()


@pytest.mark.parametrize("version", [6], indirect=True)
def test_hudi_restores_to_it(table: SharedTable, judge: Judge) -> None:
    """1.2.0 fails to restore past a compaction, to its own savepoints as well."""
    before = table.agree()
    kept = keep(table.open())
    table.we_compact()
    table.upsert(Rows(seed=7)(range(20), 4))
    judge.restore(table.path, kept.instant)
    same(without_files(table.agree()), without_files(before))


@pytest.mark.deep
@pytest.mark.parametrize("of_hudi", [True, False])
def test_beside_a_plan_the_savepoint_of_hudi_loses_files(of_hudi: bool, table: SharedTable, judge: Judge) -> None:
    """Its cleaner removes the slice below the plan; a savepoint of phantombase keeps it."""
    before = {path.name for path in table.path.glob("*/*.parquet")}
    instant = judge.savepoint(table.path) if of_hudi else keep(table.open()).instant
    assert instant is not None
    table.we_compact()
    for ts in (4, 5):
        table.upsert(Rows(seed=7)(range(20), ts))
        table.we_compact(table.we_schedule())
    judge.clean(table.path)
    there = {path.name for path in table.path.glob("*/*.parquet")}
    assert (before <= there) is not of_hudi
