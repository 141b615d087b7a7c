"""Random stories in which phantombase itself cleans, archives and stitches, as much as it may, beside all others.

`PHANTOMBASE_SERVICE_SEEDS=n`: so many of them (60; with all tests 1,000).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace

from tests.support.selection import ALL
from tests.world.simulation.played import Stage
from tests.world.simulation.searching import played
from tests.world.simulation.staff import STITCH
from tests.world.simulation.story import Plot

SEEDS = int(os.environ.get("PHANTOMBASE_SERVICE_SEEDS", "1000" if ALL else "60"))


def test_no_row_is_lost(stage: Stage) -> None:
    """Nothing that a compaction, a writer or a reader needs goes, whoever dies, pauses or loses an answer."""
    outcomes: Counter[str] = Counter()
    for seed in range(SEEDS):
        plot = Plot.of(random.Random(seed))
        if not plot.locked or plot.hudi:
            continue
        beside = {"we clean", "we archive", *(("replace",) if seed % 3 == 0 else ()), *(("sleep",) if seed % 2 else ())}
        outcomes += played(seed, stage, plot=replace(plot, services=frozenset(beside), unschedules=False)).outcomes
    ours = {what: count for what, count in outcomes.items() if what.startswith("we ")}
    print(ours)
    assert min(ours.get(f"we {what} done", 0) for what in ("clean", "archive")) > SEEDS // 10, ours


def test_no_row_is_lost_beside_stitchings(stage: Stage) -> None:
    """They move rows to other file groups, and die, pause and fail as compactors do."""
    outcomes: Counter[str] = Counter()
    for seed in range(SEEDS // 2):
        plot = Plot.of(random.Random(seed))
        if not plot.locked or plot.hudi:
            continue
        beside = {STITCH, *(("we clean", "we archive") if seed % 2 else ()), *(("replace",) if seed % 3 == 0 else ())}
        plot = replace(plot, services=frozenset(beside), unschedules=False, groups=5, writes=3, deaths=4)
        outcomes += played(seed, stage, plot=plot).outcomes
    ours = {what: count for what, count in outcomes.items() if "stitch" in what}
    print(ours)
    assert ours.get(f"{STITCH} done", 0) > SEEDS // 10, ours
    assert not ALL or ours.get("stitchings finished", 0) > 2, ours
