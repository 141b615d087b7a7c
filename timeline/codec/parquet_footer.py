"""The footer of a Parquet file: as pyarrow reads it, and as a tree of Thrift fields that can be changed and written.

Thrift's compact protocol: a struct is a list of fields in their order; a field has a number, a wire type and a value.
Fields that are not changed, unknown ones included, are written as they were read. Source: Thrift's compact protocol
specification. Thrift's own Python library has no wheel, and reads only structs with generated code. Source of the
numbers of fields: parquet.thrift of the Parquet format."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import MalformedError
from .avro_container import decode_long, decode_varint, encode_long, encode_varint
from .calendar import old_calendar
from .parquet_read import open_parquet, readable

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
"""Wire types. A boolean field has no value but its type."""

_INTEGERS = (I16, I32, I64)
_DOUBLE_BYTES = 8
_LONG_LIST = 15


@dataclass(slots=True)
class Field:
    """`value`: an int, bytes (of a double too), a `Struct`, or a `Sequence`."""

    number: int
    type: int
    value: Any


@dataclass(slots=True)
class Sequence:
    """A list or a set; `type`: the wire type of its items."""

    type: int
    items: list[Any]


Struct: TypeAlias = list[Field]


def field_of(struct: Struct, number: int) -> Field | None:
    """A field by its number."""
    return next((field for field in struct if field.number == number), None)


def value_of(struct: Struct, number: int) -> Any:
    """The value of a required field; KeyError: it is missing."""
    found = field_of(struct, number)
    if found is None:
        raise KeyError(f"no field {number}")
    return found.value


def read_struct(data: bytes | bytearray | memoryview, at: int = 0) -> tuple[Struct, int]:
    """(the struct at an offset, the offset after it). IndexError: beyond the data. ValueError: no such wire type."""
    fields: Struct = []
    number = 0
    while head := data[at]:
        at += 1
        step, kind = head >> 4, head & 15
        if step:
            number += step
        else:
            number, at = decode_long(data, at)
        value, at = _value(data, at, kind)
        fields.append(Field(number, kind, value))
    return fields, at + 1


def write_struct(struct: Struct) -> bytes:
    """Inverse of `read_struct`; the fields must be in the order of their numbers."""
    out = bytearray()
    last = 0
    for field in struct:
        step = field.number - last
        out += bytes([step << 4 | field.type]) if 0 < step <= 15 else bytes([field.type]) + encode_long(field.number)
        out += _encoded(field.type, field.value)
        last = field.number
    return bytes(out) + b"\0"


def _value(data: bytes | bytearray | memoryview, at: int, kind: int) -> tuple[Any, int]:
    if kind in (TRUE, FALSE):
        return None, at
    if kind in _INTEGERS:
        return decode_long(data, at)
    if kind == STRUCT:
        return read_struct(data, at)
    if kind in (LIST, SET):
        return _sequence(data, at)
    if kind == BINARY:
        size, at = decode_varint(data, at)
    elif kind in (BYTE, DOUBLE):
        size = 1 if kind == BYTE else _DOUBLE_BYTES
    else:
        raise ValueError(f"wire type {kind}")
    # Truncated bytes end after the data, where the struct's own end is then missing.
    return bytes(data[at : at + size]), at + size


def _sequence(data: bytes | bytearray | memoryview, at: int) -> tuple[Sequence, int]:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == _LONG_LIST:
        count, at = decode_varint(data, at)
    if count > len(data) - at:  # each item takes a byte at least
        raise IndexError(f"{count} items in {len(data) - at} bytes")
    items: list[Any] = []
    for _ in range(count):
        # A boolean in a list is a byte of its own.
        item, at = _value(data, at, BYTE if kind in (TRUE, FALSE) else kind)
        items.append(item)
    return Sequence(kind, items), at


def _encoded(kind: int, value: Any) -> bytes:
    if kind in (TRUE, FALSE):
        return b""
    if kind in _INTEGERS:
        return encode_long(value)
    if kind == STRUCT:
        return write_struct(value)
    if kind in (LIST, SET):
        count = len(value.items)
        size = b"" if count < _LONG_LIST else encode_varint(count)
        head = bytes([min(count, _LONG_LIST) << 4 | value.type]) + size
        of_items = BYTE if value.type in (TRUE, FALSE) else value.type
        return head + b"".join(_encoded(of_items, item) for item in value.items)
    return (encode_varint(len(value)) if kind == BINARY else b"") + bytes(value)


VERSION, SCHEMA, ROWS, ROW_GROUPS, KEY_VALUES, CREATED_BY, COLUMN_ORDERS, ENCRYPTION = range(1, 9)
"""Fields of FileMetaData."""
COLUMNS, GROUP_BYTES, GROUP_ROWS, SORTED_BY, GROUP_OFFSET, GROUP_STORED, ORDINAL = range(1, 8)
"""Fields of RowGroup."""
CHUNK_OFFSET, CHUNK_META = 2, 3
"""Fields of ColumnChunk; the next four place its page indexes."""
COLUMN_PATH, CODEC, CHUNK_BYTES, CHUNK_STORED, DATA_OFFSET, DICTIONARY_OFFSET = 3, 4, 6, 7, 9, 11
STATISTICS = 12
CHUNK_FILTER = (14, 15)
"""Fields of ColumnMetaData; the latter place the filter of a column chunk."""
NULL_COUNT = 3
"""A field of Statistics."""

MAGIC = b"PAR1"
TAIL = struct.Struct("<I4s")
"""The length of the footer, and the magic number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """`metadata`, `arrow`: the footer as pyarrow reads it; `tree`: all its fields; `end`: the offset of the footer.
    `is_old_calendar`: the values count in the old calendar, see `calendar`."""

    path: str
    metadata: pq.FileMetaData
    arrow: pa.Schema
    tree: Struct
    end: int
    is_old_calendar: bool = False


def read_footer(source: pa.NativeFile, path: str) -> Footer:
    """The footer of an open file. MalformedError, UnsupportedError: as in any read of the file."""
    with readable("base file", path):
        file = open_parquet(source)
        size = source.size()
        (length, _) = TAIL.unpack(_read(source, size - TAIL.size, TAIL.size))
        end = size - TAIL.size - length
        text = _read(source, end, length)
        try:
            tree, _ = read_struct(text)
        except RecursionError as error:
            raise MalformedError("a Parquet footer with structures in one another without end", path=path) from error
        return Footer(
            path=path,
            metadata=file.metadata,
            arrow=file.schema_arrow,
            tree=tree,
            end=end,
            is_old_calendar=old_calendar(file) is not None,
        )


def _read(source: pa.NativeFile, at: int, count: int) -> bytes:
    if at < 0:
        raise ValueError(f"{count} bytes at {at}")
    source.seek(at)
    data: bytes = source.read(count)
    if len(data) != count:
        raise ValueError(f"{len(data)} bytes of {count} at {at}")
    return data


_END_BYTES = 1 << 20
"""The end of a file, in which the name of its writer is, and what a footer says after it."""


def is_encrypted(source: pa.NativeFile, metadata: pq.FileMetaData) -> bool:
    """Whether columns may be encrypted. pyarrow ends the process when it is asked for such a column's metadata."""
    source.seek(max(0, source.size() - _END_BYTES))
    end = source.read()
    by = metadata.created_by.encode()
    at = end.rindex(by)
    # The fields after this one, by their distance from it.
    after, _ = read_struct(end, at + len(by))
    return any(field.number + CREATED_BY >= ENCRYPTION for field in after)
