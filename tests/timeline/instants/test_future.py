"""Instants in the future, and instants that are no dates: nothing is chosen above them, and each way out works."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase import read, writer
from phantombase.compactor_daemon.attempt.attempt import open_attempt
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.hudi_executors import inflight_path
from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.cli.main import app as timeline_app
from phantombase.timeline.errors import ClockError, ConflictError
from phantombase.timeline.format.instant import format_time
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.instants.reserved_times import put_tombstone
from phantombase.timeline.instants.table_clock import TableClock
from phantombase.timeline.locks.heartbeat import Process, heartbeat_path
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import rename
from tests.support.clock import schedule, upsert
from tests.support.compaction_steps import OPTIONS, decided, open_table, run_all
from tests.support.faults import leave_dead_write
from tests.support.golden_tables import LOCK, unzip_golden
from tests.support.servers.s3_server import S3Server
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table

AVRO = WriteOptions(buckets=1, slots=1, log_format=LogFormat.AVRO)
IMPOSSIBLE = "20260230010203000"
AHEAD = {"5 hours": timedelta(hours=5), "28 hours": timedelta(hours=28), "40 days": timedelta(days=40)}


def run(*args: str) -> None:
    """A command that must end well."""
    done = CliRunner().invoke(daemon, list(args))
    assert done.exit_code == 0, (done.output, done.exception)


def three_writes(path: Path, version: int, *, times: bool = True) -> None:
    """`times` False: as copied without the times of files, so that they tell nothing."""
    written_table(path, version, rows((0, 1, 1.0), (1, 1, 1.0)), AVRO)
    for ts in (2, 3):
        upsert(path, rows((0, ts, float(ts))), AVRO)
    if not times:
        for number, days in ((0, 3), (1, 2)):
            rename(path, number, format_time(datetime.now() - timedelta(days=days)))
        for file in path.rglob("*"):
            os.utime(file)


def in_future(path: Path, version: int, ahead: str) -> str:
    three_writes(path, version, times=ahead != "5 hours")
    return rename(path, -1, format_time(open_table(path).now() + AHEAD[ahead]))


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("version", [6, 9])
def test_above_a_write_in_the_future_nothing_is_chosen(version: int, ahead: str, tmp_path: Path) -> None:
    """It would hide the next writes of others. Taken back, all goes on, and its rows can be written again."""
    path = tmp_path / "trips"
    instant = in_future(path, version, ahead)
    names = {f.name for f in path.rglob("2*")}
    tries: list[Callable[[], object]] = [
        lambda: schedule(path),
        lambda: schedule(path, dry_run=True),
        lambda: upsert(path, rows((0, 4, 4.0))),
        lambda: open_table(path).snapshot().next_time(),
    ]
    for one in tries:
        with pytest.raises(ClockError, match=rf"in the future.*{instant}.*rollback TABLE {instant}"):
            one()
    assert {f.name for f in path.rglob("2*")} == names
    assert read_rows(path)["k0000"] == (3, 3.0)
    run("rollback", str(path), instant, "--sole-writer")
    assert read_rows(path) == {"k0000": (2, 2.0), "k0001": (1, 1.0)}
    upsert(path, rows((0, 3, 3.0)))
    run("compact", str(path), "--schedule", "--sole-writer", "--executor", "local")
    upsert(path, rows((1, 5, 5.0)))
    assert read_rows(path) == {"k0000": (3, 3.0), "k0001": (5, 5.0)}
    assert max(open_table(path).load_timeline().used_times()) < instant


def test_of_a_write_that_completed_in_the_future_the_error_names_that_time(tmp_path: Path) -> None:
    """The time of its request is in the past, and tells nothing."""
    path = tmp_path / "trips"
    three_writes(path, 9)
    done = max(path.rglob("*_*.deltacommit"))
    requested, completed = done.name.split(".")[0].split("_")[0], format_time(datetime.now() + timedelta(days=40))
    stamp = done.stat().st_mtime
    os.utime(done.rename(done.with_name(f"{requested}_{completed}.deltacommit")), (stamp, stamp))
    with pytest.raises(ClockError, match=rf"above deltacommit {requested}, which completed at {completed}: .*ahead"):
        schedule(path)


@pytest.mark.parametrize("version", [6, 9])
def test_several_writes_in_the_future_go_by_a_restore(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    three_writes(path, version)
    for number, days in ((-1, 41), (1, 40)):
        rename(path, number, format_time(datetime.now() + timedelta(days=days)))
    first = min(open_table(path).load_timeline().completed_writes)
    run("restore", str(path), "--to", first, "--sole-writer")
    upsert(path, rows((0, 3, 3.0)))
    assert schedule(path).instant is not None
    run_all(open_table(path))
    assert read_rows(path) == {"k0000": (3, 3.0), "k0001": (1, 1.0)}


@pytest.mark.parametrize("version", [6, 9])
def test_with_a_metadata_table_a_rollback_is_recorded_now(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the metadata table has a delta commit in the future, too, which goes with the write."""
    path = unzip_golden(f"v{version}_with_metadata_table", tmp_path)
    before = len(read(str(path)).to_arrow())
    now = TableClock.now
    with monkeypatch.context() as patch:
        patch.setattr(TableClock, "now", lambda self: now(self) + timedelta(days=40))
        writer(read(str(path)).to_arrow().slice(0, 3)).upsert(str(path))
    instant = max(open_table(path).load_timeline().completed_writes)
    with pytest.raises(ClockError, match=instant):
        writer(read(str(path)).to_arrow().slice(0, 3)).upsert(str(path))
    run("rollback", str(path), instant, "--sole-writer")
    assert max(open_table(path).load_timeline().used_times()) < instant
    writer(read(str(path)).to_arrow().slice(0, 3)).upsert(str(path))
    assert len(read(str(path)).to_arrow()) == before
    assert max(open_table(path).load_timeline().used_times()) < instant
    assert "only in" not in CliRunner().invoke(timeline_app, ["validate", str(path)]).output


