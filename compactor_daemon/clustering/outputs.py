"""Makes the files of one group of a clustering: merges its slices one by one, stages the new base files, verifies that
no row differs.

Runs in a thread. The files get their final names when the clustering completes. Memory: a row group, and what merging
and sorting hold within the memory limit. Rows are encoded again, or the row groups of the inputs are copied as bytes:

    reencode  rows are decoded, and encoded into large row groups
    try       a new file is copied if no row group in it is small, and no file has an obstacle, see `copy_rules`
    force     a new file is copied, however small its row groups are

The keys, and the other columns that identify a row, are always decoded: for the key filter, the key range and the
ledger."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import IO

import pyarrow as pa

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.copy_rules import CopiedFile, Obstacle, check_copied, why_not_copied
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.codec.parquet_footer import Footer, read_footer
from phantombase.timeline.codec.parquet_write import HudiFooter, write_base_file
from phantombase.timeline.errors import LedgerError, UnsupportedError
from phantombase.timeline.format.file_name import BaseFileName
from phantombase.timeline.format.ledger import MASK, Ledger
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.view.view import FileSlice

from ..attempt.slice_record import OutputFile
from ..attempt.slice_task import read_back
from .choice import ClusteringWindow
from .options import Copy, SortOrder
from .rows_in import KeyTally, LogsRead, RowsIn
from .sorting import Sorting, ordered

_READ_BACK_AHEAD = 2
"""One file is read back while the next one is written."""
_KEYS_SHARE = 32
"""The part of the memory limit that the hashes of keys may take."""
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
    """What all files of a clustering have in common. `folder`: where they are staged. `indexed`: see `RowsIn`.
    `is_named`: their instant is known. Else their rows name only the file group, as rows in logs do, since a file's
    name has its instant."""

    folder: str
    rules: SliceRules
    schema_text: str
    output: OutputOptions
    measure: Measure | None
    sort_by: tuple[str, ...] = ()
    sort_order: SortOrder = SortOrder.ORDER
    copy: Copy = Copy.REENCODE
    indexed: bool = False
    is_named: bool = True

    def name_in_rows(self, name: BaseFileName) -> str:
        return str(name) if self.is_named else name.file_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The staged files of one group of a plan, none if its slices have no row. `inputs`: the slices whose rows they
    have; `ledger`: of all these rows; `logs`: see `LogsRead`. `copied_row_groups`: 0 if it was encoded. `encoded`: why
    it was not copied, "" if no copy was requested. `repeated_keys`: see `KeyTally`."""

    partition: str
    inputs: tuple[FileSlice, ...]
    files: tuple[OutputFile, ...]
    ledger: Ledger
    seconds: float
    logs: LogsRead = field(default_factory=LogsRead)
    copied_row_groups: int = 0
    encoded: str = ""
    repeated_keys: int = 0


def make(
    storage: Storage, recipe: OutputFileSpec, names: Sequence[BaseFileName], inputs: tuple[FileSlice, ...]
) -> Made:
    """Stages the files of a group. `names`: the final names of as many files as there may be. LedgerError: rows differ.
    UnsupportedError: see `RowsIn`. The staged files are removed then."""
    started, partition = time.monotonic(), inputs[0].partition
    encoded = _why_encoded(storage, recipe, inputs)
    files, staged, copied = list[OutputFile](), list[str](), 0
    stack = ExitStack()
    try:
        limit = recipe.output.memory_limit // _KEYS_SHARE
        keys = KeyTally(stack, limit, recipe.output.spill_dir)
        rows_in = RowsIn(storage, recipe.rules, inputs, keys, indexed=recipe.indexed)
        if encoded is None:
            staged.append(path := _staged_path(recipe))
            file, copied = _copied_file(storage, recipe, rows_in, names[0], path)
            files.append(file)
        else:
            files.extend(_encoded_files(storage, recipe, rows_in, names, staged))
        repeated = keys.repeated()
        ledger = rows_in.ledger(sum(one.rows for one in files), sum(int(one.hash, 16) for one in files) & MASK)
        ledger.check(
            footer_rows_in=rows_in.base_rows,
            header_entries=rows_in.log_entries,
            footer_rows_out=sum(one.rows for one in files),
            where=join(partition, names[0].file_id),
        )
    except BaseException:
        storage.delete_all(staged)
        raise
    finally:
        stack.close()
    return Made(
        partition=partition,
        inputs=inputs,
        files=tuple(files),
        ledger=ledger,
        seconds=round(time.monotonic() - started, 3),
        logs=rows_in.logs_read(),
        copied_row_groups=copied,
        encoded=encoded or "",
        repeated_keys=repeated,
    )


