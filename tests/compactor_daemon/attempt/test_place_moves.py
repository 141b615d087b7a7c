"""A storage whose `place` takes the staged file away, as a rename on HDFS does: what may still need that file?"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt import compaction
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.compaction import merge_again
from phantombase.compactor_daemon.attempt.outcome import CommitDecision, Placement, find_decision, read_outcome
from phantombase.compactor_daemon.attempt.publish import place, publish
from phantombase.compactor_daemon.attempt.slice_record import completed_compaction, remove_placed
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.errors import ConflictError, MissingFileError, PhantombaseError, StorageError
from phantombase.timeline.instants.reserved_times import COMMITTED, attempts
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.staged_file import probe_partitions
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import base_files, check_whole, decided, open_table, run_all, visible_files
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Call, HookedStorage, MovingStorage
from tests.support.faults import Faults
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.moved_tables import BEFORE, check_removed, planned
from tests.support.selection import ALL, deep
from tests.support.written_tables import read_rows

TABLES = pytest.mark.parametrize("name", ["v9_pending", deep("v6_pending")])


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
            outcomes = [read_outcome(storage, instant, n) for n in attempts(storage, instant)]
            assert [outcome.kind for outcome in outcomes if outcome is not None].count(COMMITTED) <= 1
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
    decision = decided(table, instant)
    for placement in decision.placements:
        place(table, decision, placement)
        assert table.storage.find(placement.staged) is None
        place(table, decision, placement)
    publish(table, decision, LOCK)
    publish(table, decision, LOCK)
    assert merged == []
    first = decision.placements[0]
    with pytest.raises(PhantombaseError, match="differs from the staged one"):
        place(table, decision, replace(first, size=first.size + 1))
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
    decision = decided(table, instant)
    for placement in decision.placements:
        place(table, decision, placement)
    remove_placed(table, decision, keep=set())
    ground.run(path)
    check_whole(path, ground.expected)
    assert len(merged) == len(decision.placements)


@pytest.mark.parametrize("damaged", ["staged", "final"])
@pytest.mark.parametrize("name", ["v9_pending", "v6_pending"])
def test_a_file_of_a_decision_that_was_damaged_is_merged_again(name: str, damaged: str, tmp_path: Path) -> None:
    """One that has its name already when it is removed, as the error says: every run would end there."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    expected = read_table(table)
    one = decided(table, instant).placements[0]
    (path / one.staged).write_bytes(b"torn")
    if damaged == "final":
        (path / one.staged).rename(path / one.final)
        with pytest.raises(StorageError, match="remove this file and run again"):
            run_all(open_table(path))
        (path / one.final).unlink()
    run_all(open_table(path))
    assert (path / one.final).stat().st_size == one.size
    assert not pending_instants(open_table(path))
    assert_same_rows(read_table(open_table(path)), expected)


def counted_merges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The final names that are merged again from now on."""
    merged: list[str] = []

    def counted(table: Table, decision: CommitDecision, placement: Placement) -> str:
        merged.append(placement.final)
        return merge_again(table, decision, placement)

    monkeypatch.setattr(compaction, "merge_again", counted)
    return merged


# Two publishers on a storage that moves what it places.


def test_a_file_that_another_moved_meanwhile_is_not_merged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the looks for its final and for its staged name; found by the simulation (468, moved files)."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    decision = decided(table, instant)
    one, other = decision.placements[0], LocalStorage(str(path))

    def hook(call: Call) -> Any:
        if call.name == "find" and call.path == one.staged and other.place(one.staged, one.final):
            other.delete(one.staged)
        return call.do()

    merged: list[object] = []
    monkeypatch.setattr("phantombase.compactor_daemon.attempt.compaction.merge_again", lambda *of: merged.append(of))
    place(open_table(path, HookedStorage(other, hook)), decision, one)
    assert merged == []
    assert (path / one.final).stat().st_size == one.size


# A partition of a plan in which nothing can be placed, or that is gone.


@pytest.fixture
def other_file_system(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a folder lie on another file system, as a mount or a link to one does: hard links into it fail."""
    apart: list[str] = []
    link = os.link

    def linked(source: Any, target: Any, **options: Any) -> None:
        if any(str(target).startswith(f"{folder}/") for folder in apart):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(target))
        link(source, target, **options)

    monkeypatch.setattr(os, "link", linked)
    return lambda folder: apart.append(str(folder))


