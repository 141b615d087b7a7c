"""Many tables of one lake, and daemons as processes that serve them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from phantombase import writer
from phantombase.timeline.planning.triggers import TriggerStrategy

ROWS = pa.table({"id": [str(i) for i in range(20)], "ts": [1] * 20, "fare": [1.0] * 20})


def pending_table(path: Path) -> Path:
    """A small table with one pending compaction."""
    writer(ROWS).table("rides").key("id").ordering("ts").buckets(1).upsert(str(path))
    ask = writer(ROWS.slice(0, 10)).buckets(1).schedule(strategy=TriggerStrategy.ALWAYS)
    assert ask.upsert(str(path)).after.scheduled is not None
    return path


def lake_of(root: Path, names: list[str], original: Path) -> list[Path]:
    """Copies of a table below a root."""
    return [Path(shutil.copytree(original, root / name)) for name in names]


def hostile_table(path: Path, original: Path) -> Path:
    """A table whose settings cannot be read."""
    shutil.copytree(original, path)
    (path / ".hoodie" / "hoodie.properties").write_bytes(b"\xff\xfe hoodie.table.type=\n\x00")
    return path


@contextmanager
def daemon_process(log: Path, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """`compactor-daemon run` with these arguments; SIGTERM at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "run", "--executor", "local", *args],
            stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
