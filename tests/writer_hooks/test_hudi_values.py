"""Each value of each followed name changes what is written, or is refused, or is named in a warning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase import read, writer
from phantombase.compactor_daemon.hudi_names import NameKind, hudi_names
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format.table_config import PROPERTIES, TableConfig
from phantombase.writer_hooks.options import Operation
from tests.support.places import capture_logs

_W, _KEYGEN, _PAYLOAD = "hoodie.datasource.write.", "org.apache.hudi.keygen.", "org.apache.hudi.common.model."
_TIMES, _STRATEGY = "hoodie.keygen.timebased.", "org.apache.hudi.table.action.compact.strategy."
USUAL = {
    "hoodie.table.name": "t",
    f"{_W}recordkey.field": "id",
    f"{_W}partitionpath.field": "p",
    f"{_W}precombine.field": "ts",
}
EVENT, COMMIT = f"{_PAYLOAD}DefaultHoodieRecordPayload", f"{_PAYLOAD}OverwriteWithLatestAvroPayload"
SIX: dict[str, Any] = {"hoodie.write.table.version": 6, f"{_W}payload.class": EVENT}
EVENT_TIME, COMMIT_TIME = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5", "ce9acb64-bde0-424c-9b91-f6ebba25356d"
BY_COMMIT: dict[str, Any] = {"hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING"}


def table(rows: list[tuple[str, str, Any, Any]]) -> pa.Table:
    ids, p, ts, v = zip(*rows, strict=True)
    return pa.table({"id": ids, "p": p, "ts": ts, "v": v})


_TIMESTAMP: dict[str, Any] = {
    f"{_W}keygenerator.class": f"{_KEYGEN}TimestampBasedKeyGenerator",
    f"{_W}partitionpath.field": "ts",
    f"{_TIMES}timestamp.type": "EPOCHMILLISECONDS",
    f"{_TIMES}output.dateformat": "yyyy-MM-dd HH",
    f"{_TIMES}timezone": "UTC",
}
FIRST = table([(key, "x" if key < "d" else "y=1", 10, 0) for key in "abcdef"])
MORE = table([("g", "y=1", 10, 1), ("g", "y=1", 11, 2)])
LAST = table(
    [("a", "x", 12, 1), ("a", "x", 11, 2), ("b", "x", 9, 3), ("e", "z", 11, 4), ("h", "z", 1, 5), ("h", "z", 2, 6)]
)
TEXTS = FIRST.set_column(2, "ts", FIRST["ts"].cast(pa.string()))


def names_in(logs: Iterable[Mapping[str, Any]]) -> list[str]:
    """What the warnings name."""
    return [name for log in logs if log["event"] == "configurations_without_meaning" for name in log["names"].split()]


def told(path: Path, *dictionaries: Mapping[str, Any], rows: pa.Table = FIRST) -> list[str]:
    """What the last of these upserts, each with its dictionary, is told: the names of warnings, or the error."""
    for conf in dictionaries:
        with capture_logs() as logs:
            try:
                writer(rows).conf({**USUAL, **conf}).upsert(str(path))
            except PhantombaseError as error:
                return [type(error).__name__, str(error)]
    return names_in(logs)


DATABASE, VERSION, LAYOUT = "hoodie.database.name", "hoodie.write.table.version", "hoodie.timeline.layout.version"
ID, WRITE_ID = "hoodie.record.merge.strategy.id", "hoodie.write.record.merge.strategy.id"
COMMITS, SECONDS = "hoodie.compact.inline.max.delta.commits", "hoodie.compact.inline.max.delta.seconds"
INLINE = {"hoodie.compact.inline": True}
ZK = "hoodie.write.lock.zookeeper."
STOP_WAIT = "phantombase.write.stop.wait.seconds"
MERGERS = "hoodie.write.record.merge.custom.implementation.classes"


@pytest.mark.parametrize(
    ("dictionaries", "names"),
    [
        ([{DATABASE: "a"}, {DATABASE: "a"}], []),
        ([{}, {DATABASE: "a"}], [DATABASE]),
        ([{VERSION: 8}, {VERSION: 8}], []),
        ([{VERSION: 8}, {VERSION: 9}], [VERSION]),
        ([{}, {VERSION: "6"}], [VERSION]),
        ([{VERSION: 8}, {"hoodie.table.version": "NINE"}], ["hoodie.table.version"]),
        ([{LAYOUT: 2}], []),
        ([{LAYOUT: 1}], [LAYOUT]),
        ([SIX, {LAYOUT: "2"}], [LAYOUT]),
        ([{}, {"hoodie.archivelog.folder": "archived"}], ["hoodie.archivelog.folder"]),
        ([{f"{_TIMES}timezone": "Asia/Tokyo", f"{_TIMES}timestamp.type": "SCALAR"}],
         [f"{_TIMES}timestamp.type", f"{_TIMES}timezone"]),
        ([{"hoodie.deltastreamer.keygen.timebased.output.dateformat": "yyyy"}],
         ["hoodie.deltastreamer.keygen.timebased.output.dateformat"]),
        ([{f"{_TIMES}timezone": "UTC"}], []),
        ([_TIMESTAMP], []),
        ([_TIMESTAMP, {**_TIMESTAMP, f"{_TIMES}output.timezone": "Asia/Tokyo", f"{_TIMES}input.dateformat": "yyyy"}],
         [f"{_TIMES}input.dateformat", f"{_TIMES}output.timezone"]),
        ([{**_TIMESTAMP, f"{_TIMES}timestamp.scalar.time.unit": "DAYS"}], [f"{_TIMES}timestamp.scalar.time.unit"]),
        ([{**_TIMESTAMP, f"{_TIMES}timestamp.scalar.time.unit": "DAYS", f"{_TIMES}timestamp.type": "SCALAR"}], []),
        ([{"hoodie.compaction.payload.class": COMMIT}], ["hoodie.compaction.payload.class"]),
        ([{"hoodie.compaction.payload.class": EVENT}], []),
        ([BY_COMMIT, {ID: EVENT_TIME}], [ID]),
        ([BY_COMMIT, {WRITE_ID: EVENT_TIME}], [WRITE_ID]),
        ([{COMMITS: 3}], [COMMITS]),
        ([{COMMITS: 3, **INLINE}], []),
        ([{COMMITS: 3, "hoodie.keep.max.commits": 40}], []),
        ([{**INLINE, SECONDS: 9}], [SECONDS]),
        ([{**INLINE, SECONDS: 9, "hoodie.compact.inline.trigger.strategy": "NUM_OR_TIME"}], []),
        ([{"hoodie.clean.hours.retained": 3, "hoodie.clean.commits.retained": 4}], ["hoodie.clean.hours.retained"]),
        ([{"hoodie.cleaner.fileversions.retained": 3, "hoodie.clean.hours.retained": 4,
           "hoodie.clean.policy": "KEEP_LATEST_BY_HOURS"}], []),
        ([{"hoodie.clean.automatic": False, "hoodie.clean.commits.retained": 3}], ["hoodie.clean.commits.retained"]),
        ([{"hoodie.table.services.enabled": False, **INLINE, "hoodie.keep.min.commits": 5}],
         ["hoodie.compact.inline", "hoodie.keep.min.commits"]),
        ([{"hoodie.metadata.compact.max.delta.commits": 3}], ["hoodie.metadata.compact.max.delta.commits"]),
        ([{"hoodie.metadata.compact.max.delta.commits": 3, "hoodie.metadata.enable": True}], []),
        ([{f"{_W}partitions.to.delete": "x"}], [f"{_W}partitions.to.delete"]),
        ([{f"{_W}streaming.checkpoint.identifier": "q"}], [f"{_W}streaming.checkpoint.identifier"]),
        ([{"hoodie.storage.layout.type": "BUCKET"}], ["hoodie.storage.layout.type"]),
        ([{"hoodie.storage.layout.type": "BUCKET", "hoodie.index.type": "BUCKET"}], []),
        ([{f"{ZK}port": 2182}], [f"{ZK}port"]),
        ([{"phantombase.write.stop.action": "fail", STOP_WAIT: 5}], [STOP_WAIT]),
        ([{"phantombase.write.stop.action": "wait", STOP_WAIT: 5}], []),
        ([{"hoodie.schema.on.read.enable": True}], ["hoodie.schema.on.read.enable"]),
    ],
)  # fmt: skip
def test_what_a_table_or_a_write_does_not_follow_is_named(
    dictionaries: list[dict[str, Any]], names: list[str], tmp_path: Path
) -> None:
    """Decided as Hudi decides, where it ignores them: here with a warning."""
    assert sorted(told(tmp_path, *dictionaries)) == names


@pytest.mark.parametrize(
    "dictionaries",
    [
        ({DATABASE: "a"}, {DATABASE: "b"}),
        (SIX, {DATABASE: "b"}),
        ({}, {"hoodie.table.version": 8}),
        ({VERSION: 8}, {"hoodie.table.version": "9"}),
    ],
)
def test_what_another_table_would_say_is_refused(dictionaries: tuple[dict[str, Any], ...], tmp_path: Path) -> None:
    """As by Hudi 0.15.0 and 1.2.0: "Config conflict"."""
    error, text = told(tmp_path, *dictionaries)
    assert error == "UsageError"
    assert "another table is at this path" in text
    assert all(f"{name}={value}" in text for name, value in dictionaries[-1].items())


@pytest.mark.parametrize("name", ["hoodie.datasource.write.record.merger.impls", MERGERS])
def test_a_merger_of_0_15_by_the_ordering_value_is_refused_where_the_later_write_wins(
    name: str, tmp_path: Path
) -> None:
    """0.15.0 was asked: it kept the row with the greater value, where the table says OverwriteWithLatest."""
    merger = {name: "org.apache.hudi.HoodieSparkRecordMerger"}
    later = {VERSION: 6, f"{_W}payload.class": COMMIT}
    refused: list[list[dict[str, Any]]] = [[{VERSION: 6, **merger}], [{**later, **merger}], [later, merger]]
    for number, given in enumerate(refused):
        error, text = told(tmp_path / str(number), *given)
        assert (error, "greater ordering value" in text) == ("UnsupportedError", True)
    assert not (tmp_path / "0").exists()
    for number, taken in enumerate((SIX, BY_COMMIT), start=3):
        assert told(tmp_path / str(number), {**taken, **merger}) == []


@pytest.mark.parametrize("prefix", ["hoodie", "hoodie.deltastreamer", "hoodie.streamer"])
def test_a_misspelt_option_of_partition_times_is_refused(prefix: str, tmp_path: Path) -> None:
    """It was stored in hoodie.properties, and rows got the folders of another zone."""
    misspelt = {f"{prefix}.keygen.timebased.output.timezon": "Asia/Tokyo"}
    for given in ({}, _TIMESTAMP):
        error, text = told(tmp_path / "t", {**given, **misspelt})
        assert error == "UsageError"
        assert re.search(r"Did you mean hoodie\.(deltastreamer\.)?keygen\.timebased\.output\.timezone\?", text)
    with pytest.raises(PhantombaseError, match=r"Did you mean hoodie\.keygen\.timebased\.timestamp\.type\?"):
        writer().key_generator("TIMESTAMP", timestamp_typ="SCALAR")
    assert not (tmp_path / "t").exists()


def test_a_prefix_that_hudi_does_not_read_names_no_times(tmp_path: Path) -> None:
    """Hudi's writers read hoodie.deltastreamer.keygen... only: rows got the folders of another zone than theirs."""
    error, text = told(tmp_path / "t", {**_TIMESTAMP, "hoodie.streamer.keygen.timebased.output.timezone": "Asia/Tokyo"})
    assert (error, "not a known configuration" in text) == ("UsageError", True)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("hudi", [{f"{_W}operation": "upsert"}, {f"{_W}operation": "insert_overwrite"}, {}])
