"""Seeded runs on storages with other promises than a disk's: an object store, and one that moves what it places."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.selection import ALL
from tests.world.simulation.played import Stage
from tests.world.simulation.searching import played
from tests.world.simulation.story import Plot, StorageKind

SEEDS = 600 if ALL else 30


@pytest.mark.parametrize("kind", [StorageKind.OBJECTS, StorageKind.MOVES])
def test_no_row_is_lost(kind: StorageKind, stage: Stage) -> None:
    """Times of whole seconds, no folders, requests that take effect after they were given up, leases that are lost."""
    outcomes: Counter[str] = Counter()
    for seed in range(SEEDS):
        outcomes += played(seed, stage, plot=Plot.on(kind, random.Random(seed))).outcomes
    print(dict(outcomes))
    seldom = {"compacted", "compacted by a fleet", "killed"}
    if kind is StorageKind.OBJECTS:
        seldom |= {"lost the lock", "late requests"}
    assert seldom <= set(outcomes)
