"""One seeded run: everybody at once, with deaths and pauses; then a healthy rest of the world; then who was paused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from phantombase.compactor_daemon.options import AttemptOptions
from tests.world.simulation import rows
from tests.world.simulation.blind import BlindWriter
from tests.world.simulation.cast import Cast
from tests.world.simulation.ending import Ending
from tests.world.simulation.memory_storage import MemoryStorage
from tests.world.simulation.object_memory import LeaseLock, MovingMemory, ObjectMemory
from tests.world.simulation.played import Stage
from tests.world.simulation.rules import Rules, decides
from tests.world.simulation.staff import CLUSTER, MORTAL, SERVICES, Staff
from tests.world.simulation.world import Actor, Call, Fault, Host, World, WorldLock

ATTEMPT = AttemptOptions(foreign_grace_s=0.3, foreign_poll_s=0.0, barrier_s=0.6, barrier_poll_s=0.03)

_HOUR_MS = 3_600_000
_ZONES_MS = tuple(hours * _HOUR_MS for hours in (0, 0, 5, -8))


_BESIDE: tuple[frozenset[str], ...] = (
    *4 * (frozenset(),),
    frozenset({"restore", "sleep"}),
    frozenset({"restore", "archive", "sleep"}),
    frozenset({"archive", "sleep"}),
    frozenset({"clean", "archive"}),
    frozenset({"replace", "clean", "archive", "sleep"}),
)
"""What works beside ours, by chance."""


class StorageKind(Enum):
    """What the table lies on."""

    DISK = MemoryStorage
    OBJECTS = ObjectMemory
    MOVES = MovingMemory


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What a run is about.

    `locked`: writers, schedulers and compactors share a lock. `hudi`: a Hudi compactor works beside ours. `deaths`,
    `pauses`: how many processes are killed, and how many stop for a while, or until all others are done. `faults`: how
    many storage calls fail. `minor`: how often log files alone are to be merged, see `Cast.scheduler`. `jumps`:
    how often a process's clock goes about an hour forward or back, or is put right again. `losses`: how often the lock,
    a lease, is lost in a section."""

    version: int
    groups: int
    writers: int
    compactors: int
    daemons: int
    unschedules: bool
    locked: bool
    hudi: bool
    deaths: int
    pauses: int
    faults: int
    services: frozenset[str] = frozenset()
    partitions: int = 1
    writes: int = 4
    minor: float = 0.0
    jumps: int = 0
    storage: StorageKind = StorageKind.DISK
    losses: int = 0

    @staticmethod
    def on(kind: StorageKind, pick: random.Random) -> Plot:
        """One of all, on such a storage."""
        plot = replace(Plot.of(pick), storage=kind)
        if kind is not StorageKind.OBJECTS or not plot.locked:
            return plot
        return replace(plot, losses=pick.choice((0, 1, 3)))

    @staticmethod
    def of(pick: random.Random) -> Plot:
        """One of all."""
        version = pick.choice((6, 9))
        hudi = pick.random() < 0.3
        locked = hudi or pick.random() < 0.7
        services = pick.choice(_BESIDE) if locked and not hudi else frozenset()
        return Plot(
            version=version,
            groups=pick.choice((1, 2)),
            writers=pick.choice((1, 2)) if locked else 1,
            compactors=pick.choice((0, 1, 1, 2)),
            daemons=pick.choice((0, 0, 1, 2)),
            unschedules=pick.random() < 0.4 and not hudi and not services and (locked or version == 9),
            locked=locked,
            hudi=hudi,
            deaths=pick.choice((0, 0, 1, 2, 4)),
            pauses=pick.choice((0, 0, 1, 2)),
            faults=pick.choice((0, 0, 0, 1, 3)),
            services=services,
            minor=pick.choice((0.0, 0.5, 0.9)) if version == 9 and locked else 0.0,
        )


class RandomChooser:
    """Goes on with the same one mostly, and now and then with another; and lets somebody die or pause."""

    def __init__(self, pick: random.Random) -> None:
        self._pick = pick
        self._stay = pick.choice((0.0, 0.7, 0.9, 0.98))
        self.trouble: Callable[[], None] = lambda: None
        self.late: Callable[[], Actor | None] = lambda: None

    def choose(self, world: World, able: list[Actor]) -> Actor:
        """See `Chooser`."""
        late = self.late()
        if late is not None:
            return late
        self.trouble()
        if world.running in able and self._pick.random() < self._stay:
            return world.running
        return self._pick.choice(able)


