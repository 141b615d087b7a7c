"""A ZooKeeper server for tests: the embedded one's process, with sessions short enough for tests to lose them.

A shared machine stands still for seconds now and then: whoever is to keep a session asks for a long one."""

from __future__ import annotations

import random
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from kazoo.client import KazooClient

from phantombase.compactor_daemon.fleet.zookeeper_server import is_free, start_server

START_MAX_S = 120.0
TICK_MS = 200
"""Sessions live for at least 2 ticks."""
LONGEST_SESSION_S = 60.0
_PORTS = range(20_000, 32_000)
"""Below those that the kernel hands out: nobody else gets one between our look and the server's start."""


@dataclass(frozen=True, kw_only=True)
class ZooKeeper:
    """A running server at `hosts` (`127.0.0.1:port`), as a process of ours."""

    hosts: str
    port: int
    process: subprocess.Popen[bytes]


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 that nobody listens on now."""
    found: set[int] = set()
    while len(found) < count:
        if is_free(port := random.SystemRandom().choice(_PORTS)):
            found.add(port)
    return list(found)


@contextmanager
def zookeeper_server(folder: Path) -> Iterator[ZooKeeper]:
    """Starts a server that keeps its data in a folder, waits until it answers, and stops it at the end."""
    (port,) = free_ports(1)
    settings: dict[str, object] = {"tickTime": TICK_MS, "maxSessionTimeout": round(LONGEST_SESSION_S * 1000)}
    server = start_server(folder, port=port, settings=settings)
    try:
        server.wait_until_serving(START_MAX_S)
        yield ZooKeeper(hosts=f"127.0.0.1:{server.port}", port=server.port, process=server.process)
    finally:
        server.stop()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One server for all tests of a run."""
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@contextmanager
def client(hosts: str, timeout_s: float = 30.0) -> Iterator[Any]:
    """A connected client; `timeout_s`: of its session. Calls by its `retry` go on for a minute."""
    again = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5}
    found = KazooClient(hosts=hosts, timeout=timeout_s, connection_retry=again, command_retry=again | {"deadline": 60})
    found.start(60)
    try:
        yield found
    finally:
        found.stop()
        found.close()


SessionId: TypeAlias = tuple[int, bytes]
"""What whoever goes on with a session names: `client_id` of its client."""


def expire(server: ZooKeeper, session: SessionId) -> None:
    """The server ends a session, as if its time had run out, and removes its nodes. Somebody else goes on with the
    session and closes it: so a test loses a session when it wants to, and a machine that stands still loses none."""
    other = KazooClient(hosts=server.hosts, client_id=session, timeout=30.0)
    other.start(60)
    assert other.client_id[0] == session[0], "it had ended before"
    other.stop()
    other.close()


def ordered(server: ZooKeeper) -> None:
    """Returns when the server has done what it had been sent before: it does all changes in one order."""
    with client(server.hosts) as last:
        last.retry(last.create, f"/{uuid.uuid4().hex}", ephemeral=True)


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Fails when it has not come true in time."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)