def test_an_operation_that_a_method_overrides_is_named(hudi: dict[str, str], tmp_path: Path) -> None:
    described = writer(FIRST).conf({**USUAL, **hudi})
    for write, overrides in ((described.insert, True), (described.write, False), (described.bulk_insert, True)):
        with capture_logs() as logs:
            write(str(tmp_path))
        assert (f"{_W}operation" in names_in(logs)) is (overrides and bool(hudi))
    with capture_logs() as logs:
        writer().conf(hudi).foreach_batch(str(tmp_path), operation=Operation.DELETE)
        writer().conf({f"{_W}streaming.checkpoint.identifier": "q"}).foreach_batch(str(tmp_path), stream="r")
        writer().conf({f"{_W}partitions.to.delete": "x"}).delete_partition(str(tmp_path), ["x"])
        writer().conf({f"{_W}partitions.to.delete": "x"}).delete_partition(str(tmp_path), ["y"])
    assert names_in(logs) == [*hudi, f"{_W}streaming.checkpoint.identifier", f"{_W}partitions.to.delete"]


def test_fields_that_methods_say_are_compared_too(tmp_path: Path) -> None:
    described = writer(FIRST).table("t", database="a").key("id").partition("p").ordering("ts")
    described.upsert(str(tmp_path))
    with pytest.raises(PhantombaseError, match=r"found hoodie\.database\.name=a"):
        described.table("t", database="b").upsert(str(tmp_path))
    with capture_logs() as logs:
        described.table("t", version=8).key_generator("SIMPLE", timezone="Asia/Tokyo").upsert(str(tmp_path))
    assert names_in(logs) == [f"{_TIMES}timezone", VERSION]


