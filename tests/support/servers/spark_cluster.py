"""A standalone Spark cluster for tests: a master and two workers of one core each, from PySpark's own jars.

Each worker has an address of its own (127.0.0.1, 127.0.0.2), as Spark runs no task twice on one host."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from phantombase.compactor_daemon.jvm_archive import spark_java
from tests.support.places import ROOT
from tests.support.servers.zookeeper_server import wait_until

START_MAX_S = 300.0
WORKERS = 2
_HOME = Path(pyspark.__file__).parent
_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dspark.master.rest.enabled=false")


@dataclass(frozen=True, kw_only=True)
class SparkCluster:
    """A running cluster at `master` (`spark://127.0.0.1:port`); `workers`: process ids."""

    master: str
    workers: tuple[int, ...]

    def executors(self) -> set[int]:
        """Process ids of the executors that run now, of all applications."""
        return {pid for worker in self.workers for pid in children(worker)}


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """Starts a cluster, waits until it takes work, and stops it at the end. Executors import this checkout, as a real
    cluster's image has the package installed."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, host: str, main: str, *arguments: str) -> Path:
        log = folder / f"{name}.log"
        command = [spark_java() or "java", *_JVM, "-cp", f"{_HOME}/jars/*", f"org.apache.spark.deploy.{main}"]
        command += ["--host", host, "--webui-port", "0", *arguments]
        with log.open("wb") as output:
            processes.append(
                subprocess.Popen(command, env=_environment(host), stdout=output, stderr=output, cwd=folder)
            )
        return log

    def said(log: Path, words: str, times: int = 1) -> list[str]:
        found: list[str] = []

        def all_there() -> bool:
            assert all(p.poll() is None for p in processes), log.read_text()
            found[:] = re.findall(words, log.read_text())
            return len(found) >= times

        wait_until(all_there, START_MAX_S)
        return found

    try:
        log = start("master", "127.0.0.1", "master.Master", "--port", "0")
        (master,) = said(log, r"Starting Spark master at (\S+)")
        for number in range(WORKERS):
            sizes = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"))
            start(f"worker-{number}", f"127.0.0.{number + 1}", "worker.Worker", *sizes, master)
        said(log, "Registering worker", WORKERS)
        yield SparkCluster(master=master, workers=tuple(p.pid for p in processes[1:]))
    finally:
        for process in reversed(processes):  # executors end with their worker
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """One cluster for all tests of a module."""
    with spark_cluster(tmp_path_factory.mktemp("spark")) as running:
        yield running


def _environment(host: str) -> dict[str, str]:
    """What Spark's start scripts would set, and where executors find this checkout."""
    (core,) = (_HOME / "jars").glob("spark-core_*.jar")
    scala = core.name.removeprefix("spark-core_").partition("-")[0]
    return os.environ | {
        "SPARK_HOME": str(_HOME),
        "SPARK_SCALA_VERSION": scala,
        "SPARK_LOCAL_IP": host,
        "PYTHONPATH": str(ROOT),
    }


def children(pid: int) -> set[int]:
    """Process ids of the children of a process; none when it has ended."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # ended meanwhile
        if int(parent) == pid:
            found.add(int(folder.name))
    return found


def parent(pid: int) -> int:
    """The process id of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(pid: int) -> None:
    """SIGKILL."""
    os.kill(pid, signal.SIGKILL)
