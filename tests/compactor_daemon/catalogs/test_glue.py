"""What AWS Glue has of its own: limits of a request, errors of single partitions, throttling, versions of tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.catalogs.catalog import CatalogPartition
from phantombase.compactor_daemon.catalogs.options import Names, SyncOptions, SyncResult, open_catalog
from phantombase.compactor_daemon.catalogs.sync import sync_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.fleet.catalog import CatalogListing
from phantombase.timeline.errors import PhantombaseError, StorageError
from phantombase.timeline.storage.storage_options import StorageOptions
from tests.support.compaction_steps import open_table
from tests.support.servers.glue_catalog import Fault, MemoryGlue

CREATES, UPDATES, DROPS, GETS = (
    "BatchCreatePartition",
    "BatchUpdatePartition",
    "BatchDeletePartition",
    "BatchGetPartition",
)
TABLE = "UpdateTable"


def put(path: Path, ts: int, *partitions: str, **more: Any) -> None:
    columns = {name: pa.array([value] * len(partitions)) for name, value in more.items()}
    rows = pa.table({"id": partitions, "p": partitions, "ts": pa.array([ts] * len(partitions), pa.int64()), **columns})
    made = writer(rows)
    (made if path.exists() else made.table("t").key("id").partition("p").ordering("ts")).upsert(str(path))


def synced(path: Path, catalog: MemoryGlue, **options: Any) -> SyncResult:
    return sync_table(open_table(path), SyncOptions(to=catalog.where, strategy=Names.RT, **options))


@pytest.fixture
def path(tmp_path: Path, memory_glue: MemoryGlue) -> Path:
    """A synced table with two partitions."""
    put(tmp_path / "t", 1, "a", "b")
    synced(tmp_path / "t", memory_glue)
    memory_glue.calls.clear()
    return tmp_path / "t"


def test_no_version_of_a_table_without_a_change(path: Path, memory_glue: MemoryGlue) -> None:
    """And one with it, which replaces the one before; `archive` keeps that."""
    put(path, 2, "a")
    assert synced(path, memory_glue).changed == ()
    assert memory_glue.calls == [memory_glue.asks]
    put(path, 3, "c", v=1)
    assert synced(path, memory_glue).changed
    assert memory_glue.calls.count(TABLE) == 1
    put(path, 4, "c", v=1, w="x")
    synced(path, memory_glue, archive=True)
    assert memory_glue.archived == [False, False, True]
    columns = [
        [one["Name"] for one in p["StorageDescriptor"]["Columns"]][-2:] for p in memory_glue.partitions("default", "t")
    ]
    assert columns == [["v", "w"]] * 3


def test_requests_have_no_more_partitions_than_glue_takes(path: Path, memory_glue: MemoryGlue) -> None:
    """`MemoryGlue` refuses larger ones."""
    values = [(f"{n:04d}",) for n in range(120)]
    with open_catalog(memory_glue.where, StorageOptions()).calls() as calls:
        (table,) = calls.tables("default", ["t", "none"])
        made = [CatalogPartition(values=one, location=f"s3a://b/{one[0]}", columns=table.columns) for one in values]
        calls.add(table, made)
        found = list(calls.named(table, [*values, ("none",)]))
        assert [(one.values, one.location) for one in found] == [(one, f"s3://b/{one[0]}") for one in values]
        calls.move(table, [replace(one, location="s3://b/c") for one in found])
        assert [one.location for one in calls.partitions(table)].count("s3://b/c") == 120
        calls.drop(table, [*values, ("none",)])
    assert memory_glue.values("default", "t") == [("a",), ("b",)]
    assert [memory_glue.calls.count(one) for one in (CREATES, GETS, UPDATES, DROPS)] == [2, 1, 2, 5]


def test_errors_of_single_partitions(path: Path, memory_glue: MemoryGlue) -> None:
    """Those that pass are sent again, what is there or gone already is fine, and others are an error of the sync."""
    put(path, 2, "c")
    memory_glue.first, memory_glue.errors = ["c"], {CREATES: ["ThrottlingException"]}
    synced(path, memory_glue)  # sent again: it is there already
    assert memory_glue.calls.count(CREATES) == 2
    put(path, 3, "d")
    memory_glue.first, memory_glue.errors = ["d"], {CREATES: ["AccessDeniedException"]}
    with pytest.raises(StorageError, match=r"AWS Glue refused .* AccessDeniedException for 1 partitions of t"):
        synced(path, memory_glue)
    synced(path, memory_glue)
    assert memory_glue.values("default", "t")[-1] == ("d",)


def test_throttled_and_lost_requests_are_made_again(path: Path, memory_glue: MemoryGlue) -> None:
    """Also one that took effect: no partition is doubled, and no other version of the table is made."""
    put(path, 2, "c")
    memory_glue.faults = {
        memory_glue.asks: [Fault("ThrottlingException")] * 3,
        CREATES: [Fault("ConcurrentModificationException"), Fault("InternalServiceException", lost=True)],
        TABLE: [Fault("InternalServiceException", lost=True)],
    }
    assert [one.added for one in synced(path, memory_glue).tables] == [1]
    assert memory_glue.values("default", "t") == [("a",), ("b",), ("c",)]
    assert memory_glue.calls.count(TABLE) == 2, "the second one is refused: the table has another version"
    memory_glue.calls.clear()
    assert synced(path, memory_glue).changed == ()
    memory_glue.faults = {memory_glue.asks: [Fault("ThrottlingException")] * 5}
    with pytest.raises(StorageError, match=r"AWS Glue refused a request; at glue:us-east-1; found ThrottlingExc"):
        synced(path, memory_glue)


def test_a_table_that_changed_since_it_was_asked_for_is_asked_for_again(path: Path, memory_glue: MemoryGlue) -> None:
    """What another client has set meanwhile stays."""
    put(path, 2, "c")
    done = False

    def other(call: str) -> None:
        nonlocal done
        if call == TABLE and not done:
            done = True
            memory_glue.put("t", {"theirs": "1"})

    memory_glue.before = other
    synced(path, memory_glue)
    assert memory_glue.parameters("default", "t")["theirs"] == "1"
    assert memory_glue.calls.count(TABLE) == 2


def test_names_of_hudi_sync_to_glue(path: Path, memory_glue: MemoryGlue) -> None:
    conf = {
        "hoodie.datasource.meta.sync.enable": "true",
        "hoodie.meta.sync.client.tool.class": "org.apache.hudi.aws.sync.AwsGlueCatalogSyncTool",
        "hoodie.aws.glue.region": "us-east-1",
        "hoodie.datasource.meta.sync.glue.database_name": "sales",
        "hoodie.datasource.meta.sync.glue.metadata_file_listing": "true",
    }
    rows = pa.table({"id": ["c"], "p": ["c"], "ts": pa.array([2], pa.int64())})
    done = writer(rows).conf(conf).upsert(str(path))
    assert (done.after.error, done.after.synced) == (None, 3)
    assert memory_glue.parameters("sales", "t_ro")["hudi.metadata-listing-enabled"] == "TRUE"
    for name, value, words in (
        ("hoodie.meta.sync.client.tool.class", "a.Tool", "to one Hive Metastore or to AWS Glue"),
        ("hoodie.datasource.hive_sync.metastore.uris", "thrift://a:1", "two catalogs"),
        ("hoodie.datasource.meta.sync.glue.partition_index_fields.enable", "true", "no partition index of Glue"),
    ):
        with pytest.raises(PhantombaseError, match=words):
            writer(rows).conf({**conf, name: value}).upsert(str(path))


def test_the_hudi_tables_of_glue_are_listed_and_synced_by_commands(path: Path, memory_glue: MemoryGlue) -> None:
    memory_glue.backend.create_database("db", {"Name": "db"})
    text = {"InputFormat": "org.apache.hadoop.mapred.TextInputFormat", "Location": "s3://b/text"}
    memory_glue.backend.create_table("db", "text", {"Name": "text", "StorageDescriptor": text})
    memory_glue.backend.create_table("db", "view", {"Name": "view"})
    ran = CliRunner().invoke(app, ["sync", str(path), "--to", memory_glue.where, "--name", "u", "--json"])
    assert {one["name"]: one["created"] for one in json.loads(ran.stdout)["tables"]} == dict.fromkeys(
        ("u", "u_ro", "u_rt"), True
    )
    assert CatalogListing(memory_glue.where, StorageOptions()).tables() == {"default/t": str(path)}
    line = ["run", "--catalog", memory_glue.where, "--once", "--executor", "local", "--json"]
    assert CliRunner().invoke(app, line).exit_code == 0
