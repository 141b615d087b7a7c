"""Restores and rollbacks of completed writes: the rows of before are back, whatever dies, and others keep away."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.archiving.choice import ArchiveChoice, ArchiveFacts, ArchiveOptions, choose
from phantombase.compactor_daemon.attempt import validity
from phantombase.compactor_daemon.cleaning.choice import Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.compactor_daemon.undo.savepoint import create_savepoint, delete_savepoint
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import ClockError, ConflictError, MalformedError, PhantombaseError, UsageError
from phantombase.timeline.format.commit_metadata import LOG_COMPACT, encode
from phantombase.timeline.format.instant import Instant, State, format_time, parse_time
from phantombase.timeline.instants.table_clock import TableClock
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import Process, heartbeat, heartbeat_path
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.pins import HeldPin, PinOptions
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table import in_progress
from phantombase.timeline.table.in_progress import PendingRollback
from phantombase.timeline.table.table import open_metadata_table
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import (
    CLEAN,
    REWRITES,
    WRITES,
    archive,
    check_usable,
    compact,
    data_files,
    one_row,
    restore,
    upsert,
)
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at_nth
from tests.support.faults import Faults, died_or_ended, leave_dead_write, request_rollback
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.selection import ALL, deep
from tests.support.written_tables import Rows, as_rows, read_rows, written_table

VERSIONS = pytest.mark.parametrize("version", [6, 8, 9])
AT_ONCE = MetadataOptions(max_delta_commits=1)


def history(path: Path, version: int, writes: WriteOptions = WRITES) -> dict[str, Rows]:
    """Upserts, inserts and compactions, one pending in the end; by instant the rows that were read then."""
    written_table(path, version, one_row("k0", 0), writes)
    found: dict[str, Rows] = {}

    def note() -> None:
        found[max(open_table(path).load_timeline().completed_writes)] = read_rows(path)

    note()
    for number in range(1, 5):
        upsert(path, one_row(f"k{number % 3}", number), writes)
        note()
        if number == 1:
            compact(path)
            note()
        if number > 1:
            schedule_compaction(open_table(path), LOCK, PLAN_NOW)
            upsert(path, one_row(f"k{number % 2}", 10 * number), writes)  # behind the plan
            note()
            run_all(open_table(path))
            assert read_rows(path) == found[max(found)]
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    upsert(path, one_row("k0", 50), writes)
    note()
    return found


@one_of("version", 9, 8, 6)
@pytest.mark.parametrize("small", [0, 100 << 20], ids=["new files", "rewritten files"])
def test_every_state_comes_back(version: int, small: int, tmp_path: Path) -> None:
    """As a read as of that instant shows it, and the table goes on. Of two kinds of writes a usual run takes every
    other state each."""
    source = tmp_path / "source"
    states = history(source, version, WriteOptions(slots=1, small_file_bytes=small))
    newest = max(states)
    for number, (instant, rows) in enumerate(states.items()):
        if not ALL and number % 2 == bool(small) and instant != newest:
            continue
        path = tmp_path / f"t{number}"
        shutil.copytree(source, path)  # keeps the times of files
        assert as_rows(read_table(open_table(path), ReadOptions(as_of=instant))) == rows
        before = data_files(path)
        dry = restore(path, instant, dry_run=True)
        assert data_files(path) == before
        done = restore(path, instant)
        assert (done.undone, done.files) == (dry.undone, dry.files)
        assert len(before - data_files(path)) == done.files
        if instant == newest:
            assert done.instant is None
        else:
            assert done.instant is not None
            assert done.undone == tuple(sorted(done.undone, reverse=True))
            timeline = open_table(path).load_timeline()
            assert not [i for i in timeline.instants if i.is_write and i.requested_time > instant]
        check_usable(path, rows)


@one_of("version", 6, 9, 8)
def test_the_newest_write_is_taken_back(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), WRITES)
    compact(path)
    upsert(path, one_row("k1", 1))
    rows = read_rows(path)
    upsert(path, one_row("k0", 7))
    newest = max(open_table(path).load_timeline().completed_writes)
    done = roll_back_newest(open_table(path), LOCK, newest)
    assert done.rollback > newest
    assert roll_back_newest(open_table(path), LOCK, newest) == done
    check_usable(path, rows)


@pytest.mark.parametrize("completed", [True, False])
def test_a_rollback_has_a_heartbeat_before_anything_shows_it(completed: bool, tmp_path: Path) -> None:
    """If its process dies right behind it, others of the machine see that at once, and need not wait."""
    path = tmp_path / "trips"
    written_table(path, 9, one_row("k0", 0), WRITES)
    upsert(path, one_row("k1", 1))
    if not completed:
        leave_dead_write(path)
    seen: list[bool] = []

    def hook(call: Call) -> object:
        name = Path(call.path).name
        planned = call.name == "put_if_absent" and name.endswith(".rollback.requested")
        hidden = call.name == "delete" and name.endswith(".deltacommit")
        if planned or hidden:
            seen.append((path / heartbeat_path(re.split("[._]", name)[0])).exists())
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
    if completed:
        roll_back_newest(table, LOCK, max(table.load_timeline().completed_writes))
    else:
        roll_back_dead_writers(table, LOCK, lazy=False, now_ms=lambda: storage_ms(table.storage), expiry_s=120)
    assert seen == [True] * (1 + completed)


def half_rolled_back(path: Path, version: int) -> PendingRollback:
    """A table, and a rollback of its newest write."""
    written_table(path, version, one_row("k0", 0), WRITES)
    upsert(path, one_row("k1", 1), WRITES)
    upsert(path, one_row("k0", 2), WRITES)
    upsert(path, one_row("k2", 3), WRITES)
    return request_rollback(path)


def cluster(path: Path) -> None:
    options = ClusterOptions(min_files=2, wait_s=0)
    cluster_table(open_table(path), options, LOCK, output=OutputOptions(memory_limit=32 << 20))


@one_of("version", 9, 8, 6)
def test_nothing_is_built_upon_a_write_whose_rollback_is_half_way(version: int, tmp_path: Path) -> None:
    """It would be in the way of the rollback, and with that of all writes."""
    path = tmp_path / "trips"
    rollback = half_rolled_back(path, version)
    before = {p for p in path.rglob("*") if p.is_file()}
    text = f"in progress.*`compactor-daemon rollback TABLE {rollback.target}`"
    for at_work in (False, True):
        for do in (
            lambda: schedule_compaction(open_table(path), LOCK, PLAN_NOW),
            lambda: cluster(path),
            lambda: upsert(path, one_row("k0", 5)),
            lambda: clean_table(open_table(path), CLEAN, LOCK),
            lambda: clean_table(open_table(path), CLEAN, LOCK, dry_run=True),
            lambda: create_savepoint(open_table(path), LOCK, None, user="", comment=""),
        ):
            beat = heartbeat(open_table(path).storage, rollback.instant, 60.0) if at_work else nullcontext()
            with pytest.raises(ConflictError, match=text), beat:
                do()
    assert {p for p in path.rglob("*") if p.is_file()} == before
    roll_back_newest(open_table(path), LOCK, rollback.target)
    check_usable(path, {"k0": (2, 2.0), "k1": (1, 1.0)})


@one_of("version", 9, 8, 6)
def test_a_half_way_rollback_behind_a_clean_is_not_finished(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clean, of a process that did not look for rollbacks, took the state before: all rows would be lost."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), REWRITES)
    upsert(path, one_row("k1", 1), REWRITES)
    rows, rollback = read_rows(path), request_rollback(path)
    with monkeypatch.context() as patch:
        patch.setattr(in_progress, "undoes_completed", lambda *_: False)
        assert clean_table(open_table(path), replace(CLEAN, policy=Policy.VERSIONS), LOCK).files
    with pytest.raises(UsageError, match=r"may have been cleaned.*Keep the write") as refused:
        roll_back_newest(open_table(path), LOCK, rollback.target)
    assert read_rows(path) == rows
    (name,) = re.findall(r"\S+\.rollback\.requested", str(refused.value))
    (path / name).unlink()
    upsert(path, one_row("k0", 5))
    assert read_rows(path) == rows | {"k0": (5, 5.0)}


@one_of("version", 6, 9, 8)
@pytest.mark.parametrize("what", [compact, cluster])
def test_a_restore_goes_past_what_was_built_upon_such_a_write(
    what: Callable[[Path], object], version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process that does not look for rollbacks, as Hudi's planner."""
    path = tmp_path / "trips"
    newest = half_rolled_back(path, version).target
    target = sorted(open_table(path).load_timeline().completed_writes)[2]
    with monkeypatch.context() as patch:
        patch.setattr(in_progress, "undoes_completed", lambda *_: False)
        patch.setattr(validity, "pending_rollbacks", lambda _table: ())
        what(path)
    with pytest.raises(UsageError, match=r"came later.*Keep the write"):
        roll_back_newest(open_table(path), LOCK, newest)
    with pytest.raises(ConflictError, match="the rollback of a completed write is in progress"):
        upsert(path, one_row("k0", 5))
    assert restore(path, target, dry_run=True).undone == restore(path, target).undone
    check_usable(path, {"k0": (2, 2.0), "k1": (1, 1.0)})


