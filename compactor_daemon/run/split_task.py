"""One task of a compaction that runs in several places, see `split`: plain data, from and to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from phantombase.timeline.errors import ConflictError, MissingFileError
from phantombase.timeline.format.compaction_plan import CompactionPlan
from phantombase.timeline.instants.attempt_names import attempts
from phantombase.timeline.metadata_table.column_stats.measure import Measure
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.record_fields import Fields
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.storage_options import Given
from phantombase.timeline.table.table import Table, consistent

from ..attempt.attempt import single_task
from ..execution.slice_task import SliceTask, compact_slice
from ..options import output_from_json, output_to_json
from ..records.outcome import attempt_dead, read_outcome
from ..records.slice_done import SliceDone, done_slices


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceResult:
    """What one task made: a base file of `rows` rows and `bytes_written` bytes; 0 and 0 if there was nothing to do."""

    position: int
    partition: str
    file_id: str
    rows: int
    bytes_written: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTask:
    """One file slice of a planned compaction, plain data: `bytes` is the size of its files.

    `storage_options` has no secrets: each process finds those in its environment.
    """

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
        ledger does not balance, nothing is left. Other errors of the tree: unreadable inputs.
        """
        table = Table.open(self.table, storage_options or dict(self.storage_options))
        return consistent(lambda: self._execute(table.reload()))

    def _execute(self, table: Table) -> SliceResult:
        seen = table.still()
        plan = self._plan(seen)
        if (outcome := read_outcome(seen.storage, self.instant, self.attempt)) is not None:
            raise attempt_dead(self.instant, self.attempt, outcome)
        self._check(seen, plan)
        task = self._slice_task(seen, plan)
        done = done_slices(seen.storage, self.instant, self.attempt).get(self.position)
        if done is not None and done.fingerprint != task.fingerprint:
            table.storage.delete(task.record_path)  # it would block the record of the inputs as they are now
            done = None
        return _result(done or compact_slice(table.storage, task))

    def _plan(self, seen: Table) -> CompactionPlan:
        """ConflictError: it is gone."""
        try:
            return seen.compaction_plan(self.instant)
        except MissingFileError as error:
            raise ConflictError(
                "the plan of this task is gone",
                path=error.path,
                instant=self.instant,
                found="it was taken back, or undone by a restore",
                todo="Nothing was done. Plan the compaction anew: plan_compaction.",
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
                todo="Nothing was done. Plan the compaction anew: plan_compaction.",
            )
        if self.attempt not in attempts(seen.storage, self.instant):
            raise ConflictError(
                "no such attempt is open at this compaction",
                path=self.table,
                instant=self.instant,
                found=f"attempt {self.attempt}",
                todo="Nothing was done. Plan the compaction anew: plan_compaction.",
            )

    def _slice_task(self, seen: Table, plan: CompactionPlan) -> SliceTask:
        """By the view of now: a write that began before the compaction may have completed since it was planned."""
        view = seen.load_plan_view([plan.only(self.position)])
        schema = seen.newest_schema(view.timeline, before=self.instant)
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
        """Inverse of `to_json`; MalformedError: it is no task, or has a value that no task has."""
        fields = Fields(values={}, where="its JSON", what="not a task of a planned compaction").inner(values)
        output, given = output_from_json(values.get("output")), values.get("storage_options", [])
        if output is None:
            raise fields.malformed("output: options of base files that this release knows", repr(values.get("output")))
        if not isinstance(given, list | tuple) or not all(map(_is_pair, given)):
            raise fields.malformed("storage_options: a list of names and values", repr(given))
        task = CompactionTask(
            table=fields.text("table"),
            instant=fields.text("instant"),
            attempt=fields.whole("attempt"),
            position=fields.whole("position"),
            partition=fields.text("partition"),
            file_id=fields.text("file_id"),
            bytes=fields.whole("bytes"),
            output=output,
            storage_options=tuple((name, value) for name, value in given),
        )
        check_instant(fields)
        for name, least in (("attempt", 1), ("position", 0), ("bytes", 0)):
            if fields.whole(name) < least:
                raise fields.malformed(f"{name}: at least {least}", str(fields.whole(name)))
        return task


def check_instant(fields: Fields) -> None:
    """MalformedError: the name may lead out of the folder of an instant's records."""
    text = fields.text("instant")
    if not (text.isascii() and text.isdigit()):
        raise fields.malformed("instant: digits", repr(text))


def _is_pair(one: object) -> bool:
    return isinstance(one, list | tuple) and len(one) == 2 and all(isinstance(text, str) for text in one)


def _result(done: SliceDone) -> SliceResult:
    return SliceResult(
        position=done.position,
        partition=done.partition,
        file_id=done.file_id,
        rows=done.ledger.rows_out,
        bytes_written=done.size,
        seconds=done.seconds,
    )
