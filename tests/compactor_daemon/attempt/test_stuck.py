"""Stuck states, each with a command that ends it and is named in the error."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.attempt.finish import finish_completed
from phantombase.compactor_daemon.attempt.hudi_executors import inflight_path
from phantombase.compactor_daemon.attempt.publish import publish
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings, TableOnStorage
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.claims import TableClaims
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError, PhantombaseError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.reserved_times import recorded_instants
from phantombase.timeline.metadata_table import commit
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.planning.limits import Picking
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import Scheduled, schedule_compaction
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import WriteOptions
from tests.support.change_feeds import request
from tests.support.compaction_steps import check_no_strays, decided, open_table, run_all
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.faults import died_or_ended
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.moved_tables import BEFORE, planned, schedule, timeline_files, upsert
from tests.support.selection import deep
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table

LONG_AGO = (1_000_000_000, 1_000_000_000)


def leave_executor(path: Path, instant: str) -> tuple[Path, Path]:
    """What a Hudi compactor leaves that died long ago: its inflight file and a base file; both paths."""
    table = open_table(path)
    inflight = path / inflight_path(table, instant)
    inflight.write_bytes(b"")
    base = next(path.glob("*/*.parquet"))
    left = base.with_name(f"{base.name.split('_')[0]}_7-7-7_{instant}.parquet")
    shutil.copy(base, left)
    for file in (inflight, left):
        os.utime(file, LONG_AGO)
    return inflight, left


def lose_planned_log(path: Path) -> tuple[Path, bytes]:
    """The file, and what it held: a copy."""
    log = next(path.glob("*/.*.log.*"))
    content = log.read_bytes()
    log.unlink()
    return log, content


@one_of("version", 9, 6)
def test_a_dead_executor_and_a_lost_input(version: int, tmp_path: Path) -> None:
    """Hudi's own compaction fails at the lost file and leaves its inflight file: the command that is named works."""
    path = tmp_path / "t"
    instant = planned(path, version)
    inflight, left = leave_executor(path, instant)
    lost, copy = lose_planned_log(path)
    with pytest.raises(MissingFileError, match=f"unschedule TABLE {instant}"):
        run_all(open_table(path))
    unschedule(open_table(path), instant, LOCK)
    assert pending_instants(open_table(path)) == ()
    assert not inflight.exists()
    assert not left.exists()
    with pytest.raises(MissingFileError, match="Restore the file from a copy"):  # never fewer rows
        read_rows(path)
    lost.write_bytes(copy)
    assert read_rows(path) == BEFORE
    upsert(LocalStorage(str(path)), rows((0, 5, 5.0)))
    assert read_rows(path)["k0000"] == (5, 5.0)


@one_of("version", 6, 9)
def test_died_at_every_call_the_executor_s_state_is_still_one_that_hudi_knows(version: int, tmp_path: Path) -> None:
    """No inflight file without its plan: readers would look for the plan."""
    origin = tmp_path / "origin"
    instant = planned(origin, version)
    leave_executor(origin, instant)
    for path in died_or_ended(origin, lambda storage: unschedule(Table.on(storage), instant, LOCK)):
        assert read_rows(path) == BEFORE
        if pending_instants(open_table(path)):
            unschedule(open_table(path), instant, LOCK)
        assert pending_instants(open_table(path)) == ()
        assert read_rows(path) == BEFORE
        check_no_strays(path)


@one_of("version", 9, 6)
def test_another_executor_begins_meanwhile(version: int, tmp_path: Path) -> None:
    """Plan and inflight file are back: its successor finds what Hudi expects."""
    path = tmp_path / "t"
    instant = planned(path, version)
    inflight, _ = leave_executor(path, instant)

    def hook(call: Call) -> Any:
        result = call.do()
        if call.name == "delete" and call.path.endswith(".compaction.requested"):
            inflight.write_bytes(b"")
        return result

    with pytest.raises(ConflictError, match="Hudi compactor"):
        unschedule(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), instant, LOCK)
    assert inflight.exists()
    assert pending_instants(open_table(path)) == (instant,)
    assert read_rows(path) == BEFORE


@one_of("version", 9, 6)
def test_put_back_after_a_conflict_the_dead_executor_shows_too(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    instant = planned(path, version)
    inflight, left = leave_executor(path, instant)

    def hook(call: Call) -> Any:
        result = call.do()
        if call.name == "delete" and call.path.endswith(".compaction.requested"):
            left.write_bytes(b"")  # a process that was taken for dead
        return result

    with pytest.raises(ConflictError, match="file of this instant"):
        unschedule(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), instant, LOCK)
    assert inflight.exists()
    assert pending_instants(open_table(path)) == (instant,)
    assert read_rows(path) == BEFORE


