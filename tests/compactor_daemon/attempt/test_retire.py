"""Behind a completed compaction: what is removed, what stays, and for how long."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from phantombase.compactor_daemon.attempt.attempt import open_attempt
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.compaction import merge_again
from phantombase.compactor_daemon.attempt.finish import finish, finish_completed, littered_instants
from phantombase.compactor_daemon.attempt.outcome import CommitDecision, find_decision, open_next, read_outcome
from phantombase.compactor_daemon.attempt.publish import place, publish, retire
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.timeline.audit.ledgers import audit_path
from phantombase.timeline.codec.output_options import Bloom, Codec, OutputOptions
from phantombase.timeline.errors import ConflictError, MissingFileError, StorageError
from phantombase.timeline.format.commit_metadata import LEDGER, decode, encode
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.reserved_times import (
    DEAD,
    attempt_folder,
    instant_folder,
    outcome_path,
    recorded_instants,
)
from phantombase.timeline.locks.heartbeat import heartbeat, heartbeat_path
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.folders import HEARTBEATS, RECORDS
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.staged_file import place_staged
from phantombase.timeline.table.table import Snapshot, Table
from tests.support.compaction_steps import base_files, decided, open_table, run_all, staged
from tests.support.failing_storage import HookedStorage
from tests.support.faults import kept, pending_rollback
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.moved_tables import clean, planned, replace_first_group, timeline_files

VERSIONS = pytest.mark.parametrize("version", [6, 9])


@pytest.fixture
def published(version: int, tmp_path: Path) -> tuple[Path, CommitDecision]:
    """A table of two file groups in two partitions, and a decision that was published and not yet retired."""
    path = unzip_golden(f"v{version}_pending", tmp_path)
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    publish(table, decision, LOCK)
    return path, decision


def staged_files(path: Path, instant: str) -> list[Path]:
    """Staged files and records of file slices."""
    return [p for p in (path / instant_folder(instant)).glob("*/*") if p.name not in ("open", "outcome")]


# --- not before it is safe --------------------------------------------------------------------------------------------


@one_of("version", 9, 6)
def test_what_is_not_completed_is_not_retired(version: int, tmp_path: Path) -> None:
    """Its staged files are all there is of it."""
    path = unzip_golden(f"v{version}_pending", tmp_path)
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    with pytest.raises(MissingFileError, match="not completed"):
        retire(table, decision)
    assert len(staged_files(path, decision.instant)) == 4
    assert littered_instants(table) == ()
    publish(table, decision, LOCK)
    assert littered_instants(table) == (decision.instant,)


def test_what_was_requested_between_the_listings_of_a_look_is_not_littered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot lists records and timeline concurrently: the attempt just opened must not be ended."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    instant = pending_instants(table)[0]
    plan = path / table.instant_path(table.files.requested_merge(instant))
    content = plan.read_bytes()
    plan.unlink()
    for folder in (HEARTBEATS, RECORDS):
        (path / folder).mkdir(exist_ok=True)
    seen = table.snapshot()
    assert pending_instants(seen) == ()
    plan.write_bytes(content)
    opened, snapshot = open_attempt(table, instant, AttemptOptions()), Table.snapshot
    with heartbeat(table.storage, instant, 60.0):
        monkeypatch.setattr(
            Table, "snapshot", lambda self, *, same_settings=False: snapshot(self) if same_settings else seen
        )
        assert littered_instants(table) == ()
    assert read_outcome(table.storage, instant, opened.number) is None


def test_nothing_is_retired_under_a_rollback_of_it(tmp_path: Path) -> None:
    """It may end either way."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    publish(table, decision, LOCK)
    pending_rollback(path, tmp_path, decision.instant)
    with pytest.raises(ConflictError, match="rollback of this compaction is pending"):
        retire(table, decision)
    assert len(staged_files(path, decision.instant)) == 4


# --- what goes, what is placed again ----------------------------------------------------------------------------------


@one_of("version", 6, 9)
def test_retiring_twice_changes_nothing(published: tuple[Path, CommitDecision]) -> None:
    """Staged files and the heartbeat go; final files, records and books stay."""
    path, decision = published
    with heartbeat(open_table(path).storage, decision.instant, 100.0):
        finals = base_files(path, decision.instant)
        for _ in range(2):
            retire(open_table(path), decision)
            assert staged_files(path, decision.instant) == []
            assert not (path / heartbeat_path(decision.instant)).exists()
            assert base_files(path, decision.instant) == finals
            assert find_decision(open_table(path).storage, decision.instant) == decision
            assert (path / audit_path(decision.instant)).exists()


