"""The daemon's loop over tables that only pretend."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from phantombase.compactor_daemon.attempt.attempt import WaitScope
from phantombase.compactor_daemon.attempt.compact_or_resume import Compacted
from phantombase.compactor_daemon.attempt.failures import Parked, RetryOptions, Waits, WorkNote
from phantombase.compactor_daemon.daemon import loop
from phantombase.compactor_daemon.daemon.control import Assigned, Moment, SessionChanged, SnapshotTaken, Stopped
from phantombase.compactor_daemon.daemon.dispatch import Rules, Stop
from phantombase.compactor_daemon.daemon.loop import Daemon
from phantombase.compactor_daemon.daemon.record import as_record
from phantombase.compactor_daemon.daemon.table_state import Pending, SeenTable
from phantombase.compactor_daemon.daemon.work import Observer, Summary
from phantombase.compactor_daemon.fleet.claims import Claim
from phantombase.compactor_daemon.fleet.pools import Hours, Pool, Pools
from phantombase.compactor_daemon.services.options import Service
from phantombase.compactor_daemon.services.serve import ServiceDone
from phantombase.compactor_daemon.unit_of_work import Limit
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import ConflictError, SparkError, StorageError, UnknownStateError, UsageError
from phantombase.timeline.format.compaction_plan import CompactionPlan
from phantombase.timeline.planning.options import Pace, ScheduleOptions
from phantombase.timeline.planning.schedule import Requested, Scheduled
from tests.support.replayed_daemon import replay, value_of

WAIT_S = 60.0


def done(instant: str) -> Compacted:
    return Compacted(
        instant=instant,
        attempt=1,
        file_groups=1,
        rows=1,
        rows_read=1,
        bytes_read=1,
        bytes_written=1,
        seconds=0.1,
        resumed=False,
    )


@dataclass
class FakeHeld:
    claims: FakeClaims
    instant: str
    lost: bool = False

    def report(self, note: WorkNote) -> None: ...

    def release(self) -> None:
        self.claims.held.pop(self.instant)


@dataclass
class FakeClaims:
    available: bool = True
    others: set[str] = field(default_factory=set)
    held: dict[str, FakeHeld] = field(default_factory=dict)
    trouble: int = 0
    lost: bool = False

    def close(self) -> None: ...

    def names(self) -> frozenset[str]:
        return frozenset(self.others | set(self.held))

    def all(self) -> Mapping[str, Claim]:
        raise NotImplementedError

    def take(self, instant: str) -> FakeHeld | None:
        if self.trouble:
            self.trouble -= 1
            raise UnknownStateError("no answer")
        if instant in self.others:
            return None
        assert instant not in self.held
        self.held[instant] = FakeHeld(self, instant, self.lost)
        return self.held[instant]


class FakeTable:
    """A table whose pending instants vanish as they are executed."""

    def __init__(self, path: str, *instants: str) -> None:
        self.path = path
        self.timeline = None
        self.claims = FakeClaims()
        self.pending = list(instants)
        self.due = False
        self.looks = 0
        self.at_look: Callable[[], object] = lambda: None
        self.sweeps = 0
        self.closed = False
        self.serves: list[tuple[float, tuple[str, ...]]] = []
        self.serve_error: Exception | None = None
        self.at_service: Callable[[], object] = lambda: None
        self.failures: list[tuple[str, str]] = []
        self.done: set[str] = set()
        self.tried: list[str] = []
        self.look_error: Exception | None = None
        self.work: Callable[[str, Limit], None] = lambda instant, limit: None
        self.writes: dict[str, threading.Event] = {}
        self.patient: bool | None = None

    def snapshot(self) -> SeenTable:
        self.looks += 1
        self.at_look()
        if self.look_error is not None:
            raise self.look_error
        seen = tuple(Pending(instant=i) for i in self.pending)
        return SeenTable(pending=seen, claimed=self.claims.names(), due=self.due, oldest_s=None)

    def request(self, pace: Pace | None = None) -> Scheduled:
        self.due = False
        self.pending.append("900")
        return Scheduled(requested=(Requested(instant="900", plan=CompactionPlan(operations=())),), why="due")

    def sweep(self) -> None:
        self.sweeps += 1

    def close(self) -> None:
        self.closed = True

    def serve(
        self, every_s: float, stopping: Callable[[], bool], handing_over: Callable[[], bool] = lambda: False
    ) -> tuple[ServiceDone, ...]:
        self.serves.append((every_s, tuple(self.pending)))
        self.at_service()
        if self.serve_error is not None:
            raise self.serve_error
        return (ServiceDone(service=Service.CLEAN, what="3 files removed", instants=1, files=3),)

    def done_among(self, instant: str, near: Iterable[str] = ()) -> frozenset[str]:
        done = self.done.intersection((instant, *near)) if instant in self.done else frozenset()
        self.pending = [i for i in self.pending if i not in done]  # as the next listing shows
        return frozenset(done)

    def execute(self, instant: str, held: object, limit: Limit, wait_scope: WaitScope) -> Compacted | None:
        self.tried.append(instant)
        if instant not in self.pending:
            return None
        if (write := self.writes.get(instant)) is not None:
            with wait_scope() as self.patient:
                while not write.wait(0.01):
                    limit.check()
        self.work(instant, limit)
        self.pending.remove(instant)
        return done(instant)

    def failed(self, instant: str, error: Exception) -> None:
        self.failures.append((instant, str(error)))


class Clock:
    """It moves where a test says so."""

    def __init__(self) -> None:
        self.now_ms = 1

    def __call__(self) -> int:
        return self.now_ms


_RECORDS: list[Path] = []


@pytest.fixture(autouse=True)
def _each_daemon_is_replayed(tmp_path: Path) -> Iterator[None]:
    """What each daemon of these tests did, it does again from the record of its events alone."""
    _RECORDS.append(tmp_path / "events")
    yield
    record = _RECORDS.pop()
    if record.exists():
        runs = list(replay(record.read_text().splitlines()))
        assert [one.differs for one in runs] == [None] * len(runs)
        assert any(one.actions for one in runs)


def daemon_of(
    *tables: FakeTable,
    observer: Observer | None = None,
    gone: bool = False,
    backoff_s: float = 30.0,
    clock: Callable[[], int] = loop._steady_ms,
    **rules: object,
) -> Daemon:
    rules = {"poll_s": 0.05, "once": True, **rules}
    return Daemon(
        {t.path: t for t in tables},
        Rules(**rules),  # type: ignore[arg-type]
        RetryOptions(backoff_s=backoff_s),
        observer=observer,
        spark_is_gone=lambda: gone,
        clock=clock,
        events=_RECORDS[-1],
    )


class Running:
    """A daemon in a thread."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.summary: Summary | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.summary = self.daemon.run()

    def goes_round(self) -> None:
        """Waits until the loop has taken in all news of before, and what came of them, in some turns."""
        for _ in range(3):
            turn = self.daemon._beat
            self.daemon.wake("no table")
            until(lambda turn=turn: self.daemon._beat != turn)  # type: ignore[misc]

    def end(self, how: Stop) -> Summary:
        self.daemon.stop(how)
        self.thread.join(WAIT_S)
        assert self.summary is not None, "the daemon did not end"
        return self.summary


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_everything_is_executed_once_in_order() -> None:
    one, two = FakeTable("a", "1", "2", "3"), FakeTable("b", "1")
    summary = daemon_of(one, two).run()
    assert sorted((t, c.instant) for t, c in summary.done) == [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1")]
    assert one.tried == ["1", "2", "3"]
    assert (one.sweeps, two.sweeps) == (1, 1)
    assert not one.claims.held
    assert summary.left == {}


def test_what_others_hold_is_left_to_them() -> None:
    table = FakeTable("a", "1", "2")
    table.claims.others = {"1"}
    summary = daemon_of(table).run()
    assert table.tried == ["2"]
    assert summary.left == {"a": ("1",)}


def test_an_instant_that_somebody_completed_meanwhile_is_no_failure() -> None:
    table = FakeTable("a", "1")
    table.work = lambda instant, limit: None
    snapshot = table.snapshot
    stale = snapshot()
    table.pending.clear()
    table.snapshot = lambda: stale  # type: ignore[method-assign]
    runs = Running(daemon_of(table, once=False))
    until(lambda: table.tried != [])
    summary = runs.end(Stop.FINISH)
    assert not summary.done
    assert not summary.failed
    assert not table.failures


def test_what_the_fleet_has_completed_is_not_even_claimed() -> None:
    table = FakeTable("a", "1", "2")
    table.done = {"1"}
    daemon_of(table, once=True).run()
    assert table.tried == ["2"]


def test_what_is_done_around_it_is_seen_at_once() -> None:
    """Of a hundred that others have done meanwhile, not each costs a turn of the loop."""
    table = FakeTable("a", *(f"{n:03d}" for n in range(100)))
    table.done = {f"{n:03d}" for n in range(99)}
    daemon = daemon_of(table)
    daemon.run()
    assert table.tried == ["099"]
    assert daemon._control.takes < 10


def test_a_failure_is_kept_and_the_others_go_on() -> None:
    table = FakeTable("a", "1", "2")

    def work(instant: str, limit: Limit) -> None:
        if instant == "1":
            raise StorageError("disk full")

    table.work = work
    summary = daemon_of(table).run()
    assert table.tried == ["1", "2"]
    assert table.failures == [("1", "disk full")]
    assert [(t, i) for t, i, _ in summary.failed] == [("a", "1")]
    assert not table.claims.held


def test_others_at_work_on_an_instant_are_no_failure_of_it() -> None:
    table = FakeTable("a", "1")

    def work(instant: str, limit: Limit) -> None:
        raise ConflictError("a Hudi compactor is at work")

    table.work = work
    summary = daemon_of(table).run()
    assert table.tried == ["1"]
    assert not table.failures
    assert not summary.failed


def test_a_daemon_that_runs_once_waits_for_nobody_twice() -> None:
    """Two instants that each wait for others would take turns for ever."""
    table = FakeTable("a", "1", "2")

    clock = Clock()

    def work(instant: str, limit: Limit) -> None:
        clock.now_ms += 50
        raise ConflictError("a write is pending")

    table.work = work
    assert daemon_of(table, backoff_s=0.01, clock=clock).run().left == {"a": ("1", "2")}
    assert table.tried == ["1", "2"]


def test_a_bug_in_one_instant_does_not_end_the_daemon() -> None:
    table = FakeTable("a", "1", "2")

    def work(instant: str, limit: Limit) -> None:
        if instant == "1":
            raise ZeroDivisionError("a bug")

    table.work = work
    assert [c.instant for _, c in daemon_of(table).run().done] == ["2"]
    assert table.failures == [("1", "a bug")]


def test_a_claim_nobody_answered_is_tried_again_later() -> None:
    table = FakeTable("a", "1", "2")
    table.claims.trouble = 1
    summary = daemon_of(table).run()
    assert table.tried == ["2"]
    assert summary.left == {"a": ("1",)}
    assert not summary.failed
    assert not table.failures


def test_a_table_in_trouble_does_not_stop_the_others() -> None:
    bad, good = FakeTable("a", "1"), FakeTable("b", "1")
    bad.look_error = StorageError("stale handle")
    summary = daemon_of(bad, good).run()
    assert [t for t, _ in summary.done] == ["b"]
    assert summary.problems == {"a": "stale handle"}


def test_a_due_plan_is_requested_and_executed() -> None:
    table = FakeTable("a")
    table.due = True
    assert [c.instant for _, c in daemon_of(table).run().done] == ["900"]


def test_the_doorbell_wakes_an_idle_daemon() -> None:
    table = FakeTable("a")
    runs = Running(daemon_of(table, once=False, poll_s=600.0))
    until(lambda: table.sweeps == 1)
    table.pending.append("1")
    runs.daemon.wake("a")
    until(lambda: not table.pending)
    assert [c.instant for _, c in runs.end(Stop.FINISH).done] == ["1"]


def test_without_a_doorbell_plans_are_found_by_polling() -> None:
    table = FakeTable("a")
    runs = Running(daemon_of(table, once=False))
    until(lambda: table.sweeps == 1)
    table.pending.append("1")
    until(lambda: not table.pending)
    runs.end(Stop.FINISH)


def test_an_idle_daemon_looks_once_a_poll() -> None:
    table, clock = FakeTable("a"), Clock()
    runs = Running(daemon_of(table, once=False, poll_s=0.02, clock=clock))
    for looks in range(1, 6):
        until(lambda looks=looks: table.looks == looks)  # type: ignore[misc]
        for ms in (19, 1):
            runs.goes_round()
            assert table.looks == looks
            clock.now_ms += ms
    runs.end(Stop.FINISH)


def test_a_released_claim_of_others_is_noticed() -> None:
    table = FakeTable("a", "1")
    table.claims.others = {"1"}
    runs = Running(daemon_of(table, once=False, poll_s=600.0))
    until(lambda: table.sweeps == 1)
    table.claims.others.clear()
    runs.daemon.claims_changed("a")
    until(lambda: not table.pending)
    runs.end(Stop.FINISH)


class Slow:
    """Work that goes on until it is let go, or its limit says stop."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, instant: str, limit: Limit) -> None:
        self.begun.set()
        while not self.let_go.wait(0.01):
            limit.check()


def test_finish_brings_the_work_to_its_end() -> None:
    table, slow = FakeTable("a", "1", "2"), Slow()
    table.work = slow
    runs = Running(daemon_of(table, once=False))
    assert slow.begun.wait(WAIT_S)
    runs.daemon.stop(Stop.FINISH)
    runs.goes_round()
    assert runs.summary is None
    slow.let_go.set()
    assert [c.instant for _, c in runs.end(Stop.FINISH).done] == ["1"]
    assert table.pending == ["2"]


def test_hand_over_stops_the_work_and_gives_the_claim_back() -> None:
    table, slow = FakeTable("a", "1"), Slow()
    table.work = slow
    runs = Running(daemon_of(table, once=False))
    assert slow.begun.wait(WAIT_S)
    summary = runs.end(Stop.HAND_OVER)
    assert not summary.done
    assert not summary.failed
    assert not table.failures
    assert not table.claims.held


def test_work_under_a_lost_claim_is_stopped() -> None:
    table, slow = FakeTable("a", "1"), Slow()
    table.work = slow
    runs = Running(daemon_of(table, once=False))
    assert slow.begun.wait(WAIT_S)
    table.claims.held["1"].lost = True
    runs.daemon.session_changed()
    until(lambda: not table.claims.held)
    assert not runs.end(Stop.FINISH).done
    assert not table.failures


def test_a_claim_that_is_lost_as_it_is_taken_is_no_claim() -> None:
    """The news of the loss came before anything was at work under it."""
    table, slow = FakeTable("a", "1"), Slow()
    table.work, table.claims.lost = slow, True
    runs = Running(daemon_of(table, once=False))
    until(lambda: table.tried != [] and not table.claims.held)
    assert not runs.end(Stop.FINISH).done


def test_nothing_is_begun_while_claims_are_unavailable() -> None:
    table = FakeTable("a")
    runs = Running(daemon_of(table, once=False, poll_s=0.05))
    until(lambda: table.sweeps == 1)
    table.claims.available = False
    runs.daemon.session_changed()
    table.pending.append("1")
    looks = table.looks
    until(lambda: table.looks > looks + 3)
    assert table.tried == []
    assert "no connection" in (runs.daemon.trouble or "")
    table.claims.available = True
    runs.daemon.session_changed()
    until(lambda: not table.pending)
    runs.end(Stop.FINISH)


def test_a_daemon_without_its_spark_ends_and_says_so() -> None:
    table = FakeTable("a", "1", "2")

    def work(instant: str, limit: Limit) -> None:
        raise SparkError("the JVM is gone")

    table.work = work
    with pytest.raises(SparkError, match="JVM"):
        daemon_of(table, once=False, gone=True).run()
    assert table.tried == ["1"]
    assert not table.claims.held


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_clock_that_jumps_stops_nothing(jump_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks go on, and what waits after a failure is tried."""
    table, real = FakeTable("a", "1"), time.time

    def snapshot() -> SeenTable:
        table.looks += 1
        waits = Waits(clock_ms() + 100 if table.looks == 1 else 0)
        if table.looks == 2:
            monkeypatch.setattr(time, "time", lambda: real() + jump_s)
        return SeenTable(
            pending=tuple(Pending(instant=i, readiness=waits) for i in table.pending),
            claimed=frozenset(),
            due=False,
            oldest_s=None,
        )

    table.snapshot = snapshot  # type: ignore[method-assign]
    runs = Running(daemon_of(table, once=False))
    until(lambda: table.tried == ["1"] and table.looks > 5)
    runs.end(Stop.FINISH)


class Heard(Observer):
    def __init__(self) -> None:
        self.events: list[str] = []

    def started(self, table: str, latency_s: float | None) -> None:
        self.events.append("started")

    def suspend(self, table: str) -> None:
        self.events.append("put aside")

    def resumed(self, table: str) -> None:
        self.events.append("resumed")

    def finished(self, table: str, compacted: Compacted | None) -> None:
        self.events.append("finished" if compacted else "nothing")

    def failed(self, table: str) -> None:
        self.events.append("failed")


def test_the_observer_hears_each_instant_begin_and_end() -> None:
    table, heard = FakeTable("a", "1", "2"), Heard()

    def work(instant: str, limit: Limit) -> None:
        if instant == "1":
            raise StorageError("disk full")

    table.work = work
    daemon_of(table, observer=heard).run()
    assert heard.events == ["started", "failed", "nothing", "started", "finished"]


@pytest.mark.parametrize("ends", [True, False])
def test_the_observer_hears_what_waits_for_a_write(ends: bool) -> None:
    """It is not at work: that nobody works shows, also where the daemon ends meanwhile."""
    table, heard = FakeTable("a", "1"), Heard()
    table.writes["1"] = write = threading.Event()
    runs = Running(daemon_of(table, observer=heard, once=False))
    until(lambda: heard.events == ["started", "put aside"])
    if ends:
        write.set()
        until(lambda: not table.pending)
    runs.end(Stop.FINISH)
    assert heard.events == ["started", "put aside", "resumed", "finished" if ends else "nothing"]


def test_what_waits_for_a_write_holds_no_slot() -> None:
    """Other tables go on with the only slot; when the write has ended the compaction goes on, as the same attempt."""
    slow, other = FakeTable("a", "1"), FakeTable("b", "1", "2", "3")
    slow.writes["1"] = write = threading.Event()
    runs = Running(daemon_of(slow, other, once=False, max_concurrent=1, sweep_s=300.0))
    until(lambda: not other.pending and slow.patient is not None)
    assert slow.patient, "it waits as long as the write takes"
    assert slow.pending == ["1"]
    assert "1" in slow.claims.held, "nobody else opens an attempt meanwhile"
    write.set()
    until(lambda: not slow.pending)
    assert slow.tried == ["1"]
    runs.end(Stop.FINISH)


def test_what_has_waited_takes_no_slot_that_another_holds() -> None:
    """It goes on once a slot is free."""
    slow, other = FakeTable("a", "1"), FakeTable("b", "1")
    slow.writes["1"] = write = threading.Event()
    busy, free, seen = threading.Event(), threading.Event(), list[str]()

    def work(instant: str, limit: Limit) -> None:
        busy.set()
        assert free.wait(WAIT_S)
        seen.append("b")

    other.work = work
    slow.work = lambda instant, limit: seen.append("a")
    runs = Running(daemon_of(slow, other, once=False, max_concurrent=1, sweep_s=300.0))
    until(busy.is_set)
    write.set()
    until(lambda: runs.daemon._control.tables["a"].resumable != frozenset())
    runs.goes_round()
    free.set()
    until(lambda: not slow.pending and not other.pending)
    assert seen == ["b", "a"]
    runs.end(Stop.FINISH)


@pytest.mark.parametrize("how", [Stop.FINISH, Stop.HAND_OVER])
def test_a_daemon_that_stops_does_not_wait_for_writes(how: Stop) -> None:
    """What waits is handed over: it is not decided."""
    slow = FakeTable("a", "1")
    slow.writes["1"] = threading.Event()
    runs = Running(daemon_of(slow, once=False))
    until(lambda: slow.patient is not None)
    summary = runs.end(how)
    assert summary.left == {"a": ("1",)}
    assert not slow.claims.held
    assert not slow.failures


def test_a_daemon_that_runs_once_waits_for_writes_no_longer_than_asked() -> None:
    """It gives its slot back all the same."""
    slow, other = FakeTable("a", "1"), FakeTable("b", "1")
    slow.writes["1"] = write = threading.Event()
    other.work = lambda instant, limit: write.set()
    assert len(daemon_of(slow, other, max_concurrent=1).run().done) == 2
    assert slow.patient is False


def test_of_too_many_that_wait_the_last_keep_their_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a thread; those beyond the limit wait as long as `barrier_s` says."""
    monkeypatch.setattr("phantombase.compactor_daemon.daemon.loop._SUSPENDED_MAX", 1)
    table, writes = FakeTable("a", "1", "2"), threading.Event()
    table.writes = {"1": writes, "2": writes}
    runs = Running(daemon_of(table, once=False, max_concurrent=1))
    until(lambda: len(table.tried) == 2 and table.patient is False)
    writes.set()
    until(lambda: not table.pending)
    runs.end(Stop.FINISH)


def test_services_run_every_so_often_beside_the_compactions() -> None:
    """A long one keeps no compaction waiting."""
    table, write = FakeTable("a", "1"), threading.Event()
    table.writes["1"] = write
    runs = Running(daemon_of(table, once=False, services=True, services_s=0.05))
    until(lambda: len(table.serves) > 2)
    assert set(table.serves) == {(0.05, ("1",))}
    write.set()
    until(lambda: not table.pending)
    summary = runs.end(Stop.FINISH)
    assert len(summary.services) == len(table.serves)


def test_a_daemon_that_runs_once_runs_the_services_once_after_all_else() -> None:
    """No record of an earlier run keeps it from them."""
    table, other = FakeTable("a", "1", "2"), FakeTable("b")
    summary = daemon_of(table, other, services=True).run()
    assert (table.serves, other.serves) == ([(0.0, ())], [(0.0, ())])
    assert sorted(name for name, _ in summary.services) == ["a", "b"]
    assert [FakeTable("c").serves, daemon_of(FakeTable("c")).run().services] == [[], deque()]


def test_services_that_cannot_begin_are_a_problem_of_the_table() -> None:
    table = FakeTable("a", "1")
    table.serve_error = StorageError("no answer")
    summary = daemon_of(table, services=True).run()
    assert summary.problems == {"a": "no answer"}
    assert len(summary.done) == 1


def test_services_wait_for_claims_and_end_before_the_daemon() -> None:
    """Without ZooKeeper the fleet may have parted: nothing begins."""
    table, began, go_on = FakeTable("a"), threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        assert go_on.wait(WAIT_S)

    table.at_service = slow
    table.claims.available = False
    runs = Running(daemon_of(table, once=False, services=True, services_s=300.0))
    until(lambda: table.looks > 1)
    assert not began.is_set()
    table.claims.available = True
    runs.daemon.session_changed()
    assert began.wait(WAIT_S)
    runs.daemon.stop(Stop.HAND_OVER)
    runs.goes_round()
    assert runs.summary is None
    go_on.set()
    assert len(runs.end(Stop.HAND_OVER).services) == 1


def test_services_that_have_not_begun_do_not_begin_once_the_daemon_stops() -> None:
    """Of many tables most wait for a thread."""
    tables, go_on = [FakeTable(f"t{n}") for n in range(9)], threading.Event()
    for table in tables:
        table.at_service = lambda: go_on.wait(WAIT_S)
    runs = Running(daemon_of(*tables, once=False, services=True, services_s=300.0))
    until(lambda: sum(len(table.serves) for table in tables) == 2)
    runs.daemon.stop(Stop.FINISH)
    runs.goes_round()
    assert runs.summary is None
    go_on.set()
    assert len(runs.end(Stop.FINISH).services) == 2
    assert sum(len(table.serves) for table in tables) == 2


def test_a_table_in_trouble_is_looked_at_less_and_less_often_and_leaves_the_others_ready() -> None:
    bad, good = FakeTable("a"), FakeTable("b")
    bad.look_error = StorageError("no such disk")
    seen: list[tuple[str, str | None]] = []

    class Watching(Observer):
        def trouble(self, table: str, error: str | None) -> None:
            seen.append((table, error))

    clock = Clock()
    daemon = daemon_of(bad, good, observer=Watching(), once=False, poll_s=0.01, clock=clock)
    running = Running(daemon)
    for looks in range(1, 17):
        until(lambda looks=looks: good.looks == looks)  # type: ignore[misc]
        # At 0, 10, 30, 70 and 150 ms.
        until(lambda looks=looks: bad.looks == sum(looks > n for n in (0, 1, 3, 7, 15)))  # type: ignore[misc]
        running.goes_round()
        assert daemon.trouble is None
        clock.now_ms += 10
    bad.look_error = None
    clock.now_ms += 1000
    until(lambda: ("a", None) in seen)
    summary = running.end(Stop.FINISH)
    assert ("a", "no such disk") in seen
    assert not summary.problems


def test_no_table_can_be_served_is_not_ready() -> None:
    bad = FakeTable("a")
    bad.look_error = StorageError("no such disk")
    daemon = daemon_of(bad, once=False)
    running = Running(daemon)
    until(lambda: bad.looks >= 1 and daemon.trouble == "no such disk")
    running.end(Stop.FINISH)


def test_tables_come_and_go_while_the_daemon_runs() -> None:
    """Work on a table that goes is brought to its end; then it is closed, and its doorbell is not heard."""
    old, new = FakeTable("old", "1", "2"), FakeTable("new", "1")
    go_on = threading.Event()
    old.work = lambda instant, limit: until(go_on.is_set)
    forgotten: list[str] = []

    class Watching(Observer):
        def forget(self, table: str) -> None:
            forgotten.append(table)

    daemon = daemon_of(old, observer=Watching(), once=False)
    running = Running(daemon)
    until(lambda: old.tried == ["1"])
    daemon.assign({"new": Assigned(served=new, pool=Pool())})
    daemon.wake("old")
    running.goes_round()
    assert not old.closed
    go_on.set()
    until(lambda: old.closed and new.tried == ["1"])
    assert old.tried == ["1"], "nothing more was begun on it"
    assert forgotten == ["old"]
    daemon.wake("old")
    daemon.claims_changed("old")
    daemon.session_changed()
    daemon.assign({"new": Assigned(served=new, pool=Pool()), "old": Assigned(served=old, pool=Pool())})
    until(lambda: old.tried == ["1", "2"])
    assert len(running.end(Stop.FINISH).done) == 3


def test_a_table_that_comes_back_before_it_went_goes_on() -> None:
    table = FakeTable("a", "1", "2")
    go_on = threading.Event()
    table.work = lambda instant, limit: until(go_on.is_set)
    daemon = daemon_of(table, once=False)
    running = Running(daemon)
    until(lambda: table.tried == ["1"])
    daemon.assign({})
    daemon.assign({"a": Assigned(served=table, pool=Pool())})
    go_on.set()
    until(lambda: table.tried == ["1", "2"])
    running.end(Stop.FINISH)
    assert not table.closed


def test_a_doorbell_is_heard_among_thousands_of_tables() -> None:
    """What rings comes before all tables that are looked at because of a poll."""
    tables, clock, begun = [FakeTable(f"t{n:04}") for n in range(2000)], Clock(), list[int]()
    first, last, at = tables[0], tables[-1], list[int]()
    daemon = daemon_of(*tables, once=False, poll_s=0.2, clock=clock)

    def rings() -> None:
        if first.looks == 2:  # the second turn over all tables begins
            begun.append(sum(t.looks for t in tables))
            last.pending.append("1")
            daemon.wake(last.path)

    first.at_look = rings
    last.work = lambda instant, limit: at.append(sum(t.looks for t in tables))
    running = Running(daemon)
    until(lambda: all(t.looks for t in tables))
    running.goes_round()
    clock.now_ms += 200
    until(lambda: last.tried == ["1"] and at != [])
    assert at[0] - begun[0] < len(tables) / 2
    running.end(Stop.FINISH)


def test_a_daemon_that_runs_once_ends_although_a_round_outlasts_the_poll() -> None:
    tables, clock = [FakeTable(f"t{n}", "1") for n in range(32)], Clock()

    def passes() -> None:
        clock.now_ms += 50

    for table in tables:
        table.at_look = passes
    runs = Running(daemon_of(*tables, poll_s=0.1, clock=clock))
    runs.thread.join(WAIT_S)
    assert runs.summary is not None
    assert len(runs.summary.done) == 32


@pytest.mark.parametrize("look_s", [0.0, 0.1])
def test_looks_that_are_quick_are_queued_in_greater_numbers(look_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn over thousands of tables takes longer than a few quick looks; behind slow ones a bell would wait."""
    looked = list[float]()
    clock = SimpleNamespace(monotonic=lambda: sum(looked), sleep=time.sleep)  # it stands still but for looks
    monkeypatch.setattr(loop, "time", clock)

    tables = [FakeTable(f"t{n}") for n in range(64)]
    for table in tables:
        table.at_look = lambda: looked.append(look_s)
    daemon = daemon_of(*tables, poll_s=60.0)
    daemon.run()
    assert (daemon._upkeeps > 16) is (look_s == 0.0)


def test_a_record_shows_where_decisions_differ(tmp_path: Path) -> None:
    """A day is recorded, half a line included; without its first snapshot nothing would have been claimed."""
    _RECORDS[-1].write_bytes(b'{"at": [1')
    daemon_of(FakeTable("a", "1", "2")).run()
    lines = _RECORDS[-1].read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if '"SnapshotTaken"' in line)
    (run,) = replay(lines[:first] + lines[first + 1 :])
    assert run.differs is not None
    number, recorded, now = run.differs
    assert first < number
    assert recorded != now


