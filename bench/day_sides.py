"""The sides of `bench.day`: who writes, compacts and reads one table, each in warm processes of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

from bench.child import THREADS, session
from bench.tables import HUDI
from phantombase import writer
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.table.table import Table
from tests.hudi.judge.client import Judge

OPTIONS = {
    "hoodie.table.name": "bench",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "region",
    "hoodie.index.type": "BUCKET",
    "hoodie.parquet.compression.codec": "gzip",
    "hoodie.logfile.data.block.format": "avro",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.compact.max.delta.commits": "10",
    "hoodie.clean.automatic": "true",
    "hoodie.clean.commits.retained": "10",
    "hoodie.archive.automatic": "true",
    "hoodie.compact.inline.max.delta.commits": "5",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.delete.shuffle.parallelism": "2",
}
"""What each writer is given: Hudi's names, and but for the index and parallelism Hudi's defaults."""
INLINE = {"hoodie.compact.inline": "true"}
ASYNC = {"hoodie.compact.inline": "false", "hoodie.compact.schedule.inline": "true"}
LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider"}
"""Of Hudi's threads in one process; those of ours are processes, and take the table's own lock."""
FIELDS = ("ts", "user_id", "quantity")


class Side(Protocol):
    """One table and all that works on it. `pids`: the roots of its processes."""

    pids: list[int]

    def write(self, table: Path, operation: str, rows: Path) -> None:
        """A batch, to the end of its write, with what runs inline."""

    def tend(self, table: Path) -> int:
        """What an asynchronous compactor has to be told; how many compactions have not ended."""

    def read(self, table: Path) -> float:
        """Reads all rows and columns of the snapshot; seconds."""

    def sums(self, table: Path) -> list[int]:
        """What the reader finds: rows, and the sums of `FIELDS`."""

    def close(self) -> None:
        """Ends its processes."""


class HudiSide:
    """Real Hudi: a Spark session that writes, and one that reads. Async compactions are a thread of the first one."""

    def __init__(self, options: dict[str, str], inline: bool) -> None:
        self._options = OPTIONS | options | (INLINE if inline else ASYNC) | LOCK
        self._inline = inline
        more = {} if inline else {"spark.scheduler.mode": "FAIR"}
        self._writer, self._reader = Judge(HUDI, THREADS, "2g", more=more), Judge(HUDI, THREADS, "2g")
        self.pids = [self._writer.session.pid, self._reader.session.pid]

    def write(self, table: Path, operation: str, rows: Path) -> None:
        """See `Side`."""
        self._writer.write(table, rows, self._options | {"hoodie.datasource.write.operation": operation})

    def tend(self, table: Path) -> int:
        """See `Side`."""
        if self._inline:
            return 0
        running, waiting = self._writer.later(), sorted(pending(table))
        if waiting and not running:
            text = f"call run_compaction(op => 'run', path => '{table}', timestamp => {waiting[0]})"
            running = self._writer.later(text, self._options)
        return max(running, len(waiting))

    def read(self, table: Path) -> float:
        """See `Side`."""
        return self._reader.scan(table, options={"hoodie.metadata.enable": "true"})

    def sums(self, table: Path) -> list[int]:
        """See `Side`."""
        (row,) = self._reader.select(table, ["count(1)", *(f"sum({field})" for field in FIELDS)]).rows
        return [int(value) for value in row]

    def close(self) -> None:
        """See `Side`."""
        self._writer.close()
        self._reader.close()


class OurSide:
    """A process that writes, with Spark or without, one that reads, and for async a daemon."""

    def __init__(self, options: dict[str, str], inline: bool, spark: bool, tables: list[Path]) -> None:
        self._options = OPTIONS | options | (INLINE if inline else ASYNC)
        self._inline, self._spark = inline, spark
        spawn = get_context("spawn")
        self._writer, self._reader = (ProcessPoolExecutor(1, mp_context=spawn) for _ in range(2))
        self.pids = [pool.submit(os.getpid).result() for pool in (self._writer, self._reader)]
        self._daemon: subprocess.Popen[bytes] | None = None
        if not inline:
            run = ["run", *map(str, tables), "--executor", "local", "--threads", str(THREADS), "--codec", "gzip"]
            command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", *run, "--poll-interval", "1"]
            self._log = (tables[0].parent / "daemon.log").open("wb")
            self._daemon = subprocess.Popen(command, stdout=self._log, stderr=self._log)
            self.pids.append(self._daemon.pid)

    def write(self, table: Path, operation: str, rows: Path) -> None:
        """See `Side`."""
        self._writer.submit(_write, str(table), operation, str(rows), self._options, self._spark).result()

    def tend(self, table: Path) -> int:
        """See `Side`."""
        if self._daemon is not None and self._daemon.poll() is not None:
            raise RuntimeError(f"the daemon ended: {Path(self._log.name).read_text()[-4000:]}")
        return 0 if self._inline else len(pending(table))

    def read(self, table: Path) -> float:
        """See `Side`."""
        return self._reader.submit(_read, str(table)).result()

    def sums(self, table: Path) -> list[int]:
        """See `Side`."""
        return self._reader.submit(_sums, str(table)).result()

    def close(self) -> None:
        """See `Side`."""
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait()
            self._log.close()
        for pool in (self._writer, self._reader):
            pool.shutdown()


def _write(table: str, operation: str, rows: str, options: dict[str, str], spark: bool) -> None:
    import pyarrow.parquet as pq

    frame: Any = session().read.parquet(rows) if spark else pq.read_table(rows)
    given = {**options, "hoodie.datasource.write.operation": operation}
    write = writer(frame).conf(given).option(clean=CleanOptions(retain=10, floor_s=0))
    done = write.write(table)
    if done.after.error is not None:
        raise RuntimeError(f"after the commit: {done.after.error}")


def _read(table: str) -> float:
    began = time.perf_counter()
    read_table(Table.open(table), ReadOptions(threads=THREADS))
    return time.perf_counter() - began


def _sums(table: str) -> list[int]:
    import pyarrow.compute as pc

    found = read_table(Table.open(table), ReadOptions(columns=FIELDS))
    return [found.num_rows, *(pc.sum(found.column(field)).as_py() for field in FIELDS)]


def pending(table: Path) -> set[str]:
    """The compactions that are requested and not completed."""
    return set(names(table, r"(\d+)\.compaction\.requested")) - set(names(table, r"(\d+)_\d+\.commit"))


def names(table: Path, pattern: str) -> list[str]:
    """The first group of each file of the active timeline that matches."""
    found = (re.fullmatch(pattern, name) for name in os.listdir(table / ".hoodie/timeline"))
    return [match[1] for match in found if match]


def cpu_s(roots: list[int]) -> float:
    """Processor seconds of process trees, with those of ended children that were waited for. Linux only."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        parents.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, open_ = 0, list(roots)
    while open_:
        process = open_.pop()
        total += ticks.get(process, 0)
        open_ += parents.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")
