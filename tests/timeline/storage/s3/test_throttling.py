"""A store that refuses everything for a while: commands wait for it, at last say so, and daemons go on."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from phantombase.timeline.errors import ConflictError
from phantombase.timeline.locks.heartbeat import Pulse
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage import object_clients
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.places import ROOT
from tests.support.s3_table import Compaction, Write, fares, litter
from tests.support.selection import deep
from tests.support.servers.fault_proxy import Fault, FaultProxy, Kind, Request, storm
from tests.support.servers.s3_server import S3Server
from tests.support.trips import rows, trips

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
    assert compaction.spoilt(faulty_s3, storm(after, 6))
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


def test_a_write_whose_heartbeat_cannot_be_written_ends(
    faulty_s3: FaultProxy, s3: S3Server, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    """As on a disk: it may be taken for dead, so it completes nothing."""
    url = f"s3://{s3.new_bucket()}/t"
    trips(rows((1, 1, 1.0)), 9).upsert(url)
    lapsed = Pulse.lapsed
    monkeypatch.setattr(Pulse, "lapsed", lambda self, expiry_s: lapsed(self, 1.0))

    def faults(asked: Request) -> Fault:
        is_beat = "/.heartbeat/" in asked.path and asked.kind is Kind.PUT
        return Fault.REFUSED_503 if is_beat else Fault.DELAYED if "/writes/" in asked.path else Fault.NONE

    faulty_s3.restart(faults)
    with pytest.raises(ConflictError, match="no heartbeat for too long"):
        trips(rows((1, 2, 2.0)), 9).upsert(url)
    faulty_s3.restart()
    assert fares(url) == {"k0001": 1.0}
    trips(rows((1, 2, 2.0)), 9).upsert(url)
    assert fares(url) == {"k0001": 2.0}
    assert litter(url) == []
