"""A pending plan is replaced by one that takes in the logs written since: no file group is ever in two plans."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.attempt import decide_commit, open_attempt
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.finish import finish_completed
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.services.maintain import pause_table, resume_table
from phantombase.compactor_daemon.undo.replan import Replanned, replan
from phantombase.timeline.errors import (
    BarrierError,
    ConflictError,
    MalformedError,
    MissingFileError,
    PausedError,
    PhantombaseError,
    UnsupportedError,
    UsageError,
)
from phantombase.timeline.instants.reserved_times import recorded_instants
from phantombase.timeline.locks.heartbeat import heartbeat
from phantombase.timeline.locks.table_lock import ProcessLock, TableLock, table_lock
from phantombase.timeline.planning.limits import Picking
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.transaction import transaction
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import one_row, rows_at, upsert_at
from tests.support.compaction_steps import OPTIONS, check_no_strays, open_table, run_all, run_one, run_under, staged
from tests.support.failing_storage import Call, Failure, HookedStorage
from tests.support.faults import Faults, LockLostBehind, died_or_ended
from tests.support.golden_tables import LOCK
from tests.support.interleaving import Actor, FleetInfo
from tests.support.places import SEED
from tests.support.selection import deep
from tests.support.servers.s3_server import Fault, S3Server
from tests.support.trips import SCHEMA
from tests.support.written_tables import Rows, read_rows, seed_note, written_table

KEYED = WriteOptions(slots=1, small_file_bytes=0, retries=9)
VERSIONS = pytest.mark.parametrize("version", [9, deep(8)])


def trips(ts: int, *numbers: int, day: str = "mon") -> pa.Table:
    rows = [(f"k{n:04d}", day, ts, float(ts), None) for n in numbers]
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def upsert(
    path: Path, batch: pa.Table, operation: Operation = Operation.UPSERT, storage: Storage | None = None
) -> None:
    write(open_table(path, storage), LocalEngine(batch, slots=1), Write(operation=operation, options=KEYED))


def planned(path: Path, version: int = 9) -> str:
    """Two file groups in a plan, one log each; since then one more log on the first, and a file group of its own."""
    written_table(path, version, pa.concat_tables([trips(1, 0, 1), trips(1, 5, day="tue")]), KEYED)
    upsert(path, pa.concat_tables([trips(2, 1), trips(2, 5, day="tue")]))
    instant = schedule_compaction(open_table(path), LOCK).instant
    assert instant is not None
    upsert(path, trips(3, 1))
    upsert(path, trips(3, 9, day="wed"))
    return instant


ROWS: Rows = {"k0000": (1, 1.0), "k0001": (3, 3.0), "k0005": (2, 2.0), "k0009": (3, 3.0)}


def plans(path: Path) -> dict[str, dict[str, int]]:
    """The number of logs of each file group (by partition) in each pending plan. An error: one is in two."""
    open_table(path).snapshot().load_facts()
    found = {i: open_table(path).compaction_plan(i).operations for i in pending_instants(open_table(path))}
    return {i: {str(o.partition_path): len(o.delta_file_paths) for o in of} for i, of in found.items()}


def check_replaced(path: Path, instant: str) -> None:
    """One plan has it all; executed it gives the rows."""
    ((by, of),) = plans(path).items()
    assert (by > instant, of) == (True, {"mon": 2, "tue": 1})
    assert read_rows(path) == ROWS
    run_all(open_table(path))
    assert (plans(path), read_rows(path)) == ({}, ROWS)
    check_no_strays(path)


@VERSIONS
def test_a_plan_is_replaced(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    instant = planned(path, version)
    told = replan(open_table(path), instant, LOCK, dry_run=True)
    assert (told.file_groups, told.log_files, plans(path)) == (2, 1, {instant: {"mon": 1, "tue": 1}})
    done = replan(open_table(path), instant, LOCK)
    assert done == Replanned(instant=instant, replaced_by=max(plans(path)), file_groups=2, log_files=1)
    assert instant in recorded_instants(LocalStorage(str(path)))  # the tombstone
    check_no_strays(path)
    again = replan(open_table(path), str(done.replaced_by), LOCK)
    assert (again.replaced_by, again.why) == (None, "no log was written to its file groups since")
    with pytest.raises(UsageError, match="not a pending compaction"):
        replan(open_table(path), instant, LOCK)
    # The next incremental plan looks where this one did not.
    upsert(path, trips(4, 9, day="wed"))
    later = schedule_compaction(open_table(path), LOCK)
    assert [o.partition_path for one in later.requested for o in one.plan.operations] == ["wed"]
    run_all(open_table(path))
    assert read_rows(path) == {**ROWS, "k0009": (4, 4.0)}


def test_at_each_moment_the_rows_are_the_same_and_no_group_is_in_two_plans(tmp_path: Path) -> None:
    """Between the removal and the put it is in none; the lock is held then."""
    path, seen = tmp_path / "trips", list[tuple[str, list[str]]]()
    instant = planned(path)

    def hook(call: Call) -> Any:
        result = call.do()
        if Failure.AFTER.can_hit(call.name):
            assert read_rows(path) == ROWS
            seen.append((call.path.rpartition("/")[2], list(plans(path))))
        return result

    done = replan(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), instant, LOCK)
    none = [name for name, of in seen if not of]
    assert none == [f"{instant}.compaction.requested"]
    assert seen[-1][1] == [done.replaced_by]


# --- deaths, errors, others ------------------------------------------------------------------------------------------


def _replans(instant: str, storage: Storage) -> None:
    replan(Table.on(storage), instant, LOCK)


def test_died_at_every_call_once_or_twice_another_continues(tmp_path: Path) -> None:
    """By the same command, or what each run and daemon finishes first."""
    origin = tmp_path / "origin"
    instant = planned(origin)
    died = faulty = 0
    faults = Faults.of(origin, partial(_replans, instant))
    for died, (point, path) in enumerate(faults.deaths(), 1):
        assert read_rows(path) == ROWS
        faulty += not plans(path)
        if died % 3 == 0 and instant in plans(path):
            faults.dies_at(point, path)
            assert read_rows(path) == ROWS
        if died % 2 or instant in plans(path):
            with suppress(UsageError):  # it was complete
                replan(open_table(path), instant, LOCK)
        else:
            finish_completed(open_table(path), LOCK)
        finish_completed(open_table(path), LOCK)
        check_replaced(path, instant)
    assert (died > 6, faulty > 0) == (True, True)


def test_what_finishes_a_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not who does not know the lock of the writers: its plan could lose the rows of one at work."""
    path = tmp_path / "trips"
    instant = planned(path)
    monkeypatch.setattr("phantombase.compactor_daemon.undo.replan.put_plans", _dies)
    with pytest.raises(KeyboardInterrupt):
        replan(open_table(path), instant, LOCK)
    command, storage = ["replan", str(path), instant], LocalStorage(str(path))
    dry = CliRunner().invoke(app, [*command, "--dry-run"])
    said = " ".join(dry.stdout.split())  # it is broken into lines
    assert "would be replaced by another one: 2 file groups" in said
    assert "this one would finish its work" in said
    finish_completed(open_table(path), table_lock(storage, None))
    assert plans(path) == {}
    (record,) = path.glob(".hoodie/.phantombase/*/*/replaced.plan")
    whole = record.read_bytes()
    record.write_bytes(b"")
    with pytest.raises(MalformedError, match="Remove this file"):
        replan(open_table(path), instant, LOCK)
    record.write_bytes(whole)
    done = CliRunner().invoke(app, ["compact", str(path), "--sole-writer", "--executor", "local"])
    assert "compacted" in done.stdout
    assert (plans(path), read_rows(path)) == ({}, ROWS)
    check_no_strays(path)


