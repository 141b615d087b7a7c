"""Gzip of Parquet pages by ISA-L, in a tenth of zlib's time and with the same size as zlib's level 4.

pyarrow accepts no compressor. So its writer encodes without compression into `GzipPages`, which writes the file page by
page: each body compressed, each page header with the new size, and at the end the footer with the codec and the new
offsets and sizes of all column chunks. Encodings, statistics, schema and key/values are pyarrow's, unchanged.

    "PAR1" | page header, body | page header, body | ... | footer | its length int32 | "PAR1"

Only what pyarrow writes by default is supported, else ValueError: data pages of version 1, no page index, no
encryption. Source of the numbers of fields: parquet.thrift of the Parquet format.
"""

from __future__ import annotations

from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

try:
    from isal import isal_zlib
except ImportError:  # there is no wheel for this machine
    AVAILABLE = False
else:
    AVAILABLE = True

from . import parquet_footer as pf
from .parquet_footer import Struct, field_of, read_struct, value_of, write_struct

_LEVEL = 1
_GZIP_FRAME = 31
_CODEC_GZIP = 2

_PAGE_TYPE, _PAGE_BYTES, _PAGE_STORED, _PAGE_CRC, _DATA_V2 = 1, 2, 3, 4, 3
"""Fields of PageHeader, and a value of the first."""


class GzipWriter:
    """A `pq.ParquetWriter` of gzip files, as far as base files need one."""

    def __init__(self, file: IO[bytes] | pa.NativeFile, schema: pa.Schema, **how: Any) -> None:
        """`how`: as for `pq.ParquetWriter`, without compression."""
        self._pages = GzipPages(file)
        self._writer = pq.ParquetWriter(self._pages, schema, compression="none", **how)

    def __enter__(self) -> GzipWriter:
        """The writer; the end of the block ends the file."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def write(self, table: pa.Table, row_group_size: int | None = None) -> None:
        """Writes rows as row groups."""
        self._writer.write(table, row_group_size=row_group_size)

    def add_key_value_metadata(self, pairs: dict[str, str]) -> None:
        """Key/values for the footer."""
        self._writer.add_key_value_metadata(pairs)

    def close(self) -> None:
        """Ends the file, and does not close it."""
        self._pages.begin_footer()
        self._writer.close()
        self._pages.finish()


class GzipPages:
    """The sink of a Parquet writer that does not compress; `begin_footer` before it writes its footer, then `finish`.
    Memory: one page, and two numbers of each."""

    closed = False

    def __init__(self, file: IO[bytes] | pa.NativeFile) -> None:
        self._file = file
        self._held = bytearray()
        self._is_footer = False
        self._old = self._new = 0
        self._places: dict[int, int] = {}
        """Where each page begins, and the last one ends: offset in the writer's file -> offset in this one."""
        self._shorter: dict[int, int] = {}
        """By the same offsets in the writer's file: bytes by which all headers before are shorter in this one."""
        self._saved = 0

    def write(self, data: Any) -> int:
        """Takes the next bytes of the writer's file, split anywhere."""
        self._held += data
        if not self._is_footer:
            self._take_pages()
        return len(data)

    def flush(self) -> None:
        """Does nothing: complete pages were written already."""

    def begin_footer(self) -> None:
        """The writer has written all pages: what follows is its footer."""
        if self._held:
            raise ValueError(f"{len(self._held)} bytes of a page that does not end")
        self._is_footer = True

    def finish(self) -> None:
        """Writes the footer."""
        size, magic = pf.TAIL.unpack(self._held[-pf.TAIL.size :])
        if magic != pf.MAGIC or size + pf.TAIL.size != len(self._held):
            raise ValueError("no footer right after the pages: a page index, or key filters")
        footer, _ = read_struct(self._held)
        if field_of(footer, pf.ENCRYPTION) is not None:
            raise ValueError("an encrypted file")
        for group in value_of(footer, pf.ROW_GROUPS).items:
            self._moved_group(group)
        text = write_struct(footer)
        self._file.write(text + pf.TAIL.pack(len(text), pf.MAGIC))

    def _take_pages(self) -> None:
        if self._old == 0:
            if len(self._held) < len(pf.MAGIC):
                return
            self._pass(len(pf.MAGIC), bytes(self._held[: len(pf.MAGIC)]))
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
        for chunk in value_of(group, pf.COLUMNS).items:
            stored += self._moved_chunk(chunk)
        _set(group, pf.GROUP_STORED, stored)
        offset = field_of(group, pf.GROUP_OFFSET)
        if offset is not None and offset.value:  # a group without rows has no pages, and 0 here
            offset.value = self._places[offset.value]

    def _moved_chunk(self, chunk: Struct) -> int:
        """Gives a column chunk its codec, its new offsets and sizes; returns its size in bytes."""
        meta: Struct = value_of(chunk, pf.CHUNK_META)
        # An offset of 0 stands for no page.
        places = (field_of(meta, number) for number in (pf.DICTIONARY_OFFSET, pf.DATA_OFFSET))
        offsets = [field for field in places if field is not None and field.value]
        if not offsets:  # no rows
            _set(meta, pf.CODEC, _CODEC_GZIP)
            return 0
        first = min(field.value for field in offsets)
        last = first + value_of(meta, pf.CHUNK_STORED)
        stored = self._places[last] - self._places[first]
        shorter = self._shorter[last] - self._shorter[first]
        _set(meta, pf.CODEC, _CODEC_GZIP)
        _set(meta, pf.CHUNK_STORED, stored)
        _set(meta, pf.CHUNK_BYTES, value_of(meta, pf.CHUNK_BYTES) - shorter)
        for field in offsets:
            field.value = self._places[field.value]
        if value_of(chunk, pf.CHUNK_OFFSET):
            _set(chunk, pf.CHUNK_OFFSET, self._places[value_of(chunk, pf.CHUNK_OFFSET)])
        return stored


def _set(struct: Struct, number: int, value: int) -> None:
    """Changes a field, if it is there."""
    found = field_of(struct, number)
    if found is not None:
        found.value = value