def test_an_executor_that_may_live_is_left_alone(tmp_path: Path) -> None:
    """Its inflight file is old, but not what it has just written."""
    path = tmp_path / "t"
    instant = planned(path, 9)
    inflight, left = leave_executor(path, instant)
    os.utime(left)
    with pytest.raises(ConflictError, match=r"is or was at work.*[Ww]ait until"):
        unschedule(open_table(path), instant, LOCK)
    assert inflight.exists()
    assert left.exists()


def test_on_version_6_with_writes_on_the_plan_the_errors_name_what_works(tmp_path: Path) -> None:
    """A lost input, and a log that only the plan shows: neither command ends it, so neither names the other."""
    path = tmp_path / "t"
    planned(path, 6)
    gone = next(path.glob("*/.*.log.*"))
    kept = gone.read_bytes()
    upsert(LocalStorage(str(path)), rows((3, 5, 5.0)))
    gone.unlink()
    (instant,) = pending_instants(open_table(path))
    with pytest.raises(MissingFileError) as lost:
        run_all(open_table(path))
    assert "compactor-daemon unschedule" not in str(lost.value)
    assert "restore the table to an instant before it was written" in str(lost.value)
    with pytest.raises(ConflictError, match="or the table to an instant before they were written"):
        unschedule(open_table(path), instant, LOCK)
    gone.write_bytes(kept)
    run_all(open_table(path))
    assert read_rows(path) == {**BEFORE, "k0003": (5, 5.0)}


@one_of("version", 6, 9)
@pytest.mark.parametrize("later", [True, False])
def test_two_plans_that_share_a_file_group(version: int, later: bool, tmp_path: Path) -> None:
    """As where a planner takes no lock: nobody can read the table; either can be taken back."""
    path = tmp_path / "t"
    first = planned(path, version)
    table = open_table(path)
    second = table.snapshot().next_time()
    plan = path / table.instant_path(table.files.requested_merge(first))
    shutil.copy(plan, plan.with_name(plan.name.replace(first, second)))
    with pytest.raises(MalformedError, match=f"unschedule TABLE {second}"):
        read_rows(path)
    unschedule(open_table(path), second if later else first, LOCK)
    assert pending_instants(open_table(path)) == (first if later else second,)
    assert read_rows(path) == BEFORE
    upsert(LocalStorage(str(path)), rows((3, 5, 5.0)))
    run_all(open_table(path))
    assert read_rows(path) == {**BEFORE, "k0003": (5, 5.0)}


def put_empty_plan(path: Path, action: str) -> tuple[str, Path]:
    """What Hudi leaves that was killed as it wrote a plan, on storage where that is done in place."""
    table = open_table(path)
    timeline = table.load_timeline()
    instant = table.with_timeline(timeline).next_time()
    file = path / table.instant_path(Instant(requested_time=instant, action=action, state=State.REQUESTED))
    file.write_bytes(b"")
    os.utime(file, LONG_AGO)
    return instant, file


def without_plan(path: Path, version: int) -> None:
    instant = planned(path, version)
    unschedule(open_table(path), instant, LOCK)


