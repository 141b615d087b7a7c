"""Delta commits of the metadata table that a sleeper left behind, of instants that are gone: services forget them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.timeline.errors import ConflictError, MalformedError, UnknownStateError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import BUILD_AGAIN, open_metadata_table
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import one_of
from tests.support.metadata_tables import entries, files_of, left_behind, rows, serve
from tests.support.metadata_tables import path as path
from tests.support.selection import deep


@pytest.mark.parametrize("puts", [1, 3])
def test_it_is_forgotten(path: Path, puts: int) -> None:
    before, there = entries(open_table(path)), files_of(path)
    instant = left_behind(path, puts)
    assert files_of(path) > there
    seen = files_of(path)
    planned = serve(open_table(path), dry_run=True)
    assert planned.forgotten == (instant,)
    assert len(planned.compactions) == 1
    assert files_of(path) == seen
    done = serve(open_table(path))
    assert done.forgotten == (instant,)
    assert len(done.compactions) == 1
    assert [i for i in open_metadata_table(open_table(path)).load_timeline().instants if not i.completed] == []
    assert entries(open_table(path)) == before
    writer(rows(range(6), 10**6)).upsert(str(path))
    assert serve(open_table(path)).forgotten == ()
    assert validate(open_table(path)).differences == ()


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_a_record_that_came_too_late_is_withdrawn(path: Path) -> None:
    """Its files are gone, and from version 8 on readers would list them. Not while the table knows the instant."""
    before, there = entries(open_table(path)), open_metadata_table(open_table(path)).load_timeline().instants
    left_behind(path, 4)
    assert entries(open_table(path)) == before
    assert open_metadata_table(open_table(path)).load_timeline().instants == there
    assert len(serve(open_table(path)).compactions) == 1
    assert entries(open_table(path)) == before
    table = open_table(path)
    put(path, Instant(requested_time=table.snapshot().next_time(), action="clean", state=State.REQUESTED))
    known = left_behind(path, 4, open_table(path).load_timeline().instants[-1].requested_time)
    assert open_metadata_table(open_table(path)).load_timeline().instants[-1].requested_time == known


def waits(path: Path, instant: str) -> None:
    found = serve(open_table(path))
    assert found.forgotten == ()
    assert found.compactions == ()
    assert instant in found.why


def test_a_living_process_keeps_it(path: Path) -> None:
    """Also one without the lock: a fresh heartbeat of Hudi."""
    instant = left_behind(path, 1)
    storage = open_metadata_table(open_table(path)).storage
    storage.overwrite(heartbeat_path(instant), b"")
    waits(path, instant)
    elsewhere = open_table(path).with_clock(ClockOptions(timezone="Asia/Karachi"))
    assert serve(elsewhere, dry_run=True).forgotten == ()


def put(path: Path, instant: Instant) -> None:
    table = open_table(path)
    table.storage.put_if_absent(table.instant_path(instant), b"")


def test_the_table_knows_it(path: Path) -> None:
    """It may complete yet, whichever action it is."""
    instant = left_behind(path, 1)
    put(path, Instant(requested_time=instant, action="clean", state=State.REQUESTED))
    other = left_behind(path, 1)
    assert other > instant
    assert serve(open_table(path)).forgotten == (other,)
    waits(path, instant)


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_during_a_restore_nothing_is_known(path: Path) -> None:
    left_behind(path, 1)
    table = open_table(path)
    put(path, Instant(requested_time=table.snapshot().next_time(), action="restore", state=State.REQUESTED))
    assert serve(open_table(path)).forgotten == ()


def test_during_an_upgrade_nothing_is_known(path: Path) -> None:
    left_behind(path, 1)
    table = open_table(path)
    elsewhere = ".hoodie/timeline" if table.config.timeline_folder == ".hoodie" else ".hoodie"
    table.storage.put_if_absent(f"{elsewhere}/20200101000000000.deltacommit.requested", b"")
    with pytest.raises(ConflictError, match="upgraded"):
        serve(open_table(path))


@pytest.mark.parametrize("path", ["v6", deep("v8"), "v9"], indirect=True)
def test_what_is_archived_is_known(path: Path) -> None:
    """An archive that cannot be read may hold it."""
    left_behind(path, 1)
    table = open_table(path)
    name = "manifest_1" if table.layout.has_completion_times else ".commits_.archive.1_1-0-1"
    table.storage.put_if_absent(f"{table.config.history_folder}/{name}", b"no archive")
    with pytest.raises(UnknownStateError):
        serve(open_table(path))


def test_what_fills_a_partition_is_no_instant_of_the_table(path: Path) -> None:
    """Nor is, on version 6, one of the metadata table's own services."""
    metadata = open_metadata_table(open_table(path))
    for time in ("00000000000000012", "20270101000000000004"):
        begun = Instant(requested_time=time, action="deltacommit", state=State.REQUESTED)
        metadata.storage.put_if_absent(metadata.instant_path(begun), b"")
    assert serve(open_table(path), MetadataOptions(max_delta_commits=1)).forgotten == ()


# Unreadable plans of the metadata table, as a killed Hudi leaves them: nothing is blocked without a way out.


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
    assert (error.value.path, error.value.todo) == (str(files[1]), BUILD_AGAIN)
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
        assert (error.value.path, error.value.todo) == (str(file), BUILD_AGAIN)
    assert "compactor-daemon compact TABLE --drop-metadata-table" in BUILD_AGAIN
    done = CliRunner().invoke(app, ["compact", str(path), "--drop-metadata-table", "--executor", "local"])
    assert done.exit_code == 0, done.output
    writer(rows(range(900, 903), 1)).upsert(str(path))
    assert read_table(open_table(path)).num_rows == before + 3
