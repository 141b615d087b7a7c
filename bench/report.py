"""What a benchmark found: a table for people on stderr, one JSON object for machines as the last line of stdout."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

_PACKAGES = ("pyspark", "pyarrow", "polars", "numpy", "hudi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One goal of design.md, "Measures". `target`: what it shall reach after that; it does not decide `met`."""

    figure: str
    limit: float
    at_least: bool = True
    target: float | None = None

    def met_by(self, value: float) -> bool:
        """Whether a measured value reaches the goal."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        text = f"{'>=' if self.at_least else '<='} {self.limit:g}"
        return text if self.target is None else f"{text}, then {self.target:g}"


@dataclass(kw_only=True)
class Report:
    """Collects figures. `seconds` are medians of runs; `figures` ratios and sizes derived from them."""

    bench: str
    seconds: dict[str, float] = field(default_factory=dict)
    runs: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def timed(self, name: str, seconds: Sequence[float]) -> float:
        """Records the runs of one measurement; their median."""
        self.runs[name] = [round(s, 3) for s in seconds]
        self.seconds[name] = round(median(seconds), 3)
        return median(seconds)

    def figure(self, name: str, value: float, goal: Goal | None = None) -> None:
        """Records a derived figure, and the goal it is held to."""
        self.figures[name] = round(value, 2)
        if goal is not None:
            assert goal.figure == name
            self.goals.append(goal)

    @property
    def met(self) -> bool:
        """All goals measured in this run."""
        return all(goal.met_by(self.figures[goal.figure]) for goal in self.goals)

    def document(self) -> dict[str, Any]:
        """All of it as one JSON object."""
        return {
            "bench": self.bench,
            **self.figures,
            "goal": {goal.figure: str(goal) for goal in self.goals},
            "met": self.met,
            "seconds": self.seconds,
            "runs": self.runs,
            **self.facts,
            "machine": machine(),
        }

    def finish(self) -> int:
        """Prints both forms; the exit code: 0 when all goals are met, 1 when not."""
        self._show(Console(stderr=True, width=None if sys.stderr.isatty() else 120))
        print(json.dumps(self.document()), flush=True)
        return 0 if self.met else 1

    def _show(self, console: Console) -> None:
        console.print(f"[bold]{self.bench}[/]: {shlex.join(['python', '-m', f'bench.{self.bench}', *sys.argv[1:]])}")
        for name, value in {**machine(), **self.facts}.items():
            console.print(f"  {name}: {value}", highlight=False, markup=False)
        times = Table("measurement", "seconds", "runs", title="median of runs", title_justify="left")
        for name, seconds in self.seconds.items():
            times.add_row(name, f"{seconds:.2f}", " ".join(f"{s:.2f}" for s in self.runs[name]))
        console.print(times)
        found = Table("figure", "value", "goal", "", title="figures", title_justify="left")
        goals = {goal.figure: goal for goal in self.goals}
        for name, value in self.figures.items():
            goal = goals.get(name)
            word = "" if goal is None else "[green]met[/]" if goal.met_by(value) else "[red]missed[/]"
            found.add_row(name, f"{value:g}", "" if goal is None else str(goal), word)
        console.print(found)


def with_part(page: str, mark: str, text: str) -> str:
    """The page with this text between `<!-- made by MARK -->` and the next `<!-- end -->`."""
    begin, end = f"<!-- made by {mark} -->", "<!-- end -->"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"


def machine() -> dict[str, Any]:
    """What the figures depend on. `load`: runnable processes over the last minute; other people's work shows here."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "memory_gib": round(memory / (1 << 30), 1),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "java": _java(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _java() -> str:
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return done.stderr.splitlines()[0] if done.stderr else "none"
