"""A window is refused as soon as a clean may have removed its files, and never shrinks without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase import ReadOptions, UsageError, read, read_table
from phantombase.timeline.read.table_read import Query
from phantombase.timeline.windows.retained import cleans, earliest_state, retained_since
from tests.support.cleaned_tables import change_clean
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden
from tests.support.tables import one_of

CLEANED = ["v6_compacted_cleaned", "v6_archived", "v9_compacted_cleaned", "v9_archived"]


def window(path: Path, end: str) -> int:
    found: int = read_table(path, ReadOptions(query=Query.INCREMENTAL, begin="earliest", end=end)).num_rows
    return found


@pytest.mark.parametrize("name", CLEANED)
def test_a_clean_that_was_killed_counts_as_one_that_ended(name: str, tmp_path: Path) -> None:
    """It removes files from its beginning on."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    retained = retained_since(table, table.load_timeline())
    before = [t for t in sorted(table.load_timeline().completed_writes) if t < retained][:-1]
    for clean in [*(path / ".hoodie").glob("*.clean"), *(path / ".hoodie/timeline").glob("*.clean")]:
        clean.unlink()
    assert retained_since(table, table.load_timeline()) == retained
    for end in before:
        with pytest.raises(UsageError, match="have been cleaned"):
            window(path, end)


@one_of("name", "v9_archived", "v6_archived")
def test_what_an_earlier_clean_removed_stays_gone(name: str, tmp_path: Path) -> None:
    """The last one retained more commits again."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    timeline = table.load_timeline()
    assert len(cleans(timeline)) > 1
    before = max(c.requested_time for c in cleans(timeline)[:-1])
    change_clean(path, earliestCommitToRetain="20000101000000000")
    assert "20000101000000000" < retained_since(table, open_table(path).load_timeline()) < before


def test_on_version_6_nothing_is_known_of_writes_before_the_timeline(tmp_path: Path) -> None:
    path = unzip_golden("v6_archived", tmp_path)
    table = open_table(path)
    timeline = table.load_timeline()
    assert earliest_state(timeline, min(timeline.completed_writes)) == min(timeline.completed_writes)


def test_rows_of_a_window_are_refused_while_a_write_is_pending_below_its_end(tmp_path: Path) -> None:
    """A writer with a slow clock: its rows belong to the window, and may still come."""
    path = unzip_golden("v6_plain", tmp_path)
    writes = sorted(open_table(path).load_timeline().completed_writes)
    rows = read(path, query="incremental", begin=writes[0])
    assert rows.to_arrow().num_rows
    for state in ("requested", "inflight"):
        (path / f".hoodie/{int(writes[0]) + 1}.deltacommit.{state}").write_bytes(b"")
    with pytest.raises(UsageError, match="does not reach to its end any more"):
        rows.to_arrow()
