"""Every operation beside every damage: it fails and changes no row, or it did what it does on the whole table.

Afterwards the whole file is back, since a damage may be one of the moment: a disk that is not mounted, a slow copy."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import Writer, read, writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.savepoint import create_savepoint
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.read.table_read import read_table
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import DAMAGES, GOLDEN, put, unzip_golden, witnessed
from tests.support.selection import ALL, deep

Operation = Callable[[Path, pa.Table], object]


def cluster(path: Path, rows: pa.Table) -> None:
    cluster_table(open_table(path), ClusterOptions(min_files=2), ProcessLock("test"), output=OutputOptions())


def restore(path: Path, rows: pa.Table) -> None:
    times = sorted(open_table(path).load_timeline().completed_writes)
    restore_table(open_table(path), ProcessLock("test"), times[-2:][0])


def merge_logs(path: Path, rows: pa.Table) -> None:
    """Log files with each other, then the plan that is requested."""
    options = ("--picking", "universal", "--compaction-trigger", "2", "--size-ratio", "100")
    for command in (["schedule", *options], ["compact", "--executor", "local"]):
        done = CliRunner().invoke(app, [command[0], str(path), *command[1:], "--sole-writer"])
        if isinstance(done.exception, PhantombaseError):
            raise done.exception


BUCKETS = {"bucket_nonpart": 4, "log_only": 2}
"""Of the tables with a bucket index, by case."""


def changing(path: Path, rows: pa.Table) -> Writer:
    described = writer(rows)
    return described.buckets(BUCKETS[path.name]) if path.name in BUCKETS else described


def delete_partition(path: Path, rows: pa.Table) -> None:
    writer(rows).delete_partition(str(path), open_table(path).partitions()[:1])


def archive(path: Path, rows: pa.Table) -> None:
    options = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)
    archive_table(open_table(path), options, ProcessLock("test"))


OPERATIONS: dict[str, Operation] = {
    "upsert": lambda path, rows: changing(path, rows.slice(0, 7)).upsert(str(path)),
    "delete": lambda path, rows: changing(path, rows.slice(0, 7)).delete(str(path)),
    "bulk insert": lambda path, rows: changing(path, rows.slice(0, 3)).bulk_insert(str(path)),
    "insert overwrite": lambda path, rows: changing(path, rows.slice(0, 3)).insert_overwrite(str(path)),
    "delete partition": delete_partition,
    "cluster": cluster,
    "restore": restore,
    "merge logs": merge_logs,
    "archive": archive,
}

PARTIAL = "more/v9_partial_updates"
USUAL = {("v9_clustered", "upsert"), ("v9_clustered", "cluster"), ("v6_plain", "delete")}
NAMES = [*GOLDEN, *(f"more/{name}" for name in ("v6_record_index", "v8_record_index", "v9_record_index")), PARTIAL]
CASES = [(name, what) if (name, what) in USUAL else deep(name, what) for name in NAMES for what in OPERATIONS]


def own_columns(path: Path) -> pa.Table:
    rows = read_table(open_table(path))
    return rows.drop_columns([name for name in rows.column_names if name.startswith("_hoodie")])


def content(path: Path) -> Counter[str]:
    return Counter(map(repr, own_columns(path).to_pylist()))


@pytest.mark.parametrize(("name", "operation"), CASES)
def test_nothing_wrong_is_published(name: str, operation: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path / "table")
    if operation == "delete partition":  # a pending plan for it forbids that
        CliRunner().invoke(app, ["compact", str(path), "--executor", "local", "--sole-writer"])
    whole, rows, run = content(path), own_columns(path), OPERATIONS[operation]
    copy = tmp_path / "copy" / path.name
    shutil.copytree(path, copy)
    try:
        run(copy, rows)
    except PhantombaseError as error:
        pytest.skip(f"refused by a whole table: {error}")
    done = content(copy)
    shutil.rmtree(copy)
    for file in witnessed(path):
        for what in DAMAGES if ALL else ("gone", "halved"):
            shutil.copytree(path, copy)
            mine = copy / file.relative_to(path)
            data = mine.read_bytes()
            put(mine, DAMAGES[what](data))
            is_done = True
            try:
                run(copy, rows)
            except PhantombaseError:
                is_done = False
            mine.parent.mkdir(exist_ok=True)
            mine.write_bytes(data)
            after = content(copy)
            assert after == done or (not is_done and after == whole), f"{operation} with {file} {what}"
            shutil.rmtree(copy)


# A past state, or a feed of changes, of which a file is lost: an error that names it, never fewer rows.


def compacted(path: Path, version: int) -> None:
    """A base and a log file of 10 keys, which a compaction has merged, and another log file."""
    for keys, ts in ((range(10), 1), (range(4), 2), (range(2, 6), 3)):
        if ts == 3:
            done = CliRunner().invoke(app, ["compact", str(path), "--schedule", "--sole-writer", "--executor", "local"])
            assert done.exit_code == 0, done.output
        batch = pa.table({"id": [f"k{k}" for k in keys], "ts": pa.array([ts] * len(keys), pa.int64())})
        writer(batch).table("t", version=version).key("id").ordering("ts").upsert(str(path))


def past_reads(path: Path) -> list[dict[str, Any]]:
    """Of each write: the state as of it, its rows, and what it changed."""
    timeline = open_table(path).load_timeline()
    moments = sorted(timeline.moment_of(i) for i in timeline.completed)
    windows = [{"begin": "earliest", "end": end} for end in moments]
    windows += [{"begin": begin, "end": end} for begin, end in pairwise(moments)]
    of = [{"as_of": i.requested_time, "query": q} for i in timeline.completed for q in ("snapshot", "read-optimized")]
    return of + [{**window, "query": query} for window in windows for query in ("incremental", "changes")]


def answer(path: Path, how: dict[str, Any]) -> list[str]:
    return sorted(map(repr, read(str(path), **how).to_arrow().to_pylist()))


@pytest.mark.parametrize("name", [6, deep(9), deep("v6_clustered"), deep("v9_clustered"), deep("v6_replaced")])
def test_a_lost_file_of_a_past_state_is_named(name: int | str, tmp_path: Path) -> None:
    if isinstance(name, int):
        path = tmp_path / "t"
        compacted(path, name)
    else:
        path = unzip_golden(name, tmp_path)
    reads = past_reads(path)
    whole = [answer(path, how) for how in reads]
    refused = 0
    for file in witnessed(path):
        data = file.read_bytes()
        file.unlink()
        for how, rows in zip(reads, whole, strict=True):
            refusal, found = None, rows
            try:
                found = answer(path, how)
            except PhantombaseError as error:
                refusal = str(error)
                refused += 1
            assert found == rows, f"{how} without {file}"
            assert refusal is None or file.name in refusal
        file.write_bytes(data)
    assert refused


def test_a_savepoint_of_a_past_state_keeps_all_its_files(tmp_path: Path) -> None:
    path = tmp_path / "t"
    compacted(path, 9)
    base = min(path.glob("*.parquet"), key=lambda file: file.name.rpartition("_")[2])
    base.unlink()
    first = open_table(path).load_timeline().completed[0].requested_time
    with pytest.raises(PhantombaseError, match=base.name):
        create_savepoint(open_table(path), ProcessLock("test"), first, user="", comment="")
