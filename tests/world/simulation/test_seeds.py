"""Thousands of seeded runs of the real protocol code in one process.

`PHANTOMBASE_SEEDS=n`: so many of them. `PHANTOMBASE_SEED=x`: that one, with every step it takes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from hashlib import sha256
from types import FrameType
from typing import Any

import pytest

from tests.support.places import ROOT
from tests.support.selection import ALL, deep
from tests.world.simulation.played import Stage, simulated
from tests.world.simulation.searching import played
from tests.world.simulation.staff import CLUSTER, ORPHANS
from tests.world.simulation.story import Plot, StorageKind, Story

SEEDS = int(os.environ.get("PHANTOMBASE_SEEDS", "1500"))
SEED = os.environ.get("PHANTOMBASE_SEED")
_CHUNKS = 30
_OWN = str(ROOT / "phantombase")
_USUAL = _CHUNKS if "PHANTOMBASE_SEEDS" in os.environ else 1
"""So many chunks are played in a usual run."""


@pytest.mark.skipif(SEED is not None, reason="one seed is played")
@pytest.mark.parametrize("chunk", [*range(_USUAL), *map(deep, range(_USUAL, _CHUNKS))])
def test_no_row_is_lost(chunk: int, stage: Stage) -> None:
    """Whoever crashes, pauses, loses a session or takes no lock; and all that can be finished is finished."""
    outcomes: Counter[str] = Counter()
    for seed in range(chunk, SEEDS, _CHUNKS * (1 if ALL or _USUAL > 1 else 2)):
        outcomes += played(seed, stage).outcomes
    print(dict(outcomes))
    if SEEDS >= 1500:
        seldom = {
            "compacted",
            "compacted by a fleet",
            "Hudi compacted",
            "unscheduled",
            "killed",
            "paused",
            "napped",
            "log files alone",
        }
        assert all(outcomes[what] for what in seldom), "the stories have become dull"


def test_clocks_jump(stage: Stage) -> None:
    """By an hour, forward and back, in mid-run: what is refused then is done once they are right."""
    outcomes: Counter[str] = Counter()
    seeds = 60 if ALL else 16
    for seed in range(seeds):
        plot = replace(Plot.of(random.Random(seed)), locked=True, hudi=False, jumps=4)
        outcomes += played(seed, stage, plot=plot).outcomes
    print(dict(outcomes))
    refused = sum(number for what, number in outcomes.items() if "this process's clock" in what)
    assert outcomes["clocks jumped"] > seeds
    assert refused > seeds // 8


def _steps(count: int) -> str:
    """A digest of all that happens in the worlds of the first seeds."""
    digest = sha256()
    with pytest.MonkeyPatch.context() as patch:
        for stage in simulated(patch):
            for seed in range(count):
                story = Story(seed, trace=True)
                story.play(stage)
                steps = "\n".join(
                    (story.rules.trace or [])[1:]
                )  # the first one shows the plot, with its set of services
                digest.update(steps.encode())
    return digest.hexdigest()


def test_a_seed_plays_the_same_world_in_every_process() -> None:
    """Whatever order sets of names have there, and however many digits its number has: no step depends on it."""
    found = set()
    for order, number in ("1", 7), ("2", 1_234_567):
        code = f"import os; os.getpid = lambda: {number}; from {__name__} import _steps; print(_steps({SEEDS // 500}))"
        run = partial(
            subprocess.run, [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        )
        found.add(run(env={**os.environ, "PYTHONHASHSEED": order}).stdout.splitlines()[-1])
    assert len(found) == 1


def test_no_real_clock_is_asked(stage: Stage) -> None:
    """Or a slow machine plays another world. A parameter's default is bound before the stage is set."""
    asked: Counter[str] = Counter()

    def note(frame: FrameType, event: str, what: Any) -> None:
        if (
            event == "c_call"
            and getattr(what, "__module__", None) == "time"
            and frame.f_code.co_filename.startswith(_OWN)
        ):
            asked[f"{what.__name__} at {frame.f_code.co_filename}:{frame.f_lineno}"] += 1

    sys.setprofile(note)
    try:
        for seed in range(5 if ALL else 2):
            played(seed, stage)
    finally:
        sys.setprofile(None)
    assert not asked


def test_one_seed(stage: Stage) -> None:
    """`PHANTOMBASE_SEED`, else 0; its every step is printed (`pytest -s`)."""
    played(int(SEED or 0), stage, trace=True)


