"""The task of one file slice: what its result depends on, and what stays when it runs twice or reads back wrong."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase import writer
from phantombase.compactor_daemon.attempt import slice_task
from phantombase.compactor_daemon.attempt.attempt import open_attempt, stage
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.log_task import LogOutput
from phantombase.compactor_daemon.attempt.outcome import OK
from phantombase.compactor_daemon.attempt.slice_record import SliceDone
from phantombase.compactor_daemon.attempt.slice_task import SliceTask, StageSpec, compact_slice
from phantombase.compactor_daemon.execution.runners import spark_work
from phantombase.timeline.codec.avro_schema import FILE_NAME
from phantombase.timeline.codec.output_options import Codec, OutputOptions, parse_bytes
from phantombase.timeline.codec.parquet_write import write_base_file
from phantombase.timeline.errors import AttemptDeadError, LedgerError, StorageError, UsageError
from phantombase.timeline.format.ledger import Ledger
from phantombase.timeline.format.merge_settings import DeleteMarker, NotGiven
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.instants.reserved_times import attempt_folder
from phantombase.timeline.merge.gaps import Unset
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.slice_merge import identity_columns, identity_sum
from phantombase.timeline.merge.slice_stream import SliceStream
from phantombase.timeline.merge.spilled_merge import POSITION, SortedRun, SpillFile
from phantombase.timeline.read.table_read import ReadOptions, Scan, plan_read
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileSlice
from phantombase.writer_hooks.options import WriteOptions
from tests.support.compaction_steps import OPTIONS, OUTPUT, open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import GOLDEN, unzip_golden
from tests.support.moved_tables import schedule, upsert
from tests.support.selection import ALL, deep, for_each
from tests.support.trips import rows
from tests.support.written_tables import written_table


class _NotNow(Exception):
    """The tasks are known; nothing is staged."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table with a pending compaction of two file slices."""
    return unzip_golden("v9_pending", tmp_path)


@pytest.fixture
def task(path: Path) -> SliceTask:
    """The first task of its first attempt."""
    table, seen = open_table(path), list[SliceTask]()
    attempt = open_attempt(table, pending_instants(table)[0], OPTIONS)

    def run(tasks: list[SliceTask]) -> list[SliceDone]:
        seen.extend(tasks)
        raise _NotNow

    with suppress(_NotNow):
        stage(table, attempt, OUTPUT, OPTIONS, run)
    return seen[0]


def folder(path: Path, task: SliceTask) -> Path:
    """Of the task's attempt."""
    return path / attempt_folder(task.instant, task.attempt)


def staged_files(path: Path, task: SliceTask) -> set[str]:
    """Relative to the table."""
    return {str(p.relative_to(path)) for p in folder(path, task).glob("*.parquet")}


def changed(task: SliceTask, **changes: Any) -> SliceTask:
    """The task with other values, of the round or its own."""
    of_round = {f.name for f in fields(task.round)} & changes.keys()
    own = changes.keys() - of_round
    return SliceTask(
        replace(task.round, **{name: changes[name] for name in of_round}),
        replace(task.part, **{name: changes[name] for name in own}),
    )


def other_size(task: SliceTask) -> SliceTask:
    """The same names; a writer of version 6 has appended to the last log."""
    *logs, last = task.slice.logs
    return changed(task, slice=replace(task.slice, logs=(*logs, replace(last, size=last.size + 1))))


def with_merge(task: SliceTask, **changes: Any) -> SliceTask:
    """Another merge rule."""
    return changed(task, rules=replace(task.rules, merge=replace(task.rules.merge, **changes)))


