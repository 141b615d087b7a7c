"""Restores, rollbacks and savepoints of completed writes: real Hudi goes on after ours, each finishes the other's."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.compactor_daemon.undo.savepoint import KeptSavepoint, create_savepoint, delete_savepoint, savepoints
from phantombase.timeline.format.clean import Savepoint
from phantombase.timeline.format.instant import State
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.hudi.cases.rows import Rows, same, without_files
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import Judge
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at, die_at_nth
from tests.support.selection import ALL, deep, versions

pytestmark = pytest.mark.interop
LOCK = ProcessLock("restore")


@pytest.fixture
def table(judge: Judge, version: int, tmp_path: Path) -> SharedTable:
    """Of two upserts."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version), Rows(seed=6)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(10), 2))
    return table


def newest(table: SharedTable) -> str:
    return max(table.open().load_timeline().completed_writes)


def goes_on(table: SharedTable, before: pa.Table) -> None:
    """Both read the rows of before, and what either does next."""
    same(without_files(table.agree()), without_files(before))
    table.upsert(Rows(seed=9)(range(15, 30), 50))
    table.upsert(Rows(seed=9)(range(18, 30), 51))
    table.agree()
    table.hudi_schedules()
    table.hudi_compacts()
    table.writer(Rows(seed=10)(range(5), 60)).upsert(str(table.path))
    table.we_compact(table.we_schedule())
    table.judge.clean(table.path)
    assert table.agree().num_rows == 30


@versions(9, deep=(8, 6))
@pytest.mark.parametrize("by_hudi", [deep(True), False])
def test_hudi_goes_on_behind_a_restore(by_hudi: bool, table: SharedTable) -> None:
    """Past compactions of Hudi or ours, a plan, and writes of both."""
    before, target, rows = table.agree(), newest(table), Rows(seed=7)
    table.upsert(rows(range(12), 3))
    instant = table.hudi_schedules()
    table.writer(rows(range(25), 4)).upsert(str(table.path))
    table.hudi_compacts(instant) if by_hudi else table.we_compact(instant)
    table.upsert(rows(range(6), 5))
    table.hudi_schedules()
    table.upsert(rows(range(30), 6))
    done = restore_table(table.open(), LOCK, target)
    assert len(done.undone) == 6
    goes_on(table, before)


@versions(9, deep=(8, 6))
def test_hudi_goes_on_behind_a_rollback(table: SharedTable) -> None:
    table.hudi_schedules()
    table.hudi_compacts()
    before = table.agree()
    table.upsert(Rows(seed=7)(range(5, 25), 4))
    roll_back_newest(table.open(), LOCK, newest(table))
    goes_on(table, before)


@versions(6, deep=(9, 8))
def test_we_finish_what_hudi_began(table: SharedTable, tmp_path: Path) -> None:
    """Its restore and its rollback, half-way: their plans beside the table of before."""
    before = table.agree()
    target = table.judge.savepoint(table.path)
    assert target is not None
    table.upsert(Rows(seed=7)(range(5, 25), 4))
    undone = newest(table)
    for action in ("restore", "rollback"):
        if action == "rollback" and table.version == 6 and table.judge.version != "0.15.0":
            continue
        other = SharedTable(judge=table.judge, path=tmp_path / action, version=table.version)
        shutil.copytree(table.path, other.path)
        hudis = SharedTable(judge=table.judge, path=tmp_path / f"{action}-by-hudi", version=table.version)
        shutil.copytree(table.path, hudis.path)
        if action == "restore":
            hudis.judge.restore(hudis.path, target)
        else:
            hudis.judge.rollback(hudis.path, undone)
        for state in ("requested", "inflight"):
            (file,) = (hudis.path / ".hoodie").rglob(f"*.{action}.{state}")
            place = other.path / file.relative_to(hudis.path)
            shutil.copy(file, place)
        if action == "restore":
            assert restore_table(other.open(), LOCK, None).finished
        else:
            roll_back_newest(other.open(), LOCK, undone)
        same(without_files(other.agree()), without_files(before))
        other.upsert(Rows(seed=8)(range(3), 9))
        other.agree()


@versions(9, deep=(8, 6))
def test_hudi_finishes_what_died(table: SharedTable, tmp_path: Path) -> None:
    """At every fifth call of ours; by default at half of these."""
    before = table.agree()
    target = create_savepoint(table.open(), LOCK, None, user="", comment="").instant
    table.upsert(Rows(seed=7)(range(5, 25), 4))
    table.upsert(Rows(seed=8)(range(5), 5))
    died = 0
    for number in range(20, 200, 5 if ALL else 10):
        other = SharedTable(judge=table.judge, path=tmp_path / f"died{number}", version=table.version)
        shutil.copytree(table.path, other.path)
        storage = HookedStorage(LocalStorage(str(other.path)), die_at(number))
        with suppress(ProcessDied):
            restore_table(open_table(other.path, storage), LOCK, target)
            break
        if not other.open().load_timeline().pending("restore"):
            continue
        died += 1
        other.judge.restore(other.path, target)
        assert not other.open().load_timeline().pending("restore")
        same(without_files(other.agree()), without_files(before))
    assert died > 1


