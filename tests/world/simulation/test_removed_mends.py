"""Each mend of what readers of the protocol had found is taken out once, and the simulation finds it again.

The mends go by the names that the protocol's documents give to what went wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from phantombase.compactor_daemon.attempt import inputs
from phantombase.compactor_daemon.decisions.standing import Ruling, Standing
from phantombase.compactor_daemon.records.fate import Go
from phantombase.timeline.clock.evidence import Zone, ZoneVerdict
from phantombase.timeline.format.compaction_plan import CompactionOperation
from phantombase.timeline.format.instant import next_time
from phantombase.timeline.instants.table_clock import TableClock
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileGroup, FileSlice, TableView
from tests.support.selection import deep
from tests.world.simulation.explore import Twist
from tests.world.simulation.played import Stage
from tests.world.simulation.searching import Search, seeds, turns


def stands(*_: object) -> Ruling:
    """In the place of the question whether a decision stands."""
    return Ruling(standing=Standing.STANDS)


def nothing_left(*_: object) -> bool:
    """In the place of taking back: whatever was placed stays."""
    return True


def planned_always(view: TableView, group: FileGroup | None, instant: str, operation: CompactionOperation) -> FileSlice:
    """In the place of the closure: a replaced file group is merged as any other."""
    return _closed(_no_facts(view), group, instant, operation)


def _no_facts(view: TableView) -> TableView:
    return replace(view, facts=replace(view.facts, replaced={}))


def everything_there(table: Table, go: Go) -> frozenset[tuple[str, str]]:
    """In the place of the file groups of the plan: all of its partitions."""
    partitions = {o.partition_path for o in table.compaction_plan(go.instant).operations}
    names = ((p, e.name.split("_")[0]) for p in partitions for e in table.storage.list(p) if "_" in e.name)
    return frozenset(names)


def every_group(go: Go, *_: object) -> Go:
    """In the place of leaving out what was replaced."""
    return go


def any_zone(*_: object) -> ZoneVerdict:
    """In the place of the look at the zone of the table's writers."""
    return ZoneVerdict(zone=Zone.UNKNOWN)


def time_above(clock: TableClock, used: Sequence[Any], *_: object, **__: object) -> str:
    """In the place of the choice of a time that refuses one in the future."""
    return next_time(clock.now(), (one.time for one in used))


def true(*_: object) -> bool:
    """In the place of a question."""
    return True


def false(*_: object) -> bool:
    """In the place of a question."""
    return False


def nothing(*_: object) -> None:
    """In the place of something that is to be done."""


_closed = inputs._closed

_QUIET = {"hudi": False, "unschedules": False, "pauses": 0, "faults": 0}


def beside(*services: str, count: int = 100, first: int = 0, **story: Any) -> Search:
    """Stories of so many seeds beside these services of Hudi, and a publisher that sleeps."""
    return seeds(count, first, services=frozenset(services), **{**_QUIET, "locked": True, "deaths": 0, **story})


_RESTORE = beside("restore", "sleep", first=30, count=30, compactors=2, daemons=0)
_FALLEN = turns(
    "compactor operator", before="write savepoint write schedule", twists=frozenset({Twist.SWITCH, Twist.KILL})
)
_MINOR = beside(count=10, version=9, minor=0.9)
_REPLACED = beside("replace", "clean", "archive", count=30)
_ELSEWHERE = beside("elsewhere", count=10, partitions=2, groups=2)
_SAME = beside("same", count=8, locked=False, writers=0, compactors=2)
_ZONES = beside("zones", count=15, version=9, writers=0)
_CLEANED = beside("replace", "versions", "archive", "sleep", count=200, compactors=2, daemons=0)
_BLIND = beside("blind", count=20, version=6, writers=0, deaths=2, compactors=2)

_CLOCK = "phantombase.timeline.instants.table_clock"

REMOVED: list[tuple[str, Search, dict[str, Any], str]] = [
    ("F1: merged again where a write was left out", _BLIND, {"attempt.attempt._is_whole": true}, "lost"),
    (
        "F2: a decision stands",
        _RESTORE,
        {"attempt.publish.standing_of": stands, "decisions.late_commit.standing_of": stands},
        "lost|does not exist",
    ),
    ("F3: only the plan's file groups", _SAME, {"attempt.retire._groups": everything_there}, "lost"),
    ("F3: told apart", _SAME, {"decisions.completed._merged_logs": true}, "still pending"),
    ("F4: a place is tried first", _ELSEWHERE, {"attempt.compact_instant.probe_partitions": nothing}, "still pending"),
    ("F5: taken back", _FALLEN, {"attempt.retire._taken_back": nothing_left}, "nobody names|lost"),
    (
        "F7: the writers' zone",
        _ZONES,
        {f"{_CLOCK}.check_zone": any_zone, f"{_CLOCK}.TableClock._chosen": time_above},
        "lost",
    ),
    ("F8: replaced gets no file", _CLEANED, {"attempt.publish.without_groups": every_group}, "not acknowledged"),
    (
        "log compactions: known by their commit",
        _MINOR,
        {"decisions.completed._merged_logs": false},
        "still pending|left",
    ),
    ("F9: replaced is nothing to do", _REPLACED, {"attempt.inputs._closed": planned_always}, "still pending"),
]


@pytest.mark.parametrize(
    ("search", "broken", "shows"),
    [deep(*r[1:]) if r[1] is _CLEANED else r[1:] for r in REMOVED],
    ids=[r[0] for r in REMOVED],
)
def test_without_it(
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
@pytest.mark.parametrize("search", {r[1]: None for r in REMOVED})
def test_with_them(search: Search, stage: Stage) -> None:
    """With all mends in their places none of these runs fails; a usual run has such runs in the other files here."""
    search(stage)