@pytest.mark.parametrize("dies", [False, True])
def test_the_time_at_which_it_completed_is_not_used_again(
    dies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer may have read up to it. The clock of that writer is ahead of those of the next ones."""
    path = tmp_path / "trips"
    written_table(path, 9, one_row("k0", 0), WRITES)
    upsert(path, one_row("k1", 1))
    newest = max(open_table(path).load_timeline().completed_writes)
    (done,) = (path / ".hoodie/timeline").glob(f"{newest}_*.deltacommit")
    ahead = format_time(parse_time(newest) + timedelta(seconds=20))
    done.rename(done.with_name(f"{newest}_{ahead}.deltacommit"))

    def hook(call: Call) -> object:
        if dies and call.path.endswith(".rollback.inflight"):
            raise ProcessDied(call.path)
        return call.do()

    with suppress(ProcessDied):
        roll_back_newest(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), LOCK, newest)
    monkeypatch.setattr(Process, "is_gone", lambda _process: True)
    upsert(path, one_row("k1", 2))
    timeline = open_table(path).load_timeline()
    assert all(i.requested_time > ahead for i in timeline.instants if i.requested_time >= newest)


@one_of("version", 9, 8, 6)
def test_only_the_newest_write_is_taken_back(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    states = history(path, version)
    rows, files = read_rows(path), data_files(path)
    for instant in states:
        with pytest.raises(UsageError, match=r"only the newest|writer can be"):
            roll_back_newest(open_table(path), LOCK, sorted(states)[0] if instant == max(states) else instant)
    with pytest.raises(UsageError, match="no such write"):
        roll_back_newest(open_table(path), LOCK, "20200101000000000")
    assert (read_rows(path), data_files(path)) == (rows, files)


@one_of("version", 9, 8, 6)
def test_a_compaction_is_not_rolled_back(version: int, tmp_path: Path) -> None:
    """Without its completed file it would be pending, and its base files would lie there."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), WRITES)
    upsert(path, one_row("k0", 1))
    compact(path)
    newest = max(open_table(path).load_timeline().completed_writes)
    rows = read_rows(path)
    with pytest.raises(UsageError, match="only a completed write of a writer") as refused:
        roll_back_newest(open_table(path), LOCK, newest)
    [target] = re.findall(r"restore TABLE --to (\d+)`", str(refused.value))
    assert restore(path, target).undone[0][0] == newest
    assert read_rows(path) == rows


@one_of("version", 6, 9, 8)
def test_a_plan_made_after_a_write_keeps_it(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), WRITES)
    upsert(path, one_row("k0", 1))
    newest = max(open_table(path).load_timeline().completed_writes)
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    with pytest.raises(UsageError, match="came later"):
        roll_back_newest(open_table(path), LOCK, newest)


