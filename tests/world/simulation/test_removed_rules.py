"""Each invariant of the protocol is removed once, and the simulation shows what it is there for.

The ninth, "unknown is never no", is the business of `tests/compactor_daemon/attempt/test_faults.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from phantombase.compactor_daemon.attempt import attempt, inputs, publish
from phantombase.compactor_daemon.attempt import outcome as records
from phantombase.compactor_daemon.attempt.attempt import Attempt
from phantombase.compactor_daemon.attempt.outcome import CommitDecision, read_outcome
from phantombase.compactor_daemon.attempt.validity import Assessment, Validity
from phantombase.timeline.format.compaction_plan import CompactionOperation
from phantombase.timeline.format.instant import Instant, next_time
from phantombase.timeline.instants.clock_check import Zone, ZoneVerdict
from phantombase.timeline.instants.reserved_times import attempt_folder, attempts, instant_folder
from phantombase.timeline.instants.table_clock import TableClock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileGroup, FileSlice, TableView
from tests.support.selection import deep
from tests.world.simulation.explore import Twist
from tests.world.simulation.played import Stage
from tests.world.simulation.searching import Search, seeds, turns
from tests.world.simulation.story import StorageKind


def believed(storage: Storage, instant: str, number: int, record: bytes, nonce: str) -> None:
    """In the place of `write_outcome`: whoever comes second believes that it won."""
    storage.put_if_absent(f"{attempt_folder(instant, number)}/outcome", record)


def folder_removed(storage: Storage, instant: str, by: str) -> list[int]:
    """In the place of `declare_dead`: the folder of an undecided attempt is removed, as if that stopped its owner."""
    undecided = [n for n in attempts(storage, instant) if read_outcome(storage, instant, n) is None]
    for number in undecided:
        storage.delete_folder(attempt_folder(instant, number))
    return undecided


def staged_removed(storage: Storage, instant: str, by: str) -> list[int]:
    """In the place of `declare_dead`: what the dead have staged is removed too, though one may have been decided."""
    undecided = [n for n in attempts(storage, instant) if read_outcome(storage, instant, n) is None]
    for number in undecided:
        folder = attempt_folder(instant, number)
        for entry in storage.list(folder):
            if entry.name.endswith((".parquet", ".ok")):
                storage.delete(f"{folder}/{entry.name}")
    return _declare_dead(storage, instant, by)


def named_before(
    table: Table, begun: Attempt, done: Any, schema: Any, lock: Any, properties: Mapping[str, str]
) -> CommitDecision:
    """In the place of `decide_commit`: files get their final names first."""
    for one in done:
        table.storage.place(one.staged, one.final)
    return _decide_commit(table, begun, done, schema, lock, properties)


def records_removed(storage: Storage, instant: str, elsewhere: Collection[str] = ()) -> None:
    """In the place of `remove_staged`: an instant that is completed needs no records any more."""
    _remove_staged(storage, instant, elsewhere)
    storage.delete_folder(instant_folder(instant))


def planned_only(view: TableView, group: FileGroup | None, instant: str, operation: CompactionOperation) -> FileSlice:
    """In the place of the closure: the logs that the plan names."""
    slice_ = _closed(view, group, instant, operation)
    return replace(slice_, logs=tuple(log for log in slice_.logs if str(log.name) in operation.delta_file_paths))


def tombstone_removed(storage: Storage, instant: str) -> None:
    """In the place of the last step of unscheduling: nothing is left of the instant."""
    storage.delete_folder(instant_folder(instant))


def nobody(*_: object) -> list[Any]:
    """In the place of a snapshot: it finds nothing."""
    return []


def nothing(*_: object, **__: object) -> None:
    """In the place of something that is to be done."""


_declare_dead = records.declare_dead
_decide_commit = attempt.decide_commit
_remove_staged = publish.remove_staged
_closed = inputs._closed
"""Searches with seeds begin at one that shows it: the first before it only take time."""
_CROWD = seeds(36, first=4, compactors=3, deaths=0, hudi=False)
_TWO = turns("compactor1 compactor2")
_OBJECTS = seeds(60, first=13, compactors=3, hudi=False, storage=StorageKind.OBJECTS, losses=2, locked=True)
_MOVES = seeds(40, compactors=2, hudi=False, storage=StorageKind.MOVES)
REMOVED: list[tuple[str, Search, dict[str, Any], str]] = [
    (
        "1: who comes second has lost",
        _CROWD,
        {"attempt.attempt.write_outcome": believed},
        "final name before the decision",
    ),
    (
        "1: outcome is a record, not a folder",
        _TWO,
        {"attempt.attempt.declare_dead": folder_removed},
        "decided|decision|deleted",
    ),
    (
        "2: no final name before the decision",
        _TWO,
        {"attempt.compact_or_resume.decide_commit": named_before},
        "final name before the decision",
    ),
    (
        "3: closure",
        turns("service writer", version=6, locked=False, before="write", twists=frozenset({Twist.SWITCH})),
        {"attempt.inputs._closed": planned_only},
        "lost",
    ),
    (
        "4: barrier",
        turns("writer service", locked=False, before="write", twists=frozenset({Twist.SWITCH})),
        {"attempt.compaction.Compaction.waiting": nobody},
        "lost",
    ),
    ("5: records stay", _TWO, {"attempt.publish.remove_staged": records_removed}, "are both decided"),
    (
        "6: a time is used once",
        turns("unscheduler scheduler"),
        {"undo.unschedule.remove_staged": tombstone_removed},
        "was used before",
    ),
    (
        "7: one base file",
        seeds(50, first=129, hudi=True, locked=True, unschedules=False, services=frozenset(), compactors=2),
        {
            "attempt.publish.remove_placed": nothing,
            "attempt.slice_record.remove_placed": nothing,
            "attempt.publish.remove_strays": nothing,
        },
        "files nobody names",
    ),
    ("8: staged data stays", _TWO, {"attempt.attempt.declare_dead": staged_removed}, "was deleted"),
    (
        "1, objects",
        _OBJECTS,
        {"attempt.attempt.write_outcome": believed},
        "final name before the decision|are both decided",
    ),
    ("5, objects", _OBJECTS, {"attempt.publish.remove_staged": records_removed}, "outcome was removed|both decided"),
    (
        "2, moved files",
        _MOVES,
        {"attempt.compact_or_resume.decide_commit": named_before},
        "final name before the decision",
    ),
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


# Each mend of what readers of the protocol had found is taken out once, and the simulation finds it again.
#
# The mends go by the names that the protocol's documents give to what went wrong.


def stands(*_: object) -> Assessment:
    """In the place of the question whether a decision stands."""
    return Assessment(validity=Validity.VALID)


def nothing_left(*_: object) -> bool:
    """In the place of taking back: whatever was placed stays."""
    return True


def planned_always(view: TableView, group: FileGroup | None, instant: str, operation: CompactionOperation) -> FileSlice:
    """In the place of the closure: a replaced file group is merged as any other."""
    return _closed(_no_facts(view), group, instant, operation)


def _no_facts(view: TableView) -> TableView:
    return replace(view, facts=replace(view.facts, replaced={}))


def everything_there(table: Table, decision: CommitDecision) -> frozenset[tuple[str, str]]:
    """In the place of the file groups of the plan: all of its partitions."""
    partitions = {o.partition_path for o in table.compaction_plan(decision.instant).operations}
    names = ((p, e.name.split("_")[0]) for p in partitions for e in table.storage.list(p) if "_" in e.name)
    return frozenset(names)


def every_group(decision: CommitDecision, *_: object) -> CommitDecision:
    """In the place of leaving out what was replaced."""
    return decision


def any_zone(*_: object) -> ZoneVerdict:
    """In the place of the look at the zone of the table's writers."""
    return ZoneVerdict(zone=Zone.UNKNOWN)