@pytest.mark.parametrize(
    "value",
    [
        Pending(instant="1", requested_ms=None, readiness=Waits(7), log_bytes=3),
        Pending(instant="1", readiness=Parked("a reason")),
        Pools(
            pools=(Pool(match="a*", hours=Hours.parse("22:00-06:00 Europe/Berlin"), schedule=ScheduleOptions()),),
            exclude=("b",),
        ),
        SnapshotTaken(
            table="a", seen=SeenTable(pending=(), claimed=frozenset({"2", "1"}), due=True, oldest_s=1.5), available=True
        ),
        SessionChanged(available={"a": True, "b": False}),
        Stopped(how=Stop.HAND_OVER),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_recorded_comes_back(value: object) -> None:
    assert value_of(json.loads(json.dumps(as_record(value)))) == value


def test_a_file_for_events_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the file for events cannot be written"):
        Daemon({}, Rules(), RetryOptions(), events=tmp_path / "no folder" / "events")


def test_a_full_disk_ends_the_record_and_not_the_daemon(caplog: pytest.LogCaptureFixture) -> None:
    table = FakeTable("a", "1")
    summary = Daemon({"a": table}, Rules(once=True, poll_s=0.05), RetryOptions(), events=Path("/dev/full")).run()
    assert len(summary.done) == 1
    assert caplog.text.count("events_not_recorded") == 1


def test_a_name_that_is_no_utf_8_is_recorded() -> None:
    """Such a name is in errors about files of which it is the name: the record is no reason to end a daemon."""
    table = FakeTable("a\udcff", "1")
    summary = daemon_of(table).run()
    assert len(summary.done) == 1


def test_a_disk_that_takes_a_part_of_a_line_ends_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing comes after half a line, also where the disk has room again."""
    recorder = Daemon({}, Rules(), RetryOptions(), events=tmp_path / "half")._recorder
    assert recorder is not None
    whole, whole_file = tmp_path.joinpath("half").read_bytes(), recorder._file
    monkeypatch.setattr(recorder, "_file", Mock(wraps=whole_file, write=lambda data: whole_file.write(data[:7])))
    for _ in range(2):
        recorder.event(Stopped(how=Stop.FINISH), Moment(now_ms=1, epoch_ms=2))
    assert tmp_path.joinpath("half").read_bytes() == whole + b'{"at": '
    assert caplog.text.count("events_not_recorded") == 1


def test_a_failure_that_cannot_be_recorded_frees_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the error of the record is: else the daemon would wait for this work for ever."""
    table = FakeTable("a", "1", "2")
    table.work = Mock(side_effect=[StorageError("no space"), None])
    monkeypatch.setattr(table, "failed", Mock(side_effect=OSError("no space")))
    running = Running(daemon_of(table))
    running.thread.join(20)
    assert running.summary is not None
    assert len(running.summary.done) == len(running.summary.failed) == 1
