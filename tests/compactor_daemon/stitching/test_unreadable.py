"""Plans of clusterings that cannot be read: a command takes them back, where no process can have worked by them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.restoring.restore import restore_table
from phantombase.compactor_daemon.stitching.pending import pending_stitchings
from phantombase.compactor_daemon.stitching.stitch import take_back_pending
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.errors import ConflictError, MalformedError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.reserved_times import is_buried
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from tests.support.archived_tables import one_row, upsert
from tests.support.cleaned_tables import LOCK
from tests.support.clustered_tables import request, small_files
from tests.support.compaction_steps import open_table
from tests.support.dead_writer import make_old
from tests.support.faults import died_or_ended
from tests.support.golden_tables import unzip_golden
from tests.support.tables import one_of
from tests.support.written_tables import read_rows

TORN = b"Obj\x01 cut"
CASES = [("v6_plain", TORN), ("v9_plain", TORN), ("v9_plain", b"")]
"""On version 6 an empty file is of a write, which the next write rolls back."""


def write(path: Path) -> None:
    writer(pa.table({"id": ["k001"], "p": ["north"], "ts": [10**6]})).upsert(str(path))


def left(name: str, data: bytes, tmp_path: Path, *, old: bool = True) -> Path:
    """The plan that a process left, in a table."""
    table = open_table(unzip_golden(name, tmp_path))
    time = table.next_time(table.load_timeline())
    action = "clustering" if table.layout.has_completion_times else "replacecommit"
    plan = Instant(requested_time=time, action=action, state=State.REQUESTED)
    file = Path(table.storage.base_path) / table.instant_path(plan)
    file.write_bytes(data)
    if old:
        make_old({file}, 3600)
    return file


def table_of(plan: Path) -> Table:
    folder = plan.parent
    while folder.name != ".hoodie":
        folder = folder.parent
    return open_table(folder.parent)


@pytest.mark.parametrize(("name", "data"), CASES)
def test_it_is_taken_back_by_command(name: str, data: bytes, tmp_path: Path) -> None:
    plan = left(name, data, tmp_path)
    table = table_of(plan)
    path, rows = Path(table.storage.base_path), read_rows(Path(table.storage.base_path))
    done = CliRunner().invoke(app, ["stitch", str(path), "--take-back", "--sole-writer"])
    assert done.exit_code == 0, done.output
    assert plan.name.partition(".")[0] in done.output
    assert not plan.exists()
    assert is_buried(table.storage, plan.name.partition(".")[0])
    assert take_back_pending(open_table(path), LOCK) == ()
    assert read_rows(path) == rows
    write(path)
    clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)
    restore_table(open_table(path), LOCK, max(open_table(path).load_timeline().completed_writes))


@one_of("name", "v9_plain", "v6_plain")
def test_what_it_keeps_out_names_the_way_out(name: str, tmp_path: Path) -> None:
    path = Path(table_of(left(name, TORN, tmp_path)).storage.base_path)
    with pytest.raises(MalformedError, match="stitch TABLE --take-back"):
        write(path)
    with pytest.raises(MalformedError, match="stitch TABLE --take-back"):
        schedule_compaction(open_table(path), LOCK)
    with pytest.raises(MalformedError, match="stitch TABLE --take-back"):
        clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)


@pytest.mark.parametrize(("name", "data"), CASES)
def test_it_stays_while_a_process_may_work_by_it(name: str, data: bytes, tmp_path: Path) -> None:
    plan = left(name, data, tmp_path, old=False)
    table, time = table_of(plan), plan.name.partition(".")[0]
    path = Path(table.storage.base_path)

    def stays(why: str) -> None:
        with pytest.raises(ConflictError, match=why):
            take_back_pending(open_table(path), LOCK)
        assert plan.exists()
        assert not is_buried(table.storage, time)

    stays("may still be writing")
    make_old({plan}, 3600)
    beat = path / heartbeat_path(time)
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    stays("a fresh heartbeat")
    beat.unlink()
    made = path / table.partitions()[0] / f"11111111-1111-1111-1111-111111111111-0_0-1-2_{time}.parquet"
    made.touch()
    stays(made.name)
    made.unlink()
    inflight = plan.with_name(plan.name.replace(".requested", ".inflight"))
    inflight.touch()
    stays("an inflight file")
    inflight.unlink()
    assert take_back_pending(open_table(path), LOCK) == (time,)


@pytest.mark.parametrize(("name", "data"), CASES)
def test_a_death_at_a_storage_call(name: str, data: bytes, tmp_path: Path) -> None:
    """The next run finishes it."""
    plan = left(name, data, tmp_path)
    path = Path(table_of(plan).storage.base_path)
    rows = read_rows(path)

    def take_back(storage: Storage) -> object:
        return take_back_pending(open_table(Path(storage.base_path), storage), LOCK)

    for copy in died_or_ended(path, take_back):
        take_back_pending(open_table(copy), LOCK)
        assert not list((copy / ".hoodie").rglob(plan.name))
        assert read_rows(copy) == rows
        write(copy)


@one_of("version", 6, 9)
def test_an_inflight_file_that_cannot_be_read_names_the_way_out(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    request(path, alive=False)
    (pending,) = pending_stitchings(open_table(path), open_table(path).load_timeline())
    (path / open_table(path).instant_path(pending.requested.at(State.INFLIGHT))).write_bytes(TORN)
    with pytest.raises(MalformedError, match="restore TABLE --to` the newest completed write"):
        upsert(path, one_row("k1", 50))
    restore_table(open_table(path), LOCK, max(open_table(path).load_timeline().completed_writes))
    assert read_rows(path) == rows
    upsert(path, one_row("k1", 50))
    assert read_rows(path) == rows | {"k1": (50, 50.0)}
