"""A past state, or a feed of changes, of which a file is lost: an error that names it, never fewer rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import read, writer
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.undo.savepoint import create_savepoint
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.locks.table_lock import ProcessLock
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden, witnessed
from tests.support.selection import deep


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
