"""Each rule of writers and compactors beside each other is broken once: what then catches it, and what harm is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import phantombase.writer_hooks.write.write
from phantombase.timeline.errors import BarrierError, ConflictError
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.planning.schedule import Scheduled
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.transaction import Opening, Transaction, transaction
from phantombase.writer_hooks.options import WriteOptions
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import one_of
from tests.support.moved_tables import NEW, OLD, before_placing, nothing, schedule, upsert
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table of version 6 with one bucket: a base file and a log."""
    path = tmp_path / "trips"
    written_table(path, 6, rows((0, 1, 1.0), (3, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    upsert(LocalStorage(str(path)), rows((0, 2, 2.0)))
    return path


# --- version 6: no plan under a pending delta commit ------------------------------------------------------------------


def test_a_plan_is_not_made_while_a_write_pends(path: Path) -> None:
    planned: list[Scheduled] = []
    upsert(before_placing(path, lambda: planned.append(schedule(path))), rows((0, 3, 3.0)))
    assert planned[0].instant is None
    assert "is pending" in planned[0].why
    assert read_rows(path) == NEW


def test_a_plan_made_all_the_same_is_seen_by_the_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phantombase.timeline.planning.planner.pending_writer", nothing)
    with pytest.raises(ConflictError, match="compaction of file group"):
        upsert(before_placing(path, lambda: schedule(path)), rows((0, 3, 3.0)))
    assert read_rows(path) == OLD
    run_all(open_table(path))
    assert read_rows(path) == OLD


def test_a_log_that_came_under_a_plan_is_merged_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The closure of our own compactor: one that merges what the plan names would lose the row."""
    monkeypatch.setattr("phantombase.timeline.planning.planner.pending_writer", nothing)
    monkeypatch.setattr("phantombase.writer_hooks.commit.transaction.conflict_with_plans", nothing)
    upsert(before_placing(path, lambda: schedule(path)), rows((0, 3, 3.0)))
    (instant,) = open_table(path).load_timeline().pending_compactions
    plan = open_table(path).compaction_plan(instant.requested_time)
    assert [len(o.delta_file_paths) for o in plan.operations] == [1]
    assert read_rows(path) == NEW
    run_all(open_table(path))
    assert read_rows(path) == NEW


def test_a_compaction_waits_for_the_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its barrier: the log of the write that pends may come under the plan."""
    monkeypatch.setattr("phantombase.timeline.planning.planner.pending_writer", nothing)
    monkeypatch.setattr("phantombase.writer_hooks.commit.transaction.conflict_with_plans", nothing)
    with pytest.raises(BarrierError):
        upsert(before_placing(path, lambda: schedule_and_compact(path)), rows((0, 3, 3.0)))
    assert read_rows(path) == OLD


def test_without_all_of_that_a_row_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phantombase.timeline.planning.planner.pending_writer", nothing)
    monkeypatch.setattr("phantombase.writer_hooks.commit.transaction.conflict_with_plans", nothing)
    monkeypatch.setattr("phantombase.compactor_daemon.attempt.compaction.Compaction.waiting", lambda *_: [])
    upsert(before_placing(path, lambda: schedule_and_compact(path)), rows((0, 3, 3.0)))
    assert read_rows(path) == OLD, "acknowledged, and not there"


def schedule_and_compact(path: Path) -> None:
    assert schedule(path).instant is not None
    run_all(open_table(path))


# --- plans are loaded after the write is visible ----------------------------------------------------------------------


@pytest.fixture
def loads_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes that load the timeline before they begin; a compaction is requested and executed in between."""

    @contextmanager
    def early(table: Table, lock: TableLock, heartbeat_s: float, opening: Opening, _: None) -> Iterator[Transaction]:
        before = table.snapshot(cached=False)
        facts = before.load_facts()
        schedule_and_compact(path)
        with transaction(table, lock, heartbeat_s, opening) as begun:
            yield replace(begun, table=before, facts=facts)

    monkeypatch.setattr(phantombase.writer_hooks.write.write, "transaction", early)


@pytest.mark.usefixtures("loads_first")
def test_plans_loaded_too_early_are_a_conflict_at_the_end(path: Path) -> None:
    with pytest.raises(ConflictError, match="compaction of file group"):
        upsert(LocalStorage(str(path)), rows((0, 3, 3.0)))
    assert read_rows(path) == OLD


@pytest.mark.usefixtures("loads_first")
def test_plans_loaded_too_early_lose_a_row(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phantombase.writer_hooks.commit.transaction.conflict_with_plans", nothing)
    upsert(LocalStorage(str(path)), rows((0, 3, 3.0)))
    assert read_rows(path) == OLD, "acknowledged, and not there"


# --- two writers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buckets", [None, 1], ids=["key index", "buckets"])
@one_of("version", 9, 6)
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
def test_two_writers_bring_one_new_key(
    version: int, buckets: int | None, checked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into a new bucket, or a new file: the later one loses. Without the check the key is there twice."""
    path = tmp_path / "trips"
    written_table(path, version, rows((1, 1, 1.0)), WriteOptions(buckets=buckets, slots=1))
    if not checked:
        monkeypatch.setattr("phantombase.writer_hooks.commit.transaction.conflict_with_commit", nothing)
    storage = before_placing(path, lambda: upsert(LocalStorage(str(path)), rows((0, 2, 2.0)), buckets))
    with suppress(ConflictError):
        upsert(storage, rows((0, 3, 3.0)), buckets)
    if checked:
        assert read_rows(path) == {"k0000": (2, 2.0), "k0001": (1, 1.0)}
    else:
        with pytest.raises(AssertionError, match="doubled rows"):
            read_rows(path)


@one_of("version", 6, 9)
def test_a_base_file_is_not_written_anew_behind_a_later_one(version: int, tmp_path: Path) -> None:
    """A later instant completes between the moment ours is visible and our load: ours would be the older file."""
    path = tmp_path / "trips"
    written_table(path, version, rows((0, 1, 1.0)), WriteOptions(slots=1))
    begun: list[str] = []

    def hook(call: Call) -> Any:
        if call.name == "list" and len(begun) == 1:
            begun.append("the other one")
            upsert(LocalStorage(str(path)), rows((3, 1, 1.0)), None)
        if call.name == "put_if_absent" and call.path.endswith(".inflight"):
            begun.append(call.path)
        return call.do()

    with pytest.raises(ConflictError, match="file group"):
        upsert(HookedStorage(LocalStorage(str(path)), hook), rows((6, 1, 1.0)), None)
    assert read_rows(path) == {"k0000": (1, 1.0), "k0003": (1, 1.0)}
    upsert(LocalStorage(str(path)), rows((6, 1, 1.0)), None)
    assert len(read_rows(path)) == 3
