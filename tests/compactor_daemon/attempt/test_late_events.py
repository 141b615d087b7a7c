"""What comes late to a decision: a lost lock, another decision, archiving, an insert overwrite that began before it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.finish import finish, finish_completed, forget_archived
from phantombase.compactor_daemon.attempt.outcome import CommitDecision, revoke_decision
from phantombase.compactor_daemon.attempt.publish import publish, retire
from phantombase.compactor_daemon.attempt.validity import decided_instant
from phantombase.compactor_daemon.undo.undo import roll_back
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.errors import BarrierError, ConflictError, LockError, MissingFileError
from phantombase.timeline.format.commit_metadata import CommitMetadata, decode, encode
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.archived_timeline import load_history
from phantombase.timeline.locks.section import Section
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.options import WriteOptions
from tests.support.change_feeds import request
from tests.support.compaction_steps import base_files, check_no_strays, decided, is_held, open_table, run_all, run_one
from tests.support.failing_storage import Call, HookedStorage
from tests.support.faults import kept
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.moved_tables import (
    BEFORE,
    FIRST,
    VERSIONS,
    Sleeper,
    check_removed,
    clean,
    place_all,
    planned,
    replace_first_group,
    restore_first_commit,
    timeline_files,
    upsert,
)
from tests.support.selection import deep
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table


class _Killed(BaseException):
    """Ends a process where it is."""


# --- a lock that is lost in the section -------------------------------------------------------------------------------


@one_of("version", 9, 6)
def test_a_commit_that_came_after_a_restore_is_taken_away_again(version: int, tmp_path: Path) -> None:
    """The publisher's session ends between its last snapshot and the put: it looks once more."""
    path = tmp_path / "t"
    instant = planned(path, version)
    decision = decided(open_table(path), instant)

    def hook(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith(".commit"):
            restore_first_commit(path)
        return call.do()

    with pytest.raises(ConflictError, match="its plan is gone"):
        publish(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), decision, LOCK)
    assert not [f for f in timeline_files(path) if f.name.endswith(".commit")]
    assert not base_files(path, instant)
    assert read_rows(path) == FIRST


@one_of("version", 6, 9)
@pytest.mark.parametrize("before", ["its last snapshot", "its put"])
def test_a_commit_beside_that_of_another_compactor_does_not_stay(version: int, before: str, tmp_path: Path) -> None:
    """It takes no lock, and completes the instant while the publisher does. The last snapshot shows it, so none is put:
    readers take two commits of one compaction for an error."""
    path = tmp_path / "t"
    instant = planned(path, version)
    decision = decided(open_table(path), instant)
    partition = decision.placements[0].final.rpartition("/")[0]
    at = ("put_if_absent", ".commit") if before == "its put" else ("list", partition)
    theirs, put = list[Path](), list[str]()

    def hook(call: Call) -> object:
        if call.name == at[0] and call.path.endswith(at[1]) and is_held(LOCK) and not theirs:
            theirs.append(completed_by_hudi(path, decision))
        if call.name == "put_if_absent" and call.path.endswith(".commit"):
            put.append(call.path)
        return call.do()

    with pytest.raises(ConflictError, match="completed this compaction first"):
        publish(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), decision, LOCK)
    assert len(put) == (before == "its put")
    assert [f for f in timeline_files(path) if f.name.endswith(".commit")] == theirs
    assert [f.name.split("_")[1] for f in base_files(path, instant)] == ["9-9-9"]
    assert read_table(open_table(path)).num_rows == len(BEFORE)


