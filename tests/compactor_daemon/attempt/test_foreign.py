"""A Hudi compactor that asks nobody is seen before our decision: while slices are staged, and in the lock."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.attempt.attempt import decide_commit
from phantombase.compactor_daemon.attempt.compact_or_resume import compact_instant, pending_instants
from phantombase.compactor_daemon.attempt.hudi_executors import ForeignTrace, ForeignWatch, foreign_trace, inflight_path
from phantombase.compactor_daemon.attempt.outcome import open_next, read_outcome
from phantombase.compactor_daemon.attempt.slice_record import SliceDone, completed_commits
from phantombase.compactor_daemon.attempt.slice_task import SliceProgress, SliceTask
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.undo.undo import roll_back
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.errors import AttemptDeadError, ConflictError
from phantombase.timeline.format.commit_metadata import encode
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.reserved_times import DEAD
from phantombase.timeline.locks.heartbeat import heartbeat, heartbeat_path
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.options import WriteOptions
from tests.support.compaction_steps import OPTIONS, OUTPUT, base_files, check_whole, open_table, run_all
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.moved_tables import schedule, upsert
from tests.support.selection import deep, for_each
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table

TABLES = pytest.mark.parametrize("name", ["v6_pending", "v9_pending"])


class _BesideHudi:
    """A runner of which Hudi's compactor begins as soon as the first slice is done."""

    def __init__(self, path: Path, instant: str) -> None:
        self.path, self.instant = path, instant
        self.stopped = False

    def __call__(self, storage: Storage, tasks: list[SliceTask], progress: SliceProgress) -> list[SliceDone]:
        def hudi_begins(done: int, total: int) -> None:
            if done:
                storage.put_if_absent(inflight_path(open_table(self.path), self.instant), b"")
            try:
                progress(done, total)
            except AttemptDeadError:
                self.stopped = True
                raise

        return LocalRunner(1)(storage, tasks, hudi_begins)


@one_of("name", "v9_pending", "v6_pending")
def test_it_is_seen_while_slices_are_staged(name: str, tmp_path: Path) -> None:
    """That attempt ends for good; the next one refuses, and takes over once nothing of theirs is young."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    instant = pending_instants(table)[0]
    runner = _BesideHudi(path, instant)
    with pytest.raises(
        AttemptDeadError, match=rf"Hudi compactor touched.*{instant}\.compaction\.inflight.*one made 20"
    ):
        compact_instant(
            table,
            instant,
            lock=ProcessLock(str(path)),
            runner=runner,
            progress=lambda done, total: None,
            output=OUTPUT,
            options=AttemptOptions(foreign_poll_s=0),
        )
    assert runner.stopped
    outcome = read_outcome(table.storage, instant, 1)
    assert outcome is not None
    assert outcome.kind == DEAD
    assert not base_files(path, instant)
    with pytest.raises(ConflictError, match="at work on this instant"):
        run_all(table)
    table.storage.delete(inflight_path(table, instant))
    run_all(table)
    check_whole(path, path.with_name(f"{name.partition('_')[2]}.expected"))


@TABLES
def test_it_is_seen_at_the_decision(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    instant = pending_instants(open_table(path))[0]

    def hook(call: Call) -> object:
        if call.name == "list" and call.path.endswith("timeline" if name.startswith("v9") else ".hoodie"):
            _begin_when_staged(path, instant)
        return call.do()

    with pytest.raises(AttemptDeadError, match="Hudi compactor touched"):
        run_all(open_table(path, HookedStorage(LocalStorage(str(path)), hook)))
    assert not base_files(path, instant)


def _begin_when_staged(path: Path, instant: str) -> None:
    plan = open_table(path).compaction_plan(instant)
    if len(list((path / ".hoodie" / ".phantombase" / instant).glob("1/*.ok"))) == len(plan.operations):
        LocalStorage(str(path)).put_if_absent(inflight_path(open_table(path), instant), b"")


def test_it_is_looked_for_every_few_seconds(tmp_path: Path) -> None:
    path = unzip_golden("v6_pending", tmp_path)
    looks: list[str] = []
    clock = [0.0]

    def hook(call: Call) -> object:
        looks.append(call.path)
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
    nobody = ForeignTrace(inflight_ms=None, heartbeat_ms=None, youngest_ms=None)
    looks.clear()
    watch = ForeignWatch(table, "20260101000000000", 1, nobody, every_s=3.0, clock=lambda: clock[0])
    for clock[0] in (0.0, 1.0, 2.9, 3.0, 3.1, 5.9, 6.0):
        watch.check()
    inflight = inflight_path(table, "20260101000000000")
    assert [path for path in looks if path == inflight] == [inflight] * 2


def trace(*, inflight: float | None = None, beat: float | None = None, youngest: float | None = None) -> ForeignTrace:
    """What was left so many seconds before NOW."""
    times = [None if age_s is None else round(NOW_MS - age_s * 1000) for age_s in (inflight, beat, youngest)]
    return ForeignTrace(inflight_ms=times[0], heartbeat_ms=times[1], youngest_ms=times[2])


NOW_MS = 1_800_000_000_000
PATIENCE = AttemptOptions(foreign_grace_s=3600.0, heartbeat_expiry_s=120.0)


@for_each(
    [
        (trace(), False),
        (trace(beat=0), True),
        (trace(beat=119.9), True),
        (trace(beat=120), False),
        (trace(inflight=0), True),
        (trace(inflight=3599.9), True),
        (trace(inflight=3600), False),
        (trace(inflight=9000, youngest=3599.9), True),
        (trace(inflight=9000, youngest=3600), False),
        (trace(inflight=9000, beat=1), True),
        (trace(inflight=10, beat=500), False),
    ]
)
def test_an_executor_is_alive_by_its_heartbeat_or_without_one_by_its_youngest_file(
    left: ForeignTrace, live: bool
) -> None:
    """One that keeps a heartbeat is dead without it; one that keeps none is given the grace time."""
    assert left.is_live(NOW_MS, PATIENCE) == live


@pytest.mark.parametrize("sign", ["marker", "base file"])
@one_of("name", "v6_pending", "v9_pending")
def test_whatever_it_writes_is_a_sign_of_life(name: str, sign: str, tmp_path: Path) -> None:
    """Its inflight file is as old as its work; without an inflight file these are no executor's."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    file = {
        "marker": path / ".hoodie" / ".temp" / instant / "east" / "some.marker.CREATE",
        "base file": path / "east" / f"some-file_1-2-3_{instant}.parquet",
    }[sign]
    inflight = path / inflight_path(table, instant)
    for number, one in enumerate((inflight, file), start=1):
        one.parent.mkdir(parents=True, exist_ok=True)
        one.touch()
        os.utime(one, (number * 1000, number * 1000))
    (path / "east").mkdir(exist_ok=True)
    (path / "east" / "some-file_1-2-3_20200101000000000.parquet").touch()
    assert foreign_trace(table, instant, {"east"}).youngest_ms == 2_000_000
    inflight.unlink()
    assert foreign_trace(table, instant, {"east"}) == ForeignTrace(
        inflight_ms=None, heartbeat_ms=None, youngest_ms=None
    )


