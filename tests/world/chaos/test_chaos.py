"""Nothing is lost, doubled or left over, whatever happens to a fleet.

PHANTOMBASE_CHAOS_SECONDS   how long (30; with all tests 60): rounds of a minute at most, each with new tables
PHANTOMBASE_CHAOS_SEED      of the first round (random)
PHANTOMBASE_SOAK_SECONDS    how long one round on the same tables is, with all tests (600)"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.hudi.cases.rows import same
from tests.hudi.judge.fixtures import Judges
from tests.support.places import drawn
from tests.support.selection import ALL, deep
from tests.world.chaos.chaos_round import Played, play

SECONDS = float(os.environ.get("PHANTOMBASE_CHAOS_SECONDS", "60" if ALL else "30"))
SOAK_S = float(os.environ.get("PHANTOMBASE_SOAK_SECONDS", "600"))
SEED = drawn("PHANTOMBASE_CHAOS_SEED", 10**6)
_ROUND_S = 60.0
_MORE_S = 600.0
THERE = ("compactions", "written", "killed", "stopped", "cleans", *(("archived",) if SECONDS >= _ROUND_S else ()))
_HUDI = {6: "0.15.0", 9: "1.2.0"}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """All rounds went well: the last one, with what happened in all of them.

    What a loaded machine does not come to in these rounds it has more rounds for."""
    last, counts, began = None, Counter[str](), time.monotonic()
    asked = max(1, round(SECONDS / _ROUND_S))
    for number in count():
        if number >= asked and (all(counts[n] for n in THERE) or time.monotonic() - began > SECONDS + _MORE_S):
            break
        seed = SEED + number
        folder = tmp_path_factory.mktemp(f"chaos{seed}")
        try:
            played = play(folder, seed, min(SECONDS, _ROUND_S))
        except BaseException as error:
            error.add_note(f"PHANTOMBASE_CHAOS_SEED={seed}, logs and .events (support/replayed_daemon) in {folder}")
            raise
        print(f"seed {seed}: {played.counts}", flush=True)
        if last is not None:
            shutil.rmtree(last.tables[0].parent)
        last = played
        counts += Counter(played.counts)
    assert last is not None
    return replace(last, counts=dict(counts))


@pytest.mark.timeout(SECONDS * 5 + 2 * _MORE_S)
def test_a_fleet_in_trouble(played: Played) -> None:
    """Everything was there: work, deaths and troubles. What must hold is checked in each round.

    Archiving begins at a dozen commits of a table, which half a minute on a loaded machine may not bring."""
    assert all(played.counts.get(name) for name in THERE), played.counts


@pytest.mark.deep
@pytest.mark.timeout(SOAK_S * 3 + 900)
def test_a_long_time(tmp_path: Path) -> None:
    """Ten minutes on the same tables: their files and instants stay bounded, and all that must hold holds."""
    try:
        played = play(tmp_path, SEED, SOAK_S)
    except BaseException as error:
        error.add_note(f"PHANTOMBASE_CHAOS_SEED={SEED}, logs and .events (support/replayed_daemon) in {tmp_path}")
        raise
    print(f"seed {SEED}: {played.counts}", flush=True)
    assert played.counts["compactions"] > 0


@pytest.mark.interop
@pytest.mark.parametrize("version", [9, deep(6)])
def test_hudi_reads_the_same(version: int, played: Played, judges: Judges) -> None:
    """What a fleet in trouble left behind, read by real Hudi."""
    tables = [table for path in played.tables if (table := Table.open(str(path))).config.version == version]
    assert tables
    for table in tables:
        same(read_table(table), judges(_HUDI[version]).read(Path(table.storage.base_path)))