@pytest.mark.parametrize("name", ["hoodie.logfile.data.block.format", None])
def test_parquet_blocks_that_text_forbids_are_named(name: str | None, tmp_path: Path) -> None:
    asked = {"hoodie.logfile.data.block.format": "parquet"}
    assert told(tmp_path, {}, asked if name else {}, rows=TEXTS) == ([name] if name else [])
    assert told(tmp_path, {"hoodie.logfile.data.block.format": "avro"}, rows=TEXTS) == []


def test_a_dictionary_without_a_merge_rule_makes_the_table_of_version_6_that_hudi_0_15_makes(tmp_path: Path) -> None:
    """Hudi 1.x makes another one of it, so that it is named. (Both were asked.)"""
    described = writer(FIRST).conf({**USUAL, VERSION: 6})
    with capture_logs() as logs:
        described.upsert(str(tmp_path / "a"))
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == ["merge_rule_not_given"]
    described.ordering("ts").upsert(str(tmp_path / "b"))
    writer(FIRST).ordering("ts").conf({**USUAL, VERSION: 6}).upsert(str(tmp_path / "c"))
    for path, rule in ((tmp_path / "a", COMMIT), (tmp_path / "b", EVENT), (tmp_path / "c", EVENT)):
        stored = TableConfig.parse((path / PROPERTIES).read_bytes(), "").properties
        assert stored["hoodie.compaction.payload.class"] == rule
        assert stored["hoodie.table.precombine.field"] == "ts"


