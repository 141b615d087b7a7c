"""Incremental reads of every golden table give what real Hudi gave; where it is wrong, the merged slice, filtered."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import Table
from tests.support.change_feeds import services_of
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import GOLDEN, unzip_golden
from tests.support.incremental_answers import Answer, incremental_answers
from tests.support.selection import deep

USUAL = {"v6_compacted_cleaned", "v6_event_time", "v8_log_compacted", "v9_archived", "v9_clustered", "v9_replaced"}
RESTAMPED = {"v8_log_compacted", "v9_log_compacted"}
"""Which rows ours are, `test_incremental_log_compaction` checks."""
STAMPS = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_file_name"]
NAMES = [name if name in USUAL else deep(name) for name in GOLDEN]


@pytest.mark.parametrize("name", NAMES)
def test_windows_as_hudi_gave_them(name: str, tmp_path: Path) -> None:
    """Each window: its rows in every column, or a refusal where Hudi refuses."""
    table = Table.open(str(unzip_golden(name, tmp_path)))
    for answer in incremental_answers(name):
        rows = read_or_refusal(table, answer)
        if not answer.judged:
            check_by_time_travel(table, answer, rows)
        elif answer.rows is None:
            assert rows is None, answer
        else:
            assert rows is not None, answer
            if name in RESTAMPED and answer.begin.strip("0"):
                check_restamped(table, rows, answer.rows)
            else:
                assert_same_rows(rows, answer.rows)


def check_restamped(table: Table, rows: pa.Table, theirs: pa.Table) -> None:
    """Hudi gives rows with the time of its log compaction again: those that ours lack."""
    here = pc.is_in(theirs.column("_hoodie_record_key"), rows.column("_hoodie_record_key"))
    again = theirs.filter(pc.invert(here)).column("_hoodie_commit_time").to_pylist()
    assert set(again) <= services_of(table)
    assert_same_rows(rows.drop_columns(STAMPS), theirs.filter(here).drop_columns(STAMPS))


def read_or_refusal(table: Table, answer: Answer) -> pa.Table | None:
    """The rows of a window; None if it is refused."""
    try:
        return read_table(table, ReadOptions(query=Query.INCREMENTAL, begin=answer.begin, end=answer.end))
    except (UsageError, UnsupportedError):
        return None


def check_by_time_travel(table: Table, answer: Answer, rows: pa.Table | None) -> None:
    """Files of that time were cleaned: refused, or what Hudi gave, or what time travel still shows."""
    if rows is None or (answer.rows is not None and rows.num_rows == answer.rows.num_rows):
        return
    timeline = table.load_timeline(archived=True)
    inside = [w.requested_time for w in timeline.completed if answer.begin < timeline.moment_of(w) <= str(answer.end)]
    seen = read_table(table, ReadOptions(as_of=max(inside))) if inside else rows.slice(0, 0)
    assert_same_rows(rows, seen.filter(pc.is_in(seen.column("_hoodie_commit_time"), pa.array(inside, pa.string()))))
