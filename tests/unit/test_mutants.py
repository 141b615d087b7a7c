"""Mutants keep up with the code: each changes what is there, and the protocol has some in every file."""

from __future__ import annotations

from collections import Counter

from tests.mutants import MUTANTS
from tests.mutations import modules_of, source_path
from tests.places import ROOT

PROTOCOL = (
    "compactor_daemon/attempt", "compactor_daemon/decision", "compactor_daemon/foreign", "compactor_daemon/inputs",
    "compactor_daemon/publish", "compactor_daemon/records", "compactor_daemon/restore", "compactor_daemon/retire",
    "compactor_daemon/slice_task", "compactor_daemon/standing", "compactor_daemon/take_back", "heartbeat", "history",
    "lock", "reserved_times", "staged", "table", "view_loader", "zookeeper_lock",
)  # fmt: skip
LEAST = 5


def test_the_text_that_a_mutant_changes_stands_once_in_its_file() -> None:
    """Else it is stale: give it the rule's new text, or take it out with the rule."""
    stale = [
        (module, old)
        for module, old, new, _ in MUTANTS
        if (ROOT / source_path(module)).read_text().count(old) != 1 or old == new
    ]
    assert stale == []


def test_the_tests_that_are_to_notice_a_mutant_are_there() -> None:
    missing = {name for *_, tests in MUTANTS for name in tests.split() if not modules_of(ROOT, name)}
    assert missing == set()


def test_no_mutant_is_there_twice() -> None:
    assert [m for m, count in Counter(m[:3] for m in MUTANTS).items() if count > 1] == []


def test_every_file_of_the_protocol_has_mutants() -> None:
    count = Counter(module for module, *_ in MUTANTS)
    assert {module: count[module] for module in PROTOCOL if count[module] < LEAST} == {}
