"""A completed file of an overwrite or a clustering that cannot be read: a restore takes it back."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.stitching.stitch import stitch_table
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.stitching.options import StitchOptions
from tests.support.archived_tables import LOCK, compact, long_table, one_row, overwrite, upsert
from tests.support.compaction_steps import open_table
from tests.support.selection import deep
from tests.support.tables import one_of
from tests.support.written_tables import read_rows


@pytest.mark.parametrize("size", [0, 50])
@pytest.mark.parametrize("by", ["overwrite", "clustering"])
@one_of("version", 9, 8, 6)
def test_the_command_that_its_error_names_ends_it(version: int, by: str, size: int, tmp_path: Path) -> None:
    """Never is it taken for one that replaced nothing: its rows would be doubled."""
    path = tmp_path / "trips"
    rows = long_table(path, version)
    compact(path)
    before = open_table(path).load_timeline().latest_completed
    if by == "overwrite":
        overwrite(path, one_row("new", 90))
    else:
        options = StitchOptions(min_files=2)
        assert stitch_table(open_table(path), options, LOCK, output=OutputOptions(), threads=1).done is not None
    table = open_table(path)
    (done,) = (i for i in table.load_timeline().completed if i.family == "replacecommit")
    file = path / table.instant_path(done)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(MalformedError) as error:
        read_rows(path)
    (command,) = re.findall(r"`compactor-daemon (.*?)`", error.value.todo or "")
    words = [{"TABLE": str(path), "INSTANT": before}.get(word, word) for word in command.split()]
    assert CliRunner().invoke(app, [*words, "--dry-run"]).exit_code == 0
    ended = CliRunner().invoke(app, [*words, "--sole-writer"])
    assert ended.exit_code == 0, ended.output
    assert read_rows(path) == rows
    upsert(path, one_row("k0", 100))
    assert read_rows(path) == rows | {"k0": (100, 100.0)}


@pytest.mark.parametrize("version", [6, deep(8), 9])
def test_a_begun_plan_of_a_clustering_that_cannot_be_read_goes_with_a_restore(version: int, tmp_path: Path) -> None:
    """Of what it would have replaced nothing is gone: it is not completed."""
    path = tmp_path / "trips"
    rows = long_table(path, version)
    compact(path)
    table = open_table(path)
    timeline = table.load_timeline()
    action = "replacecommit" if version == 6 else "clustering"
    plan = Instant(requested_time=table.next_time(timeline), action=action, state=State.REQUESTED)
    (path / table.instant_path(plan)).write_bytes(b"Obj\x01torn")
    (path / table.instant_path(plan.at(State.INFLIGHT))).touch()
    made = next((path / "a").glob("*.parquet"))
    litter = made.with_name(f"{uuid.uuid4()}-0_0-1-2_{plan.requested_time}.parquet")
    litter.write_bytes(made.read_bytes())
    with pytest.raises(MalformedError, match="cannot be read"):
        upsert(path, one_row("k0", 100))
    words = ["restore", str(path), "--to", timeline.latest_completed]
    assert CliRunner().invoke(app, [*words, "--dry-run"]).exit_code == 0
    ended = CliRunner().invoke(app, [*words, "--sole-writer"])
    assert ended.exit_code == 0, ended.output
    assert not litter.exists()
    assert read_rows(path) == rows
    upsert(path, one_row("k0", 100))
    assert read_rows(path) == rows | {"k0": (100, 100.0)}
