"""Locks that live Hudi writers on `s3a://` share with us: Hudi 1.x in the bucket itself, Hudi 0.15 in ZooKeeper."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from phantombase.timeline.errors import LockError
from phantombase.timeline.locks.table_lock import HUDI_LOCK, StorageLock, table_lock
from phantombase.timeline.storage.open_storage import open_storage
from tests.hudi.cases.rows import Rows, partition
from tests.hudi.cases.shared_table import BUCKET, EVENT_TIME, HUDI, check_rows, multi_writer
from tests.hudi.judge.client import JudgeError, Options
from tests.hudi.judge.fixtures import Judges
from tests.hudi.judge.s3 import STORAGE_LOCK
from tests.support.s3_table import S3Table
from tests.support.servers.s3_server import Asked, Fault, S3Server
from tests.support.servers.zookeeper_server import ZooKeeper, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.deep, pytest.mark.timeout(1800)]

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


def test_both_write_under_the_storage_lock(s3_judges: Judges, s3: S3Server) -> None:
    both_write(table_of(s3_judges, s3, 9, STORAGE_LOCK, "storage"), 3)


def test_both_write_under_zookeeper(s3_judges: Judges, s3: S3Server, zookeeper: ZooKeeper) -> None:
    """Hudi 0.15 has no lock in the bucket."""
    lock = f"zookeeper:{zookeeper.hosts}/hudi_locks/on_s3"
    both_write(table_of(s3_judges, s3, 6, multi_writer(zookeeper, "on_s3"), lock), 4)
