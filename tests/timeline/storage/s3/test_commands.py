"""Every command on a table on S3: it works, or says in one line why it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.compactor_daemon.records.failures import Failure, record_failure
from phantombase.timeline.cli.main import app as timeline
from phantombase.timeline.errors import ConflictError, MissingFileError, PhantombaseError, StorageError, UsageError
from phantombase.timeline.storage import object_clients
from phantombase.timeline.table.table import Table
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep
from tests.support.servers.s3_server import S3Server

_OF_TIMELINE = ("show", "slices", "plan", "read", "audit", "validate", "repair-times")


@pytest.fixture(autouse=True)
def no_local_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing becomes a file in the working directory, such as a folder `s3:`."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)


def run(*args: str) -> str:
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
    assert instant in run("show", url, "--pending", "--archived")
    assert "phantom" in run("slices", url)
    assert "recommended" in run("plan", url, instant)
    for more in ([], ["--query", "read-optimized"], ["--as-of", instant]):
        assert "rows of" in run("read", url, "--output", f"{tmp_path}/read.parquet", "--overwrite", *more)
    assert "overdue" in run("status", url, "--slo", "1")
    assert "No process" in run("claims", url)

    what = Failure(at_ms=0, who="a daemon", error="StorageError", what="no space", park=True)
    record_failure(Table.open(url).storage, instant, what)
    assert "parked" in run("status", url)
    assert "1 failure" in run("release", url, instant)
    run("unschedule", url, instant, "--lock", "storage")
    assert instant not in run("show", url, "--pending")
    run("schedule", url, "--dry-run")
    assert "requested" in run("schedule", url, "--lock", "storage", "--max-file-slices", "1")
    run("run", url, "--once", "--executor", "local", "--schedule", "--sole-writer", "--trigger", "always")
    assert "Nothing is pending" in run("show", url)
    assert "proved" in run("audit", url)
    if "metadata" in name:
        assert "good" in run("validate", url)
    assert "nothing to do" in run("compact", url, "--executor", "local")
    assert list(Path().iterdir()) == []


def test_a_plan_with_logs_behind_it_is_not_taken_back(s3: S3Server, tmp_path: Path) -> None:
    """On version 6 their rows would be lost."""
    url = s3.upload(unzip_golden("v6_pending", tmp_path), s3.new_bucket(), "tables/t")
    (instant,) = [i.requested_time for i in Table.open(url).load_timeline().pending_merges]
    assert "rows would be lost" in refused(ConflictError, "unschedule", url, instant, "--sole-writer")
    run("compact", url, "--executor", "local")
    assert "proved" in run("audit", url)


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
