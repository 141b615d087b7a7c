"""A compaction in three steps: planned here, executed in other processes, committed by a third."""

from __future__ import annotations

import json
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase import CompactionTask, PlannedCompaction, SliceResult, plan_compaction
from phantombase.compactor_daemon.attempt import slice_task
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.slice_record import SliceDone
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.errors import AttemptDeadError, ConflictError, MalformedError, PhantombaseError, UsageError
from phantombase.timeline.instants.reserved_times import attempt_folder
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import check_no_strays, open_table, run_all
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.selection import deep

TABLES = pytest.mark.parametrize(
    "name",
    ["v6_pending", "v9_pending", *map(deep, ("v9_two_pending", "v8_with_metadata_table", "v9_with_metadata_table"))],
)


def planned(path: Path) -> PlannedCompaction:
    found = plan_compaction(str(path))
    assert found is not None
    return found


def execute(task: str) -> str:
    """As a worker gets it and answers: as JSON."""
    return json.dumps(CompactionTask.from_json(json.loads(task)).execute().to_json())


def records(path: Path, work: PlannedCompaction) -> list[str]:
    return sorted(p.name for p in (path / attempt_folder(work.instant, work.tasks[0].attempt)).glob("*"))


@one_of("name", "v9_pending", "v6_pending", "v9_two_pending", "v8_with_metadata_table", "v9_with_metadata_table")
def test_tasks_run_in_other_processes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unzip_golden(name, tmp_path)
    before = read_table(open_table(path))
    for instant in pending_instants(open_table(path)):
        text = planned(path).to_json()
        work = PlannedCompaction.from_json(text)
        assert work.instant == instant
        assert all(task.bytes > 0 for task in work.tasks)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            results = [json.loads(r) for r in pool.map(execute, [json.dumps(t.to_json()) for t in work.tasks])]
        assert [r["position"] for r in results] == [t.position for t in work.tasks]
        with monkeypatch.context() as patch:
            patch.setattr(slice_task, "_compacted", _never)  # the commit merges nothing again
            done = PlannedCompaction.from_json(text).commit()
        assert done.rows == sum(r["rows"] for r in results)
        assert done.bytes_written == sum(r["bytes_written"] for r in results)
    assert pending_instants(open_table(path)) == ()
    assert_same_rows(read_table(open_table(path)), before)
    check_no_strays(path)
    assert plan_compaction(str(path)) is None


def _never(*_: Any) -> None:
    raise AssertionError("it was merged again")


@TABLES
def test_a_task_that_runs_twice_does_its_work_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unzip_golden(name, tmp_path)
    task = planned(path).tasks[0]
    first = task.execute()
    monkeypatch.setattr(slice_task, "_compacted", _never)
    assert task.execute() == first


def test_a_result_of_other_inputs_is_made_again(tmp_path: Path) -> None:
    """They change while a write that began before the compaction completes."""
    path = unzip_golden("v9_pending", tmp_path)
    task = planned(path).tasks[0]
    first = task.execute()
    record = path / attempt_folder(task.instant, task.attempt) / f"{task.position}.ok"
    done = SliceDone.from_json(record.read_bytes(), str(record))
    values = json.loads(record.read_bytes())
    record.write_text(json.dumps({**values, "fingerprint": "of other inputs"}))
    again = task.execute()
    assert again.rows == first.rows
    assert SliceDone.from_json(record.read_bytes(), str(record)).fingerprint == done.fingerprint
    assert SliceDone.from_json(record.read_bytes(), str(record)).staged != done.staged


