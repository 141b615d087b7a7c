"""`--dry-run`: everything is checked and shown, and the table stays as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.errors import PhantombaseError, UsageError
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden
from tests.support.tables import one_of


def call(path: Path, *words: str) -> dict[str, Any]:
    """The document of a command of one table."""
    command, *rest = words
    args = [*command.split(), str(path), *rest, "--json"]
    done = CliRunner().invoke(app, args, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def traces(path: Path) -> dict[Path, int]:
    """All files with their times."""
    return {p: p.stat().st_mtime_ns for p in path.rglob("*")}


def test_every_command_that_changes_a_table_has_a_dry_run() -> None:
    """They are those that take a lock."""
    group: Any = typer.main.get_command(app)
    commands = [(name, inner) for name, one in group.commands.items() for inner in _within(one)]
    takes = [(name, {option for param in command.params for option in param.opts}) for name, command in commands]
    changing = {name: options for name, options in takes if "--lock" in options}
    assert {name for name, options in changing.items() if "--dry-run" not in options} <= {"run"}
    assert len(changing) > 8


@one_of("name", "v9_with_metadata_table", "v6_with_metadata_table")
def test_no_dry_run_asks_who_writes(name: str, tmp_path: Path) -> None:
    """It takes no lock."""
    path = unzip_golden(name, tmp_path)
    before = traces(path)
    newest = max(open_table(path).load_timeline().completed_writes)
    first = min(open_table(path).load_timeline().completed_writes)
    for words in (
        ["clean"],
        ["archive"],
        ["stitch"],
        ["metadata"],
        ["savepoint create"],
        ["rollback", newest],
        ["restore", "--to", first],
        ["schedule"],
    ):
        call(path, *words, "--dry-run")
    assert traces(path) == before


def _within(command: Any) -> list[Any]:
    return list(getattr(command, "commands", {}).values()) or [command]


@one_of("name", "v6_pending", "v9_pending")
def test_what_would_be_done_and_nothing_is(name: str, tmp_path: Path) -> None:
    """Then the same command does what it showed."""
    path = unzip_golden(name, tmp_path)
    (pending,) = (i.requested_time for i in open_table(path).load_timeline().pending_merges)
    before = traces(path)
    assert call(path, "release", pending, "--dry-run")["failures"] == 0
    shown = call(path, "savepoint create", "--dry-run")
    with pytest.raises(UsageError, match="no such savepoint"):
        call(path, "savepoint delete", shown["instant"], "--dry-run")
    assert traces(path) == before
    made = call(path, "savepoint create", "--sole-writer")
    assert (made["instant"], made["files"]) == (shown["instant"], shown["files"])
    kept = traces(path)
    assert call(path, "savepoint delete", made["instant"], "--dry-run")["deleted"] == made["instant"]
    assert traces(path) == kept


def test_a_plan_that_would_be_taken_back(tmp_path: Path) -> None:
    """Refused, or shown, as without `--dry-run`."""
    path = unzip_golden("v9_plain", tmp_path)
    call(path, "schedule", "--sole-writer")
    (pending,) = (i.requested_time for i in open_table(path).load_timeline().pending_merges)
    before = traces(path)
    shown = call(path, "unschedule", pending, "--dry-run")
    assert traces(path) == before
    done = call(path, "unschedule", pending, "--sole-writer")
    assert (shown["instant"], shown["file_groups"]) == (done["instant"], done["file_groups"])


def test_a_write_that_would_be_taken_back(tmp_path: Path) -> None:
    """The newest; another one is refused in a dry run too."""
    path = unzip_golden("v9_plain", tmp_path)
    writes = sorted(open_table(path).load_timeline().completed_writes)
    before = traces(path)
    with pytest.raises(PhantombaseError):
        call(path, "rollback", writes[0], "--dry-run")
    shown = call(path, "rollback", writes[-1], "--dry-run")
    assert (shown["rollback"], shown["dry_run"]) == ("", True)
    assert traces(path) == before
