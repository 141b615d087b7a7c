"""What was written before an upgrade from version 6: undone whole, or refused before anything is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.compactor_daemon.restoring.restore import restore_table, to_undo
from phantombase.compactor_daemon.restoring.rollback import roll_back_newest
from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.restore import RestorePlan, encode_restore_plan
from phantombase.timeline.read.table_read import ReadOptions, read_table
from tests.support.archived_tables import LOCK
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden

FIRST, LAST = "20261121100505698", "20261121100514783"
"""Writes of version 6: the later ones are in log files that are named after the first."""


def files(path: Path) -> set[Path]:
    return {p for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("dry_run", [False, True], ids=["restore", "dry run"])
def test_blocks_of_version_6_are_not_left_in_place(dry_run: bool, tmp_path: Path) -> None:
    path = unzip_golden("v9_upgraded", tmp_path)
    before = files(path)
    with pytest.raises(UsageError, match=f"upgrade from version 6.*expected a state from {LAST} on"):
        restore_table(open_table(path), LOCK, FIRST, dry_run=dry_run)
    assert files(path) == before


def test_the_last_state_of_version_6_comes_back_and_its_write_stays(tmp_path: Path) -> None:
    path = unzip_golden("v9_upgraded", tmp_path)
    rows = read_table(open_table(path), ReadOptions(as_of=LAST)).sort_by("_hoodie_record_key")
    restore_table(open_table(path), LOCK, LAST)
    assert read_table(open_table(path)).sort_by("_hoodie_record_key").equals(rows)
    before = files(path)
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="upgrade from version 6"):
            roll_back_newest(open_table(path), LOCK, LAST, dry_run=dry_run)
        assert files(path) == before


@pytest.mark.parametrize("dry_run", [False, True], ids=["restore", "dry run"])
def test_a_restore_of_hudi_that_is_half_way_is_left_to_hudi(dry_run: bool, tmp_path: Path) -> None:
    """Another one cannot begin, so a later state is no way out."""
    path = unzip_golden("v9_upgraded", tmp_path)
    table = open_table(path)
    timeline = table.load_timeline()
    plan = RestorePlan(target=FIRST, undone=to_undo(timeline, FIRST))
    requested = Instant(requested_time=table.next_time(timeline), action="restore", state=State.REQUESTED)
    table.storage.put_if_absent(table.instant_path(requested), encode_restore_plan(plan))
    before = files(path)
    with pytest.raises(UsageError, match=r"half-way\. Only Hudi can finish it"):
        restore_table(open_table(path), LOCK, None, dry_run=dry_run)
    assert files(path) == before
