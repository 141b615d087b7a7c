"""The sync of a catalog: what it asks and changes, when, and what becomes of it if another process is at work."""

from __future__ import annotations

import copy
import json
import re
import shutil
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.catalogs import metastore, sync
from phantombase.compactor_daemon.catalogs.options import Names, SyncOptions, SyncResult
from phantombase.compactor_daemon.catalogs.sync import sync_table
from phantombase.compactor_daemon.catalogs.tables import MARK, widens
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.unit_of_work import ServiceMeans
from phantombase.timeline.errors import (
    ConflictError,
    NoAnswerError,
    PhantombaseError,
    StorageError,
    UnsupportedError,
    UsageError,
)
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import LOCK
from tests.support.places import capture_logs
from tests.support.selection import for_each
from tests.support.servers.glue_catalog import MemoryGlue
from tests.support.servers.hive_metastore import MemoryMetastore

NAMES = ("t", "t_ro", "t_rt")
ASKS, ALTERS = "get_table_objects_by_name_req", "alter_table_with_environment_context"


def rows(ts: int, *partitions: str, **more: Any) -> pa.Table:
    columns = {name: pa.array([value] * len(partitions)) for name, value in more.items()}
    return pa.table({"id": partitions, "p": partitions, "ts": pa.array([ts] * len(partitions), pa.int64()), **columns})


def put(path: Path, ts: int, *partitions: str, **more: Any) -> None:
    made = writer(rows(ts, *partitions, **more))
    (made if path.exists() else made.table("t").key("id").partition("p").ordering("ts")).upsert(str(path))


def drop(path: Path, *partitions: str) -> None:
    names = ",".join(partitions)
    conf = {"hoodie.datasource.write.operation": "delete_partition"}
    writer(None).conf({**conf, "hoodie.datasource.write.partitions.to.delete": names}).write(str(path))


Catalog: TypeAlias = MemoryMetastore | MemoryGlue


def synced(path: Path, metastore: Catalog, **options: Any) -> SyncResult:
    return sync_table(open_table(path), SyncOptions(to=metastore.where, **options))


def shown(metastore: Catalog, name: str = "t") -> list[str]:
    return [value for (value,) in metastore.values("default", name)]


@pytest.fixture(params=["memory_metastore", "memory_glue"])
def catalog(request: pytest.FixtureRequest) -> Catalog:
    """Rules that hold for each kind."""
    found: Catalog = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def path(tmp_path: Path, memory_metastore: MemoryMetastore) -> Path:
    """A synced table with two partitions."""
    put(tmp_path / "t", 1, "a", "b")
    synced(tmp_path / "t", memory_metastore)
    memory_metastore.calls.clear()
    return tmp_path / "t"


def test_a_sync_that_finds_nothing_new_is_one_request(path: Path, memory_metastore: MemoryMetastore) -> None:
    """Also after a write to partitions that are there."""
    for ts in (2, 3):
        put(path, ts, "a", "b")
        assert synced(path, memory_metastore).changed == ()
    assert memory_metastore.calls == [ASKS, ASKS]


def test_only_new_partitions_are_sent(path: Path, memory_metastore: MemoryMetastore) -> None:
    put(path, 2, "a", "c")
    put(path, 3, "d")
    done = synced(path, memory_metastore)
    assert [(one.name, one.created, one.added, one.dropped) for one in done.tables] == [
        ("t_ro", False, 2, 0),
        ("t_rt", False, 2, 0),
        ("t", False, 2, 0),
    ]
    assert [shown(memory_metastore, name) for name in NAMES] == [["a", "b", "c", "d"]] * 3
    assert memory_metastore.calls.count("add_partitions_req") == 3
    assert "get_partitions" not in memory_metastore.calls


def test_dropped_and_replaced_partitions_go_and_may_come_back(path: Path, memory_metastore: MemoryMetastore) -> None:
    put(path, 2, "c")
    drop(path, "a", "b")
    put(path, 3, "b")
    synced(path, memory_metastore)
    assert shown(memory_metastore) == ["b", "c"]
    writer(rows(4, "c")).conf({"hoodie.datasource.write.operation": "insert_overwrite_table"}).write(str(path))
    assert [one.dropped for one in synced(path, memory_metastore).tables] == [1, 1, 1]
    assert shown(memory_metastore) == ["c"]


