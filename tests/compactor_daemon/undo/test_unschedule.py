"""A requested compaction is taken back: nothing is lost, doubled or hidden, no instant is decided or used again."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import phantombase.compactor_daemon.undo.preconditions
import phantombase.compactor_daemon.undo.unschedule
from phantombase.compactor_daemon.attempt.attempt import decide_commit, open_attempt
from phantombase.compactor_daemon.attempt.compact_or_resume import compact_instant, pending_instants
from phantombase.compactor_daemon.attempt.finish import finish_completed
from phantombase.compactor_daemon.attempt.hudi_executors import inflight_path
from phantombase.compactor_daemon.attempt.outcome import find_decision, read_outcome
from phantombase.compactor_daemon.attempt.publish import place, publish
from phantombase.compactor_daemon.attempt.slice_record import completed_compaction
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.errors import BarrierError, ConflictError, MissingFileError, UsageError
from phantombase.timeline.format.rollback_plan import RollbackPlan, encode_rollback_plan
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.instants.reserved_times import CANCELLED, attempts, recorded_instants
from phantombase.timeline.locks.heartbeat import heartbeat, heartbeat_path
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.staged_file import probe
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.transaction import transaction
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import (
    OPTIONS,
    OUTPUT,
    base_files,
    check_no_strays,
    decided,
    open_table,
    run_all,
    run_one,
    staged,
)
from tests.support.failing_storage import Call, HookedStorage
from tests.support.faults import died_or_ended
from tests.support.golden_tables import LOCK, one_of
from tests.support.interleaving import Actor, FleetInfo
from tests.support.places import SEED
from tests.support.trips import SCHEMA
from tests.support.written_tables import Rows, read_rows, seed_note, written_table

CHAOS = 3 * int(os.environ.get("PHANTOMBASE_CHAOS", "8"))
KEYED = WriteOptions(slots=1, small_file_bytes=0)
VERSIONS = pytest.mark.parametrize("version", [6, 9])
MODES = pytest.mark.parametrize("mode", [MergeMode.EVENT_TIME, MergeMode.COMMIT_TIME], ids=["event", "commit"])


def trips(*given: tuple[int, int, float], deleted: bool | None = None) -> pa.Table:
    """(number, ts, fare) as rows of one partition."""
    made = [(f"k{n:04d}", "mon", ts, fare, deleted) for n, ts, fare in given]
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in made], SCHEMA)


def upsert(path: Path, batch: pa.Table, operation: Operation = Operation.UPSERT) -> None:
    write(open_table(path), LocalEngine(batch, slots=1), Write(operation=operation, options=KEYED))


def schedule(path: Path) -> str:
    instant = schedule_compaction(open_table(path), LOCK).instant
    assert instant is not None
    return instant


def planned(path: Path, version: int, mode: MergeMode = MergeMode.EVENT_TIME) -> str:
    """A table of three rows; the plan's log deletes row 1 and updates row 2."""
    written_table(path, version, trips((0, 1, 1.0), (1, 1, 1.0), (2, 1, 1.0)), KEYED, mode)
    upsert(path, trips((1, 2, 2.0)).select(["id", "day"]), Operation.DELETE)
    upsert(path, trips((2, 2, 2.0)))
    return schedule(path)


BEFORE: Rows = {"k0000": (1, 1.0), "k0002": (2, 2.0)}


