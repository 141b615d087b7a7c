"""A day of a table in minutes: ours and real Hudi 1.2.0, with compactions inline and asynchronous.

    python -m bench.day [--quick] [--sides NAME...] [--record]

Each side gets a copy of one table that Hudi made (2 M rows of 20 columns, 4 partitions of 2 buckets, version 9, with
Hudi's metadata table; quick: 200 k), and the same 60 batches (quick: 15), one after the other. A batch upserts 40 k
rows (4 k): one in ten is new, one in ten late (an older ordering value, which wins or loses by what its key has by
then), half of the others hit the newest tenth of the keys. Every fifth batch deletes a tenth as many keys instead. A
compaction is due after five delta commits; cleans keep ten commits; each write cleans and archives. While a batch is
written, the side's own reader reads all rows and columns once.

Sessions are warm: each has written, compacted and read another table before. Core-seconds are those of all processes
of a side, from the first batch to the end of the last compaction. Bytes are those of base files, log files and the
metadata table, as they were seen between two batches, also of files that a clean has removed since. A batch is seen by
read-optimized queries once a compaction that was requested after its commit is completed. A side that ends with other
rows than the others fails the bench.
`--record` keeps the result, and makes the table and the picture of docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import quantiles

import numpy as np
import pyarrow.parquet as pq

from bench.day_page import SIDES, record
from bench.day_sides import HudiSide, OurSide, Side, cpu_s, names
from bench.processes import child
from bench.report import Report
from bench.tables import TableSpec, copy_of, make, rows, wide

_RATIOS = ("core_s", "day_s", "written_mb", "write_p50_s", "write_p95_s", "read_p50_s", "read_p95_s", "lag_p95_s")
FULL, QUICK, WARM = (2_000_000, 60, 40_000), (200_000, 15, 4_000), (20_000, 5, 2_000)
"""Rows of the table, batches, rows of a batch; those of the table that only warms sessions."""
_DELETES_EVERY, _BUCKETS = 5, 2

Batches = list[tuple[str, Path]]


@dataclass(kw_only=True)
class Day:
    """What was measured of one side. `files`: greatest size of each file by its path; `cpu`: core-seconds at the end
    of each batch; `commits`, `compactions`: pairs of requested and completion time."""

    start_cpu_s: float
    reads: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    commits: set[tuple[str, str]] = field(default_factory=set)
    compactions: set[tuple[str, str]] = field(default_factory=set)
    seconds: float = 0.0
    sums: list[int] = field(default_factory=list)
    checksum: str = ""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, 15 batches")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), metavar="NAME", help="only these")
    parser.add_argument("--record", action="store_true", help="keep the result, and make the docs' table and picture")
    arguments = parser.parse_args()
    base_rows, batches, size = QUICK if arguments.quick else FULL
    spec = table_of(base_rows)
    report = Report(bench="day")
    report.facts["command"] = shlex.join(["python", "-m", "bench.day", *sys.argv[1:]])
    report.facts |= {"rows": spec.base_rows, "batches": batches, "batch_rows": size, "load_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="day-") as made:
        stream, left = save_stream(spec, Path(made), batches, size)
        warm, _ = save_stream(table_of(WARM[0]), Path(made) / "warm", *WARM[1:])
        days = {name: _day(name, spec, stream, warm) for name in arguments.sides}
    found = {(*day.sums, day.checksum) for day in days.values()}
    if len(found) != 1 or {day.sums[0] for day in days.values()} != {left}:
        raise RuntimeError(f"not the same rows: {left} expected, {[(n, d.sums, d.checksum) for n, d in days.items()]}")
    for name, day in days.items():
        _figures(report, name, day)
    for kind in ("inline", "async"):
        for figure in _RATIOS if {f"ours_{kind}", f"hudi_{kind}"} <= days.keys() else ():
            ours, hudi = (report.figures[f"{side}_{kind}_{figure}"] for side in ("ours", "hudi"))
            report.figure(f"ratio_{figure}_{kind}", hudi / ours)
    if arguments.record:
        record(report.document())
    return report.finish()


def table_of(base_rows: int) -> TableSpec:
    """The table at the beginning of the day."""
    return TableSpec(
        name=f"day-{base_rows}", base_rows=base_rows, log_rows=0, slices=_BUCKETS, inserts=0, upserts=0,
        pending_compaction=False, partitions=4, metadata=True,
    )  # fmt: skip


def save_stream(spec: TableSpec, folder: Path, batches: int, size: int) -> tuple[Batches, int]:
    """The batches as operations and Parquet files, and the number of rows that they leave.

    A deleted key never comes again: what a late row of it gave would depend on the moment of a compaction.
    """
    folder.mkdir(exist_ok=True)
    random, alive, fresh = np.random.default_rng([spec.seed, batches]), np.arange(spec.base_rows), spec.base_rows
    stream: Batches = []
    for number in range(1, batches + 1):
        now, path = 1_000_000 + 1_000 * number, folder / f"{number:03}.parquet"
        if number % _DELETES_EVERY == 3:
            chosen = random.choice(alive, size // 10, replace=False)
            alive = np.setdiff1d(alive, chosen)
            some = wide(spec, random, chosen, rows(random, chosen, np.full(len(chosen), now), spec.note_chars))
            some = some.select(["id", "ts", "region"])
        else:
            old = size - size // 10
            hot, cold = alive[-len(alive) // 10 :], alive[: -len(alive) // 10]
            new = fresh + np.arange(size // 10)
            alive, fresh = np.concatenate([alive, new]), fresh + len(new)
            picked = [random.choice(hot, old // 2, replace=False), random.choice(cold, old - old // 2, replace=False)]
            chosen = random.permutation(np.concatenate([*picked, new]))
            late = random.random(size) < 0.1
            # Never the value of another batch: then the order of arrival would count.
            ts = np.where(late, now - 1_000 * random.integers(1, 13, size) + number, now)
            some = wide(spec, random, chosen, rows(random, chosen, ts, spec.note_chars))
        pq.write_table(some, path, compression="snappy")
        stream.append(("delete" if number % _DELETES_EVERY == 3 else "upsert", path))
    return stream, len(alive)


def _day(name: str, spec: TableSpec, stream: Batches, warm: Batches) -> Day:
    inline, options = name.endswith("_inline"), {"hoodie.bucket.index.num.buckets": str(_BUCKETS)}
    with ExitStack() as stack:
        table, other = (stack.enter_context(copy_of(make(one))) for one in (spec, table_of(WARM[0])))
        side: Side = (
            HudiSide(options, inline)
            if name.startswith("hudi")
            else OurSide(options, inline, spark=True, tables=[table, other])
        )
        stack.callback(side.close)
        _play(side, other, warm, Day(start_cpu_s=0.0))
        day = Day(start_cpu_s=cpu_s(side.pids))
        began = time.monotonic()
        _play(side, table, stream, day)
        day.seconds = time.monotonic() - began
        day.sums = side.sums(table)
        side.close()
        day.checksum = child("checksum", str(table)).answer["checksum"]
    print(f"bench.day: {name} took {day.seconds:.0f} s, {day.cpu[-1]:.0f} core-seconds", file=sys.stderr, flush=True)
    return day


def _play(side: Side, table: Path, stream: Batches, day: Day) -> None:
    before = cpu_s(side.pids)
    with ThreadPoolExecutor(1) as beside:
        for operation, batch in stream:
            reading = beside.submit(side.read, table)
            began = time.monotonic()
            side.write(table, operation, batch)
            day.writes.append(time.monotonic() - began)
            side.tend(table)
            day.reads.append(reading.result())
            _look(table, day)
            day.cpu.append(cpu_s(side.pids) - before)
            print(f"bench.day: {operation} {batch.stem}: {day.cpu[-1]:.1f} core-seconds", file=sys.stderr, flush=True)
    while side.tend(table):
        time.sleep(0.1)
    _look(table, day)
    day.cpu[-1] = cpu_s(side.pids) - before


def _look(table: Path, day: Day) -> None:
    """What is in the table now; later some of it is cleaned and archived."""
    for folder, _, files in os.walk(table):
        for name in files:
            path = os.path.join(folder, name)
            if not name.endswith(".crc"):  # of Hadoop's local file system, which other storage does not have
                try:
                    day.files[path] = max(day.files.get(path, 0), os.path.getsize(path))
                except FileNotFoundError:
                    continue  # cleaned meanwhile
    for action, kept in (("deltacommit", day.commits), ("commit", day.compactions)):
        kept |= {tuple(pair.split("_")) for pair in names(table, rf"(\d+_\d+)\.{action}")}  # type: ignore[misc]


def _figures(report: Report, name: str, day: Day) -> None:
    """The figures of a side under its name."""
    report.runs[f"{name}_reads"] = [round(s, 3) for s in day.reads]
    report.runs[f"{name}_writes"] = [round(s, 3) for s in day.writes]
    report.runs[f"{name}_cpu"] = [round(s, 2) for s in day.cpu]
    behind = lags(day)
    report.figure(f"{name}_core_s", day.cpu[-1])
    report.figure(f"{name}_start_core_s", day.start_cpu_s)
    report.figure(f"{name}_day_s", day.seconds)
    for figure, seconds in (("write", day.writes), ("read", day.reads), ("lag", [lag for lag, _ in behind])):
        cuts = quantiles(seconds, n=20, method="inclusive")
        report.figure(f"{name}_{figure}_p50_s", cuts[9])
        report.figure(f"{name}_{figure}_p95_s", cuts[18])
    report.figure(f"{name}_lag_max_batches", max(batches for _, batches in behind))
    written = {
        "base": sum(size for path, size in day.files.items() if path.endswith(".parquet") and ".hoodie/" not in path),
        "log": sum(size for path, size in day.files.items() if ".log." in path and ".hoodie/" not in path),
        "metadata": sum(size for path, size in day.files.items() if ".hoodie/metadata/" in path),
    }
    report.facts[f"{name}_written_mb_of"] = {part: round(size / 1e6, 2) for part, size in written.items()}
    report.figure(f"{name}_written_mb", sum(written.values()) / 1e6)
    report.facts[f"{name}_compactions"] = len(day.compactions) - 1  # that of the first rows is named as one


def lags(day: Day) -> list[tuple[float, int]]:
    """For each batch from its commit to the end of a compaction that holds it: seconds, and further batches."""
    found, commits = list[tuple[float, int]](), sorted(completed for _, completed in day.commits)
    for committed in commits:
        ends = [end for requested, end in day.compactions if requested > committed]
        if not ends:
            raise RuntimeError(f"no compaction holds the batch of {committed}: {sorted(day.compactions)}")
        between = [datetime.strptime(time_, "%Y%m%d%H%M%S%f") for time_ in (committed, min(ends))]
        further = sum(committed < other <= min(ends) for other in commits)
        found.append(((between[1] - between[0]).total_seconds(), further))
    return found


if __name__ == "__main__":
    sys.exit(main())
