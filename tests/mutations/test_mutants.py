"""Mutants keep up with the code: each changes what is there, and the protocol has some in every file."""

from __future__ import annotations

from collections import Counter

from tests.mutations.__main__ import modules_of, source_path
from tests.mutations.mutants import MUTANTS
from tests.support.places import ROOT

PROTOCOL = (
    "compactor_daemon/attempt/attempt",
    "compactor_daemon/attempt/decision",
    "compactor_daemon/decisions/hudi_executors",
    "compactor_daemon/attempt/inputs",
    "compactor_daemon/attempt/publish",
    "compactor_daemon/records/fate",
    "compactor_daemon/attempt/remerge",
    "compactor_daemon/attempt/retire",
    "compactor_daemon/execution/slice_task",
    "compactor_daemon/decisions/standing",
    "compactor_daemon/decisions/take_back",
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


def test_the_tests_that_are_to_notice_a_mutant_are_there() -> None:
    missing = {name for *_, tests in MUTANTS for name in tests.split() if not modules_of(ROOT, name)}
    assert missing == set()


def test_no_mutant_is_there_twice() -> None:
    assert [m for m, count in Counter(m[:3] for m in MUTANTS).items() if count > 1] == []


def test_every_file_of_the_protocol_has_mutants() -> None:
    count = Counter(module for module, *_ in MUTANTS)
    assert {module: count[module] for module in PROTOCOL if count[module] < LEAST} == {}
