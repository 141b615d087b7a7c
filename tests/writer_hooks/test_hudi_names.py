"""Every name of Hudi's configuration: one meaning, its default is the same job as without it, alternatives are one."""

from __future__ import annotations

import re
from contextlib import nullcontext, suppress
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import phantombase.writer_hooks.write.write
from phantombase import read, writer
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.hudi_names import NameKind, hudi_names
from phantombase.compactor_daemon.services.hudi_conf import command_conf, parse_hudi_conf
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.errors import ConflictError, PhantombaseError, UnsupportedError, UsageError
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.format.merge_settings import check_payload
from phantombase.timeline.format.table_config import PROPERTIES, MergeMode, TableConfig
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.heartbeat import BEAT_S, EXPIRY_S
from phantombase.timeline.locks.table_lock import ProcessLock, base_path_hash, table_lock
from phantombase.timeline.locks.zookeeper_lock import ZooKeeperLock
from phantombase.timeline.planning.strategies import Strategy
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.transaction import Opening, transaction
from phantombase.writer_hooks.options import COMBINES, Operation, Write, WriteOptions
from phantombase.writer_hooks.write.conf import option_of
from phantombase.writer_hooks.write.writer import Writer
from tests.support.golden_tables import one_of
from tests.support.places import capture_logs
from tests.support.selection import for_each

STARTS = {
    "hoodie.archive.automatic": "archive",
    "hoodie.keep.min.commits": "archive",
    "hoodie.keep.max.commits": "archive",
    "hoodie.clean.automatic": "clean",
    "hoodie.clean.policy": "clean",
    "hoodie.clean.commits.retained": "clean",
    "hoodie.clean.hours.retained": "clean",
    "hoodie.clean.fileversions.retained": "clean",
    "hoodie.metadata.compact.max.delta.commits": "metadata",
    "hoodie.metadata.enable": "metadata_table",
}
"""A service runs where its name is given; its name, and what it is the option of."""
LOCKS = "org.apache.hudi.client.transaction.lock"
IMPLICIT = f"{LOCKS}.ZookeeperBasedImplicitBasePathLockProvider"
ZOOKEEPER = {
    "hoodie.write.lock.provider": f"{LOCKS}.ZookeeperBasedLockProvider",
    "hoodie.write.lock.zookeeper.url": "zk:2181",
    "hoodie.write.lock.zookeeper.base_path": "/locks",
}
STAYS = {"hoodie.simple.index.update.partition.path": "false"}
COMMIT_TIME_ID = "ce9acb64-bde0-424c-9b91-f6ebba25356d"
NEEDS_OTHERS = {
    "hoodie.datasource.write.table.type": "not Hudi's default",
    "hoodie.table.type": "not Hudi's default",
    "hoodie.index.type": "no default",
}