_DUE = {**INLINE, COMMITS: 1}
_BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": 4}
_CLUSTER = {"hoodie.clustering.inline": True}
_PLAN, _SELECTED = "hoodie.clustering.plan.strategy.", "hoodie.clustering.plan.partition.filter.mode"
_SYNC = "hoodie.datasource.hive_sync."
_TOOL, _GLUE = "hoodie.meta.sync.client.tool.class", "hoodie.datasource.meta.sync.glue."
_OF_GLUE = {f"{_SYNC}enable": True, _TOOL: "org.apache.hudi.aws.sync.AwsGlueCatalogSyncTool"}
_SYNCED = {f"{_SYNC}enable": True, f"{_SYNC}metastore.uris": "thrift://127.0.0.1:1"}
VALUES: Mapping[str, tuple[Mapping[str, Any], list[Any]]] = {
    "hoodie.archive.automatic": ({}, [True]),
    "hoodie.bloom.index.update.partition.path": ({"hoodie.index.type": "GLOBAL_BLOOM"}, [False]),
    "hoodie.bucket.index.hash.field": ({**_BUCKET, f"{_W}recordkey.field": "id,p"}, ["id", "p"]),
    "hoodie.bucket.index.num.buckets": ({"hoodie.index.type": "BUCKET"}, [3, 7]),
    "hoodie.clean.automatic": ({}, [True]),
    "hoodie.clean.commits.retained": ({}, [1, 2]),
    "hoodie.clean.hours.retained": ({}, [1, 2]),
    "hoodie.clean.fileversions.retained": ({}, [1, 2]),
    "hoodie.clean.policy": ({}, ["KEEP_LATEST_FILE_VERSIONS", "KEEP_LATEST_BY_HOURS"]),
    "hoodie.clean.failed.writes.policy": ({}, ["LAZY"]),
    "hoodie.client.heartbeat.interval_in_ms": ({}, [5000, 120000]),
    "hoodie.client.heartbeat.tolerable.misses": ({}, [5, 10]),
    "hoodie.clustering.inline": ({}, [True]),
    "hoodie.clustering.inline.max.commits": (_CLUSTER, [1, 3]),
    "hoodie.clustering.plan.partition.filter.mode": (_CLUSTER, ["RECENT_DAYS", "SELECTED_PARTITIONS"]),
    f"{_PLAN}class": (_CLUSTER, ["SparkSingleFileSortPlanStrategy", "of.ours.Strategy"]),
    f"{_PLAN}cluster.begin.partition": ({**_CLUSTER, _SELECTED: "SELECTED_PARTITIONS"}, ["a", "b"]),
    f"{_PLAN}cluster.end.partition": ({**_CLUSTER, _SELECTED: "SELECTED_PARTITIONS"}, ["a", "b"]),
    f"{_PLAN}daybased.lookback.partitions": ({**_CLUSTER, _SELECTED: "RECENT_DAYS"}, [1, 7]),
    f"{_PLAN}daybased.skipfromlatest.partitions": ({**_CLUSTER, _SELECTED: "RECENT_DAYS"}, [1, 7]),
    f"{_PLAN}max.bytes.per.group": (_CLUSTER, [1 << 20]),
    f"{_PLAN}max.num.groups": (_CLUSTER, [1, 7]),
    f"{_PLAN}partition.regex.pattern": (_CLUSTER, ["a.*"]),
    f"{_PLAN}partition.selected": (_CLUSTER, ["a", "a,b"]),
    f"{_PLAN}single.group.clustering.enabled": (_CLUSTER, [False]),
    f"{_PLAN}small.file.limit": (_CLUSTER, [1, 1 << 20]),
    f"{_PLAN}sort.columns": (_CLUSTER, ["ts", "v,ts"]),
    f"{_PLAN}target.file.max.bytes": (_CLUSTER, [1 << 29, 1 << 20]),
    "hoodie.layout.optimize.strategy": ({**_CLUSTER, f"{_PLAN}sort.columns": "v,ts"}, ["z-order", "hilbert"]),
    f"{_SYNC}batch_num": (_SYNCED, [1, 7]),
    f"{_SYNC}database": (_SYNCED, ["a", "b"]),
    f"{_SYNC}enable": ({f"{_SYNC}metastore.uris": "thrift://127.0.0.1:1"}, [True]),
    f"{_SYNC}metastore.uris": ({f"{_SYNC}enable": True}, ["thrift://127.0.0.1:1", "http://a"]),
    f"{_SYNC}mode": (_SYNCED, ["jdbc", "hiveql", "glue"]),
    f"{_SYNC}omit_metadata_fields": (_SYNCED, [True]),
    f"{_SYNC}partition_extractor_class": (
        _SYNCED,
        ["org.apache.hudi.hive.SlashEncodedDayPartitionValueExtractor", "of.ours.Extractor"],
    ),
    f"{_SYNC}partition_fields": (_SYNCED, ["p", "q"]),
    f"{_SYNC}schema_string_length_thresh": (_SYNCED, [1, 7]),
    f"{_SYNC}serde_properties": (_SYNCED, ["a=b", "a"]),
    f"{_SYNC}skip_ro_suffix": (_SYNCED, [True]),
    f"{_SYNC}support_timestamp": (_SYNCED, [True]),
    f"{_SYNC}sync_as_datasource": (_SYNCED, [False]),
    f"{_SYNC}sync_comment": (_SYNCED, [True]),
    f"{_SYNC}table": (_SYNCED, ["a", "b"]),
    f"{_SYNC}table.strategy": (_SYNCED, ["RO", "RT"]),
    f"{_SYNC}table_properties": (_SYNCED, ["a=b", "a"]),
    _TOOL: (_SYNCED, ["a.Tool", _OF_GLUE[_TOOL]]),
    "hoodie.aws.glue.endpoint": (_OF_GLUE, ["http://127.0.0.1:1"]),
    "hoodie.aws.glue.region": (_OF_GLUE, ["eu-west-1"]),
    f"{_GLUE}database_name": (_OF_GLUE, ["a", "b"]),
    f"{_GLUE}metadata_file_listing": (_OF_GLUE, [True]),
    f"{_GLUE}skip_table_archive": (_OF_GLUE, [False]),
    f"{_GLUE}table_name": (_OF_GLUE, ["a", "b"]),
    "hoodie.datasource.meta.sync.enable": ({f"{_SYNC}metastore.uris": "thrift://127.0.0.1:1"}, [True]),
    "hoodie.meta.sync.sync_snapshot_with_table_name": (_SYNCED, [False]),
    "hoodie.combine.before.insert": ({}, [True]),
    "hoodie.combine.before.upsert": ({}, [False]),
    "hoodie.compact.inline": ({COMMITS: 1}, [True]),
    "hoodie.compact.schedule.inline": ({COMMITS: 1}, [True]),
    COMMITS: (INLINE, [1, 2]),
    SECONDS: ({**INLINE, "hoodie.compact.inline.trigger.strategy": "TIME_ELAPSED"}, [0, 7200]),
    "hoodie.compact.inline.trigger.strategy": ({**INLINE, SECONDS: 0}, ["NUM_OR_TIME", "TIME_ELAPSED"]),
    "hoodie.compaction.daybased.target.partitions": (
        {**_DUE, "hoodie.compaction.strategy": f"{_STRATEGY}DayBasedCompactionStrategy"},
        [1, 2],
    ),
    "hoodie.compaction.logfile.num.threshold": (
        {**_DUE, "hoodie.compaction.strategy": f"{_STRATEGY}LogFileNumBasedCompactionStrategy"},
        [2, 5],
    ),
    "hoodie.compaction.logfile.size.threshold": (_DUE, [10**6, 10**9]),
    "hoodie.compaction.partition.path.regex": (
        {**_DUE, "hoodie.compaction.strategy": f"{_STRATEGY}PartitionRegexBasedCompactionStrategy"},
        ["x", "q"],
    ),
    "hoodie.compaction.strategy": (_DUE, [f"{_STRATEGY}UnBoundedCompactionStrategy"]),
    "hoodie.compaction.target.io": (_DUE, [0, 1]),
    DATABASE: ({}, ["a", "b"]),
    f"{_W}hive_style_partitioning": ({}, [True]),
    f"{_W}keygenerator.class": ({}, [f"{_KEYGEN}ComplexKeyGenerator", f"{_KEYGEN}NonpartitionedKeyGenerator"]),
    f"{_W}keygenerator.type": ({}, ["COMPLEX", "NON_PARTITION"]),
    f"{_W}operation": ({}, ["insert", "bulk_insert"]),
    f"{_W}partitionpath.field": ({}, ["", "id"]),
    f"{_W}partitionpath.urlencode": ({}, [True]),
    f"{_W}partitions.to.delete": ({}, ["x", "*"]),
    f"{_W}payload.class": ({}, [COMMIT]),
    f"{_W}precombine.field": ({}, ["v", ""]),
    f"{_W}recordkey.field": ({}, ["id,p", "ts"]),
    f"{_W}streaming.checkpoint.identifier": ({}, ["q", "r"]),
    f"{_W}table.name": ({}, ["u", "w"]),
    "hoodie.index.type": ({}, ["BUCKET", "GLOBAL_SIMPLE", "RECORD_INDEX"]),
    "hoodie.keep.max.commits": ({}, [40, 22]),
    "hoodie.keep.min.commits": ({}, [3, 4]),
    f"{_TIMES}timestamp.type": (_TIMESTAMP, ["UNIX_TIMESTAMP", "EPOCHMICROSECONDS", "SCALAR"]),
    f"{_TIMES}output.dateformat": (_TIMESTAMP, ["yyyy", "HH"]),
    f"{_TIMES}timezone": (_TIMESTAMP, ["Asia/Tokyo", "GMT+8:00"]),
    f"{_TIMES}output.timezone": (_TIMESTAMP, ["Asia/Tokyo", "GMT+8:00"]),
    f"{_TIMES}input.timezone": (_TIMESTAMP, ["Asia/Tokyo", "GMT+8:00"]),
    f"{_TIMES}input.dateformat": (_TIMESTAMP, ["yyyy", "HH"]),
    f"{_TIMES}input.dateformat.list.delimiter.regex": (_TIMESTAMP, [";", "x"]),
    f"{_TIMES}timestamp.scalar.time.unit": (_TIMESTAMP, ["DAYS", "HOURS"]),
    "hoodie.logfile.data.block.format": ({}, ["avro"]),
    "hoodie.memory.compaction.max.size": ({}, [10**9, 10**8]),
    "hoodie.memory.spillable.map.path": ({}, ["/tmp", "/"]),
    "hoodie.metadata.compact.max.delta.commits": ({"hoodie.metadata.enable": True}, [1, 2]),
    "hoodie.metadata.enable": ({}, [True]),
    "hoodie.parquet.bloom.filter.enabled": ({}, [False]),
    "hoodie.parquet.compression.codec": ({}, ["snappy", "gzip", "uncompressed"]),
    "hoodie.parquet.max.file.size": ({}, [1, 100]),
    "hoodie.parquet.small.file.limit": ({}, [0, 1]),
    "hoodie.populate.meta.fields": ({}, [False]),
    "hoodie.record.index.update.partition.path": ({"hoodie.index.type": "RECORD_INDEX"}, [True]),
    "hoodie.record.merge.mode": ({}, ["COMMIT_TIME_ORDERING"]),
    "hoodie.simple.index.update.partition.path": ({"hoodie.index.type": "GLOBAL_SIMPLE"}, [False]),
    "hoodie.table.keygenerator.class": ({}, [f"{_KEYGEN}ComplexKeyGenerator"]),
    "hoodie.table.keygenerator.type": ({}, ["COMPLEX", "NON_PARTITION"]),
    "hoodie.table.ordering.fields": ({}, ["v", "v,ts"]),
    "hoodie.table.partition.fields": ({}, ["", "id"]),
    "hoodie.table.recordkey.fields": ({}, ["id,p", "ts"]),
    "hoodie.table.timeline.timezone": ({}, ["UTC"]),
    "hoodie.table.version": ({}, [8, "SIX"]),
    "hoodie.upsert.shuffle.parallelism": ({}, [1, 5]),
    "hoodie.write.concurrency.mode": ({}, ["OPTIMISTIC_CONCURRENCY_CONTROL", "NON_BLOCKING_CONCURRENCY_CONTROL"]),
    "hoodie.write.lock.provider": ({}, ["org.example.Lock", "org.apache.hudi.client.transaction.lock.Other"]),
    f"{ZK}base_path": ({}, ["/a", "/b"]),
    f"{ZK}lock_key": ({}, ["a", "b"]),
    f"{ZK}port": ({}, [2181, 2182]),
    f"{ZK}url": ({}, ["zk:2181", "zk"]),
    "hoodie.write.num.retries.on.conflict.failures": ({}, [1, 5]),
    "hoodie.write.record.merge.mode": ({}, ["COMMIT_TIME_ORDERING"]),
    WRITE_ID: ({}, [COMMIT_TIME]),
    "hoodie.write.set.null.for.missing.columns": ({}, [False]),
    VERSION: ({}, [8, 6]),
}
"""By name: the names with which it says something, and values that say something else than what is done anyway."""
HOW_ONLY = (
    "hoodie.archive.",
    "hoodie.aws.",
    "hoodie.clean.",
    "hoodie.client.heartbeat.",
    "hoodie.clustering.",
    "hoodie.compact.",
    "hoodie.compaction.",
    "hoodie.datasource.hive_sync.",
    "hoodie.datasource.meta.sync.",
    "hoodie.keep.",
    "hoodie.layout.optimize.",
    "hoodie.memory.",
    "hoodie.meta.sync.",
    "hoodie.metadata.",
    "hoodie.upsert.shuffle.",
    "hoodie.write.num.retries.",
)
"""Beginnings of names that a few writes of a sole writer do not show: there an option of the write must differ."""
_SAID_ELSEWHERE = {
    "hoodie.base.path",
    "hoodie.combine.before.delete",
    "hoodie.table.name",
    "hoodie.table.services.enabled",
    "path",
}