# --- what must not be ------------------------------------------------------------------------------------------------


def refusals(path: Path, states: dict[str, Rows], error: type[PhantombaseError], text: str) -> None:
    """Neither changes anything."""
    oldest, newest = min(states), max(states)
    before = sorted(p.name for p in path.rglob("*"))
    with pytest.raises(error, match=text):
        restore(path, oldest)
    with pytest.raises(error, match=text):
        roll_back_newest(open_table(path), LOCK, newest)
    assert sorted(p.name for p in path.rglob("*")) == before


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, dict[str, Rows]]:
    """A table of two writes, and its states."""
    path = tmp_path / "trips"
    written_table(path, 9, one_row("k0", 0), WRITES)
    states = {max(open_table(path).load_timeline().completed_writes): read_rows(path)}
    upsert(path, one_row("k0", 1))
    return path, states | {max(open_table(path).load_timeline().completed_writes): read_rows(path)}


Small = tuple[Path, dict[str, Rows]]


def test_a_later_savepoint_is_kept(small: Small) -> None:
    path, states = small
    create_savepoint(open_table(path), LOCK, max(states), user="", comment="")
    refusals(path, states, UsageError, "a later savepoint would be lost")
    delete_savepoint(open_table(path), LOCK, max(states))
    assert restore(path, min(states)).instant is not None


