"""The log side of one slice: its blocks, decoded and folded in memory or, above the memory limit, spilled.

Planning checks whether every log file of a table can be merged. All log files of a writer begin alike: apart from
instant and lengths, the front of a block is the same text, most of it the schema. `check_slice` gives the same result
for equal fronts, so each front is checked once (`KnownBlocks`).

    #HUDI#  S  version type count INSTANT_TIME 17 <instant> other headers  C  content version, count ...  T
               `- opening ----------------------'           `- rest -----'"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from ..codec.arrow_schema import avro_field, project
from ..codec.avro_schema import parse_avro
from ..codec.conform import check_conformable
from ..codec.stored_names import stored
from ..errors import MalformedError, PhantombaseError, UnsupportedError
from ..format.log_block import (
    MAGIC,
    BlockKind,
    HeaderKey,
    LogBlock,
    Selection,
    Skipped,
    Visibility,
    scan_blocks,
    select_blocks,
)
from ..format.log_decode import CONTENT_VERSION, check_block, count_entries, decode_rows, decoding
from ..format.log_deletes import Deletes, decode_deletes
from ..format.merge_settings import DeleteMarker
from ..prefetch import prefetched
from ..storage.contract import Storage, open_listed
from ..storage.local import open_little
from ..view.log_blocks import blocks_of, check_base, open_headers, slice_blocks
from ..view.view import FileSlice, LogFile
from .gaps import SHAPE, Shapes
from .log_fold import LogFold, Winners
from .rule import HUDI_0X, IS_DELETED, Keyed, MergeRule, SliceRules, Where
from .spilled_merge import LogSpill, spill_folder

_PARTITIONS_MAX = 256
"""Most partitions of a spill; each has two open files while log blocks are read."""


def may_delete(storage: Storage, marker: DeleteMarker | None, slice_: FileSlice) -> bool:
    """Whether the log files of a slice may have entries that delete, by the headers of their blocks."""
    return any(block_may_delete(block, marker) for block in slice_blocks(storage, slice_))


def log_may_delete(storage: Storage, marker: DeleteMarker | None, path: str) -> bool:
    """Whether the log file at a path may have entries that delete, as in `may_delete`."""
    with storage.open_input(path) as source:
        return any(block_may_delete(block, marker) for block in scan_blocks(source, path))


def block_may_delete(block: LogBlock, marker: DeleteMarker | None) -> bool:
    return block.kind is BlockKind.DELETE or _may_mark(block, marker)


def _may_mark(block: LogBlock, marker: DeleteMarker | None) -> bool:
    """Whether rows of a block may be marked deleted: its schema has a column for that."""
    schema = block.headers.get(HeaderKey.SCHEMA, "")
    return any(f'"{name}"' in schema for name in (IS_DELETED, *([marker.field] if marker else [])))


def may_delete_by_value(storage: Storage, marker: DeleteMarker | None, slice_: FileSlice) -> bool:
    """Whether the log files of a slice may have deletes with an ordering value, against which a later row may lose."""
    for log in slice_.logs:
        with open_listed(storage, log.path, log.size) as source:
            for block in blocks_of(log, source):
                if _may_mark(block, marker):
                    return True
                if block.kind is BlockKind.DELETE:
                    parts = decode_deletes(block, source)
                    if not all(pc.all(part.natural).as_py() for part in parts):
                        return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCounts:
    """The content of a slice's logs: entries by block headers, blocks that count, blocks skipped by cause.
    `merged`: the instants of the blocks that count. `uncommitted`: the instants of blocks skipped as uncommitted; these
    may count later in the same files. `by_position`: all blocks name rows of the slice's base file by their positions,
    so their writes have found each row of a key that is doubled there."""

    entries: int = 0
    blocks: int = 0
    skipped: tuple[tuple[Skipped, int], ...] = ()
    merged: tuple[str, ...] = ()
    uncommitted: tuple[str, ...] = ()
    by_position: bool = False

    def skipped_blocks(self, cause: Skipped) -> int:
        """Number of blocks skipped for one cause."""
        return dict(self.skipped).get(cause, 0)


_DECAY_MS, _LONG_DECAY_MS = 1_000, 10_000
_SMALL = 8
"""Decoded and merged, logs need less memory than this many times their bytes."""


def keep_freed(slice_: FileSlice, limit_bytes: int | None) -> None:
    """Sets how long Arrow retains memory that was freed. `limit_bytes`: the memory limit of the merge, None for none.
    Each batch of a slice reuses the memory that the previous one freed. Arrow's default returns freed memory after a
    second, and then the same pages are requested again and again: a tenth of the processor's time. A longer retention
    raises the peak, so only slices that are small against the memory limit have it. The setting holds for the process,
    until the next slice."""
    if pa.default_memory_pool().backend_name == "jemalloc":
        is_small = limit_bytes is None or _SMALL * slice_.log_bytes <= limit_bytes
        pa.jemalloc_set_decay_ms(_LONG_DECAY_MS if is_small else _DECAY_MS)


def read_logs(
    storage: Storage, slice_: FileSlice, rules: SliceRules, out: pa.Schema, stack: ExitStack, where: Where | None = None
) -> tuple[Winners | LogSpill, LogCounts]:
    """Decodes all blocks that count; returns the winners, or the spill if the entries exceeded the memory limit.
    `out`: the needed columns of rows. `stack` closes open files, and the spill's files. `where`: a read's filter; only
    entries of its keys are kept."""
    slice_.check_whole(storage.base_path)
    keep_freed(slice_, rules.memory_bytes)
    if not slice_.logs and rules.merge.unset is None:
        return _no_winners(rules.merge, out), LogCounts()
    sources = _opened(storage, slice_, stack)
    selection = _select(slice_, sources, rules.visibility)
    each = (_partial_columns(block, rules) for block in selection.blocks)
    partial = dict.fromkeys(columns for columns in each if columns is not None)
    shapes = Shapes(shapes=tuple(partial)) if partial else None
    fold, spill = LogFold(rules.merge, out, shapes), None
    total_bytes = sum(b.content_bytes for b in selection.blocks)
    entries, read_bytes = 0, 0.0
    for block in selection.blocks:
        count, found = count_entries(block, sources[block.path]), 0
        for part in _parts(block, sources[block.path], rules, out, shapes):
            found += len(part.keys)
            if isinstance(part, Keyed):
                fold.add_rows(where.keyed(part) if where else part)
            else:
                fold.add_deletes(where.deletes(part) if where else part)
            if fold.nbytes > rules.fold_bytes:
                share = (read_bytes + block.content_bytes * found / max(count, found, 1)) / total_bytes
                spill = spill or _open_spill(fold.nbytes / share, rules, out, stack, shapes)
                spill.add(fold.drain())
        if found != count:
            what = "number of entries in a log block differs from its header"
            raise MalformedError(what, path=block.path, expected=str(count), found=str(found))
        entries += count
        read_bytes += block.content_bytes
    counts = replace(count_blocks(selection, entries), by_position=_names_base_rows(slice_, selection))
    if spill is None:
        return fold.finish(), counts
    spill.add(fold.drain())
    return spill, counts


def _names_base_rows(slice_: FileSlice, selection: Selection) -> bool:
    base = slice_.base.name.instant if slice_.base is not None else None
    return all(block.names_rows_of(base) for block in selection.blocks)


@lru_cache(maxsize=64)
def _no_winners(rule: MergeRule, schema: pa.Schema) -> Winners:
    return LogFold(rule, schema).finish()


def _partial_columns(block: LogBlock, rules: SliceRules) -> frozenset[str] | None:
    """The columns of a block of partial updates, None if its rows are complete.
    UnsupportedError: a table of Hudi 0.15, which has no such blocks; a merge needs columns that the block lacks; rows
    of the table lack columns in another way, too."""
    if not block.is_partial:
        return None
    with decoding(block):
        columns = frozenset(field["name"] for field in parse_avro(block.header(HeaderKey.SCHEMA))["fields"])
    needed = {*rules.keys.fields, *rules.ordering_fields}
    named_alike = not rules.names.at(block.instant)
    whole_rows = rules.merge.mode in HUDI_0X or rules.merge.unset is not None
    if whole_rows or not needed <= columns or not named_alike:
        raise UnsupportedError(
            "these partial-update log blocks are not supported",
            path=block.path,
            instant=block.instant,
            expected=f"versions 8 and 9 without a partial update mode, the columns {', '.join(sorted(needed))}, and no "
            "column renamed since",
            found=f"{rules.merge.mode.value}, {', '.join(sorted(columns))}{'' if named_alike else ', renamed since'}",
            todo="Compact the table with Hudi.",
        )
    return columns


def _parts(
    block: LogBlock, source: pa.NativeFile, rules: SliceRules, out: pa.Schema, shapes: Shapes | None
) -> Iterator[Keyed | Deletes]:
    _check_deletes(block, rules)
    if block.kind is BlockKind.DELETE:
        yield from decode_deletes(block, source)
        return
    # Rows marked deleted count only if the table has the column.
    there = frozenset(rules.schema.names)
    marks = [name for name in rules.merge.deleting_columns if name in there]
    schema = project(rules.schema, [*out.names, *rules.keys.fields, *rules.ordering_fields, *marks])
    if shapes is not None:
        schema = pa.schema([field.with_nullable(True) for field in schema])
    columns, text = _partial_columns(block, rules), rules.float_text_in_logs
    for rows in decode_rows(
        block,
        source,
        schema,
        float_as_text=text,
        part_bytes=rules.part_bytes,
        partial=columns is not None,
        names=rules.names.at(block.instant),
        defaults=rules.defaults,
    ):
        keyed = rules.keyed(rows, out.names, block.path)
        if shapes is not None:
            shape = pa.repeat(pa.scalar(shapes.shape_of(columns), pa.int32()), len(keyed.keys))
            keyed = replace(keyed, rows=keyed.rows.append_column(pa.field(SHAPE, pa.int32()), shape))
        yield keyed


def _open_spill(
    expected_bytes: float, rules: SliceRules, out: pa.Schema, stack: ExitStack, shapes: Shapes | None
) -> LogSpill:
    """Opens a spill whose partitions take at most half of the allowed memory each, if keys spread evenly."""
    partitions = min(_PARTITIONS_MAX, max(2, math.ceil(2 * expected_bytes / rules.fold_bytes)))
    return LogSpill(stack.enter_context(spill_folder(rules.spill_folder)), rules.merge, out, partitions, shapes)


def check_slice(storage: Storage, slice_: FileSlice, rules: SliceRules) -> None:
    """UnsupportedError or MalformedError if the slice's log files could not be merged; reads only headers."""
    slice_.check_whole(storage.base_path)
    if slice_.base is not None:
        rules.names.at(slice_.base.name.instant)
    with ExitStack() as stack:
        sources = _opened(storage, slice_, stack, headers=True)
        for block in _select(slice_, sources, rules.visibility).blocks:
            check_mergeable(block, sources[block.path], rules)


