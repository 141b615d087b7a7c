"""A daemon over the tables of a catalog: what it costs while nothing happens, and how soon a plan is begun.

    python -m bench.lake [--quick] [--tables 1000,10000] [--idle SECONDS]

The tables are small, have nothing pending, and are served by one daemon of a fleet with an embedded ZooKeeper, which
polls every 10 s. `first_round`: from the start until every table was opened and looked at. `cpu_per_look_ms`: processor
time of the process for each look at an idle table. `round_s`: how long a round over all tables takes. Latency: from a
plan's instant time to its beginning; `rung`: the writer rang the doorbell.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from bench.report import Goal, Report
from phantombase import writer
from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.daemon.assemble import open_daemon
from phantombase.compactor_daemon.daemon.dispatch import Rules, Stop
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.daemon.work import Observer
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.catalog import Catalog, FolderListing
from phantombase.compactor_daemon.fleet.pools import Pools
from phantombase.compactor_daemon.fleet.zookeeper_server import embedded_zookeeper
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.storage.storage_options import StorageOptions

_ROWS = pa.table({"id": [str(i) for i in range(20)], "ts": [1] * 20, "fare": [1.0] * 20})
_RUNG, _POLLED = 10, 5
_WAIT_S = 600.0


class _Seen(Observer):
    """How often tables were looked at, and when their plans were begun."""

    def __init__(self) -> None:
        self.looks = 0
        self.tables: set[str] = set()
        self.latencies: list[float] = []

    def snapshot_taken(
        self, table: str, pending: int, parked: int, oldest_s: float | None, paused: bool = False
    ) -> None:
        """See `Observer`."""
        self.looks += 1
        self.tables.add(table)

    def started(self, table: str, latency_s: float | None) -> None:
        """See `Observer`."""
        self.latencies.append(latency_s or 0.0)


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="Idle cost and latency of a daemon over many tables.")
    parser.add_argument("--tables", default="1000,10000", help="numbers of tables")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds for which the idle cost is measured")
    parser.add_argument("--quick", action="store_true", help="1,000 tables, idle for ten seconds")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.tables, arguments.idle = "1000", 10.0
    report = Report(bench="lake")
    report.facts["load"] = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="lake-") as made, embedded_zookeeper(Path(made) / "zookeeper") as zookeeper:
        original = Path(made) / "original"
        writer(_ROWS).table("lake").key("id").ordering("ts").buckets(1).upsert(str(original))
        for count in map(int, arguments.tables.split(",")):
            root = Path(made) / f"lake-{count}"
            for number in range(count):
                shutil.copytree(original, root / f"t{number:05}", copy_function=os.link)
            _measure(report, root, count, zookeeper.hosts, arguments.idle)
            shutil.rmtree(root)
    return report.finish()


def _measure(report: Report, root: Path, count: int, hosts: str, idle_s: float) -> None:
    seen = _Seen()
    settings = DaemonSettings(
        who="bench", output=OutputOptions(), attempt=AttemptOptions(), retry=RetryOptions(), order=DaemonOrder.EARLIEST
    )
    began = time.monotonic()
    with open_daemon(
        [],
        rules=Rules(),
        settings=settings,
        execute=ExecuteOptions(executor=Executor.LOCAL),
        catalog=Catalog(listing=FolderListing(str(root), StorageOptions()), pools=Pools()),
        zookeeper=ZooKeeperOptions(hosts=f"{hosts}/{count}", session_timeout_s=30.0),
        observer=seen,
        runner=LocalRunner(1),
    ) as daemon:
        thread = threading.Thread(target=daemon.run, daemon=True)
        thread.start()
        _wait(lambda: len(seen.tables) == count)
        report.timed(f"first_round_{count}", [time.monotonic() - began])
        time.sleep(15.0)  # the first sweeps
        looks, cpu, now = seen.looks, time.process_time(), time.monotonic()
        time.sleep(idle_s)
        looks, cpu, took = seen.looks - looks, time.process_time() - cpu, time.monotonic() - now
        report.figure(f"cpu_share_{count}", cpu / took)
        report.figure(f"cpu_per_look_ms_{count}", 1000 * cpu / max(1, looks))
        report.figure(f"round_s_{count}", count * took / max(1, looks))
        name = f"rung_latency_{count}"
        report.timed(name, _latencies(root, count, seen, f"{hosts}/{count}", _RUNG))
        report.figure(f"{name}_median", report.seconds[name], Goal(figure=f"{name}_median", limit=1.0, at_least=False))
        report.timed(f"polled_latency_{count}", _latencies(root, count, seen, None, _POLLED))
        daemon.stop(Stop.FINISH)
        thread.join(60.0)


def _latencies(root: Path, count: int, seen: _Seen, fleet: str | None, times: int) -> list[float]:
    """Plans for tables that are drawn, one after the other."""
    drawn = random.Random(count + times).sample(range(count), times)
    found: list[float] = []
    for number in drawn:
        seen.latencies.clear()
        ask = writer(_ROWS.slice(0, 5)).buckets(1).schedule(fleet=fleet, strategy=TriggerStrategy.ALWAYS)
        ask.upsert(str(root / f"t{number:05}"))
        _wait(lambda: bool(seen.latencies))
        found += seen.latencies
    return found


def _wait(true: Callable[[], bool]) -> None:
    until = time.monotonic() + _WAIT_S
    while not true():
        if time.monotonic() > until:
            raise RuntimeError("the daemon did not get there")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
