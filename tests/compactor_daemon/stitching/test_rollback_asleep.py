"""A process that takes a stitching back sleeps, loses the lock, and others go on: all their rows are there, once."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.status.snapshot import look_at_table
from phantombase.compactor_daemon.stitching.rollback import roll_back_stitching
from phantombase.timeline.cleaning.options import CleanOptions, Policy
from phantombase.timeline.errors import ConflictError, LockError, PhantombaseError, UsageError
from phantombase.timeline.instants.reserved_times import is_buried
from phantombase.timeline.locks.heartbeat import Process
from phantombase.timeline.metadata_table.services.options import MetadataOptions
from phantombase.timeline.metadata_table.services.serve import serve_metadata
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.recovery.savepoint import create_savepoint
from phantombase.timeline.storage.local import LocalStorage
from tests.support.archived_tables import LOCK, compact, one_row, upsert
from tests.support.clustered_tables import golden_small_files, living, small_files, stitch, stitched
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at_nth
from tests.support.lost_lock import LockLostBehind
from tests.support.selection import ALL
from tests.support.tables import one_of
from tests.support.written_tables import read_rows

CLEAN = CleanOptions(policy=Policy.VERSIONS, retain=1, floor_s=0)
CHANGES = ("put", "put_if_absent", "overwrite", "delete", "delete_all", "delete_folder")


def others(path: Path) -> None:
    """They write to what was stitched, compact and clean."""
    with suppress(ConflictError):
        upsert(path, one_row("k0", 50))
        upsert(path, one_row("k1", 51))
        compact(path)
        clean_table(open_table(path), CLEAN, LOCK)
        upsert(path, one_row("k2", 52))


OTHERS = {"k0": (50, 50.0), "k1": (51, 51.0), "k2": (52, 52.0)}


def sleep(path: Path, instant: str, before: Callable[[Call], bool], *, dies: bool = False) -> str | None:
    """The call before which the process slept; None: there was none."""
    slept: list[str] = []

    def hook(call: Call) -> Any:
        if not slept and before(call):
            slept.append(f"{call.name} {call.path}")
            others(path)
            done = call.do()
            if dies:
                raise ProcessDied(call.path)
            return done
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
    with suppress(PhantombaseError, ProcessDied):
        roll_back_stitching(table, LockLostBehind(slept), instant)
    return slept[0] if slept else None


def half_way(path: Path, instant: str) -> None:
    """A process of another machine dies, or sleeps, right before it hides the stitching."""
    storage = HookedStorage(LocalStorage(str(path)), die_at_nth(1, "delete", "commit"))
    with pytest.raises(ProcessDied):
        roll_back_stitching(open_table(path, storage), LOCK, instant)


@one_of("version", 9, 8, 6)
def test_asleep_before_each_call_no_row_is_lost_or_doubled(version: int, tmp_path: Path) -> None:
    number, seen, outcomes = 0, set[str](), set[bool]()
    while True:
        path = tmp_path / f"at{number}"
        rows, calls = small_files(path, version, 3), list[str]()
        instant = stitched(path)

        def is_it(call: Call, calls: list[str] = calls, nth: int = number) -> bool:
            if call.name in CHANGES:
                calls.append(call.path)
            return len(calls) > nth

        if (slept := sleep(path, instant, is_it)) is None:
            break
        seen.add(slept)
        left = read_rows(path)
        assert left in (rows, rows | OTHERS), slept
        outcomes.add(left == rows)
        with suppress(UsageError):  # it is done, or others have built upon it
            roll_back_stitching(open_table(path), LOCK, instant)
        assert read_rows(path) == left, slept
        upsert(path, one_row("new", 1))
        compact(path)
        assert read_rows(path) == left | {"new": (1, 1.0)}, slept
        number += 1 if ALL else 2
    assert number > 5
    assert False in outcomes, "the others never got through"


@one_of("version", 6, 9, 8)
def test_nothing_begins_beside_it(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version, 3)
    instant = stitched(path)
    half_way(path, instant)
    for beat in (path / ".hoodie/.heartbeat").glob("*"):  # an old one counts, too: its process may sleep
        os.utime(beat, (1e9, 1e9))
    for action in (
        lambda: upsert(path, one_row("k0", 50)),
        lambda: schedule_compaction(open_table(path), LOCK, PLAN_NOW),
        lambda: stitch(path),
        lambda: clean_table(open_table(path), CLEAN, LOCK),
        lambda: create_savepoint(open_table(path), LOCK, instant, user="", comment=""),
    ):
        with pytest.raises(ConflictError, match="the rollback of a stitching is half-way"):
            action()
    assert read_rows(path) == rows
    ((seen, finishes),) = look_at_table(open_table(path)).half_way
    assert (seen.requested_time, finishes) == (instant, f"compactor-daemon rollback TABLE {instant}")
    monkeypatch.setattr(Process, "is_gone", lambda _process: True)
    upsert(path, one_row("k0", 50))
    assert not is_buried(open_table(path).storage, instant)
    assert read_rows(path) == rows | {"k0": (50, 50.0)}
    assert len(living(path)) == 1


@one_of("version", 9, 8, 6)
def test_a_second_process_goes_on_with_it(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may only sleep then, while the first one is gone."""
    path = tmp_path / "trips"
    rows = small_files(path, version, 3)
    instant = stitched(path)
    first = Process(host="host", boot="boot", pid=1, started=1)
    with monkeypatch.context() as patch:
        patch.setattr(Process, "current", lambda: first)
        half_way(path, instant)
    half_way(path, instant)
    monkeypatch.setattr(Process, "is_gone", lambda process: process == first)
    with pytest.raises(ConflictError, match="half-way"):
        upsert(path, one_row("k0", 50))
    roll_back_stitching(open_table(path), LOCK, instant)
    upsert(path, one_row("k0", 50))
    assert read_rows(path) == rows | {"k0": (50, 50.0)}
    assert len(living(path)) == 3


