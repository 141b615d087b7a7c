"""Time travel behind a clean: refused up to what the clean has retained, whichever policy the cleaner had."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.timeline.errors import UsageError
from phantombase.timeline.read.table_read import ReadOptions, plan_read
from tests.support.cleaned_tables import change_clean
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden
from tests.support.tables import one_of


@one_of("name", "v9_compacted_cleaned", "v6_compacted_cleaned")
def test_a_point_before_the_retained_commit_is_refused(name: str, tmp_path: Path) -> None:
    """In each of Hudi's forms; the retained commit itself is read."""
    path = unzip_golden(name, tmp_path)
    with pytest.raises(UsageError, match="may have been cleaned") as caught:
        plan_read(open_table(path), ReadOptions(as_of="2026-11-21T00:00:00"))
    retained = str(caught.value.expected).split()[0]
    assert plan_read(open_table(path), ReadOptions(as_of=retained)).to_table().num_rows > 0
    with pytest.raises(UsageError, match="may have been cleaned"):
        plan_read(open_table(path), ReadOptions(as_of=str(int(retained) - 1)))


def test_a_cleaner_of_file_versions_names_no_commit(tmp_path: Path) -> None:
    """It may have removed files of any state before the one that it found: that and later ones are whole."""
    path = unzip_golden("v9_compacted_cleaned", tmp_path)
    change_clean(path, earliestCommitToRetain="")
    timeline = open_table(path).load_timeline()
    clean = next(i for i in timeline.instants if i.action == "clean").requested_time
    older, found = sorted(w for w in timeline.completed_writes if w < clean)[-2:]
    with pytest.raises(UsageError, match="may have been cleaned") as caught:
        plan_read(open_table(path), ReadOptions(as_of=older))
    assert str(caught.value.expected).startswith(clean)
    for whole in (found, timeline.latest_completed):
        plan_read(open_table(path), ReadOptions(as_of=whole))


def test_a_clean_that_removed_nothing_is_passed_over(tmp_path: Path) -> None:
    """Then every point is whole."""
    path = unzip_golden("v9_compacted_cleaned", tmp_path)
    change_clean(path, earliestCommitToRetain="", totalFilesDeleted=0)
    plan_read(open_table(path), ReadOptions(as_of="2026-11-21"))
