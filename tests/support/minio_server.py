"""MinIO as a server of tests, where its program is on the PATH or named by `PHANTOMBASE_MINIO`: it decides real races.

Built by `go install github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c`; about 110 MB.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import boto3
import pytest

_KEY = "minioadmin"
_START_S = 60


@dataclass(frozen=True)
class MinioServer:
    """A running one."""

    port: int

    def new_bucket(self) -> str:
        """An empty one."""
        name = f"b-{uuid.uuid4().hex[:12]}"
        boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id=_KEY,
            aws_secret_access_key=_KEY,
        ).create_bucket(Bucket=name)
        return name

    def environment(self) -> dict[str, str]:
        """What a process needs to know of it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }


@pytest.fixture(scope="session")
def shared_minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    """One server for all tests of a process; skips without its program."""
    program = os.environ.get("PHANTOMBASE_MINIO") or shutil.which("minio")
    if program is None:
        pytest.skip("no MinIO: its program is not on the PATH, and PHANTOMBASE_MINIO does not name it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"MINIO_ROOT_USER": _KEY, "MINIO_ROOT_PASSWORD": _KEY, "MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}
    folder = tmp_path_factory.mktemp("minio")
    command = [program, "server", "--address", f"127.0.0.1:{port}", str(folder)]
    with (folder.parent / "minio.log").open("wb") as log:
        server = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for(port, server, Path(log.name))
        yield MinioServer(port)
    finally:
        server.terminate()
        server.wait()


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urlopen(f"http://127.0.0.1:{port}/minio/health/ready").close()
        except (URLError, ConnectionError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"MinIO did not start: {log.read_text(errors='replace')[-2000:]}")


@pytest.fixture
def minio(shared_minio: MinioServer, monkeypatch: pytest.MonkeyPatch) -> MinioServer:
    """A server that the environment names."""
    for name, value in shared_minio.environment().items():
        monkeypatch.setenv(name, value)
    return shared_minio
