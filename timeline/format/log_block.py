"""Log files: the framing of their blocks, and which blocks of a file slice count, in which order.

A log file is a run of blocks without file header or trailer. All integers are big-endian. The format version is 1, with
the same bytes in table versions 6, 8 and 9:

    #HUDI#  6     magic
    S       8     bytes after this field to the end of the block, field `T` included
    version 4     1
    type    4     `BlockKind`
    headers       int32 count, then count x {int32 key, int32 length, UTF-8 value}
    C       8     content length
    content C
    footers       as headers, always empty
    T       8     S + 6: reverse pointer and corruption check

A block that breaks this framing (torn write) extends to the next magic or the end of the file. It is reported as
CORRUPT and reading continues after it, as in Hudi.

RECORD_POSITIONS, which names the rows of the base file that a block's records replace, is not read: merging goes by
keys. That all blocks have it tells that every row of a key was found, see `slice_merge` (hudi-format.md 5.2).

Which blocks count: the rules are those of Hudi 1.x for every table version. On version 6 they deliberately differ from
0.15.0 in two points. A block newer than the query instant is skipped; 0.15 stops reading the slice there and so hides
completed rows after a rollback. A log-compacted block takes the place of its newest original; 0.15's default scan
applies it after all other blocks, later updates included."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

from ..errors import MalformedError, decoding

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"#HUDI#"
FORMAT_VERSION = 1
_SEARCH_STEP_BYTES = 1 << 20
_FIXED_BYTES = 4 + 4 + 4 + 8 + 4 + 8  # version, type, empty headers, C, empty footers, T


class BlockKind(IntEnum):
    """Block type as stored; CORRUPT is never stored."""

    COMMAND = 0
    DELETE = 1
    CORRUPT = 2
    AVRO_DATA = 3
    HFILE_DATA = 4
    PARQUET_DATA = 5
    CDC_DATA = 6


class HeaderKey(IntEnum):
    """Header keys as stored. Hudi 0.15 knows only those up to 6."""

    INSTANT_TIME = 0
    TARGET_INSTANT_TIME = 1
    SCHEMA = 2
    COMMAND_BLOCK_TYPE = 3
    COMPACTED_BLOCK_TIMES = 4
    RECORD_POSITIONS = 5
    BLOCK_IDENTIFIER = 6
    IS_PARTIAL = 7
    BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBlock:
    """The position of one block in a log file and its headers; the content is read on request.
    `is_named`: False if the block's write is known and does not name the file: then another attempt wrote the file."""

    path: str
    offset: int
    kind: BlockKind
    headers: Mapping[HeaderKey, str] = field(default_factory=dict)
    content_offset: int = 0
    content_bytes: int = 0
    is_named: bool = True

    def header(self, key: HeaderKey) -> str:
        """The value of a header that this kind of block must have."""
        value = self.headers.get(key)
        if value is None:
            found = f"{self.kind.name} at byte {self.offset}"
            raise MalformedError(f"log block without its {key.name} header", path=self.path, found=found)
        return value

    @property
    def instant(self) -> str:
        return self.header(HeaderKey.INSTANT_TIME)

    @property
    def is_partial(self) -> bool:
        """Whether its rows are partial updates: they have only the columns of the block's schema."""
        return self.kind is not BlockKind.DELETE and self.headers.get(HeaderKey.IS_PARTIAL, "").lower() == "true"

    def names_rows_of(self, base: str | None) -> bool:
        """Whether it names the rows of this base file that its entries change, by their positions. `base`: its instant,
        None: there is none."""
        named = self.headers.get(HeaderKey.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS)
        return base is not None and named == base and HeaderKey.RECORD_POSITIONS in self.headers

    @property
    def compacted_instants(self) -> tuple[str, ...]:
        """The instants whose blocks this block replaces (log compaction); empty for ordinary blocks."""
        text = self.headers.get(HeaderKey.COMPACTED_BLOCK_TIMES, "")
        return tuple(part.strip() for part in text.split(",") if part.strip())


def scan_blocks(source: pa.NativeFile, path: str) -> Iterator[LogBlock]:
    """Every block of a log file, front to back; reads only headers.
    MalformedError: the file does not begin with a block, or a well-framed block has impossible headers."""
    size = source.size()
    offset = 0
    while offset < size:
        with decoding("not a log file", path):
            block, offset = _block_at(source, path, offset, size)
        yield block


