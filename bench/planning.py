"""What planning costs: time and peak memory of an unlimited plan, of one of ten file slices, and of a clustering.

    python -m bench.planning [--quick]

Synthetic tables of 10 k, 100 k and 1 M file groups (quick: without the last): partitions of 100 groups, 100 partitions
in a folder, each group with a base file and two log files. Their folders are listed from memory, so that the planner is
measured and not a disk; 10 k file groups lie in a local folder too (not quick). Every plan is made in a process of its
own and put on the timeline (the shortest of five for limited ones). `choosing` is the planner alone: without the names
of the partitions it did not look at, which a plan of Hudi's format lists. A clustering
takes all file groups of the table of 100 k, by size; it is chosen, not put on the timeline. `cpu_s`: processor seconds;
of unlimited plans without those that the listing from memory takes.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.processes import run
from bench.report import Goal, Report
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Grouping
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.format.commit_metadata import CommitMetadata
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.format.instant import Instant, State, format_time
from phantombase.timeline.format.log_encode import delete_block
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.planner import Situation, plan_compaction
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.planning.survey import Survey
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.boundary import own_process
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from phantombase.writer_hooks.schema.table_schema import new_schema

_GROUPS = (10_000, 100_000, 1_000_000)
_CLUSTERED = 100_000
_PER_PARTITION = 100
_PER_FOLDER = 100
_SLICES = 10
_RUNS = 5
_BASE_BYTES, _LOG_BYTES = 100 << 20, 5 << 20
_ALL_GROUPS = ClusterOptions(
    grouping=Grouping.SIZE, target_size=1 << 30, small_size=1 << 30, max_groups=1 << 40, max_bytes=1 << 60
)
_MARK = ".hoodie_partition_metadata"
_SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False)])


@dataclass(frozen=True, slots=True)
class ListedFromMemory(LocalStorage):
    """A table of so many partitions, of which only `.hoodie` is on disk."""

    partitions: int
    times: Sequence[str]

    def list(self, folder: str) -> list[Entry]:
        if folder.startswith(".hoodie"):
            return LocalStorage.list(self, folder)
        upper, _, lower = folder.partition("/")
        if lower:
            return _files(int(upper) * _PER_FOLDER + int(lower), self.times)
        names = range(min(_PER_FOLDER, self.partitions)) if upper else range(-(-self.partitions // _PER_FOLDER))
        return [Entry(name=".hoodie", is_folder=True), *(Entry(name=f"{n:04d}", is_folder=True) for n in names)]

    def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
        if path.startswith(".hoodie"):
            return LocalStorage.open_input(self, path)
        return pa.BufferReader(_base() if path.endswith(".parquet") else _log(self.times[-1], _LOG_BYTES))


@cache
def _base() -> bytes:
    """A base file without rows. Only footers are read, so that it stands for one of any size."""
    file = pa.BufferOutputStream()
    pq.write_table(_SCHEMA.empty_table(), file)
    return bytes(file.getvalue())


@cache
def _log(instant: str, key_bytes: int = 1) -> bytes:
    """A log file of a delete, of one key. Only block headers are read."""
    key, schema = pa.array(["k" * key_bytes]), new_schema("planning", _SCHEMA)
    parts = delete_block(key, pa.array([""]), (), instant=instant, schema_text=schema, hudi_0x=False)
    return b"".join(bytes(part) for part in parts)


def _partition(number: int) -> str:
    return f"{number // _PER_FOLDER:04d}/{number % _PER_FOLDER:04d}"


def _files(partition: int, times: Sequence[str]) -> list[Entry]:
    """The entries of a partition; sizes of base files differ, so that there is something to sort by."""
    found = [Entry(name=_MARK, is_folder=False, size=96)]
    for number in range(_PER_PARTITION):
        file_id = f"{partition:08x}-{number:04d}-4000-8000-000000000000-0"
        base = BaseFileName(file_id=file_id, token="0-1-2", instant=times[0])
        found.append(Entry(name=str(base), is_folder=False, size=_BASE_BYTES + (number * 7919 + partition) % 1000))
        for time_ in times[1:]:
            log = LogFileName(file_id=file_id, instant=time_, version=1, token="0-1-3")
            found.append(Entry(name=str(log), is_folder=False, size=len(_log(times[-1], _LOG_BYTES))))
    return sorted(found, key=lambda e: e.name)


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="Time and peak memory of planning.")
    parser.add_argument("--quick", action="store_true", help="without 1 M file groups, and without a disk")
    parser.add_argument("--one", nargs=4, metavar=("FOLDER", "GROUPS", "WHERE", "PLAN"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        folder, groups, where, plan = arguments.one
        own_process()
        print(json.dumps(_plan(Path(folder), int(groups), where, plan)))
        return 0
    report = Report(bench="planning")
    sizes = _GROUPS[:-1] if arguments.quick else _GROUPS
    on_disk = () if arguments.quick else (("disk", sizes[0]),)
    for where, groups in (*(("memory", g) for g in sizes), *on_disk):
        for plan in ("limited", "unlimited"):
            name = f"{where}_{groups // 1000}k_{plan}"
            answers = [_answer(groups, where, plan) for _ in range(_RUNS if plan == "limited" else 1)]
            found = min(answers, key=lambda answer: answer["seconds"])
            report.timed(name, [found["seconds"]])
            report.figure(f"{name}_peak_mib", found["peak_mib"])
            report.figure(f"{name}_cpu_s", min(answer["cpu"] for answer in answers))
            if plan == "limited":
                report.timed(f"{name}_choosing", [min(answer["choosing"] for answer in answers)])
    chosen = _answer(_CLUSTERED, "memory", "clustering")
    figure = f"clustering_{_CLUSTERED // 1000}k_s"
    report.figure(figure, chosen["seconds"], Goal(figure=figure, limit=5, at_least=False))
    report.figure(f"clustering_{_CLUSTERED // 1000}k_cpu_s", chosen["cpu"])
    report.figure(f"clustering_{_CLUSTERED // 1000}k_peak_mib", chosen["peak_mib"])
    smallest, biggest = (f"memory_{size // 1000}k" for size in (sizes[0], sizes[-1]))
    for plan in ("limited", "limited_choosing"):
        ratio = report.seconds[f"{biggest}_{plan}"] / report.seconds[f"{smallest}_{plan}"]
        figure = f"{plan}_largest_to_smallest"
        report.figure(figure, ratio, Goal(figure=figure, limit=2.0, at_least=False))
    if not arguments.quick:
        seconds, peak = f"{biggest}_unlimited_seconds", f"{biggest}_unlimited_peak_mib"
        report.figure(seconds, report.seconds[f"{biggest}_unlimited"], Goal(figure=seconds, limit=30, at_least=False))
        report.figure(peak, report.figures[peak], Goal(figure=peak, limit=2048, at_least=False))
    return report.finish()


def _answer(groups: int, where: str, plan: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="phantombase-bench-") as folder:
        return run([sys.executable, "-m", "bench.planning", "--one", folder, str(groups), where, plan]).answer


def _plan(folder: Path, groups: int, where: str, plan: str) -> dict[str, object]:
    """Makes the table, then the plan; how long that took, and the most memory this process had."""
    limited = plan == "limited"
    table = create_table(LocalStorage(str(folder)), NewTable(name="planning", version=9, key_fields=("id",)))
    *times, newest = (format_time(datetime.now() - timedelta(hours=2 - n / 10)) for n in range(4))
    commit = CommitMetadata(extra_metadata={"schema": new_schema("planning", _SCHEMA)})
    # The writes of the files are archived: commits that name a million files are another bench's subject.
    done = Instant(requested_time=newest, action="deltacommit", state=State.COMPLETED, completion_time=newest)
    (folder / table.instant_path(done)).write_bytes(encode_commit(commit, table.layout.encoding))
    partitions = groups // _PER_PARTITION
    if where == "disk":
        for number in range(partitions):
            (folder / _partition(number)).mkdir(parents=True)
            for entry in _files(number, times):
                path = folder / _partition(number) / entry.name
                if ".log." in entry.name:
                    path.write_bytes(_log(times[-1]))
                else:
                    with open(path, "wb") as file:
                        file.seek(entry.size - len(_base()))  # a hole: it takes no room
                        file.write(_base())
        storage = LocalStorage(str(folder))
    else:
        storage = ListedFromMemory(str(folder), partitions, times)
    options = ScheduleOptions(strategy=TriggerStrategy.ALWAYS, max_file_slices=_SLICES if limited else None)
    table = Table.on(storage)
    if plan == "clustering":
        return _clustering(table, groups)
    choosing = _choosing(table, options) if limited else None
    started, worked = time.monotonic(), time.process_time()
    scheduled = schedule_compaction(table, ProcessLock(str(folder)), options=options)
    seconds, cpu = time.monotonic() - started, time.process_time() - worked
    expected = _SLICES if limited else groups
    if scheduled.plan is None or len(scheduled.plan.operations) != expected:
        raise RuntimeError(f"{expected} file groups expected: {scheduled.why}")
    if where == "memory" and not limited:
        cpu -= _listing_cpu(partitions, times)
    return {"seconds": seconds, "cpu": cpu, "choosing": choosing, "peak_mib": round(_peak_mib())}


def _clustering(table: Table, groups: int) -> dict[str, object]:
    """As a dry run, with the listing."""
    started, worked = time.monotonic(), time.process_time()
    result = cluster_table(table, _ALL_GROUPS, ProcessLock("bench"), output=OutputOptions(), dry_run=True)
    seconds, cpu = time.monotonic() - started, time.process_time() - worked
    if result.done is None or result.done.files != groups:
        raise RuntimeError(f"{groups} file groups expected: {result}")
    return {"seconds": seconds, "cpu": cpu, "peak_mib": round(_peak_mib())}


def _listing_cpu(partitions: int, times: Sequence[str]) -> float:
    """Processor seconds in which the listing from memory makes its entries: they are the bench's, not the planner's."""
    worked = time.process_time()
    for number in range(partitions):
        _files(number, times)
    return time.process_time() - worked


def _choosing(table: Table, options: ScheduleOptions) -> float:
    """Seconds of the planner alone, on a timeline that is read."""
    snapshot = table.snapshot()
    facts = table.with_timeline(snapshot.timeline).load_facts()
    started = time.monotonic()
    survey = Survey(snapshot, facts, options)
    situation = Situation(timeline=snapshot.timeline, facts=facts, now=table.now())
    planned = plan_compaction(survey.looks(), situation, options, survey.measure, survey.refused)
    seconds = time.monotonic() - started
    if [len(plan) for plan in planned.plans] != [_SLICES]:
        raise RuntimeError(f"{_SLICES} file groups expected: {planned.why}")
    return seconds


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
