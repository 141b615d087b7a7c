"""Where the steps of a write run: in this process on Arrow tables, or in Spark tasks on a DataFrame.

A write is `prepare_step` (rows to pieces), then steps that each take the sorted pieces of some targets. Only the result
of `collect` is sent to the driver: statistics."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from phantombase.compactor_daemon.attempt.slice_task import Runner
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.timeline.codec.columns import MANY_BYTES, rows_at
from phantombase.timeline.errors import UsageError
from phantombase.timeline.prefetch import at_once
from phantombase.timeline.storage.contract import Storage

from .row_blobs import Piece, Spool

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
        done = at_once(range(self._slots), lambda slot: self._stepped(step, slot, tasks[slot]), self._threads)
        return self._of([piece for part in done for piece in part])

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
