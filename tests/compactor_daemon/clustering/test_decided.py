"""A clustering is an attempt: its decision is published by any process, or never."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.attempt.outcome import CommitDecision, find_decision
from phantombase.compactor_daemon.attempt.pending_clusterings import PendingClustering, pending_clusterings
from phantombase.compactor_daemon.attempt.publish import publish
from phantombase.compactor_daemon.clustering.cancel import cancel_clustering
from phantombase.timeline.errors import ConflictError, PhantombaseError
from phantombase.timeline.format.instant import State
from phantombase.timeline.instants.reserved_times import put_tombstone
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.folders import RECORDS
from tests.support.archived_tables import (
    begin,
    cluster,
    forget_heartbeats,
    hidden,
    living,
    of_clustering,
    one_row,
    small_files,
    upsert,
)
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.golden_tables import LOCK, one_of
from tests.support.written_tables import check_nothing_left, read_rows


def dies_at(path: Path, at: Callable[[Call], bool], *, behind: bool = False, alive: bool = False) -> None:
    """A clustering whose process dies before, or behind, a call. `alive`: it seems to live."""
    dead: list[str] = []

    def hook(call: Call) -> object:
        if dead:
            raise ProcessDied(call.path)
        if not at(call):
            return call.do()
        dead.append(call.path)
        if behind:
            call.do()
        raise ProcessDied(call.path)

    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, hook))
    if not alive:
        forget_heartbeats(path)


def decides(call: Call) -> bool:
    return call.name == "put_if_absent" and call.path.endswith("/outcome")


def decided(path: Path) -> tuple[PendingClustering, CommitDecision]:
    """The pending clustering, and its decision."""
    (pending,) = pending_clusterings(open_table(path).snapshot())
    decision = find_decision(open_table(path).storage, pending.time)
    assert decision is not None
    return pending, decision


@one_of("version", 9, 6, 8)
def test_files_get_their_names_behind_the_inflight_file_and_their_markers(version: int, tmp_path: Path) -> None:
    """Else Hudi, which executes the plan when it finds it, doubles every row: it has nothing to roll back."""
    path = tmp_path / "trips"
    small_files(path, version)
    placed: list[str] = []

    def hook(call: Call) -> object:
        if call.name == "place" and of_clustering(call.path):
            pending, decision = decided(path)
            assert (path / open_table(path).instant_path(pending.requested.at(State.INFLIGHT))).read_bytes()
            (final,) = (one.final for one in decision.placements if one.staged == call.path)
            assert (path / ".hoodie/.temp" / pending.time / f"{final}.marker.CREATE").exists()
            placed.append(final)
        return call.do()

    assert cluster(path, HookedStorage(open_table(path).storage, hook)).done is not None
    assert len(placed) == 1
    check_nothing_left(path)


@one_of("version", 6, 9, 8)
def test_a_decided_clustering_waits_for_a_write_that_may_change_its_files(version: int, tmp_path: Path) -> None:
    """The write does not ask for clusterings. The decision is neither published nor taken back until it has ended."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    dies_at(path, decides, behind=True)
    begin(path, "replacecommit")
    pending, decision = decided(path)
    with pytest.raises(ConflictError, match="is pending, which may change its files"):
        publish(open_table(path), decision, LOCK)
    assert not cancel_clustering(open_table(path), pending, LOCK, "test")
    assert find_decision(open_table(path).storage, pending.time) == decision
    for file in (path / open_table(path).config.timeline_folder).glob("*.replacecommit.*"):
        if not file.name.startswith(pending.time):
            file.unlink()
    assert [one.instant for one in cluster(path).finished] == [pending.time]
    assert read_rows(path) == rows
    assert len(living(path)) == 1