@pytest.mark.parametrize("action", ["rollback", "clean", "indexing"])
def test_what_is_no_write_is_not_exceeded(action: str, tmp_path: Path) -> None:
    """Nor are tombstones: what is chosen below them hides nothing. They are never used again, too."""
    path = tmp_path / "trips"
    three_writes(path, 9)
    table = open_table(path)
    far = format_time(table.now() + timedelta(days=40))
    (path / table.config.timeline_folder / f"{far}.{action}.requested").touch()
    put_tombstone(table.storage, format_time(table.now() + timedelta(hours=3)))
    assert table.snapshot().next_time() < format_time(table.now() + timedelta(seconds=30))
    assert str(schedule(path).instant) < far


def test_a_plan_in_the_future_is_not_executed(tmp_path: Path) -> None:
    """An earlier release may have requested it: its base file would hide the next writes. It can be taken back."""
    for version in (6, 9):
        path = tmp_path / str(version)
        three_writes(path, version)
        done = schedule(path).instant
        (plan,) = path.rglob(f"{done}.compaction.requested")
        far = format_time(datetime.now() + timedelta(days=40))
        plan.rename(plan.with_name(f"{far}.compaction.requested"))
        refused = CliRunner().invoke(daemon, ["compact", str(path), "--executor", "local"])
        assert "in the future" in str(refused.exception)
        assert f"unschedule TABLE {far}" in str(refused.exception)
        run("unschedule", str(path), far, "--sole-writer")
        assert schedule(path).instant is not None
        run_all(open_table(path))
        assert read_rows(path)["k0000"] == (3, 3.0)


def test_a_clock_that_is_behind_the_storages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It still goes on, above what is there: the storage's clock has shown that time."""
    path = tmp_path / "trips"
    three_writes(path, 9)
    newest = max(open_table(path).load_timeline().used_times())
    behind, now = 600, time.time
    monkeypatch.setattr("phantombase.timeline.clocks.time.time", lambda: now() - behind)
    monkeypatch.setattr(
        "phantombase.timeline.instants.table_clock.TableClock.now",
        lambda self: datetime.now() - timedelta(seconds=behind),
    )
    table = open_table(path)
    assert table.snapshot().next_time() > newest
    assert str(schedule(path).instant) > newest


def test_the_hour_that_daylight_saving_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes go on behind the instants of that hour's first pass, which a right clock has shown."""
    path = tmp_path / "trips"
    three_writes(path, 9)
    table = open_table(path)
    ahead = timedelta(minutes=20)
    rename(path, -1, format_time(table.now() + ahead))
    with pytest.raises(ClockError, match="in the future"):
        table.snapshot().next_time()
    now_ms = time.time() * 1000

    def local(self: object, milliseconds: int) -> datetime:
        shifted = milliseconds / 1000 + (3600 if milliseconds < now_ms - 900_000 else 0)
        return datetime.fromtimestamp(shifted)

    monkeypatch.setattr(TableClock, "local", local)
    table = open_table(path)
    assert table.snapshot().next_time() > max(table.load_timeline().used_times())


