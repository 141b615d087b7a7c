"""A streaming query is killed at random moments and restarted from its checkpoint: every batch exactly once.

`PHANTOMBASE_STREAM_BATCHES=200 pytest tests/writer_hooks/commit/test_streaming.py` is the whole proof; CI takes
a sample."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase.timeline.format.commit_metadata import STREAM_CHECKPOINT
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.support.places import SEED
from tests.support.selection import ALL, deep

BATCHES = int(os.environ.get("PHANTOMBASE_STREAM_BATCHES", "6" if ALL else "4"))
VERSIONS = (6, 9) if "PHANTOMBASE_STREAM_BATCHES" in os.environ else (9,)
KEYS = 50
ROUND_MAX_S = 600


def _files(folder: Path, pick: random.Random) -> dict[str, tuple[int, float]]:
    """One file a batch, with times in their order; what must be read in the end."""
    folder.mkdir()
    live: dict[str, tuple[int, float]] = {}
    for number in range(BATCHES):
        keys = sorted({f"k{pick.randrange(KEYS)}" for _ in range(10)} | {f"batch{number}"})
        rows = [(key, number * 10 + pick.randrange(10), pick.random()) for key in keys]
        for key, ts, fare in rows:
            if key not in live or ts >= live[key][0]:
                live[key] = (ts, fare)
        path = folder / f"{number:05d}.parquet"
        names = ("id", "ts", "fare")
        pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), path)
        os.utime(path, (1_700_000_000 + number,) * 2)  # Spark takes the oldest file first
    return live


@pytest.mark.spark
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("version", "way"), [*((version, "foreach") for version in VERSIONS), deep(9, "source")])
def test_killed_and_restarted(version: int, way: str, tmp_path: Path) -> None:
    pick = random.Random(f"{SEED} {version}")
    live = _files(tmp_path / "in", pick)
    command = [sys.executable, "-m", "tests.support.stream_child"]
    command += [str(tmp_path / name) for name in ("in", "checkpoint", "table")] + [str(version), way]
    kills = 0
    log = (tmp_path / "log").open("wb")
    while True:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        # At first a process is killed in the middle of its batches, in the end one may finish.
        wanted = (
            _commits(tmp_path) + pick.randint(1, max(2, BATCHES // 12)) if kills < max(3, BATCHES // 8) else BATCHES + 1
        )
        # The first kill comes soon: at least one must find the query at work.
        ended = _until(process, tmp_path, wanted, pick.random() * (1.5 if kills else 0.2))
        if ended:
            break
        kills += 1
    said = (tmp_path / "log").read_text(errors="replace")[-3000:]
    assert process.returncode == 0, f"seed {SEED}\n{said}"
    rows = read_table(Table.open(str(tmp_path / "table")))
    found = dict(
        zip(rows["id"].to_pylist(), zip(rows["ts"].to_pylist(), rows["fare"].to_pylist(), strict=True), strict=True)
    )
    assert rows.num_rows == len(found) == len(live), f"seed {SEED}, {kills} kills"
    assert found == live, f"seed {SEED}, {kills} kills"
    # Killed at some moments, Spark puts two files into one batch; of its own records it keeps the last hundred.
    last = max(int(f.name) for f in (tmp_path / "checkpoint/offsets").iterdir() if f.name.isdigit())
    assert sorted(_written(tmp_path)) == list(range(last + 1)), f"seed {SEED}: a batch was committed twice or never"
    assert kills > 0


def _until(process: subprocess.Popen[bytes], folder: Path, commits: int, more_s: float) -> bool:
    """Waits for so many commits, and some time more, then kills the process and its JVM; True when it has ended."""
    end = time.monotonic() + ROUND_MAX_S
    while process.poll() is None and _commits(folder) < commits and time.monotonic() < end:
        time.sleep(0.3)
    time.sleep(more_s)
    if process.poll() is not None:
        return True
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return False


def _commits(folder: Path) -> int:
    """Completed delta commits that carry a batch."""
    return len(_written(folder))


def _written(folder: Path) -> list[int]:
    """The numbers of the batches that completed delta commits carry."""
    if not (folder / "table/.hoodie/hoodie.properties").exists():
        return []
    table = Table.open(str(folder / "table"))
    commits = table.load_timeline().completed_writes.values()
    said = (table.commit_metadata(commit).extra_metadata.get(STREAM_CHECKPOINT) for commit in commits)
    return [int(json.loads(text)["trips"]) for text in said if text]