def _why_encoded(storage: Storage, recipe: OutputFileSpec, inputs: tuple[FileSlice, ...]) -> str | None:
    """Why the file is not copied; "" if no copy was asked for; None: it is. UnsupportedError: it must be."""
    if recipe.copy is Copy.REENCODE or recipe.sort_by:
        return ""
    obstacle = why_encoded(storage, inputs, recipe.rules.schema, recipe.copy)
    if obstacle is not None and recipe.copy is Copy.FORCE:
        raise cannot_copy(obstacle, storage.base_path)
    return None if obstacle is None else obstacle.why


def _copied_file(
    storage: Storage, recipe: OutputFileSpec, rows_in: RowsIn, name: BaseFileName, staged: str
) -> tuple[OutputFile, int]:
    """The file, and the number of its row groups."""
    with staged_output(storage, staged) as file:
        copied = _write_copied(file, recipe, rows_in, recipe.name_in_rows(name))
    made = _read_back(storage, recipe, staged, rows_in.inputs[0].partition, name, copied.rows)
    with storage.open_input(staged) as source:
        check_copied(source, staged, copied)
    return made, len(copied.chunks)


def _encoded_files(
    storage: Storage, recipe: OutputFileSpec, rows_in: RowsIn, names: Sequence[BaseFileName], staged: list[str]
) -> Iterator[OutputFile]:
    """The files, each with about as many rows; a file without rows is not made. Each is read back while the next one is
    written. `staged`: gets the paths of all."""
    partition = rows_in.inputs[0].partition

    def written() -> Generator[tuple[BaseFileName, str, int], None, None]:
        for name, part in zip(names, _parts(recipe, rows_in, len(names)), strict=False):
            staged.append(path := _staged_path(recipe))
            if rows := _stage_encoded(storage, path, recipe, part, recipe.name_in_rows(name)):
                yield name, path, rows
            else:
                storage.delete(path)

    def read(one: tuple[BaseFileName, str, int]) -> OutputFile:
        name, path, rows = one
        return _read_back(storage, recipe, path, partition, name, rows)

    with closing(written()) as files:
        yield from prefetched(files, read, _READ_BACK_AHEAD)


def _parts(recipe: OutputFileSpec, rows_in: RowsIn, number: int) -> Iterator[Iterable[pa.RecordBatch]]:
    """The rows of each file, in order. Several files share them evenly, whatever the batches: the same in every try."""
    if number == 1 and not recipe.sort_by:
        yield rows_in.batches()
        return
    rules = recipe.rules
    sorting = Sorting(
        columns=recipe.sort_by,
        order=recipe.sort_order,
        memory=recipe.output.memory_limit,
        folder=recipe.output.spill_dir,
        batch_rows=rules.batch_rows,
    )
    with ordered(rows_in.batches(), sorting) as found:
        for begin, end in pairwise(n * found.rows // number for n in range(number + 1)):
            if end > begin:
                yield found.next_rows(end - begin, rules.batch_rows)


def _staged_path(recipe: OutputFileSpec) -> str:
    return f"{recipe.folder}/{uuid.uuid4().hex}.parquet"


def _read_back(
    storage: Storage, recipe: OutputFileSpec, staged: str, partition: str, name: BaseFileName, written: int
) -> OutputFile:
    """The staged file. LedgerError: it has not the rows that were written."""
    rows, hash_, size = read_back(storage, staged, recipe.rules)
    if rows != written:
        raise LedgerError(
            "a written file has other rows than were written", path=staged, expected=str(written), found=str(rows)
        )
    return OutputFile(
        file_id=name.file_id,
        staged=staged,
        final=join(partition, str(name)),
        size=size,
        rows=rows,
        hash=f"{hash_:016x}",
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
