"""Makes one clustered file: reads its inputs one after the other, stages the new base file, proves that no row differs.

Runs in a thread. The file has no final name until the clustering completes. Memory: a row group and a batch; sorted,
all rows twice; copied, see `copied`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.copied_file import CopiedFile, check_copied
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.codec.parquet_write import write_base_file
from phantombase.timeline.errors import LedgerError, UsageError
from phantombase.timeline.merge.ledger import Ledger
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.metadata_table.column_range import ColumnRange
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import join, staged_folder
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.view.view import FileSlice

from ..attempt.slice_task import read_back
from .copied import cannot_copy, why_encoded, write_copied
from .options import Copy, SortOrder
from .order import sorted_rows
from .rows_in import RowsIn


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFileSpec:
    """What all files of a clustering have in common."""

    instant: str
    rules: SliceRules
    schema_text: str
    output: OutputOptions
    measure: Measure | None
    sort_by: tuple[str, ...] = ()
    sort_order: SortOrder = SortOrder.ORDER
    copy: Copy = Copy.REENCODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A staged file. `final`: its path once the clustering completes; `size` in bytes; `ledger`: its rows, all inserted
    from `inputs`, the names of the files; `ranges`: of its columns, if the metadata table has statistics.

    `copied_row_groups`: 0 if it was encoded, or another process made it. `encoded`: why it was not copied, "" if that
    was not asked for. `repeated_keys`: see `RowsIn`.
    """

    partition: str
    file_id: str
    inputs: tuple[FileSlice, ...]
    staged: str
    final: str
    size: int
    ledger: Ledger
    ranges: tuple[ColumnRange, ...] | None
    seconds: float
    copied_row_groups: int = 0
    encoded: str = ""
    repeated_keys: int = 0


def make(storage: Storage, recipe: OutputFileSpec, file_id: str, name: str, inputs: tuple[FileSlice, ...]) -> Made:
    """Stages one file. `name`: its final name. LedgerError: rows differ; nothing is left."""
    started, partition = time.monotonic(), inputs[0].partition
    staged = f"{staged_folder(recipe.instant)}/{uuid.uuid4().hex}.parquet"
    rows_in = RowsIn(storage, recipe.rules, inputs)
    encoded, copied = _why_encoded(storage, recipe, inputs), None
    if encoded is None:
        copied = _stage_copied(storage, staged, recipe, rows_in, name)
    rows = copied.rows if copied is not None else _stage_encoded(storage, staged, recipe, rows_in, name)
    rows_read_back, hash_out, size = read_back(storage, staged, recipe.rules)
    ledger = rows_in.ledger(rows, hash_out)
    try:
        ledger.check(
            footer_rows_in=rows_in.footer_rows,
            header_entries=0,
            footer_rows_out=rows_read_back,
            where=join(partition, file_id),
        )
        if copied is not None:
            with storage.open_input(staged) as source:
                check_copied(source, staged, copied)
    except LedgerError:
        storage.delete(staged)
        raise
    return Made(
        partition=partition,
        file_id=file_id,
        inputs=inputs,
        staged=staged,
        final=join(partition, name),
        size=size,
        ledger=ledger,
        ranges=recipe.measure.file(storage, staged, name) if recipe.measure is not None else None,
        seconds=round(time.monotonic() - started, 3),
        copied_row_groups=0 if copied is None else len(copied.chunks),
        encoded=encoded or "",
        repeated_keys=rows_in.repeated_keys(),
    )


def _why_encoded(storage: Storage, recipe: OutputFileSpec, inputs: tuple[FileSlice, ...]) -> str | None:
    """Why the file is not copied, "" if that was not asked for; None: it is.

    UnsupportedError: it must be copied, and cannot be.
    """
    if recipe.copy is Copy.REENCODE or recipe.sort_by:
        return ""
    obstacle = why_encoded(storage, inputs, recipe.rules.schema, recipe.copy)
    if obstacle is not None and recipe.copy is Copy.FORCE:
        raise cannot_copy(obstacle, storage.base_path)
    return None if obstacle is None else obstacle.why


def _stage_copied(storage: Storage, staged: str, recipe: OutputFileSpec, rows_in: RowsIn, name: str) -> CopiedFile:
    with staged_output(storage, staged) as file:
        return write_copied(
            storage,
            file,
            rows_in,
            name=name,
            schema=recipe.rules.schema,
            text=recipe.schema_text,
            output=recipe.output,
        )


def _stage_encoded(storage: Storage, staged: str, recipe: OutputFileSpec, rows_in: RowsIn, name: str) -> int:
    schema = recipe.rules.schema
    with staged_output(storage, staged) as file:
        return write_base_file(
            file,
            _sorted(rows_in.batches(), recipe) if recipe.sort_by else rows_in.batches(),
            name=name,
            schema=schema,
            schema_text=recipe.schema_text,
            key_column=RECORD_KEY if RECORD_KEY in schema.names else None,
            output=recipe.output,
        )


def _sorted(batches: Iterable[pa.RecordBatch], recipe: OutputFileSpec) -> list[pa.RecordBatch]:
    """The sorted rows. UsageError: they take more than half of the memory limit; sorting takes as much again."""
    held: list[pa.RecordBatch] = []
    size, most = 0, recipe.output.memory_limit // 2
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > most:
            raise UsageError(
                "the rows of a file that is to be sorted take too much memory",
                instant=recipe.instant,
                expected=f"{most} bytes at most, half of the memory limit",
                todo="Raise --memory-limit, or lower --target-size.",
            )
    rows = pa.Table.from_batches(held, recipe.rules.schema)
    rows = sorted_rows(rows, recipe.sort_by, recipe.sort_order)
    return list(rows.to_batches(max_chunksize=recipe.rules.batch_rows))
