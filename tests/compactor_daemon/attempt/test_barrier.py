"""Writes that pend while a compaction below which they may fall is at work."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from phantombase.timeline.errors import BarrierError
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import TableView
from phantombase.writer_hooks.options import WriteOptions
from tests.support.compaction_steps import open_table, run_one
from tests.support.failing_storage import Call, HookedStorage
from tests.support.moved_tables import NEW, OLD, nothing, schedule, upsert
from tests.support.tables import one_of
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table

_WAIT_S = 60


@one_of("version", 9, 6)
def test_a_write_that_completes_after_the_view_of_an_attempt_that_adopts_everything(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On version 6 it lies below the plan: it is merged, though the attempt has nothing to stage."""
    path = tmp_path / "trips"
    written_table(path, version, rows((0, 1, 1.0), (3, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    upsert(LocalStorage(str(path)), rows((0, 2, 2.0)))
    # Hudi 0.15 under OCC, or with lazy cleaning, plans while a write pends, and completes such a write.
    monkeypatch.setattr("phantombase.timeline.planning.planner.pending_writer", nothing)
    monkeypatch.setattr("phantombase.writer_hooks.commit.transaction.conflict_with_plans", nothing)
    staged, go_on = threading.Event(), threading.Event()
    planned: list[str] = []

    def hook(call: Call) -> Any:
        if call.name == "place" and not planned:
            instant = schedule(path).instant
            assert instant is not None
            planned.append(instant)
        if call.name == "put_if_absent" and call.path.endswith(".deltacommit"):
            staged.set()
            assert go_on.wait(_WAIT_S)
        return call.do()

    slow = HookedStorage(LocalStorage(str(path)), hook)
    writer = threading.Thread(target=lambda: upsert(slow, rows((0, 3, 3.0))))
    writer.start()
    try:
        assert staged.wait(_WAIT_S)
        with pytest.raises(BarrierError):  # the first attempt stages all, and waits in vain
            run_one(open_table(path), planned[0], "first")
        assert read_rows(path) == OLD
        load_view = Table.load_view

        def then_the_write_completes(table: Table, *args: Any, **options: Any) -> TableView:
            view = load_view(table, *args, **options)
            go_on.set()
            writer.join(_WAIT_S)
            return view

        monkeypatch.setattr(Table, "load_view", then_the_write_completes)
        run_one(open_table(path), planned[0], "second")
    finally:
        go_on.set()
        writer.join(_WAIT_S)
    assert read_rows(path) == NEW
