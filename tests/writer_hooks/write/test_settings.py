"""The settings of writers: one file with commands and daemon, variables above it, the job above both."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.codec.output_options import Codec
from phantombase.timeline.errors import PhantombaseError, UnsupportedError, UsageError
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.table_lock import FileLock, table_lock
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import (
    BackPressure,
    CompactionOptions,
    FullAction,
    Mode,
    MovedKeys,
    Operation,
    WriteOptions,
)
from phantombase.writer_hooks.write.settings import SETTINGS, write_settings
from tests.support.places import ROOT, capture_logs
from tests.support.selection import ALL, for_each

_FILE = """
timezone = "UTC"
codec = "gzip"
lock = "file:LOCKS/{name}"
storage-option = ["region=eu-west-1"]
[schedule]
max-delta-commits = 2
sole-writer = false
[run]
tables = ["T"]
retries = 2
[write]
buckets = 4
bucket-fields = ["id"]
file-bytes = "64m"
conflict_retries = 3
compaction = "schedule"
zookeeper = "zk1:2181/fleet?sasl=GSSAPI"
services = "clean"
clean-retain = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "phantombase.toml"
    path.write_text(_FILE.replace("LOCKS", str(tmp_path)))
    return str(path)


@pytest.fixture
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHANTOMBASE_CONFIG", raising=False)


@pytest.mark.usefixtures("_no_variables")
def test_a_file_says_what_a_write_does(file: str, tmp_path: Path) -> None:
    """What is on top counts as for commands; [schedule] says what is requested."""
    made = writer().config(file)
    options = made.options
    assert (options.buckets, options.bucket_fields, options.file_bytes) == (4, ("id",), 64 << 20)
    assert (options.retries, options.output.codec, options.clock.timezone) == (3, Codec.GZIP, "UTC")
    assert options.lock == f"file:{tmp_path}/{{name}}"
    assert (options.compaction.mode, options.compaction.schedule.max_delta_commits) == (Mode.SCHEDULE, 2)
    assert options.compaction.schedule.strategy is TriggerStrategy.NUM_COMMITS_AFTER_LAST_REQUEST
    assert options.compaction.fleet is not None
    assert options.compaction.fleet.hosts == "zk1:2181/fleet"
    assert (options.clean, options.archive, options.metadata) == (CleanOptions(retain=7), None, None)
    assert made.storage_options.given == (("region", "eu-west-1"),)


@pytest.mark.usefixtures("_no_variables")
def test_a_variable_is_above_the_file_and_the_job_above_both(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHANTOMBASE_CONFIG", file)
    monkeypatch.setenv("PHANTOMBASE_BUCKETS", "8")
    monkeypatch.setenv("PHANTOMBASE_MOVED_KEYS", "stay")
    made = writer().config()
    assert (made.options.buckets, made.options.moved_keys) == (8, MovedKeys.STAY)
    assert made.buckets(16).options.buckets == 16
    named = writer(storage_options={"region": "us-east-1"}).config()
    assert named.storage_options.given == (("region", "us-east-1"),)


@pytest.mark.usefixtures("_no_variables")
def test_without_a_file_and_variables_all_is_as_without_config() -> None:
    assert writer().config().options == WriteOptions()


@pytest.mark.usefixtures("_no_variables")
def test_back_pressure_counts_where_a_setting_of_it_is_given(tmp_path: Path) -> None:
    """Else a write that is no stream goes on, and batches of a stream wait."""
    path = tmp_path / "f.toml"
    path.write_text('[write]\nstop-action = "wait"\n')
    assert writer().config(str(path)).options.back_pressure == BackPressure(action=FullAction.WAIT)
    path.write_text("[write]\nslow-trigger = 4\n")
    assert writer().config(str(path)).options.back_pressure == BackPressure(slow_trigger=4)


@pytest.mark.usefixtures("_no_variables")
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[write]\nbukets = 4", "Did you mean buckets"),
        ("[wirte]\nbuckets = 4", "Did you mean write"),
        ("[write.clean]\nretain = 4", r"not the table of a command.*\[write.clean\]"),
        ("[[write]]\nbuckets = 4", r"\[write\] is a table"),
        ("[schedule]\nmax-delta-comits = 4", "Did you mean max-delta-commits"),
        ("bukets = 4", "not a setting on top"),
        ("[write]\nbuckets = 'many'", "buckets"),
        ("[write]\nbuckets = 0", "buckets"),
        ("[write]\nservices = 'orphans'", "does not run orphans"),
        ("[write]\ncompaction = 'now'", "compaction"),
        ("[write]\nbucket-fields = ['id']", "bucket-fields has no effect without buckets"),
    ],
)
def test_what_is_no_setting_is_refused(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=what):
        writer().config(str(path))


