"""The sample that a usual run takes has every layer, and the tests that notice each mutant."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.support import pieces
from tests.support.golden_tables import GOLDEN
from tests.support.places import ROOT
from tests.support.selection import ALL, COLLECTED, ONLY_ALL, PARTS, PIECES, STILL_USUAL, parts_of, place
from tests.world.mutations.__main__ import modules_of
from tests.world.mutations.mutants import MUTANTS

ONLY_ALL_NOTICE = {"spark_cluster", "hdfs_store"}
"""Modules of tests that mutants name, and that only a run of all tests takes: they start a cluster."""


@pytest.fixture(scope="module")
def usual(pytestconfig: pytest.Config) -> Mapping[str, frozenset[str]]:
    """The tests of a usual run by their file below `tests`: this run's own; where it is of a few tests, collected."""
    found = pytestconfig.stash[COLLECTED]
    if pytestconfig.args == pytestconfig.getini("testpaths"):
        chosen = [nodeid for nodeid, is_usual in found.items() if is_usual]
    else:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PHANTOM"))}
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        chosen = [line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line]
    tests: dict[str, set[str]] = {}
    for nodeid in chosen:
        path, _, test = place(nodeid).partition("::")
        tests.setdefault(path, set()).add(test)
    return {path: frozenset(names) for path, names in tests.items()}


def _files_of_tests() -> set[str]:
    """The files of tests below `tests`."""
    return {str(path.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("test_*.py")}


def _folder_of(path: str) -> str:
    """The folder that a file of tests lies in, the upper two of them."""
    return "/".join(path.split("/")[:-1][:2])


def test_every_folder_has_tests(usual: Mapping[str, frozenset[str]]) -> None:
    folders = {_folder_of(path) for path in _files_of_tests()}
    assert folders - {_folder_of(path) for path in usual} == {"hudi/judge"}


def test_what_is_still_usual_is_taken(usual: Mapping[str, frozenset[str]]) -> None:
    names = [f"{path}::{test}" for path, tests in usual.items() for test in tests]
    assert [one for one in STILL_USUAL if not any(name.startswith(one) for name in names)] == []


def test_hudi_is_asked_in_each_of_its_versions(usual: Mapping[str, frozenset[str]]) -> None:
    journeys = {test for path, tests in usual.items() if path.startswith("hudi/journeys/") for test in tests}
    assert journeys == {"test_journey[9]", "test_journey[6]"}


def test_what_only_a_run_of_all_tests_takes_is_there() -> None:
    """Each of these places has a file, so that no name outlives its tests."""
    files = _files_of_tests()
    named = [*ONLY_ALL, *STILL_USUAL]
    assert [one for one in named if not any(path.startswith(one.partition("::")[0]) for path in files)] == []


def test_each_test_is_in_one_part_of_a_run_of_all_tests() -> None:
    """And no pattern of a part outlives its tests."""
    parts = {path: parts_of(path) for path in sorted(_files_of_tests())}
    assert {path: found for path, found in parts.items() if len(found) != 1} == {}
    patterns = " ".join(PARTS).split()
    assert [one for one in patterns if not any(re.match(one, path) for path in parts)] == []
    assert parts["hudi/cases/test_pyspark35.py"] == [1]


def test_each_test_is_in_one_piece_of_its_part() -> None:
    """Of about the same time, and no seconds are noted of tests that are gone."""
    assert pieces.without_tests(_files_of_tests()) == []
    known, found = {"a.py::long": 50.0, "b.py": 2.0}, [f"tests/b.py::{n}" for n in range(30)]
    shares = pieces.shares([*found, "tests/a.py::long", "tests/c.py::x"], 3, known)
    assert [sum(pieces.seconds_of(one, known) for one in shares if shares[one] == n) for n in range(3)] == [50, 31, 30]
    assert len({share for one, share in shares.items() if one in found}) == 2
    known |= {"b.py": 0.1, "c.py": 0.3}
    assert pieces.shares([*found, "tests/c.py::x"], 7, known) == pieces.shares(
        ["tests/c.py::x", *found[::-1]], 7, known
    )
    assert set(pieces.shares(found, 2, known, whole=True).values()) == {0}
    assert len(PIECES) == len(PARTS)


def test_the_turns_of_ci_are_pieces() -> None:
    (turns,) = re.findall(r"turns=\((.*?)\)", (ROOT / ".ci/run").read_text(), re.DOTALL)
    named = [one.split(".") for one in turns.split()]
    assert [one for one in named if not 1 <= int(one[1]) <= PIECES[int(one[0]) - 1]] == []


def test_the_usual_run_is_not_larger_than_said(usual: Mapping[str, frozenset[str]]) -> None:
    assert ALL or sum(map(len, usual.values())) <= 7000


def test_every_golden_table_is_read(usual: Mapping[str, frozenset[str]]) -> None:
    read = "".join(usual["timeline/read/test_golden.py"])
    assert [name for name in GOLDEN if f"[{name}]" not in read] == []


def test_the_tests_that_are_to_notice_a_mutant_are_in_it(usual: Mapping[str, frozenset[str]]) -> None:
    named = {name for *_, tests in MUTANTS for name in tests.split()}
    files = {name: {path.removeprefix("tests/") for path in modules_of(ROOT, name)} for name in named}
    assert {name for name, paths in files.items() if not paths & usual.keys()} == ONLY_ALL_NOTICE
