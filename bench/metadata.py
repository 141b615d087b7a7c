"""What keeping Hudi's metadata table costs a small write, and what Hudi does with what we have left in it.

    python -m bench.metadata [--quick]

A table of Hudi 1.2.0's with its default indexes (files, column and partition statistics), to which so many files more
were added, 100 a partition: 1 k and 100 k. Upserts of 40 rows with the metadata table and, when it was dropped,
without; the shortest of seven counts. Then (not quick) real Hudi: its upsert on a table of its own before and behind 40
upserts of ours, and the delta commits of the metadata table that wait for its compaction.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bench.report import Goal, Report
from phantombase.timeline.dashboard.overview import commits_to_compact
from phantombase.timeline.format.commit_metadata import CommitMetadata
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.file_name import BaseFileName
from phantombase.timeline.format.instant import Instant, State, format_time
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.create import drop_metadata_table
from phantombase.timeline.metadata_table.update import Change, apply_update
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.golden_tables import unzip_golden

_FILES = (1_000, 100_000)
_PER_PARTITION = 100
_RUNS = 7
_ROWS = 40
_COMMITS = 40
_HUDI = "1.2.0"


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="Cost of the metadata table: commits with it on against off.")
    parser.add_argument("--quick", action="store_true", help="without real Hudi")
    arguments = parser.parse_args()
    report = Report(bench="metadata")
    for files in _FILES:
        with tempfile.TemporaryDirectory(prefix="metadata-") as folder:
            _on_and_off(report, Path(folder), files)
    if not arguments.quick:
        with tempfile.TemporaryDirectory(prefix="metadata-") as folder, Judge(_HUDI) as judge:
            _left_to_hudi(report, judge, Path(folder) / "table")
    return report.finish()


def _on_and_off(report: Report, folder: Path, files: int) -> None:
    path = unzip_golden("v9_with_metadata_table", folder)
    table = Table.on(LocalStorage(str(path)))
    rows = read_table(table).slice(0, _ROWS)
    _add_files(path, files)
    batch = rows.select([name for name in rows.schema.names if not name.startswith("_hoodie_")])
    name = f"{files // 1000}k"
    on = _upserts(table, batch, _RUNS)
    drop_metadata_table(table, ProcessLock(str(path)))
    off = _upserts(table, batch, _RUNS)
    report.timed(f"{name}_on", on)
    report.timed(f"{name}_off", off)
    figure = f"{name}_on_to_off"
    report.figure(figure, min(on) / min(off), Goal(figure=figure, limit=2.0, at_least=False))
    report.figure(f"{name}_added_ms", (min(on) - min(off)) * 1000)


def _add_files(path: Path, files: int) -> None:
    """Base files without content, committed an hour before everything else, and known to the metadata table."""
    moment = format_time(datetime.now() - timedelta(hours=1))
    added: dict[str, dict[str, int]] = {}
    for number in range(files // _PER_PARTITION):
        partition = f"{number:05d}"
        (path / partition).mkdir()
        (path / partition / ".hoodie_partition_metadata").write_bytes(b"")
        names = [
            str(BaseFileName(file_id=f"{number:08x}-{n:04d}-4000-8000-000000000000-0", token="0-1-2", instant=moment))
            for n in range(_PER_PARTITION)
        ]
        for name in names:
            (path / partition / name).touch()
        added[partition] = dict.fromkeys(names, 1 << 20)
    table = Table.on(LocalStorage(str(path)))
    done = Instant(requested_time=moment, action="deltacommit", state=State.COMPLETED, completion_time=moment)
    apply_update(table, Change(instant=moment, files=added, moves_rows=False, schema_text=None), None)
    (path / table.instant_path(done)).write_bytes(encode_commit(CommitMetadata(), table.layout.encoding))


def _upserts(table: Table, batch: pa.Table, runs: int) -> list[float]:
    """Seconds of so many upserts of these rows, each later by its ordering value."""
    seconds, what = [], Write(operation=Operation.UPSERT, options=WriteOptions(slots=1))
    for _ in range(runs):
        batch = batch.set_column(batch.schema.get_field_index("ts"), "ts", pc.add(batch["ts"], 1))
        started = time.monotonic()
        write(table.snapshot(cached=False), LocalEngine(batch, slots=1), what)
        seconds.append(time.monotonic() - started)
    return seconds


def _left_to_hudi(report: Report, judge: Judge, path: Path) -> None:
    """What Hudi's next upserts do and take behind many commits of ours."""
    ids = range(1000)
    names = {"id": [f"{n:05d}" for n in ids], "p": [str(n % 4) for n in ids], "ts": pa.array([1] * 1000, pa.int64())}
    batch = pa.table({**names, "number": pa.array(ids, pa.int64())})
    judge.create(path, "bench", batch, version=9, partition_field="p", options=METADATA_TABLE)
    judge.upsert(path, batch)  # warms it up
    seconds = []
    for _ in range(2):
        judge.upsert(path, batch)
        seconds.append(judge.seconds)
    report.timed("hudi_upsert_before", seconds)
    table = Table.on(LocalStorage(str(path)))
    ours = _upserts(table, batch, _COMMITS)
    report.timed("ours_first_ten", ours[:10])
    report.timed("ours_last_ten", ours[-10:])
    waiting, files = [commits_to_compact(table.snapshot(cached=False))], [_metadata_files(path)]
    seconds = []
    for _ in range(3):
        judge.upsert(path, batch)
        seconds.append(judge.seconds)
        waiting.append(commits_to_compact(table.snapshot(cached=False)))
        files.append(_metadata_files(path))
    for number, one in enumerate(seconds, start=1):
        report.timed(f"hudi_upsert_{number}_behind_ours", [one])
    report.facts |= {"our_commits": _COMMITS, "waiting_for_compaction": waiting, "metadata_files": files}
    figure = "commits_waiting_behind_hudi"
    report.figure(figure, min(waiting[1:]), Goal(figure=figure, limit=10.0, at_least=False))


def _metadata_files(path: Path) -> dict[str, int]:
    """Files of the metadata table's partitions and of its active timeline."""
    folder = path / ".hoodie/metadata"
    timeline = sum(p.is_file() for p in (folder / ".hoodie/timeline").iterdir())
    data = sum(not p.name.startswith(".hoodie") for p in folder.glob("[!.]*/*"))
    return {"data": data, "timeline": timeline}


if __name__ == "__main__":
    sys.exit(main())
