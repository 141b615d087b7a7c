"""ZooKeeper over TLS, certificates on both sides: who has none, or trusts another authority, stays out."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from phantombase.compactor_daemon.zookeeper.server_process import start_server
from phantombase.compactor_daemon.zookeeper.session import ZooKeeperOptions, zookeeper_session
from phantombase.timeline.errors import ZooKeeperError
from tests.support.zookeeper_server import START_MAX_S, TICK_MS, free_ports

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, kw_only=True)
class Secured:
    """A server that asks for certificates of the authority in `folder`/ca.pem."""

    hosts: str
    folder: Path


def openssl(folder: Path, *arguments: str) -> None:
    """Runs it in a folder."""
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=120)


def authority(folder: Path, name: str) -> None:
    """`name`.pem and .key, which sign themselves."""
    subject = ("-subj", f"/CN={name}", "-days", "2")
    openssl(folder, "req", "-x509", *_NEW_KEY, *subject, "-keyout", f"{name}.key", "-out", f"{name}.pem")


def certificate(folder: Path, name: str) -> None:
    """`name`.pem and .key, signed by ca."""
    alternative = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
    openssl(folder, "req", *_NEW_KEY, *alternative, "-keyout", f"{name}.key", "-out", f"{name}.csr")
    sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-copy_extensions", "copy")
    openssl(folder, "x509", "-req", *sign, "-in", f"{name}.csr", "-out", f"{name}.pem")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One for all tests here."""
    folder, (port, plain) = tmp_path_factory.mktemp("tls"), free_ports(2)
    for name in ("ca", "other"):
        authority(folder, name)
    for name in ("server", "client"):
        certificate(folder, name)
    (folder / "both.pem").write_text((folder / "server.key").read_text() + (folder / "server.pem").read_text())
    settings: dict[str, object] = {
        "tickTime": TICK_MS,
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": folder / "both.pem",
        "ssl.trustStore.location": folder / "ca.pem",
        "ssl.clientAuth": "need",
    }
    server = start_server(folder / "server", port=plain, settings=settings)
    try:
        server.wait_until_serving(START_MAX_S)
        yield Secured(hosts=f"127.0.0.1:{port}", folder=folder)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("ca", "own", "enters"),
    [("ca", "client", True), ("other", "client", False), ("ca", None, False), (None, None, False)],
    ids=["both certificates", "another authority", "no certificate of ours", "no TLS"],
)
def test_who_enters(secured: Secured, ca: str | None, own: str | None, enters: bool) -> None:
    """With the right certificates all works; else the error asks about TLS."""
    options = ZooKeeperOptions(
        hosts=secured.hosts,
        session_timeout_s=30.0 if enters else 2.0,
        connect_timeout_s=60.0 if enters else 1.5,
        ca=str(secured.folder / f"{ca}.pem") if ca else None,
        certfile=str(secured.folder / f"{own}.pem") if own else None,
        keyfile=str(secured.folder / f"{own}.key") if own else None,
    )
    expected = nullcontext() if enters else pytest.raises(ZooKeeperError, match="TLS")
    with expected, zookeeper_session(options) as session:
        assert session.call(session.client.get_children_async, "/") == ["zookeeper"]
