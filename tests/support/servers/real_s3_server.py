"""Real S3 servers, as processes of this machine that listen on loopback.

`SERVERS` says how each is installed into the cache of tests, once, and how it is started; it ends with the tests of its
process. The two in Go are built from source: some minutes, or more beside other work. What cannot be installed is an
error of the tests that ask for it. `$PHANTOMBASE_MINIO` and `$PHANTOMBASE_VERSITY` name a binary instead."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from filelock import FileLock

from tests.support.compaction_steps import started
from tests.support.places import NO_AUTHORITY
from tests.support.servers.debian import NotInstalledError, cache
from tests.support.servers.zookeeper_server import free_ports

_KEY = "tests-tests"
_START_MAX_S = 300.0
_BUILD_MAX_S = 5400.0
KMS_KEY = "tests-key"

Start: TypeAlias = Callable[[Path, Path, list[int]], tuple[list[str], dict[str, str]]]
"""The command and its environment, from what was installed, an empty folder and free ports: the first is S3's."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One of the table. `install`: into an empty folder."""

    version: str
    install: Callable[[str, Path], None]
    start: Start
    ports: int = 1


def _go(package: str) -> Callable[[str, Path], None]:
    """Builds a program on one core."""

    def install(version: str, made: Path) -> None:
        own = {"GOBIN": str(made), "GOMAXPROCS": "1", "GOFLAGS": "-buildvcs=false"}
        _run("go", "install", "-p", "1", "-ldflags=-s -w", f"{package}@{version}", **own)
        (made / package.rpartition("/")[2]).rename(made / "program")

    return install


def _pip(*packages: str) -> Callable[[str, Path], None]:
    """A virtual environment, which cannot be moved."""

    def install(version: str, made: Path) -> None:
        _run(sys.executable, "-m", "venv", str(made / "venv"))
        _run(str(made / "venv/bin/pip"), "install", "-q", *(one.format(version) for one in packages))

    return install


def _run(*step: str, **more: str) -> None:
    command, environment = ["nice", "-n", "19", *step], os.environ | more
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_BUILD_MAX_S)
    except subprocess.TimeoutExpired as error:
        raise NotInstalledError(f"`{' '.join(step)}` took more than {_BUILD_MAX_S:g} s") from error
    if done.returncode != 0:
        raise NotInstalledError(f"`{' '.join(step)}` failed: {(done.stdout + done.stderr)[-1000:]}")


def _minio(home: Path, folder: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
    addresses = ["--address", f"127.0.0.1:{ports[0]}", "--console-address", f"127.0.0.1:{ports[1]}"]
    environment = {
        "MINIO_ROOT_USER": _KEY,
        "MINIO_ROOT_PASSWORD": _KEY,
        "MINIO_KMS_SECRET_KEY": f"{KMS_KEY}:{base64.b64encode(bytes(32)).decode()}",
    }
    return [_program("MINIO", home), "server", "--quiet", *addresses, str(folder)], environment


def _versity(home: Path, folder: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
    for name in ("objects", "attributes"):
        (folder / name).mkdir()
    own = ["--access", _KEY, "--secret", _KEY, "--port", f"127.0.0.1:{ports[0]}", "--quiet", "--keep-alive"]
    kept = ["posix", "--sidecar", str(folder / "attributes"), str(folder / "objects")]
    return [_program("VERSITY", home), *own, *kept], {}


def _localstack(home: Path, folder: Path, ports: list[int]) -> tuple[list[str], dict[str, str]]:
    environment = {
        "GATEWAY_LISTEN": f"127.0.0.1:{ports[0]}",
        "GATEWAY_SERVER": "hypercorn",  # the other one listens on all interfaces
        "SERVICES": "s3",
        "EAGER_SERVICE_LOADING": "1",
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "DNS_ADDRESS": "0",
        "FILESYSTEM_ROOT": str(folder),
        "LOCALSTACK_VOLUME_DIR": str(folder),
    }
    return [str(home / "venv/bin/python"), "-m", "localstack.runtime.main"], environment


SERVERS: Mapping[str, Server] = {
    "versity": Server(
        version="v1.8.0", install=_go("github.com/versity/versitygw/cmd/versitygw"), start=_versity, ports=1
    ),
    "minio": Server(
        version="v0.0.0-20260212201848-7aac2a2c5b7c", install=_go("github.com/minio/minio"), start=_minio, ports=2
    ),
    "localstack": Server(
        version="4.9.2",
        install=_pip("localstack-core[base-runtime]=={}", "cbor2<6", "pyopenssl<26", "service_identity"),
        start=_localstack,
    ),
}
"""Real servers, by the names of their fixtures."""
BUILT = [pytest.mark.deep, pytest.mark.timeout(3 * round(_BUILD_MAX_S))]
"""The marks of tests with one of them: the first may wait until it is built."""
REAL = tuple(pytest.param(name, marks=BUILT) for name in SERVERS)
"""For `pytest.mark.parametrize`."""


@dataclass(frozen=True, kw_only=True)
class RealS3Server:
    """A running one. MinIO encrypts with `KMS_KEY` where it is asked to."""

    port: int

    def environment(self) -> dict[str, str]:
        """What a process needs to know of it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            **NO_AUTHORITY,
        }

    @property
    def client(self) -> Any:
        """Another client than phantombase's."""
        keys = {"aws_access_key_id": _KEY, "aws_secret_access_key": _KEY, "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{self.port}", **keys)

    def new_bucket(self) -> str:
        """An empty one."""
        name = f"b-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return name

    def upload(self, folder: Path, bucket: str, prefix: str) -> str:
        """A folder's files below a prefix of a bucket; returns its URL."""
        client = self.client
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".crc":
                name = f"{prefix}/{path.relative_to(folder).as_posix()}"
                client.put_object(Bucket=bucket, Key=name, Body=path.read_bytes())
        return f"s3://{bucket}/{prefix}"


def _program(name: str, home: Path) -> str:
    return os.environ.get(f"PHANTOMBASE_{name}") or str(home / "program")


def _home(name: str) -> Path:
    """Where it is installed; made the first time. NotInstalledError."""
    server = SERVERS[name]
    home = cache() / f"{name}-{server.version}"
    if f"PHANTOMBASE_{name.upper()}" in os.environ:
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{home}.lock"):
        if not (home / "installed").exists():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            server.install(server.version, home)
            (home / "installed").touch()
    return home


@pytest.fixture(scope="session")
def real_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RealS3Server]]:
    """Starts a server when it is first asked for: one for all tests of a process."""
    running: dict[str, RealS3Server] = {}
    with ExitStack() as stack:

        def ask(name: str) -> RealS3Server:
            if name not in running:
                ports = free_ports(SERVERS[name].ports)
                command, more = SERVERS[name].start(_home(name), tmp_path_factory.mktemp(name), ports)
                found = RealS3Server(port=ports[0])
                unready = (BotoCoreError, ClientError)
                stack.enter_context(started(command, found.new_bucket, unready, _START_MAX_S, os.environ | more))
                running[name] = found
            return running[name]

        yield ask


def _named(name: str) -> Any:
    def server(real_servers: Callable[[str], RealS3Server], monkeypatch: pytest.MonkeyPatch) -> RealS3Server:
        found = real_servers(name)
        for variable, value in found.environment().items():
            monkeypatch.setenv(variable, value)
        return found

    return pytest.fixture(server, name=name)


versity, minio, localstack = map(_named, SERVERS)
"""A server that the environment names."""
