"""Runs every bench, one after the other, and prints one table: goals beside figures, and the last run.

    python -m bench.all [--quick] [--only NAME...] [--minutes N] [--record]

Without `--quick` the benches have their full size, which takes hours. No bench begins after the minutes are over
(default 20 for the quick form, no limit else), and what runs then is ended: such benches are named, and keep their last
record. Tables that real Hudi writes are made before, and do not count: they are kept (`bench.tables`). A figure with a
goal that is more than a fifth worse than in the record of the same form is flagged.
`--record` keeps the results in bench/recorded/, and writes the table of the quick form into goals.md there.
Exit code 1: something is flagged, or a bench failed; a missed goal is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.report import machine, with_part

BENCHES = (
    "planning",
    "compaction",
    "snapshot_read",
    "upsert",
    "spark_read",
    "memory",
    "clustering",
    "sorting",
    "object_store",
    "service",
    "services",
    "metastore",
    "metadata",
    "metadata_build",
    "fleet",
    "lake",
    "idle_tables",
    "claims",
    "budget",
    "startup",
    "wide",
    "day",
    "lake_day",
)
"""What is measured most often comes first: the minutes may not suffice for all."""

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "bench" / "recorded" / "goals.md"
_WORSE = 0.2
_ENDING_S = 30
_QUICK_MINUTES = 20.0

Documents = Mapping[str, Mapping[str, Any]]
"""The last line of each bench, by its name (see `report.Report.finish`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure with its goal, as `>= 5, then 10`. `last`: in the record, None if it is not there."""

    bench: str
    figure: str
    value: float
    goal: str
    last: float | None

    @property
    def at_least(self) -> bool:
        """Whether more is better."""
        return self.goal.startswith(">=")

    @property
    def met(self) -> bool:
        """Whether the figure reaches the goal."""
        limit = float(self.goal.split()[1].rstrip(","))
        return self.value >= limit if self.at_least else self.value <= limit

    @property
    def worse(self) -> bool:
        """Whether it is more than a fifth worse than the last time."""
        if self.last is None:
            return False
        return self.value < self.last * (1 - _WORSE) if self.at_least else self.value > self.last * (1 + _WORSE)


def rows_of(found: Documents, last: Documents) -> list[Row]:
    """Every figure that has a goal."""
    return [
        Row(bench=bench, figure=figure, value=document[figure], goal=goal, last=last.get(bench, {}).get(figure))
        for bench, document in found.items()
        for figure, goal in document["goal"].items()
    ]


def goals_table(recorded: Documents) -> str:
    """The goals of a record as the page shows them."""
    lines = ["| bench | figure | measured | goal | |", "| --- | --- | --- | --- | --- |"]
    for row in rows_of(recorded, {}):
        met = "met" if row.met else "**missed**"
        lines.append(f"| {row.bench} | `{row.figure}` | {row.value:g} | {row.goal} | {met} |")
    machines = {(d["machine"]["cores"], d["machine"]["memory_gib"]) for d in recorded.values()}
    loads = [d["machine"]["load"] for d in recorded.values()]
    on = ", ".join(f"{cores} cores and {memory} GiB" for cores, memory in sorted(machines))
    lines += ["", f"On {on}; load {min(loads, default=0):g} to {max(loads, default=0):g} at the ends of the benches."]
    return "\n".join(lines)


def with_goals(page: str, table: str) -> str:
    """The page with this table in its place."""
    return with_part(page, "bench.all: goals", table)


def record_path(*, quick: bool) -> Path:
    """Where the results of one form are kept."""
    return _ROOT / "bench" / "recorded" / f"{'quick' if quick else 'full'}.json"


def recorded(*, quick: bool) -> dict[str, dict[str, Any]]:
    """The results that are kept, by bench."""
    path = record_path(quick=quick)
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Every bench, one table.")
    parser.add_argument("--quick", action="store_true", help="smaller tables, within 20 minutes")
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=BENCHES, metavar="NAME", help="only these")
    parser.add_argument("--minutes", type=float, help="no bench runs longer than that after the beginning of all")
    parser.add_argument("--record", action="store_true", help="keep the results, and write the page")
    arguments = parser.parse_args()
    minutes = arguments.minutes or (_QUICK_MINUTES if arguments.quick else float("inf"))
    last = recorded(quick=arguments.quick)
    if not {"compaction", "snapshot_read", "spark_read", "object_store"}.isdisjoint(arguments.only):
        make = [sys.executable, "-m", "bench.tables", *(["--quick"] if arguments.quick else [])]
        subprocess.run(make, stdout=sys.stderr, cwd=_ROOT, check=True)
    found, without = _measured(arguments.only, time.monotonic() + 60 * minutes, quick=arguments.quick)
    rows = rows_of(found, last)
    _show(rows, without)
    if arguments.record:
        kept = {**last, **found}
        path = record_path(quick=arguments.quick)
        path.parent.mkdir(exist_ok=True)
        in_order = {name: kept[name] for name in BENCHES if name in kept}
        path.write_text(json.dumps(in_order, indent=1) + "\n")
        if arguments.quick:
            _PAGE.write_text(with_goals(_PAGE.read_text(), goals_table(in_order)))
    return int(bool(without) or any(row.worse for row in rows))


def _measured(names: Sequence[str], until: float, *, quick: bool) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The documents of the benches that ended in time, and why others are without one."""
    found, without = dict[str, dict[str, Any]](), dict[str, str]()
    for name in names:
        began = time.monotonic()
        if began >= until:
            without[name] = "not begun: no time was left"
            continue
        command = [sys.executable, "-m", f"bench.{name}", *(["--quick"] if quick else [])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT, start_new_session=True)
        try:
            out, _ = process.communicate(timeout=None if until == float("inf") else until - began)
        except subprocess.TimeoutExpired:
            _ended(process)
            without[name] = "ended: no time was left"
            continue
        try:
            found[name] = json.loads(out.splitlines()[-1])
        except (IndexError, ValueError):
            without[name] = f"failed, exit code {process.returncode}"
        print(f"bench.all: {name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found, without


def _ended(process: subprocess.Popen[str]) -> None:
    """Ends a bench: by an interrupt, so that it ends the services that it started, and after a while by force."""
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_ENDING_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _show(rows: Sequence[Row], without: Mapping[str, str]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    for name, value in machine().items():
        console.print(f"{name}: {value}", highlight=False, markup=False)
    table = Table("bench", "figure", "value", "goal", "", "last", "")
    for row in rows:
        last = "" if row.last is None else f"{row.last:g}"
        met, flag = "[green]met[/]" if row.met else "[red]missed[/]", "[red]worse[/]" if row.worse else ""
        table.add_row(row.bench, row.figure, f"{row.value:g}", row.goal, met, last, flag)
    console.print(table)
    for name, why in without.items():
        console.print(f"{name}: {why}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