def natural(text: str) -> Any:
    """Text as the type that a Python dictionary would have."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def defaults() -> list[tuple[str, str]]:
    """Each name, alternatives too, with each of its defaults."""
    found = [(name, value) for name, one in hudi_names().items() for value in one.agreeing]
    assert len(found) > 590
    return found


def test_every_name_has_one_meaning_and_a_reason() -> None:
    names = hudi_names()
    assert len(names) >= 690
    assert {name for name, one in names.items() if one.kind is not NameKind.SET and not one.why} == set()
    assert {name for name, one in names.items() if one.kind is NameKind.ONLY and not one.why} == set()


@one_of("as_type", natural, str)
def test_a_default_alone_is_the_same_job_without_a_warning(as_type: Any) -> None:
    """But for services, which run where they are named; what it sets is what is there without it."""
    other: list[tuple[str, str, str]] = []
    for name, value in defaults():
        with capture_logs() as logs:
            try:
                made = writer().conf({name: as_type(value)})
            except PhantombaseError as error:
                other.append((name, value, str(error)))
                continue
        setting = hudi_names()[name].name
        if logs or (hudi_names()[name].kind is not NameKind.SET and made != writer()):
            other.append((name, value, str(logs)))
        elif setting in STARTS:
            assert getattr(made.options, STARTS[setting], None) or made.given or made == writer(), name
    assert other == []


def test_what_is_set_at_its_default_changes_nothing_of_a_write() -> None:
    """The options of a write are the same, but for the services, the requests of compactions and who is dead."""
    free = {"archive", "clean", "metadata", "compaction", "lazy_rollback", "output", "null_for_missing", *COMBINES}
    usual = WriteOptions()
    changed: dict[str, set[str]] = {}
    for name, value in defaults():
        if hudi_names()[name].kind is NameKind.SET:
            options = writer().conf({name: value}).options
            fields = {f for f in WriteOptions.__slots__ if getattr(options, f) != getattr(usual, f)} - free
            changed |= {name: fields} if fields else {}
    assert changed == {}


def test_all_defaults_together_give_the_same_table(tmp_path: Path) -> None:
    rows = pa.table({"id": ["a", "b", "b"], "p": ["x", "y", "y"], "ts": [1, 2, 3], "v": [1.0, 2.0, 3.0]})
    described = writer(rows).table("t").key("id").partition("p").ordering("ts")
    described.upsert(str(tmp_path / "without"))
    left_out = {"hoodie.metadata.enable", "hoodie.datasource.write.payload.class", "hoodie.write.table.version"}
    every = {name: one.agreeing[0] for name, one in hudi_names().items() if one.agreeing and name == one.name}
    every = {name: value for name, value in every.items() if name not in left_out}
    assert len(every) > 500
    described.conf(every).upsert(str(tmp_path / "with"))
    found = {}
    for kind in ("without", "with"):
        properties = (tmp_path / kind / PROPERTIES).read_bytes()
        found[kind] = dict(TableConfig.parse(properties, kind).properties)
    assert found["with"] == found["without"]
    tables = [read(str(tmp_path / kind)).to_arrow().select(["id", "p", "ts", "v"]).sort_by("id") for kind in found]
    assert tables[0] == tables[1]


def test_a_command_takes_defaults_too() -> None:
    every = [f"{name}={value}" for name, value in defaults() if hudi_names()[name].kind is not NameKind.SET]
    assert parse_hudi_conf(every) == {}
    with pytest.raises(UsageError, match="not a known Hudi configuration"):
        parse_hudi_conf(["hoodie.clustering.inline=true"])
    for pair, todo in {
        "hoodie.parquet.compresion.codec=zstd": r"Did you mean hoodie\.parquet\.compression\.codec\?",
        "hoodie.clean.policy=KEEP_LATEST_BY_HOURS": "writes take it",
        "hoodie.clustering.inline=true": "writes take it",
        "hoodie.clustering.async.enabled=true": "Leave it out: .*cluster",
    }.items():
        with pytest.raises(UsageError, match=todo):
            parse_hudi_conf([pair])


def test_alternative_names_that_contradict_are_one_error() -> None:
    """And two that agree are one setting."""
    pairs = [(one.name, other) for name, one in hudi_names().items() if name == one.name for other in one.alternatives]
    assert len(pairs) >= 38
    for name, other in pairs:
        with pytest.raises(UsageError, match="contradict") as refused:
            writer().conf({name: "1", other: "2"})
        assert name in str(refused.value)
        assert other in str(refused.value)
    made = writer().conf({"hoodie.clean.policy": "KEEP_LATEST_COMMITS", "hoodie.cleaner.policy": "keep_latest_commits"})
    assert made.options.clean == CleanOptions(policy=Policy.COMMITS)


def test_another_value_of_what_changes_rows_or_locks_is_refused() -> None:
    only = [name for name, one in hudi_names().items() if one.kind is NameKind.ONLY]
    assert len(only) > 80
    for name in only:
        with pytest.raises(PhantombaseError, match=r"asks for what is not done here"):
            writer().conf({name: "something.else.9"})


DECIDES = {
    "hoodie.allow.operation.metadata.field": "true",
    "hoodie.avro.schema.external.transformation": "true",
    "hoodie.clean.commits.retained": 3,
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.clean.fileversions.retained": 2,
    "hoodie.clean.hours.retained": 24,
    "hoodie.cleaner.policy.failed.writes": "NEVER",
    "hoodie.client.heartbeat.interval_in_ms": 600_000,
    "hoodie.client.heartbeat.tolerable.misses": 9,
    "hoodie.clustering.enable.expirations": "true",
    "hoodie.clustering.rollback.pending.replacecommit.on.conflict": "true",
    "hoodie.combine.before.insert": "true",
    "hoodie.combine.before.upsert": "false",
    "hoodie.datasource.insert.dup.policy": "drop",
    "hoodie.datasource.overwrite.mode": "STATIC",
    "hoodie.datasource.write.insert.drop.duplicates": "true",
    "hoodie.datasource.write.operation": "delete",
    "hoodie.datasource.write.partitions.to.delete": "x",
    "hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.EmptyHoodieRecordPayload",
    "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true",
    "hoodie.datasource.write.streaming.checkpoint.identifier": "orders",
    "hoodie.datasource.write.streaming.ignore.failed.batch": "true",
    "hoodie.deltastreamer.transformer.sql": "SELECT 1",
    "hoodie.errortable.enable": "true",
    "hoodie.index.type": "GLOBAL_SIMPLE",
    "hoodie.merge.allow.duplicate.on.inserts": "false",
    "hoodie.metadata.enable": "false",
    "hoodie.partition.ttl.inline": "true",
    "hoodie.precommit.validators": "org.apache.hudi.client.validator.SqlQuerySingleResultPreCommitValidator",
    "hoodie.prewrite.cleaner.policy": "CLEAN",
    "hoodie.prewrite.validators": "a.B",
    "hoodie.static.overwrite.partition.paths": "x",
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.partial.update.schema": "{}",
    "hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING",
}
"""What says which rows are written or deleted, or when another's work is rolled back, with another value."""
OWNERS = {
    "hoodie.bootstrap.": "hoodie.bootstrap.base.path",
    "hoodie.clustering.expiration.": "hoodie.clustering.enable.expirations",
    "hoodie.errortable.": "hoodie.errortable.enable",
    "hoodie.metaserver.": "hoodie.metaserver.enabled",
    "hoodie.partition.ttl.": "hoodie.partition.ttl.inline",
    "hoodie.precommit.validators.": "hoodie.precommit.validators",
}
"""Names that say nothing without another one, which is refused."""
TOUCHES = {
    "the work of Hudi's client": "_hoodie. block. bloom. bucket. cdc. client. common. consistency. delete. embed. "
    "fail. file. filesystem. finalize. fs. global. hfile. index.bloom index.hbase. insert. io. markers. memory. "
    "optimistic. optimized. record.index. release. rollback. schema.cache. sensitive. simple. storage. time. timeline. "
    "write.application. write.buffer. write.executor. write.markers. write.status. write.tagged. writestatus. "
    "datasource.write.row.writer. datasource.write.streaming.retry. datasource.write.streaming.disable.compaction "
    "read.timeline. table.checksum table.initial.version write.can.ignore.post.commit. write.record.positions "
    "payload.event.time.field write.track.event.time. write.rolling.",
    "sizes and forms of files": "bulkinsert. copyonwrite. lance. logfile. merge.small.file. merge.use.record.positions "
    "orc. parquet. record.size.",
    "metrics and calls": "metrics. metricscompaction. write.commit.callback.",
    "indexes and the metadata table": "expression. index.name metadata. table.index. table.secondary. "
    "datasource.write.secondarykey.",
    "services beside a write": "archive. clean. clustering. commits. compaction. datasource.compaction. layout. log. "
    "table.service. table.services.incremental. write.empty.clean. allow.empty.commit",
    "catalogs": "datasource.hive_sync. datasource.meta.sync.glue. datasource.meta_sync. meta. meta_sync. "
    "table.partition_extractor_class",
    "reads": "datasource.merge.type datasource.query. datasource.read. enable. read.blob. schema.on.read.",
    "checks before a write": "avro.schema.validate merge.data.validation. skip. write.complex.keygen.validation. "
    "write.concurrency. write.merge.handle.fallback",
    "how a lock is waited for": "write.lock.",
}
"""What a name touches that is only warned about: neither rows, nor rollbacks, nor which lock is held."""


