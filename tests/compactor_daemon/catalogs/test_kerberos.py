"""A Hive Metastore with Kerberos: the catalog is that of a plain one, and each mistake is one error that says the way
out."""

from __future__ import annotations

import importlib.util
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.catalogs.metastore import Metastore, interface
from phantombase.compactor_daemon.catalogs.options import SyncOptions
from phantombase.compactor_daemon.catalogs.sync import sync_table
from phantombase.timeline.errors import StorageError, UsageError
from phantombase.timeline.table.table import Table
from tests.hudi.sync.case import plain
from tests.support.servers.hive_metastore import Kerberised, MemoryMetastore, running_metastore
from tests.support.servers.kdc import PROGRAMS, REALM, Kdc, path_of, running_kdc

SERVICE = f"hive/localhost@{REALM}"
WHO = f"?principal=hive/_HOST@{REALM}"
missing = [one for one in PROGRAMS if path_of(one) is None]
missing += ["gssapi (extra kerberos)"] if importlib.util.find_spec("gssapi") is None else []
with_kdc = pytest.mark.skipif(bool(missing), reason=f"missing: {', '.join(missing)} (Debian: krb5-kdc, krb5-user)")


def test_without_the_package_the_extra_is_named(
    memory_metastore: MemoryMetastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    store = Metastore.parse(memory_metastore.where + WHO)
    with pytest.raises(UsageError, match=r"needs the package gssapi; .*pip install 'phantombase\[kerberos\]'"):
        store.calls().__enter__()


def test_a_server_that_skips_kerberos_gets_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers COMPLETE at once has not shown who it is."""
    word = SimpleNamespace(kerberos=0, kerberos_principal=0, mutual_authentication=0, integrity=0, confidentiality=0)
    asked = {"SecurityContext": lambda **_: SimpleNamespace(step=lambda: b"token"), "Name": lambda *_: None}
    errors = SimpleNamespace(GSSError=KeyError)
    fake = SimpleNamespace(RequirementFlag=word, NameType=word, MechType=word, exceptions=errors, **asked)
    monkeypatch.setitem(sys.modules, "gssapi", fake)
    got = b""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            nonlocal got
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"\x05\x00\x00\x00\x00")
                while more := connection.recv(1000):
                    got += more

        thread = Thread(target=serve, daemon=True)
        thread.start()
        store = Metastore.parse(f"hive:127.0.0.1:{server.getsockname()[1]}{WHO}")
        with pytest.raises(StorageError, match="has not shown by Kerberos who it is"), store.calls() as calls:
            calls.databases()
        thread.join(60)
    assert b"token" in got
    assert b"get_all_databases" not in got


@pytest.fixture
def kdc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kdc]:
    """With the tickets of a user in the cache."""
    with running_kdc(tmp_path / "kdc") as server:
        monkeypatch.setenv("KRB5_CONFIG", str(server.config))
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/tickets")
        server.log_in("alice", server.keytab("alice"), tmp_path / "tickets")
        yield server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    partitions = [f"p{number % 3}" for number in range(6)]
    rows = pa.table({"id": [str(number) for number in range(6)], "p": partitions, "ts": [1] * 6})
    writer(rows).table("t").key("id").ordering("ts").partition("p").upsert(str(tmp_path / "t"))
    return tmp_path / "t"


def kept(store: Metastore, path: Path) -> Any:
    with store.calls() as calls:
        connection: Any = calls
        tables = sorted(calls.all_tables("default"), key=lambda one: one.name)
        with pytest.raises(interface().NoSuchObject):
            connection._client.get_partitions_by_names("default", "none", ["x" * 200_000])
        return [
            (plain(one.raw, path), sorted((plain(part.raw, path) for part in calls.partitions(one)), key=str))
            for one in tables
        ]


@pytest.mark.deep
@with_kdc
def test_the_catalog_is_that_of_a_plain_metastore(kdc: Kdc, path: Path, tmp_path: Path) -> None:
    """By the layers of SASL that wrap; requests and answers are larger than a frame."""
    found, properties = {}, tuple(f"p{number}={'x' * 3000}" for number in range(30))
    keytab = kdc.keytab(SERVICE)
    for protection in ("", "integrity", "privacy"):
        how = Kerberised(config=kdc.config, keytab=keytab, principal=SERVICE, protection=protection)
        with running_metastore(tmp_path / f"m{protection}", kerberos=how if protection else None) as server:
            to = f"hive:localhost:{server.port}{WHO if protection else ''}"
            result = sync_table(Table.open(str(path), reading=True), SyncOptions(to=to, table_properties=properties))
            assert [one.added for one in result.changed] == [3, 3, 3]
            found[protection] = kept(Metastore.parse(to), path)
    assert len(found[""]) == 3
    assert all(one == found[""] for one in found.values())


@pytest.mark.deep
@with_kdc
def test_each_mistake_is_one_error(
    kdc: Kdc, tmp_path: Path, memory_metastore: MemoryMetastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(to: str) -> list[str]:
        with Metastore.parse(to).calls() as calls:
            return calls.databases()

    how = Kerberised(config=kdc.config, keytab=kdc.keytab(SERVICE), principal=SERVICE)
    with running_metastore(tmp_path / "m", kerberos=how) as server:
        to = f"hive:localhost:{server.port}"
        assert asked(to + WHO) == ["default"]
        with pytest.raises(StorageError, match=r"did not answer.*hive:HOST:PORT\?principal=hive/_HOST@REALM"):
            asked(to)
        with pytest.raises(StorageError, match=r"found Server hive/127.0.0.1@\S+ not found .*_HOST is the host"):
            asked(f"hive:127.0.0.1:{server.port}{WHO}")
        kdc.keytab(f"other/localhost@{REALM}")
        with pytest.raises(StorageError, match=r"did not answer.*GSS initiate failed.*that it asks for Kerberos"):
            asked(f"{to}?principal=other/localhost@{REALM}")
        kdc.log_in("alice", tmp_path / "kdc/alice.keytab", tmp_path / "short", "-l", "1s")
        time.sleep(2)
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/short")
        with pytest.raises(StorageError, match=r"found Ticket expired. Run kinit"):
            asked(to + WHO)
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
        with pytest.raises(StorageError, match=r"found No Kerberos credentials available .* Run kinit"):
            asked(to + WHO)
        monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(tmp_path / "kdc/alice.keytab"))
        assert asked(to + WHO) == ["default"]
    kdc.keytab(f"hive/127.0.0.1@{REALM}")
    monkeypatch.setattr("phantombase.compactor_daemon.catalogs.metastore._CONNECT_MS", 1000)
    with pytest.raises(StorageError, match=r"did not answer.*that it asks for Kerberos"):
        asked(memory_metastore.where + WHO)
