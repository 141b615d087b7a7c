"""Makes one stitched file: reads its inputs one after the other, stages the new base file, proves that no row differs.

Runs in a thread. The file has no final name until the stitching completes. Memory: a row group and a batch; sorted, all
rows twice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import partial

import pyarrow as pa

from phantombase.timeline.avro.schema import RECORD_KEY
from phantombase.timeline.errors import LedgerError, UsageError
from phantombase.timeline.merge.identity import Identity, identity_sum
from phantombase.timeline.merge.ledger import Ledger
from phantombase.timeline.merge.slice_rules import SliceRules
from phantombase.timeline.metadata_table.column_stats.column_range import ColumnRange
from phantombase.timeline.metadata_table.column_stats.measure import Measure
from phantombase.timeline.parquet.base_file import write_base_file
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.read.slice_stream import base_tables
from phantombase.timeline.stitching.order import SortOrder, sorted_rows
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import join, staged_folder
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.view.view import FileSlice

from ..execution.slice_task import read_back

_AHEAD = 4


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
    rows_in = _RowsIn(storage, recipe.rules, inputs)
    with staged_output(storage, staged) as file:
        rows = write_base_file(
            file,
            _sorted(rows_in.batches(), recipe) if recipe.sort_by else rows_in.batches(),
            name=name,
            schema=schema,
            schema_text=recipe.schema_text,
            key_column=RECORD_KEY if RECORD_KEY in schema.names else None,
            output=recipe.output,
        )
    rows_read_back, hash_out, size = read_back(storage, staged, recipe.rules)
    ledger = rows_in.ledger(rows, hash_out)
    try:
        ledger.check(
            footer_rows_in=rows_in.footer_rows,
            header_entries=0,
            footer_rows_out=rows_read_back,
            where=join(partition, file_id),
        )
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


class _RowsIn:
    """The rows of the inputs, in their order. Files of few rows are put together: each call then does more."""

    def __init__(self, storage: Storage, rules: SliceRules, inputs: tuple[FileSlice, ...]) -> None:
        self._storage, self._rules, self._inputs = storage, rules, inputs
        self._rows = self._hash = 0
        self.footer_rows = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, once; they are counted and hashed on the way."""
        held: list[pa.Table] = []
        count = 0
        for path, source in self._opened():
            footer_rows = 0
            read = base_tables(
                self._storage, path, self._rules.schema, self._rules.batch_rows, open_source=partial(_same, source)
            )
            for table, footer_rows in read:  # noqa: B007, the last one counts
                held.append(table)
                count += table.num_rows
                if count >= self._rules.batch_rows:
                    yield from self._counted(held)
                    held, count = [], 0
            self.footer_rows += footer_rows
        if held:
            yield from self._counted(held)

    def _opened(self) -> Iterator[tuple[str, pa.NativeFile]]:
        """The files; of an object store, whose answers take long, a few are fetched ahead."""
        paths = [one.base.path for one in self._inputs if one.base is not None]
        ahead = 1 if self._storage.is_file_system else _AHEAD
        return zip(paths, prefetched(paths, self._storage.open_input, ahead), strict=True)

    def _counted(self, tables: list[pa.Table]) -> Iterator[pa.RecordBatch]:
        rows = pa.concat_tables(tables).combine_chunks()
        self._rows += rows.num_rows
        self._hash = (self._hash + identity_sum([rows])) % (1 << 64)
        yield from rows.to_batches(max_chunksize=self._rules.batch_rows)

    def ledger(self, rows_out: int, hash_out: int) -> Ledger:
        """After `batches`: all rows are untouched."""
        counts = dict.fromkeys((f.name for f in fields(Ledger) if f.name != "identity"), 0)
        counts |= {"base_rows": self._rows, "untouched": self._rows, "rows_out": rows_out}
        identity = Identity(base=self._hash, removed=0, added=0, out=hash_out)
        return Ledger(**counts, identity=identity)


def _same(source: pa.NativeFile) -> pa.NativeFile:
    return source


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
