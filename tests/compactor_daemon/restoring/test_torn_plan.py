"""The plan of a restore that cannot be read, as a killed Hudi leaves it: nothing is undone, and the table goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from phantombase.compactor_daemon.status.snapshot import look_at_table
from phantombase.timeline.errors import ConflictError, MalformedError, UsageError
from phantombase.timeline.format.instant import Instant, State
from tests.support.archived_tables import one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.lost_lock import roll_back_half_way, small_table
from tests.support.restored_tables import check_usable, restore
from tests.support.tables import one_of
from tests.support.written_tables import read_rows


def torn(path: Path, data: bytes, state: State = State.REQUESTED) -> Path:
    table = open_table(path)
    time_ = table.next_time(table.load_timeline())
    instant = Instant(requested_time=time_, action="restore", state=State.REQUESTED)
    file = path / table.instant_path(instant)
    file.write_bytes(data)
    if state is State.INFLIGHT:
        (path / table.instant_path(instant.at(State.INFLIGHT))).write_bytes(b"")
    return file


def age(file: Path) -> None:
    os.utime(file, (time.time() - 130,) * 2)


@pytest.mark.parametrize("data", [b"", b"Obj\x01 cut"])
@one_of("version", 9, 8, 6)
def test_it_is_removed_by_a_restore_once_no_process_writes_it(version: int, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    first = small_table(path, version)
    rows, file = read_rows(path), torn(path, data)
    for target in (first, None):
        with pytest.raises(MalformedError, match="removes it once it has not changed for two minutes"):
            restore(path, target)
    age(file)
    with pytest.raises(ConflictError, match="a restore of the table is half-way"):
        upsert(path, one_row("k2", 2))
    with pytest.raises(MalformedError):
        restore(path, first, dry_run=True)
    assert file.exists()
    with pytest.raises(UsageError, match="no restore is pending"):
        restore(path, None)
    assert not file.exists()
    check_usable(path, rows)


@one_of("version", 6, 9, 8)
def test_one_that_has_begun_stays(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    first = small_table(path, version)
    file = torn(path, b"", State.INFLIGHT)
    age(file)
    with pytest.raises(MalformedError, match="restore the table with Hudi to the same instant"):
        restore(path, first)
    assert file.exists()


@one_of("version", 9, 8, 6)
def test_status_names_the_write_of_a_rollback_that_is_half_way(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_table(path, version)
    newest = max(open_table(path).load_timeline().completed_writes)
    roll_back_half_way(path, newest)
    ((instant, finishes),) = look_at_table(open_table(path)).half_way
    assert instant.action == "rollback"
    assert finishes == f"compactor-daemon rollback TABLE {newest}, or Hudi"