def test_a_pinned_state_is_kept(small: Small) -> None:
    path, states = small
    storage, write = open_table(path).storage, open_table(path).load_timeline().completed_writes[max(states)]
    pin = HeldPin(storage, PinOptions(name="report", for_s=3600), write.completion_time or "")
    refusals(path, states, ConflictError, "timeline pins TABLE --release report")
    pin.remove()
    assert restore(path, min(states)).instant is not None


def test_a_process_at_work_is_an_error(small: Small) -> None:
    path, states = small
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    (pending,) = open_table(path).load_timeline().pending_compactions
    with heartbeat(open_table(path).storage, pending.requested_time, 30.0):
        refusals(path, states, ConflictError, "a process is at work")


def test_a_pending_clean_is_finished_first(small: Small) -> None:
    path, states = small
    table = open_table(path)
    clean = Instant(requested_time=table.snapshot().next_time(), action="clean", state=State.REQUESTED)
    table.storage.put_if_absent(table.instant_path(clean), b"")
    refusals(path, states, ConflictError, "a clean is pending")


@pytest.mark.parametrize("policy", [Policy.VERSIONS, Policy.COMMITS], ids=lambda p: p.value)
@pytest.mark.parametrize("version", [6, deep(8), deep(9)])
def test_a_write_whose_clean_left_nothing_before_it_stays(version: int, policy: Policy, tmp_path: Path) -> None:
    """A clean that keeps the newest file version; one by commits keeps the state before the newest."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), REWRITES)
    upsert(path, one_row("k1", 1), REWRITES)
    before = read_rows(path)
    upsert(path, one_row("k2", 2), REWRITES)
    after, newest = read_rows(path), max(open_table(path).load_timeline().completed_writes)
    assert clean_table(open_table(path), replace(CLEAN, policy=policy), LOCK).files > 0
    if policy is Policy.COMMITS:
        roll_back_newest(open_table(path), LOCK, newest)
        assert read_rows(path) == before
    else:
        with pytest.raises(UsageError, match="cleaned"):
            roll_back_newest(open_table(path), LOCK, newest)
        assert read_rows(path) == after


def test_a_cleaned_state_cannot_come_back(tmp_path: Path) -> None:
    """Except that of a savepoint."""
    path = tmp_path / "trips"
    written_table(path, 9, one_row("k0", 0), WRITES)
    first = max(open_table(path).load_timeline().completed_writes)
    rows = read_rows(path)
    for number in range(1, 4):
        upsert(path, one_row("k0", number))
        compact(path)
    other = tmp_path / "other"
    shutil.copytree(path, other)
    assert clean_table(open_table(path), CLEAN, LOCK).files > 0
    with pytest.raises(UsageError, match="may have been cleaned"):
        restore(path, first)
    create_savepoint(open_table(other), LOCK, first, user="", comment="")
    assert clean_table(open_table(other), CLEAN, LOCK).files > 0
    restore(other, first)
    check_usable(other, rows)


def test_a_savepoint_that_lost_a_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    written_table(path, 9, one_row("k0", 0), WRITES)
    kept = create_savepoint(open_table(path), LOCK, None, user="", comment="")
    upsert(path, one_row("k0", 1))
    (partition, names) = next(iter(kept.savepoint.files.items()))
    (path / partition / names[0]).unlink()
    with pytest.raises(UsageError, match="a file of the savepoint is gone"):
        restore(path, kept.instant)


@one_of("version", 9, 8, 6)
@pytest.mark.parametrize("by", ["restore", "rollback"])
def test_a_savepoint_of_an_older_state_lasts(by: str, version: int, tmp_path: Path) -> None:
    """It names the log file of the later write too, which goes with that write: the state is whole without it."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), WRITES)
    rows, first = read_rows(path), max(open_table(path).load_timeline().completed_writes)
    upsert(path, one_row("k0", 1))
    create_savepoint(open_table(path), LOCK, first, user="", comment="")
    if by == "restore":
        restore(path, first)
    else:
        roll_back_newest(open_table(path), LOCK, max(open_table(path).load_timeline().completed_writes))
    upsert(path, one_row("k0", 2))
    assert restore(path, first).undone
    check_usable(path, rows)


