"""Log blocks to bytes: data, deletes, rollbacks (see `log_block` for the framing, `log_decode` for the content).

A block is returned as a list of parts to write in order (`file.writelines(block)`), which saves a copy of its content.
Java reads a block's content as one array, so the content must be below 2 GiB: callers use `split_rows`."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.arrow_schema import arrow_schema, arrow_type
from ..codec.avro_container import encode_long
from ..codec.avro_encode import encode_table, exact_rows
from ..codec.avro_schema import parse_avro
from ..codec.calendar import NEW_CALENDAR
from ..codec.columns import Indices, Ordering
from ..codec.parquet_write import open_parquet_writer
from ..errors import UnsupportedError, UsageError
from .log_block import FORMAT_VERSION, MAGIC, BlockKind, HeaderKey, LogBlock
from .log_decode import CONTENT_VERSION
from .log_deletes import ARRAY, INT, entry_layout, value_kinds

Parts: TypeAlias = list[bytes | pa.Buffer]
"""One block, or its content, cut at arbitrary places."""

CONTENT_BYTES_MAX = 2**31 - 1 - 64
"""Limit for one block: the longest array of common JVMs is a few bytes shorter than 2 GiB."""

BLOCK_BYTES = 128 << 20
"""Size in Arrow of the rows of one log block. Hudi's limit is 256 MiB (`hoodie.logfile.data.block.max.size`)."""


class LogFormat(Enum):
    """How data blocks store rows; every Hudi reader reads both."""

    PARQUET = "parquet"
    AVRO = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRows:
    """Which rows of the base file of an instant the entries of a block change: their numbers, ascending."""

    base: str
    numbers: Indices

    def slice(self, start: int, count: int) -> BaseRows:
        return BaseRows(base=self.base, numbers=self.numbers[start : start + count])

    @property
    def headers(self) -> dict[HeaderKey, str]:
        """Under Hudi's keys; the numbers as a 64-bit Roaring bitmap."""
        high, first, count = np.unique(self.numbers >> 16, return_index=True, return_counts=True)
        parts = [_container(self.numbers[at : at + n] & 0xFFFF) for at, n in zip(first, count, strict=True)]
        ends = 8 + 8 * len(parts) + np.cumsum([0, *map(len, parts)])
        named = np.stack([high, count - 1], axis=1).astype("<u2").tobytes()
        head = struct.pack("<QIII", 1, 0, 12346, len(parts)) + named + ends[:-1].astype("<u4").tobytes()
        return {
            HeaderKey.RECORD_POSITIONS: base64.b64encode(head + b"".join(parts)).decode(),
            HeaderKey.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS: self.base,
        }


def _container(numbers: Indices) -> bytes:
    """Numbers of 16 bits: as they are, or as bits if they are many."""
    if len(numbers) <= _CONTAINER_NUMBERS_MAX:
        return numbers.astype("<u2").tobytes()
    bits = np.zeros(1 << 16, np.bool_)
    bits[numbers] = True
    return np.packbits(bits, bitorder="little").tobytes()


_CONTAINER_NUMBERS_MAX = 4096


def data_block(
    rows: pa.Table,
    *,
    instant: str,
    schema_text: str,
    log_format: LogFormat,
    codec: str = "zstd",
    compacted: Sequence[str] = (),
    partial: bool = False,
    changed: BaseRows | None = None,
) -> Parts:
    """A data block of `instant` with these rows, which have the columns of `schema_text`, meta columns included.
    `compacted`: the instants whose blocks this block replaces, oldest first (log compaction). `partial`: the rows are
    updates of some columns: `schema_text` has these, not all of the table's. `changed`: in the rows'
    order. `codec`: of Parquet content (see `open_parquet_writer`); Avro content is never compressed. Memory: the
    encoded block. UsageError: no rows (Hudi writes no such block), content beyond 2 GiB, rows that do not match the
    schema (see `exact_rows`). UnsupportedError: column types that tables do not have."""
    if not rows.num_rows:
        raise UsageError("a log block without rows", instant=instant, todo="Write no block.")
    headers = _headers(instant, schema_text, compacted) | (_PARTIAL if partial else {})
    headers |= changed.headers if changed is not None else {}
    if log_format is LogFormat.PARQUET:
        return _block(BlockKind.PARQUET_DATA, headers, [_parquet_file(rows, schema_text, codec)])
    records = encode_table(rows, parse_avro(schema_text), framed=True)
    return _block(BlockKind.AVRO_DATA, headers, [struct.pack(">ii", CONTENT_VERSION, rows.num_rows), *records])


