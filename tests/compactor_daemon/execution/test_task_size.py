"""What Spark sends to the tasks of a compaction grows with timeline plus file slices, never with their product."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from phantombase.compactor_daemon.attempt.attempt import open_attempt, stage
from phantombase.compactor_daemon.execution.runners import spark_work
from phantombase.compactor_daemon.execution.slice_task import Round, SliceTask
from phantombase.compactor_daemon.records.slice_done import SliceDone
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.options import WriteOptions
from tests.support.compaction_steps import OPTIONS, OUTPUT, open_table
from tests.support.moved_tables import schedule, upsert
from tests.support.trips import rows
from tests.support.written_tables import written_table

_TASK_BYTES_MAX = 2_000


class _Seen(Exception):
    """Ends staging before it begins."""


def _tasks(path: Path) -> list[SliceTask]:
    """The tasks of a compaction of two file slices."""
    written_table(path, 9, rows((0, 1, 1.0), (3, 1, 1.0)), WriteOptions(buckets=2, slots=1))
    upsert(LocalStorage(str(path)), rows((0, 2, 2.0), (3, 2, 2.0)), buckets=2)
    instant = schedule(path).instant
    assert instant is not None
    table = open_table(path)
    found: list[SliceTask] = []

    def run(tasks: list[SliceTask]) -> list[SliceDone]:
        found.extend(tasks)
        raise _Seen

    with suppress(_Seen):
        stage(table, open_attempt(table, instant, OPTIONS), OUTPUT, OPTIONS, run)
    return found


def _behind(task: SliceTask, instants: int) -> Round:
    """What tasks share behind a timeline of so many instants."""
    completed = frozenset(f"2026112213{n:07d}" for n in range(instants))
    rules = task.round.rules
    return replace(task.round, rules=replace(rules, visibility=replace(rules.visibility, completed=completed)))


def test_a_task_is_as_small_behind_2000_instants(tmp_path: Path) -> None:
    """What is pickled for each task does not know how long the timeline is; what all share is sent once."""
    tasks = _tasks(tmp_path / "t")
    assert len(tasks) == 2
    common = _behind(tasks[0], 2000)
    storage = LocalStorage(str(tmp_path))
    few, _ = spark_work(storage, tasks)
    many, function = spark_work(storage, [SliceTask(common, t.part) for t in tasks])
    sizes = [len(pickle.dumps(sent)) for sent in many]
    assert sizes == [len(pickle.dumps(sent)) for sent in few]
    assert max(sizes) < _TASK_BYTES_MAX
    assert len(pickle.dumps(function)) > 2000 * 17, "the function carries the timeline, once"


def test_the_function_makes_the_same_tasks_of_what_was_sent(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A task comes out of the pickles as it went in, with the round that it belongs to."""
    tasks = _tasks(tmp_path / "t")
    mixed = [tasks[0], SliceTask(_behind(tasks[1], 3), tasks[1].part)]
    monkeypatch.setattr("phantombase.compactor_daemon.execution.runners.compact_slice", lambda storage, task: task)
    parts, function = pickle.loads(pickle.dumps(spark_work(LocalStorage(str(tmp_path)), mixed)))
    assert [function(sent) for sent in parts] == mixed