@pytest.fixture
def archived(path: Path) -> Path:
    """A table with a partition more, and one deleted, whose writes are archived."""
    put(path, 2, "c")
    drop(path, "b")
    for ts in range(3, 9):
        put(path, ts, "a")
    retained = CleanOptions(policy=Policy.COMMITS, retain=1, floor_s=0)
    assert clean_table(open_table(path), retained, LOCK).instant
    done = archive_table(open_table(path), ArchiveOptions(min_instants=2, max_instants=3), LOCK)
    assert not {i.requested_time for i in open_table(path).load_timeline().instants if i.family == "replacecommit"}
    assert done.archived
    return path


def test_writes_that_are_archived_are_read_there(archived: Path, memory_metastore: MemoryMetastore) -> None:
    assert [(one.added, one.dropped) for one in synced(archived, memory_metastore).tables] == [(1, 1)] * 3
    assert shown(memory_metastore) == ["a", "c"]
    assert "get_partitions" not in memory_metastore.calls


def test_without_a_known_mark_all_partitions_are_compared(archived: Path, memory_metastore: MemoryMetastore) -> None:
    """Also what others have moved; the folder of a deleted partition is none."""
    (archived / "b").mkdir(exist_ok=True)
    shutil.copy(archived / "a/.hoodie_partition_metadata", archived / "b")
    for name in NAMES:
        memory_metastore.parameters("default", name)[MARK] = "20200101000000000"
    there = memory_metastore.parts["default", "t"]
    there["a",].sd.location = "file:/elsewhere"
    there["x",] = copy.deepcopy(there["a",])
    there["x",].values = ["x"]
    done = {one.name: one for one in synced(archived, memory_metastore).tables}
    assert (done["t"].moved, done["t_ro"].moved) == (1, 0)
    assert shown(memory_metastore) == ["a", "c"]
    assert memory_metastore.parts["default", "t"]["a",].sd.location == f"file:{archived}/a"
    memory_metastore.clear()
    synced(archived, memory_metastore)
    assert shown(memory_metastore) == ["a", "c"]


def test_the_mark_moves_before_its_write_is_archived(path: Path, memory_metastore: MemoryMetastore) -> None:
    """Once in many syncs that change nothing else: the next one then need not compare all partitions."""
    first = memory_metastore.table("default", "t").parameters[MARK]
    for ts in range(2, 24):
        put(path, ts, "a")
        synced(path, memory_metastore)
    assert memory_metastore.table("default", "t").parameters[MARK] > first
    assert memory_metastore.calls.count(ALTERS) in (3, 6)
    assert "get_partitions" not in memory_metastore.calls


def test_a_pending_write_holds_the_mark_back(path: Path, memory_metastore: MemoryMetastore) -> None:
    """It may complete after later ones, and its partitions must be found then."""
    put(path, 2, "c")
    timeline = open_table(path).load_timeline()
    first, last = sorted(timeline.completed_writes)
    (path / ".hoodie/timeline" / f"{int(last) - 1:017d}.deltacommit.requested").write_bytes(b"")
    synced(path, memory_metastore)
    assert shown(memory_metastore) == ["a", "b", "c"]
    assert memory_metastore.table("default", "t").parameters[MARK] == first


def test_columns_are_added_and_widened_and_never_narrowed(path: Path, memory_metastore: MemoryMetastore) -> None:
    put(path, 2, "a", v=pa.scalar(1, pa.int32()).as_py())
    assert [one.columns for one in synced(path, memory_metastore).tables] == [("v",)] * 3
    table = memory_metastore.table("default", "t_ro")
    next(column for column in table.sd.cols if column.name == "v").type = "string"
    put(path, 3, "new", v=1)
    memory_metastore.calls.clear()
    with pytest.raises(UnsupportedError, match=r"default.t_ro.v; expected string; found bigint. Drop the table"):
        synced(path, memory_metastore)
    assert memory_metastore.calls == [ASKS]


