"""A pending rollback whose plan cannot be read: nothing rests on what it may name, and nothing else is held up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.attempt.failures import FailureClass, classify
from phantombase.compactor_daemon.attempt.publish import publish, retire
from phantombase.compactor_daemon.attempt.validity import refuse_rollback
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.compactor_daemon.undo.undo import roll_back
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.rollback_plan import RollbackPlan, encode_rollback_plan
from phantombase.timeline.instants.instant_files import Torn
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.in_progress import PendingRollback, pending_rollbacks
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import check_no_strays, decided, open_table, run_all
from tests.support.faults import leave_dead_write, make_old
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.moved_tables import BEFORE, before_placing, planned, restore_first_commit, upsert
from tests.support.trips import rows
from tests.support.written_tables import read_rows


def cut(path: Path, data: bytes = b"") -> Path:
    """What a JVM leaves that was killed while it wrote a rollback's plan in place."""
    table = open_table(path)
    rollback = Instant(requested_time=table.snapshot().next_time(), action="rollback", state=State.REQUESTED)
    file = path / table.instant_path(rollback)
    file.write_bytes(data)
    return file


def undo(table: Table, now_ms: int, *, lazy: bool = True) -> list[str]:
    """A writer's look after dead ones."""
    return roll_back_dead_writers(table, LOCK, lazy=lazy, now_ms=lambda: now_ms, expiry_s=120.0)


def write_states(path: Path) -> set[State]:
    """Of the delta commits that pend."""
    return {i.state for i in open_table(path).load_timeline().pending_delta_commits}


# --- looking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"Obj\x01 cut"])
@one_of("name", "v9_plain", "v6_plain")
def test_it_is_found_with_the_readable_ones(name: str, data: bytes, tmp_path: Path) -> None:
    """Its target is unknown; the others are there all the same, first."""
    path = unzip_golden(name, tmp_path)
    file, table = cut(path, data), open_table(path)
    plan = RollbackPlan(target="20990101000000001", action="deltacommit")
    readable = PendingRollback(instant="20990101000000009", plan=plan)
    table.storage.put_if_absent(table.instant_path(readable.at(State.REQUESTED)), encode_rollback_plan(plan, "/b"))
    first, second = pending_rollbacks(table)
    assert first == readable
    assert isinstance(second, Torn)
    assert (second.target, path / second.path) == (None, file)


@one_of("name", "v6_plain", "v9_plain")
def test_a_plan_that_goes_while_it_is_looked_at_is_unreadable(name: str, tmp_path: Path) -> None:
    """Only its inflight file is there: Hudi keeps such a rollback pending."""
    path = unzip_golden(name, tmp_path)
    file = cut(path)
    file.rename(file.with_name(file.name.replace(".requested", ".inflight")))
    (found,) = pending_rollbacks(open_table(path))
    assert found.target is None


@one_of("version", 9, 6)
@pytest.mark.parametrize("has_plan", [True, False])
def test_the_way_out_of_one_that_went_inflight(version: int, has_plan: bool, tmp_path: Path) -> None:
    """Hudi's writers leave it alone: the error names both files, and without these the compaction is done."""
    path = tmp_path / "t"
    planned(path, version)
    requested = cut(path)
    inflight = requested.with_name(requested.name.replace(".requested", ".inflight"))
    inflight.touch()
    if not has_plan:
        requested.unlink()
    with pytest.raises(ConflictError, match="Hudi ignores it for ever") as error:
        run_all(open_table(path))
    for file in (requested, inflight):
        assert str(file.relative_to(path)) in str(error.value)
        file.unlink(missing_ok=True)
    run_all(open_table(path))
    assert read_rows(path) == BEFORE


# --- compactions ------------------------------------------------------------------------------------------------------


