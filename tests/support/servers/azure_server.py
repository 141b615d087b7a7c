"""Azurite, Microsoft's own emulator of Azure's blobs, as a process of this machine.

`$PHANTOMBASE_AZURITE` names its folder (`node_modules` is in it); without it npm installs it into
`~/.cache/phantombase/azurite` when it is first asked for. Without Node its tests are skipped."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from filelock import FileLock

from tests.support.compaction_steps import started
from tests.support.places import NO_AUTHORITY
from tests.support.servers.zookeeper_server import free_ports

AZURITE = "azurite@3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The one account of every Azurite, and its published key."""
_START_MAX_S = 120.0


@dataclass(frozen=True, kw_only=True)
class AzureServer:
    """A running Azurite."""

    port: int

    @property
    def endpoint(self) -> str:
        """What stands for https://ACCOUNT.blob.core.windows.net."""
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def environment(self) -> dict[str, str]:
        """What a process needs to know of it."""
        access = {"AZURE_STORAGE_ENDPOINT": self.endpoint, "AZURE_STORAGE_ACCOUNT_KEY": KEY}
        return {**access, "AZURE_ALLOW_HTTP": "true", **NO_AUTHORITY}

    def new_bucket(self) -> str:
        """An empty container."""
        name = f"c-{uuid.uuid4().hex[:12]}"
        self._send(name, b"", {}, "restype=container")
        return name

    def url(self, bucket: str, prefix: str) -> str:
        """A place in a container."""
        return f"abfs://{bucket}@{ACCOUNT}.dfs.core.windows.net/{prefix}"

    def put(self, key: str, data: bytes, **metadata: str) -> None:
        """Puts a blob as another client would."""
        more = {f"x-ms-meta-{name}": value for name, value in metadata.items()}
        self._send(quote(key), data, {"x-ms-blob-type": "BlockBlob", **more}, "")

    def upload(self, folder: Path, bucket: str, prefix: str) -> str:
        """A folder's files below a prefix of a container; returns its URL."""
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".crc":
                self.put(f"{bucket}/{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return self.url(bucket, prefix)

    def _send(self, path: str, data: bytes, headers: dict[str, str], query: str) -> None:
        """A PUT with a signature of the account's key."""
        named = {**headers, "x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        own = "\n".join(f"{name}:{value}" for name, value in sorted(named.items()))
        resource = f"/{ACCOUNT}/{ACCOUNT}/{path}" + (f"\n{query.replace('=', ':')}" if query else "")
        kind = "application/octet-stream"
        text = f"PUT\n\n\n{len(data) or ''}\n\n{kind}\n\n\n\n\n\n\n{own}\n{resource}"
        signed = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
        named |= {"Authorization": f"SharedKey {ACCOUNT}:{signed}", "Content-Type": kind}
        url = f"{self.endpoint}/{path}" + (f"?{query}" if query else "")
        urlopen(Request(url, data=data, method="PUT", headers=named)).close()


@contextmanager
def azure_server() -> Iterator[AzureServer]:
    """A server on a free port of this machine, which keeps everything in its memory."""
    (port,) = free_ports(1)
    command = ["node", str(_home() / "node_modules/azurite/dist/src/blob/main.js"), "--blobHost", "127.0.0.1"]
    options = ["--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
    found = AzureServer(port=port)
    with started([*command, *options], found.new_bucket, (URLError, OSError), _START_MAX_S):
        yield found


def _home() -> Path:
    """The folder in which Azurite is installed."""
    if given := os.environ.get("PHANTOMBASE_AZURITE"):
        return Path(given)
    home = Path.home() / ".cache/phantombase/azurite"
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / "lock"):
        if not (home / "ready").exists():
            subprocess.run(["npm", "install", "--no-audit", "--no-fund", AZURITE], cwd=home, check=True)
            (home / "ready").touch()
    return home


@pytest.fixture(scope="session")
def shared_azure() -> Iterator[AzureServer]:
    """One server for all tests of a process."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no Node here: Azure is NOT tested; install Node and npm")
    with azure_server() as server:
        yield server


@pytest.fixture
def azure(shared_azure: AzureServer, monkeypatch: pytest.MonkeyPatch) -> AzureServer:
    """A server that the environment names."""
    for name, value in shared_azure.environment().items():
        monkeypatch.setenv(name, value)
    return shared_azure
