"""Publishing to Iceberg by catalogs of each kind: REST, Hive's metastore and AWS Glue; and what they do at a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import boto3
import pytest

from phantombase.compactor_daemon.catalogs import iceberg_snapshot
from phantombase.timeline.errors import ConflictError, StorageError
from tests.support.iceberg_tables import Lake, history
from tests.support.servers.glue_catalog import REGION, Fault, MemoryGlue
from tests.support.servers.hive_metastore import HiveMetastore, running_metastore
from tests.support.servers.iceberg_rest import IcebergRest, running_rest

pytestmark = [pytest.mark.deep, pytest.mark.interop]


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergRest]:
    with running_rest(tmp_path_factory.mktemp("rest")) as server:
        yield server


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    with running_metastore(tmp_path_factory.mktemp("hive") / "metastore", locks=True) as server:
        yield server


def rest_lake(folder: Path, server: IcebergRest) -> Lake:
    return Lake(folder, given={"type": "rest", "uri": server.uri})


def hive_lake(folder: Path, server: HiveMetastore) -> Lake:
    uri, warehouse = f"thrift://127.0.0.1:{server.port}", f"file://{folder}/iceberg"
    return Lake(folder, given={"type": "hive", "uri": uri, "warehouse": warehouse})


def glue_lake(folder: Path, server: MemoryGlue, monkeypatch: pytest.MonkeyPatch) -> Lake:
    made = boto3.Session.client
    monkeypatch.setattr(boto3.Session, "client", lambda *given, **how: server.client(lambda: made(*given, **how)))
    warehouse = f"file://{folder}/iceberg"
    return Lake(folder, given={"type": "glue", "glue.region": REGION, "warehouse": warehouse})


@pytest.fixture(params=["rest", "hive", "glue"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A published table; its name in the catalog is of this test."""
    server = request.getfixturevalue("memory_glue" if request.param == "glue" else request.param)
    made: dict[str, Callable[[], Lake]] = {
        "rest": lambda: rest_lake(tmp_path, server),
        "hive": lambda: hive_lake(tmp_path, server),
        "glue": lambda: glue_lake(tmp_path, server, monkeypatch),
    }
    found = made[request.param]()
    found.name = tmp_path.name.lower()
    found.put("a1", "b1", "c1")
    synced(found)
    return found


def synced(lake: Lake) -> Any:
    """In a process that has read no manifest."""
    iceberg_snapshot._seen.clear()
    return lake.sync(name=lake.name)


def test_after_each_step(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each kind, among them new columns, cleans, rollbacks and a restore: the catalog's readers have the rows."""
    monkeypatch.setattr(iceberg_snapshot, "_LEAST", 2)
    done = list[str]()
    for name, step in [*history(lake, 3505, 20), *history(lake, 14, 15)]:
        done.append(name)
        try:
            step()
            synced(lake)
            lake.check()
            lake.check_readable()
            assert not synced(lake).changed
        except BaseException as error:
            error.add_note(f"steps: {done}")
            raise


def test_it_is_dropped_in_between(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a sync, and just before its commit."""
    lake.catalog.drop_table(("default", lake.name))
    synced(lake)
    lake.check()
    kind, others = type(lake.catalog), [1]
    real = kind.commit_table

    def commit_table(*given: Any) -> Any:
        if others and others.pop():
            lake.catalog.drop_table(("default", lake.name))
        return real(*given)

    lake.put("a1", "d1")
    lake.compact()
    monkeypatch.setattr(kind, "commit_table", commit_table)
    synced(lake)
    lake.check()
    assert not synced(lake).changed


def test_of_two_processes_the_later_looks_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, others = type(lake.catalog), [1]
    real = kind.commit_table

    def commit_table(*given: Any) -> Any:
        if others and others.pop():
            lake.put("b1", "c2")
            lake.compact()
            assert synced(lake).changed
        return real(*given)

    lake.put("a1", "c1")
    lake.compact()
    monkeypatch.setattr(kind, "commit_table", commit_table)
    assert not synced(lake).changed
    lake.check()


@pytest.mark.parametrize("lands", [False, True])
def test_a_death_at_the_commit_is_made_good(lands: bool, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.check_deaths(type(lake.catalog), lambda: synced(lake), monkeypatch, lands=lands)


@pytest.mark.parametrize("code", [0, 409, 500, 502, 503, 504])
def test_lost_answers_of_a_rest_server(code: int, tmp_path: Path, rest: IcebergRest) -> None:
    """Also of the commit that makes the table. The state is published, and its files stay."""
    lake = rest_lake(tmp_path, rest)
    lake.name = f"lost{code}"
    lake.put("a1", "b1")
    for _ in range(2):
        rest.lose(code)
        with nullcontext() if code == 409 else pytest.raises(StorageError, match="the Iceberg catalog did not answer"):
            synced(lake)
        lake.put("a1", "b1")
        lake.compact()
        lake.clean()
        lake.check_readable()
        synced(lake)
        lake.check()
        lake.put("a1", "b1")
        lake.compact()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("InternalServiceException", "found internal service"),
        ("ThrottlingException", "found throttling"),
        ("ConcurrentModificationException", ""),
    ],
)
@pytest.mark.parametrize("lost", [False, True])
def test_faults_of_glue(
    code: str, words: str, lost: bool, tmp_path: Path, memory_glue: MemoryGlue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What took effect is known again: its client repeats what was lost, and meets another version of the table."""
    lake = glue_lake(tmp_path, memory_glue, monkeypatch)
    lake.put("a1", "b1")
    synced(lake)
    lake.put("a1", "b1")
    lake.compact()
    memory_glue.faults = {"UpdateTable": [Fault(code, lost=lost)]}
    with pytest.raises(StorageError, match=words) if words else nullcontext():
        synced(lake)
    assert memory_glue.faults == {"UpdateTable": []}
    lake.put("a1", "b1")
    lake.compact()
    lake.clean()
    lake.check_readable()
    synced(lake)
    lake.check()


def test_a_metastore_whose_lock_is_taken(tmp_path: Path, hive: HiveMetastore) -> None:
    """By a process that died: the sync gives up, and says so."""
    lake = hive_lake(tmp_path, hive)
    lake.name = "locked"
    lake.given |= {f"lock-check-{name}": value for name, value in _SOON.items()}
    lake.put("a1")
    synced(lake)
    lake.put("a1")
    lake.compact()
    catalog = lake.catalog
    with catalog._client as client:
        lock = client.lock(catalog._create_lock_request("default", lake.name))
    with pytest.raises(ConflictError, match=r"or hold its lock; .*found 5 tries; the last one: Failed to acquire lock"):
        synced(lake)
    lake.clean()
    lake.check_readable()
    with catalog._client as client:
        client.unlock(import_module("hive_metastore.ttypes").UnlockRequest(lockid=lock.lockid))
    synced(lake)
    lake.check()


_SOON = {"min-wait-time": "0.01", "max-wait-time": "0.02", "retries": "2"}