DEPENDS: dict[str, Callable[[SliceTask], SliceTask]] = {
    "a log grew": other_size,
    "a log less": lambda t: changed(t, slice=replace(t.slice, logs=t.slice.logs[1:])),
    "no base file": lambda t: changed(t, slice=replace(t.slice, base=None)),
    "schema": lambda t: changed(t, schema_text=t.round.schema_text.replace('"fare"', '"fee"')),
    "merge mode": lambda t: with_merge(t, mode=MergeMode.COMMIT_TIME),
    "ordering type": lambda t: with_merge(t, ordering_types=(pa.string(),)),
    "duplicates": lambda t: with_merge(t, every_duplicate=not t.rules.merge.every_duplicate),
    "values not given": lambda t: with_merge(t, unset=Unset(values=NotGiven())),
    "delete marker": lambda t: with_merge(t, marker=DeleteMarker(field="op", value="D", in_logs=True)),
    "deletes win": lambda t: with_merge(t, deletes_win=True),
    "key fields": lambda t: changed(t, rules=replace(t.rules, keys=replace(t.rules.keys, fields=("other",)))),
    "ordering fields": lambda t: changed(t, rules=replace(t.rules, ordering_fields=("other",))),
    "a log is made": lambda t: changed(t, log=LogOutput(instant=t.instant, version=1, fold=True)),
}


@pytest.mark.parametrize("change", DEPENDS.values(), ids=DEPENDS.keys())
def test_what_a_result_depends_on_is_in_its_fingerprint(
    change: Callable[[SliceTask], SliceTask], task: SliceTask
) -> None:
    """Else a later attempt adopts a file that was made of other rows, or otherwise."""
    assert change(task) != task
    assert change(task).fingerprint != task.fingerprint


def test_folding_is_in_the_fingerprint_and_the_attempt_is_not(task: SliceTask) -> None:
    """A successor adopts under another number, position and codec."""
    folded = changed(task, log=LogOutput(instant=task.instant, version=1, fold=True))
    copied = changed(task, log=LogOutput(instant=task.instant, version=1, fold=False))
    assert folded.fingerprint != copied.fingerprint
    same = changed(task, attempt=7, position=3, output=OutputOptions(codec=Codec.NONE))
    assert same.fingerprint == task.fingerprint


def test_each_attempt_has_final_names_of_its_own(task: SliceTask) -> None:
    """By them a completed commit is told from another attempt's."""
    names = {str(changed(task, attempt=a, position=p).final_name) for a in (1, 2) for p in (0, 1)}
    assert len(names) == 4


def test_of_two_runs_of_a_task_the_first_counts(path: Path, task: SliceTask) -> None:
    """A speculative copy, or a retry: it returns the first's record, and its own file goes."""
    storage = LocalStorage(str(path))
    first = compact_slice(storage, task)
    again = compact_slice(storage, task)
    assert again == first
    assert staged_files(path, task) == {str(first.staged)}


def test_a_record_that_is_ours_all_the_same_keeps_its_file(path: Path, task: SliceTask) -> None:
    """A put that was tried again below us says "there already" of what we put."""

    def put_again(call: Call) -> Any:
        done = call.do()
        return False if call.name == "put_if_absent" else done

    done = compact_slice(HookedStorage(LocalStorage(str(path)), put_again), task)
    assert staged_files(path, task) == {str(done.staged)}


def test_a_task_whose_attempt_was_retired_records_nothing(path: Path, task: SliceTask) -> None:
    """Its folder is gone; made again it would be taken for an attempt without an end."""
    storage = LocalStorage(str(path))
    gone = attempt_folder(task.instant, task.attempt)

    def retired(call: Call) -> Any:
        if call.name == "find" and call.path == gone:
            storage.delete_folder(gone)
        return call.do()

    with pytest.raises(AttemptDeadError, match="retired"):
        compact_slice(HookedStorage(storage, retired), task)
    assert not (path / gone).exists()


def one_row_less(rows: pa.Table) -> pa.Table:
    """The last row is lost."""
    return rows.slice(0, rows.num_rows - 1)


def one_row_twice(rows: pa.Table) -> pa.Table:
    """As many rows, one of them in the place of another."""
    return pa.concat_tables([rows.slice(0, rows.num_rows - 1), rows.slice(0, 1)])


@pytest.mark.parametrize("damage", [one_row_less, one_row_twice])
def test_a_file_that_reads_back_otherwise_is_never_recorded(
    damage: Callable[[pa.Table], pa.Table], path: Path, task: SliceTask
) -> None:
    """The books are of the file that is there, not of what was handed to the writer."""
    damaged: list[str] = []

    def hook(call: Call) -> Any:
        if call.name == "open_input" and call.path.startswith(attempt_folder(task.instant, 1)) and not damaged:
            damaged.append(call.path)
            pq.write_table(damage(pq.read_table(path / call.path)), path / call.path)
        return call.do()

    with pytest.raises(LedgerError):
        compact_slice(HookedStorage(LocalStorage(str(path)), hook), task)
    assert damaged
    assert not list(folder(path, task).glob(f"*{OK}"))


