"""A writer that takes no lock begins a delta commit in the millisecond of a plan of ours.

Hudi 0.15 makes instants outside any lock, 1.x does in single-writer mode. Its insert has a base file of the plan's
instant in a file group of its own, in a partition of the plan.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.attempt.decision import decide_go
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.removal.unschedule import unschedule
from phantombase.timeline.format.commit_metadata import encode
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.recovery.rollback import roll_back
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.options import WriteOptions
from tests.support.compaction_steps import OPTIONS, base_files, open_table, run_all
from tests.support.moved_tables import schedule, upsert
from tests.support.selection import deep
from tests.support.tables import one_of
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table

OLD = {"k0000": (2, 2.0), "k0003": (1, 1.0)}
NEW = OLD | {"k0030": (1, 1.0)}


@dataclass
class Collision:
    """A table with a plan at `instant`, and the other writer, whose base file is `file`."""

    path: Path
    donor: Path
    instant: str
    file: Path

    def begin(self) -> None:
        """Requested, inflight, and its base file."""
        table = open_table(self.path)
        for state in (State.REQUESTED, State.INFLIGHT):
            begun = Instant(requested_time=self.instant, action="deltacommit", state=state)
            (self.path / table.instant_path(begun)).write_bytes(b"")
        (base,) = self.donor.glob("*/*.parquet")
        shutil.copy(base, self.file)

    def complete(self) -> None:
        """Its delta commit."""
        donor, table = open_table(self.donor), open_table(self.path)
        (done,) = donor.load_timeline().completed
        metadata = donor.commit_metadata(done)
        stats = {
            p: tuple(replace(s, path=f"{p}/{self.file.name}") for s in of)
            for p, of in metadata.partition_to_write_stats.items()
        }
        completion = table.next_time(table.load_timeline()) if table.layout.has_completion_times else None
        done = replace(done, requested_time=self.instant, completion_time=completion, file_name="")
        content = encode(replace(metadata, partition_to_write_stats=stats), table.layout.encoding)
        (self.path / table.instant_path(done)).write_bytes(content)


@pytest.fixture(params=[9, deep(6)])
def collision(request: pytest.FixtureRequest, tmp_path: Path) -> Collision:
    path, donor = tmp_path / "t", tmp_path / "donor"
    written_table(path, request.param, rows((0, 1, 1.0), (3, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    upsert(LocalStorage(str(path)), rows((0, 2, 2.0)))
    instant = schedule(path).instant
    assert instant is not None
    written_table(donor, request.param, rows((30, 1, 1.0)), WriteOptions(slots=1))
    (base,) = donor.glob("*/*.parquet")
    file_id, token, _ = base.stem.split("_")
    assert (path / base.parent.name).is_dir()
    return Collision(path, donor, instant, path / base.parent.name / f"{file_id}_{token}_{instant}.parquet")


@pytest.fixture
def before_decision(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What happens just before the next decision, after the attempt has looked for pending writes."""
    todo: list[Callable[[], None]] = []

    def late(*args: Any) -> Any:
        while todo:
            todo.pop()()
        return decide_go(*args)

    monkeypatch.setattr("phantombase.compactor_daemon.attempt.compact_instant.decide_go", late)
    return todo


def test_it_pends_while_the_compaction_is_published(
    collision: Collision, before_decision: list[Callable[[], None]]
) -> None:
    """Retiring leaves its base file alone, and its rows are not seen before it completes."""
    before_decision.append(collision.begin)
    run_all(open_table(collision.path))
    assert collision.file.exists()
    assert read_rows(collision.path) == OLD
    collision.complete()
    assert read_rows(collision.path) == NEW


@one_of("collision", 6, 9, indirect=True)
def test_it_completed_before(collision: Collision) -> None:
    """The compaction is decided and published beside it."""
    collision.begin()
    collision.complete()
    assert read_rows(collision.path) == NEW
    run_all(open_table(collision.path))
    assert open_table(collision.path).load_timeline().pending_compactions == ()
    assert read_rows(collision.path) == NEW


def test_it_comes_after(collision: Collision) -> None:
    run_all(open_table(collision.path))
    collision.begin()
    assert read_rows(collision.path) == OLD
    run_all(open_table(collision.path))
    collision.complete()
    run_all(open_table(collision.path))
    assert read_rows(collision.path) == NEW


def test_it_completed_and_the_plan_is_taken_back(collision: Collision) -> None:
    """Its base file is no file of the plan."""
    collision.begin()
    collision.complete()
    unschedule(open_table(collision.path), collision.instant, ProcessLock("x"), AttemptOptions())
    assert read_rows(collision.path) == NEW


@one_of("collision", 6, 9, indirect=True)
def test_it_is_rolled_back_after_the_compaction(
    collision: Collision, before_decision: list[Callable[[], None]]
) -> None:
    """The compaction's own base files stay."""
    before_decision.append(collision.begin)
    run_all(open_table(collision.path))
    table = open_table(collision.path)
    (pending,) = table.load_timeline().pending_delta_commits
    roll_back(table, pending, ProcessLock("x"))
    assert not collision.file.exists()
    assert len(base_files(collision.path, collision.instant)) == 1
    assert read_rows(collision.path) == OLD


def test_it_pends_before_the_attempt(collision: Collision) -> None:
    """It is in the barrier as any other write; rolled back, it is in nobody's way."""
    assert OPTIONS.barrier_s < 1
    collision.begin()
    table = open_table(collision.path)
    (pending,) = table.load_timeline().pending_delta_commits
    roll_back(table, pending, ProcessLock("x"))
    run_all(open_table(collision.path))
    assert read_rows(collision.path) == OLD
