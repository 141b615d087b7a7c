"""A base file of row groups that are copied as bytes from other files; only the column of file names is rewritten.

    "PAR1" | chunks of row group 0, in the order of columns | chunks of row group 1 | ... | footer | its length | "PAR1"

Encodings, codecs, statistics and pages are unchanged. The footer gets new offsets, and Hudi's key/values. The copy is
verified by pyarrow's reading of the new footer, see `check_copied`."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import LedgerError
from ..ranges import RangedFile
from . import parquet_footer as at
from .avro_schema import FILE_NAME
from .parquet_footer import Field, Footer, Sequence, Struct, read_footer, value_of, write_struct
from .parquet_read import chunk_span, column_spans
from .parquet_write import open_parquet_writer

_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class CopiedChunk:
    """A column chunk of a source: the CRC-32 of its bytes, its description as pyarrow reads it, and its statistics."""

    crc: int
    described: tuple[object, ...]
    statistics: bytes


class CopiedFile:
    """Writes the file: `add` each of the others, then `finish`. Memory: 4 MiB, and the footers.
    The files must have no obstacle, see `copy_rules`."""

    def __init__(self, file: IO[bytes], first: Footer, *, name: str, codec: str) -> None:
        """`first`: of the file that gives the schema. `name`: the new file's final name. `codec`: of the names."""
        self._file, self._first, self._name, self._codec = file, first, name, codec
        self._at = 0
        self._groups: list[Struct] = []
        self.rows = 0
        self.chunks: list[dict[str, CopiedChunk]] = []
        """The copied column chunks of each row group, by column."""
        self._write(at.MAGIC)

    def add(self, source: pa.NativeFile, footer: Footer) -> None:
        """Copies the row groups of an open file; those without rows are omitted."""
        for number, group in enumerate(value_of(footer.tree, at.ROW_GROUPS).items):
            old = footer.metadata.row_group(number)
            if old.num_rows:
                _fetch_ahead(source, footer, number)
                self._groups.append(self._copied_group(source, group, old))
                self.rows += old.num_rows

    def finish(self, pairs: Mapping[str, str]) -> None:
        """Writes the footer, with these key/values; the file is not closed."""
        first = self._first.tree
        text_pairs = [[Field(n, at.BINARY, t.encode()) for n, t in enumerate(pair, 1)] for pair in pairs.items()]
        new = {
            at.ROWS: Field(at.ROWS, at.I64, self.rows),
            at.ROW_GROUPS: Field(at.ROW_GROUPS, at.LIST, Sequence(at.STRUCT, self._groups)),
            at.KEY_VALUES: Field(at.KEY_VALUES, at.LIST, Sequence(at.STRUCT, text_pairs)),
        }
        kept = {f.number: f for f in first if f.number in (at.VERSION, at.SCHEMA, at.CREATED_BY, at.COLUMN_ORDERS)}
        text = write_struct([field for _, field in sorted({**kept, **new}.items())])
        self._write(text + at.TAIL.pack(len(text), at.MAGIC))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._at += len(data)

    def _copied_group(self, source: pa.NativeFile, group: Struct, old: pq.RowGroupMetaData) -> Struct:
        begin, stored, plain = self._at, 0, 0
        columns, copied = list[Struct](), dict[str, CopiedChunk]()
        for number, chunk in enumerate(value_of(group, at.COLUMNS).items):
            what = old.column(number)
            if what.path_in_schema == FILE_NAME:
                level = self._first.metadata.schema.column(number).max_definition_level
                chunk = self._named(old.num_rows, is_required=level == 0)
            else:
                copied[what.path_in_schema] = _copied(source, what, chunk, self._write)
                chunk = _moved(chunk, self._at - what.total_compressed_size - chunk_span(what)[0])
            meta = value_of(chunk, at.CHUNK_META)
            stored += value_of(meta, at.CHUNK_STORED)
            plain += value_of(meta, at.CHUNK_BYTES)
            columns.append(chunk)
        self.chunks.append(copied)
        new = {
            at.COLUMNS: Field(at.COLUMNS, at.LIST, Sequence(at.STRUCT, columns)),
            at.GROUP_BYTES: Field(at.GROUP_BYTES, at.I64, plain),
            at.GROUP_ROWS: Field(at.GROUP_ROWS, at.I64, old.num_rows),
            at.GROUP_OFFSET: Field(at.GROUP_OFFSET, at.I64, begin),
            at.GROUP_STORED: Field(at.GROUP_STORED, at.I64, stored),
        }
        new |= {f.number: f for f in group if f.number == at.SORTED_BY}
        return [field for _, field in sorted(new.items())]

    def _named(self, rows: int, *, is_required: bool) -> Struct:
        """Writes the column of file names: one value for all rows."""
        field = pa.field(FILE_NAME, pa.dictionary(pa.int32(), pa.string()), nullable=not is_required)
        codes = pa.repeat(pa.scalar(0, pa.int32()), rows)
        names = pa.DictionaryArray.from_arrays(codes, pa.array([self._name]))
        table = pa.table([names], schema=pa.schema([field]))
        held = io.BytesIO()
        with open_parquet_writer(held, table.schema, self._codec, table) as writer:
            writer.write(table, row_group_size=rows)
        source = pa.BufferReader(held.getvalue())
        footer = read_footer(source, self._name)
        what = footer.metadata.row_group(0).column(0)
        begin = self._at
        for piece in _pieces(source, what):
            self._write(piece)
        chunk: Struct = value_of(value_of(footer.tree, at.ROW_GROUPS).items[0], at.COLUMNS).items[0]
        return _moved(chunk, begin - chunk_span(what)[0])


