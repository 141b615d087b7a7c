"""`compact --schedule`: one command requests a compaction and executes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.errors import UsageError
from phantombase.timeline.read.table_read import read_table
from tests.support.compaction_steps import check_no_strays, open_table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.tables import one_of


def compact(path: Path, *args: str) -> str:
    """stdout of `compact` in this process."""
    words = ["compact", str(path), "--executor", "local", *args]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def compact_json(path: Path, *args: str) -> dict[str, Any]:
    """The one document of `compact --json`."""
    document = json.loads(compact(path, *args, "--json"))
    assert isinstance(document, dict)
    return document


@one_of("name", "v9_plain", "v6_plain")
def test_one_command_compacts_a_table(name: str, tmp_path: Path) -> None:
    """A plan is requested and executed; a second run has nothing to do and says why; the rows stay."""
    path = unzip_golden(name, tmp_path)
    before = read_table(open_table(path))
    assert "--schedule" in compact(path)
    found = compact_json(path, "--schedule", "--sole-writer")
    (plan,) = found["scheduled"]["plans"]
    (done,) = found["compacted"]
    assert (done["instant"], done["file_groups"]) == (plan["instant"], plan["file_groups"])
    again = compact(path, "--schedule", "--sole-writer")
    assert again.startswith("nothing to do: no compaction is pending, and none was requested: ")
    assert_same_rows(before, read_table(open_table(path)))
    check_no_strays(path)


def test_what_pends_already_is_executed_too(tmp_path: Path) -> None:
    """A plan of an earlier run that died before it was executed."""
    path = unzip_golden("v9_pending", tmp_path)
    (pending,) = open_table(path).load_timeline().pending_merges
    done = compact_json(path, "--schedule", "--sole-writer")["compacted"]
    assert pending.requested_time in [one["instant"] for one in done]
    assert not open_table(path).load_timeline().pending_merges


@pytest.mark.parametrize("name", ["v9_plain", "v9_pending"])
def test_a_dry_run_leaves_no_trace(name: str, tmp_path: Path) -> None:
    """It shows what would be requested and executed."""
    path = unzip_golden(name, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    found = compact_json(path, "--schedule", "--dry-run")
    pending = [i.requested_time for i in open_table(path).load_timeline().pending_merges]
    assert [one["instant"] for one in found["pending"]] == pending
    assert bool(found["scheduled"]["plans"] or pending)
    assert "would" in compact(path, "--schedule", "--dry-run")
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    "args",
    [
        ("--schedule",),
        ("--schedule", "--sole-writer", "--lock", "storage"),
        ("--schedule", "--sole-writer", "--instant", "20260101000000000"),
        ("--dry-run", "--drop-metadata-table"),
    ],
)
def test_contradictions_leave_no_trace(args: tuple[str, ...], tmp_path: Path) -> None:
    """Writers must be known; one instant cannot be new and named."""
    path = unzip_golden("v9_plain", tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError):
        compact(path, *args)
    assert sorted(tmp_path.rglob("*")) == before
