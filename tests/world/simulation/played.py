"""Puts a simulated world in the place of clocks, processes, threads and random names of the real code."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import pytest

from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.compaction_plan import decode_plan
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.instants.table_clock import TableClock
from phantombase.timeline.instants.timeline import pending_writer
from phantombase.timeline.locks import heartbeat
from phantombase.timeline.locks.heartbeat import Process
from phantombase.timeline.table.table import Table
from tests.support.interleaving import SerialPool, serial_pools
from tests.world.simulation import rows
from tests.world.simulation.fleet import WorldPool, WorldQueue
from tests.world.simulation.world import World

_PACKAGE = "phantombase."


class Stage:
    """Holds the world that is played at the moment."""

    def __init__(self) -> None:
        self.world: World | None = None

    @property
    def on(self) -> World:
        """The world; there is one while it runs."""
        assert self.world is not None
        return self.world

    @contextmanager
    def play(self, world: World) -> Iterator[World]:
        """This world from now on."""
        self.world = world
        try:
            yield world
        finally:
            world.close()
            self.world = None


class _Event:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._is_set or self._stage.on.wait(self.is_set, timeout)


class _Thread:
    def __init__(self, stage: Stage, target: Callable[[], None], name: str = "", **_: Any) -> None:
        self._stage, self._target, self._name = stage, target, name

    def start(self) -> None:
        self._actor = self._stage.on.spawn(self._name, self._stage.on.me.host, self._target)

    def join(self) -> None:
        if not self._actor.done:
            self._stage.on.wait(lambda: self._actor.done, None)


class _AnyOrder(SerialPool):
    """What is asked at the same time is answered in any order."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def map(self, do: Callable[..., Any], *args: Any) -> Iterator[Any]:
        calls = list(zip(*args, strict=False))
        steps = 0 if self._stage.world is None else self._stage.world.steps
        order = random.Random(steps).sample(range(len(calls)), len(calls))
        found = {at: do(*calls[at]) for at in order}
        return iter([found[at] for at in range(len(calls))])


def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """The stage on which worlds are played; for a fixture."""
    stage = Stage()
    clock = SimpleNamespace(
        time=lambda: stage.on.clock_ms() / 1000,
        monotonic=lambda: stage.on.now_ms / 1000,
        perf_counter=lambda: stage.on.now_ms / 1000,
        thread_time=lambda: 0.0,
        sleep=lambda seconds: stage.on.wait(None, seconds),
    )
    threads = SimpleNamespace(Event=lambda: _Event(stage), Thread=lambda target, **more: _Thread(stage, target, **more))
    replaced = {"time": clock, "uuid": _uuids(stage)}
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(_PACKAGE) or module is rows:
            for name, double in replaced.items():
                if getattr(module, name, None) is sys.modules[name]:
                    monkeypatch.setattr(module, name, double)
    named = heartbeat.process_name
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(_PACKAGE) and getattr(module, "process_name", None) is named:
            monkeypatch.setattr(module, "process_name", lambda: f"world:{stage.on.me.host.number}")
    monkeypatch.setattr("phantombase.timeline.locks.heartbeat.threading", threads)
    serial_pools(monkeypatch)
    monkeypatch.setattr("phantombase.timeline.storage.snapshot.Threads", lambda _: _AnyOrder(stage))
    monkeypatch.setattr(
        "phantombase.compactor_daemon.daemon.loop.ThreadPoolExecutor", lambda n, name: WorldPool(stage.on, n, name)
    )
    for user in ("loop", "work"):
        monkeypatch.setattr(f"phantombase.compactor_daemon.daemon.{user}.SimpleQueue", lambda: WorldQueue(stage.on))
    monkeypatch.setattr(
        "phantombase.compactor_daemon.daemon.served_table.open_storage", lambda path, options: stage.on.storage
    )
    monkeypatch.setattr(
        Table,
        "open",
        staticmethod(lambda path, options=None, *, reading=False: Table.on(stage.on.storage, reading=reading)),
    )
    monkeypatch.setattr(Process, "current", staticmethod(lambda: _process(stage.on)))
    monkeypatch.setattr(Process, "is_gone", lambda process: stage.on.hosts[process.pid].dead)
    monkeypatch.setattr(TableClock, "now", lambda _: _local(stage.on, stage.on.clock_ms()))
    monkeypatch.setattr(TableClock, "local", lambda _, milliseconds: _local(stage.on, milliseconds))
    monkeypatch.setattr(
        "phantombase.timeline.planning.planner.pending_writer",
        lambda t: None if stage.on.me.host.hudi else pending_writer(t),
    )
    monkeypatch.setattr("phantombase.compactor_daemon.attempt.compaction.compact_slice", rows.merge_slice)
    monkeypatch.setattr("phantombase.compactor_daemon.clustering.cluster.planned", rows.planned_group)
    monkeypatch.setattr("phantombase.compactor_daemon.clustering.tasks.make", rows.make_clustered)
    monkeypatch.setattr(TableConfig, "parse", staticmethod(cache(TableConfig.parse)))
    monkeypatch.setattr(Layout, "parse", _remembered(Layout.parse))
    monkeypatch.setattr("phantombase.timeline.instants.instant_files.decode_commit", lru_cache(1 << 12)(decode_commit))
    monkeypatch.setattr("phantombase.timeline.instants.instant_files.decode_plan", lru_cache(1 << 12)(decode_plan))
    yield stage


def _remembered(parse: Callable[[Layout, str], Instant | None]) -> Callable[[Layout, str], Instant | None]:
    """Pure functions are asked the same again and again; a layout's own hash would take longer than they do."""
    known: dict[tuple[bool, str], Instant | None] = {}

    def remembered(layout: Layout, name: str) -> Instant | None:
        key = layout.has_completion_times, name
        if key not in known:
            known[key] = parse(layout, name)
        return known[key]

    return remembered


def _local(world: World, milliseconds: int) -> datetime:
    """A moment in the zone of the process whose turn it is."""
    ahead_ms = world.running.host.ahead_ms if world.running is not None else 0
    return datetime.fromtimestamp((milliseconds + ahead_ms) / 1000, UTC).replace(tzinfo=None)


def _process(world: World) -> Process:
    return Process(host="world", boot="", pid=world.me.host.number, started=0)


def _uuids(stage: Stage) -> SimpleNamespace:
    """Random names are the world's; those that follow from a text are what they are."""
    return SimpleNamespace(uuid4=lambda: _name(stage.on), uuid5=uuid5, NAMESPACE_OID=NAMESPACE_OID, UUID=UUID)


def _name(world: World) -> UUID:
    """A name that only this process makes, and makes in every run; it does not begin as that of a bucket."""
    host = world.me.host
    host.names_made += 1
    return UUID(hex=f"f{host.number:07x}{host.names_made:024x}")