def check_mergeable(block: LogBlock, source: pa.NativeFile, rules: SliceRules) -> None:
    """See `check_slice`. Reads only headers and the content's version: `KnownBlocks` relies on that."""
    rules.names.at(block.instant)
    _check_deletes(block, rules)
    partial = _partial_columns(block, rules)
    check_block(block, source, partial=partial is not None)
    if block.kind is not BlockKind.DELETE:
        with decoding(block):
            _check_types(block, rules, partial is not None)


def _check_types(block: LogBlock, rules: SliceRules, is_partial: bool) -> None:
    """Raises the errors of `conform` that the types of a block's columns show before the merge."""
    names = rules.names.at(block.instant)
    text = block.header(HeaderKey.SCHEMA)
    wanted = stored(rules.schema.names, names, [field["name"] for field in parse_avro(text)["fields"]])
    there, rows = _columns(text, tuple(wanted)), not is_partial
    check_conformable(there, rules.schema, block.path, names=names, defaults=rules.defaults, rows=rows)


@lru_cache(maxsize=64)
def _columns(schema_text: str, wanted: tuple[str, ...]) -> pa.Schema:
    found = {field["name"]: field["type"] for field in parse_avro(schema_text)["fields"]}
    return pa.schema([avro_field(name, found[name]) for name in wanted if name in found])


