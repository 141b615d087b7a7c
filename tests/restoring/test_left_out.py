"""A compaction leaves out a file group that was replaced while it pended; then the replacing write is taken back."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.restoring.restore import restore_table
from phantombase.compactor_daemon.restoring.rollback import roll_back_newest
from phantombase.timeline.errors import UsageError
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import LOCK, one_row, overwrite, upsert
from tests.support.compaction_steps import open_table, run_all
from tests.support.written_tables import written_table

_WRITES = WriteOptions(slots=1)
_STATE = {("k0", 2), ("k1", 0)}


def rows(table: Table, as_of: str | None = None) -> set[tuple[str, int]]:
    found = read_table(table, ReadOptions(as_of=as_of))
    return set(zip(found["id"].to_pylist(), found["ts"].to_pylist(), strict=True))


def left_out(path: Path, version: int) -> tuple[str, str]:
    """A table; the last write before an overwrite beside a pending compaction, which then completes; the overwrite."""
    written_table(path, version, pa.concat_tables([one_row("k0", 0), one_row("k1", 0)]), _WRITES)
    upsert(path, one_row("k0", 1), _WRITES)
    assert schedule_compaction(open_table(path), LOCK, PLAN_NOW).instant is not None
    upsert(path, one_row("k0", 2), _WRITES)
    before = open_table(path).load_timeline().latest_completed
    overwrite(path, one_row("n", 3))
    replacing = open_table(path).load_timeline().latest_completed
    run_all(open_table(path))
    return before, replacing


@pytest.mark.parametrize("version", [6, 8, 9])
def test_the_state_before_is_read_whole_and_not_restored(version: int, tmp_path: Path) -> None:
    """Restored, Hudi's readers of version 6 would miss the rows of the base file that was not made."""
    path = tmp_path / "t"
    before, replacing = left_out(path, version)
    assert rows(open_table(path), before) == _STATE
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="left out a file group"):
            restore_table(open_table(path), LOCK, before, dry_run=dry_run)
        with pytest.raises(UsageError, match=r"left out a file group|only the newest"):
            roll_back_newest(open_table(path), LOCK, replacing, dry_run=dry_run)
    assert rows(open_table(path)) == {("n", 3)}


@pytest.mark.parametrize("version", [6, 9])
def test_states_before_and_behind_are_restored(version: int, tmp_path: Path) -> None:
    """The compaction goes, or the replacing write stays."""
    path = tmp_path / "t"
    _, replacing = left_out(path, version)
    upsert(path, one_row("n", 4), _WRITES)
    restore_table(open_table(path), LOCK, replacing)
    assert rows(open_table(path)) == {("n", 3)}
    second = sorted(open_table(path).load_timeline().completed_writes)[1]
    restore_table(open_table(path), LOCK, second)
    assert rows(open_table(path)) == {("k0", 1), ("k1", 0)}