def effect(path: Path, conf: Mapping[str, Any]) -> tuple[Any, set[str], bool]:
    """What four writes with the dictionary leave, the names of their warnings, and whether one was refused."""
    conf, counts, refused = {**USUAL, **conf}, list[Any](), False
    writes = (("upsert", FIRST), ("insert", MORE), ("upsert", LAST), ("upsert", LAST.drop(["v"])))
    with capture_logs() as logs:
        for operation, rows in writes:
            try:
                made = writer(rows).conf({f"{_W}operation": operation, **conf}).write(str(path))
                counts.append((made.operation, made.files, made.writes, made.inserts, made.updates))
            except PhantombaseError as error:
                counts.append(str(error).split(";")[0])
                refused = True
    if not (path / PROPERTIES).exists():
        return counts, set(names_in(logs)), refused
    stored = dict(TableConfig.parse((path / PROPERTIES).read_bytes(), "").properties)
    columns = ("_hoodie_record_key", "_hoodie_partition_path", "id", "p", "ts", "v")
    rows = sorted(str([row.get(name) for name in columns]) for row in read(str(path)).to_arrow().to_pylist())
    return (counts, stored, rows, sorted(files(path))), set(names_in(logs)), refused


def files(path: Path) -> Iterator[str]:
    """Each file without what is drawn at random, with what says how it was written."""
    for file in path.rglob("*"):
        name = str(file.relative_to(path))
        if not file.is_file() or name.startswith(".hoodie/metadata"):
            continue
        how = ""
        if name.endswith(".parquet"):
            footer = pq.ParquetFile(file).metadata
            codec = footer.row_group(0).column(0).compression if footer.num_row_groups else ""
            how = f"{codec} {len(footer.metadata.get(b'org.apache.hudi.bloomfilter', b''))}"
        elif ".log." in name:
            how = str(b"PAR1" in file.read_bytes())
        bucket = re.search(r"/\.?(000000\d\d)-", name)
        plain = re.sub(r"\d{17}|\d+-\d+-\d+|\d{13}-[0-9a-f]{16}", "", re.sub(r"[0-9a-f]{8}-[0-9a-f-]{25,}", "", name))
        yield f"{bucket and bucket[1]} {plain} {how}"


def test_each_followed_name_has_values_that_are_tried() -> None:
    followed = {one.name for one in hudi_names().values() if one.kind is NameKind.SET}
    assert {*VALUES} == followed - _SAID_ELSEWHERE


@pytest.mark.deep
def test_each_value_changes_what_is_written_or_is_named(tmp_path: Path) -> None:
    folders, known, silent = (tmp_path / str(number) for number in count()), dict[str, Any](), list[Any]()
    for conf in ({}, _DUE, _BUCKET, _TIMESTAMP):
        assert effect(next(folders), conf) == effect(next(folders), conf)  # nothing differs by chance
    for name, (context, values) in VALUES.items():
        for beside in ({}, context) if context else ({},):
            if str(beside) not in known:
                known[str(beside)] = effect(next(folders), beside)[0]
            for value in values:
                found, named, refused = effect(next(folders), {**beside, name: value})
                differs = found != known[str(beside)]
                if name.startswith(HOW_ONLY) and not differs:
                    differs = writer().conf({**beside, name: value}).options != writer().conf(beside).options
                if not (differs or refused or name in named):
                    silent.append((name, value, beside))
    assert silent == []
