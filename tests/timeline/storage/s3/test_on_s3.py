"""Tables on an S3 server: the commands, readers, writers and executors, as on a disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.failures import Failure, record_failure
from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.timeline.cli.main import app as timeline
from phantombase.timeline.errors import ConflictError, MissingFileError, PhantombaseError, StorageError, UsageError
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage import object_clients
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import GOLDEN, one_of, unzip_golden
from tests.support.places import ROOT
from tests.support.s3_table import AnyServer, check_compacted, check_read_and_compacted, fares, on_s3, run
from tests.support.s3_table import no_local_disk as no_local_disk
from tests.support.selection import deep
from tests.support.servers.s3_server import S3Server
from tests.support.trips import rows, trips
from tests.support.warm_spark import WarmSpark, warm_spark

USUAL = {"v6_with_metadata_table"}


@pytest.mark.parametrize("name", [n if n in USUAL else deep(n) for n in GOLDEN])
def test_golden_tables_are_read_and_compacted(name: str, s3: AnyServer, tmp_path: Path) -> None:
    check_read_and_compacted(name, s3, tmp_path)


@one_of("version", 6, 9)
def test_a_table_is_made_and_written_there(s3: S3Server, version: int) -> None:
    """New table, upserts, deletes, a plan and its compaction; equal to the same steps on disk."""
    url = f"s3://{s3.new_bucket()}/a/b"
    trips(rows((1, 1, 1.0), (2, 1, 2.0), (3, 1, 3.0)), version).upsert(url)
    trips(rows((1, 2, 1.5), (4, 2, 4.0)), version).upsert(url)
    trips(rows((2, 3, 0.0)), version).delete(url)
    expected = {"k0001": 1.5, "k0003": 3.0, "k0004": 4.0}
    assert fares(url) == expected
    run("schedule", url, "--sole-writer")
    trips(rows((3, 4, 3.5)), version).upsert(url)
    run("compact", url, "--executor", "local")
    assert fares(url) == {**expected, "k0003": 3.5}
    assert Table.open(url).load_timeline().pending_merges == ()


def test_a_daemon_serves_a_table_there(s3: S3Server, tmp_path: Path) -> None:
    path, url = on_s3(s3, "v9_two_pending", tmp_path)
    run("run", url, "--once", "--executor", "local")
    assert Table.open(url).load_timeline().pending_merges == ()
    expected = path.with_name(f"{path.name}.expected") / "snapshot_after_compaction.parquet"
    assert_same_rows(read_table(Table.open(url)), pq.read_table(expected))
    run("status", url)


@pytest.mark.deep  # `test_modes.py` has a job whose tasks do
@pytest.mark.spark
def test_a_command_with_spark_executors(s3: S3Server, tmp_path: Path) -> None:
    """Tasks run in processes of their own, with what the environment names."""
    path, url = on_s3(s3, "v9_two_pending", tmp_path)
    before = read_table(Table.open(url))
    # A process of its own: Spark's workers have the environment of the JVM, which other tests may have started before.
    command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "compact", url, "--master", "local[2]"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_compacted("v9_two_pending", path, url, before, read_table(Table.open(url)))


@pytest.fixture(scope="module")
def spark(shared_s3: S3Server) -> Iterator[WarmSpark]:
    """One Spark for all tables, whose processes know the server."""
    with warm_spark(shared_s3.environment()) as running:
        yield running


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.parametrize("name", GOLDEN)
def test_spark_executors_open_the_storage_by_its_url(name: str, spark: WarmSpark, s3: S3Server, tmp_path: Path) -> None:
    """The golden tables in tasks of Spark."""
    path, url = on_s3(s3, name, tmp_path)
    before = read_table(Table.open(url))
    if not Table.open(url).load_timeline().pending_merges:
        run("schedule", url, "--sole-writer", "--drop-metadata-table")
    spark.compact(url)
    check_compacted(name, path, url, before, read_table(Table.open(url)))


# Every command on a table on S3: it works, or says in one line why it cannot.


_OF_TIMELINE = ("show", "slices", "plan", "read", "audit", "validate", "repair-times")


def commands_run(*args: str) -> str:
    """One command, which must end well."""
    done = CliRunner().invoke(timeline if args[0] in _OF_TIMELINE else daemon, args)
    assert done.exit_code == 0, f"{args}: {done.output} {done.exception}"
    return done.output


def refused(error: type[PhantombaseError], *args: str) -> str:
    """One command, which must be refused; the line it ends with."""
    done = CliRunner().invoke(timeline if args[0] in _OF_TIMELINE else daemon, args)
    assert isinstance(done.exception, error), f"{args}: {done.output} {done.exception}"
    assert "\n" not in str(done.exception)
    return str(done.exception)


@pytest.mark.parametrize("name", ["v9_two_pending", *map(deep, ("v8_with_metadata_table", "v9_with_metadata_table"))])
def test_from_a_plan_to_its_proof(name: str, s3: S3Server, tmp_path: Path) -> None:
    url = s3.upload(unzip_golden(name, tmp_path), s3.new_bucket(), "tables/t")
    *_, instant = [i.requested_time for i in Table.open(url).load_timeline().pending_merges]
    assert instant in commands_run("show", url, "--pending")
    commands_run("show", url, "--archived")
    assert "phantom" in commands_run("slices", url)
    assert "recommended" in commands_run("plan", url, instant)
    for more in ([], ["--query", "read-optimized"], ["--as-of", instant]):
        assert "rows of" in commands_run("read", url, "--output", f"{tmp_path}/read.parquet", "--overwrite", *more)
    assert "overdue" in commands_run("status", url, "--slo", "1")
    assert "No process" in commands_run("claims", url)

    what = Failure(at_ms=0, who="a daemon", error="StorageError", what="no space", park=True)
    record_failure(Table.open(url).storage, instant, what)
    assert "parked" in commands_run("status", url)
    assert "1 failure" in commands_run("release", url, instant)
    commands_run("unschedule", url, instant, "--lock", "storage")
    assert instant not in commands_run("show", url, "--pending")
    commands_run("schedule", url, "--dry-run")
    assert "requested" in commands_run("schedule", url, "--lock", "storage", "--max-file-slices", "1")
    commands_run("run", url, "--once", "--executor", "local", "--schedule", "--sole-writer", "--trigger", "always")
    assert "Nothing is pending" in commands_run("show", url)
    assert "proved" in commands_run("audit", url)
    if "metadata" in name:
        assert "good" in commands_run("validate", url)
    assert "nothing to do" in commands_run("compact", url, "--executor", "local")
    assert list(Path().iterdir()) == []


def test_a_plan_with_logs_behind_it_is_not_taken_back(s3: S3Server, tmp_path: Path) -> None:
    """On version 6 their rows would be lost."""
    url = s3.upload(unzip_golden("v6_pending", tmp_path), s3.new_bucket(), "tables/t")
    (instant,) = [i.requested_time for i in Table.open(url).load_timeline().pending_merges]
    assert "rows would be lost" in refused(ConflictError, "unschedule", url, instant, "--sole-writer")
    commands_run("compact", url, "--executor", "local")
    assert "proved" in commands_run("audit", url)


def test_what_only_a_disk_can_do_is_refused(s3: S3Server, tmp_path: Path) -> None:
    """Times of objects, lock files, and output to a URL."""
    url = s3.upload(unzip_golden("v6_pending", tmp_path), s3.new_bucket(), "tables/t")
    assert "gives its objects their times itself" in refused(StorageError, "repair-times", url, "--all")
    for command in ("compact", "schedule"):
        assert "expected storage" in refused(UsageError, command, url, "--lock", f"file:{tmp_path}/lock")
    for arguments in (["read", url, "--output"], ["demo", "--executor", "local", "--keep"]):
        done = CliRunner().invoke(timeline if arguments[0] == "read" else daemon, [*arguments, f"{url}/copy"])
        assert done.exit_code == 2
        assert "not a URL" in " ".join(done.output.split())
    assert list(Path().iterdir()) == []


def test_a_refused_table_is_left_as_it_was(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is tried beside the checks of the plan: nothing of the trial stays."""
    object_clients.forget()
    url = s3.upload(unzip_golden("v9_pending", tmp_path), s3.new_bucket(), "tables/t")
    storage = Table.open(url).storage
    log = next(path for path, _ in storage.list_below("north") if ".log." in path)
    storage.delete(f"north/{log}")
    before = storage.list_below("")
    refused(MissingFileError, "compact", url, "--executor", "local")
    assert storage.list_below("") == before
    assert any("probe-" in asked.path for asked in s3.asked)