def completed_by_hudi(path: Path, decision: CommitDecision) -> Path:
    """A decided compaction, placed already, is completed with another compactor's files; its commit."""
    table = open_table(path)
    metadata = decode(decision.content, decision.completed_path)
    stats = {
        p: tuple(replace(s, path=f"{p}/{s.file_id}_9-9-9_{decision.instant}.parquet") for s in of)
        for p, of in metadata.partition_to_write_stats.items()
    }
    for one, of in stats.items():
        for stat in of:
            assert stat.path is not None
            place_as(path, decision, stat.path, one)
    other = replace(metadata, partition_to_write_stats=stats, extra_metadata={"schema": "{}"})
    completion = decision.completion_time and f"{int(decision.completion_time) + 1}"
    done = replace(decided_instant(table, decision), completion_time=completion, file_name="")
    commit = path / table.instant_path(done)
    commit.write_bytes(encode(other, table.layout.encoding))
    return commit


def place_as(path: Path, decision: CommitDecision, final: str, partition: str) -> None:
    """A copy of a decided file under another compactor's name."""
    (one,) = [p for p in decision.placements if p.final.startswith(f"{partition}/")]
    (path / final).write_bytes((path / one.final).read_bytes())


# --- archiving has passed it ------------------------------------------------------------------------------------------


def archive_below(path: Path, below: str) -> None:
    """Moves completed instants into the history, as Hudi 1.x does."""
    table = open_table(path)
    done = [i for i in table.load_timeline().instants if i.completed and i.requested_time < below]
    held = [
        (i.requested_time, i.completion_time, i.action) for i in (*load_history(table.storage, table.config), *done)
    ]
    folder = path / table.config.history_folder
    folder.mkdir(parents=True, exist_ok=True)
    columns = ("instantTime", "completionTime", "action")
    pq.write_table(pa.table({name: [row[k] for row in held] for k, name in enumerate(columns)}), folder / "1.parquet")
    (folder / "manifest_1").write_text(json.dumps({"files": [{"fileName": "1.parquet", "fileLen": 1}]}))
    (folder / "_version_").write_text("1")
    gone = {i.requested_time for i in done}
    for file in timeline_files(path):
        if file.name[:17] in gone:
            file.unlink()


class Busy:
    """A lock that cannot be taken in time."""

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        """See `TableLock`."""
        raise LockError("the lock is busy")
        yield kept(purpose)


@pytest.fixture
def restored_and_archived(tmp_path: Path) -> tuple[Path, str]:
    """Decided and placed by a process that died; restored away, and archived past, before the next run."""
    path = tmp_path / "t"
    instant = planned(path, 9)
    place_all(path, decided(open_table(path), instant))
    restore_first_commit(path)
    for n in range(4):
        upsert(LocalStorage(str(path)), rows((6 + 3 * n, 5, 5.0)))
    archive_below(path, sorted({f.name[:17] for f in timeline_files(path)})[-2])
    return path, instant


AFTER_RESTORE = FIRST | {f"k{6 + 3 * n:04}": (5, 5.0) for n in range(4)}


def test_records_outlive_a_run_that_could_not_take_the_lock(restored_and_archived: tuple[Path, str]) -> None:
    """They are all that tells that its files count for nothing."""
    path, instant = restored_and_archived
    with pytest.raises(LockError):
        finish_completed(open_table(path), Busy())
    finish_completed(open_table(path), LOCK)
    assert not base_files(path, instant)
    assert read_rows(path) == AFTER_RESTORE


def test_records_outlive_the_sweep_of_another_daemon(restored_and_archived: tuple[Path, str]) -> None:
    """While the one that holds the claim waits for the lock."""
    path, instant = restored_and_archived
    finish_completed(open_table(path), Sleeper(lambda: forget_archived(open_table(path))))
    assert not base_files(path, instant)
    assert read_rows(path) == AFTER_RESTORE


@one_of("version", 9, 6)
def test_retiring_places_no_file_of_what_is_archived_meanwhile(version: int, tmp_path: Path) -> None:
    """The replace commit that explains why the file is gone is archived with it: its rows would be back."""
    path = tmp_path / "t"
    instant = planned(path, version)
    decision = decided(open_table(path), instant)
    publish(open_table(path), decision, LOCK)
    file_id, replaced = replace_first_group(path, instant)
    clean(path, file_id)
    archived = [replaced, path / decision.completed_path]

    def hook(call: Call) -> object:
        if call.name == "list" and not call.path.startswith(".hoodie"):
            while archived:
                archived.pop().unlink()
        return call.do()

    with pytest.raises(MissingFileError, match="not completed any more"):
        retire(open_table(path, HookedStorage(LocalStorage(str(path)), hook)), decision)
    assert not archived
    assert not base_files(path, instant)


