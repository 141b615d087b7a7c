"""Cleans whose cutoff lies in the archive, or moves while they work."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.publish import publish
from phantombase.compactor_daemon.cleaning import plan as clean_plan
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.undo.savepoint import KeptSavepoint, create_savepoint
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import ConflictError, LockError, MalformedError
from phantombase.timeline.format.clean import CleanPlan, encode_clean_metadata, encode_clean_plan
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.instant_files import retained_by
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.pins import HeldPin, PinOptions
from phantombase.timeline.read.windows import earliest_whole, load_state
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import (
    ONE,
    archive,
    clean,
    data_files,
    old_table,
    one_row,
    unreadable_plan,
    unzip,
    upsert,
)
from tests.support.compaction_steps import decided, open_table, run_all
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at_nth
from tests.support.faults import LockLostAt, LockLostBehind
from tests.support.golden_tables import LOCK, one_of
from tests.support.selection import deep
from tests.support.written_tables import read_rows, written_table

REWRITES = WriteOptions(slots=1)
"""Small base files are written anew: no log files."""


def archived_table(path: Path, version: int) -> None:
    """A file group of base files alone, whose first commits are archived."""
    written_table(path, version, one_row("k0", 0), REWRITES)
    for number in range(1, 8):
        upsert(path, one_row(f"n{number}", number), REWRITES)


def pinned(path: Path, moment: str) -> HeldPin:
    return HeldPin(LocalStorage(str(path)), PinOptions(name="reader", for_s=600), moment)


def test_a_pin_holds_what_archived_writes_have_replaced(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    archived_table(path, 9)
    timeline = open_table(path).load_timeline()
    moment = timeline.moment_of(timeline.completed[1])
    needed = {
        f.path for _, s in load_state(open_table(path).with_timeline(timeline), moment, None).slices() for f in s.files
    }
    pinned(path, moment)
    assert archive(path).archived
    clean(path)
    assert needed <= data_files(path)
    table = open_table(path)
    assert earliest_whole(table.with_timeline(table.load_timeline(archived=True))) <= moment


@one_of("version", 9, 6)
@pytest.mark.parametrize(
    "options",
    [CleanOptions(retain=1, floor_s=3600), CleanOptions(policy=Policy.HOURS, retain=2, floor_s=0)],
    ids=["floor", "hours"],
)
def test_archived_commits_are_as_young_as_they_are(version: int, options: CleanOptions, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    archived_table(path, version)
    before = data_files(path)
    assert archive(path).archived
    clean_table(open_table(path), options, LOCK)
    assert data_files(path) == before


def test_a_pin_that_a_dead_cleaner_did_not_see(tmp_path: Path) -> None:
    """It died before it asked for pins once more: the next run asks, and removes nothing that the pin holds."""
    path = tmp_path / "trips"
    old_table(path, 9)
    before, inner = data_files(path), LocalStorage(str(path))

    def hook(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith(".clean.requested"):
            pinned(path, "")
            call.do()
            raise ProcessDied
        return call.do()

    with pytest.raises(ProcessDied):
        clean_table(Table.on(HookedStorage(inner, hook)), ONE, LOCK)
    done = clean_table(open_table(path), ONE, LOCK)
    assert (done.instant, done.finished, done.why) == (None, (), "a pin holds it")
    assert data_files(path) == before
    assert not open_table(path).load_timeline().pending("clean")


@pytest.mark.parametrize("version", [deep(6), 9])
def test_a_lost_lock_stops_it(version: int, tmp_path: Path) -> None:
    """Whatever was put by then, the next run finishes it."""
    path = tmp_path / "trips"
    rows = old_table(path, version)
    number = 0
    for number in count():
        lost = LockLostAt(number)
        with suppress(LockError):
            clean_table(open_table(path), ONE, lost)
        assert read_rows(path) == rows
        if lost.asked <= number:
            break
        left = shutil.copytree(path, tmp_path / f"{number}")
        clean(left)
        assert not open_table(left).load_timeline().pending("clean")
        assert read_rows(left) == rows
    assert number >= 2
    assert len(list(path.rglob("*.clean.requested"))) == 1


def test_a_dry_run_shows_the_clean_that_a_run_would_finish(tmp_path: Path) -> None:
    """Its files go whatever the options of this run retain."""
    path = tmp_path / "trips"
    old_table(path, 9)
    with pytest.raises(ProcessDied):
        clean_table(Table.on(HookedStorage(LocalStorage(str(path)), die_at_nth(1, "delete", ".parquet"))), ONE, LOCK)
    options = CleanOptions(retain=100, floor_s=0)
    shown = clean_table(open_table(path), options, LOCK, dry_run=True)
    assert (shown.files, len(shown.finished)) == (0, 1)
    output = CliRunner().invoke(app, ["clean", str(path), "--dry-run"]).output
    assert f"would finish clean {shown.finished[0].instant}" in " ".join(output.split())
    assert clean_table(open_table(path), options, LOCK).finished == shown.finished


@pytest.mark.parametrize("version", [deep(6), 9])
def test_a_savepoint_that_a_late_plan_did_not_see(version: int, tmp_path: Path) -> None:
    """The cleaner slept before it put its plan, and lost its lock: the savepoint keeps its files."""
    path = tmp_path / "trips"
    old_table(path, version)
    inner = LocalStorage(str(path))
    kept: list[KeptSavepoint] = []

    def hook(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith(".clean.requested"):
            first = min(open_table(path).load_timeline().completed_writes)
            kept.append(create_savepoint(open_table(path), ProcessLock("other"), first, user="", comment=""))
            call.do()
            raise ProcessDied
        return call.do()

    with pytest.raises(ProcessDied):
        clean_table(Table.on(HookedStorage(inner, hook)), ONE, LOCK)
    assert "a savepoint keeps it" in clean(path).kept
    for partition, names in kept[0].savepoint.files.items():
        assert names
        assert {f"{partition}/{name}" for name in names} <= data_files(path)


@pytest.mark.parametrize("version", [deep(6), 9])
def test_a_clean_remembers_what_an_earlier_one_removed(version: int, tmp_path: Path) -> None:
    """Archiving takes the earlier one first: a state that it did not keep is refused for ever, not read in part."""
    path = tmp_path / "trips"
    archived_table(path, version)
    first = clean(path, Policy.VERSIONS, max_files=1)
    second = clean(path, Policy.COMMITS, 3)
    table = open_table(path)
    timeline = table.load_timeline()
    by_time = {i.requested_time: i for i in timeline.instants}
    assert retained_by(table.files, by_time[second.instant or ""]) == first.instant


@pytest.mark.parametrize("cleaned", [False, True])
def test_file_versions_name_the_cutoff_of_replaced_groups(cleaned: bool, tmp_path: Path) -> None:
    """Hudi's archiver takes all replace commits before a clean with no cutoff for passed: their rows would be back.

    `cleaned`: behind a clean of Hudi without a cutoff."""
    path = unzip("v6_0.15.0_replaced.before", tmp_path)
    if cleaned:
        plan = CleanPlan(policy=Policy.VERSIONS.hudi_name, files={"north": ("f-0_1-2-3_20260101000000000.parquet",)})
        content = encode_clean_metadata(plan, "20261122115825000", 1, frozenset())
        (path / ".hoodie/20261122115825000.clean").write_bytes(content)
    commits = open_table(path).load_timeline().completed
    first, second = (i.requested_time for i in commits if i.action == "replacecommit")
    pinned(path, max(i.requested_time for i in commits if i.requested_time < second))
    done = clean(path, Policy.VERSIONS)
    table = open_table(path)
    [made] = [i for i in table.load_timeline().instants if i.requested_time == done.instant]
    assert [one.why for one in done.gone] == ["replaced"]
    assert first < retained_by(table.files, made) <= second


def test_hours_are_hours_when_the_clocks_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trips"
    written_table(path, 9, one_row("k0", 0), REWRITES)
    now = datetime(2026, 3, 29, 1, 10, tzinfo=UTC)  # ten minutes after the clocks of Berlin were put forward
    monkeypatch.setattr(clean_plan, "clock_ms", lambda: int(now.timestamp() * 1000))
    table = open_table(path).with_clock(ClockOptions(timezone="Europe/Berlin"))
    found = clean_plan.gather_facts(table, table.load_view(), CleanOptions(policy=Policy.HOURS, retain=2), dry_run=True)
    assert (found.floor, found.hours_ago) == ("20260329011000000", "20260329001000000")


@one_of("version", 6, 9)
def test_a_query_from_before_a_late_publication_keeps_its_files(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process decided a compaction and died; two hours later another one publishes it, at the completion time that
    was decided then. A query of ten minutes ago reads what was merged."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), WriteOptions(slots=1, small_file_bytes=0))
    upsert(path, one_row("k0", 1))
    plan = schedule_compaction(open_table(path), LOCK, PLAN_NOW).instant
    assert plan is not None
    decision = decided(open_table(path), plan)
    upsert(path, one_row("k0", 2))
    publish(open_table(path), decision, LOCK)
    run_all(open_table(path))
    now_ms = clock_ms() + 7_200_000
    [done] = open_table(path).files.completed_commits(plan)
    os.utime(path / open_table(path).instant_path(done), (now_ms / 1000 - 60,) * 2)
    monkeypatch.setattr(clean_plan, "clock_ms", lambda: now_ms)
    found = clean_table(open_table(path), CleanOptions(retain=1, floor_s=3600), LOCK, dry_run=True)
    assert (found.files, found.why) == (0, "a query of 3,600 s ago may need it")
    monkeypatch.setattr(clean_plan, "clock_ms", lambda: now_ms + 3_600_000)
    assert clean_table(open_table(path), CleanOptions(retain=1, floor_s=3600), LOCK, dry_run=True).files == 2


def emptied_partition(path: Path, version: int) -> Table:
    """A pending clean of Hudi that found nothing left in partition `b`."""
    written_table(path, version, one_row("k0", 0), REWRITES)
    shutil.copytree(path / "a", path / "b", ignore=shutil.ignore_patterns("*.parquet", ".*.log.*"))
    table = open_table(path)
    plan = CleanPlan(policy=Policy.COMMITS.hudi_name, files={}, partitions=("b",))
    clean_instant = Instant(requested_time=table.snapshot().next_time(), action="clean", state=State.REQUESTED)
    table.storage.put_if_absent(table.instant_path(clean_instant), encode_clean_plan(plan, str(path)))
    return table


@one_of("version", 9, 6)
def test_an_empty_partition_goes_under_the_lock(version: int, tmp_path: Path) -> None:
    """Otherwise a write that begins meanwhile would place its files in a folder that is being removed."""
    path = tmp_path / "trips"
    emptied_partition(path, version)
    removed: list[str] = []

    def hook(call: Call) -> object:
        if call.name == "delete" and call.path.startswith("b/"):
            removed.append(call.path)
            with pytest.raises(LockError), replace(LOCK, timeout_s=0.01).hold("write"):
                pass
        return call.do()

    assert clean_table(Table.on(HookedStorage(LocalStorage(str(path)), hook)), ONE, LOCK).finished
    assert len(removed) == 1
    assert not any((path / "b").iterdir())
    assert "b" not in open_table(path).partitions()


@one_of("version", 9, 6)
def test_an_ended_partition_loses_no_row_that_came_meanwhile(version: int, tmp_path: Path) -> None:
    """The cleaner sleeps right before it ends the partition, and its lock is lost."""
    path = tmp_path / "trips"
    emptied_partition(path, version)
    slept: list[str] = []

    def hook(call: Call) -> object:
        if call.name in ("delete", "delete_folder") and call.path.startswith("b") and not slept:
            slept.append(call.path)
            rows = one_row("new", 9)
            upsert(path, rows.set_column(rows.schema.get_field_index("day"), "day", pa.array(["b"])))
        return call.do()

    with suppress(LockError):
        clean_table(Table.on(HookedStorage(LocalStorage(str(path)), hook)), ONE, LockLostBehind(slept))
    assert slept
    assert read_rows(path) == {"k0": (0, 0.0), "new": (9, 9.0)}
    assert "b" in open_table(path).partitions()


@one_of("version", 6, 9)
def test_a_partition_stays_while_a_write_is_pending(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    table = emptied_partition(path, version)
    begun = Instant(requested_time=table.snapshot().next_time(), action="deltacommit", state=State.INFLIGHT)
    table.storage.put_if_absent(table.instant_path(begun), b"")
    assert clean(path).finished
    assert (path / "b/.hoodie_partition_metadata").exists()


@pytest.mark.parametrize("content", [b"", b"Obj\x01torn"], ids=["empty", "torn"])
def test_a_plan_that_cannot_be_read_goes(content: bytes, tmp_path: Path) -> None:
    """No process began on it. It stays while it may still be written, and where files may be gone by it."""
    path = tmp_path / "trips"
    rows = old_table(path, 9, 1)
    file = unreadable_plan(path, content, 0)
    with pytest.raises(ConflictError, match="still be writing"):
        clean(path)
    os.utime(file, (file.stat().st_mtime - 600,) * 2)
    begun = file.with_name(file.name.replace("requested", "inflight"))
    begun.touch()
    with pytest.raises(MalformedError, match="from a copy"):
        clean(path)
    begun.unlink()
    assert clean(path).finished == ()
    assert not open_table(path).load_timeline().pending("clean")
    assert read_rows(path) == rows
