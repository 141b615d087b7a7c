"""Beside real Hudi: a plan that is taken back, and a compactor of Hudi that begins while ours is at work."""

from __future__ import annotations

from pathlib import Path

import pytest

import phantombase.compactor_daemon.removal.unschedule
from phantombase.compactor_daemon.attempt.compact_instant import compact_instant
from phantombase.compactor_daemon.execution.runners import LocalRunner, SliceProgress
from phantombase.compactor_daemon.execution.slice_task import SliceTask
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.records.slice_done import SliceDone
from phantombase.compactor_daemon.removal.unschedule import unschedule
from phantombase.timeline.errors import AttemptDeadError, ConflictError
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.contract import Storage
from tests.hudi.cases.rows import Rows, key, same
from tests.hudi.cases.shared_table import COMMIT_TIME, EVENT_TIME, SharedTable
from tests.hudi.judge.client import Judge
from tests.support.compaction_steps import OUTPUT, check_no_strays
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop

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
    monkeypatch.setattr(phantombase.compactor_daemon.removal.unschedule, "refuse_moved", lambda *_: None)
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
            options=AttemptOptions(foreign_look_s=0),
        )
    assert table.pending() == []
    same(table.agree(), before)
    assert table.we_compact() == []
    check_no_strays(table.path)
    same(table.agree(), before)