@versions(9, 6, deep=(8,))
def test_hudi_executes_the_plan_of_a_rollback(table: SharedTable) -> None:
    """Its process died right behind the put: the write is completed still."""
    before = table.agree()
    table.writer(Rows(seed=7)(range(5, 25), 4)).upsert(str(table.path))
    storage = HookedStorage(LocalStorage(str(table.path)), die_at_nth(1, "delete", ".deltacommit"))
    with pytest.raises(ProcessDied):
        roll_back_newest(open_table(table.path, storage), LOCK, newest(table))
    timeline = table.open().load_timeline()
    (rollback,) = timeline.pending("rollback")
    assert rollback.state is State.REQUESTED
    table.upsert(Rows(seed=8)(range(3), 9))
    assert not table.open().load_timeline().pending("rollback")
    assert set(table.agree()["id"].to_pylist()) == set(before["id"].to_pylist())


# Savepoints of phantombase and of real Hudi: one record, kept by both cleaners, deleted and restored by either.


SAVEPOINTS_LOCK = ProcessLock("savepoints")


def keep(table: Table, instant: str | None = None) -> KeptSavepoint:
    return create_savepoint(table, SAVEPOINTS_LOCK, instant, user="who", comment="why")


def files_of(savepoint: Savepoint) -> dict[str, set[str]]:
    return {partition: set(names) for partition, names in savepoint.files.items()}


@pytest.fixture
def savepoints_table(judge: Judge, version: int, tmp_path: Path) -> SharedTable:
    """With a compaction that is pending: the state has the slice below it."""
    savepoints_table, rows = SharedTable(judge=judge, path=tmp_path / "savepoints_table", version=version), Rows(seed=6)
    savepoints_table.create(rows(range(20), 1))
    savepoints_table.upsert(rows(range(10), 2))
    savepoints_table.hudi_schedules()
    savepoints_table.upsert(rows(range(5), 3))
    return savepoints_table


@versions(9, deep=(8, 6))
@pytest.mark.parametrize("compacted", [True, False])
def test_the_record_is_that_of_hudi(compacted: bool, savepoints_table: SharedTable, judge: Judge) -> None:
    """Beside a pending compaction Hudi names only the logs behind the plan, without what they are merged with."""
    if compacted:
        savepoints_table.we_compact()
        savepoints_table.upsert(Rows(seed=7)(range(5), 4))
    instant = judge.savepoint(savepoints_table.path)
    assert instant is not None
    [of_hudi] = savepoints(savepoints_table.open().snapshot())
    assert of_hudi.instant == instant
    delete_savepoint(savepoints_table.open(), SAVEPOINTS_LOCK, instant)
    assert savepoints(savepoints_table.open().snapshot()) == ()
    ours = keep(savepoints_table.open())
    assert ours.instant == instant
    if compacted:
        assert files_of(ours.savepoint) == files_of(of_hudi.savepoint)
    else:
        bases = [n for names in of_hudi.savepoint.files.values() for n in names if n.endswith(".parquet")]
        assert bases == []
        assert all(set(names) < files_of(ours.savepoint)[p] for p, names in files_of(of_hudi.savepoint).items())
    judge.delete_savepoint(savepoints_table.path, instant)
    assert savepoints(savepoints_table.open().snapshot()) == ()


@versions(9, deep=(8, 6))
def test_hudi_cleans_around_it(savepoints_table: SharedTable, judge: Judge) -> None:
    kept = keep(savepoints_table.open())
    options = ReadOptions(as_of=kept.instant)
    before = read_table(savepoints_table.open(), options)
    savepoints_table.we_compact()
    rows = Rows(seed=7)
    for ts in (4, 5):
        savepoints_table.upsert(rows(range(20), ts))
        savepoints_table.we_compact(savepoints_table.we_schedule())
    judge.clean(savepoints_table.path)
    there = {path.name for path in savepoints_table.path.glob("*/*")}
    for names in kept.savepoint.files.values():
        assert set(names) <= there
    delete_savepoint(savepoints_table.open(), SAVEPOINTS_LOCK, kept.instant)
    savepoints_table.upsert(rows(range(2), 6))
    judge.clean(savepoints_table.path)
    there = {path.name for path in savepoints_table.path.glob("*/*")}
    assert not any(set(names) <= there for names in kept.savepoint.files.values())
    assert before.num_rows == 20
    savepoints_table.agree()


@pytest.mark.parametrize("version", [6], indirect=True)
def test_hudi_restores_to_it(savepoints_table: SharedTable, judge: Judge) -> None:
    """1.2.0 fails to restore past a compaction, to its own savepoints as well."""
    before = savepoints_table.agree()
    kept = keep(savepoints_table.open())
    savepoints_table.we_compact()
    savepoints_table.upsert(Rows(seed=7)(range(20), 4))
    judge.restore(savepoints_table.path, kept.instant)
    same(without_files(savepoints_table.agree()), without_files(before))


@pytest.mark.deep
@pytest.mark.parametrize("of_hudi", [True, False])
def test_beside_a_plan_the_savepoint_of_hudi_loses_files(
    of_hudi: bool, savepoints_table: SharedTable, judge: Judge
) -> None:
    """Its cleaner removes the slice below the plan; a savepoint of phantombase keeps it."""
    before = {path.name for path in savepoints_table.path.glob("*/*.parquet")}
    instant = judge.savepoint(savepoints_table.path) if of_hudi else keep(savepoints_table.open()).instant
    assert instant is not None
    savepoints_table.we_compact()
    for ts in (4, 5):
        savepoints_table.upsert(Rows(seed=7)(range(20), ts))
        savepoints_table.we_compact(savepoints_table.we_schedule())
    judge.clean(savepoints_table.path)
    there = {path.name for path in savepoints_table.path.glob("*/*.parquet")}
    assert (before <= there) is not of_hudi
