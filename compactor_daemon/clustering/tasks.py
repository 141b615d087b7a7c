"""The tasks of an attempt at a clustering: each makes the files of one group of the plan, and leaves its record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import StalePlanError
from phantombase.timeline.format.replace_request import ClusterGroup
from phantombase.timeline.instants.reserved_times import attempt_folder
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.metadata_table.record_index import has_one_record_index
from phantombase.timeline.planning.schedule import busy_file_groups
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Snapshot, Table, TableSchema, from_one_snapshot
from phantombase.timeline.view.view import FileSlice, TableView, input_names

from ..attempt.compaction import merge_rules
from ..attempt.outcome import OK, ReplacedGroup
from ..attempt.pending_clusterings import PendingClustering
from ..attempt.slice_record import OutputFile, SliceDone, leave_record
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
            "merge": [
                rules.merge.mode.value,
                [str(t) for t in rules.merge.ordering_types],
                rules.merge.every_duplicate,
            ],
            "keys": [*rules.keys.fields, *rules.ordering_fields],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def run(self, storage: Storage) -> SliceDone:
        """Stages the files; safe to run twice. LedgerError: rows differ; no record is left."""
        names = output_names(self.position, self.part.group, self.instant, self.attempt)
        made = make(storage, self.round, names, self.part.inputs)
        return leave_record(storage, self.record_path, self._done(made))

    def _done(self, made: Made) -> SliceDone:
        files = [
            OutputFile(
                file_id=one.file_id,
                staged=one.staged,
                final=one.final,
                size=one.size,
                rows=one.rows,
                ranges=one.ranges,
                hash=f"{one.hash:016x}",
            )
            for one in made.files
        ]
        first = files[0] if files else None
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
            more=tuple(files[1:]),
            copied_row_groups=sum(one.copied_row_groups for one in made.files),
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
