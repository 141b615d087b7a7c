"""Rows that a log compaction of Hudi 1.2 restamped, in windows around it: none is left out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep

COMMIT_TIME, KEY = "_hoodie_commit_time", "_hoodie_record_key"


@pytest.mark.parametrize("name", [deep("v8_log_compacted"), "v9_log_compacted"])
def test_a_log_compaction_of_older_writes_is_no_change(name: str, tmp_path: Path) -> None:
    """The window begins at the last write that it merged: Hudi's stamp lies in the window, its rows do not."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    timeline = table.load_timeline()
    operations = {w: table.commit_metadata(w).operation_type for w in timeline.completed}
    stamp = [w for w in timeline.completed if operations[w] == "LOG_COMPACT"][-1]
    before = [w for w in timeline.completed if w.requested_time < stamp.requested_time]
    begin = max(timeline.moment_of(w) for w in before)
    after = {w.requested_time for w in timeline.completed if w.requested_time > stamp.requested_time}
    assert stamp.requested_time in read_table(table).column(COMMIT_TIME).to_pylist()
    rows = read_table(table, ReadOptions(query=Query.INCREMENTAL, begin=begin))
    assert rows.num_rows > 0
    assert set(rows.column(COMMIT_TIME).to_pylist()) <= after


@pytest.mark.parametrize("name", [deep("v8_log_compacted"), "v9_log_compacted"])
def test_a_log_compaction_of_writes_of_both_kinds_loses_none(name: str, tmp_path: Path) -> None:
    """Before the log compaction a window shows which keys were written: each of them that is still there comes."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    timeline = table.load_timeline()
    alive = set(read_table(table).column(KEY).to_pylist())
    moments = [timeline.moment_of(w) for w in timeline.completed]
    for begin, end in pairwise(moments):
        written = read_table(table, ReadOptions(query=Query.INCREMENTAL, begin=begin, end=end))
        later = read_table(table, ReadOptions(query=Query.INCREMENTAL, begin=begin))
        assert set(written.column(KEY).to_pylist()) & alive <= set(later.column(KEY).to_pylist())