class Story:
    """One run."""

    def __init__(self, seed: int, *, trace: bool = False, plot: Plot | None = None) -> None:
        self.pick = random.Random(seed)
        self.plot = plot or Plot.of(self.pick)
        self.chooser = RandomChooser(self.pick)
        self.world = World(self.chooser, self._observe, disk=self.plot.storage.value)
        first = rows.new_table(self.world.disk, self.plot.version, self.plot.groups, self.plot.partitions)
        if "elsewhere" in self.plot.services:
            self.world.disk.elsewhere = frozenset(rows.PARTITIONS[1:])
        self._lock = lock = (LeaseLock if self.plot.losses else WorldLock)(self.world, holds=self.plot.locked)
        is_locked = self.plot.locked and not self.plot.losses
        self.rules = Rules(first, foreign=self.plot.hudi, locked=is_locked, is_lost=lock.is_lost)
        self.rules.trace = [str(self.plot)] if trace else None
        self.chooser.late = lambda: self.rules.late
        self.cast = Cast(self.world, lock, ATTEMPT, chance=self.pick, clusters=CLUSTER in self.plot.services)
        self.staff = Staff(self.cast, self.pick, self.plot.partitions)
        self._sleepers: dict[Host, int] = {}
        self._over = False
        self._roles: dict[Host, Callable[[], None]] = {}
        self._deaths, self._pauses, self._faults = self.plot.deaths, self.plot.pauses, self.plot.faults
        self._jumps, self._losses = self.plot.jumps, self.plot.losses

    @property
    def outcomes(self) -> Counter[str]:
        """What happened, how often."""
        return self.cast.outcomes

    def play(self, stage: Stage) -> None:
        """All of it."""
        with stage.play(self.world):
            self._everybody()
            plot = self.plot
            stale = not plot.locked or plot.losses > 0 or self.outcomes["napped"] + self.outcomes["paused"] > 0
            stale |= "restore" in plot.services
            staff = self.staff if plot.services else None
            Ending(self.cast, self.rules, hudi=plot.hudi, stale=stale, staff=staff).play()
            self.outcomes["completed without the lock"] += self.rules.late_commits

    def _before(self, writer: BlindWriter) -> None:
        """Some seconds of writes, which show the zone of Hudi's writers."""
        for _ in range(3):
            self.world.start("writer of Hudi before", lambda: writer.work(1), hudi=True)
            self.world.run()
            self.world.now_ms += 3000

    def _everybody(self) -> None:
        plot, cast = self.plot, self.cast
        writer = BlindWriter(cast, self.pick, self._group, same="same" in plot.services)
        if "zones" in plot.services:
            self._before(writer)
        for number in range(plot.writers):
            self._begin(f"writer {number}", lambda: cast.writer(plot.writes, self._group))
        self._begin("scheduler", lambda: cast.scheduler(5, minor=plot.minor))
        for number in range(plot.compactors):
            self._begin(f"compactor {number}", lambda: cast.compactor(4))
        for number in range(plot.daemons):
            self._begin(f"daemon {number}", lambda: cast.daemon(3))
        if plot.unschedules:
            self._begin("unscheduler", lambda: cast.unscheduler(3))
        if plot.hudi:
            self._begin("hudi", lambda: cast.hudi(3))
        if "blind" in plot.services:
            self._begin("scheduler of Hudi", lambda: cast.scheduler(2 * plot.writes), hudi=True)
        if plot.services & {"blind", "same", "zones"}:
            self._begin("writer of Hudi", lambda: writer.work(2 * plot.writes), hudi=True)
        for service in sorted(plot.services & SERVICES):
            name = "operator" if service == "restore" else service
            self._begin(name, partial(self.staff.work, service, 2 * plot.writes))
        self.chooser.trouble, self.world.fault = self._trouble, self._fault
        self.world.run()
        self._over = True
        self.world.land(all_of_them=True)
        self.chooser.trouble, self.world.fault = lambda: None, lambda actor, name: None

    def _group(self) -> str:
        """One of those that have rows."""
        return self.pick.choice(sorted(set(self.rules.rows.values())) or ["p0"])

    def _observe(self, actor: Actor, call: Call) -> None:
        self.rules.watch(self.world, actor, call)
        if self._over or self.rules.late is not None:
            return
        if actor.host in self._sleepers:
            self._sleepers[actor.host] -= 1
            if self._sleepers[actor.host] < 0:
                del self._sleepers[actor.host]
                actor.host.thaw_at = self.pick.choice((None, self.world.steps + self.pick.randrange(20, 800)))
                actor.host.frozen = True
                self.outcomes["fell asleep over the decision"] += 1
                self.rules.note(f"{actor.host.name} falls asleep")
        elif "sleep" in self.plot.services and decides(call) and self.pick.random() < 0.7:
            self._sleepers[actor.host] = self.pick.randrange(30)

    def _begin(self, name: str, work: Callable[[], None], *, hudi: bool = False) -> None:
        host = self.world.start(name, work, hudi=hudi)
        self._roles[host] = partial(self._begin, name, work, hudi=hudi)
        if "zones" in self.plot.services and not hudi:
            host.ahead_ms = self.pick.choice(_ZONES_MS)

    def _trouble(self) -> None:
        if self._losses:
            self._lose()
        if not (self._deaths or self._pauses or self._jumps) or self.pick.random() > 1 / 60:
            return
        living = [h for h in self._roles if not (h.dead or h.frozen or self.world.is_over(h))]
        if not living:
            return
        host = self.pick.choice(living)
        if host.name in SERVICES - MORTAL or host.name == "operator":
            return
        if self._jumps and self.pick.random() < 0.5:
            self._jumps -= 1
            host.wrong_ms = self.pick.choice((_HOUR_MS, -_HOUR_MS)) if not host.wrong_ms else 0
            self.outcomes["clocks jumped"] += 1
            self.rules.note(f"the clock of {host.name} jumps to {host.wrong_ms / 1000} s")
        elif self._deaths and (not self._pauses or self.pick.random() < 0.5):
            self._deaths -= 1
            self.outcomes["killed"] += 1
            self.rules.note(f"{host.name} is killed")
            self.world.kill(host)
            self._roles[host]()
        elif self._pauses and self._may_pause(host):
            self._pauses -= 1
            naps = self.pick.random() < 0.5 or not self.cast.may_oversleep(host, self.plot.version)
            host.thaw_at = self.world.steps + self.pick.randrange(1, 300) if naps else None
            self.outcomes["napped" if naps else "paused"] += 1
            self.rules.note(f"{host.name} {'naps' if naps else 'is paused'}")
            host.frozen = True

    def _lose(self) -> None:
        holder = self._lock.holder
        if holder is None or not isinstance(self._lock, LeaseLock) or not self._may_lose(holder):
            return
        if self.pick.random() < 1 / 20:
            self._losses -= 1
            self.outcomes["lost the lock"] += 1
            self.rules.note(f"{holder.name} loses its lock")
            self._lock.lose(holder)

    def _may_lose(self, host: Host) -> bool:
        """Whether a process may lose its lock while it is awake; see `_may_pause` for what nothing is promised of."""
        if host.name.startswith(("compactor", "daemon")):
            return True
        if self.plot.hudi or self.plot.services or host.hudi:
            return False
        if host.name == "unscheduler":
            return self.plot.version == 9
        return not host.name.startswith("writer") or self.plot.writers == 1

    def _fault(self, actor: Actor, name: str) -> Fault | None:
        if actor.host.name in ("operator", "replace") or not self._faults or self.pick.random() > 1 / 60:
            return None
        if self.cast.lock.is_lost(actor):
            return None
        self._faults -= 1
        self.outcomes["failed calls"] += 1
        if self._may_be_late(actor.host, name) and self.pick.random() < 0.5:
            self.outcomes["late requests"] += 1
            return Fault.LATE
        return self.pick.choice((Fault.BEFORE, Fault.AFTER))

    def _may_be_late(self, host: Host, name: str) -> bool:
        """Whether a request may take effect after it was given up. For a writer's see `_may_pause`."""
        if self.plot.services & {"restore", "replace", CLUSTER} and host.name.startswith("writer"):
            return False
        return self.plot.storage is StorageKind.OBJECTS and name in ("put_if_absent", "place")

    def _may_pause(self, host: Host) -> bool:
        """Whether a process may stop for a while, right here. Not in its section, where it would lose the lock: who
        unschedules on version 6, see `Cast.may_oversleep`; a writer beside an operator, who has stopped the writers
        before restoring, or beside writes that replace file groups: a commit that is put after its writer's last
        snapshot cannot be fenced, in Hudi neither. Nor can a requested instant of version 6 that archiving has passed
        meanwhile: what was archived above it counts as pending. Beside a Hudi compactor, which merges the plan's files
        only and looks at no barrier, writers and schedulers never stop."""
        if self.cast.lock.is_inside(host):
            if self.plot.version == 6 and host.name == "unscheduler":
                return False
            if self.plot.services & {"restore", "replace", CLUSTER} and host.name.startswith("writer"):
                return False
            if self.plot.version == 6 and "archive" in self.plot.services and host.name.startswith("writer"):
                return False
        return not self.plot.hudi or host.name.startswith(("compactor", "daemon"))
