"""Restores and rollbacks of completed writes: real Hudi goes on behind ours, and each finishes the other's."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.restoring.restore import restore_table
from phantombase.compactor_daemon.restoring.rollback import roll_back_newest
from phantombase.timeline.format.instant import State
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.recovery.savepoint import create_savepoint
from phantombase.timeline.storage.local import LocalStorage
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
