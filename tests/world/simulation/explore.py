"""All runs of a small instance that differ from a plain one in at most so many places.

A plain run lets each process work until it ends or waits, one after the other. At every step something else may be
done instead: another process goes on, or the one that runs is killed, or it sleeps until all others have ended, its
session lost. A state that was met before, with as much left to be done, is not gone through again: processes that have
seen the same, on the same disk, do the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.table.table import Table
from tests.world.simulation import rows
from tests.world.simulation.cast import Cast
from tests.world.simulation.ending import Ending
from tests.world.simulation.operator import Operator
from tests.world.simulation.played import Stage
from tests.world.simulation.rules import Rules
from tests.world.simulation.services import Services
from tests.world.simulation.staff import CLUSTER, Staff
from tests.world.simulation.world import Actor, World, WorldLock

ATTEMPT = AttemptOptions(foreign_poll_s=0.0, barrier_s=0.0, barrier_poll_s=0.01)


OPERATORS = frozenset({"operator", "restorer", "undoer"})
"""Who takes completed writes back: with Hudi, with phantombase, the newest one alone."""

_STRIDE = 7
"""Turns are taken in so many passes: what breaks a rule mostly breaks it at several steps in a row."""
_RESTED_S = 130.0
"""Behind that, heartbeats of dead processes are stale."""


class Twist(Enum):
    """What may happen at a step instead of the running process going on."""

    SWITCH = "goes on"
    KILL = "is killed"
    SLEEP = "falls asleep"


@dataclass(frozen=True, slots=True)
class Turn:
    """At step `at`: another process goes on, or the running one is killed or put to sleep."""

    at: int
    twist: Twist
    name: str


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A table, what happened to it before, and who works on it, in that order unless something else happens.

    `still`: the clock stands, so that two who take no lock choose the same time. Under a lock it always does. `groups`:
    how many file groups the table has."""

    version: int
    locked: bool
    people: tuple[str, ...]
    before: tuple[str, ...] = ("write", "schedule", "write")
    still: bool = False
    groups: int = 1

    @property
    def services(self) -> bool:
        """Whether services of a table work on it."""
        return any(name.startswith((*OPERATORS, *SERVICES)) for name in self.people)


@dataclass
class Explorer:
    """Goes through all runs with at most `depth` turns, of these kinds. `every`: only each n-th turn of those that were
    found is taken. `runs`, `states`: how many there were; `shared_times`: see `Rules`."""

    instance: Instance
    depth: int
    stage: Stage
    twists: frozenset[Twist] = frozenset(Twist)
    every: int = 1
    runs: int = 0
    states: int = 0
    shared_times: int = 0
    _met: dict[int, int] = field(default_factory=dict)

    def explore(self) -> None:
        """AssertionError, with the turns in a note: one of the runs breaks a rule."""
        todo: list[tuple[Turn, ...]] = [()]
        while todo:
            turns = todo.pop()
            self.runs += 1
            found = self._run(turns)
            if len(turns) < self.depth:
                possible = [(*turns, turn) for turn in found if turn.twist in self.twists][:: self.every]
                todo += [one for first in range(_STRIDE) for one in possible[first::_STRIDE]]

    def _run(self, turns: tuple[Turn, ...], trace: bool = False) -> list[Turn]:
        run = Run(self.instance, turns, self._is_new, trace=trace)
        try:
            run.play(self.stage)
        except BaseException as error:
            if not trace:
                self._run(turns, trace=True)
            print("\n".join(run.rules.trace or ()))
            error.add_note(f"{self.instance}, {turns}")
            raise
        self.shared_times += run.rules.shared_times
        return run.open

    def _is_new(self, state: int, used: int) -> bool:
        left = self.depth - used
        if self._met.get(state, -1) >= left:
            return False
        self.states += state not in self._met
        self._met[state] = left
        return True