def test_a_seed_is_always_the_same_run(stage: Stage) -> None:
    """Or a failure could not be looked at again."""
    for seed in range(5 if ALL else 2):
        assert played(seed, stage, trace=True).rules.trace == played(seed, stage, trace=True).rules.trace


# Random stories in which phantombase itself cleans, archives and clusters, as much as it may, beside all others.
#
# `PHANTOMBASE_SERVICE_SEEDS=n`: so many of them (20; with all tests 1,000).


OUR_SERVICES_SEEDS = int(os.environ.get("PHANTOMBASE_SERVICE_SEEDS", "1000" if ALL else "20"))


def test_no_row_is_lost_beside_our_services(stage: Stage) -> None:
    """Nothing that a compaction, a writer or a reader needs goes, whoever dies, pauses or loses an answer."""
    outcomes: Counter[str] = Counter()
    for seed in range(OUR_SERVICES_SEEDS):
        plot = Plot.of(random.Random(seed))
        if not plot.locked or plot.hudi:
            continue
        beside = {"we clean", "we archive", *(("replace",) if seed % 3 == 0 else ()), *(("sleep",) if seed % 2 else ())}
        outcomes += played(seed, stage, plot=replace(plot, services=frozenset(beside), unschedules=False)).outcomes
    ours = {what: count for what, count in outcomes.items() if what.startswith("we ")}
    print(ours)
    assert min(ours.get(f"we {what} done", 0) for what in ("clean", "archive")) > OUR_SERVICES_SEEDS // 10, ours


def test_no_row_is_lost_beside_the_removal_of_orphans(stage: Stage) -> None:
    """Here files of any age go. Writers die, pause and are undone, and tasks write after that."""
    outcomes: Counter[str] = Counter()
    for seed in range(OUR_SERVICES_SEEDS):
        plot = Plot.of(random.Random(seed))
        if not plot.locked or plot.hudi:
            continue
        beside = {ORPHANS, CLUSTER if seed % 3 == 0 else "sleep", *(("we clean", "we archive") if seed % 2 else ())}
        outcomes += played(seed, stage, plot=replace(plot, services=frozenset(beside), unschedules=False)).outcomes
    ours = {what: count for what, count in outcomes.items() if "orphans" in what}
    print(ours)
    assert ours.get(f"{ORPHANS} done", 0) > OUR_SERVICES_SEEDS // 10, ours


def test_no_row_is_lost_beside_clusterings(stage: Stage) -> None:
    """They move rows to other file groups, and die, pause and fail as compactors do; updates pass through."""
    outcomes: Counter[str] = Counter()
    for seed in range(max(OUR_SERVICES_SEEDS // 2, 12)):
        plot = Plot.of(random.Random(seed))
        if not plot.locked or plot.hudi:
            continue
        beside = {CLUSTER, *(("we clean", "we archive") if seed % 2 else ()), *(("replace",) if seed % 3 == 0 else ())}
        plot = replace(plot, version=plot.version if seed % 4 else min(plot.version, 8))
        plot = replace(plot, services=frozenset(beside), unschedules=False, groups=5, writes=3, deaths=4)
        outcomes += played(seed, stage, plot=plot).outcomes
    ours = {what: count for what, count in outcomes.items() if "cluster" in what}
    print(ours)
    assert ours.get(f"{CLUSTER} done", 0) > OUR_SERVICES_SEEDS // 10, ours
    assert OUR_SERVICES_SEEDS < 500 or ours.get("clusterings finished", 0) > 0, ours
    assert ours.get("clusterings: groups written to meanwhile", 0) > 0, ours


# Seeded runs on storages with other promises than a disk's: an object store, and one that moves what it places.


OTHER_STORAGES_SEEDS = 600 if ALL else 30


@pytest.mark.parametrize("kind", [StorageKind.OBJECTS, StorageKind.MOVES])
def test_no_row_is_lost_on_other_storages(kind: StorageKind, stage: Stage) -> None:
    """Times of whole seconds, no folders, requests that take effect after they were given up, leases that are lost."""
    outcomes: Counter[str] = Counter()
    for seed in range(OTHER_STORAGES_SEEDS):
        outcomes += played(seed, stage, plot=Plot.on(kind, random.Random(seed))).outcomes
    print(dict(outcomes))
    seldom = {"compacted", "compacted by a fleet", "killed"}
    if kind is StorageKind.OBJECTS:
        seldom |= {"lost the lock", "late requests"}
    assert seldom <= set(outcomes)