@one_of("version", 9, 6)
def test_a_plan_is_taken_back_and_its_groups_are_planned_again(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    instant = planned(path, version)
    done = unschedule(open_table(path), instant, LOCK)
    assert (done.instant, done.file_groups, done.attempts) == (instant, 1, ())
    assert pending_instants(open_table(path)) == ()
    assert read_rows(path) == BEFORE
    check_no_strays(path)
    assert recorded_instants(LocalStorage(str(path))) == (instant,)  # the tombstone
    upsert(path, trips((0, 3, 3.0)))
    again = schedule(path)
    assert again > instant
    plan = open_table(path).compaction_plan(again)
    assert [len(o.delta_file_paths) for o in plan.operations] == [3]
    run_all(open_table(path))
    assert read_rows(path) == {**BEFORE, "k0000": (3, 3.0)}


@one_of("version", 6, 9)
def test_what_is_not_pending_is_refused(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    instant = planned(path, version)
    with pytest.raises(UsageError, match="not a pending compaction"):
        unschedule(open_table(path), "20200101000000000", LOCK)
    unschedule(open_table(path), instant, LOCK)
    with pytest.raises(UsageError, match="not a pending compaction"):
        unschedule(open_table(path), instant, LOCK)


# --- attempts --------------------------------------------------------------------------------------------------------


@one_of("version", 9, 6)
def test_an_attempt_at_work_dies_with_the_plan(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    instant = planned(path, version)
    table = open_table(path)
    attempt, done, schema = staged(table, instant)
    assert unschedule(table, instant, LOCK).attempts == (attempt.number,)
    with pytest.raises(ConflictError, match="unscheduled"):
        decide_commit(table, attempt, done, schema, LOCK)
    assert [getattr(read_outcome(table.storage, instant, n), "kind", None) for n in (1, 2)] == ["dead", CANCELLED]
    check_no_strays(path)  # what it had staged is gone


@one_of("version", 9, 6)
@pytest.mark.parametrize("placed", [False, True])
def test_a_decision_is_taken_back_unless_it_is_being_published(version: int, placed: bool, tmp_path: Path) -> None:
    """While its publisher's heartbeat is fresh it stands. Later what was placed is taken away first; the rows stay."""
    path = tmp_path / "trips"
    instant = planned(path, version)
    table = open_table(path)
    decision = decided(table, instant)
    if placed:
        for one in decision.placements:
            place(table, decision, one)
    with heartbeat(table.storage, instant, 60), pytest.raises(ConflictError, match="is being published"):
        unschedule(open_table(path), instant, LOCK)
    unschedule(open_table(path), instant, LOCK)
    assert not base_files(path, instant)
    assert read_rows(path) == BEFORE
    with pytest.raises(ConflictError, match="its plan is gone"):
        publish(open_table(path), decision, LOCK)
    assert not base_files(path, instant)
    check_no_strays(path)


@one_of("version", 6, 9)
def test_touched_by_who_takes_no_lock_the_plan_comes_back(version: int, tmp_path: Path) -> None:
    """A Hudi compactor puts its inflight file right before the plan is gone: nobody could read the table without it."""
    path = tmp_path / "trips"
    instant = planned(path, version)

    def hook(call: Call) -> Any:
        if call.name == "delete" and call.path.endswith(".compaction.requested"):
            table = open_table(path)
            table.storage.put_if_absent(inflight_path(table, instant), b"")
        return call.do()

    with pytest.raises(ConflictError, match="Hudi compactor is or was at work"):
        unschedule(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), instant, LOCK)
    assert pending_instants(open_table(path)) == (instant,)
    assert read_rows(path) == BEFORE


def test_an_attempt_opened_on_a_plan_that_goes_this_moment_is_no_attempt(tmp_path: Path) -> None:
    """It read the plan before, and opens after everything was ended."""
    path = tmp_path / "trips"
    instant = planned(path, 9)
    left = [lambda: unschedule(open_table(path), instant, LOCK)]

    def hook(call: Call) -> Any:
        if call.name == "put_if_absent" and call.path.endswith("/open") and left:
            left.pop()()
            return open_table(path).storage.put_if_absent(call.path.replace("/1/", "/2/"), b"{}")
        return call.do()

    with pytest.raises(ConflictError, match="just unscheduled"):
        open_attempt(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), instant, OPTIONS)
    storage = open_table(path).storage
    assert all(read_outcome(storage, instant, n) is not None for n in attempts(storage, instant))


@one_of("version", 9, 6)
def test_a_compactor_between_void_and_the_plan_s_end(version: int, tmp_path: Path) -> None:
    """Only without a working lock. It is ended too; if it decides even then, its plan is put back and it publishes."""
    for decides in (False, True):
        path = tmp_path / f"trips{decides}"
        instant = planned(path, version)

        def hook(call: Call, *, path: Path = path, decides: bool = decides) -> Any:
            if call.name == "delete" and call.path.endswith("compaction.requested"):
                attempt, done, schema = staged(open_table(path), call.path.rpartition("/")[2].partition(".")[0])
                if decides:
                    decide_commit(open_table(path), attempt, done, schema, ProcessLock("another"))
            return call.do()

        table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
        if decides:
            with pytest.raises(ConflictError, match="decided and is being published"):
                unschedule(table, instant, LOCK)
            run_all(open_table(path))
            assert completed_compaction(open_table(path), instant) is not None
        else:
            assert unschedule(table, instant, LOCK).attempts == (2,)
            assert [f.kind for n in (1, 2) if (f := read_outcome(table.storage, instant, n))] == [CANCELLED, "dead"]
        assert read_rows(path) == BEFORE
        check_no_strays(path)


@one_of("version", 9, 6)
def test_died_at_every_call_it_can_be_done_again_or_executed(version: int, tmp_path: Path) -> None:
    """Dead before the plan is gone, nothing has happened: compactors and a second try both go on."""
    origin = tmp_path / "origin"
    instant = planned(origin, version)
    staged(open_table(origin), instant)  # something to clean up
    died = 0
    for died, path in enumerate(died_or_ended(origin, lambda storage: unschedule(Table.on(storage), instant, LOCK))):
        assert read_rows(path) == BEFORE
        if pending_instants(open_table(path)):
            if died % 2:
                unschedule(open_table(path), instant, LOCK)
            else:
                run_one(open_table(path), instant)
        finish_completed(open_table(path), ProcessLock("finish"))
        assert pending_instants(open_table(path)) == ()
        assert read_rows(path) == BEFORE
        check_no_strays(path)
    assert died > 5


@pytest.mark.parametrize("lock_works", [True, False], ids=["lock", "no lock"])
@one_of("version", 6, 9)
def test_interleaved_with_a_compactor_one_of_them_wins(
    version: int, lock_works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every storage call, by a seed; without a lock too there is no `commit` without a plan."""
    origin = tmp_path / "origin"
    instant = planned(origin, version)
    won: Counter[str] = Counter()
    for number in range(20 * CHAOS):
        if number >= CHAOS and won["unscheduler"] and won["compactor"]:
            break  # both have been seen; how many turns that takes is luck
        seed = SEED + number
        with seed_note(seed, version, lock_works), monkeypatch.context() as patch:
            path = shutil.copytree(origin, tmp_path / f"trips{number}")
            fleet_info = FleetInfo(str(path), seed, lambda *_: None)
            fleet_info.play(patch)
            try:
                fleet_info.start("compactor", partial(_compacts, fleet_info, instant, lock_works))
                fleet_info.start("unscheduler", partial(_unschedules, fleet_info, instant, lock_works))
                while fleet_info.step():
                    pass
            finally:
                fleet_info.end()
            storage = LocalStorage(str(path))
            outcomes = [read_outcome(storage, instant, n) for n in attempts(storage, instant)]
            assert [f.kind for f in outcomes if f is not None].count("commit") <= 1
            decision, plan = find_decision(storage, instant), pending_instants(open_table(path))
            gone = not any(i.requested_time == instant for i in open_table(path).load_timeline().instants)
            assert decision is None or not gone
            won["compactor" if decision else "nobody" if plan else "unscheduler"] += 1
            run_all(open_table(path))
            assert read_rows(path) == BEFORE
            check_no_strays(path)
            shutil.rmtree(path)
    print("WON", version, lock_works, dict(won))
    assert won["unscheduler"]
    assert won["compactor"]


def _compacts(fleet_info: FleetInfo, instant: str, lock_works: bool, actor: Actor) -> None:
    with suppress(ConflictError, MissingFileError):
        compact_instant(
            Table.on(actor.storage),
            instant,
            lock=fleet_info if lock_works else ProcessLock(actor.name),
            runner=LocalRunner(1),
            progress=lambda done, total: None,
            output=OUTPUT,
            options=OPTIONS,
        )


def _unschedules(fleet_info: FleetInfo, instant: str, lock_works: bool, actor: Actor) -> None:
    actor.rest(fleet_info.pick.randrange(fleet_info.pick.choice((1, 120))))
    with suppress(ConflictError, UsageError):
        unschedule(Table.on(actor.storage), instant, fleet_info if lock_works else ProcessLock(actor.name))


def test_a_key_that_is_moved_while_keys_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at keys takes its time outside the lock: what changed since is looked at again."""
    path = tmp_path / "trips"
    instant = planned(path, 9)
    moves = [lambda: upsert(path, trips((1, 3, 3.0)))]

    def moved_meanwhile(storage: Storage) -> None:
        probe(storage)
        if moves:
            moves.pop()()

    monkeypatch.setattr(LocalStorage, "verify", moved_meanwhile)
    with pytest.raises(ConflictError, match="now in another file group"):
        unschedule(open_table(path), instant, LOCK)


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_the_command(as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "trips"
    instant = planned(path, 9)
    command = ["unschedule", str(path), instant]
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, UsageError)
    assert "one of --lock and --sole-writer" in str(refused.exception)
    done = CliRunner().invoke(app, [*command, "--sole-writer", *(["--json"] if as_json else [])])
    assert done.exit_code == 0
    if as_json:
        found = {"table": str(path), "instant": instant, "file_groups": 1, "attempts": [], "dry_run": False}
        assert json.loads(done.stdout) == found
    else:
        assert f"unscheduled compaction {instant}: 1 file group free for the next plan" in done.stdout


# --- what must be executed -------------------------------------------------------------------------------------------


@one_of("version", 9, 6)
@MODES
def test_a_key_that_was_moved_would_double(
    version: int, mode: MergeMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the rule off: two base files hold the key, and Hudi's next upsert updates both. Executed: one does."""
    for rule in (True, False):
        path = tmp_path / f"trips{rule}"
        instant = planned(path, version, mode)
        upsert(path, trips((1, 3, 3.0)))  # not into the log on top: the file under the plan will lack it
        expected = {**BEFORE, "k0001": (3, 3.0)}
        assert read_rows(path) == expected
        if rule:
            with pytest.raises(ConflictError, match=r"now in another file group.*k0001.*Execute"):
                unschedule(open_table(path), instant, LOCK)
            run_all(open_table(path))
        else:
            monkeypatch.setattr(phantombase.compactor_daemon.undo.unschedule, "refuse_moved", lambda *_: None)
            unschedule(open_table(path), instant, LOCK)
            assert read_rows(path) == expected
        in_bases = read_table(open_table(path), ReadOptions(query=Query.READ_OPTIMIZED))["id"].to_pylist()
        assert in_bases.count("k0001") == (1 if rule else 2)
        upsert(path, trips((1, 4, 4.0)))  # ours asks where the key is alive
        assert read_rows(path) == {**expected, "k0001": (4, 4.0)}


@one_of("version", 9, 8, 6)
@pytest.mark.parametrize("superseded", [False, True], ids=["replaced", "superseded"])
def test_a_moved_key_whose_file_may_come_back_would_double(version: int, superseded: bool, tmp_path: Path) -> None:
    """By a restore to the state that had it; the plan would not come back with it."""
    path = tmp_path / "trips"
    instant = planned(path, version)
    upsert(path, trips((1, 3, 3.0)))
    moved, rows = max(open_table(path).load_timeline().completed_writes), read_rows(path)
    if superseded:
        upsert(path, trips((1, 4, 4.0)).select(["id", "day"]), Operation.DELETE)
        run_one(open_table(path), schedule(path))
    else:
        upsert(path, trips((9, 4, 4.0)), Operation.INSERT_OVERWRITE)
    with pytest.raises(ConflictError, match=r"now in another file group.*k0001"):
        unschedule(open_table(path), instant, LOCK)
    restore_table(open_table(path), LOCK, moved)
    assert read_rows(path) == rows
    upsert(path, trips((1, 9, 9.0)))
    assert read_rows(path) == {**rows, "k0001": (9, 9.0)}


@one_of("version", 6, 9)
def test_keys_that_were_not_moved_are_no_hindrance(version: int, tmp_path: Path) -> None:
    """New keys beside the plan, and deletes that another file's rows outlived."""
    path = tmp_path / "trips"
    instant = planned(path, version)
    upsert(path, trips((7, 1, 7.0)))
    unschedule(open_table(path), instant, LOCK)
    assert read_rows(path) == {**BEFORE, "k0007": (1, 7.0)}
    upsert(path, trips((1, 4, 4.0)))
    assert read_rows(path) == {**BEFORE, "k0007": (1, 7.0), "k0001": (4, 4.0)}


def test_a_key_deleted_by_a_mark_that_lost_was_not_moved(tmp_path: Path) -> None:
    """Event time: the delete is older than the row, so the row lives and an upsert finds it. Nothing to wait for."""
    path = tmp_path / "trips"
    written_table(path, 9, trips((0, 1, 1.0), (1, 5, 1.0)), KEYED)
    upsert(path, trips((1, 2, 2.0), deleted=True))
    instant = schedule(path)
    upsert(path, trips((7, 1, 7.0)))
    with transaction(open_table(path), LOCK, 30.0):
        unschedule(open_table(path), instant, LOCK)
    assert read_rows(path) == {"k0000": (1, 1.0), "k0001": (5, 1.0), "k0007": (1, 7.0)}


@one_of("version", 9, 6)
def test_a_write_that_may_still_move_a_key_is_waited_for(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    instant = planned(path, version)
    with transaction(open_table(path), LOCK, 30.0) as pending, pytest.raises(BarrierError, match=pending.instant):
        unschedule(open_table(path), instant, LOCK)


def test_a_write_that_can_move_nothing_is_not(tmp_path: Path) -> None:
    """Version 9; on version 6 it may write to the plan's slice."""
    for version in (9, 6):
        path = tmp_path / f"trips{version}"
        written_table(path, version, trips((0, 1, 1.0), (1, 1, 1.0)).drop_columns("_hoodie_is_deleted"), KEYED)
        upsert(path, trips((1, 2, 2.0)).drop_columns("_hoodie_is_deleted"))
        instant = schedule(path)
        with transaction(open_table(path), LOCK, 30.0) as pending:
            if version == 6:
                with pytest.raises(BarrierError, match=pending.instant):
                    unschedule(open_table(path), instant, LOCK)
                continue
            unschedule(open_table(path), instant, LOCK)
            assert pending_instants(open_table(path)) == ()


def test_logs_on_the_plan_would_be_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 6; without the rule a read misses them. On version 9 they lie by their own completion time."""
    for version, rule in ((9, True), (6, True), (6, False)):
        path = tmp_path / f"trips{version}{rule}"
        instant = planned(path, version)
        upsert(path, trips((2, 3, 3.0)))
        expected = {**BEFORE, "k0002": (3, 3.0)}
        assert read_rows(path) == expected
        if version == 6 and rule:
            with pytest.raises(ConflictError, match=r"file of this instant.*Execute"):
                unschedule(open_table(path), instant, LOCK)
            run_all(open_table(path))
        elif rule:
            unschedule(open_table(path), instant, LOCK)
        else:
            monkeypatch.setattr(phantombase.compactor_daemon.undo.preconditions, "_refuse_files", lambda *_, **__: ())
            unschedule(open_table(path), instant, LOCK)
            with pytest.raises(MissingFileError, match="in no file slice"):
                read_rows(path)
            continue
        assert read_rows(path) == expected


@one_of("version", 9, 6)
def test_what_hudi_began_is_to_be_executed(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    instant = planned(path, version)
    table = open_table(path)
    storage = table.storage
    beat = path / heartbeat_path(instant)
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    with pytest.raises(ConflictError, match="fresh heartbeat"):
        unschedule(table, instant, LOCK)
    beat.unlink()
    storage.put_if_absent(inflight_path(table, instant), b"")
    with pytest.raises(ConflictError, match="inflight file"):
        unschedule(table, instant, LOCK)
    storage.delete(inflight_path(table, instant))
    stray = next(path.glob("mon/*.parquet"))
    left = stray.with_name(f"{'_'.join(stray.name.split('_')[:-1])}_{instant}.parquet")
    left.write_bytes(stray.read_bytes())
    with pytest.raises(ConflictError, match="file of this instant"):
        unschedule(table, instant, LOCK)
    left.unlink()
    rollback = table.config.timeline_folder + "/99990101000000000.rollback.requested"
    plan = RollbackPlan(target=instant, action="compaction")
    storage.put_if_absent(rollback, encode_rollback_plan(plan, storage.base_path))
    with pytest.raises(ConflictError, match="rollback"):
        unschedule(table, instant, LOCK)
    assert attempts(storage, instant) == ()
    storage.delete(rollback)
    unschedule(table, instant, LOCK)


# --- the instant is never used again ---------------------------------------------------------------------------------


@VERSIONS
def test_its_time_is_not_used_again_even_when_its_records_are_forgotten(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are forgotten once the active timeline begins behind them: then everything on it is later."""
    path = tmp_path / "trips"
    instant = planned(path, version)
    unschedule(open_table(path), instant, LOCK)
    table = open_table(path)
    upsert(path, trips((0, 3, 3.0)))
    for name in [e.name for e in table.storage.list(table.config.timeline_folder)]:
        if name[:17].isdigit() and name[:17] < instant:  # as if archived
            table.storage.delete(f"{table.config.timeline_folder}/{name}")
    finish_completed(table, ProcessLock("finish"))
    assert recorded_instants(table.storage) == ()
    monkeypatch.setattr(Table, "now", lambda _: datetime(2020, 1, 1))  # its clock stands still
    scheduled = schedule_compaction(table, LOCK)
    assert scheduled.instant is not None
    assert scheduled.instant > instant
