"""A daemon whose compaction waits for a pending write: no slot is held, no attempt is opened twice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.attempt import open_attempt, stage
from phantombase.compactor_daemon.attempt.retire import remove_staged
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.execution.slice_task import SliceTask
from phantombase.compactor_daemon.records.fate import dead_record, write_fate
from phantombase.compactor_daemon.records.slice_done import SliceDone
from phantombase.timeline.errors import AttemptDeadError
from phantombase.timeline.format.instant import later
from phantombase.timeline.instants.attempt_names import attempts
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.options import WriteOptions
from tests.support.compaction_steps import OPTIONS, OUTPUT, open_table
from tests.support.daemons import WAIT_S, at_work, daemon_on
from tests.support.dead_writer import pending_write
from tests.support.moved_tables import schedule, upsert
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table


def new_table(path: Path) -> Path:
    """A table with one file slice to compact."""
    written_table(path, 9, rows((0, 1, 1.0), (3, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    upsert(LocalStorage(str(path)), rows((0, 2, 2.0)))
    return path


def planned(path: Path) -> str:
    """A compaction that pends."""
    instant = schedule(path).instant
    assert instant is not None
    return instant


def is_staged(path: Path, instant: str) -> bool:
    """Whether the first attempt has finished its file slice."""
    return bool(list((path / RECORDS / instant / "1").glob("*.ok")))


def until(holds: Callable[[], bool]) -> None:
    """Waits for it."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_done(path: Path, instant: str) -> bool:
    """Whether a compaction is completed."""
    return bool(open_table(path).files.completed_commits(instant))


def state_of(path: Path) -> str:
    """Of the pending compaction, as `status` shows it."""
    done = CliRunner().invoke(app, ["status", str(path), "--json"])
    (row,) = json.loads(done.stdout)["pending"]
    return str(row["state"])


def end(inflight: Path) -> None:
    """The write is rolled back."""
    inflight.unlink()
    inflight.with_name(inflight.name.replace("inflight", "requested")).unlink()


def test_a_pending_write_holds_up_its_own_table_only(tmp_path: Path) -> None:
    """With one slot other tables go on; when the write ends, the compaction that waited does, as the same attempt."""
    held, free = new_table(tmp_path / "held"), new_table(tmp_path / "free")
    first = planned(held)
    write = pending_write(held, 9, later(first, 1))
    storage = LocalStorage(str(held))
    with daemon_on(held, free, zookeeper=None, once=False, poll_s=0.1) as daemon, at_work(daemon):
        until(lambda: is_staged(held, first))
        second = planned(free)
        until(lambda: is_done(free, second))
        time.sleep(1.0)  # twice as long as `barrier_s`
        assert not is_done(held, first)
        assert attempts(storage, first) == (1,), "it waits in the attempt it opened"
        until(lambda: state_of(held) == "waiting")
        end(write)
        until(lambda: is_done(held, first))
        assert attempts(storage, first) == (1,)
    assert read_rows(held) == {"k0000": (2, 2.0), "k0003": (1, 1.0)}


def test_an_attempt_that_was_ended_by_others_waits_no_longer(tmp_path: Path) -> None:
    """Its plan may be gone: nobody would notice while the write pends."""
    path = new_table(tmp_path / "t")
    instant = planned(path)
    pending_write(path, 9, later(instant, 1))
    table, runner = open_table(path), LocalRunner(1)
    attempt = open_attempt(table, instant, OPTIONS)

    def check() -> None:
        if is_staged(path, instant):
            remove_staged(table.storage, instant)
            write_fate(table.storage, instant, attempt.number, dead_record("n", "x"), "n")

    def run(tasks: list[SliceTask]) -> list[SliceDone]:
        return runner(table.storage, tasks, lambda done, total: None)

    with pytest.raises(AttemptDeadError):
        stage(table, attempt, OUTPUT, OPTIONS, run, check)
