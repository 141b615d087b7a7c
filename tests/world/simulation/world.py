"""Processes of one simulated world: of their threads one runs at a time, and they hand over at storage calls only.

    step        one storage call; before each one the chooser says who goes on, and who is killed or paused
    clock       milliseconds; it goes on by one with each step, and jumps when everybody waits
    process     one or more actors (a compactor and its heartbeat), killed and paused together

Nothing depends on anything but the chooser: the same choices give the same run. An actor is a greenlet: handing over
from one thread to another takes a loaded machine longer than the steps themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import IO, Any, Protocol, TypeAlias

import pyarrow as pa
from greenlet import getcurrent, greenlet

from phantombase.timeline.errors import StorageError
from phantombase.timeline.locks.section import Section
from phantombase.timeline.storage.contract import Entry, OwnLock, files_below
from phantombase.timeline.storage.staged_file import probe
from tests.support.faults import kept
from tests.world.simulation.memory_storage import MemoryStorage

START_MS = 1_767_225_600_000
"""2026-01-01."""

_STEPS_MAX = 60_000
_LATE_STEPS = 40

UNCHANGED = (".hoodie/hoodie.properties", ".hoodie/.bucket_index")
"""Paths nobody writes: calls on them are no steps."""


class Died(BaseException):
    """Stands for kill -9: nothing catches it."""


class Stuck(AssertionError):
    """Everybody waits for ever, or a run does not end."""


class Fault(Enum):
    """A storage call that fails, and whether it has had its effect."""

    BEFORE = "before"
    AFTER = "after"
    LATE = "some time after the error"


@dataclass(frozen=True, slots=True)
class Call:
    """One storage call and, once it was made, its result or error."""

    name: str
    path: str
    args: tuple[Any, ...] = ()
    result: Any = None


@dataclass(eq=False)
class Host:
    """A simulated process. `frozen`: it does nothing until somebody wakes it, or until `thaw_at` steps were made.
    `session`: number of its session with ZooKeeper; `woken` is told when it has a new one. `ahead_ms`: of its zone.
    `wrong_ms`: how far its clock is ahead of the storage's. `hudi`: it plays a process of Hudi, which takes the time
    from its clock and asks nobody."""

    name: str
    number: int
    dead: bool = False
    frozen: bool = False
    thaw_at: int | None = None
    session: int = 0
    wrong_ms: int = 0
    woken: Callable[[], None] = lambda: None
    names_made: int = 0
    ahead_ms: int = 0
    hudi: bool = False


@dataclass(eq=False)
class Actor:
    """A thread of a process. `next`: the call it waits to make; `seen`: digest of all results it has got. `turn`: where
    it goes on."""

    name: str
    host: Host
    work: Callable[[], None]
    turn: greenlet
    next: Call | None = None
    done: bool = False
    ready: Callable[[], bool] | None = None
    wake_ms: int | None = None
    seen: int = 0

    def can_go_on(self, now_ms: int) -> bool:
        """Whether it waits for nothing."""
        if self.ready is None and self.wake_ms is None:
            return True
        return (self.ready is not None and self.ready()) or (self.wake_ms is not None and self.wake_ms <= now_ms)


Faults: TypeAlias = Callable[[Actor, str], Fault | None]


def _no_fault(actor: Actor, name: str) -> Fault | None:
    return None


class Chooser(Protocol):
    """Who goes on."""

    def choose(self, world: World, able: list[Actor]) -> Actor:
        """One of those that can; `world.running` is the one that ran so far, which may not be among them."""
        ...


class World:
    """A table and the processes that work on it. `tick_ms`: how far a step moves the clock. `observe` is told of every
    storage call right after it was made, by whom. `fault` is asked whether one fails."""

    def __init__(
        self,
        chooser: Chooser,
        observe: Callable[[Actor, Call], None],
        tick_ms: int = 1,
        disk: Callable[[Callable[[], int]], MemoryStorage] = MemoryStorage,
    ) -> None:
        self.chooser = chooser
        self.observe = observe
        self.now_ms = START_MS
        self._tick_ms = tick_ms
        self.disk = disk(lambda: self.now_ms)
        self.storage = SteppedStorage(self)
        self.fault: Faults = _no_fault
        self.hosts: list[Host] = []
        self.actors: list[Actor] = []
        self.running: Actor | None = None
        self.failure: BaseException | None = None
        self.steps = 0
        self._hub = getcurrent()
        """Lets one after the other go on; the code that made the world."""
        self._closing = False
        self._under_way: list[tuple[int, Actor, Call, Callable[[], Any]]] = []

    # --- processes -------------------------------------------------------------------------------------------------

    def start(self, name: str, work: Callable[[], None], *, hudi: bool = False) -> Host:
        """One more process."""
        host = Host(name, len(self.hosts), hudi=hudi)
        self.hosts.append(host)
        self.spawn(name, host, work)
        return host

    def spawn(self, name: str, host: Host, work: Callable[[], None]) -> Actor:
        """One more thread of a process."""
        actor = Actor(name, host, work, greenlet(self._live, parent=self._hub))
        self.actors.append(actor)
        return actor

    def kill(self, host: Host) -> None:
        """It makes no further call."""
        host.dead, host.frozen = True, False

    def wake(self, host: Host) -> None:
        """It goes on where it was; its sessions have expired meanwhile."""
        host.frozen, host.thaw_at = False, None
        host.session += 1
        host.woken()

    def clock_ms(self) -> int:
        """The clock of the process whose turn it is."""
        return self.now_ms + (self.running.host.wrong_ms if self.running is not None else 0)

    def is_over(self, host: Host) -> bool:
        """Whether nothing of it runs any more."""
        return all(a.done for a in self.actors if a.host is host)

    @property
    def me(self) -> Actor:
        """Whose turn it is."""
        assert self.running is not None
        return self.running

    # --- turns -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until everybody is done or frozen for ever; what failed in one of them is raised."""
        chosen = self._choose()
        while chosen is not None:
            self.running = chosen
            chosen = chosen.turn.switch(chosen)  # as it begins it gets itself
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Ends what still waits."""
        self._closing = True
        for actor in self.actors:
            if not actor.done:
                actor.host.dead = True
                self.running = actor
                actor.turn.switch(actor)

    def wait(self, ready: Callable[[], bool] | None, timeout_s: float | None) -> bool:
        """The running actor waits until something holds, or for a time; whether it holds then."""
        me = self.me
        me.ready = ready
        me.wake_ms = None if timeout_s is None else self.now_ms + max(0, round(timeout_s * 1000))
        me.next = None
        try:
            self._hand_over(me)
        finally:
            me.ready = me.wake_ms = None
        holds = ready() if ready is not None else False
        me.seen = hash((me.seen, holds))
        return holds

    def call(self, name: str, *args: Any) -> Any:
        """The running actor makes a storage call, when it is its turn again."""
        path, do = args[0], getattr(self.disk, name)
        if path.startswith(UNCHANGED) and not self.me.host.dead:
            return do(*args)
        return self.step(name, path, args, lambda: do(*args), self.fault)

    def step(
        self, name: str, path: str, args: tuple[Any, ...], do: Callable[[], Any], faults: Faults = _no_fault
    ) -> Any:
        """The running actor does something that others see, when it is its turn again."""
        me = self.me
        if me.host.dead:
            raise Died
        me.next = Call(name, path, args)
        self._hand_over(me)
        self.now_ms += self._tick_ms
        self.steps += 1
        if self.steps > _STEPS_MAX:
            raise Stuck(f"more than {_STEPS_MAX} steps")
        self.land()
        fault = faults(me, name)
        if fault is Fault.LATE:
            self._under_way.append((self.steps + _LATE_STEPS, me, Call(name, path, args), do))
            fault = Fault.BEFORE
        try:
            if fault is Fault.BEFORE:
                raise StorageError("injected: it had no effect", path=path)
            result = do()
        except Exception as error:
            me.seen = hash((me.seen, name, path, str(error)))
            self._show(me, Call(name, path, args, error))
            raise
        me.seen = hash((me.seen, name, path, _seen(result)))
        self._show(me, Call(name, path, args, result))
        if fault is Fault.AFTER:
            raise StorageError("injected: it had its effect", path=path)
        return result

    def land(self, *, all_of_them: bool = False) -> None:
        """Requests that were given up, and were still under way, take effect after all."""
        due = [one for one in self._under_way if all_of_them or one[0] <= self.steps]
        self._under_way = [one for one in self._under_way if one not in due]
        for _, actor, call, do in due:
            try:
                result = do()
            except StorageError:  # what is to be placed is gone: also no answer that is heard
                continue
            self._show(actor, Call(call.name, call.path, call.args, result))

    def _show(self, me: Actor, call: Call) -> None:
        """What `observe` raises ends the run: nobody in it may catch that."""
        try:
            self.observe(me, call)
        except Exception as error:
            self.failure = self.failure or error
            raise Died from error

    def _hand_over(self, me: Actor) -> None:
        if not me.host.dead and not self._closing:
            chosen = self._choose()
            if chosen is not me:
                self._hub.switch(chosen)  # until it is this one's turn again
        if me.host.dead:
            raise Died

    def _choose(self) -> Actor | None:
        if self._closing or self.failure is not None:
            return None
        while True:
            for host in self.hosts:
                if host.thaw_at is not None and self.steps >= host.thaw_at:
                    self.wake(host)
            living = [a for a in self.actors if not (a.done or a.host.frozen)]
            for actor in living:
                if actor.host.dead:
                    return actor  # it ends at once
            able = [a for a in living if a.can_go_on(self.now_ms)]
            if able:
                chosen = self.chooser.choose(self, able)
                if chosen.host.dead or chosen.host.frozen:
                    continue
                return chosen
            times = [a.wake_ms for a in living if a.wake_ms is not None]
            naps = [h.thaw_at for h in self.hosts if h.thaw_at is not None]
            if naps:
                self.steps = max(self.steps, min(naps))
            elif times:
                self.now_ms = max(self.now_ms, min(times))
            else:
                return None

    def _live(self, actor: Actor) -> Actor | None:
        """All that an actor does; who goes on then."""
        try:
            if not actor.host.dead:
                actor.work()
        except Died:
            pass
        except BaseException as error:
            self.failure = self.failure or error
        actor.done = True
        return self._choose()


def _seen(result: Any) -> Any:
    """What of a result matters: not the times of files."""
    if isinstance(result, Entry):
        return result.name, result.size
    if isinstance(result, list):
        return tuple(_seen(one) for one in result)
    return result if isinstance(result, (bytes, bool, str)) else None


class SteppedStorage:
    """The world's disk as its processes see it: each call is a step."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def base_path(self) -> str:
        """See `Storage`."""
        return self._world.disk.base_path

    @property
    def is_file_system(self) -> bool:
        """See `Storage`."""
        return self._world.disk.is_file_system

    @property
    def own_lock(self) -> OwnLock:
        """See `Storage`."""
        return self._world.disk.own_lock

    @property
    def names_at_once(self) -> int | None:
        """See `Storage`."""
        return self._world.disk.names_at_once

    @property
    def location(self) -> str:
        """See `Storage`."""
        return self._world.disk.location

    def list_below(self, folder: str, before: str = "", after: str = "") -> Sequence[tuple[str, Entry]]:
        """See `Storage`; a single listing of an object store."""
        if self.is_file_system:
            return [one for one in files_below(self, folder, before) if one[0] > after]
        found: Sequence[tuple[str, Entry]] = self._world.call("list_below", folder, before, after)
        return found

    def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
        """See `Storage`."""
        return self._world.call("open_input", path)

    def close_output(self, file: IO[bytes]) -> None:
        """See `Storage`; the file is there from here on."""
        self._world.step("close_output", "", (file,), file.close)

    def abort_output(self, file: IO[bytes]) -> None:
        """See `Storage`."""
        self._world.step("abort_output", "", (file,), file.close)

    def delete_all(self, paths: Collection[str]) -> None:
        """See `Storage`; a process may die in between."""
        for path in paths:
            self.delete(path)

    def delete_folder(self, folder: str) -> None:
        """See `Storage`; object by object in an object store."""
        if self.is_file_system:
            self._world.call("delete_folder", folder)
        else:
            for path, _ in self.list_below(folder):
                self._world.call("delete", f"{folder}/{path}")

    def verify(self) -> None:
        """See `Storage`."""
        probe(self)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args: self._world.call(name, *args)


