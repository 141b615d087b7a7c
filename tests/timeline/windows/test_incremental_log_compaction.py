"""Rows that a log compaction of Hudi 1.2 restamped are delivered by their writes, in every window around it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from phantombase import schedule
from phantombase.timeline.read.table_read import Query, ReadOptions, plan_read, read_table
from phantombase.timeline.table.table import Table
from tests.support.change_feeds import moments_of, restamped_by_clustering, services_of
from tests.support.cleaned_tables import clean
from tests.support.compaction_steps import open_table, run_all
from tests.support.golden_tables import unzip_golden
from tests.support.log_compactions import COMMIT_TIME, KEY, check, window
from tests.support.selection import deep

TABLES = ["v9_log_compacted", deep("v8_log_compacted"), deep("v6_log_compacted")]


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_a_log_compaction_are_those_of_their_writes(name: str, tmp_path: Path) -> None:
    """Its originals are still in the slice."""
    table = open_table(unzip_golden(name, tmp_path))
    stamped = set(read_table(table).column(COMMIT_TIME).to_pylist()) & services_of(table)
    assert bool(stamped) == table.layout.has_completion_times
    check(table)


@pytest.mark.parametrize("name", TABLES)
def test_so_they_are_behind_a_compaction(name: str, tmp_path: Path) -> None:
    """The base file has the stamps; the slice before it tells the writes."""
    table = open_table(unzip_golden(name, tmp_path))
    schedule(table, sole_writer=True)
    run_all(table)
    check(table)


def test_rows_of_a_clustering_that_restamps_are_those_of_their_writes(tmp_path: Path) -> None:
    """The file groups that it replaced tell the writes."""
    check(restamped_by_clustering(tmp_path))


def compacted(tmp_path: Path) -> tuple[Table, str, set[str]]:
    """A table whose log compactions were compacted, the end of the first of two writes that one merged, their times."""
    table = open_table(unzip_golden("v9_log_compacted", tmp_path))
    timeline = table.load_timeline()
    begin = timeline.moment_of(timeline.completed[4])
    stamps = services_of(table)
    schedule(table, sole_writer=True)
    run_all(table)
    return table, begin, stamps


def test_a_filter_on_times_means_those_of_the_writes(tmp_path: Path) -> None:
    """The base file has only the stamps."""
    table, begin, stamps = compacted(tmp_path)
    last = moments_of(table)[-1]
    whole = window(table, begin, last)
    for time in sorted({*whole.values()}):
        asked = window(table, begin, last, filter=f"{COMMIT_TIME} = '{time}'")
        assert asked == {key: one for key, one in whole.items() if one == time}
    for stamp in stamps:
        assert not window(table, begin, last, filter=f"{COMMIT_TIME} = '{stamp}'")
    fares = ReadOptions(query=Query.INCREMENTAL, begin=begin, columns=("fare",), filter="fare > 50")
    rows = read_table(table, fares)
    assert rows.column_names == ["fare"]
    assert 0 < rows.num_rows < len(whole)


@pytest.mark.parametrize("half", [False, True])
def test_rows_come_again_where_a_clean_took_what_went_into_the_log_compaction(half: bool, tmp_path: Path) -> None:
    """Nothing tells their writes then; none is missing. The same while a reader reads, and when half of it is there."""
    table, begin, stamps = compacted(tmp_path)
    path, end = Path(table.storage.base_path), moments_of(table)[-1]
    whole = window(table, begin, end)
    scan = plan_read(table, ReadOptions(query=Query.INCREMENTAL, begin=begin, end=end))
    shutil.copytree(path, tmp_path / "before")
    assert clean(path).files
    following = min(w for w in table.load_timeline().completed if table.load_timeline().moment_of(w) > begin)
    for file in (tmp_path / "before").glob("*/.*.log.*") if half else ():
        if following.requested_time not in file.name:
            shutil.copy(file, path / file.relative_to(tmp_path / "before"))
    late = scan.to_table()
    found = dict(zip(late.column(KEY).to_pylist(), late.column(COMMIT_TIME).to_pylist(), strict=True))
    assert found == window(table, begin, end)
    assert whole.keys() < found.keys()
    assert all(time in stamps or whole[key] == time for key, time in found.items())