@for_each(
    [
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("float", "double", True),
        ("bigint", "string", True),
        ("string", "int", False),
        ("decimal(10,2)", "decimal(12,3)", True),
        ("decimal(10,2)", "decimal(10,3)", False),
        ("array<int>", "array<bigint>", True),
        ("map<string,int>", "map<string,struct<a:int>>", False),
        (
            "struct<a:int,b:array<struct<c:decimal(5,1)>>>",
            "struct<a:int,b:array<struct<c:decimal(5,1),d:int>>,e:int>",
            True,
        ),
        ("struct<a:int,b:int>", "struct<a:int>", False),
        ("boolean", "int", False),
    ]
)
def test_which_types_widen(old: str, new: str, expected: bool) -> None:
    assert widens(old, new) is expected


def test_another_table_of_that_name_is_left_alone(tmp_path: Path, catalog: Catalog) -> None:
    path = tmp_path / "t"
    put(path, 1, "a")
    for change, words in (
        ({"location": "file:/data/other"}, r"another location; at default.t_rt; expected .*/t; found /data/other. Ch"),
        ({"unpartitioned": True}, r"has other partition columns; at default.t_rt; expected p; found none. Drop the ta"),
        ({"plain": True}, r"is no Hudi table; at default.t_rt; expected a table of Hudi's; found .*TextInputFormat"),
    ):
        catalog.clear()
        synced(path, catalog)
        catalog.change("t_rt", **change)
        catalog.calls.clear()
        with pytest.raises(ConflictError, match=words):
            synced(path, catalog)
        assert catalog.calls == [catalog.asks]
    assert synced(path, catalog, name="u").changed


def test_two_processes_that_sync_at_once(tmp_path: Path, catalog: Catalog) -> None:
    """At each request of the first sync, another one comes in between; and a partition is dropped meanwhile."""
    path, at, alone = tmp_path / "t", 0, {"strategy": Names.RT}
    put(path, 1, "a", "b")
    while True:
        asked = 0
        catalog.clear()

        def other(call: str, at: int = at) -> None:
            nonlocal asked
            asked += 1
            if asked == at + 1:
                drop(path, "b")
                put(path, 100 + at, f"new{at}")
                synced(path, catalog, **alone)

        catalog.before = other
        synced(path, catalog, **alone)
        catalog.before = lambda _: None
        synced(path, catalog, **alone)
        if asked <= at:
            break
        assert shown(catalog) == ["a", *(f"new{n}" for n in range(at + 1))], at
        put(path, 200 + at, "b")
        at += 1
    assert at > 3


def test_a_sync_that_dies_is_done_again(tmp_path: Path, catalog: Catalog) -> None:
    """At each of its requests: nothing is marked as synced that is not there."""
    path, at = tmp_path / "t", 0
    put(path, 1, "a", "b")
    while True:
        asked = 0
        catalog.clear()

        def dies(call: str, at: int = at) -> None:
            nonlocal asked
            asked += 1
            if asked > at:
                raise ValueError(call)

        catalog.before = dies
        died = None
        try:
            synced(path, catalog)
        except PhantombaseError as error:
            died = str(error)
        catalog.before = lambda _: None
        if died is None:
            break
        assert "did not answer" in died
        synced(path, catalog)
        assert [shown(catalog, name) for name in NAMES] == [["a", "b"]] * 3
        assert all(MARK in catalog.parameters("default", name) for name in NAMES)
        at += 1
    assert at > 10


