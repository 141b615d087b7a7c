"""A completed clustering is taken back: the files that it joined count again, and no row changes, wherever it dies."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.finish import littered_instants
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.compactor_daemon.status.status import table_status
from phantombase.compactor_daemon.undo.rollback import is_clustering, roll_back_newest
from phantombase.compactor_daemon.undo.savepoint import create_savepoint
from phantombase.timeline.errors import ConflictError, LockError, PhantombaseError, UsageError
from phantombase.timeline.format.instant import format_time, parse_time
from phantombase.timeline.instants.reserved_times import has_tombstone
from phantombase.timeline.locks.heartbeat import Process
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.archived_tables import (
    cluster,
    clustered,
    compact,
    data_files,
    golden_small_files,
    living,
    one_row,
    small_files,
    upsert,
)
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at_nth
from tests.support.faults import LockLostBehind, died_or_ended
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.selection import ALL
from tests.support.written_tables import check_nothing_left, read_rows


def call(path: Path, instant: str, *options: str) -> Any:
    done = CliRunner().invoke(app, ["rollback", str(path), instant, "--json", *options], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def roll_back(path: Path, instant: str, storage: Storage | None = None) -> None:
    roll_back_newest(open_table(path, storage), LOCK, instant)


@one_of("version", 9, 8, 6)
def test_the_joined_files_count_again(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version, 4)
    files, ids = data_files(path), sorted(living(path))
    instant = clustered(path)
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    shown = call(path, instant, "--dry-run")
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*")} == before
    done = call(path, instant, "--sole-writer")
    assert {**shown, "dry_run": False} == done
    assert (done["files"], done["metadata_dropped"]) == (4, False)
    assert (read_rows(path), data_files(path), sorted(living(path))) == (rows, files, ids)
    assert not [i for i in open_table(path).load_timeline().instants if i.requested_time == instant]
    check_nothing_left(path)
    upsert(path, one_row("k0", 50))
    again = clustered(path)
    assert again > instant
    assert read_rows(path) == rows | {"k0": (50, 50.0)}


@one_of("version", 6, 9, 8)
def test_the_last_active_write_is_not_taken_back(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only archived writes are left, Hudi finds no rows."""
    path = tmp_path / "trips"
    rows = small_files(path, version, 4)
    instant = clustered(path)
    timeline = open_table(path).load_timeline()
    left = tuple(i for i in timeline.instants if i.requested_time == instant)
    others = tuple(i for i in timeline.completed if i.requested_time != instant)
    with monkeypatch.context() as patch:
        loaded = replace(timeline, instants=left)
        patch.setattr(Table, "load_timeline", lambda self: loaded)
        patch.setattr(Table, "with_archive", lambda self, seen: replace(seen, archived=others))
        with pytest.raises(UsageError, match="no completed write would be left"):
            roll_back_newest(open_table(path), LOCK, instant, dry_run=True)
    assert read_rows(path) == rows


def test_the_time_at_which_it_completed_is_not_used_again(tmp_path: Path) -> None:
    """A consumer may have read up to it. The clock of its process was ahead of those of the next writers."""
    path = tmp_path / "trips"
    small_files(path, 9, 4)
    instant = clustered(path)
    (done,) = (path / ".hoodie/timeline").glob(f"{instant}_*.replacecommit")
    ahead = format_time(parse_time(instant) + timedelta(seconds=20))
    done.rename(done.with_name(f"{instant}_{ahead}.replacecommit"))
    roll_back(path, instant)
    upsert(path, one_row("k0", 50))
    assert open_table(path).load_timeline().latest_completed > ahead