@pytest.mark.usefixtures("_no_variables")
def test_settings_of_what_does_not_run_are_named(tmp_path: Path) -> None:
    """They may stand on top of the file, for other commands."""
    text = "[write]\nclean-retain = 3\narchive-min-instants = 5\ncompaction-limit = 9"
    for services, names in (
        ("", ["archive-min-instants clean-retain compaction-limit"]),
        ("\nstop-action = 'fail'\nstop-wait = 9", ["archive-min-instants clean-retain compaction-limit stop-wait"]),
        ("\nservices = 'clean'\ncompaction = 'inline'", ["archive-min-instants"]),
        ("\nservices = 'clean,archive'\ncompaction = 'inline'", []),
    ):
        path = tmp_path / "idle.toml"
        path.write_text(text + services)
        with capture_logs() as logs:
            writer().config(str(path))
        assert [log["names"] for log in logs] == names


@pytest.mark.usefixtures("_no_variables")
def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Or is no text."""
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for name in ("none.toml", "binary.toml"):
        with pytest.raises(UsageError, match="unreadable configuration file"):
            writer().config(str(tmp_path / name))


@pytest.mark.usefixtures("_no_variables")
def test_it_comes_first(file: str) -> None:
    """Behind `buckets(8)` it would turn a bucket index into another one."""
    with pytest.raises(UsageError, match="what is called after it wins"):
        writer().buckets(8).config(file)


@pytest.mark.usefixtures("_no_variables")
def test_config_show_names_the_settings_of_writers(file: str) -> None:
    done = CliRunner().invoke(app, ["config", "show", "write", "--config", file, "--json"], catch_exceptions=False)
    found = {row["name"]: (row["value"], row["from"]) for row in json.loads(done.stdout)["settings"]}
    assert found["buckets"] == ("4", f"{file} [write]")
    assert found["max-delta-commits"] == ("2", f"{file} [schedule]")
    assert found["codec"] == ("gzip", file)
    assert found["small-file-bytes"] == ("100m", "default")


@pytest.mark.usefixtures("_no_variables")
def test_a_setting_below_its_least_value_is_refused(tmp_path: Path) -> None:
    """Every one, by its name and the table that has it."""
    path = tmp_path / "low.toml"
    bounded = {
        flag.replace("_", "-"): field.metadata["least"]
        for group in SETTINGS.values()
        for flag, field in group.fields.items()
        if field.metadata["least"] is not None
    }
    assert len(bounded) > 10
    for name, least in bounded.items():
        path.write_text(f"[write]\n{name} = {int(least) - 1}\n")
        with pytest.raises(UsageError, match=name) as refused:
            writer().config(str(path))
        assert f"{path} [write]" in str(refused.value), name


@pytest.mark.usefixtures("_no_variables")
def test_any_value_of_any_setting_is_taken_or_refused_by_name(tmp_path: Path) -> None:
    """Nothing else is raised; those of services, locks and stores are texts, whose own errors say what is wrong."""
    path = tmp_path / "odd.toml"
    odd = ("true", "0", "-1", "1.5", "nan", "1e400", "''", "'x=y'", "[]", "[1]", "2026-01-01")
    some = len(odd) if ALL else 3
    values = cycle(odd)  # a usual run gives each setting some of them
    for kind, group in SETTINGS.items():
        for name, value in ((flag.replace("_", "-"), next(values)) for flag in group.fields for _ in range(some)):
            path.write_text(f"[write]\n{name} = {value}\n")
            refused = ""
            try:
                write_settings(str(path))
            except PhantombaseError as error:
                refused = str(error)
            assert not refused or kind in ("own", "zookeeper") or name in refused, (name, value, refused)


@pytest.mark.usefixtures("_no_variables")
@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("BUCKET_FIELDS", "id day", ("id", "day")),
        ("FILE_BYTES", "64m", 64 << 20),
        ("LAZY_ROLLBACK", "On", True),
        ("HEARTBEAT", "2.5", 2.5),
        ("CONFLICT_RETRIES", "3", 3),
        ("LOG_FORMAT", "avro", LogFormat.AVRO),
    ],
)
def test_a_variable_is_a_text_of_each_type(name: str, text: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHANTOMBASE_BUCKETS", "4")
    monkeypatch.setenv(f"PHANTOMBASE_{name}", text)
    options = writer().config().options
    given = [getattr(options, one.name) for one in fields(options)]
    assert value in given
    monkeypatch.setenv(f"PHANTOMBASE_{name}", "")
    assert writer().config().options == WriteOptions(buckets=4)


@pytest.mark.usefixtures("_no_variables")
def test_what_is_no_value_names_the_setting_and_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHANTOMBASE_BUCKETS", "many")
    with pytest.raises(
        UsageError, match="not a value of buckets; at PHANTOMBASE_BUCKETS; expected a whole number; found 'many'"
    ):
        writer().config()


def test_they_are_read_without_the_command_line() -> None:
    """Which costs a job a tenth of a second, and each batch of a stream its parsing."""
    script = "import sys, phantombase.writer_hooks.write.settings as s; s.write_settings(None); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    assert not {"typer", "click", "rich"} & set(done.stdout.split())


@pytest.mark.usefixtures("_no_variables")
def test_they_are_no_command() -> None:
    done = CliRunner().invoke(app, ["write"])
    assert done.exit_code == 2
    assert "\n  write " not in CliRunner().invoke(app, ["--help"]).stdout


@pytest.mark.usefixtures("_no_variables")
def test_a_write_by_a_file(tmp_path: Path) -> None:
    """Commands find the same lock by the same file, and what the file says is requested."""
    path, table = tmp_path / "phantombase.toml", str(tmp_path / "rides")
    path.write_text(
        f'lock = "file:{tmp_path}/{{name}}.lock"\n[write]\nbuckets = 1\ncompaction = "schedule"\n'
        "[schedule]\nmax-delta-commits = 2\n"
    )
    for day in range(3):
        rows = pa.table({"id": ["a", "b"], "ts": [day, day]})
        done = writer(rows).config(str(path)).table("rides").key("id").ordering("ts").upsert(table)
    assert done.after.scheduled is None  # one was requested by the write before
    assert len(Table.open(table).load_timeline().pending_compactions) == 1
    assert (tmp_path / "rides.lock").exists()
    assert not (tmp_path / "{name}.lock").exists()
    assert table_lock(open_storage(table), f"file:{tmp_path}/{{name}}.lock") == FileLock(f"{tmp_path}/rides.lock")
    cleaned = CliRunner().invoke(app, ["clean", table, "--config", str(path)], catch_exceptions=False)
    assert cleaned.exit_code == 0, cleaned.output
    assert not (tmp_path / "{name}.lock").exists()


# Configurations of whole Hudi jobs, given as they are.


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


@for_each(
    [
        ("hoodie.table.nam", "t", "Did you mean hoodie.table.name"),
        ("hoodie.datasource.write.recordkey.fields", "id", "Did you mean hoodie.datasource.write.recordkey.field"),
        ("primaryKey", "id", "Did you mean hoodie.datasource.write.recordkey.field"),
        ("hoodie.write.concurrency.mode", "OPTIMISTIC_CONCURRENCY_CONTROL", "without a lock"),
        ("hoodie.datasource.write.commitmeta.key.prefix", "x", "not copied into commits"),
    ]
)
def test_one_mistake_is_one_error(name: str, value: str, expected: str) -> None:
    with pytest.raises((UsageError, UnsupportedError), match=expected):
        writer().conf({name: value})


def test_a_lock_that_is_an_option_counts() -> None:
    made = writer().option(lock="file:/tmp/x").conf({"hoodie.write.concurrency.mode": "optimistic_concurrency_control"})
    assert made.options.lock == "file:/tmp/x"


@for_each(
    [
        ("zk1:2181,zk2:2182", None, "zk1:2181,zk2:2182"),
        ("zk1,zk2:2182/chroot", None, "zk1:2181,zk2:2182/chroot"),
        ("zk1", "2181", "zk1:2181"),
        ("zk1:2182", "2181", "zk1:2182"),  # Hudi reads the address alone
        ("[::1],zk2", None, "[::1]:2181,zk2:2181"),
    ]
)
def test_zookeeper_without_a_port_is_that_of_hudi(url: str, port: str | None, hosts: str) -> None:
    """Hudi hands the address to ZooKeeper's client, which takes 2181; it does not read the option of the port."""
    given = {"hoodie.write.lock.zookeeper.url": url} | ({"hoodie.write.lock.zookeeper.port": port} if port else {})
    assert writer().conf({**JOB, **given}).options.lock == f"zookeeper:{hosts}/locks/orders"


def test_a_port_that_hudi_does_not_read_is_refused() -> None:
    given = {"hoodie.write.lock.zookeeper.url": "zk1", "hoodie.write.lock.zookeeper.port": "2182"}
    with pytest.raises(UsageError, match="zk1:2182"):
        writer().conf({**JOB, **given})


def test_a_lock_that_locks_nothing_is_refused_with_what_to_do() -> None:
    given = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.NoopLockProvider"}
    with pytest.raises(UnsupportedError, match="leave it out if no other process writes"):
        writer().conf({**JOB, **given})
