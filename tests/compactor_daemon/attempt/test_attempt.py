"""The protocol of an attempt: at most one decision, nothing final before it, and any crash can be finished."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import fastavro
import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.attempt import decide_commit, open_attempt, stage
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.finish import finish_completed
from phantombase.compactor_daemon.attempt.hudi_executors import inflight_path
from phantombase.compactor_daemon.attempt.outcome import dead_record, find_decision, read_outcome, write_outcome
from phantombase.compactor_daemon.attempt.publish import publish, retire
from phantombase.compactor_daemon.attempt.slice_record import SliceDone, done_slices
from phantombase.compactor_daemon.attempt.slice_task import Tasks
from phantombase.compactor_daemon.execution.run_compactions import Compactions, run_compactions
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.claims import claim_all
from phantombase.compactor_daemon.options import ExecuteOptions, Executor
from phantombase.timeline.errors import (
    AttemptDeadError,
    BarrierError,
    ConflictError,
    LockError,
    MissingFileError,
    StorageError,
    TableChangedError,
)
from phantombase.timeline.format.commit_metadata import CommitMetadata, encode
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.compaction_plan import decode_plan, encode_plan
from phantombase.timeline.format.instant import format_time, later
from phantombase.timeline.format.layout import MetadataEncoding
from phantombase.timeline.instants.reserved_times import attempt_folder, attempts, outcome_path
from phantombase.timeline.locks.heartbeat import heartbeat, heartbeat_path
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.folders import RECORDS, TEMPORARY
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.staged_file import probe
from tests.support.compaction_steps import (
    OPTIONS,
    OUTPUT,
    base_files,
    check_whole,
    decided,
    open_table,
    run_all,
    run_one,
    staged,
)
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Call, Failure, HookedStorage, ProcessDied, die_at, fail_at, pause_at
from tests.support.faults import pending_write
from tests.support.golden_tables import one_of, unzip_golden


def test_finished_slices_of_a_dead_attempt_are_adopted(tmp_path: Path) -> None:
    """Only what was not finished is done again, and the published file is the one staged first."""
    path = unzip_golden("v6_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    _, done, _ = staged(table, instant)
    table.storage.delete(f"{attempt_folder(instant, 1)}/1.ok")
    run_one(table, instant)
    published = {p.name for p in base_files(path, instant)}
    assert Path(str(done[0].final)).name in published
    assert Path(str(done[1].final)).name not in published
    assert {of[instant] for of in open_table(path).load_view().facts.compacted.values() if instant in of} == published
    check_whole(path, path.with_name("pending.expected"))


def test_the_largest_slice_is_begun_first(tmp_path: Path) -> None:
    """In whichever order a plan has them: a large one that is begun last would be waited for alone."""
    path = unzip_golden("v9_pending", tmp_path)
    (instant,) = pending_instants(open_table(path))
    (file,) = path.rglob(f"{instant}.compaction.requested")
    plan, began = decode_plan(file.read_bytes(), ""), list[list[int]]()
    for operations in (plan.operations, tuple(reversed(plan.operations))):
        file.write_bytes(encode_plan(replace(plan, operations=operations)))
        attempt = open_attempt(open_table(path), instant, OPTIONS)

        def run(tasks: Tasks) -> list[SliceDone]:
            began.append([task.read_bytes for task in tasks])
            raise StorageError("enough was seen")

        with pytest.raises(StorageError):
            stage(open_table(path), attempt, OUTPUT, OPTIONS, run)
    assert began[0] == began[1] == sorted(began[0], reverse=True)
    assert len(set(began[0])) > 1


def test_changed_inputs_are_not_adopted(tmp_path: Path) -> None:
    """A staged file made from other inputs, or under another schema, is another fingerprint."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    _, done, _ = staged(table, instant)
    ok = path / attempt_folder(instant, 1) / "0.ok"
    ok.write_bytes(ok.read_bytes().replace(done[0].fingerprint.encode(), b"0" * 64))
    run_one(table, instant)
    assert Path(str(done[0].final)).name not in {p.name for p in base_files(path, instant)}
    check_whole(path, path.with_name("pending.expected"))