def _check_deletes(block: LogBlock, rules: SliceRules) -> None:
    if block.kind is BlockKind.DELETE and rules.keys.other_in_deletes:
        what = "deletes from a table with virtual keys of one field by the COMPLEX key generator are not supported"
        expected = "a key of several fields, another key generator, or hoodie.populate.meta.fields=true"
        found = f"a log block that deletes {rules.keys.fields[0]}:value, or value"
        todo = "Compact the table with Hudi: it finds such rows by their position in the base file."
        raise UnsupportedError(what, path=block.path, instant=block.instant, expected=expected, found=found, todo=todo)


def _opened(
    storage: Storage, slice_: FileSlice, stack: ExitStack, *, headers: bool = False
) -> dict[str, pa.NativeFile]:
    """The slice's log files, opened concurrently where opening is a request; `headers`: little of them is read."""

    def opened(log: LogFile) -> pa.NativeFile:
        return open_headers(storage, log) if headers else open_listed(storage, log.path, log.size)

    sources = map(opened, slice_.logs) if storage.is_file_system else prefetched(slice_.logs, opened)
    return {log.path: stack.enter_context(source) for log, source in zip(slice_.logs, sources, strict=True)}


def _select(slice_: FileSlice, sources: Mapping[str, pa.NativeFile], visibility: Visibility) -> Selection:
    """Errors as `blocks_of` and `check_base`."""
    found = select_blocks((b for log in slice_.logs for b in blocks_of(log, sources[log.path])), visibility)
    if visibility.by_file:
        check_base(slice_, found)
    return found


