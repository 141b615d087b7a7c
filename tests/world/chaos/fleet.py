"""Daemons as processes, each with its own way to ZooKeeper, kept at their number by a supervisor."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from tests.support.servers.network_partition import Link, link
from tests.world.chaos.daemon_child import run_child
from tests.world.chaos.fleet_child import Subject
from tests.world.chaos.switches import Switches

SESSION_S = 2.5
"""Of daemons with ZooKeeper, in trouble; whoever is silent for longer loses its claims, and the table lock there."""
_END_S = 120.0
_LOOKS = 6
_ENDS = {"exit 0", "exit 1", "exit -9", "exit -15"}
"""Well, with failures to report (or ZooKeeper away at its start), killed, and told to end before it had begun."""
_SERVICES = [
    "--services",
    "cluster,clean,archive,metadata",
    "--services-interval",
    "2",
    "--cluster-min-file-num",
    "2",
    "--cluster-wait",
    "1",
    "--clean-retain",
    "2",
    "--clean-floor",
    "1",
    "--archive-min-instants",
    "8",
    "--archive-max-instants",
    "12",
]
"""As much as can be at each time, so that what is needed is always near what goes."""
_QUIET = ("Traceback", "internal_error")
"""What no log may hold."""


def forks() -> ForkServerContext:
    """Processes forked from one that has everything imported: a start costs some ms."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.world.chaos.daemon_child", "tests.world.chaos.fleet_child"])
    return context


@dataclass
class Slot:
    """A place for a daemon: its switches, its network, and the process that is there now."""

    number: int
    network: Link
    switches: Switches
    log: Path
    process: ForkServerProcess | None = None
    killed: bool = False
    due: float = 0.0
    """When the next one is started (monotonic)."""

    @property
    def pid(self) -> int | None:
        """The process that is there and was not killed; None while there is none."""
        alive = self.process is not None and not self.killed and self.process.is_alive()
        return self.process.pid if alive and self.process is not None else None


@dataclass
class Fleet:
    """`lock`: of a table `{name}`, with `{hosts}` for each process's own way to ZooKeeper. `session_s`: of claims, and
    of locks in ZooKeeper. Every other daemon also requests compactions, every third runs the services."""

    context: ForkServerContext
    subjects: list[Subject]
    slots: list[Slot]
    lock: str
    session_s: float
    ends: Counter[str] = field(default_factory=Counter)

    def tend(self) -> None:
        """Starts what is missing, as a supervisor does."""
        for slot in self.slots:
            if slot.pid is not None or time.monotonic() < slot.due:
                continue
            self._bury(slot)
            slot.process = self._process(slot.log, slot.switches, self._arguments(slot))
            slot.killed = False

    def kill(self, slot: Slot, down_s: float) -> None:
        """Ends its process at once; the next one comes after a while."""
        if slot.pid is not None:
            os.kill(slot.pid, signal.SIGKILL)
            slot.killed = True
        slot.due = time.monotonic() + down_s

    def send(self, slot: Slot, number: signal.Signals) -> None:
        """A signal, if it is there."""
        with suppress(ProcessLookupError):
            if slot.pid is not None:
                os.kill(slot.pid, number)

    def wait_until_all_look(self) -> None:
        """Each daemon that has come through goes on; one that was started anew begins."""
        before = {slot.number: slot.switches.looks for slot in self.slots}
        until = time.monotonic() + _END_S
        while still := [slot.number for slot in self.slots if slot.switches.looks - before[slot.number] < _LOOKS]:
            assert time.monotonic() < until, f"daemons {still} do nothing any more"
            self.tend()
            time.sleep(0.2)

    def end(self) -> None:
        """SIGTERM to all: each ends by itself, and well."""
        for slot in self.slots:
            self.send(slot, signal.SIGTERM)
        for slot in self.slots:
            if slot.process is not None:
                slot.process.join(_END_S)
                assert slot.process.exitcode is not None, f"daemon {slot.number} does not end: {slot.log}"
            self._bury(slot)
        odd = self.ends.keys() - _ENDS
        assert not odd, f"daemons ended with {odd}"

    def finish(self, log: Path, switches: Switches) -> None:
        """One more daemon, alone and without ZooKeeper, until nothing is left to do; then its services."""
        paths = [str(s.path) for s in self.subjects]
        options = ["--lock", self._lock_of(self.slots[0]), "--executor", "local", "--json"]
        process = self._process(log, switches, ["run", *paths, "--once", *_SERVICES, *options])
        process.join(300)
        code = process.exitcode
        process.kill()
        assert code == 0, f"the last run ended with {code}: {log.read_text()[-3000:]}"

    def check_logs(self, folder: Path) -> None:
        """No error of ours came as a surprise."""
        for log in sorted(folder.glob("*.log")):
            text = log.read_text(errors="replace")
            found = [word for word in _QUIET if word in text]
            where = min((text.find(word) for word in found), default=0)
            assert not found, f"{log}: {text[max(0, where - 500) : where + 3000]}"

    def abandon(self) -> None:
        """Ends whatever is left, whatever happened."""
        for slot in self.slots:
            if slot.process is not None:
                slot.process.kill()
                slot.process.join(_END_S)

    def count(self, name: str) -> int:
        """A count of all daemons."""
        return sum(int(getattr(slot.switches, name)) for slot in self.slots)

    def _bury(self, slot: Slot) -> None:
        if slot.process is not None:
            slot.process.join()
            self.ends["exit -9" if slot.killed else f"exit {slot.process.exitcode}"] += 1
            slot.process.close()
            slot.process = None

    def _lock_of(self, slot: Slot) -> str:
        """As the command takes it, `{name}` included."""
        return self.lock.format(hosts=slot.network.hosts, name="{name}")

    def _process(self, log: Path, switches: Switches, arguments: list[str]) -> ForkServerProcess:
        process = self.context.Process(target=run_child, args=(arguments, log, switches, self.session_s))
        process.start()
        return process

    def _arguments(self, slot: Slot) -> list[str]:
        options: dict[str, object] = {
            "--lock": self._lock_of(slot),
            "--zookeeper": slot.network.hosts,
            "--zookeeper-session": self.session_s,
            "--poll-interval": 1,
            "--max-concurrent": 2,
            "--retries": 100_000,
            "--backoff": 0.3,
            "--barrier": 20,
            "--executor": "local",
            "--threads": 1,
            "--codec": "snappy",
            "--bloom": "off",
        }
        paths = [str(s.path) for s in self.subjects]
        schedule = ["--schedule", "--max-delta-commits", "3"] if slot.number % 2 else []
        services = _SERVICES if slot.number % 3 == 0 else []
        return [
            "run",
            *paths,
            "--json",
            *schedule,
            *services,
            *(str(word) for option in options.items() for word in option),
        ]


@contextmanager
def fleet(
    context: ForkServerContext,
    size: int,
    subjects: list[Subject],
    ports: list[int],
    lock: str,
    folder: Path,
    session_s: float = SESSION_S,
) -> Iterator[Fleet]:
    """A fleet whose daemons reach ZooKeeper's servers at these ports; no process of it outlives the context."""
    with ExitStack() as stack:
        slots = [
            Slot(n, stack.enter_context(link(ports)), new_switches(context), folder / f"daemon{n}.log")
            for n in range(size)
        ]
        found = Fleet(context, subjects, slots, lock, session_s)
        stack.callback(found.abandon)
        yield found


def new_switches(context: Any) -> Switches:
    """In memory that processes share."""
    switches: Switches = context.RawValue(Switches)
    return switches
