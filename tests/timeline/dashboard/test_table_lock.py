"""The table lock on a table's page: which process holds it, as far as that can be seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from phantombase.timeline.clock.now import clock_ms
from phantombase.timeline.dashboard.orders import CommandSettings
from phantombase.timeline.dashboard.people_app import PeopleApp
from phantombase.timeline.locks.holder import look_at_lock
from phantombase.timeline.locks.seen import LockSeen, LockState
from phantombase.timeline.locks.table_lock import HUDI_LOCK, parse_lock, table_lock
from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.open_storage import open_storage
from tests.support.golden_tables import unzip_golden
from tests.support.servers.s3_server import S3Server
from tests.support.servers.zookeeper_server import ZooKeeper, free_ports
from tests.support.service_client import ServiceClient

HUDI = "org.apache.hudi.client.transaction.lock."
PROVIDER = "hoodie.write.lock.provider"


def look(path: object, given: str | None = None, properties: Mapping[str, str] | None = None) -> LockSeen:
    return look_at_lock(open_storage(str(path)), given, properties or {}, clock_ms())


@contextmanager
def held_elsewhere(path: Path, lock: str) -> Iterator[int]:
    """Another process holds a lock."""
    code = (
        "import sys; from phantombase.timeline.locks.table_lock import table_lock\n"
        "from phantombase.timeline.storage.open_storage import open_storage\n"
        "with table_lock(open_storage(sys.argv[1]), sys.argv[2]).hold('test'):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path), lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process.pid
        finally:
            process.stdin.close()


@pytest.mark.parametrize("kind", ["storage", "file"])
def test_a_lock_file_names_the_process_of_this_machine(kind: str, tmp_path: Path) -> None:
    table = unzip_golden("v9_plain", tmp_path)
    lock = "storage" if kind == "storage" else f"file:{tmp_path}/lock"
    assert look(table, lock).state is LockState.FREE
    with held_elsewhere(table, lock) as pid:
        seen = look(table, lock)
        assert (seen.state, f"process {pid}" in str(seen.holder)) == (LockState.HELD, True), seen
    assert look(table, lock).state is LockState.FREE


def test_a_lock_in_zookeeper_names_its_holder(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    lock = f"zookeeper:{zookeeper.hosts}/served/{tmp_path.name}"
    assert look(tmp_path, lock).state is LockState.FREE
    with parse_lock(lock).hold("write"):
        seen = look(tmp_path, lock)
    assert (seen.state, f"pid {os.getpid()}: write" in str(seen.holder)) == (LockState.HELD, True), seen
    assert seen.for_s is not None
    where = {"url": zookeeper.hosts, "base_path": "/served", "lock_key": tmp_path.name}
    by_hudi = {f"hoodie.write.lock.zookeeper.{name}": value for name, value in where.items()}
    by_hudi[PROVIDER] = f"{HUDI}ZookeeperBasedLockProvider"
    with parse_lock(lock).hold("write"):
        assert look(tmp_path, properties=by_hudi).state is LockState.HELD
    assert look(tmp_path, properties=by_hudi).state is LockState.FREE


def test_zookeeper_that_is_away_is_unknown_and_soon_so(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    began = time.monotonic()
    seen = look(tmp_path, f"zookeeper:127.0.0.1:{port}/served/t")
    assert (seen.state, time.monotonic() - began < 60) == (LockState.UNKNOWN, True)
    assert str(port) in seen.why


def test_the_lock_of_an_object_store_names_its_holder(s3: S3Server) -> None:
    """The object of Hudi's StorageBasedLockProvider: also found where nothing names the lock."""
    url = f"s3://{s3.new_bucket()}/t"
    storage = open_storage(url)
    assert look(url).state is LockState.UNKNOWN
    with table_lock(storage, "storage").hold("write"):
        owner = json.loads(storage.read(HUDI_LOCK))["owner"]
        for seen in (look(url), look(url, "storage"), look(url, None, {PROVIDER: f"{HUDI}StorageBasedLockProvider"})):
            assert (seen.state, seen.holder) == (LockState.HELD, owner)
    assert look(url).state is LockState.FREE
    other = s3.new_bucket()
    s3.put(f"{other}/t/{HUDI_LOCK}", b"not a lock")
    assert look(f"s3://{other}/t").state is LockState.UNKNOWN


@pytest.mark.parametrize(
    ("until_ms", "expired", "state"),
    [(60_000, False, "held"), (60_000, True, "free"), (-60_000, False, "free"), (-100, False, "held")],
)
def test_an_object_counts_as_long_as_hudi_says(until_ms: int, expired: bool, state: str, tmp_path: Path) -> None:
    (tmp_path / HUDI_LOCK).parent.mkdir(parents=True)
    text = json.dumps({"expired": expired, "validUntil": 1_000_000 + until_ms, "owner": "x"})
    (tmp_path / HUDI_LOCK).write_text(text)
    seen = look_at_lock(LocalStorage(str(tmp_path)), None, {}, 1_000_000)
    assert seen.state.value == state


@pytest.mark.parametrize(
    ("provider", "state"),
    [
        ("org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider", "unknown"),
        (f"{HUDI}InProcessLockProvider", "unknown"),
        ("", "unknown"),
        (f"{HUDI}FileSystemBasedLockProvider", "free"),
        (f"{HUDI}ZookeeperBasedLockProvider", "unknown"),  # nothing says where
    ],
)
def test_unknown_is_never_free(provider: str, state: str, tmp_path: Path) -> None:
    (tmp_path / ".hoodie").mkdir()
    assert look(tmp_path, None, {PROVIDER: provider}).state.value == state


def test_hudis_lock_file_is_held_as_long_as_it_is_there(tmp_path: Path) -> None:
    (tmp_path / ".hoodie").mkdir()
    (tmp_path / ".hoodie/lock").touch()
    seen = look(tmp_path, None, {PROVIDER: f"{HUDI}FileSystemBasedLockProvider"})
    assert (seen.state, seen.for_s is not None) == (LockState.HELD, True)


def test_the_page_shows_it(tmp_path: Path) -> None:
    table = unzip_golden("v9_plain", tmp_path)
    lock = f"file:{tmp_path}/{{name}}.lock"
    settings = CommandSettings(lock=lock)
    tables = ServedTables([str(table)])
    client = ServiceClient.of_tables(tables)
    assert client.ask("/api/tables/plain").json()["lock"]["state"] == "unknown"
    assert "which lock the writers share is not known here" in client.ask("/t/plain").text
    client = ServiceClient(ServiceApp(tables, 1 << 20, pages=PeopleApp(tables, settings=settings)), client.loop)
    name = client.ask("/api/tables/plain").json()["table"]["name"]
    with held_elsewhere(table, lock.replace("{name}", name)) as pid:
        found = client.ask("/api/tables/plain").json()["lock"]
        assert (found["state"], found["lock"]) == ("held", f"{tmp_path}/{name}.lock")
        assert f"by process {pid}" in client.ask("/t/plain").text
