"""The merge of a slice whose log entries exceed the memory limit: the same rows in the same order.

Log entries are split by key hash into partitions on disk. All entries of a key are in one partition, in order, so the
winner does not depend on the split.

    pass p     find the winners of partition p, look up the base file's keys, write the changes to sorted runs
    last pass  stream the base file once, together with the runs of all partitions

A `SpillFile` has Arrow tables on local disk: appended, then read once from front to back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.columns import Hashes, Indices, flat, rows_at
from ..codec.row_hash import hash_keys
from ..errors import StorageError
from ..format.ledger import Ledger, total
from .gaps import Gaps
from .log_fold import Entries, EntryKind, Winners, row_numbers, settle, won, won_partly
from .rule import NO_HASHES, Changes, Keyed, MergeRule
from .slice_merge import SliceMerge

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
        at = os.path.abspath(path)
        raise StorageError("cannot spill data to disk", path=at, found=str(error), todo=todo) from error


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


_KEY, _KIND, _NATURAL = "__key", "__kind", "__natural"
_HASH_SEED = 1001
"""Differs from the seeds of `row_hash`, where the keys of one partition must still spread evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    entries: SpillFile
    rows: SpillFile


class LogSpill:
    """`partitions` pairs of files in `folder`: the entries without their rows, and the rows.
    `gaps`: those of the `LogFold` that collected the entries."""

    def __init__(
        self, folder: str, rule: MergeRule, schema: pa.Schema, partitions: int, gaps: Gaps | None = None
    ) -> None:
        self._rule = rule
        self.gaps = gaps = gaps or rule.gaps
        self._out = schema
        schema = schema if gaps is None else gaps.held(schema)
        self._schema = schema
        fields = [(_KEY, pa.string()), (_KIND, pa.uint8()), (_NATURAL, pa.bool_()), (POSITION, pa.int64())]
        entry = pa.schema([*fields, *((f"__{i}", kind) for i, kind in enumerate(rule.ordering_types))])
        self._partitions = [
            _Partition(entries=SpillFile(f"{folder}/{p}.entries", entry), rows=SpillFile(f"{folder}/{p}.rows", schema))
            for p in range(partitions)
        ]
        self._entry_schema = entry
        self.entries = 0

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, parts: Sequence[Entries]) -> None:
        for part in parts:
            self._add(part)

    def _add(self, part: Entries) -> None:
        count = len(part.keys)
        positions = np.arange(self.entries, self.entries + count, dtype=np.int64)
        self.entries += count
        home = (hash_keys(part.keys, _HASH_SEED) % np.uint64(len(self))).astype(np.int64)
        order = np.argsort(home, kind="stable")
        columns = [part.keys, pa.array(part.kinds), pa.array(part.natural), pa.array(positions), *part.ordering]
        entries = pa.Table.from_arrays(columns, schema=self._entry_schema).take(pa.array(order))
        is_row = (part.kinds == EntryKind.ROW)[order]
        rows = rows_at(part.rows, row_numbers(part.kinds)[order[is_row]])
        ends = np.searchsorted(home[order], np.arange(len(self) + 1))
        row_ends = np.concatenate([[0], np.cumsum(is_row)])[ends]
        for partition, start, end, row_start, row_end in zip(
            self._partitions, ends, ends[1:], row_ends, row_ends[1:], strict=False
        ):
            partition.entries.append(entries.slice(start, end - start))
            partition.rows.append(rows.slice(row_start, row_end - row_start))

    def winners(self, number: int) -> tuple[Winners, Indices]:
        """The winner of each key of one partition, and each key's first position among all entries."""
        partition = self._partitions[number]
        table = partition.entries.read_all().combine_chunks()
        kinds = np.asarray(table.column(_KIND))
        entries = Entries(
            keys=flat(table.column(_KEY)),
            kinds=kinds,
            natural=np.asarray(table.column(_NATURAL)),
            ordering=tuple(flat(table.column(f"__{i}")) for i in range(len(self._rule.ordering_types))),
            rows=self._schema.empty_table(),
        )
        settled = settle(self._rule, [entries], self.gaps)
        first = np.asarray(table.column(POSITION))[settled.first]
        if self.gaps is not None:
            # Any row may give columns, so all rows of the partition are held in memory: a share of the limit.
            return won_partly(self._rule, self.gaps, settled, kinds, partition.rows.read_all(), self._out), first
        live = settled.kinds == EntryKind.ROW
        wanted = row_numbers(kinds)[settled.best[live]]
        order = np.argsort(wanted)
        row = np.full(len(settled.keys), -1, np.int64)
        row[np.flatnonzero(live)[order]] = np.arange(len(order))
        rows = _pick(partition.rows, wanted[order], self._schema)
        return won(self._rule, settled, row, rows, len(kinds)), first


