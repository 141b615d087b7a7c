"""A Hudi compactor that asks nobody is seen before our decision: while slices are staged, and in the lock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phantombase.compactor_daemon.attempt.compact_instant import compact_instant, pending_instants
from phantombase.compactor_daemon.decisions.hudi_executors import (
    ForeignTrace,
    ForeignWatch,
    foreign_trace,
    inflight_path,
)
from phantombase.compactor_daemon.execution.runners import LocalRunner, SliceProgress
from phantombase.compactor_daemon.execution.slice_task import SliceTask
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.records.fate import open_next, read_fate
from phantombase.compactor_daemon.records.slice_done import SliceDone
from phantombase.timeline.errors import AttemptDeadError, ConflictError
from phantombase.timeline.instants.attempt_names import DEAD
from phantombase.timeline.locks.heartbeat import heartbeat, heartbeat_path
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import OUTPUT, base_files, check_whole, open_table, run_all
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import unzip_golden
from tests.support.tables import one_of

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
            options=AttemptOptions(foreign_look_s=0),
        )
    assert runner.stopped
    fate = read_fate(table.storage, instant, 1)
    assert fate is not None
    assert fate.kind == DEAD
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


@pytest.mark.parametrize(
    ("left", "live"),
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
    ],
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
    watch.look()
    assert read_fate(table.storage, instant, number) is None
    if change == "went":
        inflight.unlink()
    else:
        inflight.touch()
    with pytest.raises(AttemptDeadError, match="Hudi compactor touched"):
        watch.look()
    fate = read_fate(table.storage, instant, number)
    assert fate is not None
    assert fate.kind == DEAD