def hfile_block(content: bytes, *, instant: str, schema_text: str) -> Parts:
    """A data block of `instant` whose content is an HFile with Avro values of `schema_text` (metadata tables)."""
    return _block(BlockKind.HFILE_DATA, _headers(instant, schema_text, ()), [content])


def _parquet_file(rows: pa.Table, schema_text: str, codec: str) -> pa.Buffer:
    """A complete Parquet file with the footer entries that Hudi's own log blocks have, and its calendar."""
    schema = arrow_schema(schema_text)
    table = exact_rows(rows, schema)
    sink = pa.BufferOutputStream()
    with open_parquet_writer(sink, schema, codec, table) as writer:
        writer.write(table)
        writer.add_key_value_metadata({"parquet.avro.schema": schema_text, "writer.model.name": "avro", **NEW_CALENDAR})
    return sink.getvalue()


def delete_block(
    keys: pa.StringArray,
    partition_paths: pa.StringArray,
    ordering: Ordering,
    *,
    instant: str,
    schema_text: str,
    hudi_0x: bool,
    compacted: Sequence[str] = (),
    changed: BaseRows | None = None,
) -> Parts:
    """A delete block of `instant`; each entry has a key, its partition path and its ordering values. `ordering`: ()
    deletes every earlier row of the key (stored as Integer 0). One column deletes rows that are not newer by it;
    several (from table version 9 on) are compared as a tuple. A 0 in a single int column is stored as () is, in Hudi
    too. Other columns have their own type, so a 0 in them is an ordinary value. `hudi_0x`: the table is of version 6;
    there typed deletes on text, dates and decimals always take effect. `compacted`, `changed`: see `data_block`.
    UsageError: no keys, nulls, arrays of unequal length, content beyond 2 GiB, decimals of more than 15 digits on
    either side of the point, see also `_day_numbers`. UnsupportedError: a type by which Hudi cannot order."""
    if not len(keys):
        raise UsageError("a delete block without keys", instant=instant, todo="Write no block.")
    values = list(ordering) or [pa.repeat(pa.scalar(0, pa.int32()), len(keys))]
    named = {"key": keys, "path": partition_paths} | {f"value{i}": v for i, v in enumerate(values)}
    for name, array in named.items():
        if len(array) != len(keys) or array.null_count:
            expected, found = f"{len(keys)} values, no nulls", f"{len(array)} values, {array.null_count} nulls"
            raise UsageError(f"{name} of deletes", instant=instant, expected=expected, found=found)
    if not hudi_0x:
        values = [_day_numbers(v, alone=len(values) == 1) if pa.types.is_date32(v.type) else v for v in values]
    indexes = tuple(_wrapper(v.type) for v in values)
    branches = indexes if len(indexes) == 1 else (ARRAY, *indexes)
    constants, fields = entry_layout(branches)
    for i, kind in enumerate(value_kinds(branches)):
        named[f"value{i}"] = _as_wrapped(values[i], arrow_type(kind))
    named |= {name: pa.repeat(pa.scalar(value, pa.int32()), len(keys)) for name, value in constants.items()}
    entries = list(encode_table(pa.table(named), {"type": "record", "name": "entry", "fields": fields}))
    body = [encode_long(len(keys)), *entries, encode_long(0)]
    headers = _headers(instant, schema_text, compacted) | (changed.headers if changed is not None else {})
    return _block(BlockKind.DELETE, headers, [struct.pack(">ii", CONTENT_VERSION, _size(body, instant)), *body])


def group_block(instant: str) -> bytes:
    """The block without entries with which Hudi begins each file group of a metadata table."""
    return b"".join(
        bytes(part)
        for part in _block(
            BlockKind.DELETE, {HeaderKey.INSTANT_TIME: instant}, [struct.pack(">ii", CONTENT_VERSION, 1), b"\0"]
        )
    )


def archive_block(records: Sequence[bytes], schema_text: str) -> Parts:
    """A block of an archive of version 6: Avro records of `schema_text`, of no instant."""
    parts = [part for record in records for part in (struct.pack(">i", len(record)), record)]
    content = [struct.pack(">ii", CONTENT_VERSION, len(records)), *parts]
    return _block(BlockKind.AVRO_DATA, {HeaderKey.SCHEMA: schema_text}, content)


def rollback_block(instant: str, target: str) -> bytes:
    """A command block, written by the rollback `instant`, that revokes all blocks of `target` in its file slice."""
    headers = {
        HeaderKey.COMMAND_BLOCK_TYPE: "0",
        HeaderKey.INSTANT_TIME: instant,
        HeaderKey.TARGET_INSTANT_TIME: target,
    }
    return b"".join(_block(BlockKind.COMMAND, headers, []))


