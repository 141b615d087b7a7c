"""Compaction inside another job: a time limit stops staging only, and a thread compacts beside the writer."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.outcome import read_outcome
from phantombase.compactor_daemon.attempt.slice_record import SliceDone, done_slices
from phantombase.compactor_daemon.attempt.slice_task import Runner, SliceProgress, SliceTask, compact_slice
from phantombase.compactor_daemon.execution.run_compactions import AsyncCompaction, Compactions, run_compactions
from phantombase.compactor_daemon.execution.runners import LocalRunner, SparkRunner
from phantombase.compactor_daemon.execution.spark_session import RunningSpark
from phantombase.compactor_daemon.fleet.claims import claim_all
from phantombase.compactor_daemon.options import ExecuteOptions
from phantombase.compactor_daemon.unit_of_work import Limit
from phantombase.timeline.errors import MissingFileError, StoppedError
from phantombase.timeline.instants.reserved_times import attempts
from phantombase.timeline.locks.table_lock import FileLock, ProcessLock
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import OPTIONS, OUTPUT, check_whole, open_table, visible_files
from tests.support.golden_tables import one_of, unzip_golden

NEVER_S = 300.0
"""Longer than any test waits: a slice that takes so long is one that does not end by itself."""


def run(path: Path, runner: Runner | None = None, limit: Limit | None = None) -> Compactions:
    """All pending compactions, one slice at a time."""
    return run_compactions(
        str(path),
        output=OUTPUT,
        execute=ExecuteOptions(),
        attempt=OPTIONS,
        runner=runner or LocalRunner(1),
        limit=limit,
    )


@one_of("name", "v9_pending", "v6_pending")
def test_nothing_begins_after_the_limit(name: str, tmp_path: Path) -> None:
    """A limit of 0 leaves everything as it was, and says what was left."""
    path = unzip_golden(name, tmp_path)
    before, todo = visible_files(path), pending(path)
    assert run(path, limit=Limit(0)) == Compactions(left=todo)
    assert visible_files(path) == before
    assert not (path / RECORDS).exists()
    assert [c.instant for c in run(path).done] == list(todo)
    check_whole(path, tmp_path / "pending.expected")


@one_of("name", "v6_pending", "v9_pending")
def test_a_limit_while_staging_leaves_finished_slices_to_the_next_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt stays without outcome, nothing has a final name, and the next run merges only the rest."""
    path = unzip_golden(name, tmp_path)
    before, (first, *others) = visible_files(path), pending(path)
    limit = Limit()

    def one_slice(storage: Storage, tasks: list[SliceTask], progress: SliceProgress) -> list[SliceDone]:
        LocalRunner(1)(storage, tasks[:1], progress)
        limit.close(0)
        progress(1, len(tasks))
        return pytest.fail("it goes on")

    assert run(path, one_slice, limit) == Compactions(left=(first, *others))
    storage = open_table(path).storage
    assert attempts(storage, first) == (1,)
    assert read_outcome(storage, first, 1) is None
    slices = len(open_table(path).compaction_plan(first).operations)
    assert len(done_slices(storage, first, 1)) == 1 < slices
    assert visible_files(path) == before
    merged: list[str] = []

    def noted(task: SliceTask, storage: Storage) -> SliceDone:
        merged.append(task.instant)
        return compact_slice(storage, task)

    monkeypatch.setattr(SliceTask, "run", noted)
    assert run(path).left == ()
    assert merged.count(first) == slices - 1
    check_whole(path, tmp_path / "pending.expected")


def test_slices_that_have_not_begun_are_cancelled() -> None:
    """In this process: the one at work comes to its end, whatever the progress raises."""
    begun: list[int] = []

    class Slow:
        def run(self, storage: Storage) -> int:
            begun.append(1)
            time.sleep(0.05)
            return 1

    def stops(done: int, total: int) -> None:
        if done:
            raise StoppedError("enough")

    with pytest.raises(StoppedError):
        LocalRunner(1)(LocalStorage("/"), [Slow() for _ in range(1000)], stops)
    assert len(begun) < 500