def test_a_later_write_that_is_archived_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hudi archives beyond savepoints where it is asked to."""
    path = tmp_path / "trips"
    written_table(path, 9, one_row("k0", 0), WRITES)
    kept = create_savepoint(open_table(path), LOCK, None, user="", comment="")
    for number in range(6):
        upsert(path, one_row("k0", number))
    with monkeypatch.context() as patch:
        patch.setattr("phantombase.compactor_daemon.archiving.archive.choose", _beyond_savepoints)
        assert len(archive(path).archived) > 1
    with pytest.raises(UsageError, match="a later write is archived"):
        restore(path, kept.instant)


def _beyond_savepoints(timeline: Timeline, facts: ArchiveFacts, options: ArchiveOptions) -> ArchiveChoice:
    first = min(timeline.completed_writes)
    others = tuple(i for i in timeline.instants if i.requested_time != first)
    return choose(replace(timeline, instants=others), facts, options)


def test_an_unreadable_plan_says_what_to_do(small: Small) -> None:
    path, states = small
    table = open_table(path)
    instant = Instant(requested_time=table.snapshot().next_time(), action="restore", state=State.REQUESTED)
    table.storage.put_if_absent(table.instant_path(instant), b"")
    with pytest.raises(MalformedError, match="removes it once it has not changed"):
        restore(path, min(states))


def test_while_a_restore_is_pending_nothing_else_begins(small: Small, tmp_path: Path) -> None:
    path, states = small

    with pytest.raises(ProcessDied):
        restore(
            path,
            min(states),
            HookedStorage(open_table(path).storage, die_at_nth(1, "put_if_absent", ".restore.inflight")),
        )
    for begin in (
        lambda: upsert(path, one_row("k0", 9)),
        lambda: schedule_compaction(open_table(path), LOCK, PLAN_NOW),
        lambda: clean_table(open_table(path), CLEAN, LOCK),
        lambda: archive(path),
        lambda: create_savepoint(open_table(path), LOCK, None, user="", comment=""),
        lambda: roll_back_newest(open_table(path), LOCK, max(states)),
    ):
        with pytest.raises(ConflictError, match="a restore of the table is in progress"):
            begin()
    shown = " ".join(CliRunner().invoke(app, ["status", str(path)]).stdout.split())
    assert "in progress: restore" in shown
    assert "compactor-daemon restore TABLE" in shown
    with pytest.raises(ConflictError, match="another instant is in progress"):
        restore(path, max(states))
    assert restore(path, None, dry_run=True).finished
    assert restore(path, None).finished
    assert read_rows(path) == states[min(states)]


@one_of("version", 6, 9)
def test_an_undone_log_block_never_counts_again(version: int, tmp_path: Path) -> None:
    """Of an instant that is not on the timeline, and older than all that are there, it would."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), WRITES)
    first = max(open_table(path).load_timeline().completed_writes)
    upsert(path, one_row("k0", 9))
    restore(path, first)
    for number in range(6):
        upsert(path, one_row("new", number))
    assert archive(path).archived
    assert read_rows(path) == {"k0": (0, 0.0), "new": (5, 5.0)}


def test_on_version_6_a_log_of_a_write_that_stays_keeps_its_file(tmp_path: Path) -> None:
    """Of writers that overlapped: the earlier one has its rows in a file group that the later one began."""
    path = tmp_path / "trips"
    written_table(path, 6, one_row("k0", 0), WRITES)
    upsert(path, one_row("k0", 1))
    upsert(path, one_row("k1", 2))
    first, second, third = sorted(open_table(path).load_timeline().completed_writes)
    (log,) = path.glob(f"a/.*_{first}.log.*")
    log.rename(log.with_name(log.name.replace(first, third)))
    with pytest.raises(ConflictError, match="rows of a write that stays"):
        restore(path, second)
    assert not list(path.glob(".hoodie/*.restore*"))


# --- deaths ----------------------------------------------------------------------------------------------------------


