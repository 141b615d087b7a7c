"""ZooKeeper over TLS with certificates on both sides, over SASL, and with a digest: others stay out."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.daemon.assemble import open_daemon
from phantombase.compactor_daemon.daemon.dispatch import Rules, Stop
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.zookeeper_claims import ring
from phantombase.compactor_daemon.fleet.zookeeper_server import start_server
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions, zookeeper_session
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import LockError, ZooKeeperError
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks import zookeeper_lock
from phantombase.timeline.locks.zookeeper_connection import ZooKeeperAccess
from phantombase.timeline.locks.zookeeper_lock import ZooKeeperLock, check_usable, parse_zookeeper_lock
from phantombase.timeline.table.table import Table
from tests.support.places import capture_logs
from tests.support.servers.zookeeper_server import START_MAX_S, TICK_MS, ZooKeeper, free_ports, wait_until

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
        access=ZooKeeperAccess(
            ca=str(secured.folder / f"{ca}.pem") if ca else None,
            cert=str(secured.folder / f"{own}.pem") if own else None,
            key=str(secured.folder / f"{own}.key") if own else None,
        ),
    )
    expected = nullcontext() if enters else pytest.raises(ZooKeeperError, match="TLS")
    with expected, zookeeper_session(options) as session:
        assert session.call(session.client.get_children_async, "/") == ["zookeeper"]


def test_lock_claims_and_doorbell_enter_by_the_same_words(secured: Secured, tmp_path: Path) -> None:
    """Over TLS: a table is written, its compaction is requested, and a daemon that is rung for executes it."""
    access = f"?ca={secured.folder}/ca.pem&cert={secured.folder}/client.pem&key={secured.folder}/client.key"
    check_fleet(tmp_path / "t", secured.hosts, access)


def test_a_lock_without_a_certificate_stays_out(secured: Secured) -> None:
    lock = replace(parse_zookeeper_lock(f"{secured.hosts}/locks/t"), timeout_s=1.5)
    with pytest.raises(LockError), lock.hold("try"):
        pass


@pytest.mark.parametrize(
    ("ca", "own", "enters"),
    [("ca", "client", True), ("other", "client", False), ("ca", None, False), (None, None, False)],
    ids=["both certificates", "another authority", "no certificate of ours", "no TLS"],
)
def test_a_lock_over_tls_is_tried_before_any_work(
    secured: Secured, ca: str | None, own: str | None, enters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a compaction would be merged first, and then wait for a minute."""
    if not enters:
        monkeypatch.setattr(zookeeper_lock, "_ENOUGH_S", 1.5)
    names = {
        "ca": f"{ca}.pem" if ca else None,
        "cert": f"{own}.pem" if own else None,
        "key": f"{own}.key" if own else None,
    }
    access = "&".join(f"{name}={secured.folder}/{file}" for name, file in names.items() if file)
    lock = parse_zookeeper_lock(f"{secured.hosts}/locks/tried?{access}")
    with nullcontext() if enters else pytest.raises(LockError, match=r"no session.*TLS"):
        check_usable(lock)


