"""Version 6: a restore of a plan leaves a slice of logs that hides rows once Hudi has archived past the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hudi.cases.rows import Rows, same, without_files
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import Judge
from tests.support.selection import deep

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("version", [6], indirect=True)
@pytest.mark.parametrize("compacted", [deep(False), deep(True)])
def test_archiving_past_a_restored_plan(compacted: bool, judge: Judge, tmp_path: Path) -> None:
    """0.15 hides every row of its file groups, and so do we; after a compaction behind the restore none is hidden."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=6), Rows(seed=6)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(10), 2))
    savepoint = judge.savepoint(table.path)
    assert savepoint is not None
    plan = table.hudi_schedules()
    table.upsert(rows(range(5), 3))  # its logs are on the plan's slice
    judge.restore(table.path, savepoint)
    judge.delete_savepoint(table.path, savepoint)
    table.upsert(rows(range(12), 4))
    if compacted:
        assert table.we_compact(table.we_schedule())
    for ts in range(5, 10):
        table.upsert(rows(range(12), ts))
    before = table.agree()
    assert before.num_rows == 20
    judge.clean(table.path)
    for _ in range(2):
        judge.archive(table.path)
    assert table.open().load_timeline().start > plan
    after = table.agree()
    if compacted:
        same(without_files(after), without_files(before))
    else:
        assert after.num_rows == 0