def small_history(path: Path, version: int) -> tuple[str, Rows]:
    """An instant and its rows; after it an update, a compaction, an insert, and a plan."""
    written_table(path, version, pa.concat_tables([one_row("k0", 0), one_row("k1", 0)]), WRITES)
    upsert(path, one_row("k0", 1))
    target, rows = max(open_table(path).load_timeline().completed_writes), read_rows(path)
    upsert(path, one_row("k1", 2))
    compact(path)
    upsert(path, one_row("k2", 3))
    upsert(path, one_row("k0", 4))
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    table = open_table(path)
    (plan,) = table.load_timeline().pending_compactions
    table.storage.put_if_absent(table.instant_path(plan.at(State.INFLIGHT)), b"")  # of an executor of Hudi that died
    return target, rows


@one_of("version", 6, 9, 8)
def test_a_restore_that_died_anywhere_is_finished(version: int, tmp_path: Path) -> None:
    """Meanwhile the table has the rows of one of its states."""
    path = tmp_path / "trips"
    target, rows = small_history(path, version)
    newest = read_rows(path)
    states = [rows, rows | {"k1": (2, 2.0)}, rows | {"k1": (2, 2.0), "k2": (3, 3.0)}, newest]
    died = 0
    for died, copy in enumerate(died_or_ended(path, lambda storage: restore(path, target, storage))):
        assert read_rows(copy) in states
        restore(copy, target)
        assert read_rows(copy) == rows
        if died % 3 == 0 or ALL:
            check_usable(copy, rows)
        shutil.rmtree(copy)
    assert died > 8


def test_a_plan_goes_last(tmp_path: Path) -> None:
    """An inflight compaction without its plan could not be read."""
    path = tmp_path / "trips"
    target, _ = small_history(path, 6)
    deleted: list[str] = []

    def note(call: Call) -> Any:
        if call.name == "delete":
            deleted.append(call.path)
        return call.do()

    restore(path, target, HookedStorage(LocalStorage(str(path)), note))
    states = [name.rpartition(".")[2] for name in deleted if ".compaction." in name]
    assert states == ["inflight", "requested", "requested"]