def _pick(file: SpillFile, wanted: Indices, schema: pa.Schema) -> pa.Table:
    """The rows with the given numbers (ascending), without holding the other rows in memory."""
    found, start = [schema.empty_table()], 0
    for table in file.read():
        low, high = np.searchsorted(wanted, [start, start + table.num_rows])
        found.append(rows_at(table, wanted[low:high] - start).cast(schema))
        start += table.num_rows
    return pa.concat_tables(found).combine_chunks()


_HASH = "hash of the row"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """The changes from one partition, by row number of the base file; inserts by the position of their first entry."""

    replaced: SortedRun
    deleted: SortedRun
    inserted: SortedRun


class SpilledMerge:
    """Like `SliceMerge`, in two steps: `decide` reads the base file's keys once for each partition."""

    def __init__(self, rule: MergeRule, spill: LogSpill, schema: pa.Schema, folder: str, *, hashed: bool) -> None:
        self._rule, self._spill, self._schema = rule, spill, schema
        self._folder, self._hashed = folder, hashed
        self._runs: list[_Runs] = []
        self._ledgers: list[Ledger] = []
        self._base_rows = 0

    def decide(self, base: Callable[[], Iterable[Keyed]], insert_rows: int) -> None:
        """All passes. `base` returns the base file's batches, keys and ordering values, from the start at each call;
        `insert_rows`: rows of inserts to write at a time."""
        for number in range(len(self._spill)):
            won, first = self._spill.winners(number)
            merge = SliceMerge(self._rule, won, hashed=self._hashed)
            replaced, deleted, inserted = (
                self._file(f"{number}.{kind}") for kind in ("replaced", "deleted", "inserted")
            )
            start = 0
            for batch in base():
                changes = merge.changes(batch)
                replaced.append(
                    self._run(changes.replaced + start, rows_at(changes.values, changes.row), changes.hashes)
                )
                deleted.append(self._run(changes.deleted + start, None, NO_HASHES))
                start += len(batch.keys)
            keys, rows, hashes = merge.inserts()
            run = self._run(first[keys], rows, hashes)
            for low in range(0, run.num_rows, insert_rows):
                inserted.append(run.slice(low, insert_rows))
            self._ledgers.append(merge.ledger(0))
            self._runs.append(
                _Runs(replaced=SortedRun(replaced), deleted=SortedRun(deleted), inserted=SortedRun(inserted))
            )

    def _file(self, name: str) -> SpillFile:
        extra = [pa.field(POSITION, pa.int64()), pa.field(_HASH, pa.uint64())]
        fields = extra if name.endswith("deleted") else [*extra, *self._schema]
        return SpillFile(f"{self._folder}/{name}", pa.schema(fields))

    def _run(self, positions: Indices, rows: pa.Table | None, hashes: Hashes) -> pa.Table:
        hash_column = pa.array(hashes) if len(hashes) else pa.nulls(len(positions), pa.uint64())
        extra = pa.table({POSITION: pa.array(positions, pa.int64()), _HASH: hash_column})
        if rows is None:
            return extra
        return pa.Table.from_arrays([*extra.columns, *rows.columns], names=[*extra.column_names, *rows.column_names])

    def changes(self, rows: int) -> Changes:
        """The changes to the next `rows` rows of the base file."""
        start, end = self._base_rows, self._base_rows + rows
        replaced = [t for r in self._runs for t in r.replaced.upto(end)]
        deleted = [t for r in self._runs for t in r.deleted.upto(end)]
        positions = _positions(replaced, start)
        gone = _positions(deleted, start)
        self._base_rows = end
        row = np.arange(len(positions), dtype=np.int64)
        return Changes(replaced=positions, deleted=gone, values=self._rows(replaced), row=row, hashes=_hashes(replaced))

    def inserts(self, window: int) -> Iterator[tuple[pa.Table, Hashes]]:
        """New rows and their hashes, in order of first appearance, from `window` log entries at a time."""
        for end in range(window, self._spill.entries + window, window):
            found = [t for r in self._runs for t in r.inserted.upto(end)]
            if found:
                table = by_position(found)
                yield self._rows([table]), _hashes([table])

    def _rows(self, tables: list[pa.Table]) -> pa.Table:
        parts = [t.select(self._schema.names).cast(self._schema) for t in tables]
        return pa.concat_tables([self._schema.empty_table(), *parts])

    def ledger(self, rows_out: int) -> Ledger:
        """The ledger of all passes together."""
        ledger = total(self._ledgers)
        # Every pass read all base rows, and counted rows that other partitions change as untouched.
        untouched = ledger.untouched - (len(self._ledgers) - 1) * self._base_rows
        return replace(ledger, base_rows=self._base_rows, untouched=untouched, rows_out=rows_out)


def _positions(tables: list[pa.Table], start: int) -> Indices:
    parts = [np.asarray(t.column(POSITION)) for t in tables]
    return np.concatenate(parts) - start if parts else np.zeros(0, np.int64)


def _hashes(tables: list[pa.Table]) -> Hashes:
    parts = [np.asarray(t.column(_HASH)) for t in tables if not t.column(_HASH).null_count]
    return np.concatenate(parts) if parts else NO_HASHES
