"""What happens to a fleet: a seeded choice of troubles, each with its end."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tests.support.servers.network_partition import Side
from tests.support.servers.zookeeper_ensemble import Ensemble
from tests.world.chaos.fleet import SESSION_S, Fleet, Slot
from tests.world.chaos.switches import Point

_LEADER_EVERY_S = 12.0
_HOUR_S = 3600.0


@dataclass(frozen=True)
class _Ailing:
    """A daemon in trouble, and how it ends."""

    slot: Slot
    until: float
    undo: Callable[[], None]


class Troubles:
    """Makes trouble for daemons, one trouble a daemon at a time, and for the ensemble, one member at a time."""

    def __init__(self, fleet: Fleet, ensemble: Ensemble, seed: int, background: ThreadPoolExecutor) -> None:
        self._fleet, self._ensemble = fleet, ensemble
        self._pick = random.Random(seed)
        self._background = background
        self._ailing: list[_Ailing] = []
        self._leader: Future[None] | None = None
        self._next_leader = time.monotonic() + _LEADER_EVERY_S / 2
        self._first = [self._kill, self._stop]
        self.counts: Counter[str] = Counter()

    def step(self) -> None:
        """One more trouble, and the end of those that are over."""
        self._end_those_over(time.monotonic())
        if time.monotonic() >= self._next_leader:
            self._lose_leader()
            return
        slot = self._victim()
        if slot is None:
            return
        trouble = self._pick.choices(
            (self._kill, self._stop, self._strike, self._cut, self._network, self._clock, self._full, self._slow),
            (2, 2, 8, 2, 1, 2, 2, 1),
        )[0]
        if self._first:  # these are in every round
            trouble = self._first.pop()
        lasts_s, undo = trouble(slot)
        self._ailing.append(_Ailing(slot, time.monotonic() + lasts_s, undo))

    def heal(self) -> None:
        """Everything works again."""
        while self._ailing:
            self._end_those_over(float("inf"))
        for slot in self._fleet.slots:
            slot.network.heal()
            slot.network.delay(0.0)
            slot.switches.heal()
        if self._leader is not None:
            self._leader.result()

    def _end_those_over(self, now: float) -> None:
        for one in [one for one in self._ailing if one.until <= now]:
            self._ailing.remove(one)
            one.undo()

    def _victim(self) -> Slot | None:
        """A daemon without trouble; more often one that is at work."""
        ill = {one.slot.number for one in self._ailing}
        well = [slot for slot in self._fleet.slots if slot.number not in ill and slot.pid is not None]
        busy = [slot for slot in well if slot.switches.busy > 0]
        return self._pick.choice(busy if busy and self._pick.random() < 0.7 else well) if well else None

    # --- troubles: how long each lasts in seconds, and what ends it ----------------------------------------------

    def _kill(self, slot: Slot) -> tuple[float, Callable[[], None]]:
        self.counts["killed"] += 1
        self._fleet.kill(slot, self._pick.uniform(0.0, 1.0))
        return 1.0, lambda: None

    def _stop(self, slot: Slot) -> tuple[float, Callable[[], None]]:
        self.counts["stopped"] += 1
        self._fleet.send(slot, signal.SIGSTOP)
        return SESSION_S * self._pick.uniform(1.2, 2.0), lambda: self._fleet.send(slot, signal.SIGCONT)

    def _strike(self, slot: Slot) -> tuple[float, Callable[[], None]]:
        """Killed or stopped at the next step of one kind, if it comes to one in time."""
        point = self._pick.choices(list(Point), [3 if p is Point.COMMITTED else 1 for p in Point])[0]
        number = self._pick.choices((signal.SIGKILL, signal.SIGSTOP), (1, 2))[0]
        switches, before = slot.switches, slot.switches.struck
        switches.signal, switches.after = number, self._pick.random() < 0.3
        switches.point = point.number

        def undo() -> None:
            switches.point = 0
            if switches.struck > before:
                self.counts[f"{number.name} at {point.name}"] += 1
                cont = partial(self._fleet.send, slot, signal.SIGCONT)
                self._ailing.append(_Ailing(slot, time.monotonic() + SESSION_S * 1.5, cont))

        return SESSION_S * self._pick.uniform(1.0, 2.0), undo

    def _cut(self, slot: Slot) -> tuple[float, Callable[[], None]]:
        self.counts["cut off"] += 1
        slot.network.cut(side=self._pick.choice((Side.BOTH, Side.BOTH, Side.ANSWERS)))
        return SESSION_S * self._pick.uniform(0.5, 2.0), slot.network.heal

    def _network(self, slot: Slot) -> tuple[float, Callable[[], None]]:
        if self._pick.random() < 0.5:
            self.counts["connections dropped"] += 1
            slot.network.drop()
            return 1.0, lambda: None
        self.counts["network slow"] += 1
        slot.network.delay(self._pick.uniform(0.1, 0.8))
        return self._pick.uniform(1.0, 4.0), lambda: slot.network.delay(0.0)

    def _clock(self, slot: Slot) -> tuple[float, Callable[[], None]]:
        """A jump, and the jump back."""
        self.counts["clock jumps"] += 1
        slot.switches.clock_s = self._pick.choice((-_HOUR_S, -30.0, -3.0, 3.0, 30.0, _HOUR_S))

        def undo() -> None:
            slot.switches.clock_s = 0.0

        return self._pick.uniform(2.0, 8.0), undo

    def _full(self, slot: Slot) -> tuple[float, Callable[[], None]]:
        self.counts["disk full"] += 1
        slot.switches.full = True

        def undo() -> None:
            slot.switches.full = False

        return self._pick.uniform(0.5, 4.0), undo

    def _slow(self, slot: Slot) -> tuple[float, Callable[[], None]]:
        self.counts["disk slow"] += 1
        slot.switches.slow_s = self._pick.uniform(0.01, 0.08)

        def undo() -> None:
            slot.switches.slow_s = 0.0

        return self._pick.uniform(1.0, 5.0), undo

    def _lose_leader(self) -> None:
        """The leader of the ensemble dies, and comes back after a while as a follower."""
        self._next_leader = time.monotonic() + _LEADER_EVERY_S
        leader = self._ensemble.leader()
        if leader is None or (self._leader is not None and not self._leader.done()):
            return
        if self._leader is not None:
            self._leader.result()
        self.counts["leaders killed"] += 1
        self._ensemble.kill(leader)
        self._leader = self._background.submit(self._bring_back, leader, self._pick.uniform(1.0, 4.0))

    def _bring_back(self, member: int, after_s: float) -> None:
        time.sleep(after_s)
        self._ensemble.restart(member)


@contextmanager
def troubles(fleet: Fleet, ensemble: Ensemble, seed: int) -> Iterator[Troubles]:
    """Troubles for as long as the context lasts; the ensemble is whole again at its end."""
    with ThreadPoolExecutor(1, "leader") as background:
        yield Troubles(fleet, ensemble, seed, background)
