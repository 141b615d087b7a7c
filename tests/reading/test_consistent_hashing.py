"""Tables with consistent-hashing buckets whose resize is pending, made by Hudi 1.2.0 and 0.15.0.

`tests/golden/more/v9_resize_pending.zip`, `v6_resize_pending.zip`: two upserts into two buckets of two partitions, the
plan of a clustering that splits each of them, an upsert and a delete under it, which Hudi wrote into old and new ones.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.format.file_name import LogFileName, parse_data_file
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from tests.support.compaction_steps import open_table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden

LOCK = ProcessLock("buckets")
pytestmark = pytest.mark.parametrize("version", ["v6", "v9"])


def test_each_row_once(version: str, tmp_path: Path) -> None:
    """As Hudi reads it, and in each window of time."""
    path = unzip_golden(f"more/{version}_resize_pending", tmp_path)
    hudis = path.with_name(f"{path.name}.expected")
    for query, file in ((Query.SNAPSHOT, "snapshot"), (Query.READ_OPTIMIZED, "read_optimized")):
        assert_same_rows(
            read_table(open_table(path), ReadOptions(query=query)), pq.read_table(hudis / f"{file}.parquet")
        )
    rows = read_table(open_table(path), ReadOptions(query=Query.INCREMENTAL, begin="earliest"))
    assert_same_rows(rows, pq.read_table(hudis / "snapshot.parquet"))


def test_nothing_of_the_resize_is_planned_or_cleaned(version: str, tmp_path: Path) -> None:
    """Neither what it will replace nor what it will make."""
    path = unzip_golden(f"more/{version}_resize_pending", tmp_path)
    view = open_table(path).load_view()
    forming = view.facts.forming
    on_storage = {
        (file.parent.name, name.file_id)
        for file in path.glob("*/.*.log.*")
        if isinstance(name := parse_data_file(file.name), LogFileName)
    }
    assert on_storage & forming
    assert {group.key for group in view.groups} == on_storage - forming
    planned = schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    assert planned.instant is None
    assert "in a pending clustering" in planned.why
    assert not clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK).gone
