"""A partition of a plan in which nothing can be placed, or that is gone."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.attempt.compact_instant import pending_instants
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.decisions.completed import completed_compaction
from phantombase.compactor_daemon.records.fate import find_go
from phantombase.compactor_daemon.removal.unschedule import unschedule
from phantombase.timeline.errors import MissingFileError, StorageError
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.probe import probe_partitions
from tests.support.compaction_steps import base_files, decided, open_table, run_all
from tests.support.golden_tables import unzip_golden
from tests.support.moved_tables import BEFORE, LOCK, check_removed, planned
from tests.support.tables import one_of
from tests.support.written_tables import read_rows


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
    assert find_go(open_table(path).storage, instant) is None
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
