"""MinIO, a real S3 server, as a process of this machine: `$PHANTOMBASE_MINIO` names its binary, or the PATH has it."""

from __future__ import annotations

import base64
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.running import started
from tests.support.servers.zookeeper_server import free_ports

_KEY = "tests-tests"
_START_MAX_S = 60.0
KMS_KEY = "tests-key"


@dataclass(frozen=True, kw_only=True)
class MinioServer:
    """A running MinIO, which encrypts with `KMS_KEY` where it is asked to."""

    port: int

    def environment(self) -> dict[str, str]:
        """What a process needs to know of it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
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


@pytest.fixture(scope="session")
def shared_minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    """One server for all tests of a process."""
    if (binary := os.environ.get("PHANTOMBASE_MINIO") or shutil.which("minio")) is None:
        pytest.skip("MinIO is NOT tested: PHANTOMBASE_MINIO names no binary, and none is on the PATH")
    port, console = free_ports(2)
    addresses = ["--address", f"127.0.0.1:{port}", "--console-address", f"127.0.0.1:{console}"]
    environment = {
        **os.environ,
        "MINIO_ROOT_USER": _KEY,
        "MINIO_ROOT_PASSWORD": _KEY,
        "MINIO_KMS_SECRET_KEY": f"{KMS_KEY}:{base64.b64encode(bytes(32)).decode()}",
    }
    command = [binary, "server", "--quiet", *addresses, str(tmp_path_factory.mktemp("minio"))]
    found = MinioServer(port=port)
    with started(command, found.new_bucket, (BotoCoreError, ClientError), _START_MAX_S, environment):
        yield found


@pytest.fixture
def minio(shared_minio: MinioServer, monkeypatch: pytest.MonkeyPatch) -> MinioServer:
    """A server that the environment names."""
    for name, value in shared_minio.environment().items():
        monkeypatch.setenv(name, value)
    return shared_minio
