"""What a dead writer left is rolled back by the other kind: ours by Hudi, Hudi's by us, and half-way rollbacks too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.recovery.dead_writers import roll_back_dead_writers
from phantombase.timeline.recovery.rollback import roll_back
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.pending_rollbacks import pending_rollbacks
from phantombase.timeline.table.table import Table
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import SharedTable, check_rows
from tests.hudi.judge.client import Judge
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at_nth
from tests.support.faults import kill_newest, leave_dead_write
from tests.support.selection import versions

pytestmark = pytest.mark.interop

LOCK = ProcessLock("interop rollback")


@pytest.fixture
def table(judge: Judge, version: int, tmp_path: Path) -> SharedTable:
    """A table of Hudi's with logs on its base files."""
    made, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version), Rows(seed=version)
    made.create(rows(range(40), 1))
    made.upsert(rows(range(0, 40, 2), 2))
    return made


def undo(table: Table) -> list[str]:
    """A single writer's look after dead ones."""
    return roll_back_dead_writers(table, LOCK, lazy=False, now_ms=lambda: 0, expiry_s=120.0)


def go_on(table: SharedTable, before: pa.Table) -> None:
    """Both read what was there before, and Hudi goes on: upserts, compacts, cleans."""
    same(table.agree(), before)
    rows = Rows(seed=7)(range(0, 60, 5), 9)
    table.upsert(rows)
    written = table.agree()
    check_rows(written, rows)
    table.hudi_schedules()
    table.hudi_compacts()
    table.judge.clean(table.path)
    same(table.agree(), written)


@versions(9, deep=(8, 6))
def test_we_roll_back_a_dead_writer_of_hudi(table: SharedTable) -> None:
    """Its log files and its new base files; whole, and killed half-way and taken up by us and by Hudi."""
    before = table.agree()
    table.upsert(Rows(seed=3)(range(0, 80, 3), 3))
    dead = kill_newest(table.open())
    same(table.agree(), before)
    left = table.copy()
    (rollback,) = undo(table.open())
    assert rollback > dead.requested_time
    go_on(table, before)

    storage = HookedStorage(LocalStorage(str(left.path)), die_at_nth(1, "put_if_absent", ".rollback"))
    with pytest.raises(ProcessDied):
        undo(open_table(left.path, storage))
    (half,) = pending_rollbacks(left.open())
    shutil.rmtree(table.path)
    shutil.copytree(left.path, table.path)
    assert undo(table.open()) in ([], [half.instant])  # its heartbeat is this process's own, which lives
    assert roll_back(table.open(), dead, LOCK) == half.instant
    go_on(table, before)

    rows = Rows(seed=5)(range(0, 60, 5), 9)
    left.upsert(rows)  # Hudi finishes our rollback first
    done = left.open().load_timeline().find(half.instant, "rollback")
    assert done is not None
    assert done.completed
    check_rows(left.agree(), rows)


@versions(8, deep=(9, 6))
def test_hudi_rolls_back_a_dead_writer_of_ours(table: SharedTable) -> None:
    """Its next single writer finds our markers, and nothing of ours is left but revoked log files (version 6)."""
    before = table.agree()
    dead = leave_dead_write(table.path)
    same(table.agree(), before)
    rows = Rows(seed=5)(range(0, 60, 5), 9)
    table.upsert(rows)
    timeline = table.open().load_timeline()
    assert timeline.find(dead.instant.requested_time, "deltacommit") is None
    assert [i.state for i in timeline.instants if i.action == "rollback"] == [State.COMPLETED]
    assert not any((table.path / base).exists() for base in dead.bases)
    assert [(table.path / log).exists() for log in dead.logs] == [table.version == 6] * len(dead.logs)
    check_rows(table.we_read(), rows)
    table.upsert(rows)  # until then Hudi 0.15 hides what its own writer wrote behind its rollback
    check_rows(table.agree(), rows)


@pytest.mark.parametrize("version", [6], indirect=True, ids="v{}".format)
def test_a_write_that_went_on_beside_our_rollback_is_read_by_hudi(table: SharedTable) -> None:
    """Its instant is older than the rollback's; behind a command block with the rollback's, 0.15 hides its rows."""
    table.upsert(Rows(seed=3)(range(0, 40, 3), 3))
    dead = kill_newest(table.open())
    rows = Rows(seed=5)(range(0, 40, 5), 9)
    opened = table.open()
    ahead = opened.instant_path(Instant(requested_time="20990101000000000", action="clean", state=State.COMPLETED))
    opened.storage.put_if_absent(ahead, b"")  # makes the rollback's instant greater than that of the next write
    roll_back(opened, dead, LOCK)
    opened.storage.delete(ahead)
    table.upsert(rows)
    check_rows(table.agree(), rows)
