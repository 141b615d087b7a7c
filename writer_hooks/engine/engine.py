"""Where the steps of a write run: in this process on Arrow tables, or in Spark tasks on a DataFrame.

A write is `prepare_step` (rows to pieces), then steps that each take the sorted pieces of some targets. Only the result
of `collect` is sent to the driver: statistics.

Tasks of another engine stage rows as files on the table's storage, which are then written in this process. A task
stages its rows in one file of a folder of its own beside the pieces of writes (`folders.ROWS`); readers do not see it.
Only the files that are named to `StagedRows` count, so a task that runs twice doubles no row. The process that writes
reads them batch by batch; the pieces of many rows are in files, too, so that it holds no more of them in memory than
its threads work on. The folders of a job are removed when it ends, those of dead jobs by later writes
(`row_blobs.remove_old`)."""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import IO, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from phantombase.compactor_daemon.attempt.slice_task import Runner
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.columns import MANY_BYTES, rows_at
from phantombase.timeline.errors import MalformedError, PhantombaseError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.prefetch import at_once
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import ROWS

from .row_blobs import Piece, Spool, remove_unused

Prepare: TypeAlias = Callable[[int, Iterator[pa.RecordBatch]], Iterator[Piece]]
"""Makes pieces of the rows of one part of the input, by its number."""
Step: TypeAlias = Callable[[int, Iterator[Piece]], Iterator[Piece]]
"""Makes pieces of the sorted pieces of one task, by its number."""
RowCounts: TypeAlias = dict[tuple[str, str], int]
"""Rows by (partition, target)."""


class Pieces(Protocol):
    def map(self, step: Step) -> Pieces:
        """Applies a step to all pieces, in their tasks and in their order."""

    def regroup(self, step: Step) -> Pieces:
        """Brings all pieces of a target into one task, sorted, and applies a step."""

    def union(self, other: Pieces) -> Pieces:
        """The pieces of both."""

    def kept(self) -> AbstractContextManager[Pieces]:
        """The same pieces, computed once, for several uses."""

    def row_counts(self) -> RowCounts:
        """The number of rows by partition and target."""

    def collect(self) -> list[bytes]:
        """The payloads, in no particular order: for statistics."""


class Engine(Protocol):
    """Runs the steps of a write over one input."""

    @property
    def slots(self) -> int:
        """The number of tasks of a shuffle."""

    @property
    def schema(self) -> pa.Schema:
        """The input's columns."""

    def prepare(self, prepare: Prepare, storage: Storage, *, here: bool = False) -> Pieces:
        """The input as pieces. They may be kept in files on the table's storage, until `kept` exits. `here`: no step
        needs more than the pieces themselves, so if they are small all of them run in this process."""

    def runner(self) -> Runner:
        """The runner for inline compaction of this input's table."""

    def described(self, text: str) -> AbstractContextManager[None]:
        """Jobs of this thread are shown under this text in the UI of the input's Spark."""

    def hadoop_conf(self, path: str) -> dict[str, str]:
        """The Hadoop options of the input's Spark for the object store of a URL; empty without Spark."""