def _block_at(source: pa.NativeFile, path: str, offset: int, size: int) -> tuple[LogBlock, int]:
    head = _bytes(source, offset, 14)
    if len(head) < len(MAGIC):
        # Hudi reaches the end of the file while it reads the magic: no block begins here.
        return LogBlock(path=path, offset=offset, kind=BlockKind.CORRUPT), size
    if head[:6] != MAGIC:
        found = f"{head[:6]!r} at byte {offset}"
        raise MalformedError("log file does not continue with a block", expected=MAGIC.decode(), found=found)
    if len(head) == 14:
        (length,) = struct.unpack_from(">q", head, 6)
        end = offset + 14 + length
        if length >= _FIXED_BYTES and end <= size and _is_sound(source, length, end, size):
            return _framed_block(source, path, offset, end), end
    return LogBlock(path=path, offset=offset, kind=BlockKind.CORRUPT), _next_magic(source, offset + 1, size)


def _is_sound(source: pa.NativeFile, length: int, end: int, size: int) -> bool:
    (total,) = struct.unpack(">q", _bytes(source, end - 8, 8))
    behind = _bytes(source, end, min(6, size - end))
    return total == length + 6 and (len(behind) < len(MAGIC) or behind == MAGIC)


def _framed_block(source: pa.NativeFile, path: str, offset: int, end: int) -> LogBlock:
    reader = _Reader(source, offset + 14, end)
    version = reader.integer(4)
    if version != FORMAT_VERSION:
        raise MalformedError("unknown log format version", expected="1", found=f"{version} at byte {offset}")
    kind = reader.integer(4)
    if kind not in _KINDS_ON_DISK:
        raise MalformedError("unknown log block type", found=f"{kind} at byte {offset}")
    headers = reader.header_map()
    content_bytes = reader.integer(8)
    if not 0 <= content_bytes <= end - reader.position - 12:
        found = f"{content_bytes} bytes at byte {reader.position}"
        raise MalformedError("log block content extends past its block", found=found)
    return LogBlock(
        path=path,
        offset=offset,
        kind=BlockKind(kind),
        headers=headers,
        content_offset=reader.position,
        content_bytes=content_bytes,
    )


_KINDS_ON_DISK = frozenset(BlockKind) - {BlockKind.CORRUPT}


def _next_magic(source: pa.NativeFile, start: int, size: int) -> int:
    """Offset of the next magic at or after `start`, or the end of the file."""
    while start < size:
        window = _bytes(source, start, _SEARCH_STEP_BYTES + len(MAGIC) - 1)
        found = window.find(MAGIC)
        if found >= 0:
            return start + found
        start += _SEARCH_STEP_BYTES
    return size


def _bytes(source: pa.NativeFile, offset: int, count: int) -> bytes:
    return bytes(source.read_at(count, offset)) if count > 0 else b""