@one_of("version", 9, 8, 6)
def test_a_rollback_that_died_anywhere_hides_no_row_of_others(version: int, tmp_path: Path) -> None:
    """Its process is not known to be gone: the next write leaves it alone, or waits where it has hidden nothing yet."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), WRITES)
    upsert(path, one_row("k1", 1))
    rows = read_rows(path)
    upsert(path, one_row("k0", 7))
    later, newest = read_rows(path), max(open_table(path).load_timeline().completed_writes)
    died = 0
    for died, copy in enumerate(  # noqa: B007
        died_or_ended(path, lambda storage: roll_back_newest(open_table(path, storage), LOCK, newest))
    ):
        seen = read_rows(copy)
        assert seen in (rows, later)
        if seen == later and list((copy / ".hoodie").rglob("*.rollback.requested")):
            with pytest.raises(ConflictError, match="`compactor-daemon rollback"):
                upsert(copy, one_row("new", 1))
            roll_back_newest(open_table(copy), LOCK, newest)
            seen = rows
        upsert(copy, one_row("new", 1))
        assert read_rows(copy) == seen | {"new": (1, 1.0)}
        shutil.rmtree(copy)
    assert died > 5


@one_of("version", 9, 6)
def test_a_rollback_whose_process_is_gone_is_finished_at_once(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next write beside others, too: it need not wait until nothing of it is young."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), WRITES)
    upsert(path, one_row("k0", 7))
    newest = max(open_table(path).load_timeline().completed_writes)
    for copy in died_or_ended(path, lambda storage: roll_back_newest(open_table(path, storage), LOCK, newest)):
        with monkeypatch.context() as patched:
            patched.setattr(Process, "is_gone", lambda _process: True)
            upsert(copy, one_row("new", 1), replace(WRITES, lazy_rollback=True))
        timeline = open_table(copy).load_timeline()
        assert all(i.completed for i in timeline.instants)
        assert not list((copy / ".hoodie/.heartbeat").glob("*"))
        shutil.rmtree(copy)


@one_of("version", 6, 9, 8)
def test_an_error_at_every_call_the_next_run_finishes(version: int, tmp_path: Path) -> None:
    origin, said = tmp_path / "origin", 0
    target, rows = small_history(origin, version)
    whole = shutil.copytree(origin, tmp_path / "whole")
    restore(whole, target)
    for _, _, path, error in Faults.of(origin, lambda storage: restore(origin, target, storage)).errors():
        restore(path, target)
        assert read_rows(path) == rows
        assert data_files(path) == data_files(whole)
        said += error is not None
    assert said > 8


# --- with a metadata table, and the commands --------------------------------------------------------------------------


@one_of("name", "v9_with_metadata_table", "v6_with_metadata_table")
def test_a_metadata_table_is_dropped(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    first = min(table.load_timeline().completed_writes)
    rows = by_key(read_table(table, ReadOptions(as_of=first)))
    done = restore(path, first)
    assert done.metadata_dropped
    assert not (path / ".hoodie" / "metadata").exists()
    assert by_key(read_table(open_table(path), ReadOptions())) == rows


@one_of("name", "v9_with_metadata_table", "v8_with_metadata_table", "v6_with_metadata_table")
def test_a_plan_of_the_metadata_table_that_holds_the_write_goes_with_it(name: str, tmp_path: Path) -> None:
    """A process died behind its request: the plan names a log file of the write, which the rollback removes."""
    path = unzip_golden(name, tmp_path)
    run_all(open_table(path))
    before = read_rows(path)
    writer(pa.table({"id": ["k001"], "p": ["north"], "ts": [10**6]})).upsert(str(path))

    def dies(call: Call) -> object:
        if "metadata" in call.path and call.path.endswith(".compaction.inflight"):
            raise ProcessDied(call.path)
        return call.do()

    with pytest.raises(ProcessDied):
        serve_metadata(open_table(path, HookedStorage(LocalStorage(str(path)), dies)), AT_ONCE, LOCK)
    assert open_metadata_table(open_table(path)).load_timeline().pending_compactions
    newest = max(open_table(path).load_timeline().completed_writes)
    assert roll_back_newest(open_table(path), LOCK, newest, dry_run=True).metadata_dropped
    assert roll_back_newest(open_table(path), LOCK, newest).metadata_dropped
    assert not (path / ".hoodie" / "metadata").exists()
    assert serve_metadata(open_table(path), AT_ONCE, LOCK).why == "the table has no metadata table"
    assert read_rows(path) == before


@one_of("name", "v9_with_metadata_table", "v8_with_metadata_table", "v6_with_metadata_table")
def test_a_log_compaction_of_the_metadata_table_that_holds_the_write_goes_with_it(name: str, tmp_path: Path) -> None:
    """As Hudi makes them before a clean, where they are on: completed, it is a delta commit."""
    path = unzip_golden(name, tmp_path)
    run_all(open_table(path))
    writer(pa.table({"id": ["k001"], "p": ["north"], "ts": [10**6]})).upsert(str(path))
    metadata = open_metadata_table(open_table(path))
    newest = max(metadata.load_timeline().completed, key=lambda i: i.requested_time)
    later = str(int(newest.requested_time) + 1)
    ended = newest.completion_time and str(int(newest.completion_time) + 1)
    merged = replace(newest, requested_time=later, completion_time=ended, file_name="")
    content = replace(metadata.commit_metadata(newest), operation_type=LOG_COMPACT)
    assert metadata.storage.put_if_absent(metadata.instant_path(merged), encode(content, metadata.layout.encoding))
    assert roll_back_newest(open_table(path), LOCK, newest.requested_time, dry_run=True).metadata_dropped


def by_key(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.drop_columns(["_hoodie_file_name"]).sort_by("_hoodie_record_key").to_pylist()
    return rows


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def test_the_commands(small: Small) -> None:
    path, states = small
    oldest, newest = str(min(states)), str(max(states))
    with_nothing = CliRunner().invoke(app, ["restore", str(path), "--to", oldest])
    assert isinstance(with_nothing.exception, UsageError)
    assert "--lock and --sole-writer" in str(with_nothing.exception)
    done = run("restore", str(path), "--to", oldest, "--dry-run")
    assert (done["undone"], done["instant"]) == ([{"instant": newest, "action": "deltacommit"}], None)
    assert run("rollback", str(path), newest, "--sole-writer")["instant"] == newest
    assert run("restore", str(path), "--to", oldest, "--sole-writer")["undone"] == []
    shown = CliRunner().invoke(app, ["restore", str(path), "--to", oldest, "--sole-writer"])
    assert "nothing to undo" in shown.stdout
    upsert(path, one_row("k1", 5))
    shown = CliRunner().invoke(app, ["restore", str(path), "--to", oldest, "--sole-writer"])
    assert f"the state at {oldest} is restored" in " ".join(shown.stdout.split())
    none = CliRunner().invoke(app, ["restore", str(path), "--sole-writer"])
    assert "no restore is pending" in str(none.exception)
    unknown = CliRunner().invoke(app, ["restore", str(path), "--to", "20200101000000000", "--sole-writer"])
    assert "only the state at a completed write" in str(unknown.exception)


@one_of("version", 6, 9, 8)
def test_a_state_whose_later_base_file_is_gone_is_refused(version: int, tmp_path: Path) -> None:
    """A compaction pended at the savepoint and completed later; a clean of Hudi keeps the savepoint's files alone."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), WRITES)
    upsert(path, one_row("k0", 1), WRITES)
    schedule_compaction(open_table(path), LOCK, PLAN_NOW)
    upsert(path, one_row("k0", 2), WRITES)
    kept = create_savepoint(open_table(path), LOCK, None, user="u", comment="")
    before = data_files(path)
    run_all(open_table(path))
    (made,) = data_files(path) - before
    upsert(path, one_row("k0", 3), WRITES)
    compact(path)
    rows = read_rows(path)
    (path / made).unlink()
    instants = open_table(path).load_timeline().instants
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="cannot be restored whole"):
            restore(path, kept.instant, dry_run=dry_run)
    assert open_table(path).load_timeline().instants == instants
    assert read_rows(path) == rows


