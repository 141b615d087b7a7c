"""Unreadable plans of the metadata table, as a killed Hudi leaves them: nothing is blocked without a way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.metadata_table.location import BUILD_ANEW, open_metadata_table
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.table_read import read_table
from tests.support.compaction_steps import open_table
from tests.support.metadata_services import path, rows, serve
from tests.support.selection import deep

__all__ = ["path"]

KINDS = pytest.mark.parametrize("content", [b"", deep(b"Obj\x01torn")], ids=["empty", "torn"])
_AGE_S = 1000.0


def leave(path: Path, action: str, content: bytes, *, age_s: float = _AGE_S, inflight: bool = False) -> Path:
    """A plan that cannot be read; its requested file."""
    metadata = open_metadata_table(open_table(path))
    newest = max(i.requested_time for i in metadata.load_timeline().instants)
    begun = Instant(requested_time=str(int(newest) + 1), action=action, state=State.REQUESTED)
    for state in (State.REQUESTED, State.INFLIGHT)[: 1 + inflight]:
        file = Path(metadata.storage.base_path) / metadata.instant_path(begun.at(state))
        file.write_bytes(content if state is State.REQUESTED else b"")
        os.utime(file, (file.stat().st_mtime - age_s,) * 2)
    return Path(metadata.storage.base_path) / metadata.instant_path(begun)


@KINDS
@pytest.mark.parametrize("inflight", [False, True])
def test_a_rollback_keeps_no_write_away(inflight: bool, content: bytes, path: Path) -> None:
    """Hudi removes it, or passes it over. No command would have ended it."""
    leave(path, "rollback", content, inflight=inflight)
    before = read_table(open_table(path)).num_rows
    writer(rows(range(900, 903), 1)).upsert(str(path))
    assert read_table(open_table(path)).num_rows == before + 3
    assert validate(open_table(path)).differences == ()


@KINDS
@pytest.mark.parametrize("action", ["rollback", "clean"])
def test_services_forget_what_no_process_began(action: str, content: bytes, path: Path) -> None:
    file = leave(path, action, content)
    begun = file.name.partition(".")[0]
    shown = serve(open_table(path), dry_run=True)
    assert file.exists()
    done = serve(open_table(path))
    assert shown.forgotten == done.forgotten == (begun,)
    assert not file.exists()
    assert not open_metadata_table(open_table(path)).load_timeline().pending(action)
    assert validate(open_table(path)).differences == ()


def test_a_young_one_may_still_be_written(path: Path) -> None:
    files = [leave(path, action, b"", age_s=0) for action in ("rollback", "clean")]
    with pytest.raises(MalformedError) as error:
        serve(open_table(path))
    assert (error.value.path, error.value.todo) == (str(files[1]), BUILD_ANEW)
    assert all(file.exists() for file in files)


def test_what_has_begun_stays(path: Path) -> None:
    """It may have undone or removed something."""
    file = leave(path, "rollback", b"", inflight=True)
    assert serve(open_table(path)).forgotten == ()
    assert file.exists()


@KINDS
def test_a_compaction_names_the_way_out(content: bytes, path: Path) -> None:
    """Not that of a compaction of the table: restoring the table would take writes back."""
    file = leave(path, "compaction", content)
    before = read_table(open_table(path)).num_rows
    for do in (
        lambda: writer(rows(range(900, 903), 1)).upsert(str(path)),
        lambda: serve(open_table(path)),
        lambda: serve(open_table(path), dry_run=True),
        lambda: validate(open_table(path)),
    ):
        with pytest.raises(MalformedError) as error:
            do()
        assert (error.value.path, error.value.todo) == (str(file), BUILD_ANEW)
    assert "compactor-daemon compact TABLE --drop-metadata-table" in BUILD_ANEW
    done = CliRunner().invoke(app, ["compact", str(path), "--drop-metadata-table", "--executor", "local"])
    assert done.exit_code == 0, done.output
    writer(rows(range(900, 903), 1)).upsert(str(path))
    assert read_table(open_table(path)).num_rows == before + 3
