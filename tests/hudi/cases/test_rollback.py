"""Rollbacks of dead writers and of plans: ours by Hudi, Hudi's by us, and those in progress too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import phantombase.compactor_daemon.undo.unschedule
from phantombase.compactor_daemon.attempt.compact_or_resume import compact_instant
from phantombase.compactor_daemon.attempt.slice_record import SliceDone
from phantombase.compactor_daemon.attempt.slice_task import SliceProgress, SliceTask
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.compactor_daemon.undo.undo import roll_back
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.errors import AttemptDeadError, ConflictError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.in_progress import pending_rollbacks
from phantombase.timeline.table.table import Table
from tests.hudi.cases.rows import Rows, key, same, without_files
from tests.hudi.cases.shared_table import COMMIT_TIME, EVENT_TIME, SharedTable, check_rows
from tests.hudi.judge.client import Judge
from tests.support.compaction_steps import OUTPUT, check_no_strays, open_table
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at_nth
from tests.support.faults import kill_newest, leave_dead_write
from tests.support.selection import deep, versions

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


# Beside real Hudi: a plan that is taken back, and a compactor of Hudi that begins while ours is at work.


both_timelines = pytest.mark.parametrize("version", [9, 6], indirect=True, ids="v{}".format)


@versions(9, deep=[6])
def test_hudi_goes_on_after_a_plan_was_taken_back(judge: Judge, version: int, tmp_path: Path) -> None:
    """It reads, upserts, deletes, plans the same file groups again, compacts and cleans."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version), Rows(seed=version)
    table.create(rows(range(40), 1))
    table.upsert(rows(range(0, 40, 2), 2))
    for plan in (table.hudi_schedules, table.we_schedule):
        before, instant = table.agree(), plan()
        if version > 6:  # on version 6 these logs would lie on the plan's slice, and it would have to be executed
            table.upsert(rows(range(0, 40, 3), 3))
            before = table.agree()
        groups = table.open().compaction_plan(instant).operations
        done = unschedule(table.open(), instant, ProcessLock(str(table.path)))
        assert done.file_groups == len(groups)
        same(table.agree(), before)
        table.agree_on_base_files()
    table.upsert(rows(range(0, 50, 5), 4))
    table.delete(rows(range(3), 4))
    before, again = table.agree(), table.hudi_schedules()
    assert {o.file_id for o in groups} <= {o.file_id for o in table.open().compaction_plan(again).operations}
    table.hudi_compacts(again)
    judge.clean(table.path)
    same(table.agree(), before)
    table.upsert(rows(range(5, 15), 5))  # no new key: they would go into small base files, written anew
    table.we_schedule()
    table.compact_beside_hudi()


