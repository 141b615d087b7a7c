"""Beside real Hudi 0.15.0's clustering of the same table: the same rows, and what each of the two joins."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.view.view import GroupKey, is_replaced
from tests.support.cleaned_tables import unzip
from tests.support.clustered_tables import stitch
from tests.support.compaction_steps import open_table
from tests.support.compare_rows import assert_same_rows


def _rows(path: Path) -> pa.Table:
    """Without the names of the files: the rows are in others."""
    return read_table(open_table(path)).drop_columns(["_hoodie_file_name"])


def living(path: Path) -> dict[GroupKey, bool]:
    """The file groups that are not replaced, each with whether its newest slice has log files."""
    view = open_table(path).load_view()
    return {g.key: bool(g.slices[-1].logs) for g in view.groups if g.slices and not is_replaced(g, view.facts)}


def test_the_same_rows_and_file_groups(tmp_path: Path) -> None:
    """Both make one file of each partition. A file group with log files is left to a compaction by phantombase."""
    before, after = unzip("v6_0.15.0_cluster.before", tmp_path), unzip("v6_0.15.0_cluster.after", tmp_path)
    rows, with_logs = _rows(before), {key for key, logs in living(before).items() if logs}
    assert_same_rows(_rows(after), rows)
    assert with_logs
    planned = living(before).keys() - with_logs
    result = stitch(before)
    assert result.done is not None
    assert (result.done.files, result.done.made) == (len(planned), 2)
    assert_same_rows(_rows(before), rows)
    replaced = open_table(before).facts.replaced_groups(open_table(before).load_timeline())
    theirs = open_table(after).facts.replaced_groups(open_table(after).load_timeline())
    assert replaced.keys() == theirs.keys() - with_logs
    assert len(living(after)) == len(living(before).keys() - with_logs)


def test_what_hudi_planned_is_left_to_hudi(tmp_path: Path) -> None:
    path = unzip("v6_0.15.0_cluster.scheduled", tmp_path)
    rows = _rows(path)
    result = stitch(path)
    assert (result.done, result.finished, result.taken_back) == (None, (), ())
    assert_same_rows(_rows(path), rows)
