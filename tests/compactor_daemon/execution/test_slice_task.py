"""The task of one file slice: what its result depends on, and what stays when it runs twice or reads back wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.attempt import open_attempt, stage
from phantombase.compactor_daemon.attempt.compact_instant import pending_instants
from phantombase.compactor_daemon.execution import slice_task
from phantombase.compactor_daemon.execution.log_task import LogOutput
from phantombase.compactor_daemon.execution.slice_task import SliceTask, compact_slice
from phantombase.compactor_daemon.records.fate import OK
from phantombase.compactor_daemon.records.slice_done import SliceDone
from phantombase.timeline.avro.schema import FILE_NAME
from phantombase.timeline.errors import AttemptDeadError, LedgerError
from phantombase.timeline.format.merge_settings import NotGiven
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.instants.attempt_names import attempt_folder
from phantombase.timeline.merge.gaps import Unset
from phantombase.timeline.parquet.base_file import write_base_file
from phantombase.timeline.parquet.output_options import Codec, OutputOptions
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import OPTIONS, OUTPUT, open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import unzip_golden


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
