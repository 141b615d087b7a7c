"""A fleet at real work: how compactions scale with daemons up to the number of cores, and how soon a plan is claimed.

    python -m bench.fleet [--quick]

Scaling: one table, a pending instant for each of its file groups, daemons with `--executor local`, one slice at a time
each. Latency: two idle daemons; a writer commits and requests a compaction, and wakes the fleet; timed is the moment
from the visible plan (its instant time) to the claim.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from bench.fleet_daemon import Begun, real_daemon, run_fleet
from bench.report import Goal, Report
from phantombase import writer
from phantombase.compactor_daemon.daemon.dispatch import Stop
from phantombase.compactor_daemon.daemon.loop import Daemon
from phantombase.compactor_daemon.fleet.zookeeper_server import embedded_zookeeper
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.table.table import Table

_GROUPS = 8
_LATENCIES = 20
_ONE_GROUP = ScheduleOptions(strategy=TriggerStrategy.ALWAYS, target_io_bytes=1)


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="Scaling and claim latency of a fleet.")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows")
    rows = 500_000 if parser.parse_args().quick else 2_000_000
    cores = os.cpu_count() or 1
    report = Report(bench="fleet")
    report.facts |= {"rows": rows, "instants": _GROUPS}
    with (
        tempfile.TemporaryDirectory(prefix="fleet-") as made,
        embedded_zookeeper(Path(made) / "zookeeper") as zookeeper,
    ):
        original = Path(made) / "table"
        _pending_table(original, rows)
        for daemons in range(1, cores + 1):
            path = shutil.copytree(original, Path(made) / f"table-{daemons}")
            runs = run_fleet(str(path), zookeeper.hosts, daemons, no_op=False)
            if (done := sum(r.done for r in runs)) != _GROUPS:
                raise RuntimeError(f"{done} of {_GROUPS} instants done: {[r.problems for r in runs]}")
            report.timed(f"daemons_{daemons}", [max(r.seconds for r in runs)])
            report.facts[f"share_{daemons}"] = sorted(r.done for r in runs)
            shutil.rmtree(path)
        for daemons in range(2, cores + 1):
            report.figure(f"scaling_{daemons}", report.seconds["daemons_1"] / report.seconds[f"daemons_{daemons}"])
        latencies = _latencies(Path(made) / "latency", zookeeper.hosts)
        report.timed("claim_latency", latencies)
        report.facts["claim_latency_max"] = round(max(latencies), 3)
        goal = Goal(figure="claim_latency_median", limit=1.0, at_least=False)
        report.figure("claim_latency_median", median(latencies), goal)
    return report.finish()


def _rows(seed: int, rows: int) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "id": pa.array(random.permutation(rows)),
            "ts": pa.array(np.full(rows, seed)),
            "fare": pa.array(random.random(rows)),
            "note": pa.array(random.integers(0, 1 << 40, rows)).cast(pa.string()),
        }
    )


def _pending_table(path: Path, rows: int) -> None:
    """A bulk insert, an upsert of half of it, and one pending plan a file group."""
    write = writer(_rows(0, rows)).table("fleet").key("id").ordering("ts").buckets(_GROUPS)
    write.bulk_insert(str(path))
    writer(_rows(1, rows).slice(0, rows // 2)).buckets(_GROUPS).upsert(str(path))
    for _ in range(_GROUPS):
        scheduled = schedule_compaction(Table.open(str(path)), table_lock(open_storage(str(path)), None), _ONE_GROUP)
        if scheduled.instant is None:
            raise RuntimeError(scheduled.why)


def _latencies(path: Path, hosts: str) -> list[float]:
    """Seconds from a request to its claim, of two idle daemons in this process."""
    batch = _rows(0, 100)
    writer(batch).table("latency").key("id").ordering("ts").buckets(1).upsert(str(path))
    found = []
    begun = [Begun(), Begun()]
    with (
        real_daemon(str(path), hosts, begun[0], once=False) as one,
        real_daemon(str(path), hosts, begun[1], once=False) as two,
    ):
        daemons: tuple[Daemon, ...] = (one, two)
        threads = [threading.Thread(target=d.run, daemon=True) for d in daemons]
        for thread in threads:
            thread.start()
        for number in range(_LATENCIES):
            time.sleep(0.5)
            before = sum(len(b.moments) for b in begun)
            ask = writer(_rows(number + 1, 100)).buckets(1)
            ask.schedule(fleet=hosts, strategy=TriggerStrategy.ALWAYS).upsert(str(path))
            deadline = time.monotonic() + 30.0
            while sum(len(b.moments) for b in begun) == before and time.monotonic() < deadline:
                time.sleep(0.01)
            found += [latency for b in begun for latency in b.latencies]
            for b in begun:
                b.latencies.clear()
        for daemon in daemons:
            daemon.stop(Stop.FINISH)
        for thread in threads:
            thread.join(30.0)
    return found


if __name__ == "__main__":
    sys.exit(main())
