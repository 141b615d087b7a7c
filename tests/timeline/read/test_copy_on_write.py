"""A COPY_ON_WRITE table of Hudi 1.2.0 (version 9): snapshots and windows as Hudi reads them, and change feeds.

`tests/golden/more/v9_copy_on_write.zip`: an upsert, a delete, a clustering and an upsert after it, each with what Hudi
read then, and with its answers to incremental queries.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq

from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import Table
from phantombase.timeline.windows.streamed import groups_written
from tests.support.change_feeds import State, check_window, key, moments_of, plain, services_of
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden

NAME = "more/v9_copy_on_write"


def opened(into: Path) -> tuple[Table, Path]:
    """The table, and the folder of what Hudi read."""
    path = unzip_golden(NAME, into)
    return Table.open(str(path), reading=True), path.with_name(f"{path.name}.expected")


def test_windows_as_hudi_reads_them(tmp_path: Path) -> None:
    """Every column, meta columns included."""
    table, hudis = opened(tmp_path)
    answers = sorted(hudis.glob("incremental_*"))
    assert len(answers) == 6
    for answer in answers:
        _, begin, end = answer.stem.split("_")
        rows = read_table(table, ReadOptions(query=Query.INCREMENTAL, begin=begin, end=end))
        assert_same_rows(rows, pq.read_table(answer))


def test_change_feeds_lead_from_state_to_state(tmp_path: Path) -> None:
    """The clustering changes nothing."""
    table, hudis = opened(tmp_path)
    states: dict[str, State] = {"": {}} | {
        moment: {key(row): plain(row) for row in pq.read_table(hudis / f"snapshot_{moment}.parquet").to_pylist()}
        for moment in moments_of(table)[1:]
    }
    assert list(states) == moments_of(table)
    for begin, end in [*pairwise(states), ("", max(states))]:
        check_window(table, begin, end, states)
    assert len(services_of(table)) == 1


def test_a_stream_counts_its_writes(tmp_path: Path) -> None:
    """By moment: the rows that the commits of the writes name."""
    table, _ = opened(tmp_path)
    moments = moments_of(table)
    written = [sum(one.rows for _, one in groups_written(table, b or "earliest", e)) for b, e in pairwise(moments)]
    assert written[0] == 20
    assert [rows > 0 for rows in written] == [True, True, True, False, True]
