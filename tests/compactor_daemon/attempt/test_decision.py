"""The decision, and what publishing and taking back ask once more: in the table lock, of the table as it is then."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.attempt.attempt import decide_commit
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.compaction import Compaction, placed_group, without_groups
from phantombase.compactor_daemon.attempt.hudi_executors import inflight_path
from phantombase.compactor_daemon.attempt.outcome import CommitDecision, find_decision, read_outcome, revoke_decision
from phantombase.compactor_daemon.attempt.publish import place, publish
from phantombase.compactor_daemon.attempt.revert import revert_files
from phantombase.compactor_daemon.attempt.slice_record import completed_compaction, is_ours, remove_placed
from phantombase.compactor_daemon.attempt.validity import Validity, assess, gather_evidence
from phantombase.timeline.errors import ClockError, ConflictError, PhantombaseError, StorageError, TableChangedError
from phantombase.timeline.format.commit_metadata import LEDGER, decode, encode
from phantombase.timeline.format.instant import format_time, later
from phantombase.timeline.format.table_config import PROPERTIES
from phantombase.timeline.instants.reserved_times import OUTCOME, reserve
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import base_files, decided, open_table, staged
from tests.support.failing_storage import Call, HookedStorage
from tests.support.faults import kept, pending_rollback
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.moved_tables import planned, replace_first_group, roll_back_newest_write

TABLES = pytest.mark.parametrize("name", ["v6_pending", "v9_pending"])
LATER = "20990101000000000"


@dataclass
class Watched:
    """A lock that knows whether it is held, and lets something happen before it is free."""

    meanwhile: Callable[[], Any] = lambda: None
    held: bool = False
    purposes: list[str] = field(default_factory=list)

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        """See `TableLock`."""
        self.meanwhile()
        self.purposes.append(purpose)
        self.held = True
        try:
            yield kept(purpose)
        finally:
            self.held = False


@pytest.fixture
def path(name: str, tmp_path: Path) -> Path:
    """A table with a pending compaction."""
    return unzip_golden(name, tmp_path)


def other_commit(path: Path, tmp_path: Path, instant: str) -> None:
    """Another compactor completes the instant."""
    other = tmp_path / "copy"
    shutil.copytree(path, other)
    table = open_table(other)
    publish(table, decided(table, instant), ProcessLock("other"))
    done = completed_compaction(table, instant)
    assert done is not None
    shutil.copy(other / table.instant_path(done), path / table.instant_path(done))


# --- deciding ---------------------------------------------------------------------------------------------------------


@one_of("name", "v9_pending", "v6_pending")
def test_the_decision_is_made_in_the_lock(path: Path) -> None:
    """The look at the table and the put: a writer or a rollback that holds it meanwhile is seen."""
    lock = Watched()
    table = open_table(path)
    attempt, done, schema = staged(table, pending_instants(table)[0])
    puts: list[bool] = []

    def watch(call: Call) -> Any:
        if call.path.endswith(OUTCOME) and call.name == "put_if_absent":
            puts.append(lock.held)
        return call.do()

    decide_commit(open_table(path, HookedStorage(table.storage, watch)), attempt, done, schema, lock)
    assert puts == [True]


@pytest.mark.parametrize("change", ["completed", "upgraded", "half upgraded", "rollback pends", "rolled back"])
def test_what_happened_while_the_lock_was_waited_for_is_seen(change: str, tmp_path: Path) -> None:
    """Nothing is decided then."""
    if change == "rolled back":
        path = tmp_path / "t"
        planned(path, 9)
    else:
        path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    attempt, done, schema = staged(table, instant)
    properties = path / PROPERTIES
    happens: dict[str, Callable[[], Any]] = {
        "completed": lambda: other_commit(path, tmp_path, instant),
        "upgraded": lambda: properties.write_bytes(properties.read_bytes() + b"\nhoodie.table.version=8\n"),
        "half upgraded": lambda: (path / ".hoodie" / f"{LATER}.deltacommit.requested").touch(),
        "rollback pends": lambda: pending_rollback(path, tmp_path, instant),
        "rolled back": lambda: roll_back_newest_write(path),
    }
    kind = TableChangedError if change == "upgraded" else ConflictError
    with pytest.raises(kind):
        decide_commit(table, attempt, done, schema, Watched(happens[change]))
    assert read_outcome(table.storage, instant, attempt.number) is None


def test_a_completion_time_exceeds_those_that_others_have_decided(tmp_path: Path) -> None:
    """One that is not on the timeline yet: its commit may become visible at any moment."""
    path = unzip_golden("v9_two_pending", tmp_path)
    table = open_table(path)
    first, second = (staged(table, instant) for instant in pending_instants(table))
    decision = decide_commit(table, *first, LOCK)
    soon = format_time(table.now() + timedelta(seconds=20))
    reserve(table.storage, decision.instant, 2, soon)
    assert str(decide_commit(table, *second, LOCK).completion_time) > soon


def test_behind_a_decided_time_in_the_future_nothing_is_decided(tmp_path: Path) -> None:
    """It would be in the future, too."""
    path = unzip_golden("v9_two_pending", tmp_path)
    table = open_table(path)
    first, second = (staged(table, instant) for instant in pending_instants(table))
    decision = decide_commit(table, *first, LOCK)
    reserve(table.storage, decision.instant, 2, LATER)
    with pytest.raises(ClockError, match="in the future"):
        decide_commit(table, *second, LOCK)


def test_a_completion_time_is_reserved_before_it_is_decided(tmp_path: Path) -> None:
    """A process may die in between: then nobody has decided it, and nobody else takes it."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    attempt, done, schema = staged(table, instant)
    reserved: list[set[str]] = []

    def watch(call: Call) -> Any:
        if call.path.endswith(OUTCOME) and call.name == "put_if_absent":
            reserved.append(set(table.times.reserved(table.load_timeline())))
        return call.do()

    decision = decide_commit(open_table(path, HookedStorage(table.storage, watch)), attempt, done, schema, LOCK)
    assert reserved == [{instant, decision.completion_time}]