@VERSIONS
@pytest.mark.parametrize(("of_the_group", "committed"), [(True, True), (False, True), (True, False)])
def test_a_lost_file_is_needed_unless_its_group_has_a_newer_base_file(
    of_the_group: bool, committed: bool, published: tuple[Path, CommitDecision]
) -> None:
    """Compacted again and cleaned, it would come back as litter; another group's newer file, or one that does not count
    yet, says nothing."""
    path, decision = published
    table = open_table(path)
    if committed:
        time = "20990101000000000"
        completion = f"{time[:-1]}1" if table.layout.has_completion_times else None
        done = Instant(requested_time=time, action="commit", state=State.COMPLETED, completion_time=completion)
        (path / table.instant_path(done)).write_bytes(b"")
    lost = path / decision.placements[0].final
    file_id = lost.name.partition("_")[0] if of_the_group else "another-group-0"
    shutil.copy(lost, lost.with_name(f"{file_id}_1-2-3_20990101000000000.parquet"))
    lost.unlink()
    retire(open_table(path), decision)
    assert lost.exists() is not (of_the_group and committed)


@one_of("version", 9, 6)
def test_what_the_commit_does_not_name_is_not_placed(version: int, tmp_path: Path) -> None:
    """Its file group was replaced before the decision was published; the replace commit is archived by now."""
    path = unzip_golden(f"v{version}_pending", tmp_path)
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    file_id, commit = replace_first_group(path, decision.instant)
    publish(table, decision, LOCK)
    clean(path, file_id)
    commit.unlink()
    storage = HookedStorage(LocalStorage(str(path)), lambda call: call.do())
    retire(open_table(path, storage), decision)
    assert "place" not in storage.calls  # not even for a moment: it would be visible
    assert [p.name for p in base_files(path, decision.instant)] == [Path(decision.placements[1].final).name]


@one_of("version", 9, 6)
def test_base_files_of_other_instants_are_no_strays(published: tuple[Path, CommitDecision]) -> None:
    """An older and a newer one of the same file group, which no commit of ours names."""
    path, decision = published
    one = path / decision.placements[0].final
    file_id = one.name.partition("_")[0]
    others = [one.with_name(f"{file_id}_1-2-3_{time}.parquet") for time in ("20200101000000000", "20990101000000000")]
    stray = one.with_name(f"{file_id}_1-2-3_{decision.instant}.parquet")
    for file in (*others, stray):
        shutil.copy(one, file)
    retire(open_table(path), decision)
    assert all(file.exists() for file in others)
    assert one.exists()
    assert not stray.exists()


# --- instants that are not pending any more ---------------------------------------------------------------------------


@one_of("version", 6, 9)
def test_a_pending_instant_is_not_litter(version: int, tmp_path: Path) -> None:
    """Staged by an attempt that may still be at work."""
    path = unzip_golden(f"v{version}_pending", tmp_path)
    table = open_table(path)
    staged(table, pending_instants(table)[0])
    assert littered_instants(table) == ()
    finish_completed(table, LOCK)
    assert len(staged_files(path, pending_instants(table)[0])) == 4