def test_many_partitions_go_to_two_tables_at_once(
    tmp_path: Path, memory_metastore: MemoryMetastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No table is marked if one of them fails."""
    monkeypatch.setattr(sync, "_FEW", 1)
    put(tmp_path / "t", 1, "a", "b")

    def dies(call: str) -> None:
        if memory_metastore.calls.count("add_partitions_req") == 2:
            raise ValueError(call)

    memory_metastore.before = dies
    with pytest.raises(StorageError, match="did not answer"):
        synced(tmp_path / "t", memory_metastore)
    assert not any(MARK in memory_metastore.parameters("default", name) for name in NAMES)
    memory_metastore.before = lambda _: None
    synced(tmp_path / "t", memory_metastore)
    assert [shown(memory_metastore, name) for name in NAMES] == [["a", "b"]] * 3


def test_a_write_stands_whatever_becomes_of_its_sync(path: Path, memory_metastore: MemoryMetastore) -> None:
    """It is a warning, and the next sync makes up for it."""
    with capture_logs() as logs:
        done = writer(rows(2, "c")).sync("hive:127.0.0.1:1").upsert(str(path))
    assert "connection refused" in str(done.after.error)
    assert [log["service"] for log in logs if log["event"] == "service_failed"] == ["sync"]
    assert "service failed: sync," in (shows := " ".join(status(path).split()))
    assert re.search(r"sync, \S+ s ago, failing for \S+ s: the Hive Metastore did not answer", shows)
    done = writer(rows(3, "d")).sync(memory_metastore.where).upsert(str(path))
    assert (done.after.error, done.after.synced) == (None, 3)
    assert shown(memory_metastore) == ["a", "b", "c", "d"]
    assert "failed" not in status(path)


def status(path: Path) -> str:
    return CliRunner().invoke(app, ["status", str(path), "--brief"]).stdout


def test_a_daemon_syncs_as_a_service(path: Path, memory_metastore: MemoryMetastore) -> None:
    put(path, 2, "c")
    line = ["run", str(path), "--once", "--services", "sync", "--sole-writer", "--executor", "local", "--json"]
    assert isinstance(CliRunner().invoke(app, line).exception, UsageError)
    ran = CliRunner().invoke(app, [*line, "--sync-to", memory_metastore.where])
    assert ran.exit_code == 0, ran.output
    (done,) = json.loads(ran.stdout)["services"]
    assert (done["service"], done["instants"]) == ("sync", 3)
    assert shown(memory_metastore) == ["a", "b", "c"]


def test_the_command(path: Path, memory_metastore: MemoryMetastore) -> None:
    put(path, 2, "c", more="x")
    line = ["sync", str(path), "--to", memory_metastore.where]
    tried = CliRunner().invoke(app, [*line, "--dry-run", "--json"])
    assert {one["name"]: one["added"] for one in json.loads(tried.stdout)["tables"]} == dict.fromkeys(NAMES, 1)
    assert set(memory_metastore.calls) <= {ASKS, "get_partitions_by_names"}
    assert "would be synced" in CliRunner().invoke(app, [*line, "--dry-run"]).output
    assert "synced in" in CliRunner().invoke(app, line).output
    assert "up to date" in CliRunner().invoke(app, line).output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": None}, "no catalog is named"),
        ({"to": "jdbc:hive2://a"}, "unknown kind of catalog"),
        ({"to": "glue:Europe"}, "not a catalog of AWS Glue"),
        ({"to": "hive:"}, "not a Hive Metastore"),
        ({"to": "hive:a?principal=hive/_HOST"}, "not the Kerberos principal .* expected SERVICE/HOST@REALM"),
        ({"partition_fields": ("q",)}, "not the partition columns of the table; .* expected p; found q"),
    ],
)
def test_a_mistake_is_one_error(
    options: dict[str, Any], words: str, path: Path, memory_metastore: MemoryMetastore
) -> None:
    with pytest.raises(UsageError, match=words):
        sync_table(open_table(path), SyncOptions(**{"to": memory_metastore.where, **options}))


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({}, r"needs its metastore; expected hoodie.datasource.hive_sync.metastore.uris=thrift://HOST:PORT"),
        (
            {"mode": "other"},
            r"through its metastore only; expected hoodie.datasource.hive_sync.mode=hms; found .*=other",
        ),
        ({"metastore.uris": "http://a"}, r"hive_sync.metastore.uris; expected .*; found http://a"),
        (
            {"partition_extractor_class": "of.ours.Extractor"},
            r"partition_extractor_class; expected .*; found of.ours.Extractor",
        ),
        ({"create_managed_table": "true"}, r"dropping one removes no data; expected .*=false; found .*=true"),
        ({"bucket_sync": "true"}, r"the catalog has no buckets; expected .*=false; found .*=true"),
    ],
)
def test_a_job_that_asks_for_another_sync_is_refused_before_it_writes(
    conf: dict[str, str], words: str, path: Path
) -> None:
    before = open_table(path).load_timeline()
    named = {f"hoodie.datasource.hive_sync.{name}": value for name, value in conf.items()}
    with pytest.raises(PhantombaseError, match=words):
        writer(rows(2, "c")).conf({"hoodie.datasource.hive_sync.enable": "true", **named}).upsert(str(path))
    assert open_table(path).load_timeline() == before


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_metastore_with_tls(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its certificate must be trusted; and what is spelled wrong ends as an error."""
    file, name = tmp_path / "both.pem", ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(file), "-out", "cert.pem", *name]
    subprocess.run(make, cwd=tmp_path, check=True, capture_output=True)
    certificate = tmp_path / "cert.pem"
    file.write_text(file.read_text() + certificate.read_text())
    metastore = MemoryMetastore(file)
    try:
        options = SyncOptions(to=f"hives:127.0.0.1:{metastore.port}")
        with pytest.raises(StorageError, match=r"did not answer; at hives:127.0.0.1:\d+; .*certificate"):
            sync_table(open_table(path), options)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert sync_table(open_table(path), options).changed
    finally:
        metastore.close()


