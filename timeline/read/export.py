"""A read of a table into one Parquet file that appears whole or not at all."""

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
from .table_read import ReadOptions, Scan, plan_read

ReadProgress: TypeAlias = Callable[[int, int, int], None]
"""Called with (slices read, slices in all, rows so far) while a read is under way."""

_ROW_GROUP_ROWS = 262_144
_ROW_GROUP_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written: rows, the slices they came from, the file's bytes, its columns."""

    rows: int
    slices: int
    bytes: int
    columns: tuple[str, ...]


def check_output(table: Table, output: Path, overwrite: bool) -> None:
    """UsageError for a place where the file cannot or must not be written."""
    place = output.resolve()
    if place.is_relative_to(table.storage.location):
        raise UsageError("the output lies inside the table", path=str(output), todo="Write it somewhere else.")
    if not place.parent.is_dir():
        raise UsageError("no such folder for the output", path=str(place.parent))
    if place.exists() and not place.is_file():
        raise UsageError("the output is there and is not a plain file", path=str(output))
    if place.exists() and not overwrite:
        raise UsageError("the output is there already", path=str(output), todo="--overwrite replaces it.")


def export_parquet(
    table: Table, options: ReadOptions, output: Path, progress: ReadProgress = lambda *_: None
) -> Exported:
    """One try: reads everything into a file beside `output`, which then takes its name.

    MissingFileError: a file was cleaned away meanwhile; nothing is left behind, try again (`consistent`).
    """
    scan = plan_read(table, options)
    temporary = output.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        rows = _write(scan, temporary, progress, output)
        with _written(output):
            size = temporary.stat().st_size
            os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(rows=rows, slices=len(scan.slices), bytes=size, columns=tuple(scan.schema.names))


def _write(scan: Scan, temporary: Path, progress: ReadProgress, output: Path) -> int:
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
        writer.is_open = False  # after a failure: no second one from writing the footer of a file thrown away
        with suppress(OSError):
            sink.close()
    return rows


def _batches(scan: Scan, progress: ReadProgress) -> Iterator[pa.RecordBatch]:
    """`Scan.batches()`, telling how far it is."""
    rows = 0
    for number, slice_ in enumerate(scan.slices):
        for batch in scan.slice_batches(slice_):
            rows += batch.num_rows
            progress(number, len(scan.slices), rows)
            yield batch
        progress(number + 1, len(scan.slices), rows)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches joined to row groups worth reading: many small slices would make many tiny ones."""
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
    """Errors of writing, told from those of reading."""
    try:
        yield
    except OSError as error:
        raise StorageError("cannot write the output", path=str(output), found=str(error)) from error
