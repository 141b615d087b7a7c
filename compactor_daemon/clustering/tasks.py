"""The tasks of a clustering: each makes the files of one group of the plan, and leaves its record. They run in an
attempt at the plan, or before the plan is visible, so that writes of its file groups go on meanwhile:

    .hoodie/.phantombase/clusterings/<run>/alive             the heartbeat of the run
    .hoodie/.phantombase/clusterings/<run>/<random>.parquet  a staged file
    .hoodie/.phantombase/clusterings/<run>/<position>.ok     a group of the plan whose files are staged

A run has no instant, and nothing of it is on the timeline: it can only be used or removed. The next run after a death
takes it over: of the groups that it chooses, those that are made are not made again. Under the lock the plan is
put with a new instant, without the groups that differ from what was read (`still_whole`). The plan names the run, so
the attempt at it, and those of later processes, adopt the staged files (`Job.staged_before`); a file that is missing is
made again. So nothing but work depends on a run: it may be removed at any time."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import PhantombaseError, StalePlanError, StoppedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.replace_request import ClusterGroup, ClusterPlan
from phantombase.timeline.instants.reserved_times import attempt_folder
from phantombase.timeline.locks.heartbeat import BEAT_S, heartbeat
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.metadata_table.record_index import has_one_record_index
from phantombase.timeline.planning.schedule import busy_file_groups
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.table.table import Snapshot, Table, TableSchema, from_one_snapshot
from phantombase.timeline.view.view import FileSlice, TableView, input_names

from ..attempt.attempt import RunTasks, is_current
from ..attempt.clustering import is_there
from ..attempt.compaction import merge_rules
from ..attempt.outcome import OK, ReplacedGroup
from ..attempt.pending_clusterings import (
    ALIVE,
    PendingClustering,
    dead_runs,
    named_runs,
    remove_dead_runs,
    staging_folder,
)
from ..attempt.slice_record import SliceDone, leave_record, slices_in
from .choice import output_names, slices_of
from .options import Copy, SortOrder
from .outputs import Made, OutputFileSpec, make


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPart:
    """The part of one task: its position in the plan, the group, and its file slices."""

    instant: str
    attempt: int
    position: int
    group: ClusterGroup
    inputs: tuple[FileSlice, ...]


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """Everything needed to make the files of one group; see `StageTask`."""

    round: OutputFileSpec
    part: ClusterPart

    job = "clustering"

    @property
    def instant(self) -> str:
        return self.part.instant

    @property
    def attempt(self) -> int:
        return self.part.attempt

    @property
    def position(self) -> int:
        return self.part.position

    @property
    def rules(self) -> SliceRules:
        return self.round.rules

    @property
    def record_path(self) -> str:
        return f"{self.round.folder}/{self.position}{OK}"

    @property
    def read_bytes(self) -> int:
        return sum(one.base_bytes + one.log_bytes for one in self.part.inputs)

    @property
    def fingerprint(self) -> str:
        """Digest of inputs, schema, order of rows and merge rules. Options of the written files do not matter: also
        whether row groups are copied."""
        spec, rules = self.round, self.rules
        parts: dict[str, object] = {
            "inputs": [[(file.path, file.size) for file in one.files] for one in self.part.inputs],
            "outputs": self.part.group.file_ids,
            "schema": spec.schema_text,
            "sort": [*spec.sort_by, spec.sort_order.value],
            "merge": repr(rules.merge),
            "keys": [*rules.keys.fields, *rules.ordering_fields],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def run(self, storage: Storage) -> SliceDone:
        """Stages the files; safe to run twice. LedgerError: rows differ; no record is left."""
        names = output_names(self.position, self.part.group, self.instant, self.attempt)
        made = make(storage, self.round, names, self.part.inputs)
        return leave_record(storage, self.record_path, self._done(made))

    def _done(self, made: Made) -> SliceDone:
        first = made.files[0] if made.files else None
        inputs, group = self.part.inputs, self.part.group
        bases = {one.base.name.instant for one in inputs if one.base is not None}
        logs = [log for one in inputs for log in one.logs]
        return SliceDone(
            position=self.position,
            partition=group.partition,
            file_id=group.file_id,
            base_instant=None,
            base_file=None,
            inputs=tuple(name for one in inputs for name in input_names(one)),
            fingerprint=self.fingerprint,
            staged=None if first is None else first.staged,
            final=None if first is None else first.final,
            size=0 if first is None else first.size,
            ledger=made.ledger,
            log_bytes=sum(log.size for log in logs),
            log_files=len(logs),
            log_blocks=0,
            corrupt_blocks=0,
            rolled_back_blocks=0,
            skipped=made.logs.skipped,
            seconds=made.seconds,
            ranges=None if first is None else first.ranges,
            uncommitted=made.logs.uncommitted,
            merged=tuple(sorted({*made.logs.merged, *bases})),
            output=self.round.output,
            replaced=tuple(
                ReplacedGroup(
                    partition=one.partition,
                    file_id=one.file_id,
                    files=input_names(one),
                    bytes=one.base_bytes + one.log_bytes,
                )
                for one in inputs
            ),
            more=made.files[1:],
            copied_row_groups=made.copied_row_groups,
            encoded=made.encoded,
            repeated_keys=made.repeated_keys,
        )


def tasks_of(
    pending: PendingClustering, copy: Copy, table: Table, attempt: int, output: OutputOptions
) -> tuple[Sequence[ClusterTask], TableSchema]:
    """The tasks of an attempt; see `Job.tasks`. StalePlanError: an input is not as it was planned."""
    tasks, schema = whole_tasks(pending, copy, table, attempt, output, folder=attempt_folder(pending.time, attempt))
    if len(tasks) != len(pending.plan.groups):
        raise StalePlanError(
            "the files of a clustering are not as they were planned",
            path=table.storage.base_path,
            instant=pending.time,
            todo="Run again: the plan is cancelled, and a new one made."
            if pending.plan.is_own
            else "It is a plan of Hudi, and stays: let Hudi execute it.",
        )
    return tasks, schema


def whole_tasks(
    pending: PendingClustering,
    copy: Copy,
    table: Table,
    attempt: int,
    output: OutputOptions,
    *,
    folder: str,
    is_named: bool = True,
) -> tuple[Sequence[ClusterTask], TableSchema]:
    """The tasks of the groups whose inputs are as they were planned. `folder`: where they stage; `is_named`: see
    `OutputFileSpec`."""
    view = _view(table, pending)
    seen = table.with_timeline(view.timeline)  # with its archive, if only that shows the writes of these files
    inputs = _inputs(seen, view, pending)
    schema = seen.schema_to_cluster()
    spec = OutputFileSpec(
        folder=folder,
        rules=merge_rules(seen, schema, output),
        schema_text=schema.file_text,
        output=output,
        measure=Measure.of(table, schema),
        sort_by=pending.plan.sort_by,
        sort_order=SortOrder(pending.plan.sort_order or SortOrder.ORDER),
        copy=copy,
        indexed=has_one_record_index(table),
        is_named=is_named,
    )
    return [
        ClusterTask(
            spec, ClusterPart(instant=pending.time, attempt=attempt, position=number, group=group, inputs=slices)
        )
        for number, (group, slices) in enumerate(zip(pending.plan.groups, inputs, strict=True))
        if slices
    ], schema


def inputs_now(table: Snapshot, pending: PendingClustering) -> tuple[tuple[FileSlice, ...], ...]:
    """The planned slices as they are now, see `slices_of`."""
    return _inputs(table, _view(table, pending), pending)


def _view(table: Table, pending: PendingClustering) -> TableView:
    there = table.views.existing(group.partition for group in pending.plan.groups)
    return from_one_snapshot(lambda: table.load_view(exactly=there))


def _inputs(table: Snapshot, view: TableView, pending: PendingClustering) -> tuple[tuple[FileSlice, ...], ...]:
    others = tuple(i for i in table.timeline.instants if i.identity != pending.requested.identity)
    busy = busy_file_groups(table.with_timeline(replace(table.timeline, instants=others))).groups.keys()
    return slices_of(view, pending.plan.groups, busy)


_log = get_logger()
_NO_INSTANT = "0" * 17
"""Earlier than every instant, so that it is none of them."""
_ROUNDS = 10


@contextmanager
def staging_run(table: Table) -> Iterator[str]:
    """A run with its heartbeat, the latest dead one or a new one; other dead ones are removed. Yields its name. At the
    end it is removed, unless a pending plan names it, or it was only stopped: then the next run takes it over."""
    is_stopped = False
    name = next(reversed(dead_runs(table)), f"{table.times.moment(clock_ms())}-{uuid.uuid4().hex[:8]}")
    folder = staging_folder(name)
    try:
        with heartbeat(table.storage, f"{folder}/{ALIVE}", BEAT_S):
            remove_dead_runs(table)
            yield name
    except StoppedError:
        is_stopped = True
        raise
    finally:
        try:
            now = table.snapshot(cached=False)
            if not is_stopped and name not in named_runs(now):
                now.storage.delete_folder(folder)
        except PhantombaseError as error:  # the next run removes it
            _log.warning("staged_files_left", path=folder, error=str(error))


def with_known_ids(table: Table, name: str, groups: Sequence[ClusterGroup]) -> tuple[ClusterGroup, ...]:
    """Groups with the ids under which a dead run has made files of the same slices."""
    known = {
        (one.partition, tuple((group.file_id, tuple(sorted(group.files))) for group in one.replaced)): one.file_id
        for one in slices_in(table.storage, staging_folder(name)).values()
    }
    keys = [(one.partition, tuple((s.file_id, tuple(sorted(s.names))) for s in one.slices)) for one in groups]
    return tuple(replace(one, file_id=known.get(key, one.file_id)) for key, one in zip(keys, groups, strict=True))


def make_ahead(
    table: Table, plan: ClusterPlan, copy: Copy, output: OutputOptions, run: RunTasks
) -> Mapping[str, SliceDone]:
    """Stages the files of a plan that is not visible; returns the records by fingerprint. A group whose inputs change
    meanwhile may be missing: they may be cleaned. Other errors of tasks are raised."""
    storage, folder = table.storage, staging_folder(plan.staged)
    todo = _tasks(table, plan, copy, output)
    made = _adopted(storage, folder, todo)
    todo = [task for task in todo if task.fingerprint not in made]
    for _ in range(_ROUNDS):
        if not todo:  # a runner takes one task at least
            break
        try:
            return made | {done.fingerprint: done for done in run(list(todo))}
        except PhantombaseError as error:
            made |= {done.fingerprint: done for done in slices_in(storage, folder).values()}
            missing = {task.fingerprint for task in todo} - made.keys()
            now = _tasks(table, plan, copy, output)
            todo = [task for task in now if task.fingerprint in missing]
            if len(todo) == len(missing):
                raise
            _log.info("clustering_group_changed", table=storage.base_path, error=str(error))
    return made


def _adopted(storage: Storage, folder: str, tasks: Sequence[ClusterTask]) -> dict[str, SliceDone]:
    """What a dead run has made for these tasks, with records at their positions. Its other records are removed. A file
    that was written with other options is made again: a rewriting may be for them."""
    records = slices_in(storage, folder)
    there = {done.fingerprint: done for done in records.values() if is_there(storage, done)}
    storage.delete_all([f"{folder}/{e.name}" for e in listed_if_there(storage, folder) or () if e.name.endswith(OK)])
    return {
        task.fingerprint: leave_record(storage, task.record_path, replace(done, position=task.position))
        for task in tasks
        if (done := there.get(task.fingerprint)) is not None
        and is_current(done, task.rules.visibility)
        and _is_written_so(done, task)
    }


def _is_written_so(done: SliceDone, task: ClusterTask) -> bool:
    was, now = done.output, task.round.output
    if was is None or (done.copied_row_groups and task.round.copy is Copy.REENCODE):
        return False
    return (was.codec, was.row_group_rows, was.bloom) == (now.codec, now.row_group_rows, now.bloom)


def still_whole(
    table: Table, plan: ClusterPlan, copy: Copy, output: OutputOptions, made: Mapping[str, SliceDone]
) -> ClusterPlan:
    """The groups of a plan whose inputs, schema and rules are those with which their files were made."""
    tasks = _tasks(table, plan, copy, output)
    current = [
        task.part.group
        for task in tasks
        if (done := made.get(task.fingerprint)) is not None and is_current(done, task.rules.visibility)
    ]
    return replace(plan, groups=tuple(current))


def _tasks(table: Table, plan: ClusterPlan, copy: Copy, output: OutputOptions) -> list[ClusterTask]:
    requested = Instant(requested_time=_NO_INSTANT, action=table.layout.pending_clustering, state=State.REQUESTED)
    pending = PendingClustering(requested=requested, plan=plan)
    seen, folder = table.snapshot(), staging_folder(plan.staged)
    return list(whole_tasks(pending, copy, seen, 0, output, folder=folder, is_named=False)[0])
