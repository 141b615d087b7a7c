"""The settings of writers: one file with commands and daemon, variables above it, the job above both."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.errors import UsageError
from phantombase.timeline.locks.table_lock import FileLock, table_lock
from phantombase.timeline.parquet.output_options import Codec
from phantombase.timeline.planning.triggers import TriggerStrategy
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import BackPressure, FullAction, Mode, MovedKeys, WriteOptions

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


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHANTOMBASE_CONFIG", raising=False)


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


def test_a_variable_is_above_the_file_and_the_job_above_both(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHANTOMBASE_CONFIG", file)
    monkeypatch.setenv("PHANTOMBASE_BUCKETS", "8")
    monkeypatch.setenv("PHANTOMBASE_MOVED_KEYS", "stay")
    made = writer().config()
    assert (made.options.buckets, made.options.moved_keys) == (8, MovedKeys.STAY)
    assert made.buckets(16).options.buckets == 16
    named = writer(storage_options={"region": "us-east-1"}).config()
    assert named.storage_options.given == (("region", "us-east-1"),)


def test_without_a_file_and_variables_all_is_as_without_config() -> None:
    assert writer().config().options == WriteOptions()


def test_back_pressure_counts_where_a_setting_of_it_is_given(tmp_path: Path) -> None:
    """Else a write that is no stream goes on, and batches of a stream wait."""
    path = tmp_path / "f.toml"
    path.write_text('[write]\nstop-action = "wait"\n')
    assert writer().config(str(path)).options.back_pressure == BackPressure(action=FullAction.WAIT)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[write]\nbukets = 4", "Did you mean buckets"),
        ("[wirte]\nbuckets = 4", "Did you mean write"),
        ("[schedule]\nmax-delta-comits = 4", "Did you mean max-delta-commits"),
        ("bukets = 4", "not a setting on top"),
        ("[write]\nbuckets = 'many'", "buckets"),
        ("[write]\nbuckets = 0", "buckets"),
        ("[write]\nservices = 'stitch'", "does not stitch"),
        ("[write]\ncompaction = 'now'", "compaction"),
    ],
)
def test_what_is_no_setting_is_refused(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=what):
        writer().config(str(path))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unreadable configuration file"):
        writer().config(str(tmp_path / "none.toml"))


def test_it_comes_first(file: str) -> None:
    """Behind `buckets(8)` it would turn a bucket index into another one."""
    with pytest.raises(UsageError, match="what is called behind it wins"):
        writer().buckets(8).config(file)


def test_config_show_names_the_settings_of_writers(file: str) -> None:
    done = CliRunner().invoke(app, ["config", "show", "write", "--config", file, "--json"], catch_exceptions=False)
    found = {row["name"]: (row["value"], row["from"]) for row in json.loads(done.stdout)["settings"]}
    assert found["buckets"] == ("4", f"{file} [write]")
    assert found["max-delta-commits"] == ("2", f"{file} [schedule]")
    assert found["codec"] == ("gzip", file)
    assert found["small-file-bytes"] == ("100m", "default")


def test_they_are_no_command() -> None:
    done = CliRunner().invoke(app, ["write"])
    assert done.exit_code == 2
    assert "\n  write " not in CliRunner().invoke(app, ["--help"]).stdout


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
