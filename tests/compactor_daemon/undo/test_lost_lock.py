"""A restore or rollback sleeps, loses the lock, and others go on: no row of theirs is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.cleaning.choice import Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.undo import restore as restore_module
from phantombase.compactor_daemon.undo import rollback
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.errors import ConflictError, LockError, PhantombaseError
from phantombase.timeline.locks.heartbeat import Process
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import CLEAN, REWRITES, WRITES, check_usable, compact, one_row, restore, upsert
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at_nth
from tests.support.faults import LockLostBehind, plan_put, roll_back_half_way, small_table
from tests.support.golden_tables import LOCK, one_of
from tests.support.selection import ALL
from tests.support.written_tables import read_rows, written_table

COMMANDS = pytest.mark.parametrize("command", ["rollback", "restore"])


def others(path: Path) -> None:
    """They write, compact and clean: the states before are gone."""
    with suppress(ConflictError):
        upsert(path, one_row("k2", 2), REWRITES)
        upsert(path, one_row("k0", 3))
        compact(path)
        clean_table(open_table(path), replace(CLEAN, policy=Policy.VERSIONS), LOCK)


class Sleeper:
    """A process that makes the others run right before one of its calls, and has lost the lock then."""

    def __init__(self, path: Path, before: Callable[[Call], bool], *, dies: bool = False) -> None:
        self.path, self.slept = path, list[str]()
        self._before, self._dies = before, dies

    def hook(self, call: Call) -> Any:
        if not self.slept and self._before(call):
            self.slept.append(call.path)
            others(self.path)
            done = call.do()
            if self._dies:
                raise ProcessDied(call.path)
            return done
        return call.do()

    def run(self, command: str, target: str) -> None:
        table = open_table(self.path, HookedStorage(LocalStorage(str(self.path)), self.hook))
        lock = LockLostBehind(self.slept)
        if command == "restore":
            restore_table(table, lock, target)
        else:
            roll_back_newest(table, lock, max(open_table(self.path).load_timeline().completed_writes))


@one_of("version", 9, 8, 6)
@COMMANDS
def test_a_plan_that_came_too_late_goes_again(command: str, version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    first = small_table(path, version)
    sleeper = Sleeper(path, plan_put)
    with pytest.raises(LockError):
        sleeper.run(command, first)
    assert sleeper.slept
    check_usable(path, {"k0": (3, 3.0), "k1": (1, 1.0), "k2": (2, 2.0)})


@one_of("version", 6, 9, 8)
@COMMANDS
def test_nothing_is_built_upon_what_will_be_hidden(command: str, version: int, tmp_path: Path) -> None:
    """It sleeps right before each call that changes something, behind its plan: the next run goes on."""
    number = 0
    while True:
        path = tmp_path / f"at{number}"
        first, before = small_table(path, version), read_rows(path)
        planned, seen = list[str](), list[str]()

        def is_it(call: Call, planned: list[str] = planned, seen: list[str] = seen, nth: int = number) -> bool:
            if plan_put(call):
                planned.append(call.path)
            elif planned and call.name in ("delete", "delete_all", "put", "put_if_absent"):
                seen.append(call.path)
                return len(seen) > nth
            return False

        sleeper = Sleeper(path, is_it)
        newest = max(open_table(path).load_timeline().completed_writes)
        with suppress(PhantombaseError):
            sleeper.run(command, first)
        if not sleeper.slept:
            break
        rows = read_rows(path)
        assert rows["k0"][0] in (0, 3), (sleeper.slept, rows)
        with suppress(PhantombaseError):  # it may be done
            restore(path, first) if command == "restore" else roll_back_newest(open_table(path), LOCK, newest)
        left = read_rows(path)
        if "k2" in rows:  # the others came before or behind it
            assert left == rows, sleeper.slept
        else:
            assert left in ({"k0": (0, 0.0)}, before), sleeper.slept
        check_usable(path, left)
        number += 1 if ALL else 3
    assert number > 4


@one_of("version", 9, 8, 6)
def test_a_restore_whose_plan_came_too_late_is_not_finished(version: int, tmp_path: Path) -> None:
    """Its process died right behind the put."""
    path = tmp_path / "trips"
    first = small_table(path, version)
    with pytest.raises(ProcessDied):
        Sleeper(path, plan_put, dies=True).run("restore", first)
    rows = {"k0": (3, 3.0), "k1": (1, 1.0), "k2": (2, 2.0)}
    for target in (first, None):
        with pytest.raises(ConflictError, match=r"does not know a later write.*remove this file by hand"):
            restore(path, target)
    assert read_rows(path) == rows
    (plan,) = (path / ".hoodie").rglob("*.restore.requested")
    plan.unlink()
    check_usable(path, rows)


@one_of("version", 9, 8, 6)
def test_a_rollback_that_has_hidden_nothing_goes_with_its_process(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it may only sleep, nothing is built upon the write; of another machine that is not known."""
    path = tmp_path / "trips"
    small_table(path, version)
    before, newest = read_rows(path), max(open_table(path).load_timeline().completed_writes)
    roll_back_half_way(path, newest)
    for beat in (path / ".hoodie/.heartbeat").glob("*"):  # an old one counts, too: its process may sleep
        os.utime(beat, (1e9, 1e9))
    with pytest.raises(ConflictError, match="the rollback of a completed write is in progress"):
        upsert(path, one_row("k2", 2))
    monkeypatch.setattr(Process, "is_gone", lambda _process: True)
    upsert(path, one_row("k2", 2))
    assert read_rows(path) == before | {"k2": (2, 2.0)}
    assert not list((path / ".hoodie").rglob("*.rollback*"))