def check_copied(source: pa.NativeFile, path: str, copied: CopiedFile) -> None:
    """Compares a written file, by pyarrow's reading of its footer, with its sources: bytes and descriptions.
    LedgerError: they differ."""
    footer = read_footer(source, path)
    trees = value_of(footer.tree, at.ROW_GROUPS).items
    differs = [] if len(trees) == len(copied.chunks) else [f"{len(trees)} row groups"]
    for number, (tree, chunks) in enumerate(zip(trees, copied.chunks, strict=False)):
        group = footer.metadata.row_group(number)
        _fetch_ahead(source, footer, number)
        for column, chunk in enumerate(value_of(tree, at.COLUMNS).items):
            new = group.column(column)
            name = new.path_in_schema
            if name != FILE_NAME and chunks.get(name) != _copied(source, new, chunk, len):
                differs.append(f"row group {number}, column {name}")
    if differs:
        what = "a copied file differs from what was copied"
        expected = f"{len(copied.chunks)} row groups, as in the files that were copied"
        todo = "Nothing was published. Keep the files and report this; --copy reencode does without copying."
        raise LedgerError(what, path=path, expected=expected, found=", ".join(differs[:5]), todo=todo)


def _fetch_ahead(source: pa.NativeFile, footer: Footer, group: int) -> None:
    """Fetches the complete row group at once, if the storage is read range by range."""
    if isinstance(source, RangedFile):
        source.keep(column_spans(footer.metadata, group, [n for n in footer.arrow.names if n != FILE_NAME]))


def _copied(
    source: pa.NativeFile, what: pq.ColumnChunkMetaData, chunk: Struct, write: Callable[[bytes], object]
) -> CopiedChunk:
    """Reads a column chunk, and writes it. `chunk`: the same in the tree."""
    crc = 0
    for piece in _pieces(source, what):
        crc = zlib.crc32(piece, crc)
        write(piece)
    # The statistics as they are stored: pyarrow would decode them.
    statistics = write_struct([f for f in value_of(chunk, at.CHUNK_META) if f.number == at.STATISTICS])
    return CopiedChunk(crc, _described(what), statistics)


def _pieces(source: pa.NativeFile, what: pq.ColumnChunkMetaData) -> Iterator[bytes]:
    start, left = chunk_span(what)
    source.seek(start)
    while left:
        piece = source.read(min(left, _PIECE))
        if not piece:
            raise OSError(f"{left} bytes of a column chunk at {start} are missing")
        yield piece
        left -= len(piece)


def _described(what: pq.ColumnChunkMetaData) -> tuple[object, ...]:
    """The description of a column chunk in a footer, without its offsets."""
    sizes = (what.num_values, what.total_compressed_size, what.total_uncompressed_size)
    return what.path_in_schema, what.physical_type, what.compression, what.encodings, *sizes


def _moved(chunk: Struct, by: int) -> Struct:
    """A column chunk at another offset, without its page indexes and its filter."""
    places = (at.DATA_OFFSET, at.DICTIONARY_OFFSET)
    meta: Struct = [
        Field(f.number, f.type, f.value + by if f.number in places and f.value else f.value)
        for f in value_of(chunk, at.CHUNK_META)
        if f.number not in at.CHUNK_FILTER
    ]
    old = value_of(chunk, at.CHUNK_OFFSET)
    return [Field(at.CHUNK_OFFSET, at.I64, old + by if old else 0), Field(at.CHUNK_META, at.STRUCT, meta)]
