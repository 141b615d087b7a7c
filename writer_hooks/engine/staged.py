"""Rows that tasks of another engine staged as files on the table's storage, and the write of them in this process.

A task stages its rows in one file of a folder of its own beside the pieces of writes (`folders.ROWS`); readers do not
see it. Only the files that are named to `StagedRows` count, so a task that runs twice doubles no row. The process that
writes reads them batch by batch; the pieces of many rows are in files, too, so that it holds no more of them in memory
than its threads work on. The folders of a job are removed when it ends, those of dead jobs by later writes
(`row_blobs.remove_old`)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import IO

import pyarrow as pa

from phantombase.compactor_daemon.attempt.slice_task import Runner
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import MalformedError, PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.prefetch import at_once
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import ROWS

from .engine import LocalPieces, Pieces, Prepare, in_batches
from .row_blobs import Piece, Spool, remove_unused

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
