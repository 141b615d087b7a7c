"""Makes one stitched file: reads its inputs one after the other, stages the new base file, proves that no row differs.

Runs in a thread. The file has no final name until the stitching completes. Memory: a row group and a batch; sorted, all
rows twice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from phantombase.timeline.avro.schema import RECORD_KEY
from phantombase.timeline.errors import LedgerError, UsageError
from phantombase.timeline.merge.ledger import Ledger, total
from phantombase.timeline.merge.slice_rules import SliceRules
from phantombase.timeline.metadata_table.column_stats.column_range import ColumnRange
from phantombase.timeline.metadata_table.column_stats.measure import Measure
from phantombase.timeline.parquet.base_file import write_base_file
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.read.slice_stream import SliceStream
from phantombase.timeline.stitching.order import SortOrder, sorted_rows
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import join, staged_folder
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.view.view import FileSlice

from ..execution.slice_task import read_back


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What all files of a stitching have in common."""

    instant: str
    rules: SliceRules
    schema_text: str
    output: OutputOptions
    measure: Measure | None
    sort_by: tuple[str, ...] = ()
    sort_order: SortOrder = SortOrder.ORDER


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A staged file. `final`: its path once the stitching completes; `size` in bytes; `ledger`: its rows, all inserted
    from `inputs`, the names of the files; `ranges`: of its columns, if the metadata table has statistics."""

    partition: str
    file_id: str
    inputs: tuple[FileSlice, ...]
    staged: str
    final: str
    size: int
    ledger: Ledger
    ranges: tuple[ColumnRange, ...] | None
    seconds: float


def make(storage: Storage, recipe: Recipe, file_id: str, name: str, inputs: tuple[FileSlice, ...]) -> Made:
    """Stages one file. `name`: its final name. LedgerError: rows differ; nothing is left."""
    started, partition = time.monotonic(), inputs[0].partition
    staged = f"{staged_folder(recipe.instant)}/{uuid.uuid4().hex}.parquet"
    schema = recipe.rules.schema
    streams = [SliceStream(storage, one, recipe.rules) for one in inputs]
    counts: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for stream in streams:
            rows = 0
            for batch in stream.batches():
                rows += batch.num_rows
                yield batch
            counts.append(rows)

    with staged_output(storage, staged) as file:
        rows = write_base_file(
            file,
            _sorted(batches(), recipe) if recipe.sort_by else batches(),
            name=name,
            schema=schema,
            schema_text=recipe.schema_text,
            key_column=RECORD_KEY if RECORD_KEY in schema.names else None,
            output=recipe.output,
        )
    rows_read_back, hash_out, size = read_back(storage, staged, recipe.rules)
    try:
        ledger = _ledger(streams, counts, rows, rows_read_back, hash_out, join(partition, file_id))
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
    )


def _sorted(batches: Iterable[pa.RecordBatch], recipe: Recipe) -> list[pa.RecordBatch]:
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


def _ledger(
    streams: list[SliceStream], counts: list[int], rows: int, rows_read_back: int, hash_out: int, where: str
) -> Ledger:
    """The sums over all inputs, checked: rows of the footers of the inputs = rows of the footer of the new file."""
    parts = [stream.ledger(count, 0) for stream, count in zip(streams, counts, strict=True)]
    whole = total(parts)
    assert whole.identity is not None
    whole = replace(whole, rows_out=rows, identity=replace(whole.identity, out=hash_out))
    whole.check(
        footer_rows_in=sum(stream.base_rows for stream in streams),
        header_entries=0,
        footer_rows_out=rows_read_back,
        where=where,
    )
    return whole
