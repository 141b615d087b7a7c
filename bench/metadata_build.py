"""Building the metadata table of a table that has none, against what real Hudi 1.2.0 does in its next write.

    python -m bench.metadata_build [--quick]

A table of version 9 with 2,000 base files of 5,000 rows and 20 columns in 20 partitions (quick: 200 files). Hudi's
writer with `hoodie.metadata.enable` builds it before its write: the figure is the time of a bulk insert of one row that
builds it less that of one before, with the metadata table off; in a warm JVM, which has built one of a small table
before. phantombase builds it in a process of its own, its start counted. Both on all cores, one run each: `files`, the
statistics of columns and partitions, and the record index with ten file groups. Entries are counted. The peak is of
resident memory: of that process, and of the JVM and its Python.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.processes import Memory, run
from bench.report import Goal, Report
from phantombase.timeline.metadata_table.records.hfile import open_hfile
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.write.writer import writer
from tests.hudi.judge.client import Judge, Options

_HUDI = "1.2.0"
_CORES = 2
_PARTITIONS, _ROWS = 20, 5_000
_INDEXES = "files,column_stats,partition_stats,record_index"
_OFF = {"hoodie.metadata.enable": "false"}
_ON = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.partition.stats.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": 10,
    "hoodie.metadata.record.index.max.filegroup.count": 10,
}


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the files")
    commits = 10 if parser.parse_args().quick else 100
    report = Report(bench="metadata_build")
    with tempfile.TemporaryDirectory(prefix="metadata-build-") as folder:
        ours, hudis = (Path(folder, name) for name in ("ours", "hudi"))
        _make(ours, commits)
        files, rows = commits * _PARTITIONS, commits * _PARTITIONS * _ROWS
        shutil.copytree(ours, hudis)
        command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "metadata", str(ours)]
        here = run([*command, "--create", "--indexes", _INDEXES, "--sole-writer"])
        with Judge(_HUDI, cores=_CORES) as judge:
            warm = Path(folder, "warm")
            _make(warm, 2)
            _hudi(judge, warm, commits, _OFF)
            _hudi(judge, warm, commits, _ON)
            bare, _ = _hudi(judge, hudis, commits, _OFF)
            built, peak = _hudi(judge, hudis, commits, _ON)
        for path, more in ((ours, 0), (hudis, 1)):
            # Of Hudi's two writes the second one's key is in a log file.
            assert _indexed(path) == rows + more, f"{path}: {_indexed(path)} entries"
    report.facts |= {"files": files, "rows": rows, "peak_mib": here.peak_bytes >> 20, "hudi_peak_mib": peak >> 20}
    report.timed("ours", [here.seconds])
    report.timed("hudi_write_without", [bare])
    report.timed("hudi_write_that_builds", [built])
    report.figure("vs_hudi", (built - bare) / here.seconds, Goal(figure="vs_hudi", limit=3))
    memory = Goal(figure="peak_gib", limit=1.5, at_least=False)
    report.figure(memory.figure, here.peak_bytes / (1 << 30), memory)
    return report.finish()


def _hudi(judge: Judge, path: Path, number: int, options: Options) -> tuple[float, int]:
    """Seconds of one row's insert, and the peak of memory."""
    row = _batch(10_000 + number + len(options)).slice(0, 1)
    memory = Memory(judge.session.pid)
    judge.bulk_insert(path, row, options)
    return judge.seconds, memory.stop()[0]


def _indexed(path: Path) -> int:
    """The entries of the record index."""
    table = Table.open(str(path))
    found = set(table.config.built_metadata_partitions)
    assert set(_INDEXES.split(",")) <= found, f"only {found}"
    total = 0
    for file in (path / ".hoodie/metadata/record_index").iterdir():
        if file.suffix == ".hfile" and not file.name.startswith("."):
            total += open_hfile(pa.py_buffer(file.read_bytes()), file.name).entry_count
    return total


def _make(path: Path, commits: int) -> None:
    for number in range(commits):
        write = writer(_batch(number)).table("events", version=9).key("id").partition("p").ordering("ts")
        write.option(small_file_bytes=0).bulk_insert(str(path))


def _batch(number: int) -> pa.Table:
    """Rows of one commit: a base file of each partition."""
    count = _PARTITIONS * _ROWS
    random = np.random.default_rng(number)
    ids = np.arange(number * count, (number + 1) * count)
    columns = {
        "id": pc.binary_join_element_wise(pa.scalar("event-"), pc.cast(pa.array(ids), pa.string()), pa.scalar("")),
        "p": pa.array([f"p={n:03d}" for n in range(_PARTITIONS)]).take(pa.array(ids % _PARTITIONS)),
        "ts": pa.array(ids),
    }
    columns |= {f"f{n}": pa.array(random.random(count)) for n in range(5)}
    columns |= {f"n{n}": pa.array(random.integers(0, 1000, count)) for n in range(8)}
    columns |= {f"s{n}": pa.array(random.integers(0, 5000, count)).cast(pa.string()) for n in range(4)}
    return pa.table(columns)


if __name__ == "__main__":
    sys.exit(main())
