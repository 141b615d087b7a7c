"""Hudi 0.15 with optimistic concurrency plans beside a pending write below the plan, which then completes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.timeline.errors import BarrierError
from phantombase.timeline.storage.local import LocalStorage
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import OPTIMISTIC, Completes, SharedTable
from tests.hudi.judge.client import Judge
from tests.support.compaction_steps import open_table, run_one
from tests.support.failing_storage import HookedStorage

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("version", [6], indirect=True, ids="v{}".format)
def test_a_write_below_hudi_s_plan_is_read_whenever_it_completes(judge: Judge, version: int, tmp_path: Path) -> None:
    """At each snapshot of ours at the timeline, when every file slice was staged by an attempt before."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version), Rows(seed=version)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(10), 2))
    table.upsert(rows(range(5), 3))
    expected = table.agree()
    opened = table.open()
    timeline = opened.load_timeline()
    done = opened.instant_path(timeline.completed_writes[timeline.latest_completed])
    content = opened.storage.read(done)
    opened.storage.delete(done)
    instant = judge.schedule_compaction(table.path, OPTIMISTIC)
    assert instant is not None
    with pytest.raises(BarrierError):
        table.we_compact(attempt=AttemptOptions(barrier_s=0.3))

    for number in count(1):
        left = replace(table, path=tmp_path / f"look{number}")
        shutil.copytree(table.path, left.path)
        completes = Completes(left, done, content, number)
        storage = HookedStorage(LocalStorage(str(left.path)), completes.hook)
        try:
            run_one(open_table(left.path, storage), instant)
        except BarrierError:
            break
        assert completes.looks >= number
        same(left.agree(), expected)
    assert number > 3, "the write was never completed between two looks"