@one_of("version", 9, 6)
def test_a_compaction_waits_and_is_not_parked(version: int, tmp_path: Path) -> None:
    """The error names the file and what to do with it; when that is gone the compaction is done."""
    path = tmp_path / "t"
    planned(path, version)
    file = cut(path)
    with pytest.raises(ConflictError, match="cannot be read") as error:
        run_all(open_table(path))
    assert classify(error.value) is FailureClass.NOTHING
    assert str(file.relative_to(path)) in str(error.value)
    assert "The next Hudi writer of the table removes this file" in str(error.value)
    file.unlink()
    run_all(open_table(path))
    assert read_rows(path) == BEFORE
    check_no_strays(path)


@one_of("version", 6, 9)
def test_a_decision_waits(version: int, tmp_path: Path) -> None:
    """It is neither published nor taken back."""
    path = tmp_path / "t"
    instant = planned(path, version)
    decision = decided(open_table(path), instant)
    file = cut(path)
    with pytest.raises(ConflictError, match="cannot be read"):
        publish(open_table(path), decision, LOCK)
    file.unlink()
    publish(open_table(path), decision, LOCK)
    assert read_rows(path) == BEFORE


@one_of("version", 9, 6)
def test_a_plan_that_is_gone_is_gone_all_the_same(version: int, tmp_path: Path) -> None:
    """No rollback, readable or not, brings it back."""
    path = tmp_path / "t"
    instant = planned(path, version)
    decision = decided(open_table(path), instant)
    restore_first_commit(path)
    cut(path)
    with pytest.raises(ConflictError, match="its plan is gone"):
        publish(open_table(path), decision, LOCK)


@one_of("version", 9, 6)
def test_unscheduling_and_retiring_wait(version: int, tmp_path: Path) -> None:
    """Either would act on an instant that may be about to be rolled back."""
    path = tmp_path / "t"
    instant = planned(path, version)
    file = cut(path)
    with pytest.raises(ConflictError, match="cannot be read") as error:
        unschedule(open_table(path), instant, LOCK)
    assert str(file.relative_to(path)) in str(error.value)
    file.unlink()
    decision = decided(open_table(path), instant)
    publish(open_table(path), decision, LOCK)
    file = cut(path)
    with pytest.raises(ConflictError, match="cannot be read"):
        retire(open_table(path), decision)
    file.unlink()
    refuse_rollback(open_table(path), instant)
    retire(open_table(path), decision)


# --- writes -----------------------------------------------------------------------------------------------------------


@one_of("version", 6, 9)
def test_a_write_that_begins_behind_it_completes(version: int, tmp_path: Path) -> None:
    """Its target was chosen before its file was made: no later write is it."""
    path = tmp_path / "t"
    planned(path, version)
    cut(path)
    upsert(LocalStorage(str(path)), rows((3, 5, 5.0)))
    assert read_rows(path) == {**BEFORE, "k0003": (5, 5.0)}


@one_of("version", 9, 6)
def test_a_write_does_not_complete_when_it_comes_meanwhile(version: int, tmp_path: Path) -> None:
    """It may be of this very write: nothing of it is visible, nothing of it pends, and the next one completes."""
    path = tmp_path / "t"
    planned(path, version)
    file: list[Path] = []
    with pytest.raises(ConflictError, match="cannot be read") as error:
        upsert(before_placing(path, lambda: file.append(cut(path))), rows((3, 5, 5.0)))
    assert str(file[0].relative_to(path)) in str(error.value)
    assert read_rows(path) == BEFORE
    assert not write_states(path)
    upsert(LocalStorage(str(path)), rows((3, 6, 6.0)))
    assert read_rows(path) == {**BEFORE, "k0003": (6, 6.0)}


# --- dead writers -----------------------------------------------------------------------------------------------------


@one_of("name", "v9_plain", "v6_plain")
def test_dead_writes_are_left_alone_while_its_executor_may_live(name: str, tmp_path: Path) -> None:
    """It may be rolling back any of them; once it is dead too, they are rolled back."""
    path = unzip_golden(name, tmp_path)
    dead, file = leave_dead_write(path), cut(path)
    now_ms = round(file.stat().st_mtime * 1000)
    assert undo(open_table(path), now_ms) == []
    assert write_states(path) == {State.INFLIGHT}
    make_old({file}, 3600)
    (done,) = undo(open_table(path), now_ms)
    assert done > dead.instant.requested_time
    assert not write_states(path)
    assert file.exists(), "Hudi removes it"


