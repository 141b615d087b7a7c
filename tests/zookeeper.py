"""A ZooKeeper server for tests, from the jars that PySpark brings, as a process of its own."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

_START_MAX_S = 60.0
_STOP_MAX_S = 10.0
_TICK_MS = 200
"""Sessions live for 2 to 20 ticks: short, so that tests can lose them."""


@dataclass(frozen=True, kw_only=True)
class ZooKeeper:
    """A running server at `hosts` (`127.0.0.1:port`), as a process of ours."""

    hosts: str
    process: subprocess.Popen[bytes]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_well(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"ruok")
            return connection.recv(4) == b"imok"
    except OSError:
        return False


@contextmanager
def zookeeper_server(folder: Path) -> Iterator[ZooKeeper]:
    """Starts a server that keeps its data in a folder, waits until it answers, and stops it at the end."""
    port = _free_port()
    settings = {
        "dataDir": folder / "data",
        "clientPort": port,
        "clientPortAddress": "127.0.0.1",
        "tickTime": _TICK_MS,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "ruok",
    }
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "zoo.cfg"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    jars = Path(pyspark.__file__).parent / "jars"
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", f"{jars}/*", main, str(config)]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        until = time.monotonic() + _START_MAX_S
        while not _is_well(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"ZooKeeper did not start:\n{(folder / 'server.log').read_text()[-4000:]}")
            time.sleep(0.05)
        yield ZooKeeper(hosts=f"127.0.0.1:{port}", process=process)
    finally:
        process.kill()  # also one that a test has stopped
        process.wait(_STOP_MAX_S)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One server for all tests of a run."""
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
