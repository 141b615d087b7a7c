"""Reads a table into one file, which appears complete or not at all, or into a stream, which shows where it broke off.

F.arrow, F.feather, F.ipc     Arrow IPC file
any other name                Parquet
a stream                      Arrow IPC stream
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ..codec.parquet_write import statistics_columns
from ..errors import StorageError, UsageError
from ..storage.local import sync
from ..table.table import Table
from ..windows.window import Window
from .changes import ChangeScan, plan
from .table_read import ReadOptions, Scan, limited

ReadProgress: TypeAlias = Callable[[int, int, int], None]
"""Called with (slices read, all slices, rows so far) during a read."""

_ARROW_SUFFIXES = frozenset({".arrow", ".feather", ".ipc"})
_ROW_GROUP_ROWS = 262_144
_ROW_GROUP_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written: rows, number of slices, size of the file in bytes, its columns; the window it is of, if any."""

    rows: int
    slices: int
    bytes: int
    columns: tuple[str, ...]
    as_of: str | None = None
    window: Window | None = None


def check_output(table: Table, output: Path, overwrite: bool) -> None:
    """UsageError if the file cannot or must not be written at this path."""
    place = output.resolve()
    if place.is_relative_to(table.storage.location):
        raise UsageError("the output is inside the table", path=str(output), todo="Write it to another folder.")
    if not place.parent.is_dir():
        raise UsageError("no such folder for the output", path=str(place.parent))
    if place.exists() and not place.is_file():
        raise UsageError("the output exists and is not a plain file", path=str(output))
    if place.exists() and not overwrite:
        raise UsageError("the output exists already", path=str(output), todo="--overwrite replaces it.")


def export_file(table: Table, options: ReadOptions, output: Path, progress: ReadProgress = lambda *_: None) -> Exported:
    """One try: reads everything into a file beside `output`, then renames it to `output`.

    MissingFileError: a file was cleaned meanwhile; no output is left, try again (`from_one_snapshot`).
    """
    scan = plan(table, options)
    temporary = output.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        rows = _write(scan, temporary, progress, output)
        with _written(output):
            size = temporary.stat().st_size
            os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(
        rows=rows,
        slices=len(scan.slices),
        bytes=size,
        columns=tuple(scan.schema.names),
        as_of=scan.options.as_of,
        window=scan.window,
    )


def export_stream(scan: Scan | ChangeScan, out: BinaryIO) -> int:
    """Writes an Arrow IPC stream and returns the number of rows.

    If the read fails, the stream ends inside a message, so that its reader fails too: a stream that merely stops would
    look complete. StorageError: the other end was closed.
    """
    rows = 0
    output = Path("-")
    with _written(output):
        writer = pa.ipc.new_stream(out, scan.schema)
    try:
        for group in _row_groups(scan.batches()):
            rows += group.num_rows
            with _written(output):
                writer.write_table(group)
    except BaseException:
        with suppress(OSError):
            out.write(_BROKEN_MESSAGE)
            out.flush()
        raise
    with _written(output):
        writer.close()
        out.flush()
    return rows


_BROKEN_MESSAGE = b"\xff\xff\xff\xff\x00\x01\x00\x00"
"""The head of a message of 256 bytes that do not follow."""


def _write(scan: Scan | ChangeScan, temporary: Path, progress: ReadProgress, output: Path) -> int:
    rows = 0
    with _written(output):
        sink = pa.OSFile(str(temporary), "wb")
        arrow = output.suffix in _ARROW_SUFFIXES
        writer = pa.ipc.new_file(sink, scan.schema) if arrow else _parquet_writer(sink, scan.schema)
    try:
        for group in _row_groups(_batches(scan, progress)):
            rows += group.num_rows
            with _written(output):
                writer.write_table(group, group.num_rows)
        with _written(output):
            writer.close()
            sink.close()
            sync(str(temporary))
    finally:
        if not arrow:
            writer.is_open = False  # after a failure: prevents a second one from writing the footer of a discarded file
        with suppress(OSError):
            sink.close()
    return rows


def _parquet_writer(sink: pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(sink, schema, write_statistics=statistics_columns(schema))


def _batches(scan: Scan | ChangeScan, progress: ReadProgress) -> Iterator[pa.RecordBatch]:
    """`Scan.batches()`, with calls of `progress`."""
    slices = len(scan.slices)

    def all_batches() -> Iterator[pa.RecordBatch]:
        rows = 0
        for number, part in enumerate(scan.parts()):
            for batch in part:
                rows += batch.num_rows
                progress(number, slices, rows)
                yield batch
            progress(number + 1, slices, rows)

    return limited(all_batches(), scan.options.limit)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches joined to row groups of useful size: many small slices would give many tiny row groups."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        enough_rows = sum(b.num_rows for b in held) >= _ROW_GROUP_ROWS
        if enough_rows or sum(b.nbytes for b in held) >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


@contextmanager
def _written(output: Path) -> Iterator[None]:
    """Separates errors of writing from errors of reading."""
    try:
        yield
    except OSError as error:
        raise StorageError("cannot write the output", path=str(output), found=str(error)) from error
