"""Daemons without ZooKeeper on one bucket: an instant is claimed by a lease, so that they share the work."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.compact_instant import pending_instants
from phantombase.compactor_daemon.attempt.retire import forget_archived
from phantombase.compactor_daemon.claims.lock_file import claim_path
from phantombase.compactor_daemon.claims.table_claims import TableClaims
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.daemon.dispatch import Order, Rules
from phantombase.compactor_daemon.daemon.loop import Daemon, Summary
from phantombase.compactor_daemon.daemon.table_on_storage import ServedTable, Settings
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.execution.slice_task import SliceTask
from phantombase.compactor_daemon.records.failures import RetryOptions
from phantombase.compactor_daemon.records.slice_done import SliceDone
from phantombase.timeline.errors import ClaimedError
from phantombase.timeline.instants.attempt_names import recorded_instants
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage import object_lease
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from tests.support.clock import Clock
from tests.support.compaction_steps import OPTIONS, OUTPUT
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.servers.s3_server import S3Server
from tests.support.servers.zookeeper_server import wait_until

WAIT_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table with two pending compactions."""
    return unzip_golden("v9_two_pending", tmp_path)


@pytest.fixture
def url(s3: S3Server, path: Path) -> str:
    """Its copy in a bucket."""
    return s3.upload(path, s3.new_bucket(), "t")


def of_another(seconds: float) -> bytes:
    """The lease of another process, which ends in so many seconds."""
    until = round((time.time() + seconds) * 1000)
    return json.dumps({"expired": False, "validUntil": until, "owner": "another"}).encode()


def test_each_instant_is_claimed_by_itself(url: str) -> None:
    table = Table.open(url)
    first, second = pending_instants(table)
    one, other = TableClaims(table, "one"), TableClaims(Table.open(url), "other")
    held = one.take(first)
    assert held is not None
    assert not held.lost
    assert one.take(first) is None
    assert other.take(first) is None
    theirs = other.take(second)
    assert theirs is not None
    assert set(one.names()) == {first}
    assert set(other.all()) == {second}
    held.release()
    again = other.take(first)
    assert again is not None
    assert one.names() == frozenset()
    for claim in (again, theirs):
        claim.release()


def test_a_dead_holders_claim_becomes_free(url: str) -> None:
    """Once its time is over: a dead process renews nothing."""
    table = Table.open(url)
    (instant, _), claims = pending_instants(table), TableClaims(table, "d")
    table.storage.overwrite(claim_path(table, instant), of_another(44))
    assert claims.take(instant) is None
    table.storage.overwrite(claim_path(table, instant), of_another(-1))
    held = claims.take(instant)
    assert held is not None
    held.release()  # else it is released when it is collected, in another test, whose server is another


def test_a_claim_is_kept_as_long_as_the_work_takes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is lost, for the work to stop, when another has it."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(object_lease, "RENEW_S", 0.02)
    table = Table.open(url)
    instant, _ = pending_instants(table)
    path = claim_path(table, instant)
    held = TableClaims(table, "one").take(instant)
    assert held is not None
    for _ in range(4):  # a lease is for 45 s
        clock.passed_s += 20
        wait_until(lambda: json.loads(table.storage.read(path))["validUntil"] > clock.now_ms() + 40_000)
        assert not held.lost
        assert TableClaims(table, "other").take(instant) is None
    table.storage.overwrite(path, of_another(60))
    wait_until(lambda: held.lost)
    held.release()
    assert json.loads(table.storage.read(path))["owner"] == "another"


def test_two_daemons_share_the_work(path: Path, url: str) -> None:
    """Each of them is at work on an instant of its own at the same time."""
    together = threading.Barrier(2)
    local = LocalRunner(1)

    def runner(storage: Storage, tasks: list[SliceTask], progress: Callable[[int, int], None]) -> list[SliceDone]:
        together.wait(WAIT_S)
        return local(storage, tasks, progress)

    def run(name: str) -> Summary:
        table = Table.open(url)
        settings = Settings(who=name, output=OUTPUT, attempt=OPTIONS, retry=RetryOptions(), order=Order.EARLIEST)
        served = ServedTable(url, TableClaims(table, name), table_lock(table.storage, None), runner, settings)
        return Daemon({url: served}, Rules(max_concurrent=1, poll_s=0.1, once=True), RetryOptions()).run()

    with ThreadPoolExecutor(2) as pool:
        done = [one.done for one in pool.map(run, ("one", "other"))]
    assert [len(one) for one in done] == [1, 1]
    table = Table.open(url)
    assert pending_instants(table) == ()
    expected = path.with_name(f"{path.name}.expected") / "snapshot_after_compaction.parquet"
    assert_same_rows(read_table(table), pq.read_table(expected))


def test_a_command_leaves_what_another_has_claimed(url: str) -> None:
    """The other instants are compacted; the error names the claim."""
    table = Table.open(url)
    first, second = pending_instants(table)
    held = TableClaims(table, "d").take(first)
    assert held is not None
    ran = CliRunner().invoke(app, ["compact", url, "--executor", "local"])
    assert isinstance(ran.exception, ClaimedError)
    assert f"at work on this instant; at {url}/{claim_path(table, first)}" in str(ran.exception)
    assert pending_instants(table) == (first,)
    assert second in recorded_instants(table.storage)
    held.release()
    ran = CliRunner().invoke(app, ["compact", url, "--executor", "local"])
    assert ran.exit_code == 0, ran.output
    assert pending_instants(table) == ()


def test_claims_go_with_the_records_of_their_instant(url: str) -> None:
    """Once it is archived."""
    table = Table.open(url)
    held = TableClaims(table, "d").take("20200101000000000")
    assert held is not None
    held.release()
    assert recorded_instants(table.storage) == ("20200101000000000",)
    forget_archived(table)
    assert recorded_instants(table.storage) == ()
