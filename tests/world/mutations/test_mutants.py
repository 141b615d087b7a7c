"""Mutants keep up with the code: each changes what is there, and the protocol has some in every file."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tests.world.mutations.__main__ import by_turns, dotted, modules_of, source_path
from tests.world.mutations.mutants import MUTANTS
from tests.world.mutations.mutated import install

PROTOCOL = (
    "compactor_daemon/attempt/attempt",
    "compactor_daemon/attempt/clustering",
    "compactor_daemon/attempt/compaction",
    "compactor_daemon/clustering/cancel",
    "compactor_daemon/attempt/hudi_executors",
    "compactor_daemon/attempt/inputs",
    "compactor_daemon/attempt/publish",
    "compactor_daemon/attempt/outcome",
    "compactor_daemon/attempt/finish",
    "compactor_daemon/attempt/publish",
    "compactor_daemon/attempt/slice_task",
    "compactor_daemon/attempt/revert",
    "compactor_daemon/attempt/validity",
    "timeline/locks/heartbeat",
    "timeline/instants/archived_timeline",
    "timeline/locks/table_lock",
    "timeline/instants/reserved_times",
    "timeline/storage/staged_file",
    "timeline/table/table",
    "timeline/view/view_loader",
    "timeline/locks/zookeeper_lock",
)
LEAST = 5


def test_the_text_that_a_mutant_changes_stands_once_in_its_file() -> None:
    """Else it is stale: give it the rule's new text, or take it out with the rule."""
    stale = [
        (module, old)
        for module, old, new, _ in MUTANTS
        if (ROOT / source_path(module)).read_text().count(old) != 1 or old == new
    ]
    assert stale == []


def test_a_mutant_is_python_with_names_that_exist(tmp_path: Path) -> None:
    """Else every test notices it. Asked of mutants that name what their file does not, or that only remove."""
    texts = {module: (ROOT / source_path(module)).read_text() for module, *_ in MUTANTS}
    words = {module: set(re.findall(r"\w+", text)) for module, text in texts.items()}
    for number, (module, old, new, _) in enumerate(MUTANTS):
        if not new.strip() or not words[module].issuperset(re.findall(r"\w+", new)):
            (tmp_path / f"{number}_{module.rpartition('/')[2]}.py").write_text(texts[module].replace(old, new))
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select=F821"]
    said = subprocess.run([*ruff, str(tmp_path)], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


def test_the_tests_that_are_to_notice_a_mutant_are_there() -> None:
    missing = {name for *_, tests in MUTANTS for name in tests.split() if not modules_of(ROOT, name)}
    assert missing == set()


def test_no_mutant_is_there_twice() -> None:
    assert [m for m, count in Counter(m[:3] for m in MUTANTS).items() if count > 1] == []


def test_every_file_of_the_protocol_has_mutants() -> None:
    count = Counter(module for module, *_ in MUTANTS)
    assert {module: count[module] for module in PROTOCOL if count[module] < LEAST} == {}


def test_turns_come_to_every_mutant_once() -> None:
    taken = [m for turn in range(100, 125) for m in by_turns(MUTANTS[:1500], 60, turn)]
    assert sorted(taken) == sorted(MUTANTS[:1500])


def test_a_mutant_is_imported_instead_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert importlib.import_module(dotted("compactor_daemon/cleaning/choice"))
    (tmp_path / "mutant_of_this.py").write_text("rule = True\n")
    (tmp_path / "text").write_text("rule = False\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    install("mutant_of_this", str(tmp_path / "text"))
    assert not importlib.import_module("mutant_of_this").rule
    with pytest.raises(RuntimeError):
        install("mutant_of_this", str(tmp_path / "text"))