@pytest.mark.parametrize("version", [6], indirect=True, ids="v{}".format)
def test_hudi_s_logs_on_a_plan_keep_it(judge: Judge, version: int, tmp_path: Path) -> None:
    """Version 6: without the plan neither Hudi nor we would read them."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version), Rows(seed=6)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(10), 2))
    instant = table.hudi_schedules()
    table.upsert(rows(range(5), 3))
    before = table.agree()
    with pytest.raises(ConflictError, match="file of this instant"):
        unschedule(table.open(), instant, ProcessLock(str(table.path)))
    table.hudi_compacts(instant)
    same(table.agree(), before)


@pytest.mark.deep
@pytest.mark.parametrize("by_hudi", [True, False], ids=["executed by Hudi", "executed by us"])
@pytest.mark.parametrize("version", [6], indirect=True, ids="v{}".format)
def test_hudi_goes_on_with_a_plan_that_lost_file_groups(
    judge: Judge, version: int, by_hudi: bool, tmp_path: Path
) -> None:
    """Version 6: those without logs of the plan are free; Hudi reads, writes, executes the rest, plans them anew."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version), Rows(seed=6)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(10), 2))
    instant = table.hudi_schedules()
    table.upsert(rows([0], 3))
    before = table.agree()
    done = unschedule(table.open(), instant, ProcessLock(str(table.path)))
    assert (done.kept, done.file_groups > 0) == (1, True)
    same(table.agree(), before)
    if by_hudi:
        table.hudi_compacts(instant)
    else:
        assert table.we_compact() == [instant]
    same(table.agree(), before)
    table.upsert(rows(range(5, 25), 4))
    before, again = table.agree(), table.hudi_schedules()
    assert len(table.open().compaction_plan(again).operations) > done.file_groups - 1
    table.hudi_compacts(again)
    judge.clean(table.path)
    same(table.agree(), before)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("version", "merge"),
    [(9, COMMIT_TIME), deep(6, EVENT_TIME), deep(9, EVENT_TIME), deep(6, COMMIT_TIME)],
    indirect=["version"],
    ids=["v9-commit time", "v6-event time", "v9-event time", "v6-commit time"],
)
def test_hudi_doubles_a_moved_key_without_the_plan(
    judge: Judge, version: int, merge: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule is right for Hudi's writers too: with it off, its next upsert brings the old file's row back."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=merge), Rows(seed=4)
    table.create(rows(range(20), 1))
    table.delete(rows(range(3), 2))
    instant = table.hudi_schedules()
    moved = rows(range(2), 3)
    table.writer(moved, small_file_bytes=0).upsert(str(table.path))
    before = table.agree()
    with pytest.raises(ConflictError, match="now in another file group"):
        unschedule(table.open(), instant, ProcessLock(str(table.path)))
    broken = table.copy()
    monkeypatch.setattr(phantombase.compactor_daemon.undo.unschedule, "refuse_moved", lambda *_: None)
    unschedule(broken.open(), instant, ProcessLock(str(broken.path)))
    same(broken.agree(), before)
    broken.upsert(rows(range(2), 4))
    assert broken.agree()["id"].to_pylist().count(key(0)) == 2
    assert table.we_compact() == [instant]
    table.upsert(rows(range(2), 4))
    assert table.agree()["id"].to_pylist().count(key(0)) == 1


class _BesideHudi:
    """A runner beside which Hudi executes the plan as soon as the first slice is done."""

    def __init__(self, table: SharedTable, instant: str) -> None:
        self.table, self.instant = table, instant
        self.begun = False

    def __call__(self, storage: Storage, tasks: list[SliceTask], progress: SliceProgress) -> list[SliceDone]:
        def watched(done: int, total: int) -> None:
            if done and not self.begun:
                self.begun = True
                self.table.hudi_compacts(self.instant)
            progress(done, total)

        return LocalRunner(1)(storage, tasks, watched)


@versions(9, deep=(6,))
def test_hudi_executes_what_we_are_at(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi 0.15 and 1.2's single writer ask nobody. Ours sees it, stops for good, and its result stands."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version), Rows(seed=version)
    table.create(rows(range(40), 1))
    table.upsert(rows(range(0, 40, 2), 2))
    instant = table.hudi_schedules()
    table.upsert(rows(range(0, 40, 3), 3))
    before = table.agree()
    with pytest.raises(AttemptDeadError, match="Hudi compactor touched"):
        compact_instant(
            table.open(),
            instant,
            lock=ProcessLock(str(table.path)),
            runner=_BesideHudi(table, instant),
            progress=lambda done, total: None,
            output=OUTPUT,
            options=AttemptOptions(foreign_poll_s=0),
        )
    assert table.pending() == []
    same(table.agree(), before)
    assert table.we_compact() == []
    check_no_strays(table.path)
    same(table.agree(), before)


# Version 6: a restore of a plan leaves a slice of logs that hides rows once Hudi has archived past the plan.


@pytest.mark.parametrize("version", [6], indirect=True)
@pytest.mark.parametrize("compacted", [deep(False), deep(True)])
def test_archiving_past_a_restored_plan(compacted: bool, judge: Judge, tmp_path: Path) -> None:
    """0.15 hides every row of its file groups, and so do we; after a compaction behind the restore none is hidden."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=6), Rows(seed=6)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(10), 2))
    savepoint = judge.savepoint(table.path)
    assert savepoint is not None
    plan = table.hudi_schedules()
    table.upsert(rows(range(5), 3))  # its logs are on the plan's slice
    judge.restore(table.path, savepoint)
    judge.delete_savepoint(table.path, savepoint)
    table.upsert(rows(range(12), 4))
    if compacted:
        assert table.we_compact(table.we_schedule())
    for ts in range(5, 10):
        table.upsert(rows(range(12), ts))
    before = table.agree()
    assert before.num_rows == 20
    judge.clean(table.path)
    for _ in range(2):
        judge.archive(table.path)
    assert table.open().load_timeline().start > plan
    after = table.agree()
    if compacted:
        same(without_files(after), without_files(before))
    else:
        assert after.num_rows == 0
