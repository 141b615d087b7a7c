"""What grows with a table's columns, and with the metadata of its commits, in CPU seconds.

    python -m bench.wide [--quick]

Columns: a read and an upsert of 5 rows of a table with 4,000 columns against one with 1,000. Commits: a read of one key
of a table whose eleven commits, in JSON, have write statistics of many other file groups: 74 MB each. Each figure is of
a process of its own, the least of some runs, and the memory is the peak of it. What is compared by columns is done once
before, so that imports do not count; the read of one key is the first thing that its process does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.report import Goal, Report
from phantombase import writer

_KEYS = [f"k{i:02d}" for i in range(20)]
_COMMITS = 11
_READ = """
import json, re, sys, time
from pathlib import Path
from phantombase import read
if not sys.argv[2]:
    read(sys.argv[1]).to_arrow()
begin = time.process_time()
rows = read(sys.argv[1], filter=sys.argv[2] or None).to_arrow()
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
print(json.dumps([time.process_time() - begin, peak, rows.num_rows]))
"""
_UPSERT = """
import json, sys, time
import pyarrow as pa
from bench.wide import wide_rows
from phantombase import writer
older, newer = (wide_rows(int(sys.argv[2]), 5, ts) for ts in (2, 3))
writer(older).upsert(sys.argv[1])
begin = time.process_time()
writer(newer).upsert(sys.argv[1])
print(json.dumps([time.process_time() - begin]))
"""


def wide_rows(columns: int, rows: int, ts: int) -> pa.Table:
    """Rows with so many columns besides key and time: numbers, texts and truth values."""
    kinds = ([1.5] * rows, [7] * rows, ["text"] * rows, [True] * rows)
    values = {f"c{i:05d}": kinds[i % 4] for i in range(columns)}
    return pa.table({"id": _KEYS[:rows], "ts": [ts] * rows, **values})


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="CPU by columns, and by metadata of commits.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the metadata, one run")
    quick = parser.parse_args().quick
    report = Report(bench="wide")
    runs = 1 if quick else 3
    with tempfile.TemporaryDirectory(prefix="wide-") as made:
        _columns(report, Path(made), runs)
        _commits(report, Path(made) / "commits", 5_000 if quick else 59_000, runs)
    return report.finish()


def _columns(report: Report, folder: Path, runs: int) -> None:
    took = dict[str, list[float]]()
    for columns in (1_000, 4_000):
        path = folder / f"t{columns}"
        writer(wide_rows(columns, len(_KEYS), 1)).table("t").key("id").ordering("ts").bulk_insert(path)
        upserts = [_child(_UPSERT, path, columns)[0] for _ in range(runs)]
        reads = [_child(_READ, path, "")[0] for _ in range(runs)]
        for what, seconds in (("upsert", upserts), ("read", reads)):
            report.timed(f"{what}_{columns}", seconds)
            took.setdefault(what, []).append(min(seconds))
    for what, (few, many) in took.items():
        figure = f"{what}_4000_against_1000"
        report.figure(figure, many / few, Goal(figure=figure, limit=5.0, at_least=False))


def _commits(report: Report, path: Path, stats: int, runs: int) -> None:
    for ts in range(1, _COMMITS + 1):
        rows = pa.table({"id": _KEYS, "p": ["a"] * len(_KEYS), "ts": [ts] * len(_KEYS)})
        writer(rows).table("t", version=6).key("id").partition("p").ordering("ts").upsert(path)
    files = sorted((path / ".hoodie").glob("*.deltacommit"))
    for file in files:
        _grow(file, stats)
    report.facts["commit_mb"] = round(sum(file.stat().st_size for file in files) / len(files) / 1e6, 1)
    found = [_child(_READ, path, "id = 'k01' and p = 'a'") for _ in range(runs)]
    if {rows for _, _, rows in found} != {1}:
        raise RuntimeError(f"not one row: {found}")
    report.timed("read_of_one_key", [seconds for seconds, _, _ in found])
    report.figure(
        "read_of_one_key_s",
        min(seconds for seconds, _, _ in found),
        Goal(figure="read_of_one_key_s", limit=2.0, at_least=False),
    )
    report.figure(
        "read_of_one_key_mib",
        max(peak for _, peak, _ in found),
        Goal(figure="read_of_one_key_mib", limit=200.0, at_least=False),
    )


def _grow(file: Path, count: int) -> None:
    """Adds write statistics of file groups in partitions that have no folder any more."""
    commit = json.loads(file.read_bytes())
    stats = commit["partitionToWriteStats"]
    one = next(iter(stats.values()))[0]
    for number in range(count):
        group, partition = f"{uuid.uuid4()}-0", f"gone-{number % 100}"
        log = f"{partition}/.{group}_{file.stem}.log.1_0-1-{number}"
        stats.setdefault(partition, []).append(one | {"fileId": group, "partitionPath": partition, "path": log})
    file.write_text(json.dumps(commit))


def _child(script: str, *args: object) -> Any:
    done = subprocess.run([sys.executable, "-c", script, *map(str, args)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
