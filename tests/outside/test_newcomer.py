"""What a newcomer does first: a fresh clone, an installation, and the commands of the first pages as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.project.doc_pages import COLUMNS, Story, comparable
from tests.support.places import ROOT
from tests.support.selection import deep

_PYTHON = """
import json, sys, traceback
scope = {}
for line in sys.stdin:
    try:
        exec(json.loads(line), scope)
        failed = ""
    except BaseException:
        failed = traceback.format_exc()
    print("\\0" + json.dumps(failed), flush=True)
"""
"""Runs blocks of a page as they come, in one scope."""


@dataclass(kw_only=True)
class InstalledStory(Story):
    """A page at work with the commands and the Python of an environment."""

    environment: Path
    interpreter: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        command = [str(self.environment / "bin/python"), "-c", _PYTHON]
        self.interpreter = subprocess.Popen(
            command, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def python(self, code: str) -> None:
        """Runs a block. AssertionError: it raised."""
        assert self.interpreter.stdin is not None
        assert self.interpreter.stdout is not None
        self.interpreter.stdin.write(f"{json.dumps(code)}\n")
        self.interpreter.stdin.flush()
        for line in self.interpreter.stdout:
            if line.startswith("\0"):
                assert json.loads(line[1:]) == "", line
                return
        raise AssertionError("the interpreter has ended")

    def call(self, name: str, words: list[str]) -> str:
        """Runs a command. AssertionError: it failed."""
        command = [str(self.environment / "bin" / name), *words]
        environment = {**os.environ, "COLUMNS": COLUMNS}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The clone, and an environment into which it was installed. What it depends on comes from that of the tests."""
    folder = tmp_path_factory.mktemp("newcomer")
    clone, made = folder / "clone", folder / "environment"
    if subprocess.run(["git", "clone", "-q", "--no-tags", str(ROOT), str(clone)], check=False).returncode:
        pytest.skip("no repository is here to clone")
    venv.create(made, symlinks=True, with_pip=False)
    (site,) = (made / "lib").glob("python*/site-packages")
    here = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "dependencies.pth").write_text(f"{here}\n")
    install = [sys.executable, "-m", "pip", "--python", str(made / "bin/python"), "install", "-q", "--no-deps"]
    subprocess.run([*install, "--ignore-installed", str(clone)], check=True)
    return clone, made


@pytest.mark.parametrize("page", ["docs/start.md", pytest.param("README.md", marks=pytest.mark.deep)])
def test_a_page_from_a_fresh_clone(page: str, environment: tuple[Path, Path], tmp_path: Path) -> None:
    """Every command succeeds and prints what the page shows, but for times, instants, file ids and sizes."""
    clone, made = environment
    text = (clone / page).read_text()
    story = InstalledStory(tmp_path, environment=made)
    try:
        found: Any = story.play(text)
    finally:
        story.interpreter.kill()
        story.interpreter.communicate()
    assert comparable(found) == comparable(text)
    code = f"import phantombase; assert phantombase.__file__.startswith({str(made)!r}), phantombase.__file__"
    subprocess.run([made / "bin/python", "-c", code], check=True, cwd=tmp_path)


# The examples of deploy/examples run as they stand, and leave a table that reads right.


EXAMPLES = ROOT / "deploy/examples"
NAMES = sorted(p.stem for p in EXAMPLES.glob("*.py") if p.stem != "rides")
USUAL = ("async_in_job", "streaming")
"""A job of batches and a query; each of the others has a part of the first."""
COMPACTS = {"inline", "async_in_job", "streaming"}


@pytest.mark.spark
@pytest.mark.parametrize("name", [name if name in USUAL else deep(name) for name in NAMES])
def test_example(name: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "rides"), *([str(tmp_path / "checkpoint")] if name == "streaming" else [])]
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    table = Table.open(arguments[0])
    rows = read_table(table)
    last = {"write_only": 4, "schedule_only": 5, "inline": 5, "async_in_job": 8}.get(name)
    if last is not None:
        assert rows.num_rows == 1000 + last * 10
        assert max(rows["ts"].to_pylist()) == last
    else:
        assert rows.num_rows == 100
    timeline = table.load_timeline()
    assert bool([i for i in timeline.instants if i.action == "commit"]) is (name in COMPACTS)
    # What is requested at the very end is left to the next compactor; so is what a query was at when it was stopped.
    if name not in ("async_in_job", "streaming"):
        assert bool(timeline.pending_compactions) is (name == "schedule_only")