def test_what_decides_rows_and_rollbacks_is_honoured_or_refused() -> None:
    """A name that is only warned about touches something else, or belongs to one that is refused."""
    warned = {name: one for name, one in hudi_names().items() if one.kind in (NameKind.WISH, NameKind.CLIENT)}
    touched = tuple(
        part if part.startswith("_") else f"hoodie.{part}" for parts in TOUCHES.values() for part in parts.split()
    )
    of_spark = {"as.of.instant", "checkpointLocation"}
    assert not [n for n, one in warned.items() if not one.name.startswith((*touched, *OWNERS)) and n not in of_spark]
    assert {hudi_names()[owner].kind for owner in OWNERS.values()} == {NameKind.ONLY}
    assert warned.keys() & DECIDES.keys() == set()
    for name, value in DECIDES.items():
        with capture_logs() as logs, suppress(UsageError, UnsupportedError):
            assert writer().conf({name: value}) != writer(), name
        assert logs == [], name


def test_a_lock_between_threads_makes_a_sole_writer() -> None:
    """Or, where the threads write concurrently, it is the lock of the storage, which other processes respect, too."""
    threads = {"hoodie.write.lock.provider": f"{LOCKS}.InProcessLockProvider"}
    alone = Write(operation=Operation.UPSERT, options=writer().conf(threads).options)
    assert (alone.options.lock, alone.rolls_back_lazily) == (None, False)
    several = {**threads, "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
    together = Write(operation=Operation.UPSERT, options=writer().conf(several).options)
    assert (together.options.lock, together.rolls_back_lazily) == ("storage", True)


def test_the_metastore_of_a_sync_is_that_of_hive_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"hoodie.datasource.hive_sync.enable": "true"}
    uris = "<property><name>hive.metastore.uris</name><value>thrift://a:9083,thrift://b:9083</value></property>"
    glue = "hive.metastore.client.factory.class</name><value>com.amazonaws.glue.AWSGlueFactory</value></property>"
    sasl = "<property><name>hive.metastore.sasl.enabled</name><value>true</value></property>"
    who = "<property><name>hive.metastore.kerberos.principal</name><value>hive/_HOST@A.ORG</value></property>"
    tls = "<property><name>hive.metastore.use.SSL</name><value>true</value></property>"
    plain = "<property><name>hive.metastore.client.auth.mode</name><value>PLAIN</value></property>"
    monkeypatch.setenv("HIVE_CONF_DIR", str(tmp_path))
    for content, match in {
        "": "needs its metastore",
        f"<configuration>{uris}</configuration>": None,
        f"<configuration>{uris}<property><name>{glue}</configuration>": "needs its metastore",
        f"<configuration>{uris}{sasl}</configuration>": "not the Kerberos principal of a Hive Metastore",
        f"<configuration>{uris}{sasl}{who}</configuration>": None,
        f"<configuration>{uris}{tls}</configuration>": None,
        f"<configuration>{uris}{plain}</configuration>": "auth.mode=PLAIN",
        "<configuration>": "hive-site.xml cannot be read",
    }.items():
        if content:
            (tmp_path / "hive-site.xml").write_text(content)
        with pytest.raises((UsageError, UnsupportedError), match=match) if match else nullcontext():
            synced = writer().conf(conf).options.sync
            assert synced is not None
            scheme = "hives" if tls in content else "hive"
            assert synced.to == f"{scheme}:a:9083,b:9083" + ("?principal=hive/_HOST@A.ORG" if sasl in content else "")