@one_of("name", "v6_archived", "v9_archived")
def test_behind_the_start_of_the_timeline_the_archive_is_asked(name: str, path: Path) -> None:
    """It has what was completed; what it passed and does not have was restored away, and must not come back."""
    table = open_table(path)
    timeline = table.load_timeline(archived=True)
    completed = timeline.archived[-1]
    gone = replace(completed, requested_time=later(completed.requested_time, 1))
    assert gone.requested_time < timeline.start
    for instant, standing in ((completed, Validity.SUPERSEDED), (gone, Validity.INVALID)):
        job = Compaction(requested=table.files.requested_merge(instant.requested_time))
        assert assess(instant, (), "", gather_evidence(table, job)).validity is standing


# --- publishing -------------------------------------------------------------------------------------------------------


@one_of("name", "v9_pending", "v6_pending")
def test_a_dead_executors_inflight_file_goes_before_the_commit(path: Path) -> None:
    """Hudi refuses to go on beside it."""
    table = open_table(path)
    (instant,) = pending_instants(table)
    decision = decided(table, instant)
    inflight = path / inflight_path(table, instant)
    inflight.touch()
    there: list[bool] = []

    def watch(call: Call) -> Any:
        if call.name == "put_if_absent" and call.path == decision.completed_path:
            there.append(inflight.exists())
        return call.do()

    publish(open_table(path, HookedStorage(table.storage, watch)), decision, LOCK)
    assert there == [False]


@one_of("name", "v9_pending", "v6_pending")
def test_a_commit_that_is_not_there_after_it_was_put_is_an_error(path: Path) -> None:
    """Never "published": the next run looks again."""
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])

    def lie(call: Call) -> Any:
        return True if call.name == "put_if_absent" and call.path == decision.completed_path else call.do()

    with pytest.raises(StorageError, match="not there after it was written"):
        publish(open_table(path, HookedStorage(table.storage, lie)), decision, LOCK)


@TABLES
def test_two_commits_of_one_compaction_are_an_error(name: str, path: Path) -> None:
    """From version 8 on two executors can both leave one; on version 6 there is one name."""
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    publish(table, decision, LOCK)
    done = completed_compaction(table, decision.instant)
    assert done is not None
    assert is_ours(table, done, decision)
    if name == "v9_pending":
        first = path / table.instant_path(done)
        shutil.copy(first, first.with_name(f"{decision.instant}_{LATER}.commit"))
        with pytest.raises(ConflictError, match="two completed commits"):
            completed_compaction(table, decision.instant)


@one_of("name", "v6_pending", "v9_pending")
def test_a_commit_without_files_is_known_by_its_books(path: Path) -> None:
    """All its file groups were replaced before it was published. Another's commit without files is not ours."""
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    empty = without_groups(decision, {placed_group(p.final) for p in decision.placements}, table.layout)
    assert empty.placements == ()
    assert decode(empty.content, "commit").partition_to_write_stats == {}
    table.storage.put_if_absent(decision.completed_path, empty.content)
    done = completed_compaction(table, decision.instant)
    assert done is not None
    assert is_ours(table, done, decision)
    commit = decode(decision.content, "commit")
    other = replace(commit, extra_metadata={**commit.extra_metadata, LEDGER: "{}"})
    assert not is_ours(table, done, replace(decision, content=encode(other, table.layout.encoding)))


