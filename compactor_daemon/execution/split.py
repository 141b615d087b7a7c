"""A compaction in three steps that may run in three places: plan, execute, commit; for Ray, Dask or Airflow.

    plan      opens an attempt at a pending compaction: one task for each file slice. The plan is plain data (JSON)
    execute   anywhere, in any order, more than once: a task stages its file and records it in the table
    commit    `compact`: a new attempt adopts what the tasks have staged, and decides

No process holds the compaction between the steps, and none needs to: if another compactor takes the instant in between,
it adopts the finished slices, and the remaining tasks are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import ConflictError, MissingFileError, UsageError
from phantombase.timeline.format.compaction_plan import CompactionPlan
from phantombase.timeline.instants.reserved_times import attempts
from phantombase.timeline.locks.pause import COMPACTION, refuse_paused
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.metadata_table.record_index import check_keepable
from phantombase.timeline.option import path_text, spelled, spelled_class
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.storage_options import Given, StorageOptions
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.view.view import FileGroup, slice_before

from ..attempt.attempt import open_attempt
from ..attempt.compact_or_resume import Compacted, pending_instants, preflight
from ..attempt.compaction import single_task
from ..attempt.outcome import attempt_dead, find_decision, read_outcome
from ..attempt.slice_record import done_slices
from ..attempt.slice_task import SliceTask, compact_slice
from ..fleet.claims import claim_all, claim_one
from ..options import AttemptOptions, ExecuteOptions, Executor, output_from_json, output_to_json
from .run_compactions import run_compactions


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class SliceResult(Shown):
    """What one task made: a base file of `rows` rows and `bytes_written` bytes; 0 and 0 if there was nothing to do."""

    position: int
    partition: str
    file_id: str
    rows: int
    bytes_written: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTask(Shown):
    """One file slice of a planned compaction, plain data: `bytes` is the size of its files. `storage_options` has no
    secrets: each process finds those in its environment."""

    table: str
    instant: str
    attempt: int
    position: int
    partition: str
    file_id: str
    bytes: int
    output: OutputOptions
    storage_options: tuple[tuple[str, str], ...] = ()

    def execute(self, storage_options: Given = None) -> SliceResult:
        """Compacts the slice and leaves the result in the table; a finished one is not compacted again.
        AttemptDeadError: another compactor took the instant. ConflictError: it is no task of the plan. LedgerError: the
        ledger does not balance, nothing is left. Other errors of the tree: unreadable inputs."""
        table = Table.open(self.table, storage_options or dict(self.storage_options))
        return from_one_snapshot(lambda: self._execute(table.snapshot(cached=False)))

    def _execute(self, table: Table) -> SliceResult:
        seen = table.snapshot()
        plan = self._plan(seen)
        if (outcome := read_outcome(seen.storage, self.instant, self.attempt)) is not None:
            raise attempt_dead(self.instant, self.attempt, outcome)
        self._check(seen, plan)
        task = self._slice_task(seen, plan)
        done = done_slices(seen.storage, self.instant, self.attempt).get(self.position)
        if done is not None and done.fingerprint != task.fingerprint:
            table.storage.delete(task.record_path)  # it would block the record of the present inputs
            done = None
        done = done or compact_slice(table.storage, task)
        return SliceResult(
            position=done.position,
            partition=done.partition,
            file_id=done.file_id,
            rows=done.ledger.rows_out,
            bytes_written=done.size,
            seconds=done.seconds,
        )

    def _plan(self, seen: Table) -> CompactionPlan:
        """The plan. ConflictError: it was removed."""
        try:
            return seen.compaction_plan(self.instant)
        except MissingFileError as error:
            raise ConflictError(
                "the plan of this task was removed",
                path=error.path,
                instant=self.instant,
                found="it was unscheduled, or undone by a restore",
                todo="Nothing was done. Plan the compaction again: plan_compaction.",
            ) from error

    def _check(self, seen: Table, plan: CompactionPlan) -> None:
        """ConflictError: the table has no such attempt, or its plan has another file group at this position."""
        operations = plan.operations
        there = operations[self.position] if 0 <= self.position < len(operations) else None
        if there is None or (there.partition_path, there.file_id) != (self.partition, self.file_id):
            raise ConflictError(
                "this task is not one of the plan",
                path=self.table,
                instant=self.instant,
                expected=f"one of {len(operations)} file groups, at its position"
                if there is None
                else f"at position {self.position} file group {join(there.partition_path, there.file_id)}",
                found=f"position {self.position}, file group {join(self.partition, self.file_id)}",
                todo="Nothing was done. Plan the compaction again: plan_compaction.",
            )
        if self.attempt not in attempts(seen.storage, self.instant):
            raise ConflictError(
                "no such attempt is open at this compaction",
                path=self.table,
                instant=self.instant,
                found=f"attempt {self.attempt}",
                todo="Nothing was done. Plan the compaction again: plan_compaction.",
            )

    def _slice_task(self, seen: Table, plan: CompactionPlan) -> SliceTask:
        """The task by the present view: a write that began before the compaction may have completed since."""
        view = seen.load_plan_view([plan.only(self.position)])
        schema = seen.with_timeline(view.timeline).newest_schema(before=self.instant)
        return single_task(
            seen,
            view,
            plan,
            schema,
            self.output,
            instant=self.instant,
            attempt=self.attempt,
            position=self.position,
            measure=Measure.of(seen, schema),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, see `from_json`."""
        return {**asdict(self), "output": output_to_json(self.output)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> CompactionTask:
        """Inverse of `to_json`; MalformedError: not a task, or an invalid value."""
        fields = Fields(values={}, where="its JSON", what="not a task of a planned compaction").inner(values)
        output, given = output_from_json(values.get("output")), values.get("storage_options", [])
        if output is None:
            raise fields.malformed("output: options of base files that this release knows", repr(values.get("output")))
        if not isinstance(given, list | tuple) or not all(map(_is_pair, given)):
            raise fields.malformed("storage_options: a list of names and values", repr(given))
        pairs = tuple((name, value) for name, value in given)
        task = fields.of(CompactionTask, output=output, storage_options=pairs)
        check_instant(fields)
        for name, least in (("attempt", 1), ("position", 0), ("bytes", 0)):
            if fields.whole(name) < least:
                raise fields.malformed(f"{name}: at least {least}", str(fields.whole(name)))
        return task


def check_instant(fields: Fields) -> None:
    """MalformedError: the instant may be a path out of the folder of an instant's records."""
    text = fields.text("instant")
    if not (text.isascii() and text.isdigit()):
        raise fields.malformed("instant: digits", repr(text))


def _is_pair(one: object) -> bool:
    return isinstance(one, list | tuple) and len(one) == 2 and all(isinstance(text, str) for text in one)


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCompaction(Shown):
    """A pending compaction and its tasks; all must be executed before `commit`."""

    table: str
    instant: str
    tasks: tuple[CompactionTask, ...]

    def missing(self, storage_options: Given = None) -> tuple[CompactionTask, ...]:
        """The tasks without a result in the table."""
        storage = Table.open(self.table, self._given(storage_options)).storage
        numbers = {task.attempt for task in self.tasks}
        done = {(n, position) for n in numbers for position in done_slices(storage, self.instant, n)}
        return tuple(task for task in self.tasks if (task.attempt, task.position) not in done)

    def commit(
        self,
        *,
        lock: str | None = None,
        merge_missing: bool = False,
        properties: Mapping[str, str] | None = None,
        attempt: AttemptOptions | None = None,
        threads: int = 1,
        storage_options: Given = None,
    ) -> Compacted:
        """Makes the compaction visible, by one decision. `lock`: see `compact`. A slice whose inputs changed since its
        task ran is merged again here, `threads` at a time; with `merge_missing` also one whose task did not run.
        `properties`: recorded in the extra metadata of the commit. UsageError: tasks did not run. ConflictError: it is
        completed, or was unscheduled."""
        opened = Table.open(self.table, self._given(storage_options))
        if self.instant not in pending_instants(opened):
            raise ConflictError(
                "this compaction is not pending any more: it was completed or unscheduled",
                path=self.table,
                instant=self.instant,
                todo="`timeline show TABLE` shows what became of it.",
            )
        missing = self.missing(storage_options)
        if missing and not merge_missing:
            raise UsageError(
                "tasks of this compaction have not been executed",
                path=self.table,
                instant=self.instant,
                expected=f"{len(self.tasks)} results",
                found=f"{len(missing)} missing, the first of file group {missing[0].file_id}",
                todo="Execute them, or commit with merge_missing=True.",
            )
        output = self.tasks[0].output if self.tasks else OutputOptions()
        options = attempt or AttemptOptions()
        if properties is not None:
            options = replace(options, properties=tuple(properties.items()))
        [done] = run_compactions(
            opened,
            instant=self.instant,
            lock=lock,
            output=output,
            execute=ExecuteOptions(executor=Executor.LOCAL, threads=threads),
            attempt=options,
        ).done
        return done

    def _given(self, storage_options: Given) -> Given:
        return storage_options or dict(self.tasks[0].storage_options if self.tasks else ())

    def to_json(self) -> str:
        """One JSON document, see `from_json`."""
        return json.dumps({"table": self.table, "instant": self.instant, "tasks": [t.to_json() for t in self.tasks]})

    @staticmethod
    def from_json(text: str) -> PlannedCompaction:
        """Inverse of `to_json`; MalformedError: not a plan, or it has tasks of another one."""
        fields = Fields.parse(text.encode(errors="surrogatepass"), "its JSON", "not a planned compaction")
        table, instant = fields.text("table"), fields.text("instant")
        tasks = tuple(CompactionTask.from_json(task.values) for task in fields.records("tasks"))
        check_instant(fields)
        for task in tasks:
            if (task.table, task.instant) != (table, instant):
                raise fields.malformed(
                    f"tasks of {table} at {instant}", f"one of {task.table} at {task.instant}, position {task.position}"
                )
        return PlannedCompaction(table=table, instant=instant, tasks=tasks)


@spelled
def plan_compaction(
    path: str | os.PathLike[str],
    instant: str | None = None,
    *,
    output: OutputOptions | None = None,
    attempt: AttemptOptions | None = None,
    storage_options: Given = None,
) -> PlannedCompaction | None:
    """Opens an attempt at a pending compaction, by default the earliest, and returns its tasks. None: no compaction is
    pending. One that is decided already has no tasks: `commit` publishes it. UsageError: `instant` is not pending.
    ClaimedError: another compactor is at work on it. Other errors: as of `compact`, before anything is changed."""
    options, given = attempt or AttemptOptions(), StorageOptions.of(storage_options)
    table = Table.open(path_text(path), given)
    path = table.storage.base_path  # absolute: other processes execute the tasks
    seen = table.snapshot()
    pending = pending_instants(seen, instant)
    if not pending:
        return None
    chosen = pending[0]
    refuse_paused(seen.storage, COMPACTION)
    check_keepable(table, moves_rows=False)
    for error in preflight(seen, [chosen], output).values():
        raise error
    table.storage.verify()
    with claim_all(table, options.claim_wait_s), claim_one(table, chosen, options.claim_wait_s):
        seen = table.snapshot()
        if find_decision(seen.storage, chosen) is not None:
            return PlannedCompaction(table=path, instant=chosen, tasks=())
        opened, plan = open_attempt(seen, chosen, options), seen.compaction_plan(chosen)
    view = from_one_snapshot(lambda: table.snapshot().load_plan_view([plan]))
    groups = view.by_key()
    tasks = tuple(
        CompactionTask(
            table=path,
            instant=chosen,
            attempt=opened.number,
            position=position,
            partition=operation.partition_path,
            file_id=operation.file_id,
            bytes=_bytes(groups.get((operation.partition_path, operation.file_id)), chosen),
            output=output or OutputOptions(),
            storage_options=given.without_secrets,
        )
        for position, operation in enumerate(plan.operations)
    )
    return PlannedCompaction(table=path, instant=chosen, tasks=tasks)


def _bytes(group: FileGroup | None, instant: str) -> int:
    slice_ = None if group is None else slice_before(group, instant)
    return 0 if slice_ is None else slice_.base_bytes + slice_.log_bytes
