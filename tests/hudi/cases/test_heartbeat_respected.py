"""Hudi 1.2 in a multi-writer mode leaves a plan alone while our attempt at it shows a heartbeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.timeline.locks.heartbeat import heartbeat, heartbeat_path
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import MULTI_WRITER, SharedTable
from tests.hudi.judge.client import Judge, JudgeError
from tests.support.selection import versions

pytestmark = pytest.mark.interop


@versions(9, deep=[8])
def test_hudi_refuses_a_plan_we_are_at(judge: Judge, version: int, tmp_path: Path) -> None:
    """It refuses while the heartbeat is fresh, and executes the plan when it is gone."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version), Rows(seed=1)
    table.create(rows(range(30), 1))
    table.upsert(rows(range(10), 2))
    instant = table.hudi_schedules()
    with heartbeat(table.open().storage, instant, 1.0), pytest.raises(JudgeError, match="heartbeat"):
        judge.run_compaction(table.path, instant, MULTI_WRITER)
    assert table.pending() == [instant]
    assert not (table.path / heartbeat_path(instant)).exists()
    before = table.agree()
    assert judge.run_compaction(table.path, instant, MULTI_WRITER) == [instant]
    same(table.agree(), before)
