"""One file slice as a stream of merged batches: reads its files and runs the merge over them.

The log side is decoded and folded first; the base file is then streamed by batches, so memory is the winning log
rows plus a batch. Log entries beyond a memory limit are spilled to disk. Only the columns asked for, and those that
merging needs, are read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timeline.avro_schema import project
from timeline.conform import conform
from timeline.delete_block import Deletes, decode_deletes
from timeline.errors import MalformedError
from timeline.identity import IdentityTally
from timeline.ledger import Ledger
from timeline.log_block import BlockKind, LogBlock, scan_blocks
from timeline.log_decode import check_supported, count_entries, decode_rows
from timeline.log_fold import LogFold, Winners
from timeline.log_scan import Selection, Skipped, Visibility, select_blocks
from timeline.log_spill import LogSpill
from timeline.merge import SliceMerge
from timeline.merge_rule import IS_DELETED, NO_CHANGES, Changes, Hashes, Keyed, MergeRule
from timeline.parquet_input import open_parquet, parquet_batches, readable
from timeline.record_key import KeySource
from timeline.spill_file import spill_folder
from timeline.spilled_merge import SpilledMerge
from timeline.storage import Storage
from timeline.view import FileSlice

_PARTITIONS_MAX = 256
"""Each has two open files while log blocks are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRules:
    """Everything about the table and the reader that merging a slice depends on. Picklable.

    `schema`: the table's, meta columns included. `batch_rows`: rows of a base batch. `memory_bytes`: what merging one
    slice may hold; None: everything stays in memory. `spill_folder`: where the rest goes, None: the system's
    folder for temporary files. `identity`: keep the books of identity too.
    """

    schema: pa.Schema
    keys: KeySource
    ordering_fields: tuple[str, ...]
    merge: MergeRule
    visibility: Visibility
    float_text_in_logs: bool
    batch_rows: int = 65_536
    memory_bytes: int | None = None
    spill_folder: str | None = None
    identity: bool = False

    @property
    def fold_bytes(self) -> float:
        """Log entries held in memory: settling them takes as much again, their rows wait for the base file."""
        return math.inf if self.memory_bytes is None else self.memory_bytes / 4

    @property
    def part_bytes(self) -> int | None:
        """Encoded bytes of a log block decoded at a time."""
        return None if self.memory_bytes is None else max(1, self.memory_bytes // 16)


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
        self._merge: SliceMerge | SpilledMerge | None = None
        self._tally = IdentityTally() if rules.identity else None
        self.log_counts = LogCounts()
        self.base_rows = 0

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._out

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Merged rows: the base file's order, then inserts."""
        with ExitStack() as stack:
            fold = LogFold(self._rules.merge, self._out)
            spill = self._read_logs(fold, stack)
            for table in self._in_memory(fold.finish()) if spill is None else self._spilled(spill, stack):
                yield from table.combine_chunks().to_batches(max_chunksize=self._rules.batch_rows)

    def _in_memory(self, won: Winners) -> Iterator[pa.Table]:
        merge = self._merge = SliceMerge(self._rules.merge, won, hashed=self._rules.identity)
        if not won.entries:  # nothing to merge: keys and ordering values need not be read
            for table in self._base_tables(self._out):
                merge.untouched(table.num_rows)
                yield self._changed(table, NO_CHANGES)
            return
        for table in self._base_tables(self._base_schema):
            keyed = self._keyed(table, self._slice.file_id)
            yield self._changed(keyed.rows, merge.changes(keyed))
        _, rows, hashes = merge.inserts()
        yield self._inserted(rows, hashes)

    def _spilled(self, spill: LogSpill, stack: ExitStack) -> Iterator[pa.Table]:
        rules = self._rules
        folder = stack.enter_context(spill_folder(rules.spill_folder))
        merge = self._merge = SpilledMerge(rules.merge, spill, self._out, folder, hashed=rules.identity)
        needed = project(rules.schema, [*rules.keys.fields, *rules.ordering_fields])

        def keys() -> Iterator[Keyed]:
            for table in self._base_tables(needed):
                yield self._keyed(table, self._slice.file_id)

        merge.decide(keys, max(1, rules.batch_rows // len(spill)))
        for table in self._base_tables(self._out):
            yield self._changed(table, merge.changes(table.num_rows))
        for rows, hashes in merge.inserts(rules.batch_rows):
            yield self._inserted(rows, hashes)

    def _changed(self, rows: pa.Table, changes: Changes) -> pa.Table:
        if self._tally is not None:
            self._tally.merged(rows, changes)
        return changes.apply(rows)

    def _inserted(self, rows: pa.Table, hashes: Hashes) -> pa.Table:
        if self._tally is not None:
            self._tally.inserted(hashes)
        return rows

    def base_batches(self) -> Iterator[pa.RecordBatch]:
        """The base file alone (read-optimized): no logs, no merge."""
        for table in self._base_tables(self._out):
            yield from table.to_batches()

    def ledger(self, rows_out: int, hash_out: int | None = None) -> Ledger:
        """The books, once `batches()` is exhausted. `hash_out`: see `Identity`, of the rows read back."""
        assert self._merge is not None, "ledger() comes after batches()"
        books = self._merge.ledger(rows_out)
        return (
            books if self._tally is None or hash_out is None else replace(books, identity=self._tally.finish(hash_out))
        )

    def _base_tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """The base file's rows under a schema; only its columns are read. Nothing without a base file."""
        base = self._slice.base
        if base is not None:
            self.base_rows = 0
            for table, rows in base_tables(self._storage, base.path, schema, self._rules.batch_rows):
                self.base_rows = rows
                yield table

    def _keyed(self, table: pa.Table, where: str) -> Keyed:
        deleted = None
        if IS_DELETED in table.schema.names:
            marked = pc.fill_null(table.column(IS_DELETED), False)
            deleted = np.asarray(marked.to_numpy(), np.bool_)
        return Keyed(
            rows=table.select([name for name in self._out.names if name in table.column_names]),
            keys=self._rules.keys.keys(table, where),
            ordering=tuple(_flat(table.column(name)) for name in self._rules.ordering_fields),
            deleted=deleted,
        )

    def _read_logs(self, fold: LogFold, stack: ExitStack) -> LogSpill | None:
        """Decodes all log blocks into `fold`; returns the spill that took them when they became too many."""
        spill: LogSpill | None = None
        sources = {log.path: stack.enter_context(self._storage.open_input(log.path)) for log in self._slice.logs}
        selection = _select(sources, self._rules.visibility)
        total_bytes = sum(b.content_bytes for b in selection.blocks)
        entries = read_bytes = 0
        for block in selection.blocks:
            read_bytes += block.content_bytes
            found = 0
            for part in self._entries(block, sources[block.path]):
                if isinstance(part, Keyed):
                    fold.add_rows(part)
                    found += len(part.keys)
                else:
                    fold.add_deletes(part)
                    found += len(part.keys)
                if fold.nbytes > self._rules.fold_bytes:
                    spill = spill or self._open_spill(fold.nbytes * total_bytes / read_bytes, stack)
                    spill.add(fold.drain())
            entries += _checked(block, sources[block.path], found)
        self.log_counts = _counts(selection, entries)
        if spill is not None:
            spill.add(fold.drain())
        return spill

    def _entries(self, block: LogBlock, source: pa.NativeFile) -> Iterator[Keyed | Deletes]:
        rules = self._rules
        if block.kind is BlockKind.DELETE:
            yield from decode_deletes(block, source)
            return
        for rows in decode_rows(
            block, source, self._log_schema, float_as_text=rules.float_text_in_logs, part_bytes=rules.part_bytes
        ):
            yield self._keyed(rows, block.path)

    def _open_spill(self, expected_bytes: float, stack: ExitStack) -> LogSpill:
        """Partitions so small that one of them is at most half of what may be held, if keys spread."""
        partitions = min(_PARTITIONS_MAX, max(2, math.ceil(2 * expected_bytes / self._rules.fold_bytes)))
        folder = stack.enter_context(spill_folder(self._rules.spill_folder))
        return LogSpill(folder, self._rules.merge, self._out, partitions)


def base_tables(storage: Storage, path: str, schema: pa.Schema, batch_rows: int) -> Iterator[tuple[pa.Table, int]]:
    """A Parquet base file's rows under a schema, by batches, each beside the number of rows in the footer.

    MalformedError: not a readable file. Only columns of the schema are read.
    """
    with storage.open_input(path) as source, readable("base file", path):
        file = open_parquet(source)
        wanted = [n for n in schema.names if n in file.schema_arrow.names]
        for batch in parquet_batches(source, file, wanted, batch_rows):
            yield conform(_counted(batch), schema, path), file.metadata.num_rows


def _checked(block: LogBlock, source: pa.NativeFile, found: int) -> int:
    """The number of entries a block says it holds, which must be the number found."""
    entries = count_entries(block, source)
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


def _counted(batch: pa.RecordBatch) -> pa.Table:
    """A batch without columns has lost its row count for Arrow tables: one null column keeps it."""
    if batch.num_columns:
        return pa.Table.from_batches([batch])
    return pa.table({"__none": pa.nulls(batch.num_rows)})


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
