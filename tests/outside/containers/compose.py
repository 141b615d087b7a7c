"""Drives `deploy/compose.yaml` as a user does: Compose's command line, and the engine for what it cannot tell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import yaml

from tests.outside.containers.engine import install
from tests.outside.containers.images import IMAGE_USER, LABEL, PROJECT, Images
from tests.support.places import ROOT

FILE = ROOT / "deploy/compose.yaml"
ZOOKEEPERS = ("zoo1", "zoo2", "zoo3")
HOSTS = "zoo1:2181,zoo2:2181,zoo3:2181/fleet"
HEALTHY_MAX_S = 180.0
METRICS_PORT = 9464

_COMMAND_MAX_S = 300.0
_HELD = Path(__file__).with_name("held")


def compose_command() -> list[str]:
    """`docker compose`, else the older `docker-compose`; NoContainersError when there is none."""
    asked = ["docker", "compose", "version"]
    if shutil.which("docker") and subprocess.run(asked, capture_output=True, timeout=_COMMAND_MAX_S).returncode == 0:
        return ["docker", "compose"]
    install("docker-compose", ("docker-compose",))
    return ["docker-compose"]


def wait_until(what: str, reached: Callable[[], bool], limit_s: float) -> None:
    """Looks every now and then; fails after `limit_s` seconds."""
    until = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < until, f"{what}: not within {limit_s:g} s"
        time.sleep(0.25)


class Compose:
    """A project of its own; its containers are removed at the end. `tables` is `/tables` in the containers."""

    def __init__(self, command: list[str], host: str, images: Images, folder: Path) -> None:
        self.tables = folder
        self._command = command
        self._client = docker.DockerClient(base_url=host, timeout=60)
        self._images = images
        self._project = f"{PROJECT}{uuid.uuid4().hex[:8]}"
        self._user = os.getuid() or IMAGE_USER
        self._override = folder / "override.yaml"

    def __enter__(self) -> Compose:
        return self

    def __exit__(self, *_: object) -> None:
        self.run("down", "--volumes", "--timeout", "5")
        self._client.close()

    def run(self, *arguments: str, tables: str = "/tables/rides") -> str:
        """The output of a Compose command. `tables`: what follows `compactor-daemon run`."""
        self._override.write_text(yaml.safe_dump({"services": self._overrides()}))
        files = ["-f", str(FILE), "-f", str(self._override)]
        environment = os.environ | {
            "PHANTOMBASE_IMAGE": self._images.daemon,
            "ZOOKEEPER_IMAGE": self._images.zookeeper,
            "PHANTOMBASE_TABLES": str(self.tables),
            "PHANTOMBASE_RUN": tables,
        }
        done = subprocess.run(
            [*self._command, "-p", self._project, *files, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_MAX_S,
        )
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout[-3000:]}"
        return done.stdout

    def start_zookeeper(self) -> None:
        """Three servers with a quorum, unless they run."""
        self.run("up", "-d", "--no-deps", *ZOOKEEPERS)
        servers = [self.containers(name)[0] for name in ZOOKEEPERS]
        wait_until("ZooKeeper is healthy", lambda: all(map(is_healthy, servers)), HEALTHY_MAX_S)

    def start_daemons(self, tables: list[Path], *options: str) -> list[Any]:
        """The daemons' containers, serving tables below `self.tables`; each compaction waits while `hold` is there."""
        if os.getuid() == 0:
            subprocess.run(["chown", "-R", f"{self._user}:{self._user}", str(self.tables)], check=True, timeout=60)
        served = " ".join([*(self.inside(table) for table in tables), "--executor local", *options])
        self.run("up", "-d", "--no-deps", "daemon", tables=served)
        return self.containers("daemon")

    def remove_daemons(self) -> None:
        """Stops what still runs; all logs are printed, which pytest shows when a test has failed."""
        self.hold.unlink(missing_ok=True)
        print(self.run("logs", "--no-color", "--tail", "200"))
        self.run("rm", "--stop", "--force", "daemon")

    @property
    def hold(self) -> Path:
        """While this file exists, compactions stop when their first file slice is finished (`held/`)."""
        return self.tables / "hold"

    def inside(self, table: Path) -> str:
        """The path of a table in the containers."""
        return f"/tables/{table.relative_to(self.tables)}"

    def containers(self, service: str) -> list[Any]:
        """The running containers of a service."""
        labels = [f"com.docker.compose.project={self._project}", f"com.docker.compose.service={service}"]
        return list(self._client.containers.list(filters={"label": labels}))

    def claims(self, through: Any, tables: list[Path]) -> list[dict[str, Any]]:
        """What `compactor-daemon claims` says in one of the containers."""
        asked = ["compactor-daemon", "claims", "--zookeeper", HOSTS, "--json", *map(self.inside, tables)]
        code, (answer, trouble) = through.exec_run(asked, demux=True)
        assert code == 0, trouble
        return list(json.loads(answer)["claims"])

    def _overrides(self) -> dict[str, Any]:
        labels = {LABEL: "1"}
        daemon = {
            "labels": labels,
            "user": f"{self._user}:{self._user}",
            "volumes": [f"{_HELD}:/held:ro"],
            "environment": {"PYTHONPATH": "/held"},
        }
        return {"daemon": daemon} | {name: {"labels": labels} for name in ZOOKEEPERS}


def is_healthy(container: Any) -> bool:
    """What the engine's health check says now."""
    container.reload()
    return bool(container.attrs["State"]["Health"]["Status"] == "healthy")


def ask(daemon: Any, path: str) -> str:
    """What a daemon answers to an HTTP request from inside its container, errors too; empty when it does not."""
    code = (
        "import sys, urllib.request as u, urllib.error as e\n"
        f"try: sys.stdout.write(u.urlopen('http://127.0.0.1:{METRICS_PORT}/{path}', timeout=5).read().decode())\n"
        "except e.HTTPError as error: sys.stdout.write(error.read().decode())\n"
    )
    _, (answer, _) = daemon.exec_run(["python3", "-c", code], demux=True)
    return (answer or b"").decode()
