"""Breaks one rule of the product at a time and runs the tests of that rule: a mutant that lives is a rule untested.

    python -m tests.mutations.__main__ [WORD ...]     only mutants whose file or text holds one of the words

Works on copies of a snapshot, whose tests must pass first. A mutant whose text is no longer in the code, or is
there more than once, is `stale`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.mutations.mutants import MUTANTS
from tests.mutations.mutants.mutant import Mutant
from tests.support.places import ROOT

WORKERS = 2
RUN_S_MAX = 300


def copied(source: Path, target: Path) -> Path:
    """The packages a test run needs."""
    ignored = shutil.ignore_patterns("__pycache__", "golden")
    for package in ("phantombase", "timeline", "compactor_daemon", "writer_hooks", "pyspark_phantombase", "tests"):
        shutil.copytree(source / package, target / package, symlinks=True, ignore=ignored)
    (target / "tests" / "golden").symlink_to(ROOT / "tests" / "golden")
    shutil.copy(source / "pyproject.toml", target)
    return target


def source_path(module: str) -> str:
    """The file of a mutant's module, relative to the root."""
    return f"{module}.py"


def modules_of(folder: Path, tests: str) -> list[str]:
    """The files of test modules, relative to the folder."""
    names = ["/".join((*name.split("/")[:-1], f"test_{name.split('/')[-1]}.py")) for name in tests.split()]
    return [str(path.relative_to(folder)) for name in names for path in (folder / "tests").rglob(name)]


def passes(folder: Path, tests: str) -> bool | None:
    """Whether the test modules pass there; None when they could not be run. Hanging is failing.

    Tests with real Hudi are left out, also where they are in a module of the same name.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not interop"]
    files = modules_of(folder, tests)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            command + files, cwd=folder, env=environment, capture_output=True, timeout=RUN_S_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return {0: True, 1: False}.get(run.returncode)


def outcome(mutant: Mutant, snapshot: Path) -> str:
    """`killed`, `SURVIVED`, `stale` or `broken` (no test could run) for one mutant, in a copy of its own."""
    module, old, new, tests = mutant
    path = source_path(module)
    source = (snapshot / path).read_text()
    if source.count(old) != 1:
        return "stale"
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(snapshot, Path(folder))
        (copy / path).write_text(source.replace(old, new))
        return {True: "SURVIVED", False: "killed", None: "broken"}[passes(copy, tests)]


def main(words: list[str]) -> int:
    """Runs the chosen mutants on a snapshot whose tests pass, two at a time; 1 unless all are killed."""
    chosen = [m for m in MUTANTS if not words or any(w in m[0] or w in m[1] for w in words)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        snapshot = copied(ROOT, Path(folder))
        names = sorted({name for m in chosen for name in m[3].split()})
        # One by one: all together may take longer than a run of tests may.
        good = pool.map(partial(passes, snapshot), names)
        failing = [name for name, passed in zip(names, good, strict=True) if not passed]
        if failing:
            print(f"tests fail, or take over {RUN_S_MAX} s, without any mutant: {', '.join(failing)}")
            return 1
        bad = 0
        for (module, old, new, _), result in zip(chosen, pool.map(lambda m: outcome(m, snapshot), chosen), strict=True):
            bad += result != "killed"
            print(f"{result:9} {module}: {old.strip()!r} -> {new.strip()!r}", flush=True)
    print(f"{len(chosen) - bad} of {len(chosen)} killed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