def _dies(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.deep
def test_the_finishing_dies_at_every_call(tmp_path: Path) -> None:
    """The process that continues dies, too; then a third one continues."""
    origin, half = tmp_path / "origin", tmp_path / "half"
    instant = planned(origin)
    for path in died_or_ended(origin, partial(_replans, instant)):
        if not plans(path) and not half.exists():
            shutil.copytree(path, half)
    for number, path in enumerate(died_or_ended(half, lambda s: finish_completed(Table.on(s), LOCK))):
        if number % 2 and not plans(path):
            replan(open_table(path), instant, LOCK)
        finish_completed(open_table(path), LOCK)
        check_replaced(path, instant)
    pause_table(LocalStorage(str(half)), "later")
    with pytest.raises(PausedError):
        replan(open_table(half), instant, LOCK)
    finish_completed(open_table(half), LOCK)
    assert plans(half) == {}
    resume_table(LocalStorage(str(half)))
    found = replan(open_table(half), instant, LOCK)
    assert [found.replaced_by] == list(plans(half))
    check_replaced(half, instant)


@pytest.mark.deep
def test_an_error_at_every_call(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    instant = planned(origin)
    for _, _, path, _ in Faults.of(origin, partial(_replans, instant)).errors():
        assert read_rows(path) == ROWS
        assert len(plans(path)) <= 1
        finish_completed(open_table(path), LOCK)
        if instant in plans(path):
            replan(open_table(path), instant, LOCK)
        finish_completed(open_table(path), LOCK)
        check_replaced(path, instant)


@pytest.mark.parametrize("number", [0, 1, *map(deep, range(2, 40))])
def test_beside_a_writer_a_scheduler_and_a_compactor(number: int, tmp_path: Path) -> None:
    """At every storage call, by a seed: no file group is in two plans at any moment, no row is lost or doubled."""
    path, seed = tmp_path / "trips", SEED + number
    instant = planned(path)
    with seed_note(seed), pytest.MonkeyPatch.context() as patch:
        fleet_info = FleetInfo(str(path), seed, partial(_disjoint, path))
        fleet_info.play(patch)
        try:
            fleet_info.start("replanner", partial(_acts, fleet_info, lambda t, lock: replan(t, instant, lock)))
            fleet_info.start("compactor", partial(_acts, fleet_info, lambda t, lock: run_under(t, instant, lock)))
            fleet_info.start("finisher", partial(_acts, fleet_info, finish_completed))
            fleet_info.start("scheduler", partial(_acts, fleet_info, schedule_compaction))
            fleet_info.start("writer", partial(_writes, path))
            while fleet_info.step():
                pass
        finally:
            fleet_info.end()
    finish_completed(open_table(path), LOCK)
    rows = {**ROWS, "k0001": (7, 7.0)}
    assert read_rows(path) == rows
    run_all(open_table(path))
    assert (plans(path), read_rows(path)) == ({}, rows)
    check_no_strays(path)


def _disjoint(path: Path, actor: Actor, call: Call, result: Any) -> None:
    if call.path.endswith(".compaction.requested") and Failure.AFTER.can_hit(call.name):
        plans(path)


def _acts(fleet_info: FleetInfo, do: Any, actor: Actor) -> None:
    actor.rest(fleet_info.pick.randrange(fleet_info.pick.choice((1, 150))))
    with suppress(ConflictError, UsageError, MissingFileError):
        do(Table.on(actor.storage), fleet_info)


def _writes(path: Path, actor: Actor) -> None:
    upsert(path, trips(7, 1), storage=actor.storage)


def test_a_lock_that_is_lost_before_the_put(tmp_path: Path) -> None:
    """Another process has planned the file groups since: the second plan is not put."""
    path = tmp_path / "trips"
    instant = planned(path)
    lost = list[str]()

    def hook(call: Call) -> Any:
        result = call.do()
        if call.name == "delete" and call.path.endswith(f"{instant}.compaction.requested"):
            lost.append(call.path)
            finish_completed(open_table(path), ProcessLock("another"))
        return result

    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
    with pytest.raises(PhantombaseError, match="lost"):
        replan(table, instant, LockLostBehind(lost))
    check_replaced(path, instant)


@pytest.mark.deep
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.CUT])
def test_lost_answers_of_an_object_store(fault: Fault, s3: S3Server) -> None:
    """Of every other request that changes something."""
    url, asked = f"s3://{s3.new_bucket()}/trips", count()
    for ts in range(2):
        upsert_at(url, 9, one_row("k0", ts))
    instant = str(schedule_compaction(Table.open(url), LOCK).instant)
    upsert_at(url, 9, one_row("k0", 3))
    rows = rows_at(url)
    s3.faults = lambda one: fault if one.changes and next(asked) % 2 else Fault.NONE
    done = replan(Table.open(url), instant, LOCK)
    s3.faults = lambda one: Fault.NONE
    assert (rows_at(url), pending_instants(Table.open(url))) == (rows, (done.replaced_by,))
    (operation,) = Table.open(url).compaction_plan(str(done.replaced_by)).operations
    assert len(operation.delta_file_paths) == 2
    assert next(asked) > 6


