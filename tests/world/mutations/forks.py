"""Runs of tests in forks of one warm process, which has imported everything but the product and its tests.

A fork with a mutant gets that one module with another text, and so does each Python process that its tests start:
they find a `sitecustomize` on their path."""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.places import ROOT, memory
from tests.world.mutations import mutated

RUN_S_MAX = 600
TEST_S_MAX = 120

_OWN = ("phantombase", "pyspark_phantombase", "tests", "__main__")
_EVERYTHING = """
import importlib, sys
import phantombase.compactor_daemon.cli.main, phantombase.timeline.cli.main, phantombase.writer_hooks
for name in importlib.import_module("tests.conftest").pytest_plugins:
    importlib.import_module(name)
print(*sys.modules)
"""


@dataclass(frozen=True)
class Run:
    """What came of a run: whether the tests passed (None: they could not be run), and the test that ran last."""

    passed: bool | None
    last: str
    seconds: float
    output: str
    in_time: bool = True


def warm_up() -> None:
    """Imports what product and tests import of others, and nothing of theirs."""
    command = [sys.executable, "-c", _EVERYTHING]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        if name.partition(".")[0] not in _OWN:
            with suppress(Exception):  # some modules are there by another name only
                importlib.import_module(name)
    gc.freeze()


def run(tests: Sequence[str], mutant: tuple[str, str] | None, everything: bool, until: float) -> Run:
    """Runs tests (files or node ids) up to the first failure; a test that hangs fails. Without those of real Hudi.
    `mutant` is the dotted name of a module and its text. `everything` takes the tests of a run of all tests. `until` is
    a moment of `time.monotonic`: a run is cut there, and is not `in_time`."""
    start = time.monotonic()
    limit = min(start + RUN_S_MAX, until)
    with tempfile.TemporaryDirectory(prefix="mutant-", dir=memory(), ignore_cleanup_errors=True) as name:
        folder = Path(name)
        pid = os.fork()
        if pid == 0:
            code: int = pytest.ExitCode.INTERNAL_ERROR
            try:
                code = _in_fork(folder, tests, mutant, everything)
            finally:
                os._exit(code)
        ended = _ends(pid, limit)
        os.kill(pid, signal.SIGKILL)  # it may have no group of its own yet
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what its tests have left
        status = os.waitpid(pid, 0)[1]
        at = folder / "at"
        last = at.read_text() if at.exists() else ""
        if ended:
            passed = {0: True, 5: True, 1: False}.get(os.waitstatus_to_exitcode(status))
        else:
            hangs = bool(last) and time.time() - at.stat().st_mtime > TEST_S_MAX
            passed = False if hangs else None
        output = (folder / "log").read_text(errors="replace") if (folder / "log").exists() else ""
        in_time = ended or passed is False or limit < until
        return Run(passed, last, time.monotonic() - start, output, in_time)


def _ends(pid: int, limit: float) -> bool:
    """Whether the process ends before that moment."""
    fd = os.pidfd_open(pid)
    try:
        return bool(select.select([fd], [], [], max(0.0, limit - time.monotonic()))[0])
    finally:
        os.close(fd)


def _in_fork(folder: Path, tests: Sequence[str], mutant: tuple[str, str] | None, everything: bool) -> int:
    os.setsid()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(ROOT)
    (folder / "examples").mkdir()
    os.environ.update(PHANTOMBASE_SEED="1", HYPOTHESIS_STORAGE_DIRECTORY=str(folder / "examples"))
    if everything:
        os.environ["PHANTOMBASE_ALL"] = "1"
    if mutant is not None:
        name, text = mutant
        (folder / "text").write_text(text)
        call = f"\n\ninstall({name!r}, {str(folder / 'text')!r})\n"
        (folder / "sitecustomize.py").write_text(Path(mutated.__file__).read_text() + call)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        mutated.install(name, str(folder / "text"))
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not interop", "--basetemp", str(folder / "tests")]
    options += ["-o", f"timeout={TEST_S_MAX}", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return pytest.main([*options, *tests], plugins=[_Last(folder / "at")])


class _Last:
    """Keeps the name of the test that was started last in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._path.write_text(nodeid)
