"""The rows of data blocks as Arrow, and the number of entries that a block claims.

Avro data       int32 3, int32 n, n x {int32 length, Avro record in the block's SCHEMA}
Parquet data    a complete Parquet file
delete          see `log_deletes`"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
import pyarrow as pa

from .. import errors
from ..codec.avro_container import decode_long
from ..codec.avro_decode import REFUSALS, decode_framed, native_columns, record_starts
from ..codec.avro_schema import OPERATION, changelog, parse_avro
from ..codec.columns import counted
from ..codec.conform import NO_DEFAULTS, Defaults, conform
from ..codec.parquet_read import open_parquet, parquet_batches
from ..codec.stored_names import SAME_NAMES, Names, stored
from ..errors import MalformedError, UnsupportedError
from ..event_log import get_logger
from .log_block import BlockKind, HeaderKey, LogBlock

_log = get_logger()

CONTENT_VERSION = 3


def decode_rows(
    block: LogBlock,
    source: pa.NativeFile,
    schema: pa.Schema,
    *,
    float_as_text: bool = True,
    part_bytes: int | None = None,
    partial: bool = False,
    names: Names = SAME_NAMES,
    defaults: Defaults = NO_DEFAULTS,
) -> Iterator[pa.Table]:
    """The rows of a data block under `schema` (only its columns are decoded or read); see `conform` for
    `float_as_text`. A block of more than `part_bytes` encoded bytes is returned in several tables. `partial`: the
    caller knows which columns a block of partial updates lacks; these are null in the result. `names`: of the columns
    in the block. `defaults`: of the columns of `schema`. UnsupportedError: HFile blocks, changelogs, and partial
    updates unless `partial`. MalformedError: the content does not match the framing or the headers."""
    check_block(block, source, partial=partial)
    parquet = block.kind is BlockKind.PARQUET_DATA
    defaults = NO_DEFAULTS if block.is_partial else defaults
    with decoding(block):
        parts = (
            _parquet_rows(block, source, schema, part_bytes, names, defaults)
            if parquet
            else _avro_rows(block, source, schema, float_as_text, part_bytes, names, defaults)
        )
        yield from parts


def check_block(block: LogBlock, source: pa.NativeFile, *, partial: bool = False) -> None:
    """UnsupportedError if the block cannot be decoded; reads only its first bytes. `partial`: see `decode_rows`."""
    if block.is_partial and not partial:
        raise UnsupportedError(
            "partial-update log blocks are not supported here", path=block.path, instant=block.instant
        )
    if f'"{OPERATION}"' in block.headers.get(HeaderKey.SCHEMA, ""):
        raise changelog(block.path, block.instant)
    _check_kind(block)
    with decoding(block):
        if block.kind is not BlockKind.PARQUET_DATA:
            content_version(bytes(source.read_at(min(block.content_bytes, 8), block.content_offset)), block)


def _check_kind(block: LogBlock) -> None:
    if block.kind not in (BlockKind.AVRO_DATA, BlockKind.PARQUET_DATA, BlockKind.DELETE):
        todo = "Compact it with Hudi, and let its writers use hoodie.logfile.data.block.format=avro."
        what = f"{block.kind.name} log blocks are not supported in data tables"
        raise UnsupportedError(what, path=block.path, todo=todo)


def count_entries(block: LogBlock, source: pa.NativeFile) -> int:
    """The number of entries from the block's own header or Parquet footer, without decoding the entries.
    UnsupportedError: blocks of other kinds."""
    _check_kind(block)
    with decoding(block):
        if block.kind is BlockKind.PARQUET_DATA:
            return int(open_parquet(pa.BufferReader(content_of(block, source))).metadata.num_rows)
        head = bytes(source.read_at(min(block.content_bytes, 18), block.content_offset))
        if block.kind is BlockKind.AVRO_DATA:
            return content_version(head, block)
        content_version(head, block)
        return abs(decode_long(head, 8)[0])


def _parquet_rows(
    block: LogBlock, source: pa.NativeFile, schema: pa.Schema, part_bytes: int | None, names: Names, defaults: Defaults
) -> Iterator[pa.Table]:
    content = pa.BufferReader(content_of(block, source))
    file = open_parquet(content)
    wanted = stored(schema.names, names, file.schema_arrow.names)
    metadata = file.metadata
    rows = max(1, metadata.num_rows)
    decoded = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if part_bytes is not None and decoded > part_bytes:
        rows = max(1, rows * part_bytes // decoded)
    if not metadata.num_rows:
        yield conform(file.schema_arrow.empty_table(), schema, block.path, names=names, defaults=defaults)
    for batch in parquet_batches(content, file, wanted, rows):
        yield conform(counted(batch), schema, block.path, names=names, defaults=defaults)


def _avro_rows(
    block: LogBlock,
    source: pa.NativeFile,
    schema: pa.Schema,
    text: bool,
    part_bytes: int | None,
    names: Names,
    defaults: Defaults,
) -> Iterator[pa.Table]:
    content = content_of(block, source)
    count = content_version(content[:8].to_pybytes(), block)
    record = parse_avro(block.header(HeaderKey.SCHEMA))
    columns = stored(schema.names, names, [f["name"] for f in record["fields"]])
    native = native_columns(block.header(HeaderKey.SCHEMA), tuple(columns)) if columns else None

    def conformed(table: pa.Table) -> pa.Table:
        return conform(table, schema, block.path, float_as_text=text, names=names, defaults=defaults)

    for data, rows in _avro_parts(block, content[8:], count, part_bytes):
        found = None
        if native is not None and rows:
            try:
                found = conformed(native.decode(data, rows))
            except REFUSALS as error:
                _log.debug("avro_decoder", decoder="numpy", path=block.path, offset=block.offset, reason=str(error))
                native = None
        if found is None:
            starts = record_starts(data, rows, block.path)
            found = conformed(counted(decode_framed(data, starts, record, block.path, columns), rows))
        yield found


def _avro_parts(
    block: LogBlock, data: pa.Buffer, count: int, part_bytes: int | None
) -> Iterator[tuple[pa.Buffer, int]]:
    """Runs of complete records, each with its record count. The length prefixes alone show the boundaries."""
    if part_bytes is None or data.size <= part_bytes or not count:
        yield data, count
        return
    ends = record_starts(data, count, block.path)[1:]
    start = first = 0
    while first < count:
        last = max(first + 1, int(np.searchsorted(ends, start + part_bytes, side="right")))
        end = int(ends[last - 1])
        yield data.slice(start, end - start), last - first
        start, first = end, last


def avro_values(block: LogBlock, source: pa.NativeFile) -> Iterator[bytes]:
    """The encoded records of an Avro block that is no block of rows."""
    with decoding(block):
        content = memoryview(content_of(block, source))
        count, position = content_version(bytes(content[:8]), block), 8
        for _ in range(count):
            (length,) = struct.unpack_from(">i", content, position)
            start, position = position + 4, position + 4 + length
            if length < 0 or position > len(content):
                raise MalformedError("record of an Avro block outside it", found=f"{length} bytes at byte {start}")
            yield bytes(content[start:position])
        if position != len(content):
            raise MalformedError("record lengths of an Avro block do not add up", found=f"{position} bytes")


def content_version(head: bytes, block: LogBlock) -> int:
    """The second int32 of a block's content; the first one, the content version, must be 3."""
    version, value = struct.unpack_from(">ii", head)
    if version != CONTENT_VERSION:
        what = f"{block.kind.name} log block of an old content version (Kryo or schema inside)"
        todo = "Compact the table once with the Hudi version that wrote it."
        raise UnsupportedError(what, path=block.path, expected="content version 3", found=str(version), todo=todo)
    if value < 0:
        raise MalformedError("negative count in a log block", path=block.path, found=str(value))
    return int(value)


def content_of(block: LogBlock, source: pa.NativeFile) -> pa.Buffer:
    """The block's content, without a copy if the file is memory-mapped."""
    source.seek(block.content_offset)
    content = source.read_buffer(block.content_bytes)
    if content.size != block.content_bytes:
        raise MalformedError(
            "log block content is shorter than its header says", path=block.path, found=f"{content.size} bytes"
        )
    return content


_BROKEN = (pa.ArrowException, ValueError, LookupError, TypeError, struct.error, EOFError, OverflowError, OSError)


def decoding(block: LogBlock) -> AbstractContextManager[None]:
    """Converts the errors that decoders raise on broken bytes into a PhantombaseError that names the file."""
    what = f"cannot decode the {block.kind.name} block at byte {block.offset}"
    return errors.decoding(what, block.path, *_BROKEN, RecursionError)
