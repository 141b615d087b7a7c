"""Makes one clustered file: reads its inputs one by one, stages the new base file, verifies that no row differs.

Runs in a thread. The file gets its final name when the clustering completes. Memory: a row group and a batch; sorted,
all rows twice. Rows are encoded again, or the row groups of the inputs are copied as bytes:

    reencode  rows are decoded, and encoded into large row groups
    try       a new file is copied if no row group in it is small, and no file has an obstacle, see `copy_rules`
    force     a new file is copied, however small its row groups are

The keys, and the other columns that identify a row, are always decoded: for the key filter, the key range and the
ledger.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phantombase.timeline.codec.arrow_schema import project
from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.copied_file import CopiedFile, check_copied
from phantombase.timeline.codec.copy_rules import Obstacle, why_not_copied
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.codec.parquet_footer import Footer, read_footer
from phantombase.timeline.codec.parquet_write import HudiFooter, write_base_file
from phantombase.timeline.codec.row_hash import hash_keys
from phantombase.timeline.errors import LedgerError, MalformedError, UnsupportedError, UsageError
from phantombase.timeline.format.ledger import Identity, Ledger
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.slice_merge import identity_columns, identity_sum
from phantombase.timeline.merge.slice_stream import base_tables
from phantombase.timeline.metadata_table.column_range import ColumnRange
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.storage.contract import Storage, open_listed
from phantombase.timeline.storage.folders import join, staged_folder
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.view.view import FileSlice

from ..attempt.slice_task import read_back
from .choice import ClusteringWindow, sorted_rows
from .options import Copy, SortOrder

_AHEAD = 4


class RowsIn:
    """The rows of the inputs, in order, in large batches. Memory: what is read, and 8 bytes for each row."""

    def __init__(self, storage: Storage, rules: SliceRules, inputs: tuple[FileSlice, ...]) -> None:
        self._storage, self._rules, self.inputs = storage, rules, inputs
        self._rows = self._hash = 0
        self._keys: list[npt.NDArray[np.uint64]] = []
        self.footer_rows = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, once; they are counted and hashed on the way."""
        held: list[pa.Table] = []
        count = 0
        for path, source in self.opened():
            footer_rows = 0
            read = base_tables(
                self._storage,
                path,
                self._rules.schema,
                self._rules.batch_rows,
                open_source=partial(_same, source),
                defaults=self._rules.defaults,
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

    def opened(self) -> Iterator[tuple[str, pa.NativeFile]]:
        """The open files; on an object store a few are prefetched, because of its latency."""
        files = [one.base for one in self.inputs if one.base is not None]
        ahead = 1 if self._storage.is_file_system else _AHEAD
        sources = prefetched(files, lambda file: open_listed(self._storage, file.path, file.size), ahead)
        return zip((file.path for file in files), sources, strict=True)

    def _counted(self, tables: list[pa.Table]) -> Iterator[pa.RecordBatch]:
        rows = pa.concat_tables(tables).combine_chunks()
        self._add(rows)
        yield from rows.to_batches(max_chunksize=self._rules.batch_rows)

    def _add(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows
        self._hash = (self._hash + identity_sum([rows])) % (1 << 64)
        if RECORD_KEY in rows.schema.names:
            self._keys += [hash_keys(chunk, 0) for chunk in rows.column(RECORD_KEY).chunks]

    def repeated_keys(self) -> int:
        """The number of rows with the key of an earlier row, by a hash of 64 bits; 0 without meta columns."""
        hashes = np.sort(np.concatenate(self._keys)) if self._keys else np.empty(0, np.uint64)
        return int(np.count_nonzero(hashes[1:] == hashes[:-1]))

    def keys_of(self, path: str, source: pa.NativeFile) -> Iterator[pa.Table]:
        """The identifying columns of an open input, counted and hashed. MalformedError: not the footer's number."""
        schema = project(self._rules.schema, identity_columns(self._rules.schema))
        before = self._rows
        footer_rows = 0
        read = base_tables(self._storage, path, schema, self._rules.batch_rows, open_source=lambda: nullcontext(source))
        for table, footer_rows in read:  # noqa: B007, the last one counts
            self._add(table)
            yield table
        if self._rows - before != footer_rows:
            raise MalformedError(
                "a Parquet file has other rows than its footer says",
                path=path,
                expected=f"{footer_rows} rows",
                found=f"{self._rows - before} rows",
            )
        self.footer_rows += footer_rows

    def ledger(self, rows_out: int, hash_out: int) -> Ledger:
        """Called after `batches`, or after `keys_of` each input: all rows are `untouched`."""
        counts = dict.fromkeys((f.name for f in fields(Ledger) if f.name != "identity"), 0)
        counts |= {"base_rows": self._rows, "untouched": self._rows, "rows_out": rows_out}
        identity = Identity(base=self._hash, removed=0, added=0, out=hash_out)
        return Ledger(**counts, identity=identity)


def _same(source: pa.NativeFile) -> pa.NativeFile:
    return source


LEAST_GROUP_BYTES = 8 << 20
"""`try` does not copy smaller row groups: each read of a file of small ones takes longer."""


def why_encoded(storage: Storage, slices: Sequence[FileSlice], schema: pa.Schema, copy: Copy) -> Obstacle | None:
    """Why these base files are not copied into one; None: they are copied. `schema`: the table's."""
    least = 0 if copy is Copy.FORCE else LEAST_GROUP_BYTES
    for one in slices:
        if one.base_bytes < least:  # its footer need not be read
            return Obstacle(
                why="small row groups",
                path=_path(one),
                expected=f"row groups of {least} bytes at least",
                found=f"a file of {one.base_bytes} bytes",
            )
    return why_not_copied(_footers(storage, slices), schema, least)


def _footers(storage: Storage, slices: Sequence[FileSlice]) -> Iterator[Footer]:
    for one in slices:
        with storage.open_input(_path(one), whole=False) as source:
            footer = read_footer(source, _path(one))
        yield footer


def _path(one: FileSlice) -> str:
    assert one.base is not None, "only slices with a base file are clustered"
    return one.base.path


def cannot_copy(obstacle: Obstacle, where: str) -> UnsupportedError:
    """The error of `force`. `where`: the table."""
    return UnsupportedError(
        f"files that are to be clustered cannot be copied as bytes: {obstacle.why}",
        path=f"{where}/{obstacle.path}",
        expected=obstacle.expected,
        found=obstacle.found,
        todo="Use --copy try, which encodes the rows of such files again, or leave --copy out.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Which windows of a run are copied. Each is checked once, since its files never change."""

    storage: Storage
    copy: Copy
    _seen: dict[ClusteringWindow, Obstacle | None] = field(default_factory=dict)

    def obstacles(self, windows: Sequence[ClusteringWindow], schema: pa.Schema) -> list[Obstacle | None]:
        """The obstacle of each window; None: it is copied. UnsupportedError: it must be copied, and cannot be."""
        for one in windows:
            if one not in self._seen:
                self._seen[one] = why_encoded(self.storage, one.slices, schema, self.copy)
        found = [self._seen[one] for one in windows]
        for obstacle in found if self.copy is Copy.FORCE else ():
            if obstacle is not None:
                raise cannot_copy(obstacle, self.storage.base_path)
        return found


def _write_copied(file: IO[bytes], recipe: OutputFileSpec, rows_in: RowsIn, name: str) -> CopiedFile:
    """Writes the base file from inputs without an obstacle. Memory: a batch of keys, the key filter, and 4 MiB."""
    has_keys, output = RECORD_KEY in recipe.rules.schema.names, recipe.output
    pairs = HudiFooter(recipe.schema_text, output.bloom, has_keys=has_keys)
    copied: CopiedFile | None = None
    for path, source in rows_in.opened():
        with source:
            footer = read_footer(source, path)
            for keys in rows_in.keys_of(path, source):
                if has_keys:
                    pairs.add(keys.column(RECORD_KEY))
            copied = copied or CopiedFile(file, footer, name=name, codec=output.codec.value)
            copied.add(source, footer)
    assert copied is not None, "a window has files"
    copied.finish(pairs.key_values())
    return copied


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
    `copied_row_groups`: 0 if it was encoded, or another process made it. `encoded`: why it was not copied, "" if no
    copy was requested. `repeated_keys`: see `RowsIn`."""

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
    """Stages one file. `name`: its final name. LedgerError: rows differ; the staged file is removed."""
    started, partition = time.monotonic(), inputs[0].partition
    staged = f"{staged_folder(recipe.instant)}/{uuid.uuid4().hex}.parquet"
    rows_in = RowsIn(storage, recipe.rules, inputs)
    encoded, copied = _why_encoded(storage, recipe, inputs), None
    if encoded is None:
        with staged_output(storage, staged) as file:
            copied = _write_copied(file, recipe, rows_in, name)
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
    """Why the file is not copied; "" if no copy was asked for; None: it is. UnsupportedError: it must be."""
    if recipe.copy is Copy.REENCODE or recipe.sort_by:
        return ""
    obstacle = why_encoded(storage, inputs, recipe.rules.schema, recipe.copy)
    if obstacle is not None and recipe.copy is Copy.FORCE:
        raise cannot_copy(obstacle, storage.base_path)
    return None if obstacle is None else obstacle.why


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
    """The sorted rows. UsageError: they exceed half of the memory limit; sorting takes as much again."""
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
