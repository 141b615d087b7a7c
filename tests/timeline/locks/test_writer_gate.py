"""The version 6 gate: a plan comes, writers go on, and neither rests on clocks or records being right."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.locks.heartbeat import (
    WANTED,
    Wanted,
    put_wanted,
    read_wanted,
    remove_wanted,
    wait_while_wanted,
)
from phantombase.timeline.storage.contract import Storage
from tests.support.selection import for_each

GATE_S = 30.0
T = 1_700_000_000_000
WRITE_S = st.floats(0.5, 25.0)


class Memory:
    """The three calls a gate makes."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def read(self, path: str) -> bytes:
        """See `Storage`."""
        if path not in self.objects:
            raise MissingFileError("not there", path=path)
        return self.objects[path]

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """See `Storage`."""
        return self.objects.setdefault(path, data) is data

    def delete(self, path: str) -> None:
        """See `Storage`."""
        self.objects.pop(path, None)


def memory() -> Storage:
    """A storage for a gate."""
    return cast(Storage, Memory())


class VirtualTime:
    """Seconds that pass only while all threads sleep; one thread at a time runs, the one that wakes first."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.now = 0.0
        self._wakes = dict.fromkeys(names, 0.0)
        self._changed = threading.Condition()

    def sleep(self, name: str, seconds: float) -> None:
        """Lets the others run."""
        with self._changed:
            self._wakes[name] = self.now + seconds
            self._changed.notify_all()
            self._changed.wait_for(lambda: min(self._wakes, key=lambda n: (self._wakes[n], n)) == name)
            self.now = self._wakes[name]

    def leave(self, name: str) -> None:
        """The thread sleeps no more."""
        with self._changed:
            del self._wakes[name]
            self._changed.notify_all()

    def now_ms(self) -> int:
        """As a clock."""
        return T + round(self.now * 1000)


@dataclass
class Simulation:
    """Writers that begin the next write at once; after each write they schedule, as version 6 allows it. `delays`:
    seconds from due to planned, while all of them write; `waits`: of each write before it began."""

    gate_s: float
    due_commits: int = 3
    storage: Storage = field(default_factory=memory)
    pending: set[str] = field(default_factory=set)
    commits: int = 0
    due_since: float | None = None
    alone: bool = False
    delays: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def run(self, writes: dict[str, list[float]]) -> None:
        """Each writer's writes, in seconds; the second writer begins while the first is at work."""
        self.time = VirtualTime(tuple(writes))
        threads = [threading.Thread(target=self.write, args=(n, 0.3 * k)) for k, n in enumerate(writes)]
        self.writes = writes
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def write(self, name: str, start: float) -> None:
        """One writer."""
        sleep = partial(self.time.sleep, name)
        sleep(start)
        for seconds in self.writes[name]:
            before = self.time.now
            wait_while_wanted(self.storage, self.time.now_ms, sleep)
            self.waits.append(self.time.now - before)
            self.pending.add(name)
            sleep(seconds)
            self.pending.discard(name)
            self.commits += 1
            self.schedule()
        self.alone = True
        self.time.leave(name)

    def schedule(self) -> None:
        """As `schedule_compaction`: due after some commits, possible while nothing pends."""
        if self.commits < self.due_commits:
            return
        if self.due_since is None:
            self.due_since = self.time.now
        if self.pending:
            put_wanted(self.storage, self.gate_s, self.time.now_ms())
        else:
            remove_wanted(self.storage)
            if not self.alone:
                self.delays.append(self.time.now - self.due_since)
            self.commits, self.due_since = 0, None


@settings(max_examples=40)
@given(st.lists(WRITE_S, min_size=20, max_size=20), st.lists(WRITE_S, min_size=20, max_size=20))
def test_writers_that_always_overlap_do_not_starve_the_plan(a: list[float], b: list[float]) -> None:
    """With the gate a due plan is made within one write; without it never, as long as both write."""
    with_gate = Simulation(gate_s=GATE_S)
    with_gate.run({"a": a, "b": b})
    assert with_gate.delays
    assert max(with_gate.delays) <= max(a + b) + 0.5
    assert max(with_gate.waits) <= GATE_S + 0.001
    without = Simulation(gate_s=0)
    without.run({"a": a, "b": b})
    assert not without.delays
    assert max(without.waits) == 0


