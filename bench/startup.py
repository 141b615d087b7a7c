"""How long commands take to start, beside the imports of tools that users compare them with.

    python -m bench.startup [--quick]

Processor time and wall time of whole processes, the median of five (three with `--quick`) after one that fills the
caches. The commands show, read and compact a small table that has logs, and of which no compaction is pending. The
imports are those of this environment; a tool that is not installed is left out.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pyarrow as pa

from bench.report import Goal, Report
from phantombase import writer

_HELP_S = 0.3
_COMMANDS = {
    "show": (("timeline", "show"), 0.35),
    "slices": (("timeline", "slices"), None),
    "status": (("compactor-daemon", "status"), 0.35),
    "status_brief": (("compactor-daemon", "status", "--brief"), 0.35),
    "compact": (("compactor-daemon", "compact"), 0.35),
    "read": (("timeline", "read"), 0.5),
}
"""With the limit of their CPU seconds, if they have one."""
_IMPORT, _IMPORT_S = "from phantombase import read, writer", 0.3
_HELP = {
    "timeline_help": ("timeline", "--help"),
    "help": ("compactor-daemon", "--help"),
    "run_help": ("compactor-daemon", "run", "--help"),
    "read_help": ("timeline", "read", "--help"),
}
_IMPORTS = ("duckdb", "deltalake", "pyarrow", "polars", "pandas")


def main() -> int:
    """Command line; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description="How long commands take to start.")
    parser.add_argument("--quick", action="store_true", help="three times each")
    times = 3 if parser.parse_args().quick else 5
    report = Report(bench="startup")
    with tempfile.TemporaryDirectory(prefix="startup-") as made:
        table = str(Path(made) / "rides")
        for ts in (1, 2):
            rows = pa.table({"id": ["a", "b"], "ts": [ts, ts]})
            writer(rows).table("rides").key("id").ordering("ts").buckets(1).upsert(table)
        for name, (program, *words) in _HELP.items():
            _measure(
                report,
                name,
                [_command(program), *words],
                times,
                Goal(figure=f"{name}_cpu_s", limit=_HELP_S, at_least=False),
            )
        for name, ((program, *words), limit) in _COMMANDS.items():
            goal = None if limit is None else Goal(figure=f"{name}_cpu_s", limit=limit, at_least=False)
            _measure(report, name, [_command(program), *words, table], times, goal)
        goal = Goal(figure="import_cpu_s", limit=_IMPORT_S, at_least=False)
        _measure(report, "import", [sys.executable, "-c", _IMPORT], times, goal)
    for name in _IMPORTS:
        if find_spec(name) is not None:
            _measure(report, f"import_{name}", [sys.executable, "-c", f"import {name}"], times, None)
    return report.finish()


def _command(program: str) -> str:
    return str(Path(sys.executable).with_name(program))


def _measure(report: Report, name: str, command: list[str], times: int, goal: Goal | None) -> None:
    runs = [_run(command) for _ in range(times + 1)][1:]
    report.timed(name, [wall for wall, _ in runs])
    report.figure(f"{name}_cpu_s", round(median(cpu for _, cpu in runs), 3), goal)


def _run(command: list[str]) -> tuple[float, float]:
    """Wall time and processor time of a process, in seconds."""
    before, began = _children_s(), time.monotonic()
    environment = {**os.environ, "COLUMNS": "80"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the first run leaves compiled modules, as an installation does
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.monotonic() - began, _children_s() - before


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
