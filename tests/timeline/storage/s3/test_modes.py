"""Every way to compact, on S3: inline, beside an ingest job, from streams, by a daemon, by a fleet, on Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase import CompactionTask, compact, plan_compaction, read_table, schedule
from phantombase.compactor_daemon.attempt.outcome import read_outcomes
from phantombase.compactor_daemon.execution.run_compactions import AsyncCompaction
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.options import ExecuteOptions, Executor
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.instants.reserved_times import COMMITTED, DEAD
from phantombase.timeline.table.table import Table
from tests.support.faults import kill_newest
from tests.support.golden_tables import one_of
from tests.support.places import ROOT
from tests.support.selection import deep
from tests.support.servers.s3_server import Asked, Fault, S3Server
from tests.support.servers.zookeeper_server import ZooKeeper, free_ports, wait_until
from tests.support.trips import rows, trips

LOCAL = ExecuteOptions(executor=Executor.LOCAL)
WAIT_S = 120.0


def fares(url: str) -> dict[str, float]:
    """Key to fare; a key twice is an error, and so is a compaction that cannot be proved."""
    found = read_table(url)
    keys = found["id"].to_pylist()
    assert len(set(keys)) == len(keys), "doubled rows"
    table = Table.open(url)
    assert all(audit(table, instant).good for instant in audited_instants(table))
    return dict(zip(keys, found["fare"].to_pylist(), strict=True))


def pending(url: str) -> list[str]:
    return [i.requested_time for i in Table.open(url).load_timeline().pending_merges]


@pytest.fixture
def url(s3: S3Server) -> str:
    """A table that is not there yet."""
    return f"s3://{s3.new_bucket()}/lake/trips"


@pytest.mark.parametrize("version", [9, deep(6)])
def test_inline(url: str, version: int) -> None:
    for ts in range(1, 5):
        batch = trips(rows((1, ts, float(ts)), (ts + 1, ts, 0.5)), version, 1)
        done = batch.compact_inline(limit_s=60, max_delta_commits=2).upsert(url)
        assert done.after.error is None
    assert done.after.compacted
    assert fares(url) == {"k0001": 4.0, **{f"k{n:04d}": 0.5 for n in range(2, 6)}}


def test_tasks_that_run_anywhere(url: str) -> None:
    for ts in (1, 2):
        trips(rows((1, ts, float(ts)), (ts + 1, ts, 0.5)), 9, 1).upsert(url)
    schedule(url, sole_writer=True)
    work = plan_compaction(url)
    assert work is not None
    for task in work.tasks:
        CompactionTask.from_json(json.loads(json.dumps(task.to_json()))).execute()
    assert work.commit().file_groups == len(work.tasks)
    assert fares(url) == {"k0001": 2.0, "k0002": 0.5, "k0003": 0.5}


def test_a_job_of_two_calls(url: str) -> None:
    """`schedule` and `compact` of the package, as a scheduler of the user's calls them."""
    trips(rows((1, 1, 1.0)), 9, 1).upsert(url)
    trips(rows((1, 2, 2.0)), 9, 1).upsert(url)
    schedule(url, sole_writer=True)
    assert [c.rows for c in compact(url, limit_s=600, execute=LOCAL).done] == [1]
    assert fares(url) == {"k0001": 2.0}


def test_beside_the_writes(url: str) -> None:
    """A thread executes what the writes request."""
    trips(rows((1, 0, 0.0)), 9, 1).upsert(url)
    with AsyncCompaction(url, LocalRunner(1), stop_s=60) as compaction:
        for ts in range(1, 5):
            batch = trips(rows((1, ts, float(ts)), (ts + 1, ts, 0.5)), 9, 1)
            batch.schedule(max_delta_commits=2, notify=compaction.notify).upsert(url)
        wait_until(lambda: not pending(url), WAIT_S)
    assert not compaction.errors
    assert fares(url) == {"k0001": 4.0, **{f"k{n:04d}": 0.5 for n in range(2, 6)}}


def test_batches_of_a_stream_count_once(url: str) -> None:
    """A batch that is written again after a crash is recognised by its number."""
    sink = trips(pa.table({}), 9, 1).compact_inline(max_delta_commits=2).foreach_batch(url, stream="trips")
    for number in (0, 1, 1, 2, 2):
        sink(rows((1, number, float(number)), (number, number, 0.5 + number)), number)
    assert len(Table.open(url).load_timeline().completed_writes) >= 3
    assert fares(url)["k0002"] == 2.5


@one_of("version", 9, 6)
def test_a_dead_writer_is_rolled_back_by_the_next(url: str, version: int) -> None:
    trips(rows((1, 1, 1.0), (2, 1, 2.0)), version).upsert(url)
    trips(rows((1, 2, 9.0), (3, 2, 9.0)), version).upsert(url)
    dead = kill_newest(Table.open(url))
    assert fares(url) == {"k0001": 1.0, "k0002": 2.0}
    trips(rows((2, 3, 3.0)), version).upsert(url)
    timeline = Table.open(url).load_timeline()
    assert timeline.find(dead.requested_time, "deltacommit") is None
    assert [i.action for i in timeline.instants if i.action == "rollback"] == ["rollback"]
    assert fares(url) == {"k0001": 1.0, "k0002": 3.0}