def test_a_payload_class_of_hudis_own_tables_is_taken_for_such_a_table_only(tmp_path: Path) -> None:
    conf = {"hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.PartialUpdateAvroPayload"}
    described = writer(pa.table({"id": ["a"], "ts": [1]})).table("t").key("id").ordering("ts").conf(conf)
    with pytest.raises(UsageError, match="only Hudi makes tables with this payload class"):
        described.upsert(tmp_path / "t")
    assert not (tmp_path / "t").exists()
    stored = {"hoodie.table.legacy.payload.class": conf["hoodie.datasource.write.payload.class"]}
    check_payload(stored, conf["hoodie.datasource.write.payload.class"])


def test_a_wish_that_is_not_fulfilled_is_named() -> None:
    wishes = {
        n: "9999" for n, one in hudi_names().items() if one.kind in (NameKind.WISH, NameKind.CLIENT) and n == one.name
    }
    with capture_logs() as logs:
        made = writer().conf(wishes)
    assert set(logs[0]["names"].split()) == wishes.keys()
    assert made == writer()


@pytest.mark.parametrize(
    ("conf", "upsert", "insert"),
    [
        ({}, True, False),
        ({"hoodie.combine.before.insert": "false"}, True, False),
        ({"hoodie.combine.before.upsert": True}, True, False),
        ({"hoodie.combine.before.upsert": "true", "hoodie.combine.before.insert": "false"}, True, False),
        ({"hoodie.combine.before.insert": "true", "hoodie.combine.before.upsert": "false"}, False, True),
        ({"hoodie.combine.before.delete": False}, True, False),
    ],
)
def test_each_operation_has_its_own_combine(conf: dict[str, Any], upsert: bool, insert: bool) -> None:
    options = writer().conf(conf).options
    combines = {operation: Write(operation=operation, options=options).combines for operation in Operation}
    assert combines == {
        Operation.UPSERT: upsert,
        Operation.INSERT: insert,
        Operation.BULK_INSERT: insert,
        Operation.INSERT_OVERWRITE: insert,
        Operation.INSERT_OVERWRITE_TABLE: insert,
        Operation.DELETE: True,
        Operation.DELETE_PARTITION: False,
    }


@pytest.mark.parametrize(("both", "one"), [(True, {"combine_upserts": False}), (False, {"combine_inserts": True})])
def test_combine_of_all_operations_and_of_one_contradict(both: bool, one: dict[str, Any]) -> None:
    """As options of one write."""
    with pytest.raises(UsageError, match="contradict"):
        WriteOptions(combine=both, **one)
    with pytest.raises(UsageError, match="contradict"):
        writer().option(combine=both).option(**one)
    with pytest.raises(UsageError, match="contradict"):
        writer().option(**one).option(combine=both)


def test_the_heartbeat_of_others_counts_as_they_say() -> None:
    slow = writer().conf({"hoodie.client.heartbeat.interval_in_ms": 600_000}).options
    assert (slow.heartbeat_expiry_s, slow.heartbeat_s) == (1200.0, BEAT_S)
    quick = writer().conf(
        {"hoodie.client.heartbeat.interval_in_ms": 5000, "hoodie.client.heartbeat.tolerable.misses": 4}
    )
    assert (quick.options.heartbeat_expiry_s, quick.options.heartbeat_s) == (20.0, 10.0)


@pytest.mark.parametrize(
    ("numbers", "policy", "retain"),
    [
        ({"hours": 72}, Policy.HOURS, 72),
        ({"fileversions": 2}, Policy.VERSIONS, 2),
        ({"commits": 4}, Policy.COMMITS, 4),
        ({"commits": 4, "hours": 72}, Policy.COMMITS, 4),
    ],
)
def test_the_policy_of_cleaning_is_inferred(numbers: dict[str, int], policy: Policy, retain: int) -> None:
    for prefix in ("hoodie.clean", "hoodie.cleaner"):
        conf = {f"{prefix}.{name}.retained": number for name, number in numbers.items()}
        assert writer().conf(conf).options.clean == CleanOptions(policy=policy, retain=retain)


def test_other_writers_are_not_rolled_back_at_once() -> None:
    job = {
        "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
        "hoodie.clean.failed.writes.policy": "EAGER",
    }
    with pytest.raises(UsageError, match=r"only those whose heartbeat has expired.*LAZY"):
        writer().option(lock="file:/tmp/x").conf(job)
    with pytest.raises(UsageError, match=r"not a value of hoodie\.clean\.failed\.writes\.policy"):
        writer().conf({"hoodie.clean.failed.writes.policy": "NEVER"})


def test_buckets_are_those_of_the_bucket_index() -> None:
    """Hudi looks at their number with that index only."""
    number = {"hoodie.bucket.index.num.buckets": 8}
    assert writer().conf({**number, "hoodie.index.type": "BUCKET"}).options.buckets == 8
    assert writer().conf({"hoodie.index.type": "BUCKET"}).options.buckets == 256
    for other in ({}, {"hoodie.index.type": "SIMPLE"}, {"hoodie.index.type": "GLOBAL_BLOOM"}):
        with capture_logs() as logs:
            assert writer().conf({**number, **other}).options.buckets is None
        assert logs[0]["names"] == "hoodie.bucket.index.num.buckets"


def test_no_service_runs_where_they_are_off() -> None:
    off = {"hoodie.table.services.enabled": False, "hoodie.compact.inline": True, "hoodie.clean.automatic": True}
    assert writer().conf(off).options == writer().conf({"hoodie.table.services.enabled": "false"}).options
    assert writer().conf(off).options.clean is None


