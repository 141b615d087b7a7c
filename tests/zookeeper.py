"""A ZooKeeper server for tests: the embedded one's process, with sessions short enough for tests to lose them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from compactor_daemon.zookeeper_process import free_port, start_server

START_MAX_S = 60.0
TICK_MS = 200
"""Sessions live for 2 to 20 ticks."""


@dataclass(frozen=True, kw_only=True)
class ZooKeeper:
    """A running server at `hosts` (`127.0.0.1:port`), as a process of ours."""

    hosts: str
    port: int
    process: subprocess.Popen[bytes]


@contextmanager
def zookeeper_server(folder: Path) -> Iterator[ZooKeeper]:
    """Starts a server that keeps its data in a folder, waits until it answers, and stops it at the end."""
    server = start_server(folder, port=free_port(), settings={"tickTime": TICK_MS})
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
def client(hosts: str, timeout_s: float = 10.0) -> Iterator[Any]:
    """A connected client."""
    found = KazooClient(hosts=hosts, timeout=timeout_s, connection_retry={"max_tries": -1, "delay": 0.05})
    found.start(15)
    try:
        yield found
    finally:
        found.stop()
        found.close()


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Fails when it has not come true in time."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)