@one_of("name", "v9_pending", "v6_pending")
def test_only_files_of_replaced_groups_are_left_out(path: Path) -> None:
    """In the placements and in the commit alike; the books of all stay."""
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    assert without_groups(decision, (), table.layout) is decision
    gone, kept = decision.placements
    left = without_groups(decision, {placed_group(gone.final)}, table.layout)
    assert left.placements == (kept,)
    commit = decode(left.content, "commit")
    assert [s.path for stats in commit.partition_to_write_stats.values() for s in stats] == [kept.final]
    assert commit.extra_metadata == decode(decision.content, "commit").extra_metadata
    both = replace(
        decode(decision.content, "commit"),
        partition_to_write_stats={
            "one": tuple(s for of in decode(decision.content, "commit").partition_to_write_stats.values() for s in of)
        },
    )
    left = without_groups(
        replace(decision, content=encode(both, table.layout.encoding)), {placed_group(gone.final)}, table.layout
    )
    assert [s.path for s in decode(left.content, "commit").partition_to_write_stats["one"]] == [kept.final]


@one_of("name", "v9_pending", "v6_pending")
def test_a_placed_file_of_a_replaced_group_is_gone_before_the_commit(path: Path) -> None:
    """A process may die between the commit and its clean-up; nobody else looks for it."""
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    for placement in decision.placements:
        place(table, decision, placement)
    replace_first_group(path, decision.instant)
    there: list[int] = []

    def watch(call: Call) -> Any:
        if call.name == "put_if_absent" and call.path == decision.completed_path:
            there.append(len(base_files(path, decision.instant)))
        return call.do()

    publish(open_table(path, HookedStorage(table.storage, watch)), decision, LOCK)
    assert there == [1]


# --- taking back ------------------------------------------------------------------------------------------------------


@one_of("name", "v6_pending", "v9_pending")
def test_what_is_completed_is_never_taken_back(path: Path) -> None:
    """Its files are the table's rows."""
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    publish(table, decision, LOCK)
    with pytest.raises(ConflictError, match="cannot be reverted"):
        revert_files(table, decision, "a mistake")
    assert len(base_files(path, decision.instant)) == 2
    assert find_decision(table.storage, decision.instant) == decision


@one_of("name", "v9_pending", "v6_pending")
def test_each_step_of_taking_back_may_be_the_last(path: Path) -> None:
    """Another process finishes it: no file can be placed from the first step on, and none is left."""
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    for placement in decision.placements:
        place(table, decision, placement)
    revert_files(table, decision, "restored")
    assert find_decision(table.storage, decision.instant) is None
    assert base_files(path, decision.instant) == []
    with suppress(PhantombaseError):  # its plan and inputs are there: it could be merged again
        place(table, decision, decision.placements[0])
    assert base_files(path, decision.instant) == []


def test_the_metadata_table_forgets_what_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher had entered it there and died. Its files go last: they show the next run what is to be done."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    forgotten: list[tuple[str, int]] = []

    def forget(table: Table, instant: str) -> None:
        forgotten.append((instant, len(base_files(path, instant))))

    monkeypatch.setattr("phantombase.compactor_daemon.attempt.revert.forget", forget)
    place(table, decision, decision.placements[0])
    revert_files(table, decision, "restored")
    assert forgotten == [(decision.instant, 1)]
    assert not base_files(path, decision.instant)


@one_of("name", "v9_pending", "v6_pending")
@pytest.mark.parametrize("staged_copies", [True, False])
def test_a_revoked_decision_is_not_published(staged_copies: bool, path: Path) -> None:
    """Also where its plan stands: its attempt is over. Neither are its files made again."""
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    if staged_copies:
        for placement in decision.placements:
            place(table, decision, placement)
    else:
        for placement in decision.placements:
            table.storage.delete(placement.staged)
    revoke_decision(table.storage, decision.instant, decision.attempt, "unreadable", "a test")
    if not staged_copies:
        with pytest.raises(ConflictError, match="revoked"):
            place(table, decision, decision.placements[0])
    with pytest.raises(ConflictError, match="revoked"):
        publish(table, decision, LOCK)
    assert base_files(path, decision.instant) == []
    assert completed_compaction(table, decision.instant) is None


def test_files_to_keep_keep_their_names(tmp_path: Path) -> None:
    """Those that the completed commit names."""
    storage = LocalStorage(str(unzip_golden("v9_pending", tmp_path)))
    table = open_table(Path(storage.base_path))
    decision: CommitDecision = decided(table, pending_instants(table)[0])
    for placement in decision.placements:
        place(table, decision, placement)
    first, second = (p.final for p in decision.placements)
    remove_placed(table, decision, keep={first})
    assert storage.find(first) is not None
    assert storage.find(second) is None
