"""What a sync to a Hive Metastore takes.

    python -m bench.metastore [--quick]

A MERGE_ON_READ table of 10,000 partitions (quick: 1,000) is synced, as its three names, to a Hive Metastore 2.3 with
Derby on the same machine. `first`: as the first request of that server; `again`: to another database, once its JVM has
compiled. `new`: ten partitions more, of seven times; `nothing`: no partition more, with the requests of each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from bench.report import Goal, Report
from bench.services import many_slices
from phantombase.compactor_daemon.catalogs.options import SyncOptions, SyncResult
from phantombase.compactor_daemon.catalogs.sync import sync_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.write.writer import writer
from tests.support.servers.hive_metastore import running_metastore

_RUNS, _NEW = 7, 10


def main() -> int:
    """Runs all; the exit code says whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    count = 1_000 if parser.parse_args().quick else 10_000
    report = Report(bench="metastore")
    with tempfile.TemporaryDirectory() as folder, running_metastore(Path(folder, "metastore")) as server:
        path = Path(folder, "t")
        many_slices(path, 9, 2 * count, partitions=count)

        def synced(database: str) -> SyncResult:
            options = SyncOptions(to=f"hive:127.0.0.1:{server.port}", database=database)
            return sync_table(Table.open(str(path)), options)

        for database in ("first", "again"):
            before = server.cpu_s()
            done = report.timed(f"{database}_{count}", [_seconds(lambda: synced(database))])  # noqa: B023
            report.facts[f"metastore_cpu_s_{database}"] = round(server.cpu_s() - before, 1)
            report.figure(f"{database}_{count}", done, Goal(figure=f"{database}_{count}", limit=60, at_least=False))
        new, nothing = [], []
        for turn in range(_RUNS):
            names = [f"new{turn}-{number}" for number in range(_NEW)]
            writer(pa.table({"id": names, "p": names, "ts": [1] * _NEW})).upsert(str(path))
            new.append(_seconds(lambda: synced("again")))
            nothing.append(_seconds(lambda: synced("again")))
        report.figure("new_10", report.timed("new_10", new), Goal(figure="new_10", limit=1, at_least=False))
        report.timed("nothing", nothing)
    return report.finish()


def _seconds(what: Callable[[], SyncResult]) -> float:
    started = time.perf_counter()
    what()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