@settings(max_examples=30)
@given(
    st.lists(st.floats(40.0, 200.0), min_size=8, max_size=8), st.lists(st.floats(40.0, 200.0), min_size=8, max_size=8)
)
def test_writes_longer_than_the_gate_are_not_held_for_ever(a: list[float], b: list[float]) -> None:
    """The plan may not come, but no write waits longer than the gate, and a rest as long follows each gate."""
    simulation = Simulation(gate_s=GATE_S)
    simulation.run({"a": a, "b": b})
    assert max(simulation.waits) <= GATE_S + 0.001


def test_a_gate_is_not_renewed_before_a_rest_as_long() -> None:
    """Writers get as much time as they gave."""
    storage = memory()
    put_wanted(storage, GATE_S, T)
    first = read_wanted(storage, T)
    assert first is not None
    assert first.until - first.since == 30_000
    for later, renewed in ((29_999, False), (30_000, False), (59_999, False), (60_000, True)):
        put_wanted(storage, GATE_S, T + later)
        assert (read_wanted(storage, T + later) != first) is renewed, later


@for_each([(-1, False), (0, True), (29_999, True), (30_000, False), (10**10, False), (-(10**10), False)])
def test_a_record_holds_only_between_its_times(offset_ms: int, holds: bool) -> None:
    """Also under a clock that runs behind or ahead."""
    assert Wanted(since=T, until=T + 30_000, who="x").holds(T + offset_ms) is holds


@for_each(
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"since": 1}',
        b'{"since": "x", "until": 2, "who": "x"}',
        Wanted(since=T, until=T + 301_000, who="x").to_json(),
        Wanted(since=T, until=T, who="x").to_json(),
        Wanted(since=T - 90_000, until=T - 60_000, who="x").to_json(),
        Wanted(since=T + 400_000, until=T + 430_000, who="x").to_json(),
    ]
)
def test_what_is_unreadable_or_over_is_removed_and_not_waited_for(data: bytes) -> None:
    """And then a new record may be put."""
    storage = memory()
    storage.put_if_absent(WANTED, data)
    assert wait_while_wanted(storage, lambda: T, lambda _: pytest.fail("waited")) == 0
    with pytest.raises(MissingFileError):
        storage.read(WANTED)
    put_wanted(storage, GATE_S, T)
    assert read_wanted(storage, T) is not None


def test_a_clock_that_stands_still_holds_nobody() -> None:
    """The sum of the pauses is bounded by the record's length."""
    storage = memory()
    put_wanted(storage, GATE_S, T)
    slept: list[float] = []
    assert wait_while_wanted(storage, lambda: T, slept.append) == pytest.approx(GATE_S, abs=0.3)
    assert sum(slept) == pytest.approx(GATE_S, abs=0.3)


def test_a_plan_lets_writers_go_on() -> None:
    """At the next snapshot."""
    storage = memory()
    put_wanted(storage, GATE_S, T)
    assert wait_while_wanted(storage, lambda: T, lambda _: remove_wanted(storage)) < 1


def test_the_next_record_is_not_waited_for() -> None:
    """A writer that has waited begins, whatever comes then."""
    storage, clock = memory(), [T]

    def sleep(seconds: float) -> None:
        clock[0] += 30_000
        storage.delete(WANTED)
        put_wanted(storage, GATE_S, clock[0])

    assert wait_while_wanted(storage, lambda: clock[0], sleep) == 0
    put_wanted(storage, GATE_S, clock[0])
    assert wait_while_wanted(storage, lambda: clock[0], sleep) < 1


def test_no_gate_of_no_length() -> None:
    """`gate_s` 0 turns it off."""
    storage = memory()
    put_wanted(storage, 0, T)
    with pytest.raises(MissingFileError):
        storage.read(WANTED)