class Run:
    """One run: a plain one but for its turns. `open`: the turns that could come next."""

    def __init__(
        self, instance: Instance, turns: tuple[Turn, ...], is_new: Callable[[int, int], bool], *, trace: bool
    ) -> None:
        self._instance, self._turns, self._is_new = instance, turns, is_new
        self.open: list[Turn] = []
        self._at = 0
        self._exploring = False
        self._dull = False
        self._newest = ""
        tick = 0 if instance.locked or instance.still else 1
        self.world = World(self, lambda actor, call: self.rules.watch(self.world, actor, call), tick)
        self._lock = WorldLock(self.world, holds=instance.locked)
        first = rows.new_table(self.world.disk, instance.version, instance.groups)
        self.rules = Rules(first, foreign=False, locked=instance.locked, is_lost=self._lock.is_lost)
        self.rules.trace = [str(turns)] if trace else None
        clusters = any(name.startswith("clusterer") for name in instance.people)
        self.cast = Cast(self.world, self._lock, ATTEMPT, chance=random.Random(0), rest_s=0.0, clusters=clusters)
        self.staff = Staff(self.cast, self.cast.chance, 1)
        self.operator = Operator(self._lock, Services(self._lock))

    def play(self, stage: Stage) -> None:
        """All of it."""
        cast, world = self.cast, self.world
        with stage.play(world):
            world.start("before", self._before)
            world.run()
            self._newest = Table.on(world.disk).load_timeline().latest_completed
            for name in self._instance.people:
                world.start(name, _WORK[name.rstrip("0123456789")](self))
            self._exploring = True
            world.run()
            self._exploring = False
            restores = not OPERATORS.isdisjoint(self._instance.people)
            stale = not self._instance.locked or restores or any(t.twist is Twist.SLEEP for t in self._turns)
            staff = self.staff if self._instance.services else None
            Ending(cast, self.rules, hudi=False, stale=stale, staff=staff).play()

    def _before(self) -> None:
        do: dict[str, Callable[[], object]] = {
            "write": lambda: self.cast.writer(1, self.group),
            "schedule": lambda: self.cast.scheduler(1),
            "service": self.cast.service,
            "minor": lambda: self.cast.scheduler(1, minor=1.0),
            "savepoint": lambda: self.operator.savepoint(self.cast.table()),
        }
        for what in self._instance.before:
            do[what]()

    def group(self) -> str:
        """The first file group that has rows."""
        return min(self.rules.rows.values())

    def restore(self) -> None:
        """By the operator, to the savepoint."""
        self.operator.restore(self.cast.table())

    def take_back(self, *, newest: bool) -> None:
        """By phantombase: what was written behind the first steps, or the newest write; again once all others rest. It
        is refused while another process is at work."""
        for wait_s in (0.0, _RESTED_S):
            if wait_s:
                self.world.wait(None, wait_s)
            table = self.cast.table()
            try:
                if newest:
                    roll_back_newest(table, self._lock, table.load_timeline().latest_completed)
                else:
                    restore_table(table, self._lock, self._newest)
            except PhantombaseError as error:
                self.cast.outcomes[f"taken back: {error.what}"] += 1
                self.rules.note(f"not taken back: {error}")
            else:
                self.cast.outcomes["taken back"] += 1
                return

    def choose(self, world: World, able: list[Actor]) -> Actor:
        """See `Chooser`."""
        running = world.running if world.running in able else None
        if not self._exploring or running is None:
            return running or able[0]
        at, self._at = self._at, self._at + 1
        done = sum(t.at < at for t in self._turns)
        if done < len(self._turns) and self._turns[done].at == at:
            return self._twisted(world, self._turns[done], able, running)
        if done == len(self._turns) and not self._dull:
            if self._is_new(self._state(running), done):
                self.open += self._possible(at, able, running)
            else:
                self._dull = True
        return running

    def _possible(self, at: int, able: list[Actor], running: Actor) -> Iterator[Turn]:
        others = {a.host.name for a in able if a.host is not running.host}
        yield from (Turn(at, Twist.SWITCH, name) for name in sorted(others))
        if running.host.name in OPERATORS:  # a restore that does not end, or goes on beside others, is beyond help
            return
        yield Turn(at, Twist.KILL, running.host.name)
        if others and self.cast.may_oversleep(running.host, self._instance.version):
            yield Turn(at, Twist.SLEEP, running.host.name)

    def _twisted(self, world: World, turn: Turn, able: list[Actor], running: Actor) -> Actor:
        self.rules.note(f"{turn.name} {turn.twist.value}")
        if turn.twist is Twist.SWITCH:
            return next(a for a in able if a.host.name == turn.name)
        if turn.twist is Twist.KILL:
            world.kill(running.host)
        else:
            running.host.frozen = True
        return running

    def _state(self, running: Actor) -> int:
        world = self.world
        actors = tuple((a.name, a.seen, a.done, a.wake_ms, a.host.dead, a.host.frozen) for a in world.actors)
        holder = self._lock.holder
        return hash((world.disk.fingerprint, actors, running.name, holder and holder.name, world.now_ms))


SERVICES = {"clusterer": CLUSTER, "cleaner": "we clean", "archiver": "we archive"}
"""Services of phantombase, by who does them."""


def _serve(service: str, run: Run) -> Callable[[], None]:
    return lambda: run.staff.work(service, 1)


_WORK: dict[str, Callable[[Run], Callable[[], None]]] = {
    "compactor": lambda run: lambda: run.cast.compactor(1),
    "unscheduler": lambda run: lambda: run.cast.unscheduler(1),
    "writer": lambda run: lambda: run.cast.writer(1, run.group),
    "scheduler": lambda run: lambda: run.cast.scheduler(1),
    "service": lambda run: run.cast.service,
    "operator": lambda run: run.restore,
    "restorer": lambda run: partial(run.take_back, newest=False),
    "undoer": lambda run: partial(run.take_back, newest=True),
    **{who: partial(_serve, what) for who, what in SERVICES.items()},
}
