"""Locks that Hudi writers and phantombase share: in the bucket, in ZooKeeper; heartbeats that both respect."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kazoo.client import KazooClient

from phantombase import writer
from phantombase.timeline.errors import LockError
from phantombase.timeline.locks.heartbeat import heartbeat, heartbeat_path
from phantombase.timeline.locks.table_lock import HUDI_LOCK, StorageLock, parse_lock, table_lock
from phantombase.timeline.locks.zookeeper_lock import ZooKeeperLock
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.open_storage import open_storage
from tests.hudi.cases.indexed_table import HUDI
from tests.hudi.cases.rows import Rows, partition, same
from tests.hudi.cases.shared_table import (
    BUCKET,
    EVENT_TIME,
    MULTI_WRITER,
    SharedTable,
    check_rows,
    is_ours,
    multi_writer,
)
from tests.hudi.judge.client import METADATA_TABLE, Judge, JudgeError, Options
from tests.hudi.judge.fixtures import Judges
from tests.hudi.judge.s3 import STORAGE_LOCK
from tests.support.s3_table import S3Table
from tests.support.selection import deep, versions
from tests.support.servers.s3_server import Asked, Fault, S3Server
from tests.support.servers.zookeeper_server import ZooKeeper, wait_until

WAIT_S = 300.0
HUDI_VALID_S = int(STORAGE_LOCK["hoodie.write.lock.storage.validity.timeout.secs"])


def table_of(judges: Judges, s3: S3Server, version: int, sharing: Options, lock: str) -> S3Table:
    """A table that is not there yet; all that Hudi does takes the lock that is ours too."""
    url = f"s3a://{s3.new_bucket()}/lake/t"
    options = {**EVENT_TIME, **BUCKET, **sharing}
    return S3Table(judge=judges(HUDI[version]), url=url, version=version, options=options, lock=lock)


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[threading.Thread]:
    """In a thread; at the end it has ended well."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield thread
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert errors == []


def held_by(url: str) -> dict[str, Any]:
    """What the lock object says."""
    found: dict[str, Any] = json.loads(open_storage(url).read(HUDI_LOCK))
    return found


def gate(s3: S3Server, completes: Callable[[Asked], bool]) -> tuple[threading.Event, threading.Event]:
    """The first such request waits, before it has an effect, until the second event; the first says that it came."""
    reached, go_on = threading.Event(), threading.Event()

    def faults(asked: Asked) -> Fault:
        if not reached.is_set() and completes(asked):
            reached.set()
            go_on.wait(WAIT_S)
        return Fault.NONE

    s3.faults = faults
    return reached, go_on


def completes(asked: Asked) -> bool:
    """A delta commit becomes visible: Hudi puts it inside its lock."""
    return asked.method == "PUT" and "/timeline/" in asked.path and asked.path.endswith(".deltacommit")


def impatient(url: str) -> StorageLock:
    """Our lock, which gives up soon."""
    return StorageLock(open_storage(url), HUDI_LOCK, timeout_s=2.0)


@pytest.mark.interop
@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_hudi_and_we_exclude_each_other(s3_judges: Judges, s3: S3Server) -> None:
    """It waits while we are inside, and we while it is."""
    rows = Rows(seed=1)
    table = table_of(s3_judges, s3, 9, STORAGE_LOCK, "storage")
    table.create(rows(range(20), 1))
    assert held_by(table.url)["expired"], "Hudi used another lock"
    second, third = rows(range(0, 20, 2), 2), rows(range(0, 20, 3), 3)

    with table_lock(open_storage(table.url), "storage").hold("test"):
        before = len(table.open().load_timeline().instants)
        s3.asked.clear()
        with_us = held_by(table.url)["owner"]
        context = beside(lambda: table.upsert(second))
        thread = context.__enter__()
        looks = f"/{HUDI_LOCK.rpartition('/')[2]}"
        wait_until(lambda: sum(a.method == "GET" and a.path.endswith(looks) for a in list(s3.asked)) > 5, WAIT_S)
        assert thread.is_alive()
        assert held_by(table.url)["owner"] == with_us
        assert len(table.open().load_timeline().instants) == before
    context.__exit__(None, None, None)
    check_rows(table.agree(), second)

    reached, go_on = gate(s3, completes)
    with beside(lambda: table.upsert(third)):
        assert reached.wait(WAIT_S)
        theirs = held_by(table.url)
        assert not theirs["expired"]
        with pytest.raises(LockError, match=f"held by {theirs['owner']}, valid for"), impatient(table.url).hold("test"):
            pass
        assert held_by(table.url)["owner"] == theirs["owner"]
        go_on.set()
    with impatient(table.url).hold("test"):
        pass
    check_rows(table.agree(), third)


