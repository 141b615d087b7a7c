"""What a daemon's loop runs on in a simulated world: its threads, its queue of news, and claims of a ZooKeeper.

A session ends with its process, and when the process sleeps: others get its claims then, and what it held is lost once
it wakes up, though it may not know yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import Empty
from typing import Any, Generic, Self, TypeVar

from phantombase.compactor_daemon.attempt.failures import WorkNote
from phantombase.compactor_daemon.fleet.claims import Claim
from phantombase.timeline.errors import UnknownStateError
from tests.world.simulation.world import Host, World

T = TypeVar("T")


class WorldPool:
    """A `ThreadPoolExecutor` of the process whose turn it is."""

    def __init__(self, world: World, workers: int, name: str) -> None:
        self._world, self._name, self._free = world, name, workers
        self._open = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._world.wait(lambda: self._open == 0, None)

    def submit(self, do: Callable[..., Any], *args: Any) -> None:
        """See `concurrent.futures.Executor.submit`; nobody asks for the result."""
        self._open += 1
        self._world.spawn(f"{self._world.me.host.name}/{self._name}", self._world.me.host, lambda: self._run(do, args))

    def _run(self, do: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._world.wait(lambda: self._free > 0, None)
        self._free -= 1
        try:
            do(*args)
        finally:
            self._free += 1
            self._open -= 1


class WorldQueue(Generic[T]):
    """A `SimpleQueue`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[T] = deque()

    def put(self, item: T) -> None:
        """See `queue.SimpleQueue`."""
        self._items.append(item)

    def get_nowait(self) -> T:
        """See `queue.SimpleQueue`."""
        if not self._items:
            raise Empty
        return self._items.popleft()

    def get(self, timeout: float) -> T:
        """See `queue.SimpleQueue`."""
        if not self._items:
            self._world.wait(lambda: bool(self._items), timeout)
        return self.get_nowait()


@dataclass
class ZooKeeper:
    """Who holds what: instant -> (process, its session)."""

    world: World
    held: dict[str, tuple[Host, int]] = field(default_factory=dict)

    def holders(self) -> dict[str, Host]:
        """The claims of living sessions."""
        self.held = {i: (h, s) for i, (h, s) in self.held.items() if h.session == s and not (h.dead or h.frozen)}
        return {instant: host for instant, (host, _) in self.held.items()}


class WorldClaims:
    """The `Claims` of one daemon. Every call is a step. `doubt`: whether an answer gets lost, asked each time."""

    def __init__(self, zookeeper: ZooKeeper, doubt: Callable[[], bool]) -> None:
        self._zookeeper = zookeeper
        self._doubt = doubt

    @property
    def available(self) -> bool:
        """See `Claims`."""
        return True

    def close(self) -> None:
        """See `Claims`."""

    def names(self) -> frozenset[str]:
        """See `Claims`."""
        return frozenset(self._step("claims", "names", self._zookeeper.holders))

    def all(self) -> Mapping[str, Claim]:
        """See `Claims`."""
        holders = self._step("claims", "all", self._zookeeper.holders)
        return {i: Claim(instant=i, holder=h.name, host="world", pid=h.number, since_ms=0) for i, h in holders.items()}

    def take(self, instant: str) -> WorldClaim | None:
        """See `Claims`."""
        me = self._zookeeper.world.me.host
        taken: bool = self._step("claim", instant, lambda: self._take(instant, me))
        if self._doubt():
            raise UnknownStateError("it is unknown whether the claim was taken", instant=instant)
        return WorldClaim(self._zookeeper, instant, me, me.session) if taken else None

    def _take(self, instant: str, me: Host) -> bool:
        if instant in self._zookeeper.holders():
            return False
        self._zookeeper.held[instant] = me, me.session
        return True

    def _step(self, name: str, path: str, do: Callable[[], Any]) -> Any:
        return self._zookeeper.world.step(name, path, (), do)


@dataclass(frozen=True)
class WorldClaim:
    """A `HeldClaim`."""

    zookeeper: ZooKeeper
    instant: str
    host: Host
    session: int

    @property
    def lost(self) -> bool:
        """See `HeldClaim`."""
        return self.host.session != self.session

    def report(self, note: WorkNote) -> None:
        """See `HeldClaim`."""

    def release(self) -> None:
        """See `HeldClaim`."""
        self.zookeeper.world.step("release", self.instant, (), self._release)

    def _release(self) -> None:
        if self.zookeeper.held.get(self.instant) == (self.host, self.session):
            del self.zookeeper.held[self.instant]
