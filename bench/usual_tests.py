"""Measures README's test command: `python -m bench.usual_tests [--runs 3] [--record]`.

Runs `deploy/test.sh` that often, one run after the other, and compares what became of each test. Prints one JSON line:
seconds of pytest and of the whole command, CPU seconds, tests by outcome, and whether all runs had the same results.
`--record` writes the figures into README. Exit code 1: a run failed, or two runs differ.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from bench.report import machine

_ROOT = Path(__file__).resolve().parent.parent
_README = _ROOT / "README.md"
_SENTENCE = re.compile(r"(?<=<!-- made by bench\.usual_tests -->\n).*?(?=\n<!-- end -->)", re.DOTALL)
_BAD = ("failure", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of the test command: seconds, and the outcome of each test by its name."""

    tests_s: float
    whole_s: float
    cpu_s: float
    outcomes: dict[str, str]

    @property
    def is_good(self) -> bool:
        """Whether no test failed, and some ran."""
        return bool(self.outcomes) and not set(_BAD) & set(self.outcomes.values())


def outcomes(report: Path) -> tuple[float, dict[str, str]]:
    """The seconds of pytest, and the outcome of each test, from a JUnit file."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    found = {}
    for case in suite.iter("testcase"):
        tags = [child.tag for child in case if child.tag in ("skipped", *_BAD)]
        found[f"{case.get('classname')}::{case.get('name')}"] = tags[0] if tags else "passed"
    return float(suite.get("time", "0")), found


def one_run() -> Run:
    """Runs the command once, with what it prints on the standard error."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        environment = {**os.environ, "PYTEST_ADDOPTS": f"--junitxml={report}"}
        before, began = os.times(), time.monotonic()
        # The lowest versions write a report of their own first; the last one stays.
        subprocess.run(["bash", "deploy/test.sh"], cwd=_ROOT, env=environment, stdout=sys.stderr, check=False)
        whole_s, after = time.monotonic() - began, os.times()
        tests_s, found = outcomes(report)
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(tests_s=tests_s, whole_s=whole_s, cpu_s=cpu_s, outcomes=found)


def sentence(runs: Sequence[Run]) -> str:
    """What README says of them."""
    passed = Counter(runs[-1].outcomes.values())["passed"]
    minutes = ", ".join(f"{run.tests_s / 60:.1f}" for run in runs)
    whole = ", ".join(f"{run.whole_s / 60:.1f}" for run in runs)
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return (
        f"{passed:,} tests in {minutes} minutes; with linters, type checker and the lowest versions {whole} minutes\n"
        f"({count} on {machine()['cores']} cores: `python -m bench.usual_tests --record`)."
    )


def main(arguments: Sequence[str]) -> int:
    """Measures, prints one JSON line, and writes README where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args(arguments)
    runs = [one_run() for _ in range(options.runs)]
    same = all(run.outcomes == runs[0].outcomes for run in runs)
    line = {
        "bench": "usual_tests",
        "machine": machine(),
        "tests_s": [round(run.tests_s, 1) for run in runs],
        "whole_s": [round(run.whole_s, 1) for run in runs],
        "cpu_s": [round(run.cpu_s) for run in runs],
        "outcomes": Counter(runs[-1].outcomes.values()),
        "same_results": same,
    }
    print(json.dumps(line))
    good = same and all(run.is_good for run in runs)
    if options.record and good:
        _README.write_text(_SENTENCE.sub(lambda _: sentence(runs), _README.read_text()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
