"""Tables on HDFS: the commands, readers, writers and executors, as on a disk; the table lock is ZooKeeper's."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.hdfs_store import HdfsStorage
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import run_all
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import HookedStorage, ProcessDied
from tests.support.golden_tables import DECIMALS_SPOILT_BY_HUDI, GOLDEN, unzip_golden
from tests.support.places import ROOT
from tests.support.s3_table import die_before_change, run
from tests.support.s3_table import no_local_disk as no_local_disk
from tests.support.selection import deep
from tests.support.servers.hdfs_cluster import Hdfs
from tests.support.servers.zookeeper_server import ZooKeeper
from tests.support.trips import rows, trips

USUAL = {"v6_pending"}
COMPACT = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "compact"]


@pytest.fixture
def lock(zookeeper: ZooKeeper) -> str:
    """A table lock."""
    return f"zookeeper:{zookeeper.hosts}/locks/{time.time_ns()}"


@pytest.mark.parametrize("name", [n if n in USUAL else deep(n) for n in GOLDEN])
def test_golden_tables_are_read_and_compacted(name: str, hdfs: Hdfs, lock: str, tmp_path: Path) -> None:
    """By the commands: the same rows as on disk, before and after, and as Hudi read them."""
    path = unzip_golden(name, tmp_path)
    url = hdfs.upload(path)
    run("read", url, "--output", f"{tmp_path}/before.parquet")
    local = read_table(Table.open(str(path)))
    assert_same_rows(pq.read_table(tmp_path / "before.parquet"), local)
    if not Table.open(url).load_timeline().pending_merges:
        run("schedule", url, "--lock", lock, "--drop-metadata-table")
    run("compact", url, "--executor", "local", "--lock", lock, "--drop-metadata-table")
    hudis = path.with_name(f"{path.name}.expected") / "snapshot_after_compaction.parquet"
    expected, table = pq.read_table(hudis) if hudis.exists() else local, Table.open(url)
    assert table.load_timeline().pending_merges == ()
    after = read_table(table)
    if spoilt := DECIMALS_SPOILT_BY_HUDI.get(name):
        expected, after = expected.drop_columns([spoilt]), after.drop_columns([spoilt])
    assert_same_rows(after, expected)
    assert all(audit(table, instant).good for instant in audited_instants(table))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not [name for name, _ in table.storage.list_below("") if name.endswith(".crc")]


@pytest.mark.parametrize("version", [9, deep(6)])
def test_a_table_is_made_and_written_there(hdfs: Hdfs, lock: str, version: int) -> None:
    """From Arrow in this process: new table, upserts, deletes, a plan and its compaction."""
    url = f"{hdfs.new_folder()}/a b/t=1"
    trips(rows((1, 1, 1.0), (2, 1, 2.0), (3, 1, 3.0)), version).option(lock=lock).upsert(url)
    trips(rows((1, 2, 1.5), (4, 2, 4.0)), version).option(lock=lock).upsert(url)
    trips(rows((2, 3, 0.0)), version).option(lock=lock).delete(url)
    expected = {"k0001": 1.5, "k0003": 3.0, "k0004": 4.0}
    assert fares(url) == expected
    run("schedule", url, "--sole-writer")
    trips(rows((3, 4, 3.5)), version).option(lock=lock).upsert(url)
    run("compact", url, "--executor", "local", "--lock", lock)
    assert fares(url) == {**expected, "k0003": 3.5}
    assert Table.open(url).load_timeline().pending_merges == ()


def fares(url: str) -> dict[str, float]:
    """Key to fare; a key twice is an error."""
    table = read_table(Table.open(url))
    keys = table.column("id").to_pylist()
    assert len(set(keys)) == len(keys), "doubled rows"
    return dict(zip(keys, table.column("fare").to_pylist(), strict=True))


def test_a_command_without_a_lock_is_refused(hdfs: Hdfs, tmp_path: Path) -> None:
    """Before it changes anything."""
    url = hdfs.upload(unzip_golden("v9_pending", tmp_path))
    before = HdfsStorage(url).list_below("")
    for command in (["compact", url, "--executor", "local"], ["run", url, "--once", "--executor", "local"]):
        done = CliRunner().invoke(daemon, command)
        assert done.exit_code != 0
        assert "no lock that Hudi's writers share" in str(done.exception)
        assert "--lock zookeeper:HOST" in str(done.exception)
    assert HdfsStorage(url).list_below("") == before


def test_a_daemon_serves_a_table_there(hdfs: Hdfs, lock: str, tmp_path: Path) -> None:
    path = unzip_golden("v9_two_pending", tmp_path)
    url = hdfs.upload(path)
    run("run", url, "--once", "--executor", "local", "--lock", lock)
    check_compacted(path, url)
    run("status", url)


def test_a_death_is_finished_by_the_next_run(hdfs: Hdfs, tmp_path: Path) -> None:
    """Before a call that changes something. A reader in between sees the same rows."""
    assert dies(18, unzip_golden("v9_pending", tmp_path), hdfs)


@pytest.mark.deep
@pytest.mark.parametrize("version", [6, 8, 9], ids="v{}".format)
def test_each_death_is_finished_by_the_next_run(version: int, hdfs: Hdfs, tmp_path: Path) -> None:
    """Before every such call."""
    path = unzip_golden(f"v{version}_pending", tmp_path)
    assert next(number for number in count() if not dies(number, path, hdfs)) > 18


def dies(number: int, path: Path, hdfs: Hdfs) -> bool:
    """Whether a compaction of a copy died before the n-th call (from 0) that changes something; checks the rest."""
    url = hdfs.upload(path)
    with suppress(ProcessDied):
        run_all(Table.on(HookedStorage(HdfsStorage(url), die_before_change(number))))
        return False
    if Table.open(url).load_timeline().pending_merges:
        snapshot = path.with_name(f"{path.name}.expected") / "snapshot.parquet"
        assert_same_rows(read_table(Table.open(url)), pq.read_table(snapshot))
    run_all(Table.open(url))
    check_compacted(path, url)
    return True


@pytest.mark.deep
@pytest.mark.parametrize("ending", ["open", ".parquet", ".ok", "outcome", "audit"])
def test_a_killed_process_is_finished_by_the_next(ending: str, hdfs: Hdfs, lock: str, tmp_path: Path) -> None:
    """Killed once it has put a file of that name; the next one waits until the claim of the dead is free."""
    path = unzip_golden("v9_pending", tmp_path)
    url = hdfs.upload(path)
    command = [*COMPACT, url, "--executor", "local", "--lock", lock]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or any(ending in name for name in recorded(url)))
    finally:
        process.kill()
        process.wait()
    done = subprocess.run([*command, "--wait", "200"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_compacted(path, url)


def recorded(url: str) -> list[str]:
    """The files of phantombase in the table."""
    return [name for name, _ in HdfsStorage(url).list_below(RECORDS)]


def until(happens: Callable[[], bool]) -> None:
    """Waits for it, for a minute."""
    end = time.monotonic() + 60
    while not happens() and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.deep
def test_processes_that_compact_at_once_make_one_commit(hdfs: Hdfs, lock: str, tmp_path: Path) -> None:
    """One works, the others wait for its claim."""
    path = unzip_golden("v9_pending", tmp_path)
    url = hdfs.upload(path)
    command = [*COMPACT, url, "--executor", "local", "--lock", lock, "--wait", "200"]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(300) for process in processes] == [0, 0, 0]
    check_compacted(path, url)


@pytest.mark.deep
@pytest.mark.spark
def test_spark_executors_open_the_storage_by_its_url(hdfs: Hdfs, lock: str, tmp_path: Path) -> None:
    """Tasks run in processes of their own."""
    path = unzip_golden("v9_two_pending", tmp_path)
    url = hdfs.upload(path)
    command = [*COMPACT, url, "--master", "local[2]", "--lock", lock]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_compacted(path, url)


def check_compacted(path: Path, url: str) -> None:
    """No plan is pending, and the rows are those that Hudi reads after its own compaction."""
    table = Table.open(url)
    assert table.load_timeline().pending_merges == ()
    expected = path.with_name(f"{path.name}.expected") / "snapshot_after_compaction.parquet"
    assert_same_rows(read_table(table), pq.read_table(expected))
    assert all(audit(table, instant).good for instant in audited_instants(table))
