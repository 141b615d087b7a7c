"""Dry runs of cleans show what a run does, or refuse in its words; errors of broken files name a way out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cleaning.plan import CleanResult
from phantombase.compactor_daemon.status.status import outlook
from phantombase.compactor_daemon.undo.savepoint import create_savepoint, delete_savepoint, savepoints
from phantombase.timeline.errors import ConflictError, MalformedError, PhantombaseError, UsageError
from phantombase.timeline.format.clean import CleanPlan, encode_clean_plan
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.triggers import TriggerOptions
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.archived_tables import compact, data_files, old_table, one_row, unreadable_plan, upsert
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at_nth
from tests.support.golden_tables import LOCK, one_of
from tests.support.written_tables import read_rows

ONE = CleanOptions(retain=1, floor_s=0)


@pytest.mark.parametrize("floor", [9e10, 1e18])
def test_a_floor_before_all_dates_is_refused(floor: float) -> None:
    with pytest.raises(UsageError, match="floor is too long"):
        CleanOptions(floor_s=floor)


def dry(path: Path) -> CleanResult:
    return clean_table(open_table(path), ONE, LOCK, dry_run=True)


def refused_alike(path: Path, tmp_path: Path) -> PhantombaseError:
    """The error of a dry run, which is that of a run, and what `status` shows."""
    with pytest.raises(PhantombaseError) as shown:
        dry(path)
    assert str(outlook(open_table(path).snapshot(), None, TriggerOptions(), ONE).cleanable.problem) == str(shown.value)
    copy = shutil.copytree(path, tmp_path / "copy" / path.name)
    with pytest.raises(PhantombaseError) as real:
        clean_table(open_table(copy), ONE, LOCK)
    shutil.rmtree(copy.parent)
    assert str(shown.value) == str(real.value).replace(str(copy), str(path))
    return shown.value


def died(path: Path, call: int = 1) -> None:
    """A clean whose process died before it removed a file."""
    with pytest.raises(ProcessDied):
        clean_table(Table.on(HookedStorage(LocalStorage(str(path)), die_at_nth(call, "delete", ".parquet"))), ONE, LOCK)


@one_of("version", 9, 6)
def test_what_a_pending_clean_removes_is_shown_once(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, version)
    died(path)
    before = data_files(path)
    shown = dry(path)
    assert data_files(path) == before
    done = clean_table(open_table(path), ONE, LOCK)
    assert (shown.finished, shown.gone) == (done.finished, done.gone)
    assert done.finished


def test_an_empty_plan_is_passed_over_or_waited_for(tmp_path: Path) -> None:
    """A process of Hudi was killed while it wrote it, or is at it."""
    path = tmp_path / "trips"
    old_table(path, 9)
    file = unreadable_plan(path, b"", 0)
    assert isinstance(refused_alike(path, tmp_path), ConflictError)
    os.utime(file, (file.stat().st_mtime - 600,) * 2)
    shown = dry(path)
    assert file.exists()
    done = clean_table(open_table(path), ONE, LOCK)
    assert (shown.finished, shown.gone) == (done.finished, done.gone)
    assert done.gone


def test_a_plan_with_files_that_readers_need_is_refused_or_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, 9)
    newest = max(data_files(path), key=lambda name: name.rpartition("_")[2])
    partition, _, name = newest.rpartition("/")
    plan = encode_clean_plan(CleanPlan(policy=Policy.COMMITS.hudi_name, files={partition: (name,)}), str(path))
    put(path, "20300101000000000", State.REQUESTED, plan)
    assert dry(path).finished == ()
    put(path, "20300101000000000", State.INFLIGHT, b"")
    assert "readers need" in str(refused_alike(path, tmp_path))


def put(path: Path, time: str, state: State, content: bytes) -> Path:
    table = open_table(path)
    file = path / table.instant_path(Instant(requested_time=time, action="clean", state=state))
    file.write_bytes(content)
    return file


def of_clean(path: Path, state: State) -> Path:
    """The file of the only clean in a state."""
    table = open_table(path)
    [found] = [i for i in table.load_timeline().instants if i.action == "clean"]
    return path / table.instant_path(found.at(state) if state is not State.COMPLETED else found)


@one_of("version", 6, 9)
def test_an_empty_record_of_a_completed_clean_is_made_again(version: int, tmp_path: Path) -> None:
    """As a full disk leaves it. The advice of the error is followed: what was retained is known again."""
    path = tmp_path / "trips"
    old_table(path, version)
    first = min(open_table(path).load_timeline().completed_writes)
    clean_table(open_table(path), ONE, LOCK)
    upsert(path, one_row("k0", 100))
    compact(path)
    upsert(path, one_row("k0", 101))
    rows = read_rows(path)
    record = of_clean(path, State.COMPLETED)
    record.write_bytes(b"")
    error = refused_alike(path, tmp_path)
    assert isinstance(error, MalformedError)
    assert (error.what, error.path) == ("the record of a completed clean cannot be read", str(record.relative_to(path)))
    with pytest.raises(MalformedError, match="or remove it: then"):
        read_table(open_table(path), ReadOptions(as_of=first))
    record.unlink()
    done = clean_table(open_table(path), ONE, LOCK)
    assert (len(done.finished), bool(done.gone)) == (1, True)
    assert not open_table(path).load_timeline().pending("clean")
    with pytest.raises(PhantombaseError, match="may have been cleaned"):
        read_table(open_table(path), ReadOptions(as_of=first))
    assert read_rows(path) == rows


@one_of("version", 9, 6)
def test_a_begun_clean_without_its_plan_says_what_to_do(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = old_table(path, version)
    died(path)
    first = min(open_table(path).load_timeline().completed_writes)
    of_clean(path, State.REQUESTED).unlink()
    error = refused_alike(path, tmp_path)
    assert isinstance(error, MalformedError)
    assert error.what == "the plan of a clean that has begun is gone"
    with pytest.raises(MalformedError, match="plan of a clean that has begun is gone"):
        read_table(open_table(path), ReadOptions(as_of=first))
    of_clean(path, State.INFLIGHT).unlink()
    assert clean_table(open_table(path), ONE, LOCK).gone
    assert not open_table(path).load_timeline().pending("clean")
    assert read_rows(path) == rows


def test_an_unreadable_plan_that_has_not_begun_is_removed_by_a_clean(tmp_path: Path) -> None:
    """As the error of a read of the past says."""
    path = tmp_path / "trips"
    old_table(path, 9)
    first = min(open_table(path).load_timeline().completed_writes)
    unreadable_plan(path, b"", 600)
    with pytest.raises(MalformedError, match="clean TABLE` removes it"):
        read_table(open_table(path), ReadOptions(as_of=first))
    clean_table(open_table(path), CleanOptions(retain=100), LOCK)
    assert read_table(open_table(path), ReadOptions(as_of=first)).num_rows == 1


@one_of("version", 9, 6)
def test_an_unreadable_savepoint_is_made_again(version: int, tmp_path: Path) -> None:
    """Its error says how; nothing is cleaned before."""
    path = tmp_path / "trips"
    old_table(path, version)
    kept = create_savepoint(open_table(path), LOCK, None, user="who", comment="why").instant
    [file] = path.rglob("*.savepoint")
    file.write_bytes(b"")
    error = refused_alike(path, tmp_path)
    assert isinstance(error, MalformedError)
    assert f"savepoint delete TABLE {kept}" in str(error)
    assert f"savepoint create TABLE --instant {kept}" in str(error)
    delete_savepoint(open_table(path), LOCK, kept)
    create_savepoint(open_table(path), LOCK, kept, user="who", comment="why")
    [again] = savepoints(open_table(path).snapshot())
    assert again.savepoint.files
