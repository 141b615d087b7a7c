"""Small instances, exhaustively: at every step of everybody another goes on, or the one at work dies or sleeps.

`PHANTOMBASE_TURNS=n`: runs with up to so many such turns (default 1; 2 take hours)."""

from __future__ import annotations

import os
from itertools import combinations

import pytest

from tests.support.selection import ALL, deep
from tests.world.simulation.explore import Explorer, Instance
from tests.world.simulation.played import Stage

TURNS = int(os.environ.get("PHANTOMBASE_TURNS", "1"))
_EVERY = 1 if ALL or TURNS > 1 else 29
"""A usual run takes each n-th turn: neighbours mostly differ in a reading call. It has no factor in common with the
number of turns at a step, so that each kind of them occurs."""


@pytest.mark.parametrize(
    ("version", "locked", "people"),
    [
        deep(6, True, "compactor1 compactor2 unscheduler writer"),
        (9, True, "compactor1 compactor2 unscheduler writer"),
        deep(6, True, "unscheduler writer compactor1"),
        *(deep(version, True, "writer1 writer2 scheduler") for version in (6, 9)),
        deep(9, False, "writer compactor1 compactor2"),
    ],
)
def test_every_turn(version: int, locked: bool, people: str, stage: Stage) -> None:
    """No run breaks a rule; how many there were is printed."""
    instance = Instance(version=version, locked=locked, people=tuple(people.split()))
    explorer = Explorer(instance, TURNS, stage, every=_EVERY)
    explorer.explore()
    print(f"{explorer.runs} runs, {explorer.states} states")
    assert explorer.runs > 50 // _EVERY


_PLANNERS = ["scheduler", "clusterer", "cleaner", "archiver", "unscheduler"]
"""Each beside each other one: a plan may be put behind the lock."""
_THREE = "write service write service write service"


def explore_locked(version: int, people: str, groups: int, before: str, stage: Stage) -> None:
    """All runs of these people, who share a lock, on a table of so many file groups."""
    instance = Instance(
        version=version, locked=True, people=tuple(people.split()), before=tuple(before.split()), groups=groups
    )
    explorer = Explorer(instance, TURNS, stage, every=_EVERY)
    explorer.explore()
    print(f"{explorer.runs} runs, {explorer.states} states")
    assert explorer.runs > 50 // _EVERY


@pytest.mark.parametrize(
    ("version", "people", "groups", "before"),
    [
        *(
            deep(version, f"{one} {other}", 3 if "clusterer" in (one, other) else 1, "write")
            for version in (6, 9)
            for one, other in combinations(_PLANNERS, 2)
        ),
        deep(9, "clusterer1 clusterer2 writer", 3, ""),
        deep(6, "clusterer1 clusterer2 writer", 3, ""),
        (6, "cleaner clusterer writer", 3, "service"),
        deep(9, "cleaner clusterer writer", 3, "service"),
        *(deep(version, "clusterer service writer", 3, "write") for version in (6, 9)),
        *(deep(version, "cleaner compactor writer", 1, "write schedule write") for version in (6, 9)),
        *(deep(version, "archiver service writer", 1, _THREE) for version in (6, 9)),
        *(deep(version, "cleaner archiver writer", 1, _THREE) for version in (6, 9)),
    ],
)
def test_services(version: int, people: str, groups: int, before: str, stage: Stage) -> None:
    """Clustering, cleaning and archiving of phantombase break no rule either, however they are interrupted."""
    explore_locked(version, people, groups, before, stage)


@pytest.mark.parametrize(
    ("version", "people", "groups", "before"),
    [
        (9, "clusterer undoer", 3, "write write"),
        *(deep(version, "clusterer restorer", 3, "write write") for version in (6, 9)),
        deep(9, "compactor restorer writer", 1, "write schedule write"),
        deep(6, "compactor restorer", 1, "write schedule write"),
        deep(6, "archiver restorer writer", 1, _THREE + " write"),
    ],
)
def test_taking_back(version: int, people: str, groups: int, before: str, stage: Stage) -> None:
    """A restore or rollback of phantombase at every step of others: a reader sees the rows of what is left."""
    explore_locked(version, people, groups, before, stage)


@pytest.mark.parametrize("people", ["scheduler writer compactor", deep("writer scheduler compactor")])
@pytest.mark.parametrize("version", [9, deep(6)])
def test_one_millisecond(version: int, people: str, stage: Stage) -> None:
    """Without a lock a writer and a scheduler choose the same time, as the clock stands; no row is lost."""
    instance = Instance(version=version, locked=False, people=tuple(people.split()), before=("write",), still=True)
    explorer = Explorer(instance, 1, stage, every=min(_EVERY, 7))
    explorer.explore()
    assert explorer.shared_times > 0