@pytest.mark.interop
@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_a_dead_holder_is_taken_over(s3_judges: Judges, s3: S3Server) -> None:
    """Ours by Hudi, and Hudi's by us, when its time is over and not before."""
    rows = Rows(seed=2)
    table = table_of(s3_judges, s3, 9, STORAGE_LOCK, "storage")
    first, second = rows(range(20), 1), rows(range(0, 20, 2), 2)
    table.create(first)

    until = round(time.time() * 1000) + 12_000
    dead = json.dumps({"expired": False, "validUntil": until, "owner": "of a process that is gone"})
    open_storage(table.url).overwrite(HUDI_LOCK, dead.encode())
    table.upsert(second)
    assert time.time() * 1000 > until
    check_rows(table.agree(), second)

    reached, go_on = gate(s3, completes)

    def dies() -> None:
        with pytest.raises(JudgeError, match="ended by itself"):
            table.upsert(rows(range(20), 3))

    with beside(dies):
        assert reached.wait(WAIT_S)
        os.killpg(table.judge.session._server.pid, signal.SIGKILL)
        go_on.set()
    theirs = held_by(table.url)
    assert not theirs["expired"]
    with pytest.raises(LockError), impatient(table.url).hold("test"):
        pass
    with StorageLock(open_storage(table.url), HUDI_LOCK, timeout_s=2 * HUDI_VALID_S).hold("test"):
        assert time.time() * 1000 > theirs["validUntil"]
        assert held_by(table.url)["owner"] != theirs["owner"]
    s3_judges.close()


def both_write(table: S3Table, seed: int) -> None:
    """Each on file groups of its own, at the same time; we plan and compact beside. Every write of both is there."""
    rows = Rows(seed=seed)
    table.create(rows(range(60), 1))
    of = {name: [n for n in range(60) if (partition(n) == "north") is (name == "hudi")] for name in ("hudi", "we")}
    won: dict[str, pa.Table] = {}

    def hudis() -> None:
        for ts in range(2, 6):
            batch = rows(of["hudi"], ts)
            table.upsert(batch)
            won["hudi"] = batch

    ts, compacted = 2, 0
    mine = Rows(seed=seed + 1)
    with beside(hudis) as thread:
        while thread.is_alive() or ts < 6:
            won["we"] = mine(of["we"], ts)
            table.writer(won["we"], retries=5).upsert(table.url)
            table.we_may_schedule()
            compacted += len(table.we_compact())
            ts += 1
    snapshot = table.agree()
    check_rows(snapshot, won["hudi"])
    check_rows(snapshot, won["we"])
    assert snapshot.num_rows == 60
    assert compacted
    table.audited()

    latest = rows(range(0, 70, 3), 1000)
    table.upsert(latest)
    assert table.we_schedule() in table.we_compact()
    check_rows(table.agree(), latest)


@pytest.mark.interop
@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_both_write_under_the_storage_lock(s3_judges: Judges, s3: S3Server) -> None:
    both_write(table_of(s3_judges, s3, 9, STORAGE_LOCK, "storage"), 3)


@pytest.mark.interop
@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_both_write_under_zookeeper(s3_judges: Judges, s3: S3Server, zookeeper: ZooKeeper) -> None:
    """Hudi 0.15 has no lock in the bucket."""
    lock = f"zookeeper:{zookeeper.hosts}/hudi_locks/on_s3"
    both_write(table_of(s3_judges, s3, 6, multi_writer(zookeeper, "on_s3"), lock), 4)


# Real Hudi on `s3a://` (hadoop-aws) and we, in turns on one table of one bucket.


LONE = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider"}
"""With a metadata table Hudi wants a lock even when it is alone, and on s3a the one it takes by itself is refused."""
CASES: dict[str, Options] = {
    "plain": EVENT_TIME,
    "metadata table": {**EVENT_TIME, **METADATA_TABLE, **LONE},
    "buckets": EVENT_TIME | BUCKET,
}


def live_hudi_table_of(judges: Judges, s3: S3Server, version: int, options: Options) -> S3Table:
    """A table that is not there yet."""
    url = f"s3a://{s3.new_bucket()}/lake/t"
    return S3Table(judge=judges(HUDI[version]), url=url, version=version, options=options, lock="storage")


def good(table: S3Table) -> None:
    """Our proofs of it: each ledger, and what the metadata table says of its files."""
    table.audited()
    if opened := table.open().config.metadata_partitions:
        assert validate(table.open()).differences == (), opened


