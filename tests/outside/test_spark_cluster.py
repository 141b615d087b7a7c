"""Compactions on a real Spark cluster: executors come and go with the work; lost ones and lost drivers lose nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.failures import release_failures
from phantombase.compactor_daemon.attempt.outcome import read_outcome
from phantombase.compactor_daemon.attempt.slice_record import done_slices
from phantombase.compactor_daemon.fleet.claims import TABLE_ID
from phantombase.timeline.instants.reserved_times import COMMITTED, DEAD, attempts
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.open_storage import open_storage
from tests.support.compaction_steps import check_no_strays, open_table
from tests.support.gated_compactor import Begun, Gate
from tests.support.places import ROOT
from tests.support.servers.spark_cluster import SparkCluster, children, kill, parent
from tests.support.servers.zookeeper_server import ZooKeeper, wait_until

pytestmark = pytest.mark.spark

WAIT_S = 300.0
ROWS = 200
SESSION_S = 15
"""So long a daemon that was killed keeps its claims; so long the machine may stand still and no session is lost."""
ASKED_S = 3.0
"""Spark asks for more executors once a second, as long as tasks wait."""


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    folder = tmp_path / "gate"
    folder.mkdir()
    return Gate(folder)


def rows(ts: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(np.arange(count)), "ts": np.full(count, ts), "fare": np.arange(count) * 1.0 * ts})


def written(path: Path, slices: int) -> None:
    """A table of two writes, the second on half of the rows, in so many file groups."""
    writer(rows(1, ROWS)).table("rides").key("id").ordering("ts").buckets(slices).upsert(str(path))
    writer(rows(2, ROWS // 2)).buckets(slices).upsert(str(path))


def plan(path: Path, slices: int) -> str:
    """Requests a compaction of so many file slices; its instant."""
    scheduled = schedule_compaction(open_table(path), table_lock(open_storage(str(path)), None))
    assert scheduled.plan is not None
    assert scheduled.instant is not None
    assert len(scheduled.plan.operations) == slices
    return scheduled.instant


def check(path: Path, instant: str, slices: int) -> None:
    """Compacted to one base file a slice, row for row; nothing is left over."""
    table = open_table(path)
    assert pending_instants(table) == ()
    fares = np.arange(ROWS) * np.where(np.arange(ROWS) < ROWS // 2, 2.0, 1.0)
    read = read_table(table).sort_by("id")
    assert read.column("id").to_pylist() == list(range(ROWS))
    assert read.column("fare").to_pylist() == fares.tolist()
    assert len(new_files(path, instant)) == slices
    (path / TABLE_ID).unlink(missing_ok=True)
    check_no_strays(path)


def new_files(path: Path, instant: str) -> list[Path]:
    """Base files of an instant under final names."""
    return list(path.glob(f"*_{instant}.parquet"))


@contextmanager
def command(gate: Gate, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process of `compactor-daemon`; it does not outlive the context."""
    repository = str(ROOT)
    # The workers, and so their executors, were started before there was this gate.
    gates = ["--spark-conf", f"spark.executorEnv.GATE={gate.folder}"] if "--master" in arguments else []
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.gated_compactor", *map(str, arguments), *gates],
        env=os.environ | {"GATE": str(gate.folder), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": repository},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=repository,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def on(cluster: SparkCluster, **settings: object) -> list[str]:
    """Options: the cluster, and settings of Spark, `_` for `.`."""
    lean = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings = {"driver_extraJavaOptions": lean, "executor_extraJavaOptions": lean} | settings
    conf = [part for k, v in settings.items() for part in ("--spark-conf", f"spark.{k.replace('_', '.')}={v}")]
    return ["--master", cluster.master, "--executor-memory", "512m", "--driver-memory", "512m", *conf]


def wait_for(gate: Gate, count: int, position: int | None = None) -> list[Begun]:
    """Until so many tasks have come to the gate (of a position)."""
    found: list[Begun] = []

    def come() -> bool:
        found[:] = [b for b in gate.begun() if position in (None, b.position)]
        return len(found) >= count

    wait_until(come, WAIT_S)
    return found


def executor_of(task: Begun, cluster: SparkCluster) -> int:
    """The process id of the executor a task runs in: its Python worker is a grandchild."""
    pid, executors = task.pid, cluster.executors()
    while pid not in executors:
        pid = parent(pid)
    return pid


def test_a_lost_executor_costs_a_task_and_a_task_run_twice_gives_one_file(
    cluster: SparkCluster, gate: Gate, tmp_path: Path
) -> None:
    path = tmp_path / "rides"
    written(path, 4)
    instant = plan(path, 4)
    # A second run of a task that takes longer than others, once half of them are done.
    speculation = {"speculation": "true", "speculation_quantile": 0.5, "speculation_multiplier": 0.01}
    with command(gate, "compact", path, *on(cluster, **speculation)) as process:
        first = wait_for(gate, 2)
        kill(executor_of(first[0], cluster))
        wait_for(gate, 2, first[0].position)
        last = first[1].position
        gate.open(*{0, 1, 2, 3} - {last})
        wait_for(gate, 2, last)
        gate.open()
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, said
    check(path, instant, 4)


@pytest.mark.parametrize("by_spark", [False, True], ids=["by an option", "by Spark's configuration"])
def test_executors_follow_the_file_slices(by_spark: bool, cluster: SparkCluster, gate: Gate, tmp_path: Path) -> None:
    """One for one slice, the cap for many, none while idle; without an option as many as the cluster has."""
    small, large = tmp_path / "small", tmp_path / "large"
    written(small, 1)
    written(large, 4)
    one = plan(small, 1)
    own = {"dynamicAllocation_enabled": "true", "dynamicAllocation_shuffleTracking_enabled": "true"}
    options = on(cluster, dynamicAllocation_executorIdleTimeout="1s", **(own if by_spark else {}))
    options += [] if by_spark else ["--max-executors", "2"]
    with command(gate, "run", small, large, "--poll-interval", 1, *options) as process:
        wait_for(gate, 1)
        time.sleep(ASKED_S)
        assert len(cluster.executors()) == 1
        gate.open()
        wait_until(lambda: not cluster.executors(), WAIT_S)
        gate.close()
        many = plan(large, 4)
        wait_for(gate, 1 + 2)
        time.sleep(ASKED_S)
        assert len(cluster.executors()) == 2
        gate.open()
        wait_until(lambda: pending_instants(open_table(large)) == () and not cluster.executors(), WAIT_S)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, said
    check(small, one, 1)
    check(large, many, 4)


def test_a_lost_driver_costs_a_take_over(
    cluster: SparkCluster, zookeeper: ZooKeeper, gate: Gate, tmp_path: Path
) -> None:
    """The first daemon loses its JVM, the second is killed itself; each time the next goes on from what is done."""
    path = tmp_path / "rides"
    written(path, 4)
    instant = plan(path, 4)
    fleet = ["run", path, "--zookeeper", zookeeper.hosts, "--zookeeper-session", SESSION_S, "--backoff", 0.1]
    fleet += ["--poll-interval", 1]
    storage = LocalStorage(str(path))
    with command(gate, *fleet, *on(cluster)) as first:
        begun = wait_for(gate, 2)
        with command(gate, *fleet, *on(cluster)) as second:
            gate.open(begun[0].position)
            wait_until(lambda: len(done_slices(storage, instant, 1)) == 1, WAIT_S)
            (done,) = done_slices(storage, instant, 1).values()
            (jvm,) = children(first.pid)
            kill(jvm)
            _, said = first.communicate(timeout=WAIT_S)
            assert first.returncode == 1
            (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
            assert "Spark has ended" in error
            assert "internal_error" not in said
            wait_until(lambda: any(b.attempt == 2 for b in gate.begun()), WAIT_S)
            (jvm,) = children(second.pid)
            kill(second.pid)
            wait_until(lambda: not cluster.executors() and not Path(f"/proc/{jvm}").exists(), WAIT_S)
    assert done.staged is not None
    adopted = (path / done.staged).stat().st_ino
    with command(gate, *fleet, "--executor", "local") as third:
        wait_until(lambda: pending_instants(open_table(path)) == (), WAIT_S)
        third.send_signal(signal.SIGTERM)
        third.communicate(timeout=WAIT_S)
    assert third.returncode == 0
    outcomes = [read_outcome(storage, instant, number) for number in attempts(storage, instant)]
    assert [outcome.kind for outcome in outcomes if outcome is not None] == [DEAD, DEAD, COMMITTED]
    assert adopted in {p.stat().st_ino for p in new_files(path, instant)}
    assert done.position not in {b.position for b in gate.begun() if b.attempt == 2}
    assert release_failures(storage, instant) == 1, "the loss of a JVM counts: an instant may be what ends it"
    check(path, instant, 4)
