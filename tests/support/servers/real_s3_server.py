"""Real S3 servers, as processes of this machine.

VersityGW is built by CommitDecision, once, into the cache of tests: that takes some minutes. Without CommitDecision its
tests are skipped. MinIO: `$PHANTOMBASE_MINIO` names its binary. Without it the tests with the mark `minio` are not
selected.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from filelock import FileLock

from tests.support.compaction_steps import started
from tests.support.places import NO_AUTHORITY
from tests.support.selection import MINIO
from tests.support.servers.debian import cache
from tests.support.servers.zookeeper_server import free_ports

_KEY = "tests-tests"
_START_MAX_S = 60.0
_VERSITY = "v1.8.0"
BUILT = [pytest.mark.deep, pytest.mark.timeout(3600)]
"""The marks of tests with VersityGW: the first of them may wait for its build."""
REAL = (pytest.param("versity", marks=BUILT), pytest.param("minio", marks=pytest.mark.minio))
"""Names of the fixtures, for `pytest.mark.parametrize`."""
KMS_KEY = "tests-key"


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


@contextmanager
def _running(command: Sequence[str], port: int, **more: str) -> Iterator[RealS3Server]:
    found = RealS3Server(port=port)
    with started(command, found.new_bucket, (BotoCoreError, ClientError), _START_MAX_S, os.environ | more):
        yield found


def _versity() -> Path:
    """Its binary."""
    if given := os.environ.get("PHANTOMBASE_VERSITYGW"):
        return Path(given)
    if shutil.which("go") is None:
        pytest.skip("no CommitDecision here: no real S3 server is built")
    home = cache() / f"versitygw-{_VERSITY}"
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / "lock"):
        if not (home / "versitygw").exists():
            module = f"github.com/versity/versitygw/cmd/versitygw@{_VERSITY}"
            subprocess.run(["go", "install", module], env=os.environ | {"GOBIN": str(home)}, check=True)
    return home / "versitygw"


@pytest.fixture(scope="session")
def shared_versity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealS3Server]:
    """One server for all tests of a process."""
    (port,) = free_ports(1)
    objects, attributes = (str(tmp_path_factory.mktemp(name)) for name in ("objects", "attributes"))
    own = ["--access", _KEY, "--secret", _KEY, "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive"]
    with _running([str(_versity()), *own, "posix", "--sidecar", attributes, objects], port) as found:
        yield found


@pytest.fixture(scope="session")
def shared_minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealS3Server]:
    """One server for all tests of a process."""
    port, console = free_ports(2)
    addresses = ["--address", f"127.0.0.1:{port}", "--console-address", f"127.0.0.1:{console}"]
    command = [os.environ[MINIO], "server", "--quiet", *addresses, str(tmp_path_factory.mktemp("minio"))]
    secrets = {
        "MINIO_ROOT_USER": _KEY,
        "MINIO_ROOT_PASSWORD": _KEY,
        "MINIO_KMS_SECRET_KEY": f"{KMS_KEY}:{base64.b64encode(bytes(32)).decode()}",
    }
    with _running(command, port, **secrets) as found:
        yield found


def _named(server: RealS3Server, monkeypatch: pytest.MonkeyPatch) -> RealS3Server:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def versity(shared_versity: RealS3Server, monkeypatch: pytest.MonkeyPatch) -> RealS3Server:
    """A server that the environment names."""
    return _named(shared_versity, monkeypatch)


@pytest.fixture
def minio(shared_minio: RealS3Server, monkeypatch: pytest.MonkeyPatch) -> RealS3Server:
    """A server that the environment names."""
    return _named(shared_minio, monkeypatch)
