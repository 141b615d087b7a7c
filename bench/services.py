"""What table services cost, and what they save.

    python -m bench.services [--quick]

`archive_<n>`: 10,000 instants (quick: 2,000) leave the active timeline, versions 6 and 9. `show`, `read` and `upsert`:
a table of 1,000 commits (quick: 200) on which archiving is on, against one of 50 without; the shortest of fifteen runs
each. The commits are copies of one real commit with other times, so that the timeline is measured and not the rows.
`plan_<n>`, `clean_<n>`: of 100,000 file slices (quick: 10,000) in 1,000 partitions every second one is old: what a dry
run takes, and then the clean. Their files are empty, since a clean reads none.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from bench.report import Goal, Report
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.dashboard.overview import instant_reports
from phantombase.timeline.format.commit_metadata import WriteStat
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.file_name import BaseFileName, partition_metadata
from phantombase.timeline.format.instant import State, later
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.write.writer import writer

_RUNS = 15
_LOCK = ProcessLock("bench")
_ROWS = 1000
_STEP_MS = 60_000
_PARTITIONS = 1000


def main() -> int:
    """Runs all; the exit code says whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    report = Report(bench="services")
    many, long = (2_000, 200) if quick else (10_000, 1_000)
    with tempfile.TemporaryDirectory() as folder:
        for version in (6, 9):
            path = _table(Path(folder) / f"many{version}", version, many)
            started = time.perf_counter()
            done = archive_table(Table.open(str(path)), ArchiveOptions(), _LOCK)
            report.timed(f"archive_{many}_v{version}", [time.perf_counter() - started])
            report.facts[f"archived_v{version}"] = len(done.archived)
            shutil.rmtree(path)
            _compare(report, Path(folder), version, long)
            _clean(report, Path(folder) / f"slices{version}", version, 10_000 if quick else 100_000)
    return report.finish()


def _clean(report: Report, path: Path, version: int, slices: int) -> None:
    many_slices(path, version, slices)
    options = CleanOptions(retain=1, floor_s=0)
    for name, dry_run in (("plan", True), ("clean", False)):
        started = time.perf_counter()
        done = clean_table(Table.open(str(path)), options, _LOCK, dry_run=dry_run)
        report.timed(f"{name}_{slices}_v{version}", [time.perf_counter() - started])
        assert done.files == slices // 2, done.files
    shutil.rmtree(path)


def many_slices(path: Path, version: int, slices: int, partitions: int = _PARTITIONS) -> None:
    """A table with two commits that write the same file groups, before the one of a real row."""
    path.mkdir()
    row = pa.table({"id": ["k"], "p": ["real"], "ts": [1]})
    writer(row).table("trips", version=version).key("id").partition("p").ordering("ts").insert(str(path))
    table = Table.open(str(path))
    timeline, layout = path / table.config.timeline_folder, table.layout
    (real,) = table.load_timeline().instants
    groups = [(f"p{n % partitions:04}", f"{uuid.uuid4()}-0") for n in range(slices // 2)]
    for partition in {partition for partition, _ in groups}:
        (path / partition).mkdir()
        (path / partition / ".hoodie_partition_metadata").write_bytes(partition_metadata(real.requested_time, 1))
    for number in (2, 1):
        time_ = later(real.requested_time, -number * _STEP_MS)
        stats: defaultdict[str, list[WriteStat]] = defaultdict(list)
        for partition, file_id in groups:
            name = f"{partition}/{BaseFileName(file_id=file_id, token='0-0-0', instant=time_)}"
            (path / name).touch()
            stats[partition].append(WriteStat(file_id=file_id, path=name, partition_path=partition))
        done = replace(
            real, requested_time=time_, completion_time=later(time_, 500) if layout.has_completion_times else None
        )
        commit = replace(
            table.commit_metadata(real), partition_to_write_stats={p: tuple(some) for p, some in stats.items()}
        )
        for state in (State.REQUESTED, State.INFLIGHT):
            (timeline / layout.file_name(done.at(state))).touch()
        (timeline / layout.file_name(done)).write_bytes(encode_commit(commit, layout.encoding))


def _compare(report: Report, folder: Path, version: int, commits: int) -> None:
    short, archived = (_table(folder / f"{n}v{version}", version, n) for n in (50, commits))
    archive_table(Table.open(str(archived)), ArchiveOptions(), _LOCK)
    for name, do in {"show": _show, "read": _read, "upsert": _upsert}.items():
        seconds: dict[Path, list[float]] = {short: [], archived: []}
        for _ in range(_RUNS + 1):  # the first one warms up
            for path, runs in seconds.items():
                started = time.perf_counter()
                do(str(path))
                runs.append(time.perf_counter() - started)
        report.timed(f"{name}_50_v{version}", seconds[short][1:])
        report.timed(f"{name}_{commits}_v{version}", seconds[archived][1:])
        figure = f"{name}_{commits}_to_50_v{version}"
        report.figure(
            figure, min(seconds[archived]) / min(seconds[short]), Goal(figure=figure, limit=1.3, at_least=False)
        )


def _show(path: str) -> None:
    instant_reports(Table.open(path).load_timeline())


def _read(path: str) -> None:
    read_table(Table.open(path))


def _upsert(path: str) -> None:
    writer(_rows(10)).key("id").upsert(path)


def _rows(count: int) -> pa.Table:
    return pa.table({"id": [f"k{n}" for n in range(count)], "ts": list(range(count))})


def _table(path: Path, version: int, commits: int) -> Path:
    """A table whose one real commit has so many copies, each a minute before the next."""
    path.mkdir()
    writer(_rows(_ROWS)).table("trips", version=version).key("id").ordering("ts").insert(str(path))
    table = Table.open(str(path))
    timeline = path / table.config.timeline_folder
    files = [p for p in timeline.iterdir() if p.is_file() and table.layout.parse(p.name) is not None]
    real = table.load_timeline().instants[0].requested_time
    for number in range(1, commits):
        before = later(real, -number * _STEP_MS)
        for file in files:
            name = file.name.replace(real, before)
            name = name.replace(name.partition("_")[2].partition(".")[0] or "-", later(before, 500))
            copy = Path(shutil.copy(file, timeline / name))
            # A write whose files do not show that it ended before the next one began lets each read load the archive.
            ns = file.stat().st_mtime_ns - number * _STEP_MS * 1_000_000
            os.utime(copy, ns=(ns, ns))
    return path


if __name__ == "__main__":
    sys.exit(main())