@one_of("version", 9, 6)
def test_an_attempt_at_what_somebody_else_completed_is_dead(version: int, tmp_path: Path) -> None:
    """It may wake up: its decision must fail then, before its staged files go."""
    path = unzip_golden(f"v{version}_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    staged(table, instant)
    other = unzip_golden(f"v{version}_pending", tmp_path / "other")
    run_all(open_table(other))
    for file in (*timeline_files(other), *base_files(other, instant)):
        target = path / file.relative_to(other)
        if not target.exists():
            shutil.copy(file, target)
    finish(table, instant, LOCK)
    outcome = read_outcome(table.storage, instant, 1)
    assert outcome is not None
    assert outcome.kind == DEAD
    assert staged_files(path, instant) == []


@one_of("version", 9, 6)
def test_what_somebody_else_completed_has_no_books_here(version: int, tmp_path: Path) -> None:
    """The audit log would speak of files that are not the table's. Files placed for the lost decision go."""
    path = unzip_golden(f"v{version}_pending", tmp_path)
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    for placement in decision.placements:
        place(table, decision, placement)
    other = unzip_golden(f"v{version}_pending", tmp_path / "other")
    staged(open_table(other), decision.instant)
    for record in (other / instant_folder(decision.instant)).glob("1/*.ok"):
        record.unlink()
    theirs = decided(open_table(other), decision.instant)
    publish(open_table(other), theirs, LOCK)
    for name in (theirs.completed_path, *(p.final for p in theirs.placements)):
        shutil.copy(other / name, path / name)
    finish(table, decision.instant, LOCK)
    assert not (path / audit_path(decision.instant)).exists()
    assert {str(p.relative_to(path)) for p in base_files(path, decision.instant)} == {
        p.final for p in theirs.placements
    }


@one_of("version", 6, 9)
def test_a_decision_is_taken_back_in_the_table_lock(version: int, tmp_path: Path) -> None:
    """The plan is back by then (a restore that failed, a backup): it is pending again, and nothing is taken."""
    path = tmp_path / "t"
    instant = planned(path, version)
    table = open_table(path)
    decision = decided(table, instant)
    before = {file: file.read_bytes() for file in timeline_files(path)}
    (plan,) = (file for file in before if file.name == f"{instant}.compaction.requested")
    plan.unlink()

    @contextmanager
    def hold(purpose: str) -> Iterator[Section]:
        plan.write_bytes(before[plan])
        yield kept(purpose)

    lock = type("Lock", (), {"hold": staticmethod(hold)})()
    finish(table, instant, lock)
    assert find_decision(table.storage, instant) == decision
    assert len(staged_files(path, instant)) == 2


@one_of("version", 9, 6)
def test_while_a_restore_pends_staged_files_stay(version: int, tmp_path: Path) -> None:
    """It has removed the plan; how it ends is not known, and a hand may put the plan back."""
    path = tmp_path / "t"
    instant = planned(path, version)
    table = open_table(path)
    decision = decided(table, instant)
    (plan,) = (file for file in timeline_files(path) if file.name == f"{instant}.compaction.requested")
    plan.unlink()
    (plan.parent / "20990101000000000.restore.inflight").touch()
    finish(table, instant, LOCK)
    assert find_decision(table.storage, instant) == decision
    assert len(staged_files(path, instant)) == 2


# --- for how long records stay ----------------------------------------------------------------------------------------


def archive_before(path: Path, first_left: str) -> None:
    """Hudi moved the oldest completed instants into its archive."""
    for file in timeline_files(path):
        if file.name[:17] < first_left:
            file.unlink()


def later_write(path: Path, time: str) -> None:
    """A completed delta commit without files."""
    (one, *_) = (f for f in timeline_files(path) if f.name.endswith(".deltacommit"))
    completion = f"_{time[:-1]}9" if "_" in one.name else ""
    shutil.copy(one, one.with_name(f"{time}{completion}.deltacommit"))


@one_of("version", 9, 6)
def test_records_are_forgotten_with_the_archived_instant_and_not_before(published: tuple[Path, CommitDecision]) -> None:
    """Until then they stop a zombie. Tombstones behind the timeline's start stay, and so does the audit log."""
    path, decision = published
    table = open_table(path)
    tombstone = "20980101000000000"
    open_next(table.storage, tombstone, "unscheduled")
    for time in ("20970101000000000", "20990101000000000"):
        later_write(path, time)
    finish_completed(table, LOCK)
    assert recorded_instants(table.storage) == (decision.instant, tombstone)
    assert {p.name for p in (path / attempt_folder(decision.instant, decision.attempt)).iterdir()} == {
        "open",
        "outcome",
    }
    archive_before(path, "20970101000000000")
    finish_completed(table, LOCK)
    assert recorded_instants(table.storage) == (tombstone,)
    assert not (path / instant_folder(decision.instant)).exists()
    assert (path / audit_path(decision.instant)).exists()
    assert (path / decision.placements[0].final).exists()
    archive_before(path, "20990101000000001")  # nothing is active: nothing says that the tombstone is old
    finish_completed(table, LOCK)
    assert recorded_instants(table.storage) == (tombstone,)


@one_of("version", 6, 9)
def test_an_unscheduled_instant_between_active_ones_is_not_forgotten(published: tuple[Path, CommitDecision]) -> None:
    """Nothing of it is on the timeline, and its time must not be used again."""
    path, decision = published
    table = open_table(path)
    tombstone = f"{decision.instant[:-1]}{(int(decision.instant[-1]) + 1) % 10}"
    (path / RECORDS / tombstone / "1").mkdir(parents=True)
    later_write(path, "20970101000000000")
    finish_completed(table, LOCK)
    assert tombstone in recorded_instants(table.storage)


# A file of a decided compaction that is lost with its staged copy: merged again it is the decided one, or an error.


def lose(table: Table, decision: CommitDecision) -> None:
    """Every staged file of the decision; their records stay."""
    for placement in decision.placements:
        table.storage.delete(placement.staged)


def left(path: Path, decision: CommitDecision) -> list[str]:
    """Staged files that are there."""
    return sorted(p.name for p in (path / attempt_folder(decision.instant, 1)).parent.glob("*/*.parquet"))


@pytest.mark.parametrize("completed", [False, True])
@one_of("name", "v9_pending", "v6_pending")
def test_each_file_is_made_again_under_its_own_name(name: str, completed: bool, tmp_path: Path) -> None:
    """Also one that was adopted from an earlier attempt: the commit names that attempt's file.

    Also behind the commit, which the view must not believe then."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    staged(table, instant)
    table.storage.delete(f"{attempt_folder(instant, 1)}/1.ok")
    decision = decided(table, instant)
    assert decision.attempt == 2
    assert [p.final.count("0-1-99") + p.final.count("1-2-99") for p in decision.placements] == [1, 1]
    if completed:
        publish(table, decision, ProcessLock("publish"))
    for placement in decision.placements:
        table.storage.delete(placement.final)
    lose(table, decision)
    for placement in decision.placements:
        again = merge_again(table, decision, placement)
        assert again != placement.staged
        place_staged(table.storage, again, placement.final, placement.size)


@one_of("name", "v6_pending", "v9_pending")
def test_other_books_under_the_same_size_are_not_the_decided_file(name: str, tmp_path: Path) -> None:
    """An input was changed under its name: as many bytes, other rows. Nothing of it stays."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    commit = decode(decision.content, decision.completed_path)
    books = json.loads(commit.extra_metadata[LEDGER])
    for one in books["file_groups"].values():
        one["base_rows"] += 1
    other = replace(commit, extra_metadata={**commit.extra_metadata, LEDGER: json.dumps(books)})
    lose(table, decision)
    with pytest.raises(StorageError, match="gave another file than was decided"):
        merge_again(table, replace(decision, content=encode(other, table.layout.encoding)), decision.placements[0])
    assert left(path, decision) == []


@one_of("name", "v9_pending", "v6_pending")
def test_another_size_is_not_the_decided_file(name: str, tmp_path: Path) -> None:
    """Another library wrote it: the commit's size would be wrong for every reader."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    lose(table, decision)
    one = decision.placements[0]
    with pytest.raises(StorageError, match="gave another file than was decided"):
        merge_again(table, decision, replace(one, size=one.size + 1))
    assert left(path, decision) == []


@one_of("name", "v9_pending", "v6_pending")
def test_the_schema_is_that_of_the_decision(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that was added since is not in the decided file."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    lose(table, decision)
    schema = json.loads(table.snapshot().newest_schema().commit_text)
    schema["fields"].append({"name": "added", "type": ["null", "string"], "default": None})
    monkeypatch.setattr(Snapshot, "newest_schema", lambda self, **_: self.schema(json.dumps(schema)))
    assert merge_again(table, decision, decision.placements[0])


@pytest.mark.parametrize("recorded", [True, False])
def test_the_options_are_those_the_file_was_written_with(recorded: bool, tmp_path: Path) -> None:
    """Whatever options the process runs with that finds it lost. A `commit` of an earlier release lacks them: that
    is an error, and the file of the default options is not taken."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0], OutputOptions(codec=Codec.NONE, bloom=Bloom.OFF))
    lose(table, decision)
    outcome = path / outcome_path(decision.instant, decision.attempt)
    if not recorded:
        record = json.loads(outcome.read_bytes())
        for placement in record["placements"]:
            del placement["output"]
        outcome.write_text(json.dumps(record))
    found = find_decision(table.storage, decision.instant)
    assert found is not None
    if recorded:
        assert merge_again(table, found, found.placements[0])
    else:
        with pytest.raises(StorageError, match="does not name its options"):
            merge_again(table, found, found.placements[0])
        assert left(path, decision) == []


def test_a_decision_of_an_earlier_release_made_under_default_options_is_merged_again(tmp_path: Path) -> None:
    """Its `commit` names no options; those are the defaults."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    decision = decided(table, pending_instants(table)[0])
    lose(table, decision)
    assert merge_again(table, decision, replace(decision.placements[0], output=None))


def test_an_adopted_file_has_the_options_of_the_attempt_that_wrote_it(tmp_path: Path) -> None:
    """They may be others than those of the attempt that decides."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    staged(table, instant, OutputOptions(codec=Codec.NONE))
    table.storage.delete(f"{attempt_folder(instant, 1)}/1.ok")
    decision = decided(table, instant)
    assert [p.output.codec for p in decision.placements if p.output is not None] == [Codec.NONE, Codec.ZSTD]
    lose(table, decision)
    for placement in decision.placements:
        assert merge_again(table, decision, placement)