@pytest.fixture(scope="module")
def by_password(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server that takes only sessions of SASL, by DIGEST-MD5."""
    folder, (port,) = tmp_path_factory.mktemp("sasl"), free_ports(1)
    (folder / "jaas.conf").write_text(
        'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_me="secret"; };'
    )
    (folder / "user").write_text("me:secret\n")
    (folder / "wrong").write_text("me:wrong\n")
    settings: dict[str, object] = {
        "tickTime": TICK_MS,
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "sessionRequireClientSASLAuth": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", f"-Djava.security.auth.login.config={folder}/jaas.conf")
        server = start_server(folder / "server", port=port, settings=settings)
    try:
        server.wait_until_serving(START_MAX_S)
        yield Secured(hosts=f"127.0.0.1:{port}", folder=folder)
    finally:
        server.stop()


def test_lock_claims_and_doorbell_enter_by_a_password(by_password: Secured, tmp_path: Path) -> None:
    pytest.importorskip("puresasl")
    check_fleet(tmp_path / "t", by_password.hosts, f"?sasl=DIGEST-MD5&sasl-file={by_password.folder}/user")


@pytest.mark.filterwarnings("error")  # a thread that ends with a trace
@pytest.mark.parametrize("access", ["", "?sasl=DIGEST-MD5&sasl-file={}/wrong"])
def test_without_the_password_none_enters(by_password: Secured, access: str) -> None:
    pytest.importorskip("puresasl")
    options = ZooKeeperOptions.of(
        f"{by_password.hosts}{access.format(by_password.folder)}", connect_timeout_s=60.0, session_timeout_s=30.0
    )
    with pytest.raises(ZooKeeperError, match="user of SASL"), zookeeper_session(options):
        pytest.fail("entered")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("access", ["?sasl=DIGEST-MD5&sasl-file={}/wrong", ""], ids=["a wrong password", "none"])
def test_a_lock_by_a_password_is_tried_before_any_work(by_password: Secured, access: str) -> None:
    pytest.importorskip("puresasl")
    lock = parse_zookeeper_lock(f"{by_password.hosts}/locks/tried{access.format(by_password.folder)}")
    with pytest.raises(LockError, match="SASL"):
        check_usable(lock)


def test_lock_claims_and_doorbell_enter_by_a_digest(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """What they make is for its user; by another digest, or none, nothing is locked, rung or claimed."""
    for name in ("me", "other"):
        (tmp_path / name).write_text(f"{name}:secret\n")
        (tmp_path / name).chmod(0o600)
    hosts = f"{zookeeper.hosts}/{tmp_path.name}"
    check_fleet(tmp_path / "t", hosts, f"?digest-file={tmp_path}/me")
    for access in (f"?digest-file={tmp_path}/other", ""):
        lock = parse_zookeeper_lock(f"{hosts}/locks/t{access}")
        for enter in (check_usable, _hold):
            with pytest.raises(LockError, match=r"no right to it.*same digest"):
                enter(lock)
        with capture_logs() as logs:
            ring(Table.open(str(tmp_path / "t")), "20260101000000000", ZooKeeperOptions.of(f"{hosts}/fleet{access}"))
        (log,) = [log for log in logs if log["event"] != "zookeeper"]
        assert (log["event"], "refuses access" in log["error"]) == ("fleet_not_woken", True)


def _hold(lock: ZooKeeperLock) -> None:
    with lock.hold("try"):
        pytest.fail("entered")


def check_fleet(path: Path, hosts: str, access: str) -> None:
    """A daemon with its claims, a writer that rings, and the lock of both, all in one ZooKeeper."""
    rows, lock = pa.table({"id": ["a", "b"], "ts": [1, 1]}), f"zookeeper:{hosts}/locks/t{access}"
    write = writer(rows).table("t").key("id").ordering("ts").buckets(1).option(lock=lock)
    write.upsert(str(path))
    settings = DaemonSettings(
        who="daemon", output=OutputOptions(), attempt=AttemptOptions(), retry=RetryOptions(), order=DaemonOrder.EARLIEST
    )
    with open_daemon(
        [str(path)],
        rules=Rules(poll_s=600.0),
        settings=settings,
        execute=ExecuteOptions(executor=Executor.LOCAL),
        zookeeper=ZooKeeperOptions.of(f"{hosts}/fleet{access}", session_timeout_s=30.0),
        lock=lock,
        runner=LocalRunner(1),
    ) as daemon:
        thread = threading.Thread(target=daemon.run, daemon=True)
        thread.start()
        try:
            wait_until(lambda: daemon.trouble is None, 60.0)
            asked = write.schedule(fleet=f"{hosts}/fleet{access}", strategy=TriggerStrategy.ALWAYS).upsert(str(path))
            assert asked.after.scheduled is not None
            wait_until(lambda: bool(daemon.summary.done), 60.0)
        finally:
            daemon.stop(Stop.FINISH)
            thread.join(60.0)
    assert not Table.open(str(path)).load_timeline().pending_compactions
