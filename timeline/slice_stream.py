"""One file slice as a stream of merged batches: reads its files and runs the merge over them.

The log side is decoded and folded first; the base file is then streamed by batches, so memory is the winning log
rows plus a batch. Only the columns asked for, and those that merging needs, are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from timeline.avro_schema import project
from timeline.conform import conform
from timeline.delete_block import decode_deletes
from timeline.errors import MalformedError
from timeline.ledger import Ledger
from timeline.log_block import BlockKind, LogBlock, scan_blocks
from timeline.log_decode import check_supported, count_entries, decode_rows
from timeline.log_scan import Selection, Skipped, Visibility, select_blocks
from timeline.merge import IS_DELETED, Keyed, LogFold, MergeRule, SliceMerge, Winners
from timeline.record_key import KeySource
from timeline.storage import Storage
from timeline.view import FileSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRules:
    """Everything about the table and the reader that merging a slice depends on. Picklable.

    `schema`: the table's, meta columns included. `batch_rows`: rows of a base batch.
    """

    schema: pa.Schema
    keys: KeySource
    ordering_fields: tuple[str, ...]
    merge: MergeRule
    visibility: Visibility
    float_text_in_logs: bool
    batch_rows: int = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCounts:
    """What a slice's logs held: entries by block headers, blocks that count, blocks skipped by cause."""

    entries: int = 0
    blocks: int = 0
    skipped: tuple[tuple[Skipped, int], ...] = ()

    def skipped_blocks(self, cause: Skipped) -> int:
        """Blocks skipped for one cause."""
        return dict(self.skipped).get(cause, 0)


class SliceStream:
    """Iterate `batches()` once; afterwards `ledger()`, `log_counts` and `base_rows` tell what happened."""

    def __init__(
        self, storage: Storage, slice_: FileSlice, rules: SliceRules, columns: Sequence[str] | None = None
    ) -> None:
        self._storage = storage
        self._slice = slice_
        self._rules = rules
        self._out = rules.schema if columns is None else project(rules.schema, columns)
        needed = {*rules.keys.fields, *rules.ordering_fields}
        # Rows marked deleted count only where the table has the column.
        self._marks = IS_DELETED in rules.schema.names
        self._log_schema = project(rules.schema, [*self._out.names, *needed, *([IS_DELETED] if self._marks else [])])
        self._base_schema = project(rules.schema, [*self._out.names, *needed])
        self._merge: SliceMerge | None = None
        self.log_counts = LogCounts()
        self.base_rows = 0

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._out

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Merged rows: the base file's order, then inserts."""
        won = self._fold_logs()
        merge = self._merge = SliceMerge(self._rules.merge, won)
        if not won.entries:  # nothing to merge: keys and ordering values need not be read
            for table in self._base_tables(self._out):
                yield from merge.untouched(table).to_batches()
            return
        for table in self._base_tables(self._base_schema):
            yield from merge.batch(self._keyed(table, self._slice.file_id)).to_batches()
        inserts = merge.inserts()
        if inserts.num_rows:
            yield from inserts.combine_chunks().to_batches(max_chunksize=self._rules.batch_rows)

    def base_batches(self) -> Iterator[pa.RecordBatch]:
        """The base file alone (read-optimized): no logs, no merge."""
        for table in self._base_tables(self._out):
            yield from table.to_batches()

    def ledger(self, rows_out: int) -> Ledger:
        """The books, once `batches()` is exhausted."""
        assert self._merge is not None, "ledger() comes after batches()"
        return self._merge.ledger(rows_out)

    def _base_tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """The base file's rows under a schema; only its columns are read. Nothing without a base file."""
        if self._slice.base is None:
            return
        path = self._slice.base.path
        with self._storage.open_input(path) as source, _readable(path):
            file = pq.ParquetFile(source)
            self.base_rows = file.metadata.num_rows
            wanted = [n for n in schema.names if n in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=self._rules.batch_rows, columns=wanted):
                yield conform(_counted(batch), schema, path)

    def _keyed(self, table: pa.Table, where: str) -> Keyed:
        deleted = None
        if IS_DELETED in table.schema.names:
            marked = pc.fill_null(table.column(IS_DELETED), False)
            deleted = np.asarray(marked.to_numpy(), np.bool_)
        return Keyed(
            rows=table.select(self._out.names),
            keys=self._rules.keys.keys(table, where),
            ordering=tuple(_flat(table.column(name)) for name in self._rules.ordering_fields),
            deleted=deleted,
        )

    def _fold_logs(self) -> Winners:
        fold = LogFold(self._rules.merge, self._out)
        sources = {log.path: self._storage.open_input(log.path) for log in self._slice.logs}
        try:
            selection = _select(sources, self._rules.visibility)
            entries = 0
            for block in selection.blocks:
                entries += self._add(fold, block, sources[block.path])
            self.log_counts = _counts(selection, entries)
            return fold.finish()
        finally:
            for source in sources.values():
                source.close()

    def _add(self, fold: LogFold, block: LogBlock, source: pa.NativeFile) -> int:
        entries = count_entries(block, source)
        if block.kind is BlockKind.DELETE:
            parts = decode_deletes(block, source)
            found = sum(len(part.keys) for part in parts)
            for part in parts:
                fold.add_deletes(part)
        else:
            rows = decode_rows(block, source, self._log_schema, float_as_text=self._rules.float_text_in_logs)
            found = rows.num_rows
            fold.add_rows(self._keyed(rows, block.path))
        if found != entries:
            raise MalformedError(
                "log block holds another number of entries than it says",
                path=block.path,
                expected=str(entries),
                found=str(found),
            )
        return entries


def check_slice(storage: Storage, slice_: FileSlice, rules: SliceRules) -> None:
    """UnsupportedError or MalformedError where the slice's log files could not be merged; reads headers only."""
    sources = {log.path: storage.open_input(log.path) for log in slice_.logs}
    try:
        for block in _select(sources, rules.visibility).blocks:
            check_supported(block, sources[block.path])
    finally:
        for source in sources.values():
            source.close()


def _select(sources: Mapping[str, pa.NativeFile], visibility: Visibility) -> Selection:
    return select_blocks((b for path, source in sources.items() for b in scan_blocks(source, path)), visibility)


def _counts(selection: Selection, entries: int) -> LogCounts:
    causes = Counter(cause for _, cause in selection.skipped)
    return LogCounts(entries=entries, blocks=len(selection.blocks), skipped=tuple(causes.items()))


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise MalformedError("not a readable Parquet base file", path=path, found=str(error)) from error


def _counted(batch: pa.RecordBatch) -> pa.Table:
    """A batch without columns has lost its row count for Arrow tables: one null column keeps it."""
    if batch.num_columns:
        return pa.Table.from_batches([batch])
    return pa.table({"__none": pa.nulls(batch.num_rows)})


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
