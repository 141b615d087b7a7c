"""Hudi 0.15 with optimistic concurrency plans beside a pending write below the plan, which then completes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.timeline.errors import BarrierError
from phantombase.timeline.storage.local import LocalStorage
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import Judge
from tests.support.compaction_steps import open_table, run_one
from tests.support.failing_storage import Call, HookedStorage

pytestmark = pytest.mark.interop

OPTIMISTIC: dict[str, object] = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
}


@pytest.mark.parametrize("version", [6], indirect=True, ids="v{}".format)
def test_a_write_below_hudi_s_plan_is_read_whenever_it_completes(judge: Judge, version: int, tmp_path: Path) -> None:
    """At each look of ours at the timeline, when every file slice was staged by an attempt before."""
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


class Completes:
    """Completes a write just before the n-th listing of the timeline (from 1)."""

    def __init__(self, table: SharedTable, path: str, content: bytes, number: int) -> None:
        self._table, self._path, self._content, self._number = table, path, content, number
        self.looks = 0

    def hook(self, call: Call) -> Any:
        if call.name == "list" and call.path == self._path.rpartition("/")[0]:
            self.looks += 1
            if self.looks == self._number:
                self._table.open().storage.put_if_absent(self._path, self._content)
        return call.do()
