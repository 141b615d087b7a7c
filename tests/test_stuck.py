"""Stuck states, each with a command that ends it and is named in the error."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from compactor_daemon.compactor import pending_instants
from compactor_daemon.foreign import inflight_path
from compactor_daemon.unschedule import unschedule
from tests.attempts import check_no_strays, open_table, run_all
from tests.faults import Call, HookedStorage, ProcessDied, die_at
from tests.test_broken_rules import upsert
from tests.test_standing import BEFORE, LOCK, planned
from tests.test_writer import rows
from tests.written import read_rows
from timeline.errors import ConflictError, MissingFileError
from timeline.local_storage import LocalStorage

VERSIONS = pytest.mark.parametrize("version", [6, 9])
LONG_AGO = (1_000_000_000, 1_000_000_000)


def leave_executor(path: Path, instant: str) -> tuple[Path, Path]:
    """What a Hudi compactor leaves that died long ago: its inflight file and a base file; both paths."""
    table = open_table(path)
    inflight = path / inflight_path(table, instant)
    inflight.write_bytes(b"")
    base = next(path.glob("*/*.parquet"))
    left = base.with_name(f"{base.name.split('_')[0]}_7-7-7_{instant}.parquet")
    shutil.copy(base, left)
    for file in (inflight, left):
        os.utime(file, LONG_AGO)
    return inflight, left


def lose_planned_log(path: Path) -> None:
    next(path.glob("*/.*.log.*")).unlink()


@VERSIONS
def test_a_dead_executor_and_a_lost_input(version: int, tmp_path: Path) -> None:
    """Hudi's own compaction fails at the lost file and leaves its inflight file: the command that is named works."""
    path = tmp_path / "t"
    instant = planned(path, version)
    inflight, left = leave_executor(path, instant)
    lose_planned_log(path)
    with pytest.raises(MissingFileError, match=f"unschedule TABLE {instant}"):
        run_all(open_table(path))
    unschedule(open_table(path), instant, LOCK)
    assert pending_instants(open_table(path)) == ()
    assert not inflight.exists()
    assert not left.exists()
    assert set(read_rows(path)) == set(BEFORE)
    upsert(LocalStorage(str(path)), rows((0, 5, 5.0)))
    assert read_rows(path)["k0000"] == (5, 5.0)


@VERSIONS
def test_died_at_every_call_the_executor_s_state_is_still_one_that_hudi_knows(version: int, tmp_path: Path) -> None:
    """No inflight file without its plan: readers would look for the plan."""
    origin = tmp_path / "origin"
    instant = planned(origin, version)
    leave_executor(origin, instant)
    number, ended = 0, False
    while not ended:
        path = shutil.copytree(origin, tmp_path / f"t{number}")
        try:
            unschedule(open_table(path, HookedStorage(LocalStorage(str(path)), die_at(number))), instant, LOCK)
            ended = True
        except ProcessDied:
            pass
        assert read_rows(path) == BEFORE
        if pending_instants(open_table(path)):
            unschedule(open_table(path), instant, LOCK)
        assert pending_instants(open_table(path)) == ()
        assert read_rows(path) == BEFORE
        check_no_strays(path)
        number += 2


@VERSIONS
def test_another_executor_begins_meanwhile(version: int, tmp_path: Path) -> None:
    """Plan and inflight file are back: its successor finds what Hudi expects."""
    path = tmp_path / "t"
    instant = planned(path, version)
    inflight, _ = leave_executor(path, instant)

    def hook(call: Call) -> Any:
        result = call.do()
        if call.name == "delete" and call.path.endswith(".compaction.requested"):
            inflight.write_bytes(b"")
        return result

    with pytest.raises(ConflictError, match="Hudi compactor"):
        unschedule(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), instant, LOCK)
    assert inflight.exists()
    assert pending_instants(open_table(path)) == (instant,)
    assert read_rows(path) == BEFORE


@VERSIONS
def test_put_back_after_a_conflict_the_dead_executor_shows_too(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    instant = planned(path, version)
    inflight, left = leave_executor(path, instant)

    def hook(call: Call) -> Any:
        result = call.do()
        if call.name == "delete" and call.path.endswith(".compaction.requested"):
            left.write_bytes(b"")  # a process that was taken for dead
        return result

    with pytest.raises(ConflictError, match="file of this instant"):
        unschedule(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), instant, LOCK)
    assert inflight.exists()
    assert pending_instants(open_table(path)) == (instant,)
    assert read_rows(path) == BEFORE


def test_an_executor_that_may_live_is_left_alone(tmp_path: Path) -> None:
    """Its inflight file is old, but not what it has just written."""
    path = tmp_path / "t"
    instant = planned(path, 9)
    inflight, left = leave_executor(path, instant)
    os.utime(left)
    with pytest.raises(ConflictError, match=r"is or was at work.*wait until"):
        unschedule(open_table(path), instant, LOCK)
    assert inflight.exists()
    assert left.exists()


def test_on_version_6_with_writes_on_the_plan_the_errors_name_what_works(tmp_path: Path) -> None:
    """A lost input, and a log that only the plan shows: neither command ends it, so neither names the other."""
    path = tmp_path / "t"
    planned(path, 6)
    gone = next(path.glob("*/.*.log.*"))
    kept = gone.read_bytes()
    upsert(LocalStorage(str(path)), rows((3, 5, 5.0)))
    gone.unlink()
    (instant,) = pending_instants(open_table(path))
    with pytest.raises(MissingFileError) as lost:
        run_all(open_table(path))
    assert "compactor-daemon unschedule" not in str(lost.value)
    assert "restore the table with Hudi to an instant before the plan" in str(lost.value)
    with pytest.raises(ConflictError, match="restore the table with Hudi to an instant before the plan"):
        unschedule(open_table(path), instant, LOCK)
    gone.write_bytes(kept)
    run_all(open_table(path))
    assert read_rows(path) == {**BEFORE, "k0003": (5, 5.0)}