@pytest.mark.interop
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", [deep(case, id=case) for case in CASES])
@pytest.mark.parametrize("version", [6, 8, 9], ids="v{}".format)
def test_hudi_goes_on_where_we_compacted(s3_judges: Judges, s3: S3Server, version: int, case: str) -> None:
    """Hudi writes, we compact, Hudi reads, upserts, compacts, cleans and archives, and we compact again."""
    rows = Rows(seed=version)
    table = live_hudi_table_of(s3_judges, s3, version, CASES[case])
    table.create(rows(range(60), 1))
    table.upsert(rows(range(0, 70, 3), (1, 2, 3)))
    deleted = range(1, 60, 11)
    table.delete(rows(deleted, 3))
    table.hudi_schedules()
    # A key that is deleted under a plan and written again doubles in Hudi itself.
    table.upsert(rows(set(range(0, 80, 5)) - set(deleted), 4))
    table.compact_beside_hudi()
    good(table)

    latest = rows(set(range(0, 90, 4)) - set(deleted), 5)
    table.upsert(latest)
    check_rows(table.agree(), latest)
    pending = table.we_schedule()
    mine = rows(range(0, 100, 7), 6)
    table.writer(mine).upsert(table.url)
    check_rows(table.agree(), mine)
    table.hudi_compacts(pending)
    good(table)

    table.delete(rows(range(0, 100, 9), 7))
    table.judge.clean(table.url, options=table.options)
    table.judge.archive(table.url, options=table.options)
    kept = table.agree()
    check_rows(kept, rows([], 0), absent=range(0, 100, 9))
    assert table.we_schedule() in table.we_compact()
    same(table.agree(), kept)
    same(table.agree_on_base_files(), kept)
    good(table)


@pytest.mark.interop
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", [deep(case, id=case) for case in CASES])
@pytest.mark.parametrize("version", [6, 8, 9], ids="v{}".format)
def test_hudi_goes_on_with_a_table_of_ours(s3_judges: Judges, s3: S3Server, version: int, case: str) -> None:
    """We make it and write, Hudi reads, upserts, compacts, cleans and archives; then we read, write and compact."""
    rows = Rows(seed=10 + version)
    table = live_hudi_table_of(s3_judges, s3, version, CASES[case])
    first = rows(range(50), 1)
    table.creator(first).upsert(table.url)
    table.writer(rows(range(0, 60, 3), 2)).upsert(table.url)
    check_rows(table.agree(), rows([], 0))
    table.upsert(rows(range(0, 70, 4), 3))
    table.agree()
    table.hudi_schedules()
    mine = rows(range(0, 80, 5), 4)
    table.writer(mine).upsert(table.url)
    table.hudi_compacts()
    check_rows(table.agree(), mine)

    latest = rows(range(0, 90, 6), 5)
    table.upsert(latest)
    table.judge.clean(table.url, options=table.options)
    table.judge.archive(table.url, options=table.options)
    check_rows(table.agree(), latest)
    table.we_schedule()
    table.writer(rows(range(0, 100, 7), 6)).upsert(table.url)
    before = table.agree()
    table.compact_beside_hudi()
    same(table.agree(), before)
    last = rows(range(0, 110, 8), 7)
    table.upsert(last)
    check_rows(table.agree(), last)
    good(table)


# Our table lock in ZooKeeper and that of live Hudi writers exclude each other.


@pytest.mark.interop
@versions(9, deep=(6,))
def test_a_live_hudi_writer_waits_for_our_section(
    judge: Judge, version: int, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    """It waits as a contender behind our node while we are inside, and succeeds afterwards; so do we behind it."""
    key = f"v{version}"
    rows, lock = Rows(seed=version), parse_lock(f"zookeeper:{zookeeper.hosts}/hudi_locks/{key}")
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version)
    table.create(rows(range(20), 1))
    written = rows(range(0, 20, 2), 2)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            table.upsert(written, multi_writer(zookeeper, key))
        except BaseException as error:
            errors.append(error)

    client: Any = KazooClient(hosts=zookeeper.hosts, timeout=30.0)
    client.start(60)
    try:
        with lock.hold("test"):
            before = len(table.open().load_timeline().completed_writes)
            thread = threading.Thread(target=write)
            thread.start()
            wait_until(lambda: len(client.get_children(f"/hudi_locks/{key}")) == 2 or bool(errors), 180)
            time.sleep(3)
            assert thread.is_alive(), errors
            assert len(table.open().load_timeline().completed_writes) == before
            (hudis,) = (n for n in client.get_children(f"/hudi_locks/{key}") if not is_ours(client, key, n))
            payload = client.get(f"/hudi_locks/{key}/{hudis}")[0].decode()
        thread.join(300)
        assert not thread.is_alive()
        assert errors == []
        assert client.get_children(f"/hudi_locks/{key}") == []
        check_rows(table.agree(), written)

        hudis = client.create(f"/hudi_locks/{key}/{hudis[:-10]}", payload.encode(), ephemeral=True, sequence=True)
        impatient = ZooKeeperLock(hosts=zookeeper.hosts, base_path="/hudi_locks", key=key, timeout_s=5.0)
        with pytest.raises(LockError) as error, impatient.hold("test"):
            pass
        assert payload in str(error.value)
    finally:
        client.stop()
        client.close()


