"""Runs cases in child processes and sees what a case cannot tell itself: a hang, a crash, an exhausted memory.

python -m tests.world.fuzz.runner --seed 7 --cases 100000     a soak
python -m tests.world.fuzz.runner --seed 7 --only 4711        one case again"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.places import ROOT
from tests.world.fuzz.case import unpack
from tests.world.fuzz.child import HUNG_S

CASE_S_MAX = HUNG_S + 2
"""Seconds without a result after which a case hangs; a sound one takes about 50 ms."""


@dataclass
class Report:
    """What happened. `failures` carry seed and number; `slowest` and `largest` are (seconds or bytes, number)."""

    seed: int
    cases: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, -1)
    largest: tuple[int, int] = (0, -1)

    def add(self, said: dict[str, Any]) -> None:
        """One case."""
        self.cases += 1
        if said["outcome"] == "failed":
            self.failures.append({"seed": self.seed, **said})
        self.outcomes.update(said["outcome"].split())
        self.slowest = max(self.slowest, (said.get("seconds", 0.0), said["number"]))
        self.largest = max(self.largest, (said.get("growth", 0), said["number"]))


def run(seed: int, first: int, end: int, *, stop_at: float | None = None) -> Report:
    """Cases `first` to `end` of a seed; `stop_at`: no new ones after this time (of `time.monotonic`)."""
    report = Report(seed)
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        pristine = Path(folder) / "pristine"
        unpack(pristine)
        for said in _results(pristine, seed, first, end):
            report.add(said)
            if stop_at is not None and time.monotonic() > stop_at:
                break
    return report


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _results(pristine: Path, seed: int, first: int, end: int) -> Iterator[dict[str, Any]]:
    """A result a case, in order; after a crash or hang a new child goes on behind it."""
    while first < end:
        words = [sys.executable, "-m", "tests.world.fuzz.child", str(pristine), str(seed), str(first), str(end)]
        with tempfile.TemporaryFile() as errors:
            # A session of its own: whatever it starts ends with it.
            child = subprocess.Popen(
                words,
                cwd=ROOT,
                env={**os.environ, "RUST_BACKTRACE": "0"},
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            try:
                for said in _lines(child):
                    yield said
                    first = said["number"] + 1
            finally:
                hung = child.poll() is None and not _ended(child)
                child.kill()
                code = child.wait()
            if first < end:
                size = errors.seek(0, os.SEEK_END)
                errors.seek(max(0, size - 3000))
                last = errors.read().decode(errors="replace")
                what = f"hung for {CASE_S_MAX:g} s" if hung else f"the process ended with {code}"
                yield {"number": first, "outcome": "failed", "detail": f"{what}; its last words:\n{last}"}
                first += 1


def _ended(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(1.0)
    except subprocess.TimeoutExpired:
        return False
    return True


def _lines(child: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """What the child prints, until it ends or says nothing for too long."""
    assert child.stdout is not None
    waiting = b""
    while select.select([child.stdout], [], [], CASE_S_MAX)[0]:
        chunk = os.read(child.stdout.fileno(), 1 << 16)
        if not chunk:
            return
        *whole, waiting = (waiting + chunk).split(b"\n")
        yield from (json.loads(line) for line in whole)


def main() -> int:
    """Prints failures as they are at the end, then a summary; 1 when there was one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--seconds", type=float, help="stop after so long")
    options = parser.parse_args()
    first, end = options.first, options.first + options.cases
    if options.only is not None:
        first, end = options.only, options.only + 1
    started = time.monotonic()
    report = run(options.seed, first, end, stop_at=started + options.seconds if options.seconds else None)
    for failure in report.failures:
        detail = failure.pop("detail")
        print(json.dumps(failure), detail, sep="\n", end="\n\n")
    for word, count in report.outcomes.most_common():
        print(f"{count:8} {word}")
    seconds, slow = report.slowest
    grown, large = report.largest
    print(f"{report.cases} cases in {time.monotonic() - started:.0f} s, {len(report.failures)} failed")
    print(f"slowest: case {slow}, {seconds} s; most memory: case {large}, {grown >> 20} MiB more")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
