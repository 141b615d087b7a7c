"""Threads of one process that hand over to each other at storage calls only, in an order a seed decides."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Self

import pytest

from phantombase.timeline.locks.heartbeat import Process
from phantombase.timeline.locks.section import Section
from phantombase.timeline.storage.local import LocalStorage
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.faults import kept

_PACKAGE = "phantombase."


class SerialPool:
    """A pool that does everything at once in the caller's thread, so that storage calls come in one order."""

    def __init__(self, _: int, **more: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, do: Callable[..., Any], *args: Any) -> Iterator[Any]:
        """See `concurrent.futures.Executor.map`."""
        return iter([do(*one) for one in zip(*args, strict=False)])

    def submit(self, do: Callable[..., Any], *args: Any) -> Future[Any]:
        """See `concurrent.futures.Executor.submit`. A death is no result: it goes up at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(do(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_: object) -> None:
        """Nothing runs."""


def serial_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the threads out of everything that is imported by now."""
    for name, module in list(sys.modules.items()):
        for pool in ("ThreadPoolExecutor", "Threads"):
            if name.startswith(_PACKAGE) and hasattr(module, pool):
                monkeypatch.setattr(module, pool, SerialPool)


class Actor:
    """A process of its own, played by a thread: its storage waits at every call until it is its turn."""

    def __init__(self, fleet_info: FleetInfo, name: str, work: Callable[[Actor], None]) -> None:
        self.fleet_info = fleet_info
        self.name = name
        self.dead = False
        self.done = False
        self.failure: BaseException | None = None
        self.processes: list[int] = []
        self.storage = HookedStorage(LocalStorage(fleet_info.path), self._hook)
        self.turn = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self.thread.start()

    def _run(self, work: Callable[[Actor], None]) -> None:
        self.turn.acquire()
        try:
            work(self)
        except ProcessDied:
            self.dead = True
        except BaseException as error:
            self.failure = error
        finally:
            self.done = True
            self.fleet_info.back.release()

    def hand_over(self) -> None:
        """Lets others go on until it is this one's turn again; ProcessDied: it was killed meanwhile."""
        if not self.dead:
            self.fleet_info.back.release()
            self.turn.acquire()
        if self.dead:
            raise ProcessDied(self.name)

    def rest(self, turns: int) -> None:
        """Does nothing for some turns."""
        for _ in range(turns):
            self.hand_over()

    def _hook(self, call: Call) -> Any:
        if threading.current_thread() is not self.thread:  # a heartbeat's, half a minute later
            return call.do()
        self.hand_over()
        result = call.do()
        self.fleet_info.observe(self, call, result)
        return result


class FleetInfo:
    """Actors on one table, of which one at a time goes on. `observe` is told of every call right after it took effect.
    What the product asks of processes and locks is answered here."""

    def __init__(self, path: str, seed: int, observe: Callable[[Actor, Call, Any], None]) -> None:
        self.path = path
        self.pick = random.Random(seed)
        self.observe = observe
        self.actors: list[Actor] = []
        self.back = threading.Semaphore(0)
        self.running: Actor | None = None
        self.holder: Actor | None = None
        self.gone: set[int] = set()
        self._processes = 0
        self._stay = self.pick.choice((0.0, 0.7, 0.9, 0.98))

    def start(self, name: str, work: Callable[[Actor], None]) -> Actor:
        """One more actor, which goes on when it is chosen."""
        actor = Actor(self, name, work)
        self.actors.append(actor)
        return actor

    def kill(self, actor: Actor) -> None:
        """Takes effect at the call it waits at: nothing it does from now on reaches storage."""
        actor.dead = True
        self.presume_dead(actor)

    def presume_dead(self, actor: Actor) -> None:
        """Others take it for dead by what it has shown so far, whether it is or not."""
        self.gone.update(actor.processes)

    def step(self) -> bool:
        """Lets one actor make one call; False when all are done. An actor's error is raised here."""
        alive = [a for a in self.actors if not a.done]
        if not alive:
            return False
        chosen = self.running
        if chosen not in alive or chosen is None or self.pick.random() >= self._stay:
            chosen = self.running = self.pick.choice(alive)
        chosen.turn.release()
        self.back.acquire()
        if chosen.failure is not None:
            raise chosen.failure
        return True

    def end(self) -> None:
        """Ends what still waits, after a failure."""
        for actor in self.actors:
            if not actor.done:
                actor.dead = True
                actor.turn.release()
                actor.thread.join()

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        """The fleet_info is the table lock of its actors; that of a dead one is free again."""
        me = self.running
        assert me is not None
        while self.holder is not None:
            me.hand_over()
        self.holder = me
        try:
            yield kept(purpose)
        finally:
            self.holder = None

    def process(self) -> Process:
        """A process of the actor whose turn it is; each heartbeat is one of its own."""
        self._processes += 1
        if self.running is not None:
            self.running.processes.append(self._processes)
        return Process(host="fleet_info", boot="", pid=self._processes, started=0)

    def is_gone(self, process: Process) -> bool:
        """What the fleet_info says of a process."""
        return process.pid in self.gone

    def play(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Puts the fleet_info in the place of processes, pools and the table lock."""
        serial_pools(monkeypatch)
        monkeypatch.setattr(Process, "current", self.process)
        monkeypatch.setattr(Process, "is_gone", lambda process: self.is_gone(process))
        monkeypatch.setattr("phantombase.writer_hooks.write.write.table_lock", lambda *_: self)