def time_above(clock: TableClock, used: Sequence[Any], *_: object, **__: object) -> str:
    """In the place of the choice of a time that refuses one in the future."""
    return next_time(clock.now(), (one.time for one in used))


def every_completed(table: Table, instant: str, *_: object) -> list[Instant]:
    """In the place of those of the job."""
    return table.files.completed_commits(instant)


def commits_only(_: Table, done: Instant) -> bool:
    """In the place of knowing log compactions by their commit."""
    return done.action == "commit"


def true(*_: object) -> bool:
    """In the place of a question."""
    return True


def false(*_: object) -> bool:
    """In the place of a question."""
    return False


_QUIET = {"hudi": False, "unschedules": False, "pauses": 0, "faults": 0}


def beside(*services: str, count: int = 100, **story: Any) -> Search:
    """Stories of so many seeds beside these services of Hudi, and a publisher that sleeps."""
    return seeds(count, services=frozenset(services), **{**_QUIET, "locked": True, "deaths": 0, **story})


_RESTORE = beside("restore", "sleep", count=30, first=17, compactors=2, daemons=0)
_FALLEN = turns(
    "compactor operator", before="write savepoint write schedule", twists=frozenset({Twist.SWITCH, Twist.KILL})
)
_MINOR = beside(count=10, version=9, minor=0.9)
_REPLACED = beside("replace", "clean", "archive", count=30, first=5)
_ELSEWHERE = beside("elsewhere", count=10, partitions=2, groups=2)
_SAME = beside("same", count=8, locked=False, writers=0, compactors=2)
_ZONES = beside("zones", count=15, version=9, writers=0)
_CLEANED = beside("replace", "versions", "archive", "sleep", count=200, compactors=2, daemons=0)
_BLIND = beside("blind", count=20, version=6, writers=0, deaths=2, compactors=2)
_CLOCK = "phantombase.timeline.instants.table_clock"
REMOVED_MENDS: list[tuple[str, Search, dict[str, Any], str]] = [
    ("F1: merged again where a write was left out", _BLIND, {"attempt.attempt.is_current": true}, "lost"),
    (
        "F2: a decision stands",
        _RESTORE,
        {"attempt.publish.validity_of": stands, "attempt.revert.validity_of": stands},
        "lost|does not exist",
    ),
    ("F3: only the plan's file groups", _SAME, {"attempt.publish._groups": everything_there}, "lost"),
    ("F3: told apart", _SAME, {"attempt.slice_record.completed_commits": every_completed}, "still pending"),
    (
        "F4: a place is tried first",
        _ELSEWHERE,
        {"phantombase.timeline.storage.staged_file.probe_partitions": nothing},
        "still pending",
    ),
    ("F5: taken back", _FALLEN, {"attempt.finish._reverted": nothing_left}, "nobody names|lost"),
    (
        "F7: the writers' zone",
        _ZONES,
        {f"{_CLOCK}.check_zone": any_zone, f"{_CLOCK}.TableClock._chosen": time_above},
        "lost",
    ),
    ("F8: replaced gets no file", _CLEANED, {"attempt.compaction.without_groups": every_group}, "not acknowledged"),
    (
        "log compactions: known by their commit",
        _MINOR,
        {"attempt.slice_record._is_service": commits_only},
        "still pending|left",
    ),
    ("F9: replaced is nothing to do", _REPLACED, {"attempt.inputs._closed": planned_always}, "still pending"),
]


@pytest.mark.parametrize(
    ("search", "broken", "shows"),
    [deep(*r[1:]) if r[1] is _CLEANED else r[1:] for r in REMOVED_MENDS],
    ids=[r[0] for r in REMOVED_MENDS],
)
def test_without_a_mend(
    search: Search, broken: dict[str, Any], shows: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run fails that does not with the mend in its place."""
    for name, double in broken.items():
        path = name if name.startswith("phantombase.") else f"phantombase.compactor_daemon.{name}"
        monkeypatch.setattr(path, double)
    with pytest.raises(Exception, match=shows) as caught:
        search(stage)
    print(repr(caught.value)[:200], *getattr(caught.value, "__notes__", ()))


@pytest.mark.deep
@pytest.mark.parametrize("search", {r[1]: None for r in REMOVED_MENDS})
def test_with_the_mends(search: Search, stage: Stage) -> None:
    """With all mends in their places none of these runs fails; a usual run has such runs in the other files here."""
    search(stage)