def test_logs_without_a_base_file_are_rows_to_write(path: Path, task: SliceTask) -> None:
    """Only where there is no entry either, nothing is written."""
    logs_only = changed(task, slice=replace(task.slice, base=None))
    done = compact_slice(LocalStorage(str(path)), logs_only)
    assert done.ledger.rows_out > 0
    assert done.final is not None
    nothing = changed(task, position=5, slice=replace(task.slice, base=None, logs=()))
    done = compact_slice(LocalStorage(str(path)), nothing)
    assert (done.staged, done.final, done.size) == (None, None, 0)
    assert len(staged_files(path, task)) == 1


@pytest.mark.parametrize("unset", [None, Unset(values=NotGiven())])
def test_the_name_of_the_old_file_is_not_merged(
    unset: Unset | None, path: Path, task: SliceTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row gets the name of the new file; only where null means "not given", a merge asks all columns."""
    merged: list[list[str]] = []

    def write(file: Any, batches: Iterable[pa.RecordBatch], **how: Any) -> int:
        held = list(batches)
        merged.extend(batch.schema.names for batch in held)
        return write_base_file(file, held, **how)

    monkeypatch.setattr(slice_task, "write_base_file", write)
    done = compact_slice(LocalStorage(str(path)), with_merge(task, unset=unset))
    names = task.rules.schema.names
    assert merged
    assert all(found == [n for n in names if unset or n != FILE_NAME] for found in merged)
    rows = pq.read_table(path / str(done.staged))
    assert rows.schema.names == names
    assert rows.column(FILE_NAME).to_pylist() == [str(task.final_name)] * done.ledger.rows_out


# What Spark sends to the tasks of a compaction grows with timeline plus file slices, never with their product.


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


def _behind(task: SliceTask, instants: int) -> StageSpec:
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
    monkeypatch.setattr(SliceTask, "run", lambda task, storage: task)
    parts, function = pickle.loads(pickle.dumps(spark_work(LocalStorage(str(tmp_path)), mixed)))
    assert [function(sent) for sent in parts] == mixed


# The memory limit: log data beyond it is split by key and spilled, and nobody can tell from the result.


TINY_BYTES = 2000
"""Every few entries are spilled, every block is decoded in parts, there are as many partitions as may be."""


def stream(scan: Scan, slice_: FileSlice, rules: SliceRules) -> tuple[pa.Table, Ledger]:
    """The merged rows and the books, whose hash is taken of these rows."""
    merged = SliceStream(scan.table.storage, slice_, rules)
    rows = pa.Table.from_batches(list(merged.batches()), merged.schema)
    identity = identity_sum([rows.select(identity_columns(rows.schema))])
    return rows, merged.ledger(rows.num_rows, identity)


SPILLED = {
    *("v6_event_time", "v6_commit_time", "v9_bucket_nonpart", "v9_log_compacted", "v9_log_only"),
    *("v9_multi_ordering", "v9_parquet_log", "v9_rolled_back", "v9_types"),
}
"""Tables that differ in how rows are merged; the others differ in what is read, and by whom it was written."""


@pytest.mark.parametrize("name", [name if name in SPILLED else deep(name) for name in GOLDEN])
def test_the_same_rows_in_the_same_order_and_the_same_books(name: str, tmp_path: Path) -> None:
    """Every slice of every golden table, far below and far above the limit; in a usual run the two with most logs."""
    scan = plan_read(Table.open(str(unzip_golden(name, tmp_path))), ReadOptions())
    in_memory = replace(scan.rules, identity=True, batch_rows=7)
    spilled = replace(in_memory, memory_bytes=TINY_BYTES, spill_folder=str(tmp_path))
    for slice_ in sorted(scan.slices, key=lambda one: -len(one.logs))[: None if ALL else 2]:
        rows, books = stream(scan, slice_, in_memory)
        again, other_books = stream(scan, slice_, spilled)
        assert again.equals(rows)
        assert other_books == books
        assert books.identity is not None
        books.check(
            footer_rows_in=books.base_rows, header_entries=books.log_entries, footer_rows_out=rows.num_rows, where=name
        )
    assert not list(tmp_path.glob("phantombase-*"))  # nothing stays behind


def test_it_does_spill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above rests on: with the tiny limit there is something on disk."""
    made: list[str] = []
    monkeypatch.setattr(SpillFile, "append", lambda self, table: made.append(self._path))
    scan = plan_read(Table.open(str(unzip_golden("v9_event_time", tmp_path))), ReadOptions())
    (slice_, *_) = [s for s in scan.slices if s.logs]
    merged = SliceStream(scan.table.storage, slice_, replace(scan.rules, memory_bytes=TINY_BYTES))
    list(merged.batches())
    assert {os.path.basename(p).partition(".")[2] for p in made} >= {"entries", "rows"}


def test_columns_of_any_name_spill(tmp_path: Path) -> None:
    """None is taken for one of those that a merge adds on disk."""
    path, count = tmp_path / "trips", 99
    for ts in range(2):
        rows = pa.table({"id": [f"x{n}" for n in range(count)], "ts": [ts] * count})
        for name in ("__position", "__hash", "__shape", "__key"):
            rows = rows.append_column(name, pa.array([ts] * count))
        writer(rows).table("trips").key("id").ordering("ts").upsert(str(path))
    scan = plan_read(Table.open(str(path)), ReadOptions())
    (slice_,) = scan.slices
    merged = SliceStream(scan.table.storage, slice_, replace(scan.rules, memory_bytes=TINY_BYTES))
    found = pa.Table.from_batches(list(merged.batches()))
    assert found["__hash"].to_pylist() == found["__position"].to_pylist() == [1] * count


def test_a_full_disk_is_an_error_of_ours(tmp_path: Path) -> None:
    """Named, with the ways out; the temporary folder is gone afterwards."""
    scan = plan_read(Table.open(str(unzip_golden("v9_event_time", tmp_path))), ReadOptions())
    slice_ = next(s for s in scan.slices if s.logs)
    missing = str(tmp_path / "gone")
    rules = replace(scan.rules, memory_bytes=TINY_BYTES, spill_folder=missing)
    with pytest.raises(StorageError, match="cannot spill data to disk") as failure:
        list(SliceStream(scan.table.storage, slice_, rules).batches())
    assert "--spill-dir" in str(failure.value)


def test_a_run_is_read_window_by_window(tmp_path: Path) -> None:
    """Each row once, whatever the windows and the batches."""
    schema = pa.schema([(POSITION, pa.int64()), ("v", pa.string())])
    file = SpillFile(str(tmp_path / "run"), schema)
    positions = np.array([0, 3, 4, 9, 10, 11, 40])
    for part in np.split(positions, [2, 3]):
        file.append(pa.table({POSITION: part, "v": [str(p) for p in part]}, schema=schema))
    run = SortedRun(file)
    found = [[p for t in run.upto(bound) for p in t.column(POSITION).to_pylist()] for bound in (0, 4, 10, 30, 41, 99)]
    assert found == [[], [0, 3], [4, 9], [10, 11], [40], []]


@for_each([("512m", 512 << 20), ("1g", 1 << 30), ("1.5 GB", 3 << 29), ("40000000", 40_000_000), ("64MiB", 1 << 26)])
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    """Units are powers of 1024."""
    assert parse_bytes(text) == size


@for_each(["", "m", "-1g", "1x", "1gg", "one"])
def test_what_is_no_size(text: str) -> None:
    """Refused by name."""
    with pytest.raises(UsageError, match="not a size"):
        parse_bytes(text)


@pytest.mark.parametrize("options", [{"memory_limit": 1 << 20}, {"spill_dir": "/no/such/folder"}])
def test_limits_that_make_no_sense(options: dict[str, Any]) -> None:
    """Too little to work with, or no folder."""
    with pytest.raises(UsageError):
        OutputOptions(**options)
    assert OutputOptions(memory_limit=1 << 26, spill_dir=tempfile.gettempdir()).memory_limit == 1 << 26