@pytest.mark.interop
@versions(6, deep=[9])
def test_hudi_and_we_write_at_the_same_time(judge: Judge, version: int, zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """Each on file groups of its own: every write of both is there. Then on the same ones: a loser leaves nothing."""
    key = f"both-v{version}"
    rows, shared = Rows(seed=version), multi_writer(zookeeper, key)
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=EVENT_TIME | BUCKET)
    table.create(rows(range(60), 1))
    numbers = {name: [n for n in range(60) if (partition(n) == "north") is (name == "hudi")] for name in ("hudi", "we")}
    won: dict[str, pa.Table] = {}
    errors: list[BaseException] = []

    def hudis(ts: int, of: str, *, may_lose: bool = False) -> None:
        batch = rows(numbers[of], ts)
        try:
            upsert_at_a_free_instant(table, batch, shared)
            won["hudi"] = batch
        except BaseException as error:
            if not may_lose or ("ConcurrentModification" not in str(error) and "onflict" not in str(error)):
                errors.append(error)

    def ours(ts: int, of: str, **options: Any) -> None:
        batch = rows(numbers[of], ts)
        described = writer(batch).buckets(int(str(BUCKET["hoodie.bucket.index.num.buckets"])))
        lock = f"zookeeper:{zookeeper.hosts}/hudi_locks/{key}"
        described.option(lock=lock, retries=5, **options).upsert(str(table.path))
        won["we"] = batch

    def three() -> None:
        for ts in range(2, 5):
            hudis(ts, "hudi")

    thread = threading.Thread(target=three)
    thread.start()
    ts, done = 2, 0
    while thread.is_alive() or done < 5:
        ours(ts + done, "we")
        done += 1
    thread.join()
    assert errors == []
    snapshot = table.agree()
    check_rows(snapshot, won["hudi"])
    check_rows(snapshot, won["we"])

    for ts in (1000, 1002):  # in the second Hudi mostly loses
        won.clear()
        thread = threading.Thread(target=hudis, args=(ts, "we"), kwargs={"may_lose": True})
        thread.start()
        time.sleep((ts - 1000) * 0.3)
        ours(ts + 1, "we")
        thread.join()
        assert errors == []
        check_rows(table.agree(), won["we"])  # the greater ordering value, whoever came first
    # A write of Hudi's that lost stays pending, with a heartbeat that looks alive for two minutes: on v6 in the way of
    # every plan. Nobody lives here any more.
    ours(1004, "we", heartbeat_s=0.05, heartbeat_expiry_s=0.1)
    assert table.open().load_timeline().inflight_writers == ()
    table.we_schedule()
    table.we_compact()
    table.agree()


def upsert_at_a_free_instant(table: SharedTable, batch: pa.Table, options: dict[str, object]) -> None:
    """Upsert by Hudi, as its users do: it takes the clock's millisecond as its instant, looks for no other writer's at
    the same one, and fails before it has written anything where one is there. The next try has another instant."""
    for _ in range(3):
        try:
            return table.upsert(batch, options)
        except JudgeError as error:
            taken = str(error)
            if "FileAlreadyExistsException" not in taken or ".deltacommit.requested" not in taken:
                raise
    raise AssertionError(f"three instants in a row were taken: {taken}")


# Hudi 1.2 in a multi-writer mode leaves a plan alone while our attempt at it shows a heartbeat.


@pytest.mark.interop
@versions(9, deep=[8])
def test_hudi_refuses_a_plan_we_are_at(judge: Judge, version: int, tmp_path: Path) -> None:
    """It refuses while the heartbeat is fresh, and executes the plan when it is gone."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version), Rows(seed=1)
    table.create(rows(range(30), 1))
    table.upsert(rows(range(10), 2))
    instant = table.hudi_schedules()
    with heartbeat(table.open().storage, instant, 1.0), pytest.raises(JudgeError, match="heartbeat"):
        judge.run_compaction(table.path, instant, MULTI_WRITER)
    assert table.pending() == [instant]
    assert not (table.path / heartbeat_path(instant)).exists()
    before = table.agree()
    assert judge.run_compaction(table.path, instant, MULTI_WRITER) == [instant]
    same(table.agree(), before)