@one_of("version", 9, 8, 6)
def test_died_anywhere_no_row_changes(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next write takes it back, or a clustering, or the same command."""
    monkeypatch.setattr(Process, "is_gone", lambda _process: True)
    path = tmp_path / "trips"
    rows = small_files(path, version, 3)
    instant, died = clustered(path), 0
    for died, copy in enumerate(died_or_ended(path, lambda storage: roll_back(path, instant, storage))):  # noqa: B007
        assert read_rows(copy) == rows
        there = any(i.requested_time == instant for i in open_table(copy).load_timeline().instants)
        assert is_clustering(open_table(copy), instant) is there
        if there:
            again = shutil.copytree(copy, tmp_path / "again")
            roll_back(again, instant)
            assert read_rows(again) == rows
            assert len(living(again)) == 3
            shutil.rmtree(again)
        upsert(copy, one_row("new", 1))
        assert read_rows(copy) == rows | {"new": (1, 1.0)}
        cluster(copy)
        assert read_rows(copy) == rows | {"new": (1, 1.0)}
        assert not open_table(copy).load_timeline().pending_writes
        shutil.rmtree(copy)
    assert died > 5


def test_its_instant_is_buried_before_its_commit_goes(tmp_path: Path) -> None:
    """Else a clustering that comes in between would complete it again, and then lose its files."""
    path = tmp_path / "trips"
    small_files(path, 9, 3)
    instant = clustered(path)
    with pytest.raises(ProcessDied):
        roll_back(path, instant, HookedStorage(LocalStorage(str(path)), die_at_nth(1, "put_if_absent", instant)))
    assert instant in open_table(path).load_timeline().completed_writes


def test_what_was_built_upon_stays(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, 9, 4)
    instant = clustered(path)

    def refused(error: type[Exception], text: str, copy: Path) -> None:
        rows = read_rows(copy)
        for options in (["--dry-run"], ["--sole-writer"]):
            done = CliRunner().invoke(app, ["rollback", str(copy), instant, *options])
            assert isinstance(done.exception, error), done.output
            assert text in str(done.exception)
        assert read_rows(copy) == rows
        shutil.rmtree(copy)

    def another() -> Path:
        return shutil.copytree(path, tmp_path / "another")

    upsert(copy := another(), one_row("k0", 50))
    refused(UsageError, "only the newest write", copy)
    create_savepoint(open_table(copy := another()), LOCK, instant, user="", comment="")
    refused(UsageError, "a later savepoint would be lost", copy)
    clean_table(open_table(copy := another()), CleanOptions(policy=Policy.VERSIONS, retain=1, floor_s=0), LOCK)
    refused(UsageError, "may have been cleaned", copy)
    copy = another()
    next(p for p in copy.rglob("*.parquet") if instant not in p.name).unlink()
    refused(UsageError, "a file that this clustering joined is gone", copy)


@one_of("name", "v9_with_metadata_table", "v6_with_metadata_table")
def test_the_metadata_table_forgets_it(name: str, tmp_path: Path) -> None:
    path = golden_small_files(name, tmp_path)
    before, files = read_table(open_table(path)), data_files(path)
    roll_back(path, clustered(path))
    assert data_files(path) == files
    assert read_table(open_table(path)).sort_by("id") == before.sort_by("id")
    if open_table(path).config.metadata_partitions:
        assert validate(open_table(path)).differences == ()


def test_a_clustering_of_hudi_is_for_restore(tmp_path: Path) -> None:
    """The error says to which instant."""
    path = unzip_golden("v9_clustered", tmp_path)
    [newest] = [t for t, i in open_table(path).load_timeline().completed_writes.items() if i.family == "replacecommit"]
    assert not is_clustering(open_table(path), newest)
    with pytest.raises(UsageError, match=r"restore TABLE --to \d{17}` undoes it"):
        roll_back_newest(open_table(path), LOCK, newest)


# A process that takes a clustering back sleeps, loses the lock, and others go on: all their rows are there, once.


CLEAN = CleanOptions(policy=Policy.VERSIONS, retain=1, floor_s=0)
CHANGES = ("put", "put_if_absent", "overwrite", "delete", "delete_all", "delete_folder")


def others(path: Path) -> None:
    """They write to what was clustered, compact and clean."""
    with suppress(ConflictError):
        upsert(path, one_row("k0", 50))
        upsert(path, one_row("k1", 51))
        compact(path)
        clean_table(open_table(path), CLEAN, LOCK)
        upsert(path, one_row("k2", 52))


OTHERS = {"k0": (50, 50.0), "k1": (51, 51.0), "k2": (52, 52.0)}


def sleep(path: Path, instant: str, before: Callable[[Call], bool], *, dies: bool = False) -> str | None:
    """The call before which the process slept; None: there was none."""
    slept: list[str] = []

    def hook(call: Call) -> Any:
        if not slept and before(call):
            slept.append(f"{call.name} {call.path}")
            others(path)
            done = call.do()
            if dies:
                raise ProcessDied(call.path)
            return done
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
    with suppress(PhantombaseError, ProcessDied):
        roll_back_newest(table, LockLostBehind(slept), instant)
    return slept[0] if slept else None


def half_way(path: Path, instant: str) -> None:
    """A process of another machine dies, or sleeps, right before it hides the clustering."""
    storage = HookedStorage(LocalStorage(str(path)), die_at_nth(1, "delete", "commit"))
    with pytest.raises(ProcessDied):
        roll_back_newest(open_table(path, storage), LOCK, instant)


@one_of("version", 9, 8, 6)
def test_asleep_before_each_call_no_row_is_lost_or_doubled(version: int, tmp_path: Path) -> None:
    number, seen, outcomes = 0, set[str](), set[bool]()
    while True:
        path = tmp_path / f"at{number}"
        rows, calls = small_files(path, version, 3), list[str]()
        instant = clustered(path)

        def is_it(call: Call, calls: list[str] = calls, nth: int = number) -> bool:
            if call.name in CHANGES:
                calls.append(call.path)
            return len(calls) > nth

        if (slept := sleep(path, instant, is_it)) is None:
            break
        seen.add(slept)
        left = read_rows(path)
        assert left in (rows, rows | OTHERS), slept
        outcomes.add(left == rows)
        with suppress(UsageError):  # it is done, or others have built upon it
            roll_back_newest(open_table(path), LOCK, instant)
        assert read_rows(path) == left, slept
        upsert(path, one_row("new", 1))
        compact(path)
        assert read_rows(path) == left | {"new": (1, 1.0)}, slept
        number += 1 if ALL else 2
    assert number > 5
    assert False in outcomes, "the others never got through"


@one_of("version", 6, 9, 8)
def test_nothing_begins_beside_it(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version, 3)
    instant = clustered(path)
    half_way(path, instant)
    for beat in (path / ".hoodie/.heartbeat").glob("*"):  # an old one counts, too: its process may sleep
        os.utime(beat, (1e9, 1e9))
    for action in (
        lambda: upsert(path, one_row("k0", 50)),
        lambda: schedule_compaction(open_table(path), LOCK, PLAN_NOW),
        lambda: cluster(path),
        lambda: clean_table(open_table(path), CLEAN, LOCK),
        lambda: create_savepoint(open_table(path), LOCK, instant, user="", comment=""),
    ):
        with pytest.raises(ConflictError, match="the rollback of a clustering is in progress"):
            action()
    assert read_rows(path) == rows
    (seen,) = table_status(open_table(path).snapshot(cached=False)).in_progress
    assert (seen.instant, seen.todo) == (instant, f"`compactor-daemon rollback TABLE {instant}`")
    monkeypatch.setattr(Process, "is_gone", lambda _process: True)
    assert littered_instants(open_table(path)) == ()
    upsert(path, one_row("k0", 50))
    assert not has_tombstone(open_table(path).storage, instant)
    assert read_rows(path) == rows | {"k0": (50, 50.0)}
    assert len(living(path)) == 1


@one_of("version", 9, 8, 6)
def test_a_second_process_goes_on_with_it(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may only sleep then, while the first one is gone."""
    path = tmp_path / "trips"
    rows = small_files(path, version, 3)
    instant = clustered(path)
    first = Process(host="host", boot="boot", pid=1, started=1)
    with monkeypatch.context() as patch:
        patch.setattr(Process, "current", lambda: first)
        half_way(path, instant)
    half_way(path, instant)
    monkeypatch.setattr(Process, "is_gone", lambda process: process == first)
    with pytest.raises(ConflictError, match="in progress"):
        upsert(path, one_row("k0", 50))
    roll_back_newest(open_table(path), LOCK, instant)
    upsert(path, one_row("k0", 50))
    assert read_rows(path) == rows | {"k0": (50, 50.0)}
    assert len(living(path)) == 3


@one_of("version", 9, 8, 6)
def test_a_burial_that_another_process_goes_on_with_stays(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came too late for the first one. The second one may only sleep."""
    path = tmp_path / "trips"
    small_files(path, version, 3)
    instant, slept = clustered(path), list[str]()
    second = Process(host="host", boot="boot", pid=2, started=2)

    def hook(call: Call) -> Any:
        if not slept and call.name == "put_if_absent" and f"0-{instant}" in call.path:
            slept.append(call.path)
            with monkeypatch.context() as patch:
                patch.setattr(Process, "current", lambda: second)
                half_way(path, instant)
        return call.do()

    with pytest.raises(LockError):
        roll_back_newest(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), LockLostBehind(slept), instant)
    assert has_tombstone(open_table(path).storage, instant)


@one_of("version", 6, 9, 8)
def test_a_late_commit_without_its_files_is_not_dug_up(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken back before it completed, by a process that died half-way: the next write withdraws it."""
    path = tmp_path / "trips"
    rows = small_files(path, version, 3)
    before = set(path.rglob("*.parquet"))
    instant = clustered(path)
    half_way(path, instant)
    for new in set(path.rglob("*.parquet")) - before:
        new.unlink()
    monkeypatch.setattr(Process, "is_gone", lambda _process: True)
    with suppress(PhantombaseError):
        upsert(path, one_row("k0", 50))
    upsert(path, one_row("k0", 50))
    assert read_rows(path) == rows | {"k0": (50, 50.0)}


@one_of("version", 9, 8, 6)
def test_no_compaction_completes_beside_it(version: int, tmp_path: Path) -> None:
    """It would stand in its way: "only the newest write can be rolled back"."""
    path = tmp_path / "trips"
    rows = small_files(path, version, 4)
    upsert(path, one_row("k0", 50))
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    instant = clustered(path)
    half_way(path, instant)
    with pytest.raises(ConflictError, match=f"a rollback of {instant} is pending"):
        run_all(open_table(path))
    roll_back_newest(open_table(path), LOCK, instant)
    run_all(open_table(path))
    assert read_rows(path) == rows | {"k0": (50, 50.0)}


@one_of("version", 9, 8, 6)
@pytest.mark.parametrize("dies", [False, True])
def test_a_burial_that_came_too_late_stops_nothing(dies: bool, version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version, 3)
    instant = clustered(path)
    slept = sleep(path, instant, lambda c: c.name == "put_if_absent" and f"0-{instant}" in c.path, dies=dies)
    assert slept is not None
    assert has_tombstone(open_table(path).storage, instant) is dies
    others(path)
    assert read_rows(path) == rows | OTHERS


def test_a_lost_lock_is_said(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, 9, 3)
    instant, slept = clustered(path), list[str]()

    def hook(call: Call) -> Any:
        if call.name == "put_if_absent" and f"0-{instant}" in call.path:
            slept.append(call.path)
        return call.do()

    storage = HookedStorage(LocalStorage(str(path)), hook)
    with pytest.raises(LockError, match="the lock was lost"):
        roll_back_newest(open_table(path, storage), LockLostBehind(slept), instant)
    assert not has_tombstone(open_table(path).storage, instant)


@one_of("name", "v6_with_metadata_table", "v9_with_metadata_table")
def test_the_metadata_table_is_not_compacted_beside_it(name: str, tmp_path: Path) -> None:
    """The records of the clustering could not be removed any more."""
    path = golden_small_files(name, tmp_path)
    instant = clustered(path)
    half_way(path, instant)
    served = serve_metadata(open_table(path), MetadataOptions(max_delta_commits=1), LOCK)
    assert served.why == f"the rollback of a clustering is in progress: {instant}"
    assert served.compactions == ()
    done = roll_back_newest(open_table(path), LOCK, instant)
    assert not done.metadata_dropped