def copied_block(block: LogBlock, content: pa.Buffer, *, instant: str, compacted: Sequence[str]) -> Parts:
    """A data or delete block, copied by a log compaction at `instant`: the same content and record positions.
    `compacted`: see `data_block`. The block's kind and schema are enough to decode the content; rows that have only the
    columns of this schema remain partial updates."""
    headers = _headers(instant, block.header(HeaderKey.SCHEMA), compacted)
    kept = (HeaderKey.IS_PARTIAL, HeaderKey.RECORD_POSITIONS, HeaderKey.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS)
    headers |= {key: block.headers[key] for key in kept if key in block.headers}
    return _block(block.kind, headers, [content])


def split_rows(rows: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
    """The rows in order, in tables of at most `bytes_max` bytes in Arrow, or of one row; no table is empty."""
    if rows.num_rows > 1 and rows.nbytes > bytes_max:
        half = rows.num_rows // 2
        yield from split_rows(rows.slice(0, half), bytes_max)
        yield from split_rows(rows.slice(half), bytes_max)
    elif rows.num_rows:
        yield rows


# --- ordering values -------------------------------------------------------------------------------------------


_BOOLEAN, _LONG, _FLOAT, _DOUBLE, _BYTES, _STRING, _DATE, _DECIMAL = 1, 3, 4, 5, 6, 7, 8, 9


def _wrapper(kind: pa.DataType) -> int:
    """The union index that Hudi's writers choose for a column. They wrap times as the integers that Avro stores, and
    never use the wrappers for times. (Seen with 0.15.0 and 1.2.0, byte for byte.)"""
    types = pa.types
    if types.is_date32(kind):
        return _DATE
    if types.is_decimal(kind):
        return _DECIMAL
    if types.is_timestamp(kind) or types.is_time64(kind) or types.is_int64(kind):
        return _LONG
    if types.is_time32(kind) or types.is_signed_integer(kind):
        return INT
    found = {
        pa.bool_(): _BOOLEAN,
        pa.float32(): _FLOAT,
        pa.float64(): _DOUBLE,
        pa.binary(): _BYTES,
        pa.string(): _STRING,
    }.get(kind)
    if found is None:
        raise UnsupportedError("Hudi cannot order by this type", found=str(kind))
    return found


def _day_numbers(days: pa.Array, *, alone: bool) -> pa.Array:
    """Dates in a form that Hudi 1.x can compare with rows, which hold day numbers.
    1.2.0 itself cannot write a delete with one date, and cannot read the delete that it writes with a date among
    several values; with day numbers it orders both correctly. UsageError: 1970-01-01 `alone`, since day number 0 would
    be the Integer 0 that stands for "no ordering value"."""
    numbers = days.view(pa.int32())
    if alone and pc.any(pc.equal(numbers, 0)).as_py():
        raise UsageError("a delete cannot be ordered by the date 1970-01-01", todo="Delete without ordering values.")
    return numbers


def _as_wrapped(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(values.type) and not pa.types.is_temporal(kind):
        return values.view(kind)
    try:
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        raise UsageError("an ordering value that a delete cannot hold", expected=str(kind), found=str(error)) from error


_PARTIAL = {HeaderKey.IS_PARTIAL: "true"}


# --- framing ---------------------------------------------------------------------------------------------------


def _headers(instant: str, schema_text: str, compacted: Sequence[str]) -> dict[HeaderKey, str]:
    headers = {HeaderKey.INSTANT_TIME: instant, HeaderKey.SCHEMA: schema_text}
    return headers | ({HeaderKey.COMPACTED_BLOCK_TIMES: ",".join(compacted)} if compacted else {})


def _block(kind: BlockKind, headers: Mapping[HeaderKey, str], content: Parts) -> Parts:
    front = [struct.pack(">iii", FORMAT_VERSION, kind, len(headers))]
    for key, value in headers.items():
        data = value.encode()
        front += [struct.pack(">ii", key, len(data)), data]
    content_bytes = _size(content, headers.get(HeaderKey.INSTANT_TIME))
    front.append(struct.pack(">q", content_bytes))
    # After this length: the front, the content, the count of footers (0) and the reverse pointer.
    size = sum(map(len, front)) + content_bytes + 4 + 8
    head = b"".join([MAGIC, struct.pack(">q", size), *front])
    return [head, *content, struct.pack(">iq", 0, size + len(MAGIC))]


def _size(content: Parts, instant: str | None) -> int:
    size = sum(memoryview(part).nbytes for part in content)
    if size > CONTENT_BYTES_MAX:
        expected = f"at most {CONTENT_BYTES_MAX} bytes"
        found = f"{size} bytes"
        todo = "Split its rows."
        raise UsageError("a log block is too large", instant=instant, expected=expected, found=found, todo=todo)
    return size
