"""Compacts one file slice: read, merge, stage the base file, check the ledger, leave the record of the result.

The record `.ok` serves the decision, and later attempts, which adopt it. A task runs on Spark or in this process. It
gives no file a final name, and returns only counts."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from phantombase.timeline.codec.arrow_schema import project
from phantombase.timeline.codec.avro_schema import FILE_NAME, RECORD_KEY
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.codec.parquet_write import write_base_file
from phantombase.timeline.errors import AttemptDeadError
from phantombase.timeline.event_log import bound, get_logger
from phantombase.timeline.format.file_name import COMPACTOR, BaseFileName, LogFileName
from phantombase.timeline.format.ledger import Ledger
from phantombase.timeline.format.log_block import Skipped
from phantombase.timeline.instants.reserved_times import attempt_folder
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.slice_log import LogCounts
from phantombase.timeline.merge.slice_merge import identity_columns, identity_sum
from phantombase.timeline.merge.slice_stream import SliceStream, base_tables
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.view.view import FileSlice, input_names

from .log_task import LogOutput, stage_log
from .outcome import OK
from .slice_record import SliceDone, leave_record

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """What all tasks of a round have in common, picklable. It grows with the timeline, so it is sent once per round.
    `schema_text`: Avro schema of the files written. `measure`: which column ranges the metadata table needs, None if it
    has no statistics."""

    instant: str
    attempt: int
    rules: SliceRules
    schema_text: str
    output: OutputOptions
    measure: Measure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceChunk:
    """The part of one task, picklable: its position in the plan, and its file slice. `log`: make a log file from the
    slice's logs, not a base file from the slice."""

    position: int
    slice: FileSlice
    log: LogOutput | None = None


@dataclass(frozen=True, slots=True)
class SliceTask:
    """Everything needed to compact one slice."""

    round: StageSpec
    part: SliceChunk

    job = "compaction"

    @property
    def instant(self) -> str:
        return self.round.instant

    @property
    def attempt(self) -> int:
        return self.round.attempt

    @property
    def rules(self) -> SliceRules:
        """How slices are merged."""
        return self.round.rules

    @property
    def position(self) -> int:
        """The position of the file slice in the plan."""
        return self.part.position

    @property
    def slice(self) -> FileSlice:
        return self.part.slice

    @property
    def log(self) -> LogOutput | None:
        """See `SliceChunk`."""
        return self.part.log

    @property
    def read_bytes(self) -> int:
        """The size of its files."""
        return self.slice.base_bytes + self.slice.log_bytes

    def run(self, storage: Storage) -> SliceDone:
        """See `compact_slice`."""
        return compact_slice(storage, self)

    @property
    def record_path(self) -> str:
        """Where the task leaves its result."""
        return f"{attempt_folder(self.instant, self.attempt)}/{self.position}{OK}"

    @property
    def final_name(self) -> BaseFileName | LogFileName:
        """The file's name once published; unique to the attempt."""
        token = f"{self.position}-{self.attempt}-{COMPACTOR}"
        if self.log is not None:
            return self.log.name(self.slice.file_id, token)
        return BaseFileName(file_id=self.slice.file_id, token=token, instant=self.instant)

    @property
    def fingerprint(self) -> str:
        """Digest of everything that the result depends on: inputs with sizes, schema, merge rules."""
        slice_, rules = self.slice, self.rules
        sizes = [(f.path, f.size) for f in slice_.files]
        parts: dict[str, object] = {
            "inputs": sizes,
            "schema": self.round.schema_text,
            "merge": repr(rules.merge),
            "keys": [*rules.keys.fields, *rules.ordering_fields],
        }
        if self.log is not None:
            parts["fold"] = self.log.fold
        if rules.expiry is not None:
            parts["expiry"] = asdict(rules.expiry)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class StageTask(Protocol):
    """Makes files of one position of a plan, and leaves its record; picklable, also in two parts."""

    def __init__(self, round: Any, part: Any) -> None: ...

    @property
    def job(self) -> str:
        """What it is a part of, for messages."""

    @property
    def round(self) -> Any:
        """What all tasks of a round have in common. It grows with the timeline, so it is sent once per round."""

    @property
    def part(self) -> Any:
        """What is this task's own."""

    @property
    def instant(self) -> str:
        """Of the plan."""

    @property
    def attempt(self) -> int:
        """The number of the attempt."""

    @property
    def position(self) -> int:
        """Its position in the plan."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that the result depends on."""

    @property
    def record_path(self) -> str:
        """Where the task leaves its result."""

    @property
    def rules(self) -> SliceRules:
        """How its inputs are read."""

    @property
    def read_bytes(self) -> int:
        """The size of its inputs."""

    def run(self, storage: Storage) -> SliceDone:
        """Stages the file; safe to run twice (retries, speculation)."""


Tasks: TypeAlias = list[Any]
"""`StageTask`s of one kind."""

SliceProgress = Callable[[int, int], None]
"""Called with (slices done, slices in all) while tasks run; an error that it raises ends them."""


class Runner(Protocol):
    """Runs tasks and returns their records in task order; raises the first error of the tree. `progress` is called
    several times a second. If it raises, tasks that have not started are cancelled, and its error is raised."""

    def __call__(self, storage: Storage, tasks: Tasks, progress: SliceProgress) -> list[SliceDone]: ...


