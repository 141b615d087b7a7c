"""The sample that a usual run takes has every layer, and the tests that notice each mutant."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.mutations.__main__ import modules_of
from tests.mutations.mutants import MUTANTS
from tests.support.golden_tables import GOLDEN
from tests.support.places import ROOT

ONLY_DEEP = {
    "interop/test_late_publish.py": "attempt/test_metadata_behind_a_lost_lock.py has the rule without Hudi",
    "interop/test_log_compaction_windows.py": "reading/test_incremental_log_compaction.py has the rule without Hudi",
    "interop/test_restored_plan.py": "archiving/test_choice.py has the rule without Hudi",
}
"""Files beside real Hudi that only a run of all tests takes, and what a usual run has of their rule."""
_VARIABLES = {"PYTEST_ADDOPTS", "PHANTOMBASE_ALL", "PHANTOMBASE_HISTORIES", "PHANTOMBASE_METADATA_HISTORIES"}


@pytest.fixture(scope="module")
def usual() -> Mapping[str, frozenset[str]]:
    """The tests of a usual run by their file below `tests`."""
    environment = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    tests: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        path, there, test = line.partition("::")
        if there and path.startswith("tests/"):
            tests.setdefault(path.removeprefix("tests/"), set()).add(test)
    return {path: frozenset(names) for path, names in tests.items()}


def test_every_folder_has_tests(usual: Mapping[str, frozenset[str]]) -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")} | {"unit"}
    assert folders - {path.split("/")[0] for path in usual} == set()


def test_every_subject_is_judged_by_hudi(usual: Mapping[str, frozenset[str]]) -> None:
    """Each file of tests beside real Hudi has some, but for those that are named here."""
    files = {f"interop/{path.name}" for path in (ROOT / "tests/interop").glob("test_*.py")}
    assert files - usual.keys() == ONLY_DEEP.keys()


@pytest.mark.parametrize(("version", "least"), [(9, 80), (8, 2), (6, 25)])
def test_each_table_version_is_judged_by_hudi(version: int, least: int, usual: Mapping[str, frozenset[str]]) -> None:
    mark = re.compile(rf"[\[-]v?{version}\b")
    found = {
        test for path, tests in usual.items() if path.startswith("interop/") for test in tests if mark.search(test)
    }
    assert len(found) >= least


def test_every_golden_table_is_read(usual: Mapping[str, frozenset[str]]) -> None:
    read = "".join(usual["reading/test_golden.py"])
    assert [name for name in GOLDEN if f"[{name}]" not in read] == []


def test_the_tests_that_are_to_notice_a_mutant_are_in_it(usual: Mapping[str, frozenset[str]]) -> None:
    named = {name for *_, tests in MUTANTS for name in tests.split()}
    files = {name: {path.removeprefix("tests/") for path in modules_of(ROOT, name)} for name in named}
    assert {name for name, paths in files.items() if not paths & usual.keys()} == set()