class WorldLock:
    """The table lock. That of a dead or frozen process is free: its session has expired. `holds`: without it nobody is
    kept out, as among writers that take no lock."""

    def __init__(self, world: World, *, holds: bool = True) -> None:
        self._world = world
        self._holds = holds
        self._holder: Actor | None = None
        self._inside: dict[Actor, int] = {}

    @property
    def keeps_out(self) -> bool:
        """Whether it keeps others out."""
        return self._holds

    @property
    def holder(self) -> Host | None:
        """The process in a section, if it lives."""
        return self._holder.host if self._holder is not None and not self._is_free() else None

    def is_inside(self, host: Host) -> bool:
        """Whether a process is in a section."""
        return any(actor.host is host for actor in self._inside)

    def is_lost(self, actor: Actor) -> bool:
        """Whether it is in a section in which it slept: others may be in it, too, or may have been."""
        return self._holds and self._inside.get(actor, actor.host.session) != actor.host.session

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        """See `TableLock`."""
        me = self._world.me
        if self._holds and not self._is_free():
            self._world.wait(self._is_free, None)
        self._holder = me
        self._inside[me] = me.host.session
        try:
            yield kept(purpose)
        finally:
            del self._inside[me]
            if self._holder is me:
                self._holder = None

    def _is_free(self) -> bool:
        return self._holder is None or self._holder.host.dead or self._holder.host.frozen