@pytest.mark.parametrize("value", [None, ["a"], {"a": 1}, b"x"], ids=str)
def test_a_value_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"text, a number or a bool for hoodie\.metadata\.enable"):
        writer().conf({"hoodie.metadata.enable": value})


def test_a_lock_without_its_place_is_no_lock() -> None:
    """Waits and retries of locks, and Hudi's default provider alone, are not one."""
    waits = {"hoodie.write.lock.wait_time_ms": 1000, "hoodie.write.lock.num_retries": 3}
    assert writer().conf(waits).options.lock is None
    with pytest.raises(UnsupportedError, match="without a lock"):
        writer().conf({**waits, "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"})
    with pytest.raises(UsageError, match=r"incomplete ZooKeeper lock.*base_path"):
        writer().conf({**waits, "hoodie.write.lock.zookeeper.url": "zk:2181"})


def test_what_the_writer_was_told_before_is_not_overridden() -> None:
    with pytest.raises(
        UsageError, match=r"contradict.*option key_fields.*hoodie\.datasource\.write\.recordkey\.field=other"
    ):
        writer().key("id").conf({"hoodie.datasource.write.recordkey.field": "other"})
    assert writer().key("id").conf({"hoodie.datasource.write.recordkey.field": "id"}).given["key_fields"] == ("id",)


B = {"hoodie.index.type": "BUCKET"}
SIMPLE = {"hoodie.index.type": "SIMPLE"}
SHUFFLE = "hoodie.upsert.shuffle.parallelism"


