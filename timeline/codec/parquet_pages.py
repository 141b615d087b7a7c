"""Sinks of a Parquet writer, which pass its pages on, and change its footer.

Pages are compressed with gzip by ISA-L, in a tenth of zlib's time and with the same size as zlib's level 4. pyarrow
accepts no compressor. So its writer encodes without compression into `GzipPages`, which writes the file page by page:
each body compressed, each page header with the new size, and at the end the footer with the codec and the new offsets
and sizes of all column chunks. Encodings, schema and key/values are pyarrow's, unchanged, and so are statistics, except
bounds of floats (`parquet_write`).

    "PAR1" | page header, body | page header, body | ... | footer | its length int32 | "PAR1"

Only what pyarrow writes by default is supported, else ValueError: data pages of version 1, no page index, no
encryption. `parquet_footer` reads and writes the fields."""

from __future__ import annotations

from collections.abc import Collection
from typing import IO, Any

import pyarrow as pa

from .parquet_footer import (
    CHUNK_BYTES,
    CHUNK_META,
    CHUNK_OFFSET,
    CHUNK_STORED,
    CODEC,
    COLUMN_PATH,
    COLUMNS,
    DATA_OFFSET,
    DICTIONARY_OFFSET,
    ENCRYPTION,
    GROUP_OFFSET,
    GROUP_STORED,
    MAGIC,
    NULL_COUNT,
    ROW_GROUPS,
    STATISTICS,
    TAIL,
    Struct,
    field_of,
    read_struct,
    value_of,
    write_struct,
)

try:
    from isal import isal_zlib
except ImportError:  # there is no wheel for this machine
    AVAILABLE = False
else:
    AVAILABLE = True


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