class LocalEngine:
    """Runs in this process: for tests, tiny writes and machines without Java. The rows are in memory."""

    def __init__(self, rows: pa.Table, *, slots: int = 2) -> None:
        self._rows = rows
        self.slots = slots

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def prepare(self, prepare: Prepare, storage: Storage, *, here: bool = False) -> Pieces:
        return LocalPieces(list(prepare(0, in_batches(self._rows.to_batches()))), self.slots)

    def runner(self) -> Runner:
        return LocalRunner(self.slots)

    def described(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()

    def hadoop_conf(self, path: str) -> dict[str, str]:
        return {}


def in_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches. One whose text may exceed Arrow's offsets of 32 bits is split. UsageError: text that is no UTF-8, or
    other values that no library may give."""
    for batch in batches:
        _check_values(batch)
        if batch.nbytes < MANY_BYTES:
            yield batch
        else:
            yield from rows_at(pa.Table.from_batches([batch]), np.arange(batch.num_rows)).to_batches()


def _check_values(batch: pa.RecordBatch) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise UsageError(
                "rows with values that are none of their type",
                expected=f"{name}: {column.type}",
                found=str(error).partition("\n")[0],
                todo="Correct the column where it is made, for instance decode its text again.",
            ) from error


class LocalPieces:
    """Pieces in this process. `spool`: large ones are in its files, which the `first` remove. `threads`: of a regroup,
    whose tasks are `slots`; None: as many as tasks."""

    def __init__(
        self,
        pieces: list[Piece],
        slots: int,
        spool: Spool | None = None,
        *,
        threads: int | None = None,
        first: bool = False,
    ) -> None:
        self._pieces = pieces
        self._slots = slots
        self._spool = spool
        self._threads = threads or slots
        self._first = first

    def _of(self, pieces: list[Piece]) -> LocalPieces:
        return LocalPieces(pieces, self._slots, self._spool, threads=self._threads)

    def _stepped(self, step: Step, slot: int, pieces: list[Piece]) -> list[Piece]:
        if self._spool is None:
            return list(step(slot, iter(pieces)))
        return list(self._spool.put(step(slot, self._spool.get(iter(pieces)))))

    def map(self, step: Step) -> Pieces:
        return self._of(self._stepped(step, 0, self._pieces))

    def regroup(self, step: Step) -> Pieces:
        tasks: list[list[Piece]] = [[] for _ in range(self._slots)]
        for piece in sorted(self._pieces, key=lambda p: p.order):
            tasks[_hash(piece) % self._slots].append(piece)
        return self._of([piece for part in self._done(step, tasks) for piece in part])

    def _done(self, step: Step, tasks: list[list[Piece]]) -> list[list[Piece]]:
        """What a step makes of the pieces of each task."""
        return at_once(range(len(tasks)), lambda slot: self._stepped(step, slot, tasks[slot]), self._threads)

    def union(self, other: Pieces) -> Pieces:
        assert isinstance(other, LocalPieces)
        return self._of(self._pieces + other._pieces)

    @contextmanager
    def kept(self) -> Iterator[Pieces]:
        try:
            yield self
        finally:
            if self._first and self._spool is not None:
                self._spool.remove()

    def row_counts(self) -> RowCounts:
        pieces = self._pieces
        return summed((p.partition for p in pieces), (p.target for p in pieces), (p.rows for p in pieces))

    def collect(self) -> list[bytes]:
        pieces = self._pieces if self._spool is None else self._spool.get(iter(self._pieces))
        return [bytes(piece.payload) for piece in pieces]


def _hash(piece: Piece) -> int:
    return zlib.crc32(f"{piece.partition}\0{piece.target}".encode())


def summed(partitions: Iterable[str], targets: Iterable[str], rows: Iterable[int]) -> RowCounts:
    """Rows by (partition, target), from one value of each per piece."""
    total: RowCounts = {}
    for partition, target, count in zip(partitions, targets, rows, strict=True):
        total[partition, target] = total.get((partition, target), 0) + count
    return total


_log = get_logger()
_SLOT_BYTES = 16 << 20
"""Rows of one task of a shuffle; its rows are held in memory."""
_SLOTS_MAX = 2000
_MEMORY_BYTES = 64 << 20
"""Rows of more bytes than that are not held in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """The file of one task, relative to the table base, its rows, and their size in Arrow's form."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """The rows of all tasks, in their order. `query`, `run`: Spark's ids of a streaming query and of its run."""

    storage: Storage
    schema: pa.Schema
    parts: tuple[StagedPart, ...] = ()
    query: str = ""
    run: str = ""

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of one part. MalformedError: they are not those that the task staged."""
        part, rows = self.parts[number], 0
        try:
            with self.storage.open_input(part.path) as source, pa.ipc.open_file(source) as file:
                for at in range(file.num_record_batches):
                    batch = file.get_batch(at)
                    rows += batch.num_rows
                    yield batch
        except pa.ArrowInvalid as error:
            raise _damaged(part, str(error)) from error
        if rows != part.rows:
            raise _damaged(part, f"{rows} rows")


def _damaged(part: StagedPart, found: str) -> MalformedError:
    todo = "Nothing was written. Write again."
    return MalformedError(
        "damaged rows of a task", path=part.path, expected=f"{part.rows} rows", found=found, todo=todo
    )


def stage(storage: Storage, batches: Iterable[pa.RecordBatch], job: str) -> StagedPart | None:
    """Stages the rows of one run of a task; None: it has none. StorageError: they cannot be stored."""
    path, rows, size = f"{ROWS}/{clock_ms()}-{job}-{uuid.uuid4().hex}/rows.arrow", 0, 0
    output: IO[bytes] | None = None
    file: pa.RecordBatchFileWriter | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if file is None:
                output = storage.open_output(path)
                file = pa.ipc.new_file(output, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
            file.write_batch(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if file is None or output is None:
            return None
        file.close()
        storage.close_output(output)
    except BaseException:
        if output is not None:
            storage.abort_output(output)
            storage.delete_folder(path.rpartition("/")[0])
        raise
    return StagedPart(path=path, rows=rows, bytes=size)


def remove_job(storage: Storage, job: str) -> None:
    """Removes what tasks of a job have staged. An error is logged: `row_blobs.remove_old` removes the rest later."""
    try:
        if storage.find(ROWS) is None:
            return
        for entry in storage.list(ROWS):
            if f"-{job}-" in entry.name:
                storage.delete_folder(f"{ROWS}/{entry.name}")
        remove_unused(storage)
    except PhantombaseError as error:
        _log.warning("clean_up_failed", table=storage.base_path, error=str(error))


class StagedEngine:
    """Runs the steps of a write over staged rows, in threads of this process. `slots`: tasks of a shuffle; None: by the
    size of the rows."""

    def __init__(self, rows: StagedRows, *, slots: int | None) -> None:
        self._rows = rows
        self._threads = max(2, os.cpu_count() or 1)
        self._bytes = sum(part.bytes for part in rows.parts)
        self.slots = slots or max(self._threads, min(self._bytes // _SLOT_BYTES, _SLOTS_MAX))

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def prepare(self, prepare: Prepare, storage: Storage, *, here: bool = False) -> Pieces:
        # All pieces go to files, small ones too: of rows of many partitions all are small.
        spool = replace(Spool.new(storage), small_bytes=0) if self._bytes > _MEMORY_BYTES else None

        def pieces_of(number: int) -> list[Piece]:
            pieces = prepare(number, in_batches(self._rows.batches(number)))
            return list(pieces if spool is None else spool.put(pieces))

        try:
            parts = at_once(range(len(self._rows.parts)), pieces_of, self._threads)
        except BaseException:
            if spool is not None:
                spool.remove()
            raise
        pieces = [piece for part in parts for piece in part]
        return LocalPieces(pieces, self.slots, spool, threads=self._threads, first=True)

    def runner(self) -> Runner:
        return LocalRunner(self._threads)

    def described(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()

    def hadoop_conf(self, path: str) -> dict[str, str]:
        return {}