def compact_slice(storage: Storage, task: SliceTask) -> SliceDone:
    """Stages the slice's new base file and records it; safe to run twice (retries, speculation). LedgerError: the
    ledger does not balance; no `.ok` is written. Other errors of the tree: unreadable inputs."""
    with bound(instant=task.instant, attempt=task.attempt, file_group=task.slice.file_id):
        done = _compacted(storage, task)
        _log.debug("slice_compacted", rows=done.ledger.rows_out, bytes=done.size, seconds=done.seconds)
        return done


def _compacted(storage: Storage, task: SliceTask) -> SliceDone:
    started = time.monotonic()
    inputs, folder, measure = task.slice, attempt_folder(task.instant, task.attempt), task.round.measure
    staged = f"{folder}/{task.position}-{uuid.uuid4().hex}{'.parquet' if task.log is None else '.log'}"
    stage = _stage_base if task.log is None else partial(_stage_log, log=task.log)
    ledger, counts, size = stage(storage, staged, task)
    if inputs.base is None and not counts.entries:
        storage.delete(staged)  # no base and no log entry: Hudi writes nothing either
        staged_path, final, size, ranges = None, None, 0, None
    else:
        staged_path = staged
        final = join(inputs.partition, str(task.final_name))
        ranges = measure.file(storage, staged, str(task.final_name)) if measure is not None else None
    done = SliceDone(
        position=task.position,
        partition=inputs.partition,
        file_id=inputs.file_id,
        base_instant=_base_instant(task),
        base_file=str(inputs.base.name) if inputs.base else None,
        inputs=input_names(inputs),
        fingerprint=task.fingerprint,
        staged=staged_path,
        final=final,
        size=size,
        ledger=ledger,
        log_bytes=inputs.log_bytes,
        log_files=len(inputs.logs),
        log_blocks=counts.blocks,
        corrupt_blocks=counts.skipped_blocks(Skipped.CORRUPT),
        rolled_back_blocks=counts.skipped_blocks(Skipped.ROLLED_BACK),
        skipped={cause.value: number for cause, number in counts.skipped},
        merged=_merged(inputs, counts),
        uncommitted=counts.uncommitted,
        seconds=round(time.monotonic() - started, 3),
        ranges=ranges,
        output=task.round.output,
    )
    return leave_record(storage, task.record_path, done)


def _merged(inputs: FileSlice, counts: LogCounts) -> tuple[str, ...]:
    base = {inputs.base.name.instant} if inputs.base else set()
    return tuple(sorted({*counts.merged, *base}))


def _base_instant(task: SliceTask) -> str | None:
    """The instant of the merged base file; for a log compaction, the base instant of its slice."""
    if task.log is not None:
        return task.slice.base_instant
    return task.slice.base.name.instant if task.slice.base else None


def _stage_base(storage: Storage, path: str, task: SliceTask) -> tuple[Ledger, LogCounts, int]:
    """Stages the base file; returns its ledger, checked against the file read back, and the size of that file."""
    stream = SliceStream(storage, task.slice, task.rules, merged_columns(task.rules))
    rows = _write(storage, path, stream, task)
    rows_read_back, hash_out, size = read_back(storage, path, task.rules)
    ledger = stream.ledger(rows, hash_out)
    ledger.check(
        footer_rows_in=stream.base_rows,
        header_entries=stream.log_counts.entries,
        footer_rows_out=rows_read_back,
        where=f"{task.slice.partition}/{task.slice.file_id}",
    )
    return ledger, stream.log_counts, size


def merged_columns(rules: SliceRules) -> list[str]:
    """The columns to read and merge: all but the file name of a row, which is written again. The file name is a quarter
    of the text of a table with short rows. Where null means "not given", a merge reads all columns."""
    names = list(rules.schema.names)
    return names if rules.merge.unset is not None else [name for name in names if name != FILE_NAME]


def _stage_log(storage: Storage, path: str, task: SliceTask, *, log: LogOutput) -> tuple[Ledger, LogCounts, int]:
    """Stages the log file; returns its ledger, checked against the file read back, and the file's size."""
    text, codec, rules = task.round.schema_text, task.round.output.codec.value, task.rules
    made = stage_log(storage, path, task.slice, rules, log, instant=task.instant, schema_text=text, codec=codec)
    entry = storage.find(path)
    if entry is None:
        raise AttemptDeadError("a staged file was removed: another process retired the attempt", path=path)
    return *made, entry.size


def read_back(storage: Storage, path: str, rules: SliceRules) -> tuple[int, int, int]:
    """The number of rows of a written file by its footer, the identity sum of the rows in it, and its size."""
    schema = project(rules.schema, identity_columns(rules.schema))
    footer_rows = 0
    with storage.open_input(path) as source:
        size = source.size()

        def tables() -> Iterator[pa.Table]:
            nonlocal footer_rows
            read = base_tables(storage, path, schema, rules.batch_rows, open_source=lambda: source)
            for table, footer_rows in read:  # noqa: B007, the last one counts
                yield table

        hash_out = identity_sum(tables())
    return footer_rows, hash_out, size


def _write(storage: Storage, path: str, stream: SliceStream, task: SliceTask) -> int:
    """Stages the base file durably; a partly written one is removed. Returns the number of rows."""
    schema = task.rules.schema
    with staged_output(storage, path) as file:
        return write_base_file(
            file,
            stream.batches(),
            name=str(task.final_name),
            schema=schema,
            schema_text=task.round.schema_text,
            key_column=RECORD_KEY if RECORD_KEY in schema.names else None,
            output=task.round.output,
        )