@pytest.mark.parametrize("how", ["restored", "unscheduled"])
def test_a_task_whose_plan_is_gone_says_so(how: str, tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    task = planned(path).tasks[0]
    if how == "restored":
        before = max(t for t in open_table(path).load_timeline().completed_writes if t < task.instant)
        restore_table(open_table(path), ProcessLock("split"), before)
    else:
        unschedule(open_table(path), task.instant, ProcessLock("split"))
    with pytest.raises(ConflictError, match=r"the plan of this task was removed.*Plan the compaction again"):
        task.execute()


@one_of("name", "v9_pending", "v6_pending")
def test_tasks_that_did_not_run(name: str, tmp_path: Path) -> None:
    path = unzip_golden(name, tmp_path)
    before = read_table(open_table(path))
    work = planned(path)
    work.tasks[0].execute()
    assert work.missing() == work.tasks[1:]
    with pytest.raises(UsageError, match="have not been executed"):
        work.commit()
    assert work.instant in pending_instants(open_table(path))
    work.commit(merge_missing=True)
    assert work.instant not in pending_instants(open_table(path))
    assert_same_rows(read_table(open_table(path)), before)


@one_of("name", "v6_pending", "v9_pending")
def test_another_compactor_takes_the_instant(name: str, tmp_path: Path) -> None:
    """It adopts what was finished; what comes later is refused, and leaves nothing."""
    path = unzip_golden(name, tmp_path)
    before = read_table(open_table(path))
    work = planned(path)
    made = work.tasks[0].execute()
    run_all(open_table(path))
    assert len(list((path / made.partition).glob(f"{made.file_id}*_{work.instant}.parquet"))) == 1
    with pytest.raises((AttemptDeadError, ConflictError)):
        work.tasks[1].execute()
    for merge_missing in (False, True):
        with pytest.raises(ConflictError, match="not pending any more"):
            work.commit(merge_missing=merge_missing)
    assert_same_rows(read_table(open_table(path)), before)
    check_no_strays(path)


def test_a_plan_made_again_ends_the_tasks_of_the_first(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    first, second = planned(path), planned(path)
    with pytest.raises(AttemptDeadError):
        first.tasks[0].execute()
    for task in second.tasks:
        task.execute()
    second.commit()


def test_a_decided_compaction_has_no_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    work = planned(path)
    for task in work.tasks:
        task.execute()

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("phantombase.compactor_daemon.attempt.compact_or_resume.publish", dies)
        with pytest.raises(KeyboardInterrupt):
            work.commit()
    again = planned(path)
    assert again.tasks == ()
    again.commit()
    assert pending_instants(open_table(path)) == ()


def test_what_is_no_plan(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    with pytest.raises(UsageError, match="not a pending compaction"):
        plan_compaction(str(path), "20200101000000000")
    for text in (
        "",
        "{}",
        '{"table": "t", "instant": "1", "tasks": [{}]}',
        '{"table": "t", "instant": "1", "tasks": 3}',
    ):
        with pytest.raises(MalformedError):
            PlannedCompaction.from_json(text)


def test_a_path_of_the_table_is_a_path_too(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    work = plan_compaction(path)
    assert work is not None
    assert PlannedCompaction.from_json(work.to_json()) == work
    assert work.tasks[0].table == str(path)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("position", -1, MalformedError),
        ("position", True, MalformedError),
        ("position", "0", MalformedError),
        ("attempt", 0, MalformedError),
        ("bytes", -1, MalformedError),
        ("instant", "../20300101000000000", MalformedError),
        ("instant", "²", MalformedError),
        ("output", {"codec": "none of these"}, MalformedError),
        ("storage_options", [["a"]], MalformedError),
        ("table", None, MalformedError),
        ("position", 7, ConflictError),
        ("attempt", 9, ConflictError),
        ("file_id", "another", ConflictError),
        ("partition", "elsewhere", ConflictError),
        ("instant", "20300101000000000", PhantombaseError),
        ("table", "another", PhantombaseError),
    ],
)
def test_a_task_of_another_plan_does_nothing(
    name: str, value: object, error: type[PhantombaseError], tmp_path: Path
) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    values = planned(path).tasks[0].to_json()
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    with pytest.raises(error):
        CompactionTask.from_json({**values, name: value}).execute()
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*")} == before


def test_one_task_is_not_another(tmp_path: Path) -> None:
    """Its file group tells them apart, also where both positions are of the plan."""
    path = unzip_golden("v9_pending", tmp_path)
    one, other = planned(path).tasks
    with pytest.raises(ConflictError, match=f"position 1 file group .*{other.file_id}; found .*{one.file_id}"):
        CompactionTask.from_json({**one.to_json(), "position": 1}).execute()
    with pytest.raises(ConflictError, match="not one of the plan"):
        replace(max(one, other, key=lambda task: task.position), position=-1).execute()  # not counted from the end


def test_a_plan_has_tasks_of_its_own_only(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    values = json.loads(planned(path).to_json())
    for name, value in (("table", "elsewhere"), ("instant", "20300101000000000")):
        with pytest.raises(MalformedError, match=r"expected tasks of"):
            PlannedCompaction.from_json(json.dumps({**values, name: value}))


@pytest.mark.parametrize("seed", [0, *map(deep, range(1, 20))])
def test_mutated_plans(seed: int, tmp_path: Path) -> None:
    """Each is a plan, or an error of the tree; a task that is none of the table's leaves nothing in it."""
    path = unzip_golden("v9_pending", tmp_path)
    chance, work = random.Random(seed), planned(path)
    text, before = work.to_json(), {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    odd = [None, True, -1, 0, 1, 2, 1 << 70, 1.5, "", "x", "..", "\x00", "²", [], {}, [["a", "b"]], {"codec": 3}]
    own = {(t.attempt, t.position, t.partition, t.file_id) for t in work.tasks}
    for _ in range(300):
        values = json.loads(text)
        holder = chance.choice([values, *values["tasks"], values["tasks"][0]["output"]])
        holder[chance.choice(list(holder))] = chance.choice(odd)
        changed = json.dumps(values)
        cut = chance.randrange(len(changed)) if chance.random() < 0.2 else len(changed)
        try:
            tasks = PlannedCompaction.from_json(changed[:cut]).tasks
        except MalformedError:
            continue
        for task in tasks:
            if (task.attempt, task.position, task.partition, task.file_id) not in own:
                with pytest.raises(PhantombaseError):
                    task.execute()
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*")} == before


def test_secrets_do_not_travel(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    options = {"region": "eu-west-1", "aws_secret_access_key": "hidden"}
    work = plan_compaction(str(path), storage_options=options)
    assert work is not None
    assert work.tasks[0].storage_options == (("region", "eu-west-1"),)
    assert "hidden" not in work.to_json()


def test_results_are_plain(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    [*_, task] = planned(path).tasks
    result = task.execute()
    assert SliceResult(**json.loads(json.dumps(result.to_json()))) == result
    assert LocalStorage(str(path)).find(f"{attempt_folder(task.instant, task.attempt)}/{task.position}.ok") is not None


@one_of("name", "v9_pending", "v6_pending")
def test_properties_are_in_the_commit(name: str, tmp_path: Path) -> None:
    """They are decided with it: a run that only publishes changes none. Names that have a meaning are refused."""
    path = unzip_golden(name, tmp_path)
    work = planned(path)
    for taken in ("schema", "phantombase.ledger", "hoodie.x", ""):
        with pytest.raises(UsageError, match="not a name for a property"):
            work.commit(properties={taken: "1"}, merge_missing=True)
    with pytest.raises(UsageError, match=r"not valid text.*udcff"):  # on version 6 it made a commit that none can read
        work.commit(properties={"job": "\udcff"}, merge_missing=True)
    work.commit(properties={"job": "nightly", "dag": "orders"}, merge_missing=True)
    (done,) = open_table(path).files.completed_commits(work.instant)
    found = open_table(path).commit_metadata(done).extra_metadata
    assert (found["job"], found["dag"]) == ("nightly", "orders")
    assert {"schema", "phantombase.ledger"} <= found.keys()


def test_the_command_takes_properties(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    (instant,) = pending_instants(open_table(path))
    run = ["compact", str(path), "--executor", "local", "--property", "job=nightly", "--property", "note=a=b"]
    assert CliRunner().invoke(app, run).exit_code == 0
    (done,) = open_table(path).files.completed_commits(instant)
    found = open_table(path).commit_metadata(done).extra_metadata
    assert (found["job"], found["note"]) == ("nightly", "a=b")