def count_blocks(selection: Selection, entries: int) -> LogCounts:
    """The counts of a selection; `entries` by block headers."""
    causes = Counter(cause for _, cause in selection.skipped)
    uncommitted = {block.instant for block, cause in selection.skipped if cause is Skipped.UNCOMMITTED}
    return LogCounts(
        entries=entries,
        blocks=len(selection.blocks),
        skipped=tuple(causes.items()),
        merged=tuple(sorted({block.instant for block in selection.blocks})),
        uncommitted=tuple(sorted(uncommitted)),
    )


def log_entries(storage: Storage, slice_: FileSlice, visibility: Visibility) -> Counter[BlockKind]:
    """Entries of the blocks that count, by kind, according to headers and footers."""
    counts: Counter[BlockKind] = Counter()
    with ExitStack() as stack:
        sources = _opened(storage, slice_, stack, headers=True)
        for block in _select(slice_, sources, visibility).blocks:
            counts[block.kind] += count_entries(block, sources[block.path])
    return counts


def merged_files(storage: Storage, slice_: FileSlice, rules: SliceRules) -> set[str]:
    """Paths of the log files with blocks that count, without files that a log compaction replaces."""
    return {block.path for block in select_blocks(slice_blocks(storage, slice_), rules.visibility).blocks}


_OPENING, _INSTANT, _REST = slice(14, 34), slice(34, 51), 51
_TYPE = slice(18, 22)
_FIRST_HEADER = bytes(4) + (17).to_bytes(4, "big")
_KINDS = (BlockKind.AVRO_DATA, BlockKind.PARQUET_DATA, BlockKind.DELETE)
_PARQUET = BlockKind.PARQUET_DATA.to_bytes(4, "big")
_VERSION = CONTENT_VERSION.to_bytes(4, "big")
_VERSION_AND_COUNT = 8
_BEHIND_CONTENT = 12
_FRONT_BYTES = 4 << 10


class KnownBlocks:
    """Fronts of blocks that can be merged. May be used by several threads."""

    def __init__(self, storage: Storage, rules: SliceRules) -> None:
        self._storage, self._rules = storage, rules
        self._rests: dict[bytes, tuple[bytes, ...]] = {}
        self._front_bytes = _FRONT_BYTES

    def hold(self, path: str) -> bool:
        """Whether the log file is one complete block that is no reason to refuse a slice.
        False: unknown, `check_slice` decides. Errors as `Storage.open_input`."""
        with open_little(self._storage, path) as source:
            size = source.size()
            front = source.read_at(min(size, self._front_bytes), 0)
            if len(front) <= _REST or front[:6] != MAGIC or not front[_INSTANT].isdigit():
                return False
            # The block ends at the end of the file, and its length is at both of its ends.
            length = int.from_bytes(front[6:14], "big")
            if 14 + length != size or int.from_bytes(source.read_at(8, size - 8), "big") != length + 6:
                return False
            rests = self._rests.get(front[_OPENING], ())
            rest = next((r for r in rests if front.startswith(r, _REST)), None)
            if rest is None:
                return self._judge(source, path)
        return _is_sound(front, _REST + len(rest), size)

    def _judge(self, source: pa.NativeFile, path: str) -> bool:
        """Whether the block can be merged and has the usual form; then its front is kept."""
        try:
            (block,) = scan_blocks(source, path)
            if block.kind not in _KINDS:
                return False
            check_mergeable(block, source, self._rules)
        except (PhantombaseError, ValueError):
            return False
        front = source.read_at(block.content_offset - 8, 0)
        if not front[_OPENING].endswith(_FIRST_HEADER):
            return False
        self._rests[front[_OPENING]] = (*self._rests.get(front[_OPENING], ()), front[_REST:])
        self._front_bytes = max(self._front_bytes, block.content_offset + _VERSION_AND_COUNT)
        return True


def _is_sound(front: bytes, at: int, size: int) -> bool:
    """Whether the content whose length is at this position has the length and version that a reader expects."""
    content, begin = int.from_bytes(front[at : at + 8], "big"), at + 8
    if not _VERSION_AND_COUNT <= content <= size - begin - _BEHIND_CONTENT:
        return False
    version, count = front[begin : begin + 4], front[begin + 4 : begin + 8]
    return front[_TYPE] == _PARQUET or (version == _VERSION and len(count) == 4 and count[0] < 128)
