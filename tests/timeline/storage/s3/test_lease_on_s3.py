"""Processes that share a table on S3 by leases: one sleeps past the end of its lease, and another goes on."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.compact_or_resume import compact_instant, pending_instants
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.timeline.errors import AttemptDeadError, ConflictError, LockError, StorageError
from phantombase.timeline.locks.heartbeat import Heartbeats
from phantombase.timeline.locks.table_lock import HUDI_LOCK, table_lock
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage import object_clients, object_lease
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import OPTIONS, OUTPUT
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import unzip_golden
from tests.support.places import ROOT
from tests.support.s3_table import Compaction, Write, fares, litter
from tests.support.selection import ALL, deep
from tests.support.servers.fault_proxy import Fault, FaultProxy, Kind, Request, fault_proxy, storm
from tests.support.servers.real_s3_server import REAL, RealS3Server
from tests.support.servers.s3_server import S3Server
from tests.support.trips import rows, trips


def compact(table: Table) -> None:
    """Every pending instant, under the table's own lock."""
    for instant in pending_instants(table):
        compact_instant(
            table,
            instant,
            lock=table_lock(table.storage, None),
            runner=LocalRunner(1),
            progress=lambda done, total: None,
            output=OUTPUT,
            options=OPTIONS,
        )


@pytest.mark.parametrize(
    ("name", "part", "ends"),
    [("put_if_absent", "/reserved-", pytest.raises(AttemptDeadError)), ("put_if_absent", ".commit", nullcontext())],
)
def test_a_compactor_sleeps_past_its_lease(
    name: str, part: str, ends: Any, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its decision it stops; before its completed file it finds what it decided done."""
    steady = time.monotonic
    monkeypatch.setattr(object_lease, "RENEW_S", 600)  # who sleeps renews nothing
    path = unzip_golden("v9_pending", tmp_path)
    url = s3.upload(path, s3.new_bucket(), "t")
    slept: list[str] = []

    def asleep(call: Call) -> Any:
        if call.name == name and part in call.path and not slept:
            slept.append(call.path)
            monkeypatch.setattr(time, "monotonic", lambda: steady() + 60)
            ended = {"expired": False, "validUntil": round(time.time() * 1000) - 1000, "owner": "the sleeper"}
            ObjectStorage(url).overwrite(HUDI_LOCK, json.dumps(ended).encode())
            compact(Table.open(url))
        return call.do()

    with ends as error:
        compact(Table.on(HookedStorage(ObjectStorage(url), asleep)))
    assert slept
    if error is not None:
        assert isinstance(error.value.__cause__, LockError)
    table = Table.open(url)
    assert pending_instants(table) == ()
    expected = path.with_name(f"{path.name}.expected") / "snapshot_after_compaction.parquet"
    assert_same_rows(read_table(table), pq.read_table(expected))


# Many at one name at the same moment: one wins, in each round, whatever answers are lost.


RACERS = 64
BUSY = LockError("held by another process")
Race = Callable[[ObjectStorage, str, int], bool]


@pytest.fixture(params=["s3", *REAL])
def server(request: pytest.FixtureRequest) -> S3Server | RealS3Server:
    """An honest one, and real ones."""
    found: S3Server | RealS3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def storage(server: S3Server | RealS3Server) -> ObjectStorage:
    return ObjectStorage(f"s3://{server.new_bucket()}/t")


def put(storage: ObjectStorage, name: str, racer: int) -> bool:
    return storage.put_if_absent(f"{name}/x", str(racer).encode())


def place(storage: ObjectStorage, name: str, racer: int) -> bool:
    storage.overwrite(f"{name}/staged-{racer}", str(racer).encode())
    return storage.place(f"{name}/staged-{racer}", f"{name}/x")


def winners(storage: ObjectStorage, name: str, race: Race) -> list[int]:
    """Who is told that the name is theirs. A racer that learns nothing may have won."""
    start = threading.Barrier(RACERS)

    def run(racer: int) -> bool | None:
        start.wait()
        try:
            return race(storage, name, racer)
        except StorageError:
            return None

    with ThreadPoolExecutor(RACERS) as pool:
        answers = list(pool.map(run, range(RACERS)))
    owner = int(storage.read(f"{name}/x"))
    assert answers[owner] in (True, None)
    return [racer for racer, won in enumerate(answers) if won] or [owner]


@pytest.mark.parametrize("rounds", [2, deep(20)])
@pytest.mark.parametrize("race", [put, place])
def test_one_of_many_wins(storage: ObjectStorage, race: Race, rounds: int) -> None:
    """And what is there is the winner's."""
    for number in range(rounds):
        [winner] = winners(storage, f"r{number}", race)
        assert storage.read(f"r{number}/x") == str(winner).encode()


@pytest.mark.parametrize("rounds", [1, deep(20)])
@pytest.mark.parametrize("race", [put, place])
def test_one_of_many_wins_while_answers_are_lost(
    server: S3Server | RealS3Server, race: Race, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each third changing request is done, and its answer lost."""
    with fault_proxy(server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        storage = ObjectStorage(f"s3://{server.new_bucket()}/t")
        storage.put_if_absent("first", b"")
        for number in range(rounds):
            proxy.restart(every_third)
            assert len(winners(storage, f"r{number}", race)) == 1
            proxy.restart()


def every_third(asked: Request) -> Fault:
    if not asked.changes or asked.number % 3:
        return Fault.NONE
    return Fault.LOST if asked.number % 2 else Fault.LOST_503


@pytest.mark.parametrize("rounds", [1, deep(10)])
def test_one_of_many_holds_the_lease(storage: ObjectStorage, rounds: int) -> None:
    """One that was never held, then one that was given back."""
    for _ in range(rounds):
        start, tried = threading.Barrier(RACERS), threading.Barrier(RACERS)

        def hold(_: int, start: threading.Barrier = start, tried: threading.Barrier = tried) -> bool:
            start.wait()
            with ExitStack() as held:
                try:
                    held.enter_context(storage.hold("lock", 0, BUSY))
                    won = True
                except LockError:
                    won = False
                tried.wait()
            return won

        with ThreadPoolExecutor(RACERS) as pool:
            assert sum(pool.map(hold, range(RACERS))) == 1


# A store that refuses everything for a while: commands wait for it, at last say so, and daemons go on.


_DAEMON = (
    "from datetime import timedelta; from phantombase.timeline.storage import object_clients; "
    "object_clients._PATIENCE['retry_timeout'] = timedelta(seconds=0.5); "
    "from phantombase.compactor_daemon.cli.main import main; main()"
)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are asked again for half a second only."""
    monkeypatch.setitem(object_clients._PATIENCE, "retry_timeout", timedelta(seconds=0.5))


@pytest.mark.parametrize("after", [26, *map(deep, (0, 14, 30, 34))])
def test_a_compaction_outlasts_a_storm(after: int, faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path) -> None:
    """At its first try."""
    compaction = Compaction(9, s3, tmp_path)
    assert compaction.spoilt(faulty_s3, storm(after, 6 if ALL else 2))
    assert compaction.ended_well


@pytest.mark.parametrize("after", [*map(deep, (0, 12, 20, 25))])
def test_a_write_outlasts_a_storm(after: int, faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path) -> None:
    """At its first try."""
    write = Write(9, False, s3, tmp_path)
    assert write.spoilt(faulty_s3, storm(after, 6))
    assert write.ended_well


@pytest.mark.parametrize("after", [30, *map(deep, (0, 14, 26, 34))])
def test_a_storm_without_end_ends_the_command(
    after: int, faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path, impatient: None
) -> None:
    """With an error, in a bounded time; the next run finishes it."""
    compaction, began = Compaction(9, s3, tmp_path), time.monotonic()
    assert compaction.spoilt(faulty_s3, storm(after, math.inf))
    assert not compaction.ended_well
    assert time.monotonic() - began < 120


@pytest.mark.deep
def test_a_daemon_outlives_a_storm(faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path) -> None:
    """One that lasts longer than its requests are asked again: it takes the instant again once its claim has ended."""
    path = unzip_golden("v9_pending", tmp_path)
    url = s3.upload(path, s3.new_bucket(), "tables/t")
    faulty_s3.restart(storm(35, 4))
    command = [sys.executable, "-c", _DAEMON, "run", url, "--executor", "local", "--poll-interval", "0.5"]
    daemon = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 120
        while Table.open(f"{url}").load_timeline().pending_merges and time.monotonic() < deadline:
            assert daemon.poll() is None, daemon.communicate()
            time.sleep(0.5)
        daemon.send_signal(signal.SIGTERM)
        said, _ = daemon.communicate(timeout=60)
    finally:
        daemon.kill()
    assert b"1 compaction done, 1 failed, 0 left pending" in said, said.decode()
    assert faulty_s3.spoilt
    expected = path.with_name(f"{path.name}.expected") / "snapshot_after_compaction.parquet"
    assert_same_rows(read_table(Table.open(url)), pq.read_table(expected))


def test_a_write_whose_heartbeat_cannot_be_written_ends(faulty_s3: FaultProxy, s3: S3Server, impatient: None) -> None:
    """As on a disk: it may be taken for dead, so it completes nothing."""
    url = f"s3://{s3.new_bucket()}/t"
    trips(rows((1, 1, 1.0)), 9).upsert(url)
    lapsed, first = Heartbeats.lapsed, set[str]()

    def faults(asked: Request) -> Fault:
        is_beat = "/.heartbeat/" in asked.path and asked.kind is Kind.PUT
        if is_beat and not first:
            first.add(asked.path)
            return Fault.NONE
        refused = is_beat and asked.path in first
        return Fault.REFUSED_503 if refused else Fault.DELAYED if "/writes/" in asked.path else Fault.NONE

    faulty_s3.restart(faults)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Heartbeats, "lapsed", lambda self, expiry_s: lapsed(self, 0.1))
        with pytest.raises(ConflictError, match="no heartbeat for too long"):
            trips(rows((1, 2, 2.0)), 9).upsert(url)
    faulty_s3.restart()
    assert fares(url) == {"k0001": 1.0}
    trips(rows((1, 2, 2.0)), 9).upsert(url)
    assert fares(url) == {"k0001": 2.0}
    assert litter(url) == []
