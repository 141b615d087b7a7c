"""A Docker engine for tests: the one that runs here, else one of our own, which is stopped at the end.

Our own needs root on Debian or Ubuntu: their `docker.io` is installed where `dockerd` is missing. Its images, networks
and socket lie in a folder of their own, so it meddles with no other engine, and images stay for the next run:

    $XDG_CACHE_HOME/phantombase/docker, or ~/.cache/phantombase/docker
      lock          held by the run that uses the engine
      data/         images and containers
      run/          socket, pid
      dockerd.log

Every step has a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
from docker.errors import DockerException
from filelock import FileLock, Timeout

from tests.support.servers import debian

_PACKAGES = ("docker.io", "docker-compose", "debootstrap")
_START_MAX_S = 120.0
_STOP_MAX_S = 30.0
_OTHER_RUN_MAX_S = 300.0


class NoContainersError(Exception):
    """Containers cannot be run here; the message says why."""


def cache() -> Path:
    """The folder of our own engine."""
    return debian.cache() / "docker"


@contextmanager
def running_engine() -> Iterator[str]:
    """The address of an engine, as `DOCKER_HOST` takes it; NoContainersError when there is none."""
    given = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if _answers(given):
        yield given
        return
    if os.geteuid() != 0:
        raise NoContainersError(f"no Docker engine answers at {given}, and only root can start one")
    install("dockerd", _PACKAGES)
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "lock", timeout=_OTHER_RUN_MAX_S):
            yield from _own_engine(folder)
    except Timeout as error:
        raise NoContainersError(f"another run has used the engine in {folder} for {_OTHER_RUN_MAX_S:g} s") from error


def install(command: str, packages: tuple[str, ...]) -> None:
    """Installs Debian packages where a command is missing; NoContainersError when that is impossible."""
    try:
        debian.install(command, packages)
    except debian.NotInstalledError as error:
        raise NoContainersError(str(error)) from error


def run_limited(step: list[str], limit_s: float, environment: dict[str, str] | None = None) -> str:
    """The output of a command; NoContainersError with its last lines when it fails or takes too long."""
    try:
        done = subprocess.run(
            step, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired as error:
        raise NoContainersError(f"`{' '.join(step)}` took more than {limit_s:g} s") from error
    if done.returncode != 0:
        raise NoContainersError(f"`{' '.join(step)}` failed: {done.stdout[-1000:]}")
    return done.stdout


def _answers(host: str) -> bool:
    try:
        client = docker.DockerClient(base_url=host, timeout=10)
    except DockerException:
        return False
    try:
        return bool(client.ping())
    except (DockerException, OSError):
        return False
    finally:
        client.close()


def _own_engine(folder: Path) -> Iterator[str]:
    """Starts it, unless one that a killed run has left behind still runs, and stops it."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    host = f"unix://{run}/docker.sock"
    if not _answers(host):
        _start(folder, host)
    try:
        yield host
    finally:
        _stop(int((run / "docker.pid").read_text()))
        # dockerd leaves this mount behind, and a folder with a mount cannot be removed.
        subprocess.run(["umount", str(run / "exec/netns/default")], capture_output=True, timeout=_STOP_MAX_S)


def _start(folder: Path, host: str) -> None:
    run = folder / "run"
    (run / "docker.pid").unlink(missing_ok=True)
    command = ["dockerd", "--host", host, "--data-root", str(folder / "data"), "--exec-root", str(run / "exec")]
    # No default bridge: every test has a network of its own.
    command += ["--pidfile", str(run / "docker.pid"), "--bridge", "none"]
    with (folder / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    until = time.monotonic() + _START_MAX_S
    while not _answers(host):
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            process.wait()
            raise NoContainersError(f"dockerd did not start: {(folder / 'dockerd.log').read_text()[-1000:]}")
        time.sleep(0.1)


def _stop(pid: int) -> None:
    """Ends the engine, which ends its containers; it may be no child of ours."""
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + _STOP_MAX_S
    while _lives(pid):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.1)


def _lives(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return Path(f"/proc/{pid}").exists()
