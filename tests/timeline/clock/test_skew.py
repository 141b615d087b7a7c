"""A process whose clock is wrong: others that live are not taken for dead, and the dead do not live for ever."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from phantombase.compactor_daemon.attempt.attempt import open_attempt
from phantombase.compactor_daemon.attempt.compact_instant import pending_instants
from phantombase.compactor_daemon.decisions.hudi_executors import inflight_path
from phantombase.compactor_daemon.removal.unschedule import unschedule
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.locks.heartbeat import Process, heartbeat_path
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import OPTIONS, decided, open_table
from tests.support.dead_writer import leave_dead_write
from tests.support.golden_tables import unzip_golden
from tests.support.servers.s3_server import S3Server
from tests.support.trips import rows
from tests.support.written_tables import written_table

ELSEWHERE = replace(Process.current(), host="another-machine")
LOCK = ProcessLock("skew")
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
