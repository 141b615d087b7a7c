"""Three ZooKeeper servers that make an ensemble, each a process that can be killed, stopped, and started again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phantombase.compactor_daemon.fleet.zookeeper_server import ServerProcess, ask, start_server
from tests.support.servers.zookeeper_server import LONGEST_SESSION_S, START_MAX_S, TICK_MS, free_ports

_MEMBERS = (1, 2, 3)
_LIMIT_TICKS = 25
"""How long members may take to follow a leader, and lag behind it."""


class Ensemble:
    """Members 1, 2 and 3, in `folder`; sessions live for 2 ticks of TICK_MS at least."""

    def __init__(self, folder: Path, longest_session_s: float) -> None:
        self._folder = folder
        free = free_ports(3 * len(_MEMBERS))
        self.ports = {member: free.pop() for member in _MEMBERS}
        """Of 127.0.0.1, for clients."""
        self._servers: dict[int, ServerProcess] = {}
        self._settings: dict[str, object] = {
            "tickTime": TICK_MS,
            "maxSessionTimeout": round(longest_session_s * 1000),
            "initLimit": _LIMIT_TICKS,
            "syncLimit": _LIMIT_TICKS,
        } | {f"server.{member}": f"127.0.0.1:{free.pop()}:{free.pop()}" for member in _MEMBERS}

    @property
    def hosts(self) -> str:
        """All members, as clients name them."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def start(self) -> None:
        """Starts all members and waits until each serves."""
        for member in _MEMBERS:
            self._start(member)
        for server in self._servers.values():
            server.wait_until_serving(START_MAX_S)

    def end(self) -> None:
        """Ends what still runs."""
        for server in self._servers.values():
            server.stop()

    def leader(self) -> int | None:
        """The member that leads; None while none does."""
        return next((m for m in _MEMBERS if "Mode: leader" in (ask(self.ports[m], "srvr") or "")), None)

    def wait_for_leader(self, *, other_than: int | None = None) -> int:
        """The member that leads, once it is another one than that."""
        until = time.monotonic() + START_MAX_S
        while (leader := self.leader()) is None or leader == other_than:
            assert time.monotonic() < until, f"no new leader after member {other_than}"
            time.sleep(0.1)
        return leader

    def kill(self, member: int) -> None:
        """Ends a member as a crash does."""
        self._servers.pop(member).stop()

    def stop(self, member: int) -> None:
        """A member stands still; its connections stay open."""
        self._servers[member].process.send_signal(signal.SIGSTOP)

    def cont(self, member: int) -> None:
        """A member that stood still goes on."""
        self._servers[member].process.send_signal(signal.SIGCONT)

    def restart(self, member: int) -> None:
        """A member that was killed comes back with its data, and is waited for: a quorum must stand."""
        self._start(member)
        self._servers[member].wait_until_serving(START_MAX_S)

    def _start(self, member: int) -> None:
        folder = self._folder / str(member)
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "data/myid").write_text(f"{member}\n")
        self._servers[member] = start_server(folder, port=self.ports[member], settings=self._settings)


@contextmanager
def running_ensemble(folder: Path, longest_session_s: float = LONGEST_SESSION_S) -> Iterator[Ensemble]:
    """An ensemble that serves; it does not outlive the context."""
    ensemble = Ensemble(folder, longest_session_s)
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.end()


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    """An ensemble of the test's own."""
    with running_ensemble(tmp_path / "ensemble") as running:
        yield running
