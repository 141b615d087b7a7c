"""A publisher that sleeps between its last snapshot and the completed file, while others hold its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.attempt.finish import finish_completed, littered_instants
from phantombase.compactor_daemon.attempt.outcome import CommitDecision, is_revoked, revoke_decision
from phantombase.compactor_daemon.attempt.publish import publish
from phantombase.compactor_daemon.attempt.revert import revert_files
from phantombase.compactor_daemon.attempt.slice_record import completed_compaction
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.errors import ConflictError, StorageError
from phantombase.timeline.format.commit_metadata import decode, encode
from phantombase.timeline.format.instant import Instant, State, later
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.transaction import transaction
from phantombase.writer_hooks.options import WriteOptions
from tests.support.compaction_steps import base_files, check_no_strays, decided, is_held, open_table, run_all
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.golden_tables import LOCK, one_of
from tests.support.moved_tables import (
    BEFORE,
    FIRST,
    VERSIONS,
    decision,
    others,
    remove_all_but_first_commit,
    restore_first_commit,
    schedule,
    timeline_files,
    upsert,
)
from tests.support.selection import deep
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table

OTHER_LOCK = ProcessLock("late")
"""In the place of the one that was lost."""


def asleep(path: Path, at: tuple[str, str], before: Callable[[], None], after: Callable[[], None]) -> Table:
    """The table of a process, at one of whose calls something happens before and after it."""

    def hook(call: Call) -> Any:
        if (call.name, call.path) != at:
            return call.do()
        before()
        result = call.do()
        after()
        return result

    return open_table(path, HookedStorage(open_table(path).storage, hook))


def nothing() -> None:
    """Happens."""


def die() -> None:
    """Of the process that calls it."""
    raise ProcessDied


def void(_: object) -> None:
    """A result is not needed."""


def at_put(decided: CommitDecision) -> tuple[str, str]:
    """The completed file."""
    return "put_if_absent", decided.completed_path


def taken_back(path: Path, decided: CommitDecision) -> None:
    """As by `unschedule`, killed before it had removed the plan."""
    revert_files(open_table(path), decided, "unscheduled")


def late(path: Path, decided: CommitDecision) -> None:
    """Its commit and its files are there, and so is the record that it was taken back; the plan is gone."""
    revoked = f".hoodie/.phantombase/{decided.instant}/{decided.attempt}/revoked"

    def meanwhile() -> None:
        restore_first_commit(path)
        with pytest.raises(ProcessDied):
            revert_files(asleep(path, ("put_if_absent", revoked), nothing, die), decided, "its plan is gone")

    with pytest.raises(ProcessDied):
        publish(asleep(path, at_put(decided), meanwhile, die), decided, LOCK)


@one_of("version", 9, 6)
def test_a_commit_of_a_plan_that_is_gone_is_taken_away(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    decided = decision(path, version)
    sleeper = asleep(path, at_put(decided), lambda: restore_first_commit(path), nothing)
    with pytest.raises(ConflictError, match="its plan is gone"):
        publish(sleeper, decided, LOCK)
    assert read_rows(path) == FIRST
    assert not base_files(path, decided.instant)
    check_no_strays(path)


@one_of("version", 6, 9)
def test_a_commit_of_a_decision_that_was_taken_back_is_taken_away(version: int, tmp_path: Path) -> None:
    """Its files are gone. The plan stands: it is executed anew."""
    path = tmp_path / "t"
    decided = decision(path, version)
    with pytest.raises(ConflictError, match="was revoked"):
        publish(asleep(path, at_put(decided), lambda: taken_back(path, decided), nothing), decided, LOCK)
    assert completed_compaction(open_table(path), decided.instant) is None
    run_all(open_table(path))
    assert read_rows(path) == BEFORE


@one_of("version", 9, 6)
def test_what_another_publisher_has_completed_meanwhile_stays(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    decided = decision(path, version)
    publish(asleep(path, at_put(decided), lambda: run_all(open_table(path)), nothing), decided, LOCK)
    assert base_files(path, decided.instant)
    assert read_rows(path) == BEFORE


@one_of("version", 9, 6)
def test_what_was_archived_meanwhile_is_not_begun_anew(version: int, tmp_path: Path) -> None:
    """On version 6 the commit would begin the timeline, and what was archived behind it would not count."""
    path = tmp_path / "t"
    decided = decision(path, version)

    def meanwhile() -> None:
        run_all(open_table(path))
        for file in timeline_files(path):
            if file.name.startswith(decided.instant):
                file.unlink()

    old = Instant(requested_time=decided.instant, action="commit", state=State.COMPLETED)
    sleeper = asleep(path, at_put(decided), meanwhile, nothing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "with_archive", lambda _, timeline: replace(timeline, archived=(old,)))
        with pytest.raises(ConflictError, match="completed and archived"):
            publish(sleeper, decided, LOCK)
    assert completed_compaction(open_table(path), decided.instant) is None
    assert base_files(path, decided.instant), "they are the table's"


@VERSIONS
def test_of_two_commits_that_of_the_other_stays(version: int, tmp_path: Path) -> None:
    """Another compactor, which takes no lock, completed it: on versions 8 and 9 the two names differ."""
    path = tmp_path / "t"
    decided = decision(path, version)
    table = open_table(path)
    time = later(decided.completion_time, 5) if decided.completion_time is not None else None
    theirs = Instant(requested_time=decided.instant, action="commit", state=State.COMPLETED, completion_time=time)
    file = path / table.instant_path(theirs)
    commit = encode(others(decode(decided.content, decided.completed_path)), table.layout.encoding)
    with pytest.raises(ConflictError, match="another process completed"):
        publish(asleep(path, at_put(decided), lambda: void(file.write_bytes(commit)), nothing), decided, LOCK)
    assert file.read_bytes() == commit
    assert version == 6 or not (path / decided.completed_path).exists()
    assert not base_files(path, decided.instant)


@one_of("version", 6, 9)
def test_for_what_fell_before_the_lock_nothing_is_begun(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    decided = decision(path, version)
    partition = decided.placements[0].final.rpartition("/")[0]
    restore_first_commit(path)
    with pytest.raises(ConflictError, match="its plan is gone"):
        publish(asleep(path, ("list", partition), die, nothing), decided, LOCK)


@one_of("version", 9, 6)
def test_no_commit_is_put_where_the_plan_went_during_the_section(version: int, tmp_path: Path) -> None:
    """All that is done in it may take longer than a lock lives."""
    path = tmp_path / "t"
    decided = decision(path, version)
    partition = decided.placements[0].final.rpartition("/")[0]
    put: list[str] = []

    def hook(call: Call) -> Any:
        # It is listed before the lock, too.
        if (call.name, call.path) == ("list", partition) and is_held(LOCK):
            restore_first_commit(path)
        if call.name == "put_if_absent" and call.path == decided.completed_path:
            put.append(call.path)
        return call.do()

    with pytest.raises(ConflictError, match="its plan is gone"):
        publish(open_table(path, HookedStorage(open_table(path).storage, hook)), decided, LOCK)
    assert not put


@one_of("version", 9, 6)
def test_a_commit_that_nobody_looked_back_at_is_withdrawn(version: int, tmp_path: Path) -> None:
    """The process died right after it had put it; another had taken the decision back while it slept."""
    path = tmp_path / "t"
    decided = decision(path, version)

    def meanwhile() -> None:
        restore_first_commit(path)
        finish_completed(open_table(path), OTHER_LOCK)

    with pytest.raises(ProcessDied):
        publish(asleep(path, at_put(decided), meanwhile, die), decided, LOCK)
    assert completed_compaction(open_table(path), decided.instant) is not None
    finish_completed(open_table(path), LOCK)
    assert read_rows(path) == FIRST
    assert littered_instants(open_table(path)) == ()
    check_no_strays(path)


@one_of("version", 6, 9)
def test_what_stands_is_not_withdrawn(version: int, tmp_path: Path) -> None:
    """The record that it was taken back came after the commit: its files were left alone, and it counts."""
    path = tmp_path / "t"
    decided = decision(path, version)
    revoked = f".hoodie/.phantombase/{decided.instant}/{decided.attempt}/revoked"
    taker = asleep(path, ("put_if_absent", revoked), lambda: publish(open_table(path), decided, LOCK), nothing)
    with pytest.raises(ConflictError, match="cannot be reverted"):
        revert_files(taker, decided, "unscheduled")
    assert is_revoked(open_table(path).storage, decided.instant, decided.attempt)
    finish_completed(open_table(path), LOCK)
    assert base_files(path, decided.instant)
    assert read_rows(path) == BEFORE


@one_of("version", 9, 6)
@pytest.mark.parametrize("answer", ["an error", "False"])
def test_a_commit_whose_put_was_not_answered_is_looked_back_at(version: int, answer: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    decided = decision(path, version)

    def hook(call: Call) -> Any:
        if (call.name, call.path) != at_put(decided):
            return call.do()
        restore_first_commit(path)
        call.do()
        if answer == "an error":
            raise StorageError("not answered", path=call.path)
        return False

    with pytest.raises((ConflictError, StorageError)):
        publish(open_table(path, HookedStorage(open_table(path).storage, hook)), decided, LOCK)
    assert completed_compaction(open_table(path), decided.instant) is None
    finish_completed(open_table(path), LOCK)
    assert read_rows(path) == FIRST


@VERSIONS
def test_a_late_commit_that_was_written_upon_stays(version: int, tmp_path: Path) -> None:
    """On version 6 no reader finds what was written since without it. From 8 on it is withdrawn: the log tells itself
    which slice it belongs to."""
    path = tmp_path / "t"
    decided = decision(path, version)
    late(path, decided)
    upsert(LocalStorage(str(path)), rows((3, 5, 5.0)))
    finish_completed(open_table(path), LOCK)
    assert read_rows(path) == {"k0000": BEFORE["k0000"] if version == 6 else FIRST["k0000"], "k0003": (5, 5.0)}


@one_of("version", 9, 6)
def test_a_late_commit_that_another_compaction_rests_on_stays(version: int, tmp_path: Path) -> None:
    """First that is planned, then it is completed."""
    path = tmp_path / "t"
    decided = decision(path, version)
    late(path, decided)
    upsert(LocalStorage(str(path)), rows((3, 5, 5.0)))
    assert schedule(path).instant is not None
    for _ in range(2):
        run_all(open_table(path))
        assert completed_compaction(open_table(path), decided.instant) is not None
        assert read_rows(path) == {**BEFORE, "k0003": (5, 5.0)}


@VERSIONS
def test_a_late_commit_waits_for_what_may_be_written_upon_it(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    decided = decision(path, version)
    late(path, decided)
    with suppress(KeyError), transaction(open_table(path), LOCK, 1.0):
        finish_completed(open_table(path), OTHER_LOCK)
        assert (completed_compaction(open_table(path), decided.instant) is not None) == (version == 6)
        raise KeyError
    finish_completed(open_table(path), LOCK)
    assert completed_compaction(open_table(path), decided.instant) is None
    assert read_rows(path) == FIRST


@one_of("version", 6, 9)
@pytest.mark.parametrize("cleaned", ["*.parquet", ".*.log.*"])
def test_a_commit_whose_inputs_were_cleaned_stays(version: int, cleaned: str, tmp_path: Path) -> None:
    """The process slept between its put and its snapshot back; the record came with the commit, which counted."""
    path = tmp_path / "t"
    decided = decision(path, version)

    def meanwhile() -> None:
        revoke_decision(open_table(path).storage, decided.instant, decided.attempt, "unscheduled", "another")
        for file in path.glob(f"mon/{cleaned}"):
            if decided.instant not in file.name:
                file.unlink()

    publish(asleep(path, at_put(decided), nothing, meanwhile), decided, LOCK)
    assert read_rows(path) == BEFORE


@pytest.fixture(params=[9, deep(6)], ids="v{}".format)
def two_groups(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, CommitDecision]:
    """A table of two file groups, and the decision of a plan of both."""
    path = tmp_path / "t"
    written_table(path, request.param, rows((0, 1, 1.0), (1, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    upsert(LocalStorage(str(path)), rows((0, 2, 2.0), (1, 2, 2.0)))
    instant = schedule(path).instant
    assert instant is not None
    return path, decided(open_table(path), instant)


def test_a_late_commit_whose_files_are_gone_is_taken_away(two_groups: tuple[Path, CommitDecision]) -> None:
    """Also where one of its file groups was compacted since: readers would miss the file of the other one."""
    path, decided = two_groups

    def meanwhile() -> None:
        remove_all_but_first_commit(path)
        finish_completed(open_table(path), OTHER_LOCK)
        upsert(LocalStorage(str(path)), rows((0, 3, 3.0)))
        assert schedule(path).instant is not None
        run_all(open_table(path))

    with pytest.raises(ConflictError, match="its plan is gone"):
        publish(asleep(path, at_put(decided), meanwhile, nothing), decided, LOCK)
    assert read_rows(path) == {"k0000": (3, 3.0), "k0001": (1, 1.0)}


def test_a_late_commit_stays_where_a_cleaner_has_seen_it(two_groups: tuple[Path, CommitDecision]) -> None:
    """The process sleeps again between its put and its snapshot back: without the commit nothing is left."""
    path, decided = two_groups

    def clean() -> None:
        upsert(LocalStorage(str(path)), rows((2, 3, 3.0)))
        assert clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), OTHER_LOCK).files

    publish(asleep(path, at_put(decided), lambda: remove_all_but_first_commit(path), clean), decided, LOCK)
    assert read_rows(path) == {"k0000": (2, 2.0), "k0001": (2, 2.0), "k0002": (3, 3.0)}


# A publisher for which the lock came late, or was lost: what it saw or placed before is not true any more.


@one_of("version", 9, 6)
def test_what_was_removed_before_it_had_the_lock_is_placed_again(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    decided = decision(path, version)
    wanted = read_rows(path)

    class Late:
        """Another process removes the files while the lock is waited for."""

        @contextmanager
        def hold(self, purpose: str) -> Iterator[Section]:
            for placement in decided.placements:
                (path / placement.final).unlink()
            with LOCK.hold(purpose) as section:
                yield section

    publish(open_table(path), decided, Late())
    assert base_files(path, decided.instant)
    assert read_rows(path) == wanted


@one_of("version", 6, 9)
def test_what_another_publisher_has_completed_since_is_not_removed(version: int, tmp_path: Path) -> None:
    """A foreign commit was there when the section began; now it is gone, and the decision is completed."""
    path = tmp_path / "t"
    decided = decision(path, version)
    wanted = read_rows(path)
    table = open_table(path)
    time = later(decided.completion_time, 5) if decided.completion_time is not None else None
    foreign = Instant(requested_time=decided.instant, action="commit", state=State.COMPLETED, completion_time=time)
    file = path / table.instant_path(foreign)
    file.write_bytes(encode(others(decode(decided.content, decided.completed_path)), table.layout.encoding))
    left = ["foreign"]

    def hook(call: Call) -> Any:
        found = call.do()
        if (call.name, call.path) == ("read", table.instant_path(foreign)) and left:
            left.clear()
            file.unlink()
            run_all(open_table(path))
        return found

    publish(open_table(path, HookedStorage(table.storage, hook)), decided, LOCK)
    assert base_files(path, decided.instant)
    assert read_rows(path) == wanted
