"""Clustering of small files against the clustering of real Hudi 1.2.0, both warm, on the same cores.

    python -m bench.clustering [--quick]

A table of version 9: 20 commits of 50 partitions (quick: 10 of 10), each a base file of 1,000 rows of 10 columns in a
file group of its own. Hudi clusters one copy (its defaults, but for the number of groups: all at once), phantombase
clusters others, in gzip, Hudi's codec, and in zstd, its own default. Three runs each, one after the other; Hudi's first
clustering, of a small table, is not counted. The rows of all copies are compared.

Then large files, sorted by two columns in one group: 20 files of 500,000 rows, 2 GB of rows (quick: 4 of 125,000).
phantombase clusters them in a process of its own, its start counted, Hudi in its warm JVM; one run each. The peak is of
resident memory: of that process, and of the JVM and its Python.

Then a table where copying pays, without Hudi: six base files of one row group of 400,000 rows (quick: 100,000) of 20
columns become one, encoded anew and copied as bytes in turn. CPU seconds of this process, one thread; and how long it
takes to read the whole file, and three columns of it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.processes import Memory, run
from bench.report import Goal, Report
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Copy
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.write.writer import writer
from tests.hudi.judge.client import Judge

_HUDI = "1.2.0"
_RUNS = 3
_THREADS = 2
_ROWS = 1000
_LARGE_FILES = 6
_SORT_LIMIT = 1 << 30
"""Bytes of memory for the rows that are sorted."""
_SORTED_BY_HUDI = {
    "hoodie.clustering.plan.strategy.sort.columns": "a,b",
    "hoodie.clustering.plan.strategy.small.file.limit": 1 << 40,
    "hoodie.clustering.plan.strategy.max.bytes.per.group": 1 << 40,
    "hoodie.clustering.plan.strategy.target.file.max.bytes": ClusterOptions().target_size,
}
_ALL_AT_ONCE = {"hoodie.clustering.plan.strategy.max.num.groups": 100_000}


def main() -> int:
    """Runs all; the exit code says whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    commits, partitions = (10, 10) if quick else (20, 50)
    report = Report(bench="clustering")
    seconds: dict[str, list[float]] = {"hudi": [], "gzip": [], "zstd": []}
    with tempfile.TemporaryDirectory(prefix="clustering-") as folder, Judge(_HUDI, cores=_THREADS) as judge:
        origin = _table(Path(folder) / "origin", commits, partitions)
        report.facts["files"] = commits * partitions
        report.facts["bytes"] = sum(p.stat().st_size for p in origin.glob("p=*/*.parquet"))
        warm = _table(Path(folder) / "warm", 3, 2)
        judge.cluster(warm, _ALL_AT_ONCE)
        expected = _sum(origin)
        for _ in range(_RUNS):
            for kind, times in seconds.items():
                path = Path(shutil.copytree(origin, Path(folder) / kind))
                times.append(_hudi(judge, path) if kind == "hudi" else _ours(path, Codec(kind)))
                assert _sum(path) == expected, f"{kind}: other rows"
                shutil.rmtree(path)
        _sorted(report, judge, Path(folder), files=4 if quick else 20, rows=125_000 if quick else 500_000)
        _copies(report, Path(folder), rows=100_000 if quick else 400_000)
    hudi = report.timed("hudi", seconds["hudi"])
    for codec in ("gzip", "zstd"):
        ours = report.timed(codec, seconds[codec])
        report.figure(f"{codec}_vs_hudi", hudi / ours, Goal(figure=f"{codec}_vs_hudi", limit=6))
    return report.finish()


def _hudi(judge: Judge, path: Path) -> float:
    judge.cluster(path, _ALL_AT_ONCE)
    return judge.seconds


def _ours(path: Path, codec: Codec) -> float:
    started = time.perf_counter()
    output = OutputOptions(codec=codec)
    done = cluster_table(
        Table.open(str(path)), ClusterOptions(), ProcessLock("bench"), output=output, runner=LocalRunner(_THREADS)
    ).done
    assert done is not None
    return time.perf_counter() - started


