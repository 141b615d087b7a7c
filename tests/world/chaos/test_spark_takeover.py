"""A daemon with Spark is killed in the middle of its work, and another one goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.outcome import read_outcome
from phantombase.compactor_daemon.attempt.slice_record import done_slices
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.instants.reserved_times import COMMITTED, DEAD, attempts
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from tests.support.compaction_steps import open_table
from tests.support.compare_rows import assert_same_rows
from tests.support.gated_compactor import Gate
from tests.support.places import ROOT
from tests.support.servers.zookeeper_server import ZooKeeper
from tests.support.written_tables import check_nothing_left

_GROUPS = 12
_ROWS = 60_000
_WAIT_S = 300.0
_SESSION_S = 10


def batch(ts: int, every: int) -> pa.Table:
    """Every first, second, ... row of all, in each day (`every` has no factor in common with their number)."""
    numbers = range(0, _ROWS, every)
    return pa.table(
        {
            "id": pa.array([f"k{n:08d}" for n in numbers]),
            "day": pa.array([f"d{n % _GROUPS:02d}" for n in numbers]),
            "ts": pa.array([ts] * len(numbers), pa.int64()),
            "text": pa.array([f"{n * ts:064d}" for n in numbers]),
        }
    )


@contextmanager
def daemon(path: Path, hosts: str, gate: Gate, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon with Spark, whose tasks pass a gate; neither it nor its JVM outlives the context."""
    repository = str(ROOT)
    environment = os.environ | {"GATE": str(gate.folder), "PYTHONPATH": repository}
    command = [sys.executable, "-m", "tests.support.gated_compactor", "run", str(path), "--zookeeper", hosts, "--json"]
    options = ["--zookeeper-session", str(_SESSION_S), "--poll-interval", "1", "--master", "local[2]"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *options], env=environment, cwd=repository, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        until(lambda: not _session_of(process.pid), log)


def until(condition: Callable[[], bool], log: Path) -> None:
    """Waits for it."""
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.02)


def _session_of(leader: int) -> list[int]:
    """Living processes of a session: the daemon, its JVM and Python workers, unless those began their own."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.deep
@pytest.mark.spark
def test_another_daemon_goes_on(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """What the dead one had finished is adopted; no row is lost, and no process is left of it."""
    path = tmp_path / "trips"
    described = writer(batch(1, 1)).table("trips").key("id").partition("day").ordering("ts").buckets(1)
    described.upsert(str(path))
    writer(batch(2, 5)).buckets(1).upsert(str(path))
    expected = read_table(open_table(path))
    instant = schedule_compaction(open_table(path), ProcessLock("takeover")).instant
    assert instant is not None
    storage = open_table(path).storage

    def finished() -> int:
        return len(done_slices(storage, instant, 1)) if attempts(storage, instant) else 0

    gate = Gate(tmp_path / "gate")
    gate.folder.mkdir()
    gate.open(*range(_GROUPS - 4))  # it does not get done, however late the kill comes
    with daemon(path, zookeeper.hosts, gate, tmp_path / "first.log") as first:
        until(lambda: finished() > 0, tmp_path / "first.log")
        os.kill(first.pid, signal.SIGKILL)
    before = finished()
    assert 0 < before < _GROUPS
    assert_same_rows(read_table(open_table(path)), expected)
    gate.open()
    with daemon(path, zookeeper.hosts, gate, tmp_path / "second.log") as second:
        until(lambda: pending_instants(open_table(path)) == (), tmp_path / "second.log")
        second.send_signal(signal.SIGTERM)
        assert second.wait(_WAIT_S) == 0
    said = [json.loads(line) for line in (tmp_path / "second.log").read_text().splitlines() if line.startswith('{"')]
    (staging,) = [line for line in said if line.get("event") == "staging"]
    assert (staging["adopted"], staging["slices"]) == (before, _GROUPS - before)
    outcomes = [read_outcome(storage, instant, number) for number in attempts(storage, instant)]
    assert [outcome and outcome.kind for outcome in outcomes] == [DEAD, COMMITTED]
    assert_same_rows(read_table(open_table(path)), expected)
    check_nothing_left(path)
    table = open_table(path)
    assert [audit(table, i).good for i in audited_instants(table)] == [True]
