"""The footer of a Parquet file: as pyarrow reads it, and as a tree of Thrift fields that can be changed and written.

Thrift's compact protocol: a struct is a list of fields in their order; a field has a number, a wire type and a value.
Fields that are not changed, unknown ones included, are written as they were read. Source: Thrift's compact protocol
specification. Thrift's own Python library has no wheel, and reads only structs with generated code.

Pages are compressed with gzip by ISA-L, in a tenth of zlib's time and with the same size as zlib's level 4. pyarrow
accepts no compressor. So its writer encodes without compression into `GzipPages`, which writes the file page by page:
each body compressed, each page header with the new size, and at the end the footer with the codec and the new offsets
and sizes of all column chunks. Encodings, schema and key/values are pyarrow's, unchanged, and so are statistics, except
bounds of floats (`parquet_write`).

    "PAR1" | page header, body | page header, body | ... | footer | its length int32 | "PAR1"

Only what pyarrow writes by default is supported, else ValueError: data pages of version 1, no page index, no
encryption. Source of the numbers of fields: parquet.thrift of the Parquet format."""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import MalformedError
from .avro_container import decode_long, decode_varint, encode_long, encode_varint
from .calendar import old_calendar
from .parquet_read import open_parquet, readable

try:
    from isal import isal_zlib
except ImportError:  # there is no wheel for this machine
    AVAILABLE = False
else:
    AVAILABLE = True


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


_LEVEL = 1
_GZIP_FRAME = 31
_CODEC_GZIP = 2

_PAGE_TYPE, _PAGE_BYTES, _PAGE_STORED, _PAGE_CRC, _DATA_V2 = 1, 2, 3, 4, 3
"""Fields of PageHeader, and a value of the first."""


class Pages:
    """The sink of a Parquet writer, which passes pages on; `begin_footer` before it writes its footer, then `finish`.
    Memory: the footer."""

    closed = False

    def __init__(self, file: IO[bytes] | pa.NativeFile) -> None:
        self._file = file
        self._held = bytearray()
        self._is_footer = False

    def write(self, data: Any) -> int:
        """Takes the next bytes of the writer's file, split anywhere."""
        if self._is_footer:
            self._held += data
        else:
            self._take(data)
        return len(data)

    def _take(self, data: Any) -> None:
        self._file.write(data)

    def flush(self) -> None:
        """Does nothing: complete pages were written already."""

    def begin_footer(self) -> None:
        """The writer has written all pages: what follows is its footer."""
        self._is_footer = True

    def finish(self, unbounded: Collection[str] = ()) -> None:
        """`unbounded`: leaf columns whose bounds leave the footer."""
        if unbounded:
            self._write_footer(self._footer(), unbounded)
        else:
            self._file.write(bytes(self._held))

    def _footer(self) -> Struct:
        size, magic = TAIL.unpack(self._held[-TAIL.size :])
        if magic != MAGIC or size + TAIL.size != len(self._held):
            raise ValueError("no footer right after the pages: a page index, or key filters")
        return read_struct(self._held)[0]

    def _write_footer(self, footer: Struct, unbounded: Collection[str]) -> None:
        for group in value_of(footer, ROW_GROUPS).items if unbounded else ():
            for chunk in value_of(group, COLUMNS).items:
                meta: Struct = value_of(chunk, CHUNK_META)
                path = b".".join(value_of(meta, COLUMN_PATH).items).decode()
                if path in unbounded and (found := field_of(meta, STATISTICS)) is not None:
                    found.value = [field for field in found.value if field.number == NULL_COUNT]
        text = write_struct(footer)
        self._file.write(text + TAIL.pack(len(text), MAGIC))


class GzipPages(Pages):
    """The same for a writer that does not compress. Memory: one page, and two numbers of each."""

    def __init__(self, file: IO[bytes] | pa.NativeFile) -> None:
        super().__init__(file)
        self._old = self._new = 0
        self._places: dict[int, int] = {}
        """Where each page begins, and the last one ends: offset in the writer's file -> offset in this one."""
        self._shorter: dict[int, int] = {}
        """By the same offsets in the writer's file: bytes by which all headers before are shorter in this one."""
        self._saved = 0

    def _take(self, data: Any) -> None:
        self._held += data
        self._take_pages()

    def begin_footer(self) -> None:
        if self._held:
            raise ValueError(f"{len(self._held)} bytes of a page that does not end")
        super().begin_footer()

    def finish(self, unbounded: Collection[str] = ()) -> None:
        footer = self._footer()
        if field_of(footer, ENCRYPTION) is not None:
            raise ValueError("an encrypted file")
        for group in value_of(footer, ROW_GROUPS).items:
            self._moved_group(group)
        self._write_footer(footer, unbounded)

    def _take_pages(self) -> None:
        if self._old == 0:
            if len(self._held) < len(MAGIC):
                return
            self._pass(len(MAGIC), bytes(self._held[: len(MAGIC)]))
        while self._held:
            try:
                header, start = read_struct(self._held)
            except IndexError:
                return
            stored = value_of(header, _PAGE_STORED)
            if len(self._held) < start + stored:
                return
            with memoryview(self._held) as held:
                body = isal_zlib.compress(held[start : start + stored], _LEVEL, _GZIP_FRAME)
            if value_of(header, _PAGE_TYPE) == _DATA_V2 or value_of(header, _PAGE_BYTES) != stored:
                raise ValueError("a page of another version, or compressed already")
            _set(header, _PAGE_STORED, len(body))
            text = write_struct([field for field in header if field.number != _PAGE_CRC])
            self._saved += start - len(text)
            self._pass(start + stored, text + body)

    def _pass(self, taken: int, written: bytes) -> None:
        self._file.write(written)
        del self._held[:taken]
        self._old += taken
        self._new += len(written)
        self._places[self._old] = self._new
        self._shorter[self._old] = self._saved

    def _moved_group(self, group: Struct) -> None:
        stored = 0
        for chunk in value_of(group, COLUMNS).items:
            stored += self._moved_chunk(chunk)
        _set(group, GROUP_STORED, stored)
        offset = field_of(group, GROUP_OFFSET)
        if offset is not None and offset.value:  # a group without rows has no pages, and 0 here
            offset.value = self._places[offset.value]

    def _moved_chunk(self, chunk: Struct) -> int:
        """Gives a column chunk its codec, its new offsets and sizes; returns its size in bytes."""
        meta: Struct = value_of(chunk, CHUNK_META)
        # An offset of 0 stands for no page.
        places = (field_of(meta, number) for number in (DICTIONARY_OFFSET, DATA_OFFSET))
        offsets = [field for field in places if field is not None and field.value]
        if not offsets:  # no rows
            _set(meta, CODEC, _CODEC_GZIP)
            return 0
        first = min(field.value for field in offsets)
        last = first + value_of(meta, CHUNK_STORED)
        stored = self._places[last] - self._places[first]
        shorter = self._shorter[last] - self._shorter[first]
        _set(meta, CODEC, _CODEC_GZIP)
        _set(meta, CHUNK_STORED, stored)
        _set(meta, CHUNK_BYTES, value_of(meta, CHUNK_BYTES) - shorter)
        for field in offsets:
            field.value = self._places[field.value]
        if value_of(chunk, CHUNK_OFFSET):
            _set(chunk, CHUNK_OFFSET, self._places[value_of(chunk, CHUNK_OFFSET)])
        return stored


def _set(struct: Struct, number: int, value: int) -> None:
    found = field_of(struct, number)
    if found is not None:
        found.value = value