@contextmanager
def daemon(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of `compactor-daemon run`; it does not outlive the context."""
    command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "run", "--executor", "local"]
    process = subprocess.Popen(
        [*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def written(url: str) -> dict[str, float]:
    """A table with a pending compaction, and writes behind it; what is in it."""
    trips(rows(*((n, 1, 1.0) for n in range(20))), 9, 1).upsert(url)
    trips(rows(*((n, 2, 2.0) for n in range(10))), 9, 1).schedule(max_delta_commits=1).upsert(url)
    trips(rows((1, 3, 3.0)), 9, 1).upsert(url)
    assert len(pending(url)) == 1
    return fares(url)


@pytest.mark.deep  # a run once: `test_on_s3.py`; the loop: `compactor_daemon/daemon`
def test_a_daemon_in_its_loop(url: str) -> None:
    """It finds what is requested while it runs, answers those who watch it, and ends by a signal."""
    before = written(url)
    (port,) = free_ports(1)
    with daemon(url, "--poll-interval", "0.5", "--metrics-port", str(port)) as process:
        wait_until(lambda: not pending(url), WAIT_S)
        schedule(url, sole_writer=True)
        wait_until(lambda: not pending(url), WAIT_S)
        for page in ("healthz", "readyz"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}") as answer:
                assert answer.status == 200
        done = f'phantombase_completed_total{{table="{url}"}} 2.0'
        wait_until(lambda: done in urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode(), WAIT_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    assert fares(url) == before


def test_a_fleet_goes_on_when_a_daemon_is_killed(url: str, s3: S3Server, zookeeper: ZooKeeper) -> None:
    """It is killed while it stages: another claims the instant, and the dead attempt publishes nothing."""
    before = written(url)
    (instant,) = pending(url)
    reached, go_on = held_at(s3, f"/{instant}/1/")
    fleet = (url, "--zookeeper", zookeeper.hosts, "--zookeeper-session", "15", "--poll-interval", "0.5")
    with daemon(*fleet) as first:
        assert reached.wait(WAIT_S)
        with daemon(*fleet) as second:
            time.sleep(1)
            assert pending(url) == [instant]
            first.kill()
            wait_until(lambda: not pending(url), WAIT_S)
            go_on.set()
            second.send_signal(signal.SIGTERM)
            assert second.wait(WAIT_S) == 0
    outcomes = read_outcomes(Table.open(url).storage, instant)
    assert [outcome and outcome.kind for outcome in outcomes.values()] == [DEAD, COMMITTED]
    assert fares(url) == before


def held_at(s3: S3Server, part: str) -> tuple[threading.Event, threading.Event]:
    """The first staged file of that attempt is not taken before the second event; the first says that it came."""
    reached, go_on = threading.Event(), threading.Event()

    def faults(asked: Asked) -> Fault:
        if asked.method == "PUT" and part in asked.path and asked.path.endswith(".parquet") and not reached.is_set():
            reached.set()
            go_on.wait(WAIT_S)
        return Fault.NONE

    s3.faults = faults
    return reached, go_on


@pytest.mark.spark
def test_a_job_on_spark(url: str, tmp_path: Path) -> None:
    """DataFrames are written, a thread compacts beside them, and a stream compacts inline.

    Spark's Hadoop configuration says where the store is; tasks have nothing but the keys in their environment."""
    live: dict[str, float] = {}
    for number in range(6):
        folder = tmp_path / "in" / ("write" if number < 3 else "stream")
        folder.mkdir(parents=True, exist_ok=True)
        keys = [f"k{n}" for n in range(0, 50, number + 1)]
        fares_ = [n / 7 + number for n in range(len(keys))]
        pq.write_table(pa.table({"id": keys, "ts": [number] * len(keys), "fare": fares_}), folder / f"{number}.parquet")
        os.utime(folder / f"{number}.parquet", (1_700_000_000 + number,) * 2)
        live |= dict(zip(keys, fares_, strict=True))
    command = [sys.executable, "-m", "tests.support.s3_spark_child", url, f"{tmp_path}/in", f"{tmp_path}/checkpoint"]
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    command += [f"spark.hadoop.fs.s3a.endpoint={endpoint}", "spark.hadoop.fs.s3a.path.style.access=true"]
    known = {k: v for k, v in os.environ.items() if k not in ("AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP")}
    done = subprocess.run(command, cwd=ROOT, env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert fares(url) == live
    compacted = audited_instants(Table.open(url))
    assert len(compacted) >= 2
    assert pending(url) == []
