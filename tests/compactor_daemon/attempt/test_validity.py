"""A decision whose table has moved on before it is published: restored, rolled back, archived, replaced."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.finish import finish_completed
from phantombase.compactor_daemon.attempt.outcome import decisions, find_decision
from phantombase.compactor_daemon.attempt.publish import publish
from phantombase.compactor_daemon.attempt.validity import Assessment, Evidence, Validity, assess
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.errors import ConflictError, PhantombaseError
from phantombase.timeline.format.commit_metadata import encode
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import LAYOUT_2
from phantombase.timeline.instants.reserved_times import instant_folder
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import base_files, check_no_strays, decided, open_table, run_all
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.moved_tables import (
    BEFORE,
    FIRST,
    VERSIONS,
    Sleeper,
    clean,
    place_all,
    planned,
    replace_first_group,
    restore_first_commit,
    roll_back_newest_write,
    timeline_files,
    upsert,
)
from tests.support.selection import for_each
from tests.support.trips import rows
from tests.support.written_tables import read_rows

# --- restored away ----------------------------------------------------------------------------------------------------


@one_of("version", 9, 6)
@pytest.mark.parametrize("asleep", ["before placing", "before the lock"])
def test_what_was_restored_away_stays_away(version: int, asleep: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    instant = planned(path, version)
    decision = decided(open_table(path), instant)
    lock = Sleeper(lambda: restore_first_commit(path))
    if asleep == "before placing":
        restore_first_commit(path)
        lock = Sleeper(lambda: None)
    with pytest.raises(ConflictError, match="its plan is gone"):
        publish(open_table(path), decision, lock)
    assert read_rows(path) == FIRST
    assert not base_files(path, instant)
    check_no_strays(path)
    with pytest.raises(ConflictError, match="its plan is gone"):  # and again, as any number of publishers may
        publish(open_table(path), decision, lock)


@one_of("version", 6, 9)
def test_placed_files_of_a_plan_that_is_gone_are_taken_back(version: int, tmp_path: Path) -> None:
    """The process died before the completed file; once archiving has passed them they would count as committed."""
    path = tmp_path / "t"
    instant = planned(path, version)
    decision = decided(open_table(path), instant)
    place_all(path, decision)
    restore_first_commit(path)
    finish_completed(open_table(path), LOCK)
    assert not base_files(path, instant)
    assert find_decision(open_table(path).storage, instant) is None
    with suppress(PhantombaseError):  # a publisher that slept meanwhile
        place_all(path, decision)
    finish_completed(open_table(path), LOCK)
    assert not base_files(path, instant)
    assert read_rows(path) == FIRST


@one_of("version", 9, 6)
def test_while_a_restore_is_pending_nothing_is_done(version: int, tmp_path: Path) -> None:
    """Neither published nor taken back: it may remove the plan next, or fail."""
    path = tmp_path / "t"
    instant = planned(path, version)
    table = open_table(path)
    decision = decided(table, instant)
    place_all(path, decision)
    pending = Instant(requested_time=table.snapshot().next_time(), action="restore", state=State.REQUESTED)
    (path / table.instant_path(pending)).write_bytes(b"")
    with pytest.raises(ConflictError, match=r"restore .* is pending"):
        publish(open_table(path), decision, LOCK)
    assert base_files(path, instant)
    (path / table.instant_path(pending)).unlink()
    publish(open_table(path), decision, LOCK)
    assert read_rows(path) == BEFORE


@one_of("version", 9, 6)
def test_what_could_not_be_published_at_first_is_placed_in_the_lock(version: int, tmp_path: Path) -> None:
    """The restore ends, given up, before the publisher has the lock: its commit names files that are there."""
    path = tmp_path / "t"
    instant = planned(path, version)
    table = open_table(path)
    decision = decided(table, instant)
    pending = Instant(requested_time=table.snapshot().next_time(), action="restore", state=State.REQUESTED)
    file = path / table.instant_path(pending)
    file.write_bytes(b"")
    publish(open_table(path), decision, Sleeper(file.unlink))
    assert base_files(path, instant)
    assert read_rows(path) == BEFORE


# --- rolled back ------------------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("ends_by", ["compact", "unschedule"])
def test_a_merged_write_that_was_rolled_back_stays_away(version: int, ends_by: str, tmp_path: Path) -> None:
    """The decision is taken back, for ever; the plan is executed anew, without the write, or taken back."""
    path = tmp_path / "t"
    instant = planned(path, version)
    decision = decided(open_table(path), instant)
    place_all(path, decision)
    if version == 6:  # there the log stays, and a command block revokes it; the plan's file is not gone
        newest = max(f.name[:17] for f in timeline_files(path) if "deltacommit" in f.name)
        for file in timeline_files(path):
            if file.name.startswith(newest):
                file.unlink()
    else:
        roll_back_newest_write(path)
    assert read_rows(path) == FIRST
    with pytest.raises(ConflictError, match="was rolled back"):
        publish(open_table(path), decision, LOCK)
    assert not base_files(path, instant)
    if ends_by == "compact":
        run_all(open_table(path))
        assert [g.attempt for g in decisions(open_table(path).storage, instant)] == [1, 2]
    else:
        unschedule(open_table(path), instant, LOCK)
    assert pending_instants(open_table(path)) == ()
    assert read_rows(path) == FIRST
    with pytest.raises(ConflictError):  # the first publisher wakes up
        publish(open_table(path), decision, LOCK)
    assert read_rows(path) == FIRST
    check_no_strays(path)


# --- archived ---------------------------------------------------------------------------------------------------------


def archive_all_but_last(path: Path, version: int) -> None:
    """As Hudi archives, with an archive that was removed since."""
    last = timeline_files(path)[-1].name[:17]
    for file in timeline_files(path):
        if file.name[:17] < last:
            file.unlink()


def test_a_publisher_that_wakes_up_after_archiving_publishes_nothing(tmp_path: Path) -> None:
    """Its commit would begin the timeline anew: what was archived behind it would count as uncommitted (version 6)."""
    path = tmp_path / "t"
    instant = planned(path, 6)
    decision = decided(open_table(path), instant)
    truth = {}

    def meanwhile() -> None:
        run_all(open_table(path))
        for n in range(4):
            upsert(LocalStorage(str(path)), rows((0, 10 + n, 10.0 + n), (6 + 3 * n, 1, 1.0)))
        archive_all_but_last(path, 6)
        truth.update(read_rows(path))

    with pytest.raises(ConflictError, match="the active timeline begins after it"):
        publish(open_table(path), decision, Sleeper(meanwhile))
    assert base_files(path, instant), "they are the table's"
    assert read_rows(path) == truth
    finish_completed(open_table(path), LOCK)
    assert not (path / instant_folder(instant)).exists()
    assert base_files(path, instant)
    assert read_rows(path) == truth


def forget_group(path: Path, file_id: str) -> None:
    """No completed write of the active timeline names a file of the group any more."""
    table = open_table(path)
    for instant in table.load_timeline().completed:
        if instant.is_write:
            metadata = table.commit_metadata(instant)
            stats = {
                p: tuple(s for s in of if s.file_id != file_id) for p, of in metadata.partition_to_write_stats.items()
            }
            content = encode(replace(metadata, partition_to_write_stats=stats), table.layout.encoding)
            (path / table.instant_path(instant)).write_bytes(content)


@one_of("name", "v6_pending", "v9_pending")
@pytest.mark.parametrize("when", ["before the attempt", "after the decision", "after placing", "in the lock"])
@pytest.mark.parametrize("cleaned", [True, False])
def test_nothing_is_placed_in_a_replaced_group(name: str, when: str, cleaned: bool, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    (instant,) = pending_instants(open_table(path))
    replaced: list[tuple[str, Path]] = []

    def meanwhile() -> None:
        replaced.append(replace_first_group(path, instant))
        if cleaned:
            clean(path, replaced[0][0])

    if when != "before the attempt":
        decision = decided(open_table(path), instant)
        if when == "after placing":
            place_all(path, decision)
        if when == "in the lock":
            publish(open_table(path), decision, Sleeper(meanwhile))
        else:
            meanwhile()
    else:
        meanwhile()
    truth = read_table(open_table(path)).num_rows
    run_all(open_table(path))
    ((file_id, commit),) = replaced
    assert not [p for p in base_files(path, instant) if file_id in p.name]
    assert pending_instants(open_table(path)) == ()
    assert read_table(open_table(path)).num_rows == truth
    clean(path, file_id)
    commit.unlink()  # archived, after its files were cleaned, and with it what older writes say of them
    forget_group(path, file_id)
    assert read_table(open_table(path)).num_rows == truth
    check_no_strays(path)


# --- the rule itself --------------------------------------------------------------------------------------------------

_C = Instant(requested_time="20260101000000005", action="commit", state=State.COMPLETED)


def write(time: str, state: State = State.COMPLETED, action: str = "deltacommit") -> Instant:
    return Instant(requested_time=f"202601010000000{time}", action=action, state=state)


def seen(*instants: Instant, archived: tuple[Instant, ...] = ()) -> Evidence:
    return Evidence(
        timeline=Timeline(layout=LAYOUT_2, instants=instants, archived=archived),
        has_plan=True,
        undone=frozenset(),
        allows_equal_times=True,
    )


_OLD, _NEW = write("01"), write("09")
_OLDEST = _OLD.requested_time
_BASIC = seen(_OLD, _NEW)


@for_each(
    [
        (_BASIC, Validity.VALID),
        (replace(_BASIC, has_plan=False), Validity.INVALID),
        (replace(seen(_NEW), has_plan=False), Validity.SUPERSEDED),
        (replace(seen(_NEW, archived=(_OLD,)), has_plan=False), Validity.INVALID),
        (replace(seen(_NEW, archived=(_OLD, _C)), has_plan=False), Validity.SUPERSEDED),
        (seen(_OLD, _NEW, write("08", State.INFLIGHT, "restore")), Validity.BLOCKED),
        (seen(_OLD, _NEW, write("08", State.COMPLETED, "restore")), Validity.VALID),
        (replace(_BASIC, undone=frozenset({_C.requested_time})), Validity.BLOCKED),
        (replace(_BASIC, undone=frozenset({_OLD.requested_time})), Validity.BLOCKED),
        (replace(seen(_OLD, write("09", State.INFLIGHT)), undone=frozenset({_NEW.requested_time})), Validity.VALID),
        (
            replace(_BASIC, undone=frozenset({_NEW.requested_time})),
            Validity.BLOCKED,
        ),  # "only the newest is rolled back"
        (seen(write("00"), _NEW), Validity.INVALID),
        (seen(write("00"), write("01", State.INFLIGHT), _NEW), Validity.INVALID),
        (seen(_NEW), Validity.INVALID),
        (seen(_NEW, archived=(_OLD,)), Validity.VALID),
        (seen(_OLD, write("05"), _NEW), Validity.VALID),
        (replace(seen(_OLD, write("05"), _NEW), allows_equal_times=False), Validity.INVALID),
    ]
)
def test_rule(what: Evidence, expected: Validity) -> None:
    found: Assessment = assess(_C, [_OLD.requested_time], _OLDEST, what)
    assert found.validity is expected
    assert bool(found.why) is (expected is not Validity.VALID)