@one_of("version", 9, 6)
def test_a_clock_by_which_no_rollback_begins_hides_nothing(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), WRITES)
    upsert(path, one_row("k0", 1), WRITES)
    newest, rows = max(open_table(path).load_timeline().completed_writes), read_rows(path)

    def wrong(*_: object) -> None:
        raise ClockError("another time zone")

    monkeypatch.setattr(TableClock, "check_zone", wrong)
    for dry_run in (True, False):
        with pytest.raises(ClockError):
            roll_back_newest(open_table(path), LOCK, newest, dry_run=dry_run)
    assert read_rows(path) == rows
    assert newest in open_table(path).load_timeline().completed_writes


@VERSIONS
@pytest.mark.parametrize("older", [False, True], ids=["newer", "older"])
@pytest.mark.parametrize("begun", [False, True], ids=["pending", "rollback begun"])
def test_a_dry_run_thinks_dead_writes_away(version: int, older: bool, begun: bool, tmp_path: Path) -> None:
    """A run rolls them back first. `older`: they are older than the target. `begun`: a rollback died."""
    path = tmp_path / "trips"
    written_table(path, version, one_row("k0", 0), WRITES)
    upsert(path, one_row("k1", 1))
    target, later = open_table(path).load_timeline().completed_writes
    storage = open_table(path).storage
    gone = b"phantombase\n" + json.dumps(asdict(replace(Process.current(), started=1))).encode()
    if older:
        dead = leave_dead_write(path, begun_by=Process.current(), age_s=0).instant.requested_time
        upsert(path, one_row("k2", 2))
        target = max(open_table(path).load_timeline().completed_writes)
        upsert(path, one_row("k3", 3))
        later = max(open_table(path).load_timeline().completed_writes)
        storage.overwrite(heartbeat_path(dead), gone)
    else:
        dead = leave_dead_write(path).instant.requested_time
    if begun:
        dying = open_table(path, HookedStorage(storage, die_at_nth(1, "put_if_absent", ".rollback.inflight")))
        with pytest.raises(ProcessDied):
            roll_back_dead_writers(dying, LOCK, lazy=False, now_ms=lambda: storage_ms(storage), expiry_s=120)
        (rollback,) = open_table(path).load_timeline().pending("rollback")
        storage.overwrite(heartbeat_path(rollback.requested_time), gone)
    before = data_files(path)
    dry = restore(path, target, dry_run=True)
    assert data_files(path) == before
    done = restore(path, target)
    assert (dry.undone, dry.dead) == (done.undone, done.dead)
    if version > 6 or older:  # else the rollback adds a log file to the file group that goes
        assert dry.files == done.files
    assert (dry.undone, dry.dead) == (((later, "deltacommit"),), (dead,))


def test_a_dry_run_refuses_a_live_write(small: Small) -> None:
    path, states = small
    leave_dead_write(path, begun_by=Process.current(), age_s=0)
    for dry_run in (True, False):
        with pytest.raises(ConflictError, match="a process is at work"):
            restore(path, min(states), dry_run=dry_run)