@one_of("version", 6, 9, 8)
def test_a_process_that_goes_on_with_a_rollback_keeps_its_plan(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process is gone, the second one sleeps before it hides the write, and has lost the lock."""
    path = tmp_path / "trips"
    small_table(path, version)
    newest = max(open_table(path).load_timeline().completed_writes)
    first = Process(host="host", boot="boot", pid=1, started=1)
    with monkeypatch.context() as patch:
        patch.setattr(Process, "current", lambda: first)
        roll_back_half_way(path, newest)
    monkeypatch.setattr(Process, "is_gone", lambda process: process == first)
    completed = [i for i in open_table(path).load_timeline().completed if i.requested_time == newest]
    hidden = open_table(path).instant_path(completed[0])
    sleeper = Sleeper(path, lambda call: call.name == "delete" and call.path == hidden)
    with suppress(PhantombaseError):
        sleeper.run("rollback", "")
    assert sleeper.slept
    with suppress(PhantombaseError):
        roll_back_newest(open_table(path), LOCK, newest)
    check_usable(path, {"k0": (0, 0.0)})


@one_of("version", 9, 8, 6)
def test_a_late_plan_that_another_process_goes_on_with_stays(version: int, tmp_path: Path) -> None:
    """The second one may only sleep before it hides the write."""
    path = tmp_path / "trips"
    small_table(path, version)
    newest, slept = max(open_table(path).load_timeline().completed_writes), list[str]()

    def hook(call: Call) -> Any:
        done = call.do()
        if not slept and plan_put(call):
            slept.append(call.path)
            storage = HookedStorage(LocalStorage(str(path)), die_at_nth(1, "delete", "commit"))
            with pytest.raises(ProcessDied):
                roll_back_newest(open_table(path, storage), LOCK, newest)
        return done

    with pytest.raises(LockError):
        roll_back_newest(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), LockLostBehind(slept), newest)
    assert len(list((path / ".hoodie").rglob("*.rollback.requested"))) == 1
    roll_back_newest(open_table(path), LOCK, newest)
    check_usable(path, {"k0": (0, 0.0)})


def half_way(path: Path, version: int) -> str:
    """A rollback of the newest write that has its plan, of another machine; the write."""
    small_table(path, version)
    newest = max(open_table(path).load_timeline().completed_writes)
    roll_back_half_way(path, newest)
    return newest


@one_of("version", 9, 8, 6)
def test_of_two_processes_that_roll_back_the_one_that_may_sleep_counts(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one goes on with the plan of the first one, and is killed."""
    path = tmp_path / "trips"
    newest = half_way(path, version)
    second = Process(host="host", boot="boot", pid=2, started=2)
    with monkeypatch.context() as patch:
        patch.setattr(Process, "current", lambda: second)
        storage = HookedStorage(LocalStorage(str(path)), die_at_nth(1, "delete", "commit"))
        with pytest.raises(ProcessDied):
            roll_back_newest(open_table(path, storage), LOCK, newest)
    monkeypatch.setattr(Process, "is_gone", lambda process: process == second)
    with pytest.raises(ConflictError, match="in progress"):
        upsert(path, one_row("k2", 2))


@one_of("version", 6, 9, 8)
def test_a_pending_clean_goes_where_a_rollback_needs_its_files(version: int, tmp_path: Path) -> None:
    """Its process slept right before it put its plan. Neither waits for the other."""
    path = tmp_path / "trips"
    small_table(path, version)
    newest = max(open_table(path).load_timeline().completed_writes)
    slept: list[str] = []

    def hook(call: Call) -> Any:
        if not slept and call.name == "put_if_absent" and call.path.endswith(".clean.requested"):
            slept.append(call.path)
            roll_back_half_way(path, newest)
        return call.do()

    versions = replace(CLEAN, policy=Policy.VERSIONS)
    with pytest.raises(LockError):
        clean_table(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), versions, LockLostBehind(slept))
    with pytest.raises(ConflictError, match="in progress"):
        clean_table(open_table(path), versions, LOCK)
    roll_back_newest(open_table(path), LOCK, newest)
    check_usable(path, {"k0": (0, 0.0)})


