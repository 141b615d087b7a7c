"""What an attempt takes over from an earlier one, which writes it waits for, and which inputs may be missing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.attempt.attempt import open_attempt, stage
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.outcome import OK
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.timeline.errors import BarrierError, MissingFileError
from phantombase.timeline.format.compaction_plan import CompactionOperation
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.reserved_times import attempt_folder
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import TableView
from phantombase.writer_hooks.options import WriteOptions
from tests.support.compaction_steps import OPTIONS, OUTPUT, decided, open_table, run_one, staged
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.moved_tables import NEW, OLD, nothing, schedule, upsert
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table

LATER = "20990101000000000"


@pytest.fixture
def path(name: str, tmp_path: Path) -> Path:
    """A table with a pending compaction of two file groups."""
    return unzip_golden(name, tmp_path)


def adopted(table: Table) -> list[bool]:
    """Of each file slice, whether the next attempt takes the first one's file."""
    (instant,) = pending_instants(table)
    _, done, _ = staged(table, instant)
    return [str(d.staged).startswith(f"{attempt_folder(instant, 1)}/") for d in done]


# --- adoption ---------------------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "nothing": lambda record: None,
    "of an earlier release: not known what it left out": lambda record: record.pop("uncommitted"),
    "of an earlier release: not known what it merged": lambda record: record.pop("merged"),
    "what it left out has completed": lambda record: record["uncommitted"].append(record["merged"][0]),
    "what it left out is pending": lambda record: record["uncommitted"].append(LATER),
    "what it merged was rolled back": lambda record: record["merged"].append(LATER),
    "other inputs": lambda record: record.update(fingerprint="0" * 64),
}
ADOPTED = {"nothing", "what it left out is pending"}


@one_of("name", "v9_pending", "v6_pending")
@pytest.mark.parametrize("change", CHANGES)
def test_a_result_is_adopted_only_where_it_is_what_would_be_made_now(change: str, path: Path) -> None:
    table = open_table(path)
    (instant,) = pending_instants(table)
    staged(table, instant)
    file = path / attempt_folder(instant, 1) / f"0{OK}"
    record = json.loads(file.read_bytes())
    CHANGES[change](record)
    file.write_text(json.dumps(record))
    assert adopted(table) == [change in ADOPTED, True]


@one_of("name", "v6_pending", "v9_pending")
@pytest.mark.parametrize("damage", ["lost", "cut off", "longer"])
def test_a_staged_file_that_is_not_whole_is_not_adopted(damage: str, path: Path) -> None:
    """The record says it was; a machine that lost power, or a hand, says otherwise."""
    table = open_table(path)
    (instant,) = pending_instants(table)
    _, done, _ = staged(table, instant)
    file = path / str(done[1].staged)
    data = file.read_bytes()
    if damage == "lost":
        file.unlink()
    else:
        file.write_bytes(data[:-1] if damage == "cut off" else data + b"x")
    assert adopted(table) == [True, False]


# --- barrier ----------------------------------------------------------------------------------------------------------


@one_of("name", "v9_pending", "v6_pending")
def test_writes_that_began_behind_the_attempt_are_not_waited_for(path: Path) -> None:
    """There is always one on a table that is written all the time. Those that began before are."""
    table = open_table(path)
    (instant,) = pending_instants(table)
    attempt = open_attempt(table, instant, OPTIONS)
    pending = Instant(requested_time=LATER, action="deltacommit", state=State.REQUESTED)
    assert table.storage.put_if_absent(table.instant_path(pending), b"{}")
    runner = LocalRunner(1)
    done, _ = stage(
        table, attempt, OUTPUT, OPTIONS, lambda tasks: runner(table.storage, tasks, lambda done, total: None)
    )
    assert len(done) == 2
    with pytest.raises(BarrierError, match=LATER):
        decided(table, instant)


# --- inputs -----------------------------------------------------------------------------------------------------------


def first_operation(table: Table) -> CompactionOperation:
    """Of the pending plan."""
    return table.compaction_plan(pending_instants(table)[0]).operations[0]


@one_of("name", "v9_pending", "v6_pending")
def test_a_base_file_that_is_gone_is_lost(path: Path) -> None:
    """No write that was rolled back explains it: the plan was made on it."""
    table = open_table(path)
    operation = first_operation(table)
    (path / operation.partition_path / str(operation.data_file_path)).unlink()
    with pytest.raises(MissingFileError):
        decided(table, pending_instants(table)[0])


@pytest.mark.parametrize("write", ["completed", "pending", "behind a savepoint"])
def test_a_log_that_is_gone_is_lost_unless_its_write_was_rolled_back(write: str, tmp_path: Path) -> None:
    """A write that pends may complete; what is not on the timeline was archived, perhaps, where a savepoint is."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    operation = first_operation(table)
    log = path / operation.partition_path / operation.delta_file_paths[-1]
    log.unlink()
    time = log.name.split("_")[1].partition(".")[0]
    folder = path / ".hoodie" / "timeline"
    (completed,) = folder.glob(f"{time}_*.deltacommit")
    if write != "completed":
        completed.unlink()
    if write == "behind a savepoint":
        for file in folder.glob(f"{time}.deltacommit.*"):
            file.unlink()
        (folder / f"{LATER}.savepoint.inflight").touch()
    with pytest.raises(MissingFileError, match="names a file that is not there"):
        decided(table, pending_instants(table)[0])


# Writes that pend while a compaction below which they may fall is at work.


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
