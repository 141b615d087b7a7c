"""A compaction in three steps that may run in three places: plan, execute, commit; for Ray, Dask or Airflow.

    plan      opens an attempt at a pending compaction: one task for each file slice. The plan is plain data (JSON)
    execute   anywhere, in any order, more than once: a task stages its file and records it in the table
    commit    `compact`: a new attempt adopts what the tasks have staged, and decides

No process holds the compaction between the steps, and none needs to: if another compactor takes the instant meanwhile,
it adopts the finished slices, and the tasks that are left are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from phantombase.timeline.errors import ConflictError, UsageError
from phantombase.timeline.metadata_table.update import check_keepable
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.storage_options import Given, StorageOptions
from phantombase.timeline.table.table import Table, consistent
from phantombase.timeline.view.view import FileGroup, slice_before

from ..attempt.attempt import open_attempt
from ..attempt.compact_instant import Compacted, pending_instants, preflight
from ..claims.doorbell import claim_all, claim_one
from ..options import AttemptOptions, ExecuteOptions, Executor
from ..records.outcome import find_decision
from ..records.slice_done import done_slices
from .pending import run_compactions
from .split_task import CompactionTask, check_instant


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCompaction:
    """A pending compaction and its tasks, of which all are to be executed before `commit`."""

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
        """Makes the compaction visible, by one decision. `lock`: see `compact`.

        A slice whose inputs changed since its task ran is merged again here, `threads` at a time; with `merge_missing`
        also one whose task did not run. `properties`: recorded in the extra metadata of the commit.
        UsageError: tasks did not run. ConflictError: it is completed, or was taken back.
        """
        opened = Table.open(self.table, self._given(storage_options))
        if self.instant not in pending_instants(opened):
            raise ConflictError(
                "this compaction is not pending any more: it was completed, or taken back",
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
        """Inverse of `to_json`; MalformedError: it is no plan, or has tasks of another one."""
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


def plan_compaction(
    path: str | os.PathLike[str],
    instant: str | None = None,
    *,
    output: OutputOptions | None = None,
    attempt: AttemptOptions | None = None,
    storage_options: Given = None,
) -> PlannedCompaction | None:
    """Opens an attempt at a pending compaction, by default the earliest, and says what its tasks are.

    None: no compaction is pending. One that is decided already has no tasks: `commit` publishes it. UsageError:
    `instant` is not pending. ClaimedError: another compactor is at work on it. Other errors: as of `compact`, before
    anything is changed.
    """
    path, options, given = os.fspath(path), attempt or AttemptOptions(), StorageOptions.of(storage_options)
    table = Table.open(path, given)
    seen = table.still()
    pending = pending_instants(seen, instant)
    if not pending:
        return None
    chosen = pending[0]
    check_keepable(table, moves_rows=False)
    for error in preflight(seen, [chosen]).values():
        raise error
    table.storage.prove()
    with claim_all(table, options.claim_wait_s), claim_one(table, chosen, options.claim_wait_s):
        seen = table.still()
        if find_decision(seen.storage, chosen) is not None:
            return PlannedCompaction(table=path, instant=chosen, tasks=())
        opened = open_attempt(seen, chosen, options)
    view = consistent(lambda: table.still().load_plan_view([opened.plan]))
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
        for position, operation in enumerate(opened.plan.operations)
    )
    return PlannedCompaction(table=path, instant=chosen, tasks=tasks)


def _bytes(group: FileGroup | None, instant: str) -> int:
    slice_ = None if group is None else slice_before(group, instant)
    return 0 if slice_ is None else slice_.base_bytes + slice_.log_bytes