@one_of("version", 9, 6)
def test_a_decision_behind_a_tombstone_is_not_published(version: int, tmp_path: Path) -> None:
    """A process has begun to cancel it, and died."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    dies_at(path, decides, behind=True)
    pending, decision = decided(path)
    put_tombstone(open_table(path).storage, pending.time)
    with pytest.raises(ConflictError, match="it was cancelled"):
        publish(open_table(path), decision, LOCK)
    upsert(path, one_row("k1", 100))
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}
    check_nothing_left(path)


@one_of("version", 9, 8, 6)
def test_a_decision_that_waits_is_not_reported_as_cancelled(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, version)
    dies_at(path, decides, behind=True)
    (pending,) = pending_clusterings(open_table(path).snapshot())
    folder = path / open_table(path).config.timeline_folder
    for state in ("requested", "inflight"):
        (folder / f"{int(pending.time) - 1}.deltacommit.{state}").write_bytes(b"")
    result = cluster(path)
    assert (result.done, result.finished, result.cancelled) == (None, (), ())
    assert pending_clusterings(open_table(path).snapshot()) == (pending,)


@pytest.mark.parametrize("by", ["the next run", "a write"])
def test_a_decision_of_another_table_version_blocks_nothing(by: str, tmp_path: Path) -> None:
    """It is never published: the next run, or a write, cancels it."""
    path = tmp_path / "trips"
    rows = small_files(path, 8)
    dies_at(path, decides, behind=True)
    (pending,) = pending_clusterings(open_table(path).snapshot())
    settings = path / ".hoodie/hoodie.properties"
    settings.write_text(settings.read_text().replace("hoodie.table.version=8", "hoodie.table.version=9"))
    if by == "a write":
        upsert(path, one_row("k1", 100))
        rows["k1"] = (100, 100.0)
        check_nothing_left(path)
    else:
        result = cluster(path)
        assert result.cancelled == (pending.time,)
        assert result.done is not None
    assert read_rows(path) == rows


@pytest.mark.parametrize("when", ["before the inflight file", "before the commit"])
@one_of("version", 6, 9, 8)
def test_hudi_that_begins_while_files_are_placed(when: str, version: int, tmp_path: Path) -> None:
    """It takes no lock. With its commit every file of the instant counts, so none of phantombase may be left."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    begun: list[str] = []

    def begins() -> None:
        (pending,) = pending_clusterings(open_table(path).snapshot())
        (path / open_table(path).instant_path(pending.requested.at(State.INFLIGHT))).write_bytes(b"")
        begun.append(pending.time)

    def hook(call: Call) -> object:
        early = when == "before the inflight file"
        if early and not begun and call.name == "put_if_absent" and call.path.endswith(".inflight"):
            begins()
        done = call.do()
        if not early and not begun and call.name == "place" and of_clustering(call.path):
            begins()
        return done

    with pytest.raises(ConflictError, match="Hudi has begun"):
        cluster(path, HookedStorage(open_table(path).storage, hook))
    assert [file.name for file in path.glob("*/*.parquet") if begun[0] in file.name] == []
    assert read_rows(path) == rows


def test_a_log_that_grew_behind_the_decision(tmp_path: Path) -> None:
    """On version 6 Hudi appends to a log file where the storage can: its name is the one that was read."""
    path = tmp_path / "trips"
    rows = small_files(path, 6)
    upsert(path, one_row("k1", 50))
    (log,) = path.glob("*/.*.log.*")
    dies_at(path, decides, behind=True)
    hidden(path, lambda: upsert(path, one_row("k1", 100)))
    (new,) = {file for file in path.glob("*/.*.log.*") if file.suffix != ".crc"} - {log}
    begins_at, size = log.stat().st_size, log.stat().st_size + new.stat().st_size
    log.write_bytes(log.read_bytes() + new.read_bytes())
    new.unlink()
    commit = max((path / ".hoodie").glob("*.deltacommit"))
    stated = {new.name: log.name, f'"fileSizeInBytes" : {size - begins_at}': f'"fileSizeInBytes" : {size}'}
    text = commit.read_text()
    for old, now in stated.items():
        assert old in text
        text = text.replace(old, now)
    commit.write_text(text)
    assert read_rows(path)["k1"] == (100, 100.0)
    cluster(path)
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}


@one_of("version", 9, 8, 6)
def test_a_decision_whose_staged_file_is_lost_is_taken_back(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    dies_at(path, decides, behind=True)
    (staged,) = (path / RECORDS).rglob("*.parquet")
    staged.unlink()
    upsert(path, one_row("k1", 100))
    assert read_rows(path) == {**rows, "k1": (100, 100.0)}
    check_nothing_left(path)
    assert len(living(path)) == 4


@one_of("version", 6, 9, 8)
def test_a_column_that_came_behind_the_decision_stays(version: int, tmp_path: Path) -> None:
    """The process that decided is alive, so the write leaves the decision to it."""
    path = tmp_path / "trips"
    small_files(path, version)
    dies_at(path, decides, behind=True, alive=True)
    upsert(path, one_row("wide", 5).append_column("tip", pa.array([1.5])))
    (pending,) = pending_clusterings(open_table(path).snapshot())
    forget_heartbeats(path)
    assert [one.instant for one in cluster(path).finished] == [pending.time]
    done = open_table(path).load_timeline().find(pending.time, "replacecommit")
    assert done is not None
    assert "tip" in open_table(path).commit_metadata(done).extra_metadata["schema"]
    assert sorted(filter(None, read_table(open_table(path))["tip"].to_pylist())) == [1.5]


@one_of("version", 9, 6)
def test_no_file_is_placed_behind_the_files_that_are_cancelled(version: int, tmp_path: Path) -> None:
    """A process that has lost its lock stalled before it placed one."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    dies_at(path, decides, behind=True)
    pending, decision = decided(path)

    def wakes(call: Call) -> object:
        if call.name == "delete_folder" and "/.temp/" in call.path:
            for one in decision.placements:
                with contextlib.suppress(PhantombaseError):
                    open_table(path).storage.place(one.staged, one.final)
        return call.do()

    table = open_table(path, HookedStorage(open_table(path).storage, wakes))
    assert cancel_clustering(table, pending, LOCK, "test", decided_too=True)
    check_nothing_left(path)
    assert read_rows(path) == rows
