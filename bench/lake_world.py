"""A lake whose clock is simulated: daemons, writers and people in one process, one at a time, on real files.

The clock moves when everybody waits; work takes the time that `LakeWorld.wait` is told, and a millisecond for each
turn. A file is as old as the clock says, whenever it was written. A daemon that is lost does nothing any more, as a
machine without power: what it held stays until its session with ZooKeeper has expired."""

from __future__ import annotations

import os
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from phantombase.timeline.locks.heartbeat import Process, process_name
from phantombase.timeline.storage import local
from phantombase.timeline.storage.contract import Entry
from tests.support.interleaving import serial_pools
from tests.world.simulation.fleet import WorldPool, WorldQueue, ZooKeeper
from tests.world.simulation.world import START_MS, Actor, Call, Died, Faults, Host, World

_SHORT_S = 1.0
"""A sleep that is shorter moves the clock, and hands over to nobody: it may be inside a section of a lock."""
_DATES_FILES = 5
"""Linux's CLOCK_REALTIME_COARSE."""
_NOT = ("phantombase.timeline.reachable",)
"""What watches the real time of calls."""


class _InTurn:
    def choose(self, world: World, able: list[Actor]) -> Actor:
        return able[0]


def _nobody(actor: Actor, call: Call) -> None:
    """Storage calls are not observed."""


class LakeWorld(World):
    """See the module."""

    def __init__(self) -> None:
        super().__init__(_InTurn(), _nobody)
        self.lost: list[Actor] = []
        """Of lost daemons: they are kept, since what leaves them would be tidied up."""
        self._away = WeakKeyDictionary[Actor, float]()
        self._real, self._simulated = [0], [START_MS]
        self._thread = threading.get_ident()

    def move(self, now_ms: int) -> None:
        """Sets the clock forward."""
        self.now_ms = max(self.now_ms, now_ms)
        real = time.clock_gettime_ns(_DATES_FILES)
        if real > self._real[-1]:
            self._real.append(real)
            self._simulated.append(self.now_ms)
        else:
            self._simulated[-1] = self.now_ms

    def modified_ms(self, mtime_ns: int) -> int:
        """The simulated time of a file's real one; a time from before the lake was set by somebody, and stays."""
        at = bisect_right(self._real, mtime_ns) - 1
        return self._simulated[at] if at > 0 else mtime_ns // 1_000_000

    def sleep(self, seconds: float) -> None:
        """In the place of `time.sleep`; threads of pools sleep."""
        if threading.get_ident() != self._thread:
            time.sleep(seconds)
        elif seconds < _SHORT_S:
            self.move(self.now_ms + round(seconds * 1000))
        else:
            self.wait(None, seconds)

    def thread_time(self) -> float:
        """Processor time of the running actor, which shares its thread with all others."""
        spent = time.thread_time()
        mine = self.running if threading.get_ident() == self._thread else None
        return spent if mine is None else spent - self._away.get(mine, 0.0)

    def step(
        self, name: str, path: str, args: tuple[Any, ...], do: Callable[[], Any], faults: Faults | None = None
    ) -> Any:
        """See `World`: nobody else's turn comes before it."""
        if self.me.host.dead:
            raise Died
        return do()

    def lose(self, host: Host) -> None:
        """Power off."""
        host.frozen = True
        self.lost += [actor for actor in self.actors if actor.host is host]

    def close(self) -> None:
        """See `World`."""
        self.actors += self.lost
        super().close()

    def _hand_over(self, me: Actor) -> None:
        left = time.thread_time()
        super()._hand_over(me)
        self._away[me] = self._away.get(me, 0.0) + time.thread_time() - left

    def _choose(self) -> Actor | None:
        """Whoever can go on and has waited longest."""
        while not self._closing and self.failure is None:
            self.actors = [a for a in self.actors if not (a.done or a.host.frozen)]
            able = next((a for a in self.actors if a.host.dead or a.can_go_on(self.now_ms)), None)
            if able is not None:
                self.actors.remove(able)
                self.actors.append(able)
                self.move(self.now_ms + 1)
                return able
            times = [a.wake_ms for a in self.actors if a.wake_ms is not None]
            if not times:
                return None
            self.move(min(times))
        return None


class Sessions(ZooKeeper):
    """Claims on a table: of a process that is lost until its session has expired."""

    def holders(self) -> dict[str, Host]:
        """See `ZooKeeper`."""
        self.held = {i: (h, s) for i, (h, s) in self.held.items() if h.session == s}
        return {instant: host for instant, (host, _) in self.held.items()}


class _Event:
    def __init__(self, world: LakeWorld) -> None:
        self._world, self._is_set = world, False

    def set(self) -> None:
        self._is_set = True

    def wait(self, timeout: float | None = None) -> bool:
        return self._is_set or self._world.wait(lambda: self._is_set, timeout)


class _Thread:
    """Who joins it has told it to end, and waits for nothing."""

    def __init__(self, world: LakeWorld, target: Callable[[], None], name: str, **_: Any) -> None:
        self.start = lambda: world.spawn(name, world.me.host, target)

    def join(self) -> None:
        """See `threading.Thread`."""


@contextmanager
def simulated(world: LakeWorld) -> Iterator[None]:
    """The world in the place of the clocks, processes and threads of the product."""
    clock = SimpleNamespace(
        **{
            **vars(time),
            "time": lambda: world.now_ms / 1000,
            "monotonic": lambda: world.now_ms / 1000,
            "thread_time": world.thread_time,
            "sleep": world.sleep,
        }
    )
    threads = SimpleNamespace(Event=lambda: _Event(world), Thread=lambda **how: _Thread(world, **how))
    doubles: Mapping[str, tuple[Any, Any]] = {
        "time": (time, clock),
        "process_name": (process_name, lambda: f"{_of(world).name}:{_of(world).number + 1}"),
    }
    loop = "phantombase.compactor_daemon.daemon.loop"
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("phantombase.") and name not in _NOT:
                for what, (real, double) in doubles.items():
                    if getattr(module, what, None) is real:
                        patch.setattr(module, what, double)
        serial_pools(patch)
        patch.setattr("phantombase.timeline.locks.heartbeat.threading", threads)
        patch.setattr(Process, "current", staticmethod(lambda: _process(_of(world))))
        patch.setattr(f"{loop}.ThreadPoolExecutor", lambda workers, name: WorldPool(world, workers, name))
        patch.setattr(f"{loop}.SimpleQueue", lambda: WorldQueue[Any](world))
        patch.setattr("phantombase.compactor_daemon.daemon.work.SimpleQueue", lambda: WorldQueue[Any](world))
        entry = local._entry

        def aged(name: str, stat: os.stat_result) -> Entry:
            found = entry(name, stat)
            if found.is_folder:
                return found
            return Entry(name=name, is_folder=False, size=found.size, modified_ms=world.modified_ms(stat.st_mtime_ns))

        patch.setattr(local, "_entry", aged)
        yield


def _of(world: LakeWorld) -> Host:
    return world.me.host


def _process(host: Host) -> Process:
    """On a machine that no other one can look into."""
    return Process(host=host.name, boot="", pid=host.number + 1, started=0)