@pytest.mark.parametrize(
    ("calls", "whole"),
    [
        ([{"hoodie.bucket.index.num.buckets": 8}, B], {"hoodie.bucket.index.num.buckets": 8, **B}),
        ([{**B, "hoodie.bucket.index.num.buckets": 8}, SIMPLE], SIMPLE),
        ([{SHUFFLE: 4}, {SHUFFLE: 5}], {SHUFFLE: 5}),
        ([{"hoodie.cleaner.policy": "KEEP_LATEST_BY_HOURS"}, {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"}],
         {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"}),
        ([{"hoodie.table.services.enabled": "false"}, {"hoodie.clean.automatic": "true"}],
         {"hoodie.table.services.enabled": "false", "hoodie.clean.automatic": "true"}),
        ([{"hoodie.index.type": "GLOBAL_SIMPLE"}, STAYS], {"hoodie.index.type": "GLOBAL_SIMPLE", **STAYS}),
        ([{"hoodie.client.heartbeat.interval_in_ms": 5000}, {"hoodie.client.heartbeat.tolerable.misses": 3}],
         {"hoodie.client.heartbeat.interval_in_ms": 5000, "hoodie.client.heartbeat.tolerable.misses": 3}),
        ([{"hoodie.datasource.write.recordkey.field": "a"}, {"hoodie.datasource.write.recordkey.field": "b"}],
         {"hoodie.datasource.write.recordkey.field": "b"}),
    ],
)  # fmt: skip
def test_dictionaries_of_several_calls_are_one(calls: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    """The later value of a name counts, as with Spark's options, and no name is forgotten meanwhile."""
    made = writer()
    for conf in calls:
        made = made.conf(conf)
    assert (made.options, made.given) == (writer().conf(whole).options, writer().conf(whole).given)


def test_a_method_and_a_name_are_one_setting_in_any_order() -> None:
    """Each option that a name sets, by a method with one value and by the name with another."""
    names = [name for name, one in hudi_names().items() if name == one.name and option_of(name)]
    found = {name for name in names if _contradicts_in_any_order(name)}
    assert len(found) >= 50
    assert {"hoodie.combine.before.upsert", "hoodie.table.name", "hoodie.clean.automatic", SHUFFLE} <= found


def _contradicts_in_any_order(name: str) -> bool:
    """False: no two values of it were found of which a method can say one. Options of a group count if they differ from
    its usual ones."""
    made: list[Writer] = []
    for value in (*hudi_names()[name].agreeing[:1], "true", "false", "3", "a"):
        with suppress(PhantombaseError), capture_logs():
            told = writer().conf({**NEEDED.get(name, {}), name: value})
            made += [] if told in made else [told]
    return any(_refused_in_any_order(*pair) for pair in permutations(made, 2))


def _refused_in_any_order(one: Writer, other: Writer) -> bool:
    own = {f: v for f in WriteOptions.__slots__ if (v := getattr(one.options, f)) != getattr(other.options, f)}
    said = {f: v for f, v in one.given.items() if other.given.get(f, v) != v}

    def by_method(told: Writer) -> Writer:
        return told.option(**own)._with(**said)

    with suppress(PhantombaseError):
        assert by_method(writer()).conf(one.hoodie) == by_method(writer().conf(one.hoodie))
        refused = _refuses(lambda: by_method(writer()).conf(other.hoodie))
        assert refused == _refuses(lambda: by_method(writer().conf(other.hoodie)))
        return refused
    return False


def _refuses(call: Any) -> bool:
    try:
        call()
    except UsageError as error:
        return "contradict" in str(error)
    return False


NEEDED = {
    "hoodie.bucket.index.num.buckets": {"hoodie.index.type": "BUCKET"},
    "hoodie.simple.index.update.partition.path": {"hoodie.index.type": "GLOBAL_SIMPLE"},
    "hoodie.bloom.index.update.partition.path": {"hoodie.index.type": "GLOBAL_BLOOM"},
}


@pytest.mark.parametrize("value", ["COMMIT_TIME_ORDERING", "commit_time", "commit-time", MergeMode.COMMIT_TIME])
def test_a_member_of_an_enum_may_be_named(value: Any) -> None:
    assert writer().merge_mode(value).given["merge_mode"] is MergeMode.COMMIT_TIME
    with pytest.raises(UsageError, match="not a merge mode"):
        writer().merge_mode("LATEST")
    assert writer().option(log_format="avro").options.log_format is LogFormat.AVRO
    assert (
        writer().schedule(strategy="time-elapsed").options.compaction.schedule.strategy is TriggerStrategy.TIME_ELAPSED
    )
    for one in ("unbounded", ["unbounded"], Strategy.UNBOUNDED, (Strategy.UNBOUNDED,)):
        assert writer().schedule(strategies=one).options.compaction.schedule.strategies == (Strategy.UNBOUNDED,)
    with pytest.raises(UsageError, match="not a value of strategies"):
        writer().schedule(strategies=("newest",))
    with pytest.raises(UsageError, match="not a value of log-format"):
        writer().option(log_format="orc")


def test_values_are_what_they_say() -> None:
    made = writer().conf(
        {"hoodie.upsert.shuffle.parallelism": 2.0, "hoodie.write.record.merge.mode": MergeMode.EVENT_TIME}
    )
    assert made.options.slots == 2
    assert made.given["merge_mode"] is MergeMode.EVENT_TIME


@for_each(
    [
        (lambda w: w.option(slots=3), {"hoodie.upsert.shuffle.parallelism": 4}),
        (lambda w: w.buckets(4), {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": 8}),
        (lambda w: w.buckets(4), {"hoodie.index.type": "SIMPLE"}),
        (lambda w: w.buckets(4), {"hoodie.bucket.index.num.buckets": 8}),
        (lambda w: w.buckets(4, "a"), {"hoodie.bucket.index.hash.field": "b"}),
        (lambda w: w.option(lock="file:/a"), {**ZOOKEEPER, "hoodie.write.lock.zookeeper.lock_key": "t"}),
        (lambda w: w.clean(policy="hours"), {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"}),
        (lambda w: w.clean(retain=9, policy="hours"), {"hoodie.clean.policy": "KEEP_LATEST_COMMITS"}),
        (lambda w: w.archive(min_instants=5), {"hoodie.keep.min.commits": 6}),
        (lambda w: w.back_pressure(action="fail"), {"phantombase.write.stop.action": "go-on"}),
        (lambda w: w.option(heartbeat_expiry_s=200.0), {"hoodie.client.heartbeat.interval_in_ms": 60000}),
        (lambda w: w.option(retries=1), {"hoodie.write.num.retries.on.conflict.failures": 2}),
        (lambda w: w.global_keys(), {"hoodie.index.type": "GLOBAL_SIMPLE", **STAYS}),
        (lambda w: w.ordering("a"), {"hoodie.table.precombine.field": "b"}),
        (lambda w: w.schedule(), {"hoodie.compact.inline": True}),
        (lambda w: w.compact_inline(), {"hoodie.compact.inline": False}),
        (lambda w: w.schedule(max_delta_commits=3), {"hoodie.compact.inline.max.delta.commits": 7}),
        (lambda w: w.option(output=OutputOptions(codec=Codec.GZIP)), {"hoodie.parquet.compression.codec": "snappy"}),
        (lambda w: w.clean(retain=9), {"hoodie.clean.policy": "KEEP_LATEST_BY_HOURS"}),
        (lambda w: w.clean(), {"hoodie.clean.automatic": False}),
        (lambda w: w.archive(), {"hoodie.table.services.enabled": False}),
        (lambda w: w.option(combine=True), {"hoodie.combine.before.upsert": False}),
        (lambda w: w.option(clean=None), {"hoodie.clean.automatic": True}),
        (lambda w: w.buckets(8), {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.hash.field": "a"}),
        (lambda w: w.timezone("America/New_York"), {"hoodie.table.timeline.timezone": "utc"}),
        (
            lambda w: w.key_generator("TIMESTAMP", timestamp_type="EPOCHMILLISECONDS"),
            {"hoodie.deltastreamer.keygen.timebased.timestamp.type": "UNIX_TIMESTAMP"},
        ),
    ]
)
def test_an_option_that_contradicts_its_name_is_one_error_with_both(own: Any, conf: dict[str, Any]) -> None:
    for before in (True, False):
        with pytest.raises(UsageError, match="contradict") as refused:
            own(writer()).conf(conf) if before else own(writer().conf(conf))
        assert any(name in str(refused.value) for name in conf)


@for_each(
    [
        ({"hoodie.compact.inline.max.delta.commits": 3}, lambda w: w.schedule()),
        ({"hoodie.compact.inline.max.delta.commits": 3}, lambda w: w.schedule(max_delta_commits=3)),
        ({"hoodie.clean.hours.retained": 72}, lambda w: w.clean(retain=5)),
        ({"hoodie.keep.max.commits": 40}, lambda w: w.archive()),
        ({"phantombase.write.stop.trigger": 4}, lambda w: w.back_pressure(action="fail")),
        ({"hoodie.parquet.compression.codec": "gzip"}, lambda w: w.option(output=OutputOptions())),
        ({"hoodie.keygen.timebased.output.dateformat": "yyyy"},
         lambda w: w.key_generator("TIMESTAMP", timestamp_type="EPOCHMILLISECONDS")),
    ],
)  # fmt: skip
def test_what_a_method_leaves_open_a_name_may_say(conf: dict[str, Any], method: Any) -> None:
    """Before the method or behind it; no name is forgotten."""
    made = method(writer().conf(conf))
    assert made == method(writer()).conf(conf)
    assert (made.options, made.given) != (method(writer()).options, method(writer()).given) or "5" in str(made.options)


def test_an_option_and_its_name_that_agree_are_one_setting() -> None:
    number = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": 8}
    assert writer().buckets(8).conf(number).options == writer().conf(number).options
    with capture_logs() as logs:
        made = (
            writer().buckets(8, "a").conf({"hoodie.bucket.index.num.buckets": 8, "hoodie.bucket.index.hash.field": "a"})
        )
    assert (made.options.buckets, made.options.bucket_fields, logs) == (8, ("a",), [])
    assert writer().clean(policy="hours").conf({"hoodie.clean.hours.retained": 7}).options.clean == CleanOptions(
        policy=Policy.HOURS, retain=7
    )


@pytest.mark.parametrize(
    ("conf", "field", "value"),
    [
        (
            {"hoodie.write.record.merge.strategy.id": "ce9acb64-bde0-424c-9b91-f6ebba25356d"},
            "merge_mode",
            MergeMode.COMMIT_TIME,
        ),
        ({"hoodie.table.version": "NINE", "hoodie.write.table.version": 6}, "version", 6),
        ({"hoodie.table.version": "EIGHT"}, "version", 8),
        ({"hoodie.table.recordkey.fields": "a,b"}, "key_fields", ("a", "b")),
    ],
)
def test_names_of_a_table_describe_it(conf: dict[str, Any], field: str, value: Any) -> None:
    assert writer().conf(conf).given == {field: value}


def test_names_of_a_table_that_contradict_are_refused() -> None:
    for conf in (
        {"hoodie.record.merge.mode": "EVENT_TIME_ORDERING", "hoodie.write.record.merge.strategy.id": COMMIT_TIME_ID},
        {"hoodie.table.version": 8, "hoodie.write.table.version": "9"},
        {"hoodie.table.ordering.fields": "ts", "hoodie.table.precombine.field": "TS"},
        {"hoodie.table.recordkey.fields": "a", "hoodie.datasource.write.recordkey.field": "b"},
    ):
        with pytest.raises(UsageError, match="contradict") as refused:
            writer().conf(conf)
        assert all(name in str(refused.value) for name in conf)
    with pytest.raises(UsageError, match="not a value of"):
        writer().conf({"hoodie.write.record.merge.strategy.id": "0" * 36})


def test_the_base_path_of_a_dictionary_is_that_of_the_write(tmp_path: Path) -> None:
    rows = pa.table({"id": ["a"], "p": ["x"]})
    described = writer(rows).table("t").key("id").partition("p").conf({"hoodie.base.path": f"{tmp_path}/t/"})
    assert described.upsert(str(tmp_path / "t")).writes == 1
    with pytest.raises(UsageError, match=r"contradict.*hoodie\.base\.path"):
        described.upsert(str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("path", "node"),
    [
        ("/tmp/t/a", "C7CFBEA710DFE976"),
        ("/tmp/t/a/", "8286AD4C3E3AE4EA"),
        ("file:///tmp/t/a", "26E93E961615DDBE"),
        ("s3a://bucket/k/t", "C76FFC88E5DD01B2"),
        ("s3://bucket/k/t", "C76FFC88E5DD01B2"),
        ("S3A://b/k", "7441B06803D82074"),
        ("s3a:/b/k", "CC7F8916E9952EEF"),
        ("x/s3a://k", "892093F350D40D1E"),
        ("/t/511", "000DAAB8C22EBB78"),
        ("/t/é", "067A9F700DFD3B73"),
    ],
)
def test_the_node_of_the_implicit_lock_is_that_of_real_hudi(path: str, node: str) -> None:
    """What `ZookeeperBasedImplicitBasePathLockProvider.getLockBasePath` of 1.2.0 gives."""
    assert base_path_hash(path) == node
    made = writer().conf({"hoodie.write.lock.provider": IMPLICIT, "hoodie.write.lock.zookeeper.url": "zk:2181"})
    assert made._described(path, Operation.UPSERT).options.lock == f"zookeeper:zk:2181/tmp/{node}/lock_key"


def test_an_implicit_lock_of_a_command_is_that_of_the_path(tmp_path: Path) -> None:
    lock = table_lock(LocalStorage(str(tmp_path)), "zookeeper:zk:2181/tmp/{base_path_hash}/lock_key")
    assert isinstance(lock, ZooKeeperLock)
    assert (lock.base_path, lock.key) == (f"/tmp/{base_path_hash(str(tmp_path))}", "lock_key")


def test_the_key_of_a_zookeeper_lock_is_the_name_of_the_table() -> None:
    assert writer().conf({**ZOOKEEPER, "hoodie.table.name": "rides"}).options.lock == "zookeeper:zk:2181/locks/rides"
    with pytest.raises(UsageError, match=r"incomplete ZooKeeper lock.*lock_key"):
        writer().conf(ZOOKEEPER)


@pytest.mark.parametrize(
    "provider",
    ["aws.transaction.lock.DynamoDBBasedLockProvider", "hive.transaction.lock.HiveMetastoreBasedLockProvider",
     "client.transaction.lock.FileSystemBasedLockProvider", "client.transaction.lock.NoopLockProvider"],
)  # fmt: skip
def test_a_lock_that_is_not_taken_is_refused_with_what_to_do(provider: str) -> None:
    """Each of the providers that the error names instead is taken."""
    with pytest.raises(UnsupportedError) as caught:
        writer().conf({"hoodie.write.lock.provider": f"org.apache.hudi.{provider}"})
    words = str(caught.value)
    assert ("leave it out" if "Noop" in provider else "Give all writers") in words
    instead = re.findall(r"org\.apache\.hudi\.[\w.]+", words.partition("; found")[0])
    assert len(instead) == 3
    for one in instead:
        node = {"hoodie.write.lock.zookeeper.url": "zk:2181", "hoodie.write.lock.zookeeper.base_path": "/locks",
                "hoodie.write.lock.zookeeper.lock_key": "t"}  # fmt: skip
        made = writer().conf({"hoodie.write.lock.provider": one, **({} if "Storage" in one else node)})
        lock = made._described("/tmp/t", Operation.UPSERT).options.lock
        assert lock == "storage" or str(lock).startswith("zookeeper:zk:2181/")


def test_a_lock_in_zookeeper_begins_at_its_root() -> None:
    node = {**ZOOKEEPER, "hoodie.write.lock.zookeeper.base_path": "locks"}
    with pytest.raises(UsageError, match=r"base_path=/locks; found locks"):
        writer().conf({**node, "hoodie.table.name": "rides"})


@pytest.mark.parametrize("part", ["url", "base_path", "lock_key"])
def test_a_blank_around_a_part_of_a_lock_is_refused(part: str) -> None:
    """Spark's options keep it, and properties files do not: a writer and a daemon held two locks."""
    node = {**ZOOKEEPER, "hoodie.write.lock.zookeeper.lock_key": "t"}
    name = f"hoodie.write.lock.zookeeper.{part}"
    with pytest.raises(UsageError, match="a blank around a part of a lock"):
        writer().conf({**node, name: f"{node[name]} "})
    typed = command_conf((), [f"{n}={v} " for n, v in node.items()], [], locks=True)
    assert typed.lock == writer().conf(node).options.lock


def test_no_field_is_hashed_where_none_is_named() -> None:
    """As in Hudi: then it is all key fields."""
    empty = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.hash.field": ""}
    assert writer().conf(empty).options == writer().conf({"hoodie.index.type": "BUCKET"}).options


def test_a_quick_heartbeat_that_lapses_ends_the_write(tmp_path: Path) -> None:
    """Other writers count it as dead after four intervals of 5 ms."""
    rows = pa.table({"id": ["a"], "p": ["x"]})
    described = writer(rows).table("t").key("id").partition("p")
    described.upsert(str(tmp_path))
    table = Table.open(str(tmp_path))
    with (
        pytest.raises(ConflictError, match="no heartbeat for too long"),
        transaction(table, ProcessLock("w"), 30.0, Opening(expiry_s=0.0)) as begun,
    ):
        begun._check_still_ours()


@pytest.mark.parametrize(("interval_ms", "expiry_s"), [(10_000, 20.0), (600_000, EXPIRY_S)])
def test_a_write_counts_itself_as_dead_when_others_do(
    interval_ms: int, expiry_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Hudi's default at the latest: others may have been told nothing."""
    begun: list[float] = []

    def noted(table: Table, lock: Any, heartbeat_s: float, opening: Opening, undone: Any) -> Any:
        begun.append(opening.expiry_s)
        return transaction(table, lock, heartbeat_s, opening, undone)

    monkeypatch.setattr(phantombase.writer_hooks.write.write, "transaction", noted)
    rows = pa.table({"id": ["a"], "p": ["x"]})
    described = writer(rows).table("t").key("id").partition("p")
    described.conf({"hoodie.client.heartbeat.interval_in_ms": interval_ms}).upsert(str(tmp_path))
    assert begun == [expiry_s]


def test_rows_that_lack_a_column(tmp_path: Path) -> None:
    """Hudi refuses them by default; here they are refused where the default is spelled out."""
    path, nulls = str(tmp_path), "hoodie.write.set.null.for.missing.columns"
    writer(pa.table({"id": ["a"], "v": [1]})).table("t").key("id").upsert(path)
    fewer = writer(pa.table({"id": ["a"]}))
    with pytest.raises(UsageError, match=r"the rows lack columns of the table; at .*; expected v; found id\. .*=true"):
        fewer.conf({nulls: False}).upsert(path)
    fewer.conf({nulls: False}).delete(path)
    assert read(path).to_arrow().num_rows == 0
    for conf in ({}, {nulls: "true"}, {nulls: False, "hoodie.datasource.write.reconcile.schema": True}):
        fewer.conf(conf).upsert(path)
        assert read(path).to_arrow()["v"].to_pylist() == [None]
