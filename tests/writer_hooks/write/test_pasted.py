"""Configurations of whole Hudi jobs, given as they are."""

from __future__ import annotations

from typing import Any

import pytest

from phantombase import writer
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.writer_hooks.options import CompactionOptions, Operation
from tests.support.logs import capture_logs

JOB = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.datasource.write.row.writer.enable": "true",
    "hoodie.upsert.shuffle.parallelism": "20",
    "hoodie.insert.shuffle.parallelism": "20",
    "hoodie.bulkinsert.shuffle.parallelism": "20",
    "hoodie.delete.shuffle.parallelism": "20",
    "hoodie.clean.automatic": "true",
    "hoodie.clean.async.enabled": "false",
    "hoodie.cleaner.policy": "KEEP_LATEST_COMMITS",
    "hoodie.cleaner.commits.retained": "10",
    "hoodie.cleaner.parallelism": "200",
    "hoodie.keep.min.commits": "20",
    "hoodie.keep.max.commits": "30",
    "hoodie.archive.merge.enable": "true",
    "hoodie.compact.inline": "false",
    "hoodie.compact.inline.max.delta.commits": "5",
    "hoodie.datasource.compaction.async.enable": "false",
    "hoodie.datasource.hive_sync.enable": "false",
    "hoodie.datasource.hive_sync.mode": "hms",
    "hoodie.datasource.hive_sync.table": "orders",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider",
    "hoodie.write.lock.zookeeper.url": "zk1:2181",
    "hoodie.write.lock.zookeeper.base_path": "/locks",
    "hoodie.write.lock.zookeeper.lock_key": "orders",
    "hoodie.embed.timeline.server": "true",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.parquet.compression.codec": "gzip",
    "hoodie.parquet.block.size": "125829120",
    "hoodie.metrics.on": "false",
}


def test_a_whole_job_is_taken_and_what_has_no_meaning_is_one_warning() -> None:
    with capture_logs() as logs:
        made = writer().conf(JOB)
    (warning,) = logs
    assert (warning["event"], warning["log_level"]) == ("configurations_without_meaning", "warning")
    assert warning["names"].split() == [
        "hoodie.archive.merge.enable",
        "hoodie.bulkinsert.shuffle.parallelism",
        "hoodie.datasource.compaction.async.enable",
        "hoodie.datasource.hive_sync.mode",
        "hoodie.datasource.hive_sync.table",
        "hoodie.delete.shuffle.parallelism",
        "hoodie.insert.shuffle.parallelism",
        "hoodie.metadata.index.column.stats.enable",
    ]
    options = made.options
    assert made.operation is Operation.UPSERT
    assert made.given["key_fields"] == ("id",)
    assert options.lock == "zookeeper:zk1:2181/locks/orders"
    assert options.lazy_rollback
    assert options.slots == 20
    assert options.clean is not None
    assert options.archive is not None
    assert options.archive.min_instants == 20
    assert options.compaction.mode is CompactionOptions().mode
    assert options.compaction.schedule.max_delta_commits == 5


def test_all_contradictions_are_in_one_error() -> None:
    wrong = {
        "hoodie.datasource.write.insert.drop.duplicates": "true",
        "hoodie.partition.ttl.inline": "true",
        "hoodie.datasource.write.table.type": "COPY_ON_WRITE",
        "hoodie.index.type": "INMEMORY",
        "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    }
    with pytest.raises(UnsupportedError, match="5 configurations cannot be followed") as refused:
        writer().conf({**JOB, **wrong})
    assert all(name in str(refused.value) for name in wrong)
    mixed: dict[str, Any] = {"hoodie.upsert.shuffle.paralelism": "3", "hoodie.keep.min.commits": "many", **wrong}
    del mixed["hoodie.upsert.shuffle.paralelism"]
    with pytest.raises(UsageError, match="6 configurations") as refused_too:
        writer().conf({**JOB, **mixed})
    assert "not a value of hoodie.keep.min.commits" in str(refused_too.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("hoodie.table.nam", "t", "Did you mean hoodie.table.name"),
        ("hoodie.datasource.write.recordkey.fields", "id", "Did you mean hoodie.datasource.write.recordkey.field"),
        ("path", "/data", "not a known configuration"),
        ("hoodie.write.concurrency.mode", "OPTIMISTIC_CONCURRENCY_CONTROL", "without a lock"),
        ("hoodie.datasource.write.commitmeta.key.prefix", "x", "not copied into commits"),
    ],
)
def test_one_mistake_is_one_error(name: str, value: str, expected: str) -> None:
    with pytest.raises((UsageError, UnsupportedError), match=expected):
        writer().conf({name: value})


def test_a_lock_that_is_an_option_counts() -> None:
    made = writer().option(lock="file:/tmp/x").conf({"hoodie.write.concurrency.mode": "optimistic_concurrency_control"})
    assert made.options.lock == "file:/tmp/x"


@pytest.mark.parametrize(
    ("url", "port", "hosts"),
    [
        ("zk1:2181,zk2:2182", None, "zk1:2181,zk2:2182"),
        ("zk1,zk2:2182/chroot", None, "zk1:2181,zk2:2182/chroot"),
        ("zk1", "2181", "zk1:2181"),
        ("zk1:2182", "2181", "zk1:2182"),  # Hudi reads the address alone
        ("[::1],zk2", None, "[::1]:2181,zk2:2181"),
    ],
)
def test_zookeeper_without_a_port_is_that_of_hudi(url: str, port: str | None, hosts: str) -> None:
    """Hudi hands the address to ZooKeeper's client, which takes 2181; it does not read the option of the port."""
    given = {"hoodie.write.lock.zookeeper.url": url} | ({"hoodie.write.lock.zookeeper.port": port} if port else {})
    assert writer().conf({**JOB, **given}).options.lock == f"zookeeper:{hosts}/locks/orders"


def test_a_port_that_hudi_does_not_read_is_refused() -> None:
    given = {"hoodie.write.lock.zookeeper.url": "zk1", "hoodie.write.lock.zookeeper.port": "2182"}
    with pytest.raises(UsageError, match="zk1:2182"):
        writer().conf({**JOB, **given})


def test_a_lock_within_a_process_is_refused_with_what_to_do() -> None:
    given = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider"}
    with pytest.raises(UnsupportedError, match="leave the lock out if no other process writes"):
        writer().conf({**JOB, **given})