# --- refusals --------------------------------------------------------------------------------------------------------


def _refused(path: Path, instant: str, kind: type[PhantombaseError], match: str, lock: TableLock = LOCK) -> None:
    before = plans(path)
    with pytest.raises(kind, match=match):
        replan(open_table(path), instant, lock)
    assert plans(path) == before


def test_what_is_refused_keeps_the_plan(tmp_path: Path) -> None:
    old = tmp_path / "old"
    instant = planned(old, 6)
    _refused(old, instant, UnsupportedError, "on version 6.*compactor-daemon compact TABLE")
    run_all(open_table(old))
    assert [len(o.delta_file_paths) for o in schedule_compaction(open_table(old), LOCK).plan.operations] == [1]  # type: ignore[union-attr]
    path = tmp_path / "trips"
    instant = planned(path)
    _refused(path, "20200101000000000", UsageError, "not a pending compaction")
    attempt, done, schema = staged(open_table(path), instant)
    with heartbeat(LocalStorage(str(path)), instant, 60):
        _refused(path, instant, ConflictError, "a process works on this compaction.*cancel TABLE")
    decide_commit(open_table(path), attempt, done, schema, ProcessLock("d"))
    _refused(path, instant, ConflictError, "works on this compaction, or has decided it")


def test_a_file_group_that_cannot_be_planned_again(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    instant = planned(path)
    logs = sorted((path / "mon").glob(".*.log.*"), key=lambda p: p.stat().st_mtime_ns)
    logs[-1].write_bytes(b"x" * logs[-1].stat().st_size)
    _refused(path, instant, ConflictError, f"cannot be planned again.*compactor-daemon unschedule TABLE {instant}")


def test_a_replaced_file_group_needs_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    instant = planned(path)
    upsert(path, trips(5, 5, day="tue"), Operation.INSERT_OVERWRITE)
    done = replan(open_table(path), instant, LOCK)
    assert plans(path) == {str(done.replaced_by): {"mon": 2}}
    run_all(open_table(path))
    assert read_rows(path) == {**ROWS, "k0005": (5, 5.0)}


def test_moved_keys(tmp_path: Path) -> None:
    """A key that the plan's logs delete, and that a writer has put elsewhere, or may put, depends on the plan."""
    path = tmp_path / "trips"
    written_table(path, 9, trips(1, 0, 1), KEYED)
    upsert(path, trips(2, 1).select(["id", "day"]), Operation.DELETE)
    instant = str(schedule_compaction(open_table(path), LOCK).instant)
    upsert(path, trips(3, 0))
    with transaction(open_table(path), LOCK, 30.0):
        _refused(path, instant, BarrierError, "may put keys that this plan deletes")
    upsert(path, trips(4, 1))
    _refused(path, instant, ConflictError, "now in another file group")
    run_one(open_table(path), instant)
    assert read_rows(path) == {"k0000": (3, 3.0), "k0001": (4, 4.0)}


def test_an_attempt_that_was_opened_meanwhile_is_ended(tmp_path: Path) -> None:
    """It saw the plan before; it decides nothing, since its instant is over."""
    path = tmp_path / "trips"
    instant = planned(path)
    attempt, done, schema = staged(open_table(path), instant)
    assert replan(open_table(path), instant, LOCK).attempts == (attempt.number,)
    with pytest.raises(ConflictError, match="unscheduled"):
        decide_commit(open_table(path), attempt, done, schema, LOCK)
    with pytest.raises(MissingFileError):
        open_attempt(open_table(path), instant, OPTIONS)
    check_replaced(path, instant)


def test_log_compactions_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    written_table(path, 9, trips(1, *range(4000)), KEYED)
    for ts in (2, 3):
        upsert(path, trips(ts, 1))
    done = schedule_compaction(
        open_table(path),
        LOCK,
        replace(PLAN_NOW, picking=Picking.UNIVERSAL, compaction_trigger=2, max_size_amplification=10_000),
    )
    assert done.plan is not None
    assert done.plan.merges_logs
    _refused(path, str(done.instant), UnsupportedError, "a log compaction is not replaced")


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_the_command(as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "trips"
    instant = planned(path)
    command = ["replan", str(path), instant, *(["--json"] if as_json else [])]
    dry = CliRunner().invoke(app, [*command, "--dry-run"])
    assert (dry.exit_code, list(plans(path))) == (0, [instant])
    done = CliRunner().invoke(app, [*command, "--sole-writer"])
    assert done.exit_code == 0
    (by,) = plans(path)
    if as_json:
        told = {"instant": instant, "replaced_by": by, "file_groups": 2, "log_files": 1, "attempts": [], "why": ""}
        assert json.loads(done.stdout) == {"table": str(path), "dry_run": False, **told}
    else:
        assert done.stdout.strip() == f"compaction {instant} replaced by {by}: 2 file groups, 1 more log file"
        assert "would be replaced by another one: 2 file groups, 1 more log file" in dry.stdout
    kept = CliRunner().invoke(app, ["replan", str(path), by, "--sole-writer"])
    assert f"compaction {by} is kept; no log was written" in kept.stdout