@pytest.mark.parametrize("at", [0, 1, -1])
@pytest.mark.parametrize("version", [6, 9])
def test_an_instant_that_is_no_date(version: int, at: int, tmp_path: Path) -> None:
    """In the past nothing is refused: reads of all kinds, writes, plans, the daemon, and a rollback."""
    path = tmp_path / "trips"
    three_writes(path, version)
    for number in range(at % 3):
        rename(path, number, f"2026010{number + 1}000000000")
    rename(path, at, IMPOSSIBLE)
    assert len(read(str(path), query="incremental", begin="earliest").to_arrow()) == 2
    assert len(read(str(path), query="changes", begin="earliest").to_arrow()) > 1
    assert len(read(str(path), query="incremental", begin=IMPOSSIBLE).to_arrow()) >= 0
    assert len(read(str(path), as_of=IMPOSSIBLE).to_arrow()) >= 1
    asks = ["--schedule", "--once", "--max-delta-commits", "1", "--sole-writer", "--executor", "local"]
    run("run", str(path), *asks)
    assert len(list(path.rglob("*.compaction.requested"))) == 1
    upsert(path, rows((1, 9, 9.0)))
    run("status", str(path))
    assert read_rows(path) == {"k0000": (3, 3.0), "k0001": (9, 9.0)}


def test_a_newest_instant_that_is_no_date_and_ahead(tmp_path: Path) -> None:
    """As one in the future."""
    path = tmp_path / "trips"
    three_writes(path, 9)
    instant = rename(path, -1, f"{datetime.now().year + 1}0230010203000")
    with pytest.raises(ClockError, match=rf"{instant}.*rollback TABLE {instant}"):
        schedule(path)
    done = CliRunner().invoke(daemon, ["status", str(path), "--json"])
    assert "in the future" in done.stdout
    run("rollback", str(path), instant, "--sole-writer")
    assert schedule(path).instant is not None


# A process whose clock is wrong: others that live are not taken for dead, and the dead do not live for ever.


ELSEWHERE = replace(Process.current(), host="another-machine")
SKEWS = pytest.mark.parametrize("seconds", [600, -600], ids=["ahead", "behind"])
ONE_BUCKET = WriteOptions(buckets=1, slots=1)


def skewed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """This process's clock is that far ahead from now on."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)


@SKEWS
@pytest.mark.parametrize("age_s", [0, 700])
def test_writers_elsewhere(seconds: int, age_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that beats is left alone; one that beat 700 s ago is rolled back."""
    path = tmp_path / "t"
    written_table(path, 9, rows((0, 1, 1.0)), ONE_BUCKET)
    other = leave_dead_write(path, begun_by=ELSEWHERE, age_s=age_s).instant.requested_time
    skewed(monkeypatch, seconds)
    # The writer's own guard, and the time it would choose, are another matter: see test_clock.
    monkeypatch.setattr("phantombase.timeline.instants.table_clock.check_clock", lambda *_: None)
    write(
        open_table(path), LocalEngine(rows((0, 2, 2.0)), slots=1), Write(operation=Operation.UPSERT, options=ONE_BUCKET)
    )
    pending = {i.requested_time for i in open_table(path).load_timeline().pending_delta_commits}
    assert pending == ({other} if age_s == 0 else set())


@SKEWS
@pytest.mark.parametrize("sign", ["heartbeat", "inflight"])
def test_a_hudi_compactor_at_work(
    seconds: int, sign: str, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an object store: it is seen by its heartbeat, or by its inflight file where that is all it has."""
    path = unzip_golden("v9_pending", tmp_path)
    storage = ObjectStorage(s3.upload(path, s3.new_bucket(), "t"))
    table = Table.on(storage)
    (instant,) = pending_instants(table)
    before_ms, there_ms, after_ms = time.time() * 1000, storage_ms(storage), time.time() * 1000
    assert before_ms - 1000 <= there_ms <= after_ms + 1000  # a server says whole seconds
    storage.overwrite(heartbeat_path(instant) if sign == "heartbeat" else inflight_path(table, instant), b"")
    skewed(monkeypatch, 12 * seconds)
    with pytest.raises(ConflictError, match="a Hudi compactor is at work"):
        open_attempt(table, instant, OPTIONS)


@SKEWS
@pytest.mark.parametrize("sign", ["heartbeat", "inflight"])
def test_a_hudi_compactor_that_is_dead(
    seconds: int, sign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    left = path / (heartbeat_path(instant) if sign == "heartbeat" else inflight_path(table, instant))
    left.parent.mkdir(exist_ok=True)
    left.touch()
    since = time.time() - (300 if sign == "heartbeat" else OPTIONS.foreign_grace_s + 60)
    os.utime(left, (since, since))
    skewed(monkeypatch, seconds)
    assert open_attempt(table, instant, OPTIONS).number == 1


@SKEWS
def test_a_publisher_at_work_keeps_its_plan(seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    decided(table, instant)
    table.storage.overwrite(heartbeat_path(instant), b"phantombase\n{}")
    skewed(monkeypatch, seconds)
    with pytest.raises(ConflictError, match="decided and is being published"):
        unschedule(table, instant, LOCK)