@one_of("name", "v6_plain", "v9_plain")
def test_a_single_writer_rolls_dead_writes_back_beside_it(name: str, tmp_path: Path) -> None:
    """Nobody else is at work."""
    path = unzip_golden(name, tmp_path)
    leave_dead_write(path)
    file = cut(path)
    assert len(undo(open_table(path), round(file.stat().st_mtime * 1000), lazy=False)) == 1
    assert not write_states(path)


@one_of("name", "v9_plain", "v6_plain")
def test_a_rollback_goes_on_beside_it(name: str, tmp_path: Path) -> None:
    """One that is asked for by a write's own process."""
    path = unzip_golden(name, tmp_path)
    dead = leave_dead_write(path)
    cut(path)
    roll_back(open_table(path), dead.instant, LOCK)
    assert not write_states(path)


# --- operators --------------------------------------------------------------------------------------------------------


def roll_back_last(path: Path) -> object:
    return roll_back_newest(open_table(path), LOCK, max(open_table(path).load_timeline().completed_writes))


def restore_first(path: Path) -> object:
    return restore_table(open_table(path), LOCK, min(open_table(path).load_timeline().completed_writes))


def archive(path: Path) -> object:
    return archive_table(open_table(path), ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1), LOCK)


@pytest.mark.parametrize("work", [roll_back_last, restore_first, archive], ids=lambda w: w.__name__)
@pytest.mark.parametrize("data", [b"", b"Obj\x01 cut"])
@one_of("name", "v9_plain", "v6_plain")
def test_a_command_removes_it(name: str, data: bytes, work: Callable[[Path], object], tmp_path: Path) -> None:
    """As Hudi's next writer does. Not while a process may write it, nor once it has begun."""
    path = unzip_golden(name, tmp_path)
    file = cut(path, data)
    stays(path, work, file, "The next Hudi writer")
    make_old({file}, 3600)
    beat = path / heartbeat_path(file.name.partition(".")[0])
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    stays(path, work, file, "The next Hudi writer")
    beat.unlink()
    inflight = file.with_name(file.name.replace(".requested", ".inflight"))
    inflight.touch()
    stays(path, work, file, "Hudi ignores it for ever")
    inflight.unlink()
    work(path)
    assert not file.exists()


def stays(path: Path, work: Callable[[Path], object], file: Path, todo: str) -> None:
    if work is archive:
        work(path)
    else:
        with pytest.raises(ConflictError, match="cannot be read") as error:
            work(path)
        assert todo in str(error.value)
    assert file.exists()


# --- completed ones ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", [b"", b"Obj\x01torn"], ids=["empty", "torn"])
@pytest.mark.parametrize("with_plan", [True, False])
@one_of("name", "v6_plain", "v9_plain")
def test_the_record_of_a_completed_one_keeps_no_write_away(
    name: str, with_plan: bool, record: bytes, tmp_path: Path
) -> None:
    """Beside the heartbeat of a Hudi that was killed, whose write is gone: each write asked which rollback undid it."""
    path = unzip_golden(name, tmp_path)
    dead = leave_dead_write(path)
    table = open_table(path)
    (rollback,) = undo(table, 0, lazy=False)
    (done,) = (i for i in table.load_timeline().instants if i.requested_time == rollback)
    (path / table.instant_path(done)).write_bytes(record)
    if not with_plan:
        (path / table.instant_path(done.at(State.REQUESTED))).unlink()
    beats = [path / heartbeat_path(time) for time in (dead.instant.requested_time, "20200101000000000")]
    for beat in beats:
        beat.parent.mkdir(exist_ok=True)
        beat.write_bytes(b"")
    make_old(set(beats), 3600.0)
    assert undo(table, 0) == []
    assert [beat.exists() for beat in beats] == [not with_plan, True]
