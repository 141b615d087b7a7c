"""Our table lock in ZooKeeper and that of live Hudi writers exclude each other."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kazoo.client import KazooClient

from phantombase import writer
from phantombase.timeline.errors import LockError
from phantombase.timeline.locks.table_lock import parse_lock
from phantombase.timeline.locks.zookeeper_lock import ZooKeeperLock
from tests.hudi.cases.rows import Rows, partition
from tests.hudi.cases.shared_table import BUCKET, EVENT_TIME, SharedTable, check_rows, is_ours, multi_writer
from tests.hudi.judge.client import Judge, JudgeError
from tests.support.selection import versions
from tests.support.servers.zookeeper_server import ZooKeeper, wait_until

pytestmark = pytest.mark.interop


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