@one_of("name", "v9_pending", "v6_pending")
def test_a_log_on_the_slice_to_be_is_no_sign_of_life(name: str, tmp_path: Path) -> None:
    """On version 6 it is a write: a table that is written all the time would never be compacted after a dead one."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    files = (path / inflight_path(table, instant), path / "east" / f".some-file_{instant}.log.1_1-2-3")
    for number, file in enumerate(files, start=1):
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.utime(file, (number * 1000, number * 1000))
    assert foreign_trace(table, instant, {"east"}).youngest_ms == 1_000_000


def test_a_heartbeat_of_ours_is_no_trace_of_hudi(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    with heartbeat(table.storage, instant, 100.0):
        assert foreign_trace(table, instant, ()).heartbeat_ms is None
    table.storage.overwrite(heartbeat_path(instant), b"")
    assert foreign_trace(table, instant, ()).heartbeat_ms is not None


@pytest.mark.parametrize("change", ["came", "came again", "went"])
@one_of("name", "v9_pending", "v6_pending")
def test_any_change_of_its_inflight_file_ends_the_attempt(name: str, change: str, tmp_path: Path) -> None:
    """A dead executor's file may lie there all the time; one made again, or rolled back, is somebody at work."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    inflight = path / inflight_path(table, instant)
    if change != "came":
        inflight.touch()
        os.utime(inflight, (1000, 1000))
    number = open_next(table.storage, instant, "a test")
    watch = ForeignWatch(table, instant, number, foreign_trace(table, instant, {"north"}))
    watch.check_now()
    assert read_outcome(table.storage, instant, number) is None
    if change == "went":
        inflight.unlink()
    else:
        inflight.touch()
    with pytest.raises(AttemptDeadError, match="Hudi compactor touched"):
        watch.check_now()
    outcome = read_outcome(table.storage, instant, number)
    assert outcome is not None
    assert outcome.kind == DEAD


# A writer that takes no lock begins a delta commit in the millisecond of a plan of ours.
#
# Hudi 0.15 makes instants outside any lock, 1.x does in single-writer mode. Its insert has a base file of the plan's
# instant in a file group of its own, in a partition of the plan.


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
        completion = table.snapshot().next_time() if table.layout.has_completion_times else None
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
        return decide_commit(*args)

    monkeypatch.setattr("phantombase.compactor_daemon.attempt.compact_or_resume.decide_commit", late)
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
    assert completed_commits(open_table(collision.path), collision.instant) == []
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