def test_a_limit_after_the_decision_stops_nothing(tmp_path: Path) -> None:
    """What is decided is published; only what comes after it is left."""
    path = two_plans(tmp_path)
    first, *others = pending(path)
    limit = Limit()

    class EndsAtOutcome(LocalStorage):
        def put_if_absent(self, path: str, data: bytes) -> bool:
            if path.endswith("/outcome"):
                limit.close(0)
            return super().put_if_absent(path, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("phantombase.timeline.storage.open_storage.LocalStorage", EndsAtOutcome)
        found = run(path, limit=limit)
    assert [c.instant for c in found.done] == [first]
    assert found.left == tuple(others)


def test_a_limit_ends_the_wait_for_a_writer(tmp_path: Path) -> None:
    """The barrier comes before the decision: nothing is published by then."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    todo = pending_instants(table)
    (path / ".hoodie" / "timeline" / "20270101000000000.deltacommit.inflight").touch()
    started = time.monotonic()
    found = run_compactions(
        str(path), output=OUTPUT, execute=ExecuteOptions(),
        attempt=type(OPTIONS)(barrier_s=NEVER_S, barrier_poll_s=0.05), runner=LocalRunner(1), limit=Limit(2.0),
    )  # fmt: skip
    assert time.monotonic() - started < NEVER_S / 2
    assert found == Compactions(left=todo)


def test_a_limit_only_comes_closer() -> None:
    """Another thread may shorten it, nobody can make it longer."""
    clock = [0.0]
    limit = Limit(10, lambda: clock[0])
    limit.close(20)
    clock[0] = 9.9
    limit.check()
    limit.close(0)
    with pytest.raises(StoppedError):
        limit.check()
    assert not Limit().closed


def test_a_closed_limit_lets_the_instant_at_work_go_on() -> None:
    """For the time it is given; nothing new begins."""
    clock = [0.0]
    limit = Limit(None, lambda: clock[0])
    limit.check_begin()
    limit.close(5)
    clock[0] = 4.9
    limit.check()
    with pytest.raises(StoppedError):
        limit.check_begin()
    clock[0] = 5.0
    with pytest.raises(StoppedError):
        limit.check()


@dataclass(frozen=True)
class SlowStorage(LocalStorage):
    """Never gets done with writing the base file of position 1."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """See `Storage`."""
        if path.endswith("/1.ok"):
            time.sleep(NEVER_S)
        return super().put_if_absent(path, data)


@pytest.mark.spark
def test_spark_jobs_are_cancelled_and_the_session_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the session of an ingest job: the slice at work is given up at once, in a pool of its own."""
    from pyspark import SparkConf, SparkContext

    path = unzip_golden("v9_pending", tmp_path)
    todo = pending(path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.ui.enabled": "false", "spark.scheduler.mode": "FAIR", "spark.driver.host": "127.0.0.1"}
    context = SparkContext(conf=SparkConf().setMaster("local[2]").setAppName("ingest").setAll(list(settings.items())))
    try:
        spark = SparkRunner(RunningSpark(context), pool="compaction")
        pools: list[str | None] = []
        closed: list[float] = []

        def slow(storage: Storage, tasks: list[SliceTask], progress: SliceProgress) -> list[SliceDone]:
            def seen(done: int, total: int) -> None:
                store = context._jsc.sc().getPoolForName("compaction")
                pools.append(store.get().name() if store.isDefined() else None)
                if done and not closed:
                    closed.append(time.monotonic())
                    limit.close(0)
                progress(done, total)

            return spark(SlowStorage(storage.base_path), tasks, seen)

        limit = Limit()
        assert run(path, slow, limit) == Compactions(left=todo)
        assert time.monotonic() - closed[0] < NEVER_S / 4
        # Spark tells its tracker of a job that ended in a thread of its own.
        until(lambda: context.statusTracker().getActiveJobsIds() == [], within_s=NEVER_S / 4)
        assert "compaction" in pools
        assert context.getLocalProperty("spark.scheduler.pool") is None
        assert context.parallelize([1, 2]).sum() == 3, "the ingest job goes on"
        assert len(done_slices(open_table(path).storage, todo[0], 1)) == 1
        assert [c.instant for c in run(path, spark).done] == list(todo)
    finally:
        context.stop()
    check_whole(path, tmp_path / "pending.expected")


def two_plans(folder: Path) -> Path:
    """A table with two pending plans of one file group each."""
    path = unzip_golden("v9_plain", folder)
    for _ in range(2):
        small = replace(PLAN_NOW, target_io_bytes=1)
        assert schedule_compaction(open_table(path), ProcessLock("x"), small).instant is not None
    return path


def until(condition: Callable[[], bool], within_s: float = NEVER_S) -> None:
    """Waits for it."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def asynchronous(
    path: Path, runner: Runner | None = None, *, poll_s: float = NEVER_S, stop_s: float = NEVER_S
) -> AsyncCompaction:
    """With a poll that never comes, unless it is given."""
    return AsyncCompaction(str(path), runner or LocalRunner(1), attempt=OPTIONS, poll_s=poll_s, stop_s=stop_s)


def pending(path: Path) -> tuple[str, ...]:
    """What is left to do."""
    return pending_instants(open_table(path))


@pytest.mark.parametrize("poll_s", [NEVER_S, 0.05], ids=["notified", "polled"])
def test_plans_are_compacted_as_they_come(poll_s: float, tmp_path: Path) -> None:
    """Those that are there at the start, and those that are made later; without errors."""
    path = unzip_golden("v9_pending", tmp_path)
    with asynchronous(path, poll_s=poll_s) as compaction:
        until(lambda: not pending(path))
        assert schedule_compaction(open_table(path), FileLock(str(path / RECORDS / "table.lock"))).instant is not None
        if poll_s == NEVER_S:
            compaction.notify()
        until(lambda: not pending(path))
    assert compaction.errors == ()
    check_whole(path, tmp_path / "pending.expected")


def test_two_take_turns(tmp_path: Path) -> None:
    """The claim keeps them apart; waiting for it is no error."""
    path = unzip_golden("v9_pending", tmp_path)
    todo = pending(path)
    with (
        claim_all(open_table(path)),
        asynchronous(path, poll_s=0.02) as first,
        asynchronous(path, poll_s=0.02) as second,
    ):
        time.sleep(0.5)
        assert pending(path) == todo
    with asynchronous(path, poll_s=0.02) as first, asynchronous(path, poll_s=0.02) as second:
        until(lambda: not pending(path))
    assert first.errors == second.errors == ()
    check_whole(path, tmp_path / "pending.expected")


def test_an_error_is_kept_and_the_next_look_tries_again(tmp_path: Path) -> None:
    """The ingest job hears of it when it asks."""
    path = unzip_golden("v9_pending", tmp_path)
    plan = open_table(path).compaction_plan(pending(path)[0])
    log = path / plan.operations[0].partition_path / plan.operations[0].delta_file_paths[0]
    log.rename(tmp_path / "away")
    with asynchronous(path) as compaction:
        until(lambda: len(compaction.errors) == 1)
        assert isinstance(compaction.errors[0], MissingFileError)
        (tmp_path / "away").rename(log)
        compaction.notify()
        until(lambda: not pending(path))
    assert len(compaction.errors) == 1
    check_whole(path, tmp_path / "pending.expected")


def test_the_end_gives_up_an_instant_that_takes_too_long(tmp_path: Path) -> None:
    """After `stop_s`; the table is as it was."""
    path = unzip_golden("v9_pending", tmp_path)
    before, todo = visible_files(path), pending(path)
    at_work = threading.Event()

    def endless(storage: Storage, tasks: list[SliceTask], progress: SliceProgress) -> list[SliceDone]:
        at_work.set()
        while True:
            progress(0, len(tasks))
            time.sleep(0.01)

    started = time.monotonic()
    with asynchronous(path, endless, stop_s=0.2) as compaction:
        assert at_work.wait(NEVER_S)
    assert time.monotonic() - started < NEVER_S / 2
    assert compaction.errors == ()
    assert pending(path) == todo
    assert visible_files(path) == before


def test_the_end_lets_an_instant_finish_and_begins_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within `stop_s`, what is at work is worth its end."""
    path = two_plans(tmp_path)
    _, *others = pending(path)
    at_work, ending, close = threading.Event(), threading.Event(), Limit.close

    def closes(limit: Limit, seconds: float) -> None:
        close(limit, seconds)
        ending.set()

    def waits(storage: Storage, tasks: list[SliceTask], progress: SliceProgress) -> list[SliceDone]:
        at_work.set()
        assert ending.wait(NEVER_S)
        return LocalRunner(1)(storage, tasks, progress)

    monkeypatch.setattr(Limit, "close", closes)
    with asynchronous(path, waits) as compaction:
        assert at_work.wait(NEVER_S)
    assert compaction.errors == ()
    assert pending(path) == tuple(others)