# --- the files of a decision that lost --------------------------------------------------------------------------------


@pytest.fixture(params=[9, deep(6)])
def lost(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, CommitDecision, Path]:
    """A decision whose files are placed, where another compactor has completed the instant; its commit."""
    path = tmp_path / "t"
    instant = planned(path, request.param)
    decision = decided(open_table(path), instant)
    place_all(path, decision)
    return path, decision, completed_by_hudi(path, decision)


def test_files_that_lost_go_under_the_lock_only(lost: tuple[Path, CommitDecision, Path]) -> None:
    """Else from under the hands of a process that publishes them."""
    path, decision, _ = lost
    with pytest.raises(LockError):
        finish(open_table(path), decision.instant, Busy())
    assert len(base_files(path, decision.instant)) == 2
    finish(open_table(path), decision.instant, LOCK)
    assert [f.name.split("_")[1] for f in base_files(path, decision.instant)] == ["9-9-9"]
    assert read_table(open_table(path)).num_rows == len(BEFORE)


@one_of("lost", 6, 9, indirect=True)
@pytest.mark.parametrize("published", [True, False])
def test_files_that_lost_have_won_once_the_lock_is_free(
    published: bool, lost: tuple[Path, CommitDecision, Path]
) -> None:
    """The other commit was taken away while the lock was waited for: the files are, or can be, those of the next."""
    path, decision, commit = lost

    def meanwhile() -> None:
        commit.unlink()
        for file in path.glob("*/*_9-9-9_*.parquet"):
            file.unlink()
        if published:
            publish(open_table(path), decision, LOCK)

    finish(open_table(path), decision.instant, Sleeper(meanwhile))
    assert {str(f.relative_to(path)) for f in base_files(path, decision.instant)} == {
        p.final for p in decision.placements
    }
    assert all((path / p.staged).exists() for p in decision.placements)
    run_all(open_table(path))
    assert read_rows(path) == BEFORE
    check_no_strays(path)


# --- an insert overwrite that began before the plan -------------------------------------------------------------------


@VERSIONS
def test_a_decision_waits_for_replacing_writes_that_began_before(version: int, tmp_path: Path) -> None:
    """Such an instant may be archived, and its files cleaned, while the plan pends: nothing would tell of it."""
    path = tmp_path / "t"
    instant = planned(path, version)
    table = open_table(path)
    earlier = Instant(requested_time=str(int(instant) - 1), action="replacecommit", state=State.REQUESTED)
    for state in (State.REQUESTED, State.INFLIGHT):
        (path / table.instant_path(earlier.at(state))).write_bytes(b"")
    with pytest.raises(BarrierError):
        run_one(table, instant)
    group = table.compaction_plan(instant).operations[0]
    commit = CommitMetadata(
        partition_to_write_stats={},
        operation_type="INSERT_OVERWRITE",
        partition_to_replace_file_ids={group.partition_path: (group.file_id,)},
        extra_metadata={"schema": table.snapshot().newest_schema().commit_text},
    )
    completion = table.snapshot().next_time() if version == 9 else None
    done = replace(earlier, state=State.COMPLETED, completion_time=completion)
    (path / table.instant_path(done)).write_bytes(encode(commit, table.layout.encoding))
    clean(path, group.file_id)
    run_all(open_table(path))
    assert not base_files(path, instant)
    assert read_rows(path) == {}


# --- a decision before it ---------------------------------------------------------------------------------------------