def partitions(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and p.name != ".hoodie")


@one_of("version", 9, 6)
def test_it_is_found_before_the_decision(
    version: int, tmp_path: Path, other_file_system: Callable[[Path], None]
) -> None:
    """Nothing is staged in vain; the plan can be executed by others, or taken back."""
    path = tmp_path / "t"
    instant = planned(path, version)
    other_file_system(partitions(path)[0])
    for _ in range(2):
        with pytest.raises(StorageError, match="cannot be placed in this partition"):
            run_all(open_table(path))
    assert find_decision(open_table(path).storage, instant) is None
    unschedule(open_table(path), instant, LOCK)
    assert read_rows(path) == BEFORE


@one_of("version", 6, 9)
def test_found_after_the_decision_it_can_still_be_taken_back(
    version: int, tmp_path: Path, other_file_system: Callable[[Path], None]
) -> None:
    path = tmp_path / "t"
    instant = planned(path, version)
    decided(open_table(path), instant)
    other_file_system(partitions(path)[0])
    with pytest.raises(StorageError):
        run_all(open_table(path))
    unschedule(open_table(path), instant, LOCK)
    assert pending_instants(open_table(path)) == ()
    assert read_rows(path) == BEFORE


def test_the_other_instants_go_on(tmp_path: Path, other_file_system: Callable[[Path], None]) -> None:
    """The earliest is decided and cannot be placed; the next is compacted, then the error is raised."""
    path = unzip_golden("v9_two_pending", tmp_path)
    rows = read_table(open_table(path)).num_rows
    first, second = pending_instants(open_table(path))
    plan = {i: {p for p, _ in open_table(path).compaction_plan(i).groups} for i in (first, second)}
    alone = plan[first] - plan[second]
    assert alone, "the golden table's plans lie in different partitions"
    decided(open_table(path), first)
    other_file_system(path / min(alone))
    with pytest.raises(StorageError):
        app(args=["compact", str(path), "--executor", "local"], standalone_mode=False)
    assert pending_instants(open_table(path)) == (first,)
    assert completed_compaction(open_table(path), second) is not None
    assert read_table(open_table(path)).num_rows == rows


def test_the_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    """Also where a killed process has left its file."""
    path = unzip_golden("v9_pending", tmp_path)
    storage, (one, *_) = open_table(path).storage, partitions(path)
    before = sorted(one.iterdir())
    (one / ".phantombase-probe").touch()
    probe_partitions(storage, [one.name])
    assert sorted(one.iterdir()) == before


@one_of("version", 9, 6)
def test_a_partition_that_was_removed(version: int, tmp_path: Path) -> None:
    """Nothing on the timeline says that it should be gone: an error, and the command that it names ends it."""
    path = tmp_path / "t"
    instant = planned(path, version)
    (partition,) = partitions(path)
    shutil.rmtree(partition)
    with pytest.raises(MissingFileError, match="compactor-daemon unschedule"):
        run_all(open_table(path))
    unschedule(open_table(path), instant, LOCK)
    assert pending_instants(open_table(path)) == ()
    check_removed(path, partition.name)
    assert not base_files(path, instant)


@one_of("version", 9, 6)
def test_an_input_that_was_removed(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    instant = planned(path, version)
    for log in path.glob("*/.*.log.*"):
        log.unlink()
    with pytest.raises(MissingFileError, match="compactor-daemon unschedule"):
        run_all(open_table(path))
    unschedule(open_table(path), instant, LOCK)
    assert pending_instants(open_table(path)) == ()