def test_a_dead_attempt_never_gets_its_go(tmp_path: Path) -> None:
    """Taken over while it was paused before deciding: its decision fails, the successor's stands."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    zombie, done, schema = staged(table, instant)
    run_one(open_table(path), instant)
    with pytest.raises(ConflictError):
        decide_commit(table, zombie, done, schema, ProcessLock("zombie"))
    check_whole(path, path.with_name("pending.expected"))


def test_outcome_is_written_once(tmp_path: Path) -> None:
    """Whoever comes second is told; both reading it back see the first."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    zombie, done, schema = staged(table, instant)
    write_outcome(table.storage, instant, zombie.number, dead_record("n1", "somebody"), "n1")
    with pytest.raises(AttemptDeadError):
        decide_commit(table, zombie, done, schema, ProcessLock("zombie"))
    outcome = read_outcome(table.storage, instant, zombie.number)
    assert outcome is not None
    assert (outcome.kind, outcome.nonce, outcome.decision) == ("dead", "n1", None)
    assert base_files(path, instant) == []


def test_no_file_has_a_final_name_before_go(tmp_path: Path) -> None:
    """Staged, not decided: the partitions and the timeline are as before."""
    path = unzip_golden("v6_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    before = {p for p in path.rglob("*") if RECORDS not in str(p)}
    staged(table, instant)
    after = {p for p in path.rglob("*") if RECORDS not in str(p)}
    assert after == before


def test_a_decided_compaction_is_published_by_a_successor_twice(tmp_path: Path) -> None:
    """Publishing is a function of the record: repeating it changes nothing."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    decision = decided(table, instant)
    successor = open_table(path)
    assert find_decision(successor.storage, instant) == decision
    publish(successor, decision, ProcessLock("b"))
    publish(table, decision, ProcessLock("a"))
    retire(successor, decision)
    check_whole(path, path.with_name("pending.expected"))


def test_a_decision_is_published_while_somebody_else_retires_it(tmp_path: Path) -> None:
    """Records that were listed are gone when they are read: nothing rests on them."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    table, inner = open_table(path), LocalStorage(str(path))
    (instant,) = pending_instants(table)
    decision = decided(table, instant)

    def overtaken(call: Call) -> object:
        found = call.do()
        if call.name == "list" and call.path == attempt_folder(instant, decision.attempt):
            publish(table, decision, ProcessLock("b"))
            retire(table, decision)
        return found

    publish(open_table(path, HookedStorage(inner, overtaken)), decision, ProcessLock("a"))
    assert open_table(path).files.completed_commits(instant)
    check_whole(path, path.with_name("with_metadata_table.expected"))


def test_a_lost_published_file_is_placed_again_before_staging_goes(tmp_path: Path) -> None:
    """Retiring looks first whether everything is there."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    decision = decided(table, instant)
    publish(table, decision, ProcessLock("a"))
    base_files(path, instant)[0].unlink()
    finish_completed(open_table(path), ProcessLock("finish"))
    check_whole(path, path.with_name("pending.expected"))


@pytest.mark.parametrize("name", ["v6_pending", "v9_pending"])
def test_a_file_cleaned_with_its_replaced_group_stays_away(name: str, tmp_path: Path) -> None:
    """Placed again it would be hidden only until the replace commit is archived: then its rows would double."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    decision = decided(table, instant)
    publish(table, decision, ProcessLock("a"))
    lost = base_files(path, instant)[0]
    group = {lost.parent.name: (lost.name.partition("_")[0],)}
    replace_ = CommitMetadata(
        partition_to_write_stats={}, operation_type="CLUSTER", partition_to_replace_file_ids=group, extra_metadata={}
    )
    times = {6: "29990101000000000", 9: "29990101000000000_29990101000000001"}
    file = path / table.config.timeline_folder / f"{times[table.config.version]}.replacecommit"
    file.write_bytes(encode(replace_, table.layout.encoding))
    lost.unlink()
    finish_completed(open_table(path), ProcessLock("finish"))
    assert not lost.exists()
    assert len(base_files(path, instant)) == 1


@pytest.mark.parametrize("completed", [True, False])
@one_of("name", "v9_pending", "v6_pending")
def test_a_file_lost_with_its_staged_copy_is_merged_again(name: str, completed: bool, tmp_path: Path) -> None:
    """Before and after the commit is visible: its inputs are still there, and the new file is the decided one."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    decision = decided(table, instant)
    if completed:
        publish(table, decision, ProcessLock("a"))
        (path / decision.placements[1].final).unlink()
    (path / decision.placements[1].staged).unlink()
    run_all(open_table(path))
    assert (path / decision.placements[1].final).stat().st_size == decision.placements[1].size
    check_whole(path, path.with_name("pending.expected"))


def test_a_lost_file_that_comes_out_otherwise_is_not_published(tmp_path: Path) -> None:
    """The commit names its size. Nothing is removed, and a run that makes the same file again mends it."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    decision = decided(table, instant)
    publish(table, decision, ProcessLock("a"))
    lost = decision.placements[0]
    (path / lost.final).unlink()
    (path / lost.staged).unlink()
    outcome = path / outcome_path(instant, decision.attempt)
    record = outcome.read_bytes()
    outcome.write_bytes(record.replace(b'"codec":"zstd"', b'"codec":"none"'))
    with pytest.raises(StorageError, match="gave another file than was decided"):
        finish_completed(table, ProcessLock("finish"))
    assert not (path / lost.final).exists()
    assert (path / decision.placements[1].staged).exists()
    outcome.write_bytes(record)
    finish_completed(table, ProcessLock("finish"))
    check_whole(path, path.with_name("pending.expected"))


def test_a_lost_file_with_a_lost_input_is_an_error(tmp_path: Path) -> None:
    """Its rows cannot be had: never "without them"."""
    path = unzip_golden("v6_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    decision = decided(table, instant)
    publish(table, decision, ProcessLock("a"))
    (path / decision.placements[0].final).unlink()
    (path / decision.placements[0].staged).unlink()
    operation = table.compaction_plan(instant).operations[0]
    (path / operation.partition_path / operation.delta_file_paths[0]).unlink()
    with pytest.raises(MissingFileError, match="plan names a file"):
        finish_completed(table, ProcessLock("finish"))
    assert not (path / decision.placements[0].final).exists()


def test_files_of_killed_writers_go_by_the_age_storage_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is hours ahead takes no file away that somebody is writing."""
    path = unzip_golden("v9_pending", tmp_path)
    folder, real = path / TEMPORARY, time.time
    folder.mkdir(parents=True)
    for name, age_s in (("written now", 0.0), ("left behind", 7200.0)):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (real() - age_s, real() - age_s))
    monkeypatch.setattr(time, "time", lambda: real() + 7200)
    finish_completed(open_table(path), ProcessLock("finish"))
    assert [p.name for p in folder.iterdir()] == ["written now"]


def test_a_run_killed_while_cleaning_up_is_finished_with_nothing_pending(tmp_path: Path) -> None:
    """The instant is completed, so no plan pends any more; the command cleans up all the same."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    attempt, done, schema = staged(table, instant)
    publish(table, decide_commit(table, attempt, done, schema, ProcessLock("a")), ProcessLock("a"))
    assert pending_instants(table) == ()
    execute = ExecuteOptions(executor=Executor.LOCAL)
    assert run_compactions(str(path), output=OUTPUT, execute=execute, attempt=OPTIONS) == Compactions()
    check_whole(path, path.with_name("pending.expected"))


def test_strays_of_the_instant_go_when_it_is_retired(tmp_path: Path) -> None:
    """A base file of (file group, C) that the commit does not name would be read by Hudi at will."""
    path = unzip_golden("v6_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    group = next(path.glob("*/*.parquet"))
    stray = group.with_name(f"{group.name.split('_')[0]}_7-7-7_{instant}.parquet")
    shutil.copy(group, stray)
    run_one(table, instant)
    assert not stray.exists()
    check_whole(path, path.with_name("pending.expected"))


@one_of("name", "v6_pending", "v9_pending")
def test_a_log_that_carries_the_instant_is_no_stray(name: str, tmp_path: Path) -> None:
    """A write of version 6 on the slice to be: after an upgrade it is named so in a table of version 9."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    instant = pending_instants(table)[0]
    operation = table.compaction_plan(instant).operations[0]
    folder = path / operation.partition_path
    log = folder / f".{operation.file_id}_{instant}.log.9_0-0-0"
    shutil.copy(folder / operation.delta_file_paths[0], log)
    run_all(table)
    assert log.exists()


def test_a_stray_beside_a_named_base_file_is_not_read(tmp_path: Path) -> None:
    """The commit's metadata says which of two base files of one instant counts."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    run_all(table)
    named = base_files(path, max(p.name.split("_")[2].split(".")[0] for p in path.glob("*/*.parquet")))[0]
    shutil.copy(named, named.with_name(named.name.replace("-990000000_", "-1_")))
    assert_same_rows(read_table(table), pq.read_table(path.with_name("pending.expected") / "snapshot.parquet"))


def test_a_compaction_whose_base_file_is_lost_is_an_error(tmp_path: Path) -> None:
    """Never "logs only"."""
    path = unzip_golden("v9_pending", tmp_path)
    run_all(open_table(path))
    newest = max(p.name.split("_")[2].split(".")[0] for p in path.glob("*/*.parquet"))
    base_files(path, newest)[0].unlink()
    with pytest.raises(MissingFileError, match="completed write names a base file"):
        read_table(open_table(path))


@pytest.mark.parametrize(("name", "version"), [("v6_pending", 6), ("v9_pending", 9)])
def test_the_barrier_waits_for_writes_that_began_before(name: str, version: int, tmp_path: Path) -> None:
    """A pending delta commit stops the decision; once rolled back (its files gone) the next run finishes."""
    path = unzip_golden(name, tmp_path)
    inflight = pending_write(path, version, "20270101000000000")
    table = open_table(path)
    (instant,) = pending_instants(table)
    with pytest.raises(BarrierError, match="20270101000000000"):
        run_one(table, instant)
    assert base_files(path, instant) == []
    inflight.unlink()
    inflight.with_name(inflight.name.replace("inflight", "requested")).unlink()
    run_one(table, instant)
    check_whole(path, path.with_name("pending.expected"))


def test_logs_beyond_the_plan_are_merged_too(tmp_path: Path) -> None:
    """Closure: a delta commit that slipped under the plan (here: one the plan forgot) loses no row."""
    path = unzip_golden("v6_pending", tmp_path)
    requested = next((path / ".hoodie").glob("*.compaction.requested"))
    plan = decode_plan(requested.read_bytes(), "plan")
    shorter = tuple(replace(o, delta_file_paths=o.delta_file_paths[:1]) for o in plan.operations)
    requested.write_bytes(encode_plan(replace(plan, operations=shorter)))
    (requested.parent / f".{requested.name}.crc").unlink(missing_ok=True)
    run_all(open_table(path))
    check_whole(path, path.with_name("pending.expected"))


def test_change_logs_of_a_plan_are_not_merged(tmp_path: Path) -> None:
    """Hudi 1.2.0 plans a slice whose only log file is one, which holds no row of the table."""
    path = unzip_golden("v9_pending", tmp_path)
    requested = next(path.rglob("*.compaction.requested"))
    plan = decode_plan(requested.read_bytes(), "plan")
    named = [
        replace(o, delta_file_paths=(*o.delta_file_paths, f"{o.delta_file_paths[-1]}.cdc")) for o in plan.operations
    ]
    requested.write_bytes(encode_plan(replace(plan, operations=named)))
    for one in named:
        (path / one.partition_path / one.delta_file_paths[-1]).touch()
    run_all(open_table(path))
    check_whole(path, path.with_name("pending.expected"))


def test_a_log_that_appears_while_staging_is_merged(tmp_path: Path) -> None:
    """The view is taken again after staging; a file group whose inputs changed is done again."""
    path = unzip_golden("v6_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    runner = LocalRunner(1)
    hidden = sorted(path.glob("north/.*.log.2_*"))[0]
    plan_log = hidden.read_bytes()
    late = hidden.with_name(hidden.name.replace(".log.2_", ".log.9_"))
    runs: list[int] = []

    def run(tasks):  # type: ignore[no-untyped-def]
        runs.append(len(tasks))
        if len(runs) == 1:
            late.write_bytes(plan_log)  # the same blocks again, by a writer that took no lock
        return runner(table.storage, tasks, lambda a, b: None)

    attempt = open_attempt(table, instant, OPTIONS)
    done, _ = stage(table, attempt, OUTPUT, OPTIONS, run)
    assert runs == [2, 1]
    assert any(late.name in d.inputs for d in done)


def test_a_write_whose_log_was_whole_before_it_completed_is_merged(tmp_path: Path) -> None:
    """Version 6: the same files before and behind the barrier, but blocks that count only behind it."""
    path = unzip_golden("v6_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    below = [p for p in (path / ".hoodie").glob("*.deltacommit") if p.name < instant]
    completed = max(below, key=lambda p: p.name)
    aside = completed.rename(tmp_path / completed.name)
    runner = LocalRunner(1)

    def run(tasks):  # type: ignore[no-untyped-def]
        done = runner(table.storage, tasks, lambda a, b: None)
        if aside.exists():
            aside.rename(completed)
        return done

    attempt = open_attempt(table, instant, OPTIONS)
    assert attempt.barrier == {completed.name.partition(".")[0]}
    done, schema = stage(table, attempt, OUTPUT, OPTIONS, run)
    assert all("uncommitted" not in d.skipped for d in done)
    publish(table, decide_commit(table, attempt, done, schema, ProcessLock("w")), ProcessLock("w"))
    assert_same_rows(read_table(table), pq.read_table(tmp_path / "pending.expected/snapshot_after_compaction.parquet"))


def test_a_live_hudi_compactor_is_left_alone(tmp_path: Path) -> None:
    """A young inflight file without heartbeat, or a fresh heartbeat, is somebody at work; an old one is taken over."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    beat = path / heartbeat_path(instant)
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    with pytest.raises(ConflictError, match="at work"):
        run_one(table, instant)
    beat.unlink()
    inflight = path / inflight_path(table, instant)
    inflight.touch()
    with pytest.raises(ConflictError, match="at work"):
        run_one(table, instant)
    assert attempts(table.storage, instant) == ()
    long_ago = time.time() - 2 * OPTIONS.foreign_grace_s
    os.utime(inflight, (long_ago, long_ago))
    run_one(table, instant)
    check_whole(path, path.with_name("pending.expected"))


@pytest.mark.parametrize("change", ["inflight", "version", "rollback", "unscheduled"])
def test_a_table_that_changed_underneath_stops_the_attempt(change: str, tmp_path: Path) -> None:
    """Between staging and deciding: another executor, an upgrade, a rollback, no plan."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    attempt, done, schema = staged(table, instant)
    timeline = path / ".hoodie" / "timeline"
    properties = path / ".hoodie" / "hoodie.properties"
    if change == "inflight":
        (timeline / f"{instant}.compaction.inflight").touch()
    elif change == "version":
        properties.write_bytes(properties.read_bytes() + b"\nhoodie.table.version=8\n")
    elif change == "rollback":
        donor = unzip_golden("v9_rolled_back", tmp_path)
        plan = next((donor / ".hoodie" / "timeline").glob("*.rollback.requested"))
        data = plan.read_bytes()
        target = next(iter(fastavro.reader(io.BytesIO(data))))["instantToRollback"]["commitTime"].encode()  # type: ignore[index,call-overload]
        (timeline / "20270101000000000.rollback.requested").write_bytes(data.replace(target, instant.encode()))
    else:
        (timeline / f"{instant}.compaction.requested").unlink()
    with pytest.raises((ConflictError, MissingFileError)):
        decide_commit(table, attempt, done, schema, ProcessLock("a"))
    assert find_decision(table.storage, instant) is None
    assert base_files(path, instant) == []


def test_a_table_upgraded_after_the_decision_gets_no_file(tmp_path: Path) -> None:
    """Neither before nor while placing: beside Hudi's base file of the instant ours would be read at will."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    decision = decided(table, instant)
    properties = path / ".hoodie" / "hoodie.properties"
    same = properties.read_bytes()

    def upgrade(call: Call) -> object:
        if call.name == "place":
            properties.write_bytes(same + b"\nhoodie.table.version=8\n")
        return call.do()

    for storage in (HookedStorage(table.storage, upgrade), table.storage):
        with pytest.raises(TableChangedError, match="version 8"):
            publish(open_table(path, storage), decision, ProcessLock("a"))
        assert base_files(path, instant) == []
    properties.write_bytes(same)
    run_all(open_table(path))
    check_whole(path, path.with_name("pending.expected"))


def test_a_heartbeat_is_kept_to_the_end_and_not_beyond(tmp_path: Path) -> None:
    """Also while a decision is published that an earlier run made; and not after an attempt that failed."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    beat = path / heartbeat_path(instant)
    beats: list[bool] = []

    def watch(call: Call) -> object:
        if call.name == "place" and call.path.endswith(".parquet"):
            beats.append(beat.exists())
            if len(beats) == 1:
                raise StorageError("injected")
        return call.do()

    watched = open_table(path, HookedStorage(table.storage, watch))
    with pytest.raises(StorageError, match="injected"):
        run_one(watched, instant)
    assert find_decision(table.storage, instant) is not None
    assert not beat.exists()
    run_one(watched, instant)
    assert beats == [True] * 3
    check_whole(path, path.with_name("pending.expected"))


def test_a_heartbeat_of_ours_is_no_hudi_compactor(tmp_path: Path) -> None:
    """One that a killed attempt left stops nobody; a fresh one of Hudi beside records of ours does."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    beat = path / heartbeat_path(instant)
    with heartbeat(table.storage, instant, 100.0):
        ours = beat.read_bytes()
    staged(table, instant)
    beat.touch()
    with pytest.raises(ConflictError, match="at work"):
        run_one(table, instant)
    beat.write_bytes(ours)
    run_one(table, instant)
    check_whole(path, path.with_name("pending.expected"))


def test_somebody_else_completing_first_wins(tmp_path: Path) -> None:
    """After the decision, a JVM compactor completed C: what only our decision names is removed, theirs is valid."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    decision = decided(table, instant)
    other = tmp_path / "other"
    shutil.copytree(path, other)
    publish(open_table(other), decision, ProcessLock("o"))
    theirs = next((other / ".hoodie" / "timeline").glob(f"{instant}_*.commit"))
    renamed = path / ".hoodie" / "timeline" / f"{instant}_20280101000000000.commit"
    assert theirs.read_bytes() == decision.content
    renamed.write_bytes(encode(CommitMetadata(compacted=True, operation_type="COMPACT"), MetadataEncoding.AVRO))
    with pytest.raises(ConflictError, match="completed this compaction first"):
        publish(table, decision, ProcessLock("a"))
    assert base_files(path, instant) == []


def test_somebody_who_completes_first_without_the_lock_is_what_the_metadata_table_says(tmp_path: Path) -> None:
    """He told it of his files, then we of ours; his commit stands."""
    path = unzip_golden("v6_with_metadata_table", tmp_path)
    table, inner = open_table(path), LocalStorage(str(path))
    (instant,) = pending_instants(table)
    decision = decided(table, instant)
    said = decode_commit(decision.content, decision.completed_path)
    theirs = {
        part: tuple(replace(s, path=str(s.path).replace("-1-990000000_", "-55-66_")) for s in stats)
        for part, stats in said.partition_to_write_stats.items()
    }

    def overtaken(call: Call) -> object:
        if call.name == "put_if_absent" and call.path == decision.completed_path:
            for file in base_files(path, instant):
                shutil.copy(file, file.with_name(file.name.replace("-1-990000000_", "-55-66_")))
            commit = encode(replace(said, partition_to_write_stats=theirs), table.layout.encoding)
            inner.put_if_absent(decision.completed_path, commit)
        return call.do()

    with pytest.raises(ConflictError, match="completed this compaction first"):
        publish(open_table(path, HookedStorage(inner, overtaken)), decision, ProcessLock("a"))
    assert validate(open_table(path)).differences == ()


def test_what_hudi_completed_is_not_published_over(tmp_path: Path) -> None:
    """Killed after the decision (or before); Hudi ran the plan since: the next run removes what is ours, no more."""
    for is_decided in (True, False):
        path = unzip_golden("v9_pending", tmp_path / str(is_decided))
        table = open_table(path)
        (instant,) = pending_instants(table)
        attempt, done, schema = staged(table, instant)
        if is_decided:
            decision = decide_commit(table, attempt, done, schema, ProcessLock("a"))
            for placement in decision.placements:
                table.storage.place(placement.staged, placement.final)
        hudi = open_table(unzip_golden("v9_pending", tmp_path / f"hudi {is_decided}"))
        run_all(hudi)  # stands for a Hudi compactor: other names, its own completed commit
        for file in base_files(Path(hudi.storage.base_path), instant):
            target = path / file.relative_to(hudi.storage.base_path)
            shutil.copy(file, target.with_name(target.name.replace("-1-990000000_", "-55-66_")))
        commit = next((Path(hudi.storage.base_path) / ".hoodie" / "timeline").glob(f"{instant}_*.commit"))
        metadata = decode_commit(commit.read_bytes(), "commit")
        renamed = {
            part: tuple(replace(s, path=str(s.path).replace("-1-990000000_", "-55-66_")) for s in stats)
            for part, stats in metadata.partition_to_write_stats.items()
        }
        theirs = path / ".hoodie" / "timeline" / f"{instant}_20280101000000000.commit"
        theirs.write_bytes(encode(replace(metadata, partition_to_write_stats=renamed), MetadataEncoding.AVRO))
        run_all(table)
        assert [p for p in base_files(path, instant) if "990000000" in p.name] == []
        check_whole(path, path.with_name("pending.expected"))


def test_two_processes_one_claim(tmp_path: Path) -> None:
    """The second leaves with one line."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    with claim_all(table), pytest.raises(LockError, match="another compactor"), claim_all(table):
        pass


def test_times_are_never_used_twice(tmp_path: Path) -> None:
    """A new plan's instant exceeds every instant, completion time and decided completion time."""
    path = unzip_golden("v9_plain", tmp_path)
    table, lock = open_table(path), ProcessLock("x")
    ahead = format_time(table.now() + timedelta(seconds=20))
    (path / RECORDS / ahead).mkdir(parents=True)
    scheduled = schedule_compaction(table, lock)
    assert scheduled.instant == later(ahead, 1)
    before = table.load_timeline()
    run_one(table, scheduled.instant)
    completed = next((path / ".hoodie" / "timeline").glob(f"{scheduled.instant}_*.commit"))
    assert completed.name.split("_")[1].split(".")[0] > scheduled.instant
    assert max(table.times.reserved(before)) > scheduled.instant


@pytest.mark.parametrize(("name", "version"), [("v6_plain", 6), ("v9_plain", 9)])
def test_version_6_is_not_planned_under_a_pending_write(name: str, version: int, tmp_path: Path) -> None:
    """Its log would belong to the old slice and be lost; from version 8 on completion time decides."""
    path = unzip_golden(name, tmp_path)
    pending_write(path, version, "20270101000000000")
    scheduled = schedule_compaction(open_table(path), ProcessLock("x"))
    assert (scheduled.instant is None) == (version == 6)
    if version == 6:
        assert "20270101000000000" in scheduled.why


def test_a_file_group_is_in_one_plan_only(tmp_path: Path) -> None:
    """Scheduling again while the first plan pends plans nothing."""
    path = unzip_golden("v9_plain", tmp_path)
    table, lock = open_table(path), ProcessLock("x")
    assert schedule_compaction(table, lock).instant is not None
    again = schedule_compaction(table, lock)
    assert again.instant is None
    assert len(pending_instants(table)) == 1


def test_storage_that_clobbers_is_refused(tmp_path: Path) -> None:
    """The probe finds a put that replaces."""

    class Clobbering(HookedStorage):
        def put_if_absent(self, path: str, data: bytes) -> bool:
            self.inner.overwrite(path, data)
            return True

    path = unzip_golden("v9_plain", tmp_path)
    storage = Clobbering(LocalStorage(str(path)), lambda call: call.do())
    with pytest.raises(StorageError, match="put-if-absent"):
        probe(storage)
    probe(LocalStorage(str(path)))
    assert not list((path / TEMPORARY).glob("*"))


def test_a_probe_that_failed_stands_in_nobodys_way(tmp_path: Path) -> None:
    """Another one at the same time, or what one left behind, is no broken promise of the storage."""
    path = unzip_golden("v9_plain", tmp_path)
    inner = LocalStorage(str(path))
    undisturbed = HookedStorage(inner, lambda call: call.do())
    probe(undisturbed)
    for number, name in enumerate(undisturbed.calls):
        for failure in (f for f in Failure if f.can_hit(name)):
            with pytest.raises(StorageError, match="injected"):
                probe(HookedStorage(inner, fail_at(number, failure, inner)))
        with pytest.raises(ProcessDied):
            probe(HookedStorage(inner, die_at(number)))
        left = set((path / TEMPORARY).glob("*"))
        probe(HookedStorage(inner, pause_at(number, lambda: probe(inner))))
        assert set((path / TEMPORARY).glob("*")) == left


def test_files_of_killed_writers_go_after_an_hour(tmp_path: Path) -> None:
    """Younger ones may still have their writer."""
    path = unzip_golden("v9_pending", tmp_path)
    young, old = path / TEMPORARY / "young", path / TEMPORARY / "old"
    young.parent.mkdir(parents=True)
    for file, age_s in ((young, 1800), (old, 7200)):
        file.touch()
        os.utime(file, (time.time() - age_s,) * 2)
    run_all(open_table(path))
    assert (young.exists(), old.exists()) == (True, False)


def test_records_of_an_opened_attempt_say_who(tmp_path: Path) -> None:
    """`open` is there while staging; slices are recorded by position."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    attempt, done, _ = staged(table, instant)
    assert attempts(table.storage, instant) == (1,)
    assert set(done_slices(table.storage, instant, attempt.number)) == {0, 1}
    assert all(d.ledger.rows_out > 0 for d in done)


@one_of("name", "v9_two_pending", "v6_two_pending")
def test_one_instant_that_is_stuck_does_not_stop_the_others(name: str, tmp_path: Path) -> None:
    """A live Hudi compactor holds the first of two plans: the second is executed, and the error is still raised."""
    path = unzip_golden(name, tmp_path)
    first, second = pending_instants(open_table(path))
    inflight = path / inflight_path(open_table(path), first)
    inflight.write_bytes(b"")
    with pytest.raises(ConflictError, match="is at work on this instant") as failure:
        run_compactions(
            str(path), output=OUTPUT, execute=ExecuteOptions(executor=Executor.LOCAL, threads=1), attempt=OPTIONS
        )
    assert failure.value.instant == first
    assert pending_instants(open_table(path)) == (first,)
    assert list(path.glob(f"**/*_{second}.parquet"))


def test_records_of_an_earlier_version_are_understood(tmp_path: Path) -> None:
    """A fleet is updated daemon by daemon: what the one before had decided is published."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    decided(table, instant)
    folder = path / attempt_folder(instant, 1)
    for record in (*folder.glob("*.ok"), folder / "outcome"):
        fields = json.loads(record.read_bytes())
        fields.pop("ranges", None)
        record.write_text(json.dumps({**fields, "metadata_partitions": []} if record.name == "outcome" else fields))
    run_one(table, instant)
    check_whole(path, path.with_name("pending.expected"))