class _Reader:
    """Reads the front of one block, never past the block's end."""

    def __init__(self, source: pa.NativeFile, position: int, end: int) -> None:
        self._source, self.position, self._end = source, position, end

    def _take(self, count: int) -> bytes:
        if count < 0 or self.position + count > self._end:
            found = f"{count} bytes at byte {self.position}"
            raise MalformedError("log block header extends past its block", found=found)
        data = _bytes(self._source, self.position, count)
        self.position += count
        return data

    def integer(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big", signed=True)

    def header_map(self) -> dict[HeaderKey, str]:
        headers: dict[HeaderKey, str] = {}
        for _ in range(self.integer(4)):
            ordinal, length = self.integer(4), self.integer(4)
            value: Any = self._take(length)
            try:
                headers[HeaderKey(ordinal)] = value.decode()
            except ValueError as error:
                raise MalformedError("unreadable log block header", found=f"key {ordinal}: {error}") from error
        return headers


_DATA_KINDS = frozenset({BlockKind.AVRO_DATA, BlockKind.PARQUET_DATA, BlockKind.HFILE_DATA, BlockKind.DELETE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """Which instants' blocks are visible to one reader. `latest`: blocks of later instants are hidden. `hidden`: blocks
    of these instants never count. `completed` / `pending`: instants of the active timeline. `start`: first instant of
    the active timeline; earlier instants that are in neither set were archived and count as completed. `by_file`: the
    view has already dropped files of instants that are not completed (v8+), so blocks are judged by `latest` and
    `hidden`, and hidden while their instant is pending: Hudi names log files of new consistent-hashing buckets after
    the resize, and not after the delta commit."""

    latest: str
    completed: frozenset[str]
    pending: frozenset[str]
    start: str
    by_file: bool
    hidden: frozenset[str] = frozenset()

    def is_committed(self, instant: str) -> bool:
        """Whether an instant is completed, or older than the active timeline and not pending in it."""
        return instant in self.completed or (instant not in self.pending and instant < self.start)


class Skipped(Enum):
    """Why a block does not count."""

    CORRUPT = "corrupt"
    NOT_YET = "newer than the query instant"
    UNCOMMITTED = "uncommitted"
    ROLLED_BACK = "rolled back"
    LOG_COMPACTED = "replaced by log compaction"
    CHANGE_DATA = "change data"
    NOT_NAMED = "another attempt's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The blocks to merge, oldest first, and the blocks left out, each with its reason."""

    blocks: tuple[LogBlock, ...]
    skipped: tuple[tuple[LogBlock, Skipped], ...]


def select_blocks(blocks: Iterable[LogBlock], visibility: Visibility) -> Selection:
    """Divides a slice's blocks, given in log order, into those that count and those that do not."""
    kept: list[LogBlock] = []
    skipped: list[tuple[LogBlock, Skipped]] = []
    for block in blocks:
        if block.kind is BlockKind.CORRUPT:
            skipped.append((block, Skipped.CORRUPT))
        elif not block.is_named:
            skipped.append((block, Skipped.NOT_NAMED))
        elif block.kind is BlockKind.CDC_DATA:
            skipped.append((block, Skipped.CHANGE_DATA))
        elif block.kind is BlockKind.COMMAND:
            # A rollback revokes earlier blocks of its target; later blocks of the target are from another attempt.
            target = block.header(HeaderKey.TARGET_INSTANT_TIME)
            skipped += [(b, Skipped.ROLLED_BACK) for b in kept if b.instant == target]
            kept = [b for b in kept if b.instant != target]
        elif (reason := _hidden(block, visibility)) is not None:
            skipped.append((block, reason))
        else:
            assert block.kind in _DATA_KINDS
            kept.append(block)
    ordered, replaced = _apply_log_compaction(kept)
    return Selection(blocks=ordered, skipped=(*skipped, *((b, Skipped.LOG_COMPACTED) for b in replaced)))


def _hidden(block: LogBlock, visibility: Visibility) -> Skipped | None:
    if block.instant > visibility.latest or block.instant in visibility.hidden:
        return Skipped.NOT_YET
    if block.instant in visibility.pending if visibility.by_file else not visibility.is_committed(block.instant):
        return Skipped.UNCOMMITTED
    return None


def _apply_log_compaction(blocks: list[LogBlock]) -> tuple[tuple[LogBlock, ...], tuple[LogBlock, ...]]:
    """Puts each log-compacted block in the place of the newest block that it replaces, and drops the replaced blocks.
    Blocks are grouped by instant in order of first appearance. A compacted block may itself have been compacted again:
    the chain is followed to its end. A compacted block is dropped if none of its originals is present, as in Hudi: then
    a compaction that was requested while the log compaction was pending has merged the originals, and the blocks after
    them, into the base file of the slice."""
    by_instant: dict[str, list[LogBlock]] = {}
    replaced_by: dict[str, str] = {}
    for block in blocks:
        by_instant.setdefault(block.instant, []).append(block)
        for original in block.compacted_instants:
            replaced_by[original] = block.instant
    compacted = {block.instant for block in blocks if block.compacted_instants}
    plain = [instant for instant in by_instant if instant not in compacted]
    newest_first = dict.fromkeys(_final(instant, replaced_by) for instant in reversed(plain))
    kept = tuple(b for instant in reversed(newest_first) for b in by_instant[instant])
    dropped = tuple(b for instant, group in by_instant.items() if instant not in newest_first for b in group)
    return kept, dropped


def _final(instant: str, replaced_by: dict[str, str]) -> str:
    """The end of the chain of log compactions that an instant's blocks went into."""
    seen = {instant}
    while (after := replaced_by.get(instant)) is not None and after not in seen:
        instant = after
        seen.add(instant)
    return instant
