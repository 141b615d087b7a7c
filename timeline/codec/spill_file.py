"""Arrow tables on local disk, for data that does not fit in memory: appended, then read once from front to back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import StorageError

POSITION = "position of the row"
"""The column by which a sorted spill file is ordered: ascending int64. No column of a table: a name in Avro has no
spaces."""


@contextmanager
def spill_folder(parent: str | None) -> Iterator[str]:
    """A folder for spill files, removed at the end. `parent` None: the system's folder for temporary files."""
    with spilling(parent or tempfile.gettempdir()):
        folder = tempfile.TemporaryDirectory(prefix="phantombase-", dir=parent)
    with folder as path:
        yield path


class SpillFile:
    """One file of record batches under one schema. StorageError: the disk is full, or the file is unreadable."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path = path
        # A null represents a missing row, also in required columns of the table.
        self._schema = pa.schema([f.with_nullable(True) for f in schema])
        self._rows = 0
        with spilling(self._path):
            self._sink = pa.OSFile(path, "wb")
            self._writer: pa.ipc.RecordBatchStreamWriter | None = pa.ipc.new_stream(
                self._sink, self._schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
            )

    def append(self, table: pa.Table) -> None:
        if table.num_rows and self._writer is not None:
            self._rows += table.num_rows
            with spilling(self._path):
                self._writer.write_table(table.cast(self._schema))

    def end(self) -> None:
        """No more rows are appended: the writer, which holds buffers, is gone."""
        if self._writer is not None:
            with spilling(self._path):
                self._writer.close()
                self._sink.close()
            self._writer = None

    def read(self) -> Iterator[pa.Table]:
        """Every appended table, in order, in batches as written. No more rows can be appended afterwards."""
        self.end()
        if not self._rows:
            return
        with spilling(self._path), pa.memory_map(self._path) as source:
            yield from self._tables(source)

    def read_once(self) -> Iterator[pa.Table]:
        """As `read`, for many files at a time: their pages do not stay in memory. The file is removed at the end."""
        self.end()
        if not self._rows:
            return
        with spilling(self._path):
            with pa.OSFile(self._path, "rb") as source:
                yield from self._tables(source)
            os.remove(self._path)

    def _tables(self, source: pa.NativeFile) -> Iterator[pa.Table]:
        """A stream that breaks off between two batches reads like one that ends there."""
        rows = 0
        for batch in pa.ipc.open_stream(source):
            rows += batch.num_rows
            yield pa.Table.from_batches([batch])
        if rows != self._rows:
            raise OSError(f"{rows} of {self._rows} rows")

    def read_all(self) -> pa.Table:
        return pa.concat_tables([self._schema.empty_table(), *self.read()])


@contextmanager
def spilling(path: str) -> Iterator[None]:
    """StorageError: the disk is full, or a file on it cannot be read."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        todo = "Give --spill-dir a directory on a disk with free space, or raise --memory-limit."
        raise StorageError("cannot spill data to disk", path=path, found=str(error), todo=todo) from error


class SortedRun:
    """A spill file whose column POSITION ascends, read window by window; holds one batch in memory."""

    def __init__(self, file: SpillFile) -> None:
        self._tables = file.read()
        self._held: pa.Table | None = None

    def upto(self, bound: int) -> list[pa.Table]:
        """The rows with a position below `bound` that were not returned before."""
        found: list[pa.Table] = []
        while (table := self._next()) is not None:
            cut = int(np.searchsorted(np.asarray(table.column(POSITION)), bound))
            found.append(table.slice(0, cut))
            if cut < table.num_rows:
                self._held = table.slice(cut)
                break
        return [t for t in found if t.num_rows]

    def _next(self) -> pa.Table | None:
        held, self._held = self._held, None
        return held if held is not None else next(self._tables, None)


def by_position(tables: list[pa.Table]) -> pa.Table:
    """Rows of several runs in the order of their positions."""
    table = pa.concat_tables(tables).combine_chunks()
    return table.take(pc.sort_indices(table.column(POSITION)))