def test_a_metastore_that_is_down_is_one_error_and_the_next_server_is_asked(
    path: Path, memory_metastore: MemoryMetastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or takes connections and never answers, as one that expects TLS."""
    monkeypatch.setattr(metastore, "_FIRST_MS", 200)
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        pytest.raises(StorageError, match=r"did not answer.*timed out"),
    ):
        sync_table(open_table(path), SyncOptions(to=f"hive:127.0.0.1:{mute.getsockname()[1]}"))
    why = r"did not answer; at hive:127.0.0.1:1; .*connection refused.*hive:HOST:PORT\?principal=hive/_HOST@REALM"
    with pytest.raises(StorageError, match=why):
        sync_table(open_table(path), SyncOptions(to="hive:127.0.0.1:1"))
    done = sync_table(open_table(path), SyncOptions(to=f"hive:127.0.0.1:1,127.0.0.1:{memory_metastore.port}"))
    assert done.changed == ()


def test_a_catalog_that_does_not_answer_holds_up_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each sync of a daemon wait the services of other tables: a dead catalog takes a tenth of the time at most.
    What fails quickly, or is refused, is asked each time, and so are other catalogs."""
    now, asked, errors = 0.0, list[str](), dict[str, tuple[str, float]]()

    def one(table: Table, options: SyncOptions, *, dry_run: bool) -> SyncResult:
        nonlocal now
        asked.append(to := str(options.to))
        what, took_s = errors.get(to, ("", 0.0))
        now += took_s
        if what:
            raise (StorageError if what == "refused" else NoAnswerError)(what, path=to, found="a timeout")
        return SyncResult(catalog=to, database="d")

    monkeypatch.setattr(sync, "sync_table", one)
    monkeypatch.setattr(sync, "time", SimpleNamespace(monotonic=lambda: now))
    table = create_table(LocalStorage(str(tmp_path)), NewTable(name="t", version=9, key_fields=("id",)))

    def ask(to: str) -> str:
        asked.clear()
        try:
            sync.run_service(table, SyncOptions(to=to), LOCK, ServiceMeans())
        except StorageError as error:
            return f"{error.what}: {error.found}"
        return "done"

    errors |= {
        "hive:dead": ("it did not answer", 30.0),
        "hive:quick": ("it did not answer", 4.0),
        "hive:other": ("refused", 30.0),
    }
    for to in errors:
        ask(to)
    assert ask("hive:dead") == "it did not answer: a timeout; this process asks again in 236 s"
    assert not asked
    for to in ("hive:quick", "hive:other", "hive:well"):
        ask(to)
        assert asked == [to]
    errors.clear()
    now += 270.0
    assert [ask("hive:dead"), *asked] == ["done", "hive:dead"]
