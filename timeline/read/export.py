"""Reads a table into one Parquet file, which appears complete or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import StorageError, UsageError
from ..parquet.write import statistics_columns
from ..storage.local import sync
from ..table.table import Table
from .changes import ChangeScan, plan
from .table_read import ReadOptions, Scan
from .window import Window

ReadProgress: TypeAlias = Callable[[int, int, int], None]
"""Called with (slices read, all slices, rows so far) during a read."""

_ROW_GROUP_ROWS = 262_144
_ROW_GROUP_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written: rows, number of slices, size of the file in bytes, its columns; the window it is of, if any."""

    rows: int
    slices: int
    bytes: int
    columns: tuple[str, ...]
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


def export_parquet(
    table: Table, options: ReadOptions, output: Path, progress: ReadProgress = lambda *_: None
) -> Exported:
    """One try: reads everything into a file beside `output`, then renames it to `output`.

    MissingFileError: a file was cleaned meanwhile; no output is left, try again (`consistent`).
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
        rows=rows, slices=len(scan.slices), bytes=size, columns=tuple(scan.schema.names), window=scan.window
    )


def _write(scan: Scan | ChangeScan, temporary: Path, progress: ReadProgress, output: Path) -> int:
    rows = 0
    with _written(output):
        sink = pa.OSFile(str(temporary), "wb")
        writer = pq.ParquetWriter(sink, scan.schema, write_statistics=statistics_columns(scan.schema))
    try:
        for group in _row_groups(_batches(scan, progress)):
            rows += group.num_rows
            with _written(output):
                writer.write_table(group, row_group_size=group.num_rows)
        with _written(output):
            writer.close()
            sink.close()
            sync(str(temporary))
    finally:
        writer.is_open = False  # after a failure: prevents a second one from writing the footer of a discarded file
        with suppress(OSError):
            sink.close()
    return rows


def _batches(scan: Scan | ChangeScan, progress: ReadProgress) -> Iterator[pa.RecordBatch]:
    """`Scan.batches()`, with calls of `progress`."""
    rows = 0
    for number, part in enumerate(scan.parts()):
        for batch in part:
            rows += batch.num_rows
            progress(number, len(scan.slices), rows)
            yield batch
        progress(number + 1, len(scan.slices), rows)


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
