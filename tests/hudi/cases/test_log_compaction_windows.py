"""Real Hudi 1.2.0 compacts what its log compactions have restamped: incremental reads still know the writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from tests.hudi.judge.fixtures import Judges
from tests.support.change_feeds import COMMIT_TIME, check, services_of
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep

pytestmark = [pytest.mark.interop, pytest.mark.deep]


@pytest.mark.parametrize("name", ["v9_log_compacted", deep("v8_log_compacted")])
def test_hudis_compaction_of_its_log_compactions(name: str, judges: Judges, tmp_path: Path) -> None:
    """The plan is Hudi's too; its base files have the stamps."""
    path, judge = unzip_golden(name, tmp_path), judges("1.2.0")
    (instant,) = (i.requested_time for i in open_table(path).load_timeline().pending("compaction"))
    assert judge.run_compaction(path, instant) == [instant]
    table = open_table(path)
    base_files = read_table(table, ReadOptions(query=Query.READ_OPTIMIZED))
    assert set(base_files.column(COMMIT_TIME).to_pylist()) & services_of(table)
    check(table)