def _sorted(report: Report, judge: Judge, folder: Path, files: int, rows: int) -> None:
    """Large files, by two columns: phantombase, and Hudi with the same limits and codec."""
    origin, ours, hudi = (folder / name for name in ("unsorted", "sorted", "sorted-by-hudi"))
    bench = [sys.executable, "-m", "bench.sorting"]
    report.facts["large_files_bytes"] = run([*bench, "--write", str(origin), str(files), str(rows)]).answer["bytes"]
    shutil.copytree(origin, ours)
    here = run([*bench, "--codec", "gzip", "--one", str(ours), "order", str(_SORT_LIMIT)])
    shutil.copytree(origin, hudi)
    memory = Memory(judge.session.pid)
    judge.cluster(hudi, _SORTED_BY_HUDI)
    peak, _ = memory.stop()
    assert _sum(ours) == _sum(hudi) == _sum(origin), "other rows"
    report.timed("sorted", [here.seconds])
    report.timed("sorted_by_hudi", [judge.seconds])
    report.figure("sorted_vs_hudi", judge.seconds / here.seconds, Goal(figure="sorted_vs_hudi", limit=4))
    report.facts |= {"sorted_peak_mib": here.peak_bytes >> 20, "sorted_by_hudi_peak_mib": peak >> 20}
    share = Goal(figure="sorted_peak_to_hudi", limit=0.5, at_least=False)
    report.figure(share.figure, here.peak_bytes / peak, share)
    for path in (origin, ours, hudi):
        shutil.rmtree(path)


def _copies(report: Report, folder: Path, rows: int) -> None:
    """Six files of one row group each: encoded anew against copied, for each codec."""
    for codec in (Codec.GZIP, Codec.ZSTD):
        output = OutputOptions(codec=codec)
        origin = folder / f"large-{codec.value}"
        for number in range(_LARGE_FILES):
            write = writer(_wide_rows(number, rows)).table("large", version=9).key("id").ordering("ts")
            write.option(small_file_bytes=0, output=output).bulk_insert(str(origin))
        report.facts[f"large_{codec.value}_row_group_bytes"] = max(p.stat().st_size for p in origin.glob("*.parquet"))
        cpu: dict[Copy, list[float]] = {Copy.REENCODE: [], Copy.FORCE: []}
        for _ in range(_RUNS):
            for copy, times in cpu.items():
                path = Path(shutil.copytree(origin, folder / copy.value))
                options = ClusterOptions(min_files=2, target_size=1 << 30, copy=copy)
                began = time.process_time()
                done = cluster_table(Table.open(str(path)), options, ProcessLock("bench"), output=output).done
                times.append(time.process_time() - began)
                assert done is not None
                assert done.copied_row_groups == (_LARGE_FILES if copy is Copy.FORCE else 0)
                assert _sum(path) == (_LARGE_FILES * rows, (_LARGE_FILES * rows - 1) * _LARGE_FILES * rows // 2)
                (new,) = path.glob(f"*{done.instant}.parquet")
                for columns, what in ((None, "all_columns"), (["ts", "f0", "n0"], "three_columns")):
                    name = f"{codec.value}_{copy.value}_read_{what}_s"
                    report.facts[name] = min(_read_s(new, columns), report.facts.get(name, 1e9))
                shutil.rmtree(path)
        encoded, copied = (report.timed(f"cpu_{codec.value}_{copy.value}", cpu[copy]) for copy in cpu)
        report.figure(f"{codec.value}_encoded_vs_copied_cpu", encoded / copied)


def _read_s(path: Path, columns: list[str] | None) -> float:
    began = time.perf_counter()
    pq.read_table(path, columns=columns, use_threads=False)
    return round(time.perf_counter() - began, 4)


def _wide_rows(number: int, count: int) -> pa.Table:
    random = np.random.default_rng(number)
    ids = np.arange(number * count, (number + 1) * count)
    columns = {"id": pc.cast(pa.array(ids), pa.string()), "ts": pa.array(ids)}
    columns |= {f"f{n}": pa.array(random.random(count)) for n in range(4)}
    columns |= {f"n{n}": pa.array(random.integers(0, 1000, count)) for n in range(8)}
    columns |= {f"s{n}": pa.array(random.integers(0, 5000, count)).cast(pa.string()) for n in range(6)}
    return pa.table(columns)


def _table(path: Path, commits: int, partitions: int) -> Path:
    for number in range(commits):
        rows = _rows(number, partitions)
        write = writer(rows).table("events", version=9).key("id").partition("p").ordering("ts")
        write.option(small_file_bytes=0).bulk_insert(str(path))
    return path


def _rows(number: int, partitions: int) -> pa.Table:
    count = _ROWS * partitions
    random = np.random.default_rng(number)
    ids = np.arange(number * count, (number + 1) * count)
    columns = {
        "id": pc.cast(pa.array(ids), pa.string()),
        "p": pa.array([f"p={n:03d}" for n in range(partitions)]).take(pa.array(ids % partitions)),
        "ts": pa.array(ids),
    }
    columns |= {f"f{n}": pa.array(random.random(count)) for n in range(4)}
    columns |= {f"n{n}": pa.array(random.integers(0, 1000, count)) for n in range(3)}
    return pa.table(columns)


def _sum(path: Path) -> tuple[int, int]:
    rows = read_table(Table.open(str(path)))
    return rows.num_rows, int(pc.sum(rows["ts"]).as_py())


if __name__ == "__main__":
    sys.exit(main())
