"""What Hudi leaves unreadable that is killed while it writes in place on a local disk: commands of errors end it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.instant import Instant, State
from tests.support.archived_tables import long_table, one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.selection import deep
from tests.support.written_tables import read_rows


@pytest.mark.parametrize("size", [0, deep(50)])
@pytest.mark.parametrize("version", [6, deep(8), 9])
def test_the_command_that_its_error_names_ends_it(version: int, size: int, tmp_path: Path) -> None:
    """Its writer reported no write. The rows of before are there, and the table goes on."""
    path = tmp_path / "trips"
    rows = long_table(path, version)
    upsert(path, one_row("torn", 100))
    timeline = open_table(path).load_timeline()
    newest = timeline.completed_writes[timeline.latest_completed]
    file = path / open_table(path).instant_path(newest)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(MalformedError) as error:
        read_rows(path)
    (command,) = re.findall(r"`compactor-daemon (.*?)`", error.value.todo or "")
    words = [str(path) if word == "TABLE" else word for word in command.split()]
    done = CliRunner().invoke(app, [*words, "--sole-writer"])
    assert done.exit_code == 0, done.output
    assert read_rows(path) == rows
    upsert(path, one_row("torn", 101))
    assert read_rows(path) == rows | {"torn": (101, 101.0)}


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("version", [6, deep(8), 9])
def test_a_restore_takes_a_plan_that_cannot_be_read_away(version: int, begun: bool, tmp_path: Path) -> None:
    """As the error of such a plan says: nothing else ends it."""
    path = tmp_path / "trips"
    rows = long_table(path, version)
    table = open_table(path)
    timeline = table.load_timeline()
    plan = Instant(requested_time=table.next_time(timeline), action="compaction", state=State.REQUESTED)
    (path / table.instant_path(plan)).write_bytes(b"Obj\x01torn")
    if begun:
        (path / table.instant_path(plan.at(State.INFLIGHT))).touch()
    with pytest.raises(MalformedError, match="`compactor-daemon restore TABLE --to INSTANT`"):
        read_rows(path)
    words = ["restore", str(path), "--to", timeline.latest_completed, "--sole-writer"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert read_rows(path) == rows
    upsert(path, one_row("k0", 200))
    assert read_rows(path) == rows | {"k0": (200, 200.0)}