@one_of("version", 9, 6)
def test_a_revoked_decision_shares_no_file_with_the_next(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its publisher wakes up, and takes its files away, while the next one waits for the lock."""
    path = tmp_path / "t"
    instant = planned(path, version)
    first = decided(open_table(path), instant)

    def killed_behind(*args: Any) -> None:
        revoke_decision(*args)
        raise _Killed

    with monkeypatch.context() as patched:
        patched.setattr("phantombase.compactor_daemon.attempt.revert.revoke_decision", killed_behind)
        with pytest.raises(_Killed):
            unschedule(open_table(path), instant, LOCK)
    second = decided(open_table(path), instant)

    def first_wakes_up() -> None:
        with pytest.raises(ConflictError):
            publish(open_table(path), first, LOCK)

    publish(open_table(path), second, Sleeper(first_wakes_up))
    assert read_rows(path) == BEFORE


@one_of("version", 9, 6)
def test_the_oldest_writes_are_rolled_back(version: int, tmp_path: Path) -> None:
    """What is older than the active timeline counts as archived; these were rolled back."""
    path = tmp_path / "t"
    instant = planned(path, version)
    decision = decided(open_table(path), instant)
    for file in timeline_files(path):
        if "deltacommit" in file.name:
            file.unlink()
    for data in [*path.glob("*/.*.log.*"), *path.glob("*/*.parquet")]:
        data.unlink()
    with pytest.raises(ConflictError, match="was rolled back"):
        publish(open_table(path), decision, LOCK)
    assert not base_files(path, instant)


# --- a write with the time of a replace commit ------------------------------------------------------------------------


def sorted_rows(path: Path) -> pa.Table:
    return read_table(open_table(path)).sort_by("_hoodie_record_key")


@pytest.mark.parametrize("name", ["v6_clustered", "v9_clustered", "v6_replaced", "v9_replaced"])
def test_a_dead_write_that_shares_its_time_with_a_replace_commit(name: str, tmp_path: Path) -> None:
    """Neither while it pends nor by its rollback does a row of the other go."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    done = [i for i in table.load_timeline().completed if i.family == "replacecommit"][-1]
    before = sorted_rows(path)
    for state in (State.REQUESTED, State.INFLIGHT):
        begun = Instant(requested_time=done.requested_time, action="deltacommit", state=state)
        (path / table.instant_path(begun)).write_bytes(b"")
    assert sorted_rows(path) == before
    pending = open_table(path).load_timeline().find(done.requested_time, "deltacommit")
    assert pending is not None
    roll_back(open_table(path), pending, LOCK)
    assert sorted_rows(path) == before


# --- a write that was restored away -----------------------------------------------------------------------------------


@VERSIONS
def test_a_write_that_was_restored_away_leaves_nothing_that_counts(version: int, tmp_path: Path) -> None:
    """Its log, placed afterwards, would count as committed once archiving has passed its instant."""
    path = tmp_path / "t"
    planned(path, version)
    before = set(path.glob("*/.*.log.*"))
    times = {f.name[:17] for f in timeline_files(path)}

    def hook(call: Call) -> object:
        if call.name == "place":
            for file in timeline_files(path):
                if file.name[:17] not in times:
                    file.unlink()
        return call.do()

    with pytest.raises(ConflictError):
        upsert(HookedStorage(LocalStorage(str(path)), hook), rows((0, 3, 3.0)))
    left = set(path.glob("*/.*.log.*")) - before
    assert len(left) == (0 if version == 9 else 2), "on version 6 the log stays, and a command block revokes it"
    assert read_rows(path) == BEFORE


# --- found by one reader, each the smallest case ----------------------------------------------------------------------


def test_a_replace_commit_is_rolled_back_after_the_decision(tmp_path: Path) -> None:
    """Version 6: the logs under the plan would become a slice of their own, and hide the base below."""
    path = tmp_path / "t"
    instant = planned(path, 6)
    upsert(LocalStorage(str(path)), rows((3, 9, 9.0)))
    _, commit = replace_first_group(path, instant)
    decision = decided(open_table(path), instant)
    assert decision.placements == ()
    commit.unlink()
    truth = read_rows(path)
    with pytest.raises(ConflictError, match="is not replaced any more"):
        publish(open_table(path), decision, LOCK)
    run_all(open_table(path))
    assert base_files(path, instant)
    assert read_rows(path) == truth == BEFORE | {"k0003": (9, 9.0)}


@one_of("version", 6, 9)
@pytest.mark.parametrize("when", ["before placing", "before the lock"])
def test_a_partition_is_removed_after_the_decision(version: int, when: str, tmp_path: Path) -> None:
    """Its folder is not made anew: no listing would take it for a partition, and the commit would name a lost file."""
    path = tmp_path / "t"
    instant = planned(path, version)
    decision = decided(open_table(path), instant)
    (partition,) = {p.final.rpartition("/")[0] for p in decision.placements}
    lock = Sleeper(lambda: shutil.rmtree(path / partition))
    if when == "before placing":
        shutil.rmtree(path / partition)
        lock = Sleeper(lambda: None)
    with pytest.raises(ConflictError, match="compactor-daemon unschedule"):
        publish(open_table(path), decision, lock)
    assert not (path / partition).exists()
    unschedule(open_table(path), instant, LOCK)
    check_removed(path, partition)


def test_base_files_archived_behind_a_savepoint_count(tmp_path: Path) -> None:
    """The savepoint keeps its own instant in the active timeline, which begins there."""
    path = tmp_path / "t"
    instant = planned(path, 9)
    run_all(open_table(path))
    upsert(LocalStorage(str(path)), rows((6, 1, 1.0)))
    truth = read_rows(path)
    first = timeline_files(path)[0].name[:17]
    kept = [f for f in timeline_files(path) if f.name.startswith(first)]
    contents = {f: f.read_bytes() for f in kept}
    archive_below(path, str(int(instant) + 1))
    for file, content in contents.items():
        file.write_bytes(content)
    folder = path / open_table(path).config.timeline_folder
    (folder / f"{first}.savepoint.requested").touch()
    (folder / f"{first}.savepoint.inflight").touch()
    (folder / f"{first}_{int(first) + 1}.savepoint").touch()
    assert read_rows(path) == truth


def test_a_write_in_the_millisecond_of_a_log_compaction_keeps_its_log(tmp_path: Path) -> None:
    """Its requested file comes to light late; the log compaction is retired after it has completed."""
    path = tmp_path / "t"
    written_table(path, 9, rows((0, 1, 1.0), (3, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    for n in range(3):
        upsert(LocalStorage(str(path)), rows((0, 2 + n, 2.0)))
    instant = request(open_table(path))
    publish(open_table(path), decided(open_table(path), instant), LOCK)
    upsert(LocalStorage(str(path)), rows((6, 7, 7.0)))
    truth = read_rows(path)
    time = max(f.name[:17] for f in timeline_files(path))
    for file in timeline_files(path):
        if file.name.startswith(time):
            file.rename(file.with_name(instant + file.name[17:]))
    (log,) = path.glob(f"*/.*_{time}.log.*")
    renamed = log.rename(log.with_name(log.name.replace(time, instant)))
    renamed.write_bytes(renamed.read_bytes().replace(time.encode(), instant.encode()))
    commits = path.glob(f"{open_table(path).config.timeline_folder}/{instant}_*.deltacommit")
    commit = next(f for f in commits if log.name.encode() in f.read_bytes())
    metadata = decode(commit.read_bytes(), str(commit))
    stats = {
        p: tuple(replace(s, path=f"{p}/{renamed.name}") if str(s.path).endswith(log.name) else s for s in of)
        for p, of in metadata.partition_to_write_stats.items()
    }
    renamed_in = replace(metadata, partition_to_write_stats=stats)
    commit.write_bytes(encode(renamed_in, open_table(path).layout.encoding))
    run_all(open_table(path))
    assert read_rows(path) == truth