@one_of("version", 9, 8, 6)
def test_no_compaction_completes_beside_a_rollback(version: int, tmp_path: Path) -> None:
    """It would stand in its way: "only the newest write can be rolled back"."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), WRITES)
    upsert(path, one_row("k0", 1))
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    before = read_rows(path)
    upsert(path, one_row("k0", 2))
    newest = max(open_table(path).load_timeline().completed_writes)
    roll_back_half_way(path, newest)
    with pytest.raises(ConflictError, match=f"a rollback of {newest} is pending"):
        run_all(open_table(path))
    roll_back_newest(open_table(path), LOCK, newest)
    run_all(open_table(path))
    check_usable(path, before)


@one_of("version", 9, 8, 6)
@COMMANDS
def test_a_write_that_began_beside_it_does_not_complete(
    command: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process slept right before it began, and has lost the lock: the command did not see it."""
    path = tmp_path / "trips"
    first = small_table(path, version)
    newest, slept = max(open_table(path).load_timeline().completed_writes), list[str]()

    def hook(call: Call) -> Any:
        if not slept and call.name == "open_output":
            slept.append(call.path)
            with monkeypatch.context() as patch:
                for module in (rollback, restore_module):
                    patch.setattr(module, "refuse_work", lambda *_: None)
                patch.setattr(rollback, "refuse_built_upon", lambda *_: None)
                patch.setattr(restore_module, "refuse_writers", lambda *_: None)
                patch.setattr(restore_module, "to_undo", lambda *_: ((newest, "deltacommit"),))
                patch.setattr(restore_module, "roll_back_dead_writers", lambda *_, **__: None)
                restore(path, first) if command == "restore" else roll_back_newest(open_table(path), LOCK, newest)
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
    operation = Write(operation=Operation.UPSERT, options=WRITES)
    with pytest.raises(ConflictError, match="a write that this one has seen was undone since then"):
        write(table, LocalEngine(one_row("k0", 3), slots=1), operation)
    assert slept
    check_usable(path, {"k0": (0, 0.0)})