@one_of("version", 9, 6)
def test_an_empty_plan_is_taken_back(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    without_plan(path, version)
    instant, file = put_empty_plan(path, "compaction")
    with pytest.raises(MalformedError, match=f"unschedule TABLE {instant}"):
        read_rows(path)
    unschedule(open_table(path), instant, LOCK)
    assert not file.exists()
    assert instant in recorded_instants(LocalStorage(str(path)))  # the tombstone
    assert read_rows(path) == BEFORE
    scheduled = schedule(path)
    assert scheduled.instant is not None
    run_all(open_table(path))
    assert read_rows(path) == BEFORE


@one_of("version", 9, 6)
def test_an_empty_log_compaction_plan_stops_nobody(version: int, tmp_path: Path) -> None:
    """Compactions are planned beside it; log compactions are not, since its file groups are unknown."""
    path = tmp_path / "t"
    without_plan(path, version)
    instant, file = put_empty_plan(path, "logcompaction")
    scheduled = schedule(path)
    assert scheduled.instant is not None
    with suppress(MalformedError):
        run_all(open_table(path))
    unschedule(open_table(path), instant, LOCK)
    run_all(open_table(path))
    assert not file.exists()
    assert read_rows(path) == BEFORE


def test_no_log_compaction_is_planned_beside_one_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    written_table(path, 9, rows(*((n, 1, 1.0) for n in range(2000))), WriteOptions(buckets=1, slots=1))
    for n in range(3):
        upsert(LocalStorage(str(path)), rows((0, 2 + n, 2.0 + n)))
    possible = minor(path).plan
    assert possible is not None
    assert possible.merges_logs
    instant, _ = put_empty_plan(path, "logcompaction")
    refused = minor(path)
    assert refused.plan is None
    assert instant in refused.why


def minor(path: Path) -> Scheduled:
    options = replace(PLAN_NOW, picking=Picking.UNIVERSAL, compaction_trigger=3)
    return schedule_compaction(open_table(path), LOCK, options, dry_run=True)


@one_of("version", 6, 9)
def test_an_empty_plan_stays_where_something_may_rest_on_it(version: int, tmp_path: Path) -> None:
    """It is young, an executor's inflight file or a file of the instant is there, or a write came after it."""
    path = tmp_path / "t"
    without_plan(path, version)
    instant, file = put_empty_plan(path, "compaction")

    def refused(why: str, error: type[PhantombaseError] = ConflictError) -> None:
        with pytest.raises(error, match=why):
            unschedule(open_table(path), instant, LOCK)
        assert file.exists()
        assert instant not in recorded_instants(LocalStorage(str(path)))

    os.utime(file)
    refused("still be writing")
    os.utime(file, LONG_AGO)
    inflight = path / inflight_path(open_table(path), instant)
    inflight.write_bytes(b"")
    os.utime(inflight, LONG_AGO)
    refused("has begun", MalformedError)
    inflight.unlink()
    base = next(path.glob("*/*.parquet"))
    left = base.with_name(f"{base.name.split('_')[0]}_7-7-7_{instant}.parquet")
    left.write_bytes(b"")
    refused("file of this instant")
    left.unlink()
    stale = next(f for f in timeline_files(path) if f.name.endswith((".deltacommit", ".deltacommit.requested")))
    later = stale.with_name(stale.name.replace(stale.name[:17], f"{int(instant) + 1}"))
    shutil.copy(stale, later)
    refused("write came after|pending write")
    later.unlink()
    file.write_bytes(b"no plan")
    os.utime(file, LONG_AGO)
    with pytest.raises(MalformedError, match="If you have a copy"):
        unschedule(open_table(path), instant, LOCK)


def test_a_log_compaction_that_hudi_began_on_version_6_stays(tmp_path: Path) -> None:
    """What it wrote are blocks of files that others wrote: no name shows them."""
    path = tmp_path / "t"
    without_plan(path, 6)
    upsert(LocalStorage(str(path)), rows((3, 5, 5.0)))
    instant = request(open_table(path))
    inflight = path / inflight_path(open_table(path), instant)
    inflight.write_bytes(b"")
    os.utime(inflight, LONG_AGO)
    with pytest.raises(ConflictError, match="roll it back"):
        unschedule(open_table(path), instant, LOCK)
    inflight.unlink()
    unschedule(open_table(path), instant, LOCK)
    assert read_rows(path) == {**BEFORE, "k0003": (5, 5.0)}


def test_a_daemon_that_goes_by_size_serves_a_table_with_an_empty_plan(tmp_path: Path) -> None:
    path = tmp_path / "t"
    instant = planned(path, 9)
    empty, _ = put_empty_plan(path, "logcompaction")
    table = open_table(path)
    settings = DaemonSettings(
        who="d", output=OutputOptions(), attempt=AttemptOptions(), retry=RetryOptions(), order=DaemonOrder.LARGEST
    )
    served = TableOnStorage(str(path), TableClaims(table, "d"), LOCK, LocalRunner(1), settings)
    assert {p.instant: p.log_bytes > 0 for p in served.snapshot().pending} == {instant: True, empty: False}


# A decision that fell behind its entry in the metadata table: whatever dies, that table forgets it in the end.


@pytest.fixture(params=["v9", deep("v8"), deep("v6")])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A publisher died right before the completed commit, and the plan is gone."""
    path = unzip_golden(f"{request.param}_with_metadata_table", tmp_path)
    (plan,) = open_table(path).load_timeline().pending_compactions
    decision = decided(open_table(path), plan.requested_time)

    def dies(call: Call) -> object:
        if call.name == "put_if_absent" and call.path == decision.completed_path:
            raise ProcessDied(call.path)
        return call.do()

    with pytest.raises(ProcessDied):
        publish(open_table(path, HookedStorage(LocalStorage(str(path)), dies)), decision, LOCK)
    assert all((path / one.final).exists() for one in decision.placements)
    for file in (path / ".hoodie").rglob(f"{plan.requested_time}.compaction.*"):
        file.unlink()
    return path


def test_a_death_at_a_storage_call(path: Path) -> None:
    def finish(storage: Storage) -> object:
        return finish_completed(open_table(Path(storage.base_path), storage), LOCK)

    for copy in died_or_ended(path, finish):
        finish_completed(open_table(copy), LOCK)
        table = open_table(copy)
        assert validate(table).differences == ()
        assert not [f for f in copy.rglob("*.parquet") if "-990000000_" in f.name]


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_files_go_also_where_it_cannot_be_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers would take them once archiving has passed the instant."""

    def cannot(*_: object) -> None:
        raise MalformedError("the metadata table was compacted with an instant that never completed")

    monkeypatch.setattr(commit, "forget", cannot)
    with suppress(PhantombaseError):
        finish_completed(open_table(path), LOCK)
    assert not [f for f in path.rglob("*.parquet") if "-990000000_" in f.name]
