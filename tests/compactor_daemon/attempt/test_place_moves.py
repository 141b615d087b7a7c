"""A storage whose `place` takes the staged file away, as a rename on HDFS does: what may still need that file?"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt import publish as publishing
from phantombase.compactor_daemon.attempt.compact_instant import pending_instants
from phantombase.compactor_daemon.attempt.publish import place, publish
from phantombase.compactor_daemon.attempt.remerge import merge_again
from phantombase.compactor_daemon.decisions.completed import remove_placed
from phantombase.compactor_daemon.records.fate import Go, Placement, read_fate
from phantombase.timeline.errors import ConflictError, PhantombaseError
from phantombase.timeline.instants.attempt_names import GO, attempts
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import check_whole, decided, open_table, run_all, visible_files
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import (
    MovingStorage,
)
from tests.support.faults import Faults
from tests.support.golden_tables import unzip_golden
from tests.support.selection import ALL, deep

TABLES = pytest.mark.parametrize("name", ["v9_pending", deep("v6_pending")])
LOCK = ProcessLock("moves")


class Ground:
    """A table with a pending compaction."""

    def __init__(self, name: str, folder: Path) -> None:
        self.origin = unzip_golden(name, folder / "origin")
        self.expected = self.origin.with_name(f"{self.origin.name}.expected")
        self.snapshot = pq.read_table(self.expected / "snapshot.parquet")

    def copy(self) -> Path:
        """A fresh copy."""
        return shutil.copytree(self.origin, self.origin.with_name("own"))

    def faults(self) -> Faults:
        """Those of a run."""
        return Faults.of(self.origin, lambda storage: run_all(Table.on(storage)), MovingStorage)

    @staticmethod
    def run(path: Path, lock: str = "") -> None:
        """A run on it."""
        run_all(open_table(path, MovingStorage(str(path))), lock)


@pytest.fixture
def ground(name: str, tmp_path: Path) -> Ground:
    return Ground(name, tmp_path)


@TABLES
def test_a_death_at_changes_is_finished_by_the_next_run(ground: Ground) -> None:
    """Twice: the next run dies at another one, and a third one finishes. Readers see the same rows."""
    faults = ground.faults()
    changes, twice = faults.chosen(lambda p: p.changes), 0
    for number, (_, path) in enumerate(faults.deaths()):
        twice += faults.dies_at(changes[(number + 5) % len(changes)], path)
        if pending_instants(open_table(path)):
            assert_same_rows(read_table(open_table(path)), ground.snapshot)
        ground.run(path)
        check_whole(path, ground.expected)
    assert twice > 4


@pytest.mark.deep
@TABLES
def test_an_error_at_every_change_is_finished_by_the_next_run(ground: Ground) -> None:
    """Before, after and half-way through it."""
    faults = ground.faults()
    for _, _, path, _ in replace(faults, points=tuple(p for p in faults.points if p.changes)).errors():
        ground.run(path)
        check_whole(path, ground.expected)


@TABLES
def test_a_publisher_that_pauses_while_another_one_publishes(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first placing on: one decision, nothing merged again, nothing visible changes."""
    merged, after = counted_merges(monkeypatch), list[set[str]]()

    def another(path: Path) -> None:
        ground.run(path, lock="another process")
        after.append(visible_files(path))

    faults, paused = ground.faults(), 0
    first = next(n for n, point in enumerate(faults.points) if point.name == "place" and "probe" not in point.kind)
    for _, path, error in replace(faults, points=faults.points[first:]).pauses(another, lambda p: ALL or p.changes):
        assert error is None or isinstance(error, ConflictError)
        assert visible_files(path) == after[-1]
        ground.run(path)
        check_whole(path, ground.expected)
        storage = MovingStorage(str(path))
        for instant in {i.requested_time for i in open_table(path).load_timeline().instants}:
            fates = [read_fate(storage, instant, n) for n in attempts(storage, instant)]
            assert [fate.kind for fate in fates if fate is not None].count(GO) <= 1
        paused += 1
    assert paused > 4
    assert merged == []


@TABLES
def test_a_repeat_is_known_by_the_size_of_the_decision(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The staged file is no proof any more: placed once, the second placing asks for nothing but the final file."""
    merged = counted_merges(monkeypatch)
    path = ground.copy()
    table = open_table(path, MovingStorage(str(path)))
    (instant,) = pending_instants(table)
    go = decided(table, instant)
    for placement in go.placements:
        place(table, go, placement)
        assert table.storage.find(placement.staged) is None
        place(table, go, placement)
    publish(table, go, LOCK)
    publish(table, go, LOCK)
    assert merged == []
    first = go.placements[0]
    with pytest.raises(PhantombaseError, match="differs from the staged one"):
        place(table, go, replace(first, size=first.size + 1))
    ground.run(path)
    check_whole(path, ground.expected)


@TABLES
def test_placed_files_that_lost_their_names_again_are_merged_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the table was upgraded under the decision, and set back: neither name is there, but the inputs are."""
    merged = counted_merges(monkeypatch)
    path = ground.copy()
    table = open_table(path, MovingStorage(str(path)))
    (instant,) = pending_instants(table)
    go = decided(table, instant)
    for placement in go.placements:
        place(table, go, placement)
    remove_placed(table, go, keep=set())
    ground.run(path)
    check_whole(path, ground.expected)
    assert len(merged) == len(go.placements)


def counted_merges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The final names that are merged again from now on."""
    merged: list[str] = []

    def counted(table: Table, go: Go, placement: Placement) -> str:
        merged.append(placement.final)
        return merge_again(table, go, placement)

    monkeypatch.setattr(publishing, "merge_again", counted)
    return merged