@one_of("version", 9, 8, 6)
def test_a_burial_that_another_process_goes_on_with_stays(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came too late for the first one. The second one may only sleep."""
    path = tmp_path / "trips"
    small_files(path, version, 3)
    instant, slept = stitched(path), list[str]()
    second = Process(host="host", boot="boot", pid=2, started=2)

    def hook(call: Call) -> Any:
        if not slept and call.name == "put_if_absent" and f"0-{instant}" in call.path:
            slept.append(call.path)
            with monkeypatch.context() as patch:
                patch.setattr(Process, "current", lambda: second)
                half_way(path, instant)
        return call.do()

    with pytest.raises(LockError):
        roll_back_stitching(
            open_table(path, HookedStorage(LocalStorage(str(path)), hook)), LockLostBehind(slept), instant
        )
    assert is_buried(open_table(path).storage, instant)


@one_of("version", 6, 9, 8)
def test_a_late_commit_without_its_files_is_not_dug_up(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken back before it completed, by a process that died half-way: the next write withdraws it."""
    path = tmp_path / "trips"
    rows = small_files(path, version, 3)
    before = set(path.rglob("*.parquet"))
    instant = stitched(path)
    half_way(path, instant)
    for new in set(path.rglob("*.parquet")) - before:
        new.unlink()
    monkeypatch.setattr(Process, "is_gone", lambda _process: True)
    with suppress(PhantombaseError):
        upsert(path, one_row("k0", 50))
    upsert(path, one_row("k0", 50))
    assert read_rows(path) == rows | {"k0": (50, 50.0)}


@one_of("version", 9, 8, 6)
def test_no_compaction_completes_beside_it(version: int, tmp_path: Path) -> None:
    """It would stand in its way: "only the newest write can be rolled back"."""
    path = tmp_path / "trips"
    rows = small_files(path, version, 4)
    upsert(path, one_row("k0", 50))
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    instant = stitched(path)
    half_way(path, instant)
    with pytest.raises(ConflictError, match=f"a rollback of {instant} is pending"):
        run_all(open_table(path))
    roll_back_stitching(open_table(path), LOCK, instant)
    run_all(open_table(path))
    assert read_rows(path) == rows | {"k0": (50, 50.0)}


@one_of("version", 9, 8, 6)
@pytest.mark.parametrize("dies", [False, True])
def test_a_burial_that_came_too_late_stops_nothing(dies: bool, version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version, 3)
    instant = stitched(path)
    slept = sleep(path, instant, lambda c: c.name == "put_if_absent" and f"0-{instant}" in c.path, dies=dies)
    assert slept is not None
    assert is_buried(open_table(path).storage, instant) is dies
    others(path)
    assert read_rows(path) == rows | OTHERS


def test_a_lost_lock_is_said(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, 9, 3)
    instant, slept = stitched(path), list[str]()

    def hook(call: Call) -> Any:
        if call.name == "put_if_absent" and f"0-{instant}" in call.path:
            slept.append(call.path)
        return call.do()

    storage = HookedStorage(LocalStorage(str(path)), hook)
    with pytest.raises(LockError, match="the lock was lost"):
        roll_back_stitching(open_table(path, storage), LockLostBehind(slept), instant)
    assert not is_buried(open_table(path).storage, instant)


@one_of("name", "v6_with_metadata_table", "v9_with_metadata_table")
def test_the_metadata_table_is_not_compacted_beside_it(name: str, tmp_path: Path) -> None:
    """The records of the stitching could not be removed any more."""
    path = golden_small_files(name, tmp_path)
    instant = stitched(path)
    half_way(path, instant)
    served = serve_metadata(open_table(path), MetadataOptions(max_delta_commits=1), LOCK)
    assert served.why == f"the rollback of a stitching is half-way: {instant}"
    assert served.compactions == ()
    done = roll_back_stitching(open_table(path), LOCK, instant)
    assert not done.metadata_dropped
