"""Makes the files of one group of a clustering: merges its slices one by one, stages the new base files, verifies that
no row differs.

Runs in a thread. The files get their final names when the clustering completes. Memory: a row group and a batch;
sorted, all rows twice. Rows are encoded again, or the row groups of the inputs are copied as bytes:

    reencode  rows are decoded, and encoded into large row groups
    try       a new file is copied if no row group in it is small, and no file has an obstacle, see `copy_rules`
    force     a new file is copied, however small its row groups are

The keys, and the other columns that identify a row, are always decoded: for the key filter, the key range and the
ledger.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
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
from phantombase.timeline.codec.parquet_read import fetched_at_once
from phantombase.timeline.codec.parquet_write import HudiFooter, write_base_file
from phantombase.timeline.codec.row_hash import hash_keys
from phantombase.timeline.errors import LedgerError, MalformedError, UnsupportedError, UsageError
from phantombase.timeline.format.file_name import BaseFileName
from phantombase.timeline.format.ledger import MASK, Identity, Ledger, total
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.slice_merge import identity_columns, identity_sum
from phantombase.timeline.merge.slice_stream import SliceStream, base_tables
from phantombase.timeline.metadata_table.column_range import ColumnRange
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.storage.contract import Storage, open_listed
from phantombase.timeline.storage.folders import join, staged_folder
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.view.view import FileSlice

from ..attempt.slice_task import merged_columns, read_back
from .choice import ClusteringWindow
from .options import Copy, SortOrder
from .order import sorted_rows

_AHEAD = 4


class RowsIn:
    """The merged rows of the inputs, in order, in large batches. Memory: what is read, and 8 bytes for each row."""

    def __init__(self, storage: Storage, rules: SliceRules, inputs: tuple[FileSlice, ...]) -> None:
        self._storage, self._rules, self.inputs = storage, rules, inputs
        self._ledgers: list[Ledger] = []
        self._keys: list[npt.NDArray[np.uint64]] = []
        self.base_rows = self.log_entries = 0
        """By the footers of base files, and the headers of log blocks."""
        self._merged: set[str] = set()
        self._uncommitted: set[str] = set()
        self._skipped = Counter[str]()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, once; they are counted and hashed on the way. A slice with log files is merged as a compaction
        merges it."""
        held: list[pa.RecordBatch] = []
        count = 0
        columns = merged_columns(self._rules)
        for slice_, opened in self._opened():
            stream = SliceStream(self._storage, slice_, self._rules, columns, opened=opened)
            for batch in stream.batches():
                held.append(batch)
                count += batch.num_rows
                if count >= self._rules.batch_rows:
                    yield from self._collected(held)
                    held, count = [], 0
            self._count(stream)
        if held:
            yield from self._collected(held)

    def _opened(self) -> Iterator[tuple[FileSlice, Callable[[], pa.NativeFile] | None]]:
        """The inputs. On an object store some base files are prefetched, because of its latency."""
        if self._storage.is_file_system:
            yield from ((one, None) for one in self.inputs)
            return
        columns = len(self._rules.schema.names)

        def fetched(one: FileSlice) -> pa.NativeFile | None:
            base = one.base
            is_small = base is not None and fetched_at_once(base.size, columns, columns)
            return open_listed(self._storage, base.path, base.size) if base is not None and is_small else None

        for one, source in zip(self.inputs, prefetched(self.inputs, fetched, _AHEAD), strict=True):
            yield one, None if source is None else partial(_same, source)

    def _collected(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(batches).combine_chunks()
        self._add_keys(rows)
        yield from rows.to_batches(max_chunksize=self._rules.batch_rows)

    def _count(self, stream: SliceStream) -> None:
        counts = stream.log_counts
        self._ledgers.append(stream.ledger(0, 0))
        self.base_rows += stream.base_rows
        self.log_entries += counts.entries
        self._merged.update(counts.merged)
        self._uncommitted.update(counts.uncommitted)
        self._skipped.update({cause.value: number for cause, number in counts.skipped})

    def _add_keys(self, rows: pa.Table) -> None:
        if RECORD_KEY in rows.schema.names:
            self._keys += [hash_keys(chunk, 0) for chunk in rows.column(RECORD_KEY).chunks]

    def logs_read(self) -> LogsRead:
        """What the log files of the inputs contained."""
        return LogsRead(
            merged=tuple(sorted(self._merged)),
            uncommitted=tuple(sorted(self._uncommitted)),
            skipped=dict(self._skipped),
        )

    def repeated_keys(self) -> int:
        """The number of rows with the key of an earlier row, by a hash of 64 bits; 0 without meta columns."""
        hashes = np.sort(np.concatenate(self._keys)) if self._keys else np.empty(0, np.uint64)
        return int(np.count_nonzero(hashes[1:] == hashes[:-1]))

    def opened_bases(self) -> Iterator[tuple[str, pa.NativeFile]]:
        """The open base files of inputs without log files."""
        for one in self.inputs:
            assert one.base is not None, "only base files are copied"
            yield one.base.path, open_listed(self._storage, one.base.path, one.base.size)

    def keys_of(self, path: str, source: pa.NativeFile) -> Iterator[pa.Table]:
        """The identifying columns of an open input, counted and hashed. MalformedError: not the footer's number."""
        schema = project(self._rules.schema, identity_columns(self._rules.schema))
        rows = hash_ = footer_rows = 0
        read = base_tables(self._storage, path, schema, self._rules.batch_rows, open_source=lambda: nullcontext(source))
        for table, footer_rows in read:  # noqa: B007, the last one counts
            rows += table.num_rows
            hash_ += identity_sum([table])
            self._add_keys(table)
            yield table
        if rows != footer_rows:
            raise MalformedError(
                "a Parquet file has other rows than its footer says",
                path=path,
                expected=f"{footer_rows} rows",
                found=f"{rows} rows",
            )
        counts = dict.fromkeys((f.name for f in fields(Ledger) if f.name != "identity"), 0)
        identity = Identity(base=hash_ & MASK, removed=0, added=0, out=0)
        self._ledgers.append(Ledger(**counts | {"base_rows": rows, "untouched": rows}, identity=identity))
        self.base_rows += footer_rows

    def ledger(self, rows_out: int, hash_out: int) -> Ledger:
        """The sum over the inputs, after `batches`, or after `keys_of` each of them."""
        found = total(self._ledgers)
        identity = None if found.identity is None else replace(found.identity, out=hash_out)
        return replace(found, rows_out=rows_out, identity=identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsRead:
    """The log files of some slices. `merged`: instants of the merged log blocks; `uncommitted`: of blocks whose write
    had not completed; `skipped`: blocks left out, by cause."""

    merged: tuple[str, ...] = ()
    uncommitted: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)


def _same(source: pa.NativeFile) -> pa.NativeFile:
    return source


LEAST_GROUP_BYTES = 8 << 20
"""`try` does not copy smaller row groups: each read of a file of small ones takes longer."""


def why_encoded(storage: Storage, slices: Sequence[FileSlice], schema: pa.Schema, copy: Copy) -> Obstacle | None:
    """Why these base files are not copied into one; None: they are copied. `schema`: the table's."""
    least = 0 if copy is Copy.FORCE else LEAST_GROUP_BYTES
    for one in slices:
        if one.base is None or one.logs:
            return Obstacle(
                why="log files",
                path=one.files[0].path,
                expected="base files without log files",
                found=f"{len(one.logs)} log files",
            )
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
    for path, source in rows_in.opened_bases():
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
class MadeFile:
    """A staged file. `final`: its path once the clustering completes; `size` in bytes; `rows`, `hash`: of its rows,
    read back; `ranges`: of its columns, if the metadata table has statistics. `copied_row_groups`: 0 if it was encoded,
    or another process made it."""

    file_id: str
    staged: str
    final: str
    size: int
    rows: int
    hash: int
    ranges: tuple[ColumnRange, ...] | None
    copied_row_groups: int = 0

    @property
    def name(self) -> str:
        return self.final.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The staged files of one group of a plan, none if its slices have no row. `inputs`: the slices whose rows they
    have; `ledger`: of all these rows; `logs`: see `LogsRead`. `encoded`: why it was not copied, "" if no copy was
    requested. `repeated_keys`: see `RowsIn`."""

    partition: str
    inputs: tuple[FileSlice, ...]
    files: tuple[MadeFile, ...]
    ledger: Ledger
    seconds: float
    logs: LogsRead = field(default_factory=LogsRead)
    encoded: str = ""
    repeated_keys: int = 0


def make(
    storage: Storage, recipe: OutputFileSpec, names: Sequence[BaseFileName], inputs: tuple[FileSlice, ...]
) -> Made:
    """Stages the files of a group. `names`: the final names of as many files as there may be. LedgerError: rows differ;
    the staged files are removed."""
    started, partition = time.monotonic(), inputs[0].partition
    rows_in = RowsIn(storage, recipe.rules, inputs)
    encoded = _why_encoded(storage, recipe, inputs)
    files: list[MadeFile] = []
    try:
        if encoded is None:
            files.append(_copied_file(storage, recipe, rows_in, names[0]))
        else:
            files.extend(_encoded_files(storage, recipe, rows_in, names))
        ledger = rows_in.ledger(sum(one.rows for one in files), sum(one.hash for one in files) & MASK)
        ledger.check(
            footer_rows_in=rows_in.base_rows,
            header_entries=rows_in.log_entries,
            footer_rows_out=sum(one.rows for one in files),
            where=join(partition, names[0].file_id),
        )
    except BaseException:
        storage.delete_all([one.staged for one in files])
        raise
    return Made(
        partition=partition,
        inputs=inputs,
        files=tuple(files),
        ledger=ledger,
        seconds=round(time.monotonic() - started, 3),
        logs=rows_in.logs_read(),
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


def _copied_file(storage: Storage, recipe: OutputFileSpec, rows_in: RowsIn, name: BaseFileName) -> MadeFile:
    staged = _staged_path(recipe)
    with staged_output(storage, staged) as file:
        copied = _write_copied(file, recipe, rows_in, str(name))
    made = _read_back(storage, recipe, staged, rows_in.inputs[0].partition, name, copied.rows)
    try:
        with storage.open_input(staged) as source:
            check_copied(source, staged, copied)
    except LedgerError:
        storage.delete(staged)
        raise
    return replace(made, copied_row_groups=len(copied.chunks))


def _encoded_files(
    storage: Storage, recipe: OutputFileSpec, rows_in: RowsIn, names: Sequence[BaseFileName]
) -> Iterator[MadeFile]:
    """The files, each with about as many rows; a file without rows is not made."""
    partition = rows_in.inputs[0].partition
    if len(names) == 1 and not recipe.sort_by:
        parts: Iterable[Iterable[pa.RecordBatch]] = [rows_in.batches()]
    else:
        rows = _held(rows_in.batches(), recipe)
        ends = [number * rows.num_rows // len(names) for number in range(len(names) + 1)]
        cuts = (rows.slice(begin, end - begin) for begin, end in pairwise(ends) if end > begin)
        parts = (cut.to_batches(max_chunksize=recipe.rules.batch_rows) for cut in cuts)
    for name, part in zip(names, parts, strict=False):
        staged = _staged_path(recipe)
        written = _stage_encoded(storage, staged, recipe, part, str(name))
        if written:
            yield _read_back(storage, recipe, staged, partition, name, written)
        else:
            storage.delete(staged)


def _staged_path(recipe: OutputFileSpec) -> str:
    return f"{staged_folder(recipe.instant)}/{uuid.uuid4().hex}.parquet"


def _read_back(
    storage: Storage, recipe: OutputFileSpec, staged: str, partition: str, name: BaseFileName, written: int
) -> MadeFile:
    """The staged file. LedgerError: it has not the rows that were written, and is removed."""
    rows, hash_, size = read_back(storage, staged, recipe.rules)
    if rows != written:
        storage.delete(staged)
        raise LedgerError(
            "a written file has other rows than were written", path=staged, expected=str(written), found=str(rows)
        )
    return MadeFile(
        file_id=name.file_id,
        staged=staged,
        final=join(partition, str(name)),
        size=size,
        rows=rows,
        hash=hash_,
        ranges=recipe.measure.file(storage, staged, str(name)) if recipe.measure is not None else None,
    )


def _stage_encoded(
    storage: Storage, staged: str, recipe: OutputFileSpec, batches: Iterable[pa.RecordBatch], name: str
) -> int:
    schema = recipe.rules.schema
    with staged_output(storage, staged) as file:
        return write_base_file(
            file,
            batches,
            name=name,
            schema=schema,
            schema_text=recipe.schema_text,
            key_column=RECORD_KEY if RECORD_KEY in schema.names else None,
            output=recipe.output,
        )


def _held(batches: Iterable[pa.RecordBatch], recipe: OutputFileSpec) -> pa.Table:
    """All rows, sorted. UsageError: they exceed half of the memory limit; sorting takes as much again."""
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
    schema = project(recipe.rules.schema, merged_columns(recipe.rules))
    rows = pa.Table.from_batches(held, held[0].schema if held else schema)
    return sorted_rows(rows, recipe.sort_by, recipe.sort_order) if recipe.sort_by else rows
