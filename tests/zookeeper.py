"""A ZooKeeper server for tests: the embedded one's process, with sessions short enough for tests to lose them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from compactor_daemon.zookeeper_process import free_port, start_server

START_MAX_S = 60.0
TICK_MS = 200
"""Sessions live for 2 to 20 ticks."""


@dataclass(frozen=True, kw_only=True)
class ZooKeeper:
    """A running server at `hosts` (`127.0.0.1:port`), as a process of ours."""

    hosts: str
    process: subprocess.Popen[bytes]


@contextmanager
def zookeeper_server(folder: Path) -> Iterator[ZooKeeper]:
    """Starts a server that keeps its data in a folder, waits until it answers, and stops it at the end."""
    server = start_server(folder, port=free_port(), settings={"tickTime": TICK_MS})
    try:
        server.wait_until_serving(START_MAX_S)
        yield ZooKeeper(hosts=f"127.0.0.1:{server.port}", process=server.process)
    finally:
        server.stop()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One server for all tests of a run."""
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
