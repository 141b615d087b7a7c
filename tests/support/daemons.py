"""Daemons of tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from phantombase import writer
from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.attempt.slice_task import Runner
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.daemon.assemble import open_daemon
from phantombase.compactor_daemon.daemon.dispatch import Rules, Stop
from phantombase.compactor_daemon.daemon.http_service import Reports
from phantombase.compactor_daemon.daemon.loop import Daemon
from phantombase.compactor_daemon.daemon.metrics import Metrics
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings, TableOnStorage
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.daemon.work import Observer, Summary
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.catalog import Catalog, FolderListing
from phantombase.compactor_daemon.fleet.claims import TableClaims
from phantombase.compactor_daemon.fleet.pools import Pool, Pools
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.compactor_daemon.services.options import ServiceOptions
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.table.history import PriceOptions
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import open_table, run_all
from tests.support.golden_tables import LOCK
from tests.support.servers.zookeeper_server import ZooKeeper

WAIT_S = 120.0
SESSION_S = 30.0
"""No daemon here is to lose its session, also when the machine stands still for some seconds."""


@contextmanager
def daemon_on(
    *paths: Path,
    zookeeper: ZooKeeper | None,
    runner: Runner | None = None,
    who: str = "daemon",
    once: bool = True,
    poll_s: float = 600.0,
    order: DaemonOrder = DaemonOrder.EARLIEST,
    schedule: ScheduleOptions | None = None,
    max_concurrent: int = 1,
    sole_writer: bool = False,
    services: ServiceOptions | None = None,
    observed: Callable[[DaemonSettings], Observer] | None = None,
    root: Path | None = None,
    slo_s: float | None = None,
) -> Iterator[Daemon]:
    """A daemon over tables, or over those below a root, in this process. `observed`: makes its observer."""
    retry = RetryOptions(retries=1, backoff_s=0.2)
    settings = DaemonSettings(
        who=who,
        output=OutputOptions(),
        attempt=AttemptOptions(barrier_s=0.5, barrier_poll_s=0.05, heartbeat_s=0.5),
        retry=retry,
        order=order,
        schedule=schedule,
        services=services or ServiceOptions(),
    )
    with open_daemon(
        [str(p) for p in paths],
        rules=Rules(
            once=once, poll_s=poll_s, order=order, max_concurrent=max_concurrent, services=services is not None
        ),
        settings=settings,
        execute=ExecuteOptions(executor=Executor.LOCAL),
        zookeeper=ZooKeeperOptions(hosts=zookeeper.hosts, session_timeout_s=SESSION_S) if zookeeper else None,
        runner=runner or LocalRunner(1),
        sole_writer=sole_writer,
        observer=None if observed is None else observed(settings),
        catalog=None
        if root is None
        else Catalog(listing=FolderListing(str(root), StorageOptions()), pools=Pools(others=Pool(slo_s=slo_s))),
    ) as daemon:
        yield daemon


def metrics_of_a_lake(root: Path) -> Metrics:
    """What a daemon exports that has served tables: one with a pending compaction, one that it cannot read, one that
    is COPY_ON_WRITE."""
    run_all(open_table(pending_table(root / "rides")))
    pending_table(root / "rides")
    for name, key, value in (
        ("odd", b"table.version=9", b"table.version=99"),
        ("dim", b"MERGE_ON_READ", b"COPY_ON_WRITE"),
    ):
        writer(ROWS).table(name).key("id").ordering("ts").upsert(str(root / name))
        properties = root / name / ".hoodie/hoodie.properties"
        properties.write_bytes(properties.read_bytes().replace(key, value))
    heard: list[Metrics] = []

    def observed(settings: DaemonSettings) -> Metrics:
        heard.append(Metrics(Reports(settings), PriceOptions(price_core_hour=1.0)))
        return heard[0]

    services = ServiceOptions.of(clean=CleanOptions())
    with daemon_on(
        zookeeper=None,
        root=root,
        slo_s=60.0,
        services=services,
        sole_writer=True,
        observed=observed,
        schedule=ScheduleOptions(freshness_s=600.0),
    ) as daemon:
        daemon.run()
    (metrics,) = heard
    metrics.zookeeper(True)
    return metrics


@contextmanager
def at_work(daemon: Daemon, how: Stop = Stop.FINISH) -> Iterator[list[Summary]]:
    """The daemon in a thread; stopped at the end, then its summary is in the list."""
    summaries: list[Summary] = []
    thread = threading.Thread(target=lambda: summaries.append(daemon.run()), daemon=True)
    thread.start()
    try:
        yield summaries
    finally:
        daemon.stop(how)
        thread.join(WAIT_S)
    assert summaries, "the daemon did not end"


# Many tables of one catalog, and daemons as processes that serve them.


ROWS = pa.table({"id": [str(i) for i in range(20)], "ts": [1] * 20, "fare": [1.0] * 20})


def pending_table(path: Path) -> Path:
    """A small table with one pending compaction."""
    writer(ROWS).table("rides").key("id").ordering("ts").buckets(1).upsert(str(path))
    ask = writer(ROWS.slice(0, 10)).buckets(1).schedule(strategy=TriggerStrategy.ALWAYS)
    assert ask.upsert(str(path)).after.scheduled is not None
    return path


def lake_of(root: Path, names: list[str], original: Path) -> list[Path]:
    """Copies of a table below a root."""
    return [Path(shutil.copytree(original, root / name)) for name in names]


def hostile_table(path: Path, original: Path) -> Path:
    """A table whose settings cannot be read."""
    shutil.copytree(original, path)
    (path / ".hoodie" / "hoodie.properties").write_bytes(b"\xff\xfe hoodie.table.type=\n\x00")
    return path


@contextmanager
def daemon_process(log: Path, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """`compactor-daemon run` with these arguments; SIGTERM at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "run", "--executor", "local", *args],
            stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def served_on(table: Table) -> TableOnStorage:
    """A table as the loop of a daemon knows it, with usual settings."""
    settings = DaemonSettings(
        who="a daemon",
        output=OutputOptions(),
        attempt=AttemptOptions(),
        retry=RetryOptions(),
        order=DaemonOrder.EARLIEST,
    )
    return TableOnStorage(table.storage.base_path, TableClaims(table, "a"), LOCK, LocalRunner(1), settings)
