"""Each invariant of the protocol is removed once, and the simulation shows what it is there for.

The ninth, "unknown is never no", is the business of `tests/compactor_daemon/attempt/test_faults.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from phantombase.compactor_daemon.attempt import decision, inputs, retire
from phantombase.compactor_daemon.attempt.attempt import Attempt
from phantombase.compactor_daemon.records import fate as records
from phantombase.compactor_daemon.records.fate import Go, read_fate
from phantombase.timeline.format.compaction_plan import CompactionOperation
from phantombase.timeline.instants.attempt_names import attempt_folder, attempts, instant_folder
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileGroup, FileSlice, TableView
from tests.world.simulation.explore import Twist
from tests.world.simulation.played import Stage
from tests.world.simulation.searching import Search, seeds, turns
from tests.world.simulation.story import StorageKind


def believed(storage: Storage, instant: str, number: int, record: bytes, nonce: str) -> None:
    """In the place of `write_fate`: whoever comes second believes that it won."""
    storage.put_if_absent(f"{attempt_folder(instant, number)}/fate", record)


def folder_removed(storage: Storage, instant: str, by: str) -> list[int]:
    """In the place of `declare_dead`: the folder of an undecided attempt is removed, as if that stopped its owner."""
    undecided = [n for n in attempts(storage, instant) if read_fate(storage, instant, n) is None]
    for number in undecided:
        storage.delete_folder(attempt_folder(instant, number))
    return undecided


def staged_removed(storage: Storage, instant: str, by: str) -> list[int]:
    """In the place of `declare_dead`: what the dead have staged is removed too, though one may have been decided."""
    undecided = [n for n in attempts(storage, instant) if read_fate(storage, instant, n) is None]
    for number in undecided:
        folder = attempt_folder(instant, number)
        for entry in storage.list(folder):
            if entry.name.endswith((".parquet", ".ok")):
                storage.delete(f"{folder}/{entry.name}")
    return _declare_dead(storage, instant, by)


def named_before(table: Table, begun: Attempt, done: Any, schema: Any, lock: Any, properties: Mapping[str, str]) -> Go:
    """In the place of `decide_go`: files get their final names first."""
    for one in done:
        table.storage.place(one.staged, one.final)
    return _decide_go(table, begun, done, schema, lock, properties)


def records_removed(storage: Storage, instant: str) -> None:
    """In the place of `remove_staged`: an instant that is completed needs no records any more."""
    _remove_staged(storage, instant)
    storage.delete_folder(instant_folder(instant))


def planned_only(view: TableView, group: FileGroup | None, instant: str, operation: CompactionOperation) -> FileSlice:
    """In the place of the closure: the logs that the plan names."""
    slice_ = _closed(view, group, instant, operation)
    return replace(slice_, logs=tuple(log for log in slice_.logs if str(log.name) in operation.delta_file_paths))


def tombstone_removed(storage: Storage, instant: str) -> None:
    """In the place of the last step of unscheduling: nothing is left of the instant."""
    storage.delete_folder(instant_folder(instant))


def nobody(*_: object) -> list[Any]:
    """In the place of a look: it finds nothing."""
    return []


def nothing(*_: object, **__: object) -> None:
    """In the place of something that is to be done."""


_declare_dead = records.declare_dead
_decide_go = decision.decide_go
_remove_staged = retire.remove_staged
_closed = inputs._closed
_CROWD = seeds(36, first=4, compactors=3, deaths=0, hudi=False)
_TWO = turns("compactor1 compactor2")
_OBJECTS = seeds(60, compactors=3, hudi=False, storage=StorageKind.OBJECTS, losses=2, locked=True)
_MOVES = seeds(40, compactors=2, hudi=False, storage=StorageKind.MOVES)
REMOVED: list[tuple[str, Search, dict[str, Any], str]] = [
    ("1: who comes second has lost", _CROWD, {"attempt.decision.write_fate": believed}, "final name before go"),
    ("1: fate is a record, not a folder", _TWO, {"attempt.attempt.declare_dead": folder_removed}, "go|deleted"),
    ("2: no final name before go", _TWO, {"attempt.compact_instant.decide_go": named_before}, "final name before go"),
    (
        "3: closure",
        turns("service writer", version=6, locked=False, before="write", twists=frozenset({Twist.SWITCH})),
        {"attempt.inputs._closed": planned_only},
        "lost",
    ),
    (
        "4: barrier",
        turns("writer service", locked=False, before="write", twists=frozenset({Twist.SWITCH})),
        {"attempt.attempt._pending_of": nobody},
        "lost",
    ),
    ("5: records stay", _TWO, {"attempt.retire.remove_staged": records_removed}, "are both decided go"),
    (
        "6: a time is used once",
        turns("unscheduler scheduler"),
        {"removal.unschedule.remove_staged": tombstone_removed},
        "was used before",
    ),
    (
        "7: one base file",
        seeds(95, first=205, hudi=True, locked=True, unschedules=False, services=frozenset(), compactors=2),
        {
            "attempt.publish.remove_placed": nothing,
            "attempt.retire.remove_placed": nothing,
            "attempt.retire._remove_strays": nothing,
        },
        "files nobody names",
    ),
    ("8: staged data stays", _TWO, {"attempt.attempt.declare_dead": staged_removed}, "was deleted"),
    ("1, objects", _OBJECTS, {"attempt.decision.write_fate": believed}, "final name before go|are both decided go"),
    ("5, objects", _OBJECTS, {"attempt.retire.remove_staged": records_removed}, "fate was taken back|both decided go"),
    ("2, moved files", _MOVES, {"attempt.compact_instant.decide_go": named_before}, "final name before go"),
]


@pytest.mark.parametrize(("search", "broken", "shows"), [r[1:] for r in REMOVED], ids=[r[0] for r in REMOVED])
def test_without_it(
    search: Search, broken: dict[str, Any], shows: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run fails that does not with the rule in its place."""
    for name, double in broken.items():
        monkeypatch.setattr(f"phantombase.compactor_daemon.{name}", double)
    with pytest.raises(Exception, match=shows):
        search(stage)


@pytest.mark.deep
@pytest.mark.parametrize("search", {r[1]: None for r in REMOVED})
def test_with_them(search: Search, stage: Stage) -> None:
    """With all rules in their places none of these runs fails; a usual run has such runs in the other files here."""
    search(stage)
