"""A base file of row groups that are copied as bytes from other files; only the column of file names is rewritten.

    "PAR1" | chunks of row group 0, in the order of columns | chunks of row group 1 | ... | footer | its length | "PAR1"

Encodings, codecs, statistics and pages are unchanged. The footer gets new offsets, and Hudi's key/values. What a footer
contains once then applies to the pages of all row groups. So it must be equal in all files, and contain no field that
is unknown here (`why_not_copied`). Page indexes and filters of column chunks are not copied: readers do without them.
The copy is verified by pyarrow's reading of the new footer, see `check_copied`. Source of the numbers of fields:
parquet.thrift of the Parquet format."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import IO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import LedgerError
from ..ranges import RangedFile
from . import parquet_footer as at
from .avro_schema import FILE_NAME
from .parquet_footer import Field, Footer, Sequence, Struct, field_of, read_footer, value_of, write_struct
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
    """Compares a written file, as pyarrow reads its footer, with its sources. LedgerError: they differ in it."""
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


_FILE = {1: at.I32, 2: at.LIST, 3: at.I64, 4: at.LIST, 5: at.LIST, 6: at.BINARY, 7: at.LIST}
_GROUP = {1: at.LIST, 2: at.I64, 3: at.I64, 4: at.LIST, 5: at.I64, 6: at.I64, 7: at.I16}
_CHUNK = {2: at.I64, 3: at.STRUCT, 4: at.I64, 5: at.I32, 6: at.I64, 7: at.I32}
_META = {1: at.I32, 2: at.LIST, 3: at.LIST, 4: at.I32, 5: at.I64, 6: at.I64, 7: at.I64, 8: at.LIST, 9: at.I64}
_META |= {11: at.I64, 12: at.STRUCT, 13: at.LIST, 14: at.I64, 15: at.I32, 16: at.STRUCT}
_TYPE, _LENGTH, _CHILDREN = 1, 2, 5
"""Fields of SchemaElement; the first also of ColumnMetaData."""
_USED_ENCODINGS, _META_PATH = 2, 3
_ENCODINGS, _CODECS = frozenset((0, *range(2, 10))), range(8)
_BOUNDS = (1, 2, 5, 6)
"""Fields of Statistics."""
_WIDTHS, _FIXED = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}, 7
"""Bytes of a value by type: BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE; FIXED_LEN_BYTE_ARRAY has its own."""
_OLD_TIMES = "INT96"


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why files are not copied: `why` in a few words, the file, what was expected and what was found."""

    why: str
    path: str
    expected: str
    found: str


def why_not_copied(footers: Iterable[Footer], schema: pa.Schema, least_bytes: int = 0) -> Obstacle | None:
    """The first obstacle to put the row groups of these files into one file of `schema`, None if there is none.
    `least_bytes`: the least size of each row group. Memory: two footers."""
    first: Footer | None = None
    for footer in footers:
        first = first or footer
        for why, expected, found in _obstacles(footer, first, schema, least_bytes):
            return Obstacle(why=why, path=footer.path, expected=expected, found=found)
    return None


_Found: TypeAlias = tuple[str, str, str]
"""Of an `Obstacle`: why, expected, found."""
_COLUMNS_DIFFER = "columns not as in the table"


def _obstacles(footer: Footer, first: Footer, schema: pa.Schema, least_bytes: int) -> Iterator[_Found]:
    yield from _unknown(footer)
    yield from _other_schema(footer, schema)
    yield from _other_calendar(footer)
    yield from _other_footer(footer, first)
    yield from _odd_chunks(footer)
    yield from _outside(footer)
    yield from _small(footer, least_bytes)


def _unknown(footer: Footer) -> Iterator[_Found]:
    for found in _unknown_fields(footer.tree):
        expected = "fields of a Parquet footer without encryption"
        yield "a footer with parts that are not known here, or encrypted", expected, found


def _unknown_fields(tree: Struct) -> Iterator[str]:
    yield from _other_fields("the file", tree, _FILE)
    for number, group in enumerate(_structs(tree, at.ROW_GROUPS)):
        yield from _other_fields(f"row group {number}", group, _GROUP)
        for chunk in _structs(group, at.COLUMNS):
            yield from _other_fields(f"a column of row group {number}", chunk, _CHUNK)
            meta = field_of(chunk, at.CHUNK_META)
            if meta is None:
                yield f"a column of row group {number} without a description"
            else:
                yield from _other_fields(f"a column of row group {number}", meta.value, _META)


def _structs(struct: Struct, number: int) -> list[Struct]:
    found = field_of(struct, number)
    return found.value.items if found is not None and found.type == at.LIST and found.value.type == at.STRUCT else []


def _other_fields(where: str, struct: Struct, known: Mapping[int, int]) -> Iterator[str]:
    last = 0
    for field in struct:
        if known.get(field.number) != field.type or field.number <= last:
            yield f"{where}: field {field.number} of wire type {field.type}"
        last = field.number


def _other_schema(footer: Footer, schema: pa.Schema) -> Iterator[_Found]:
    there = footer.arrow
    if there.names != schema.names:
        has, wants = frozenset(there.names), frozenset(schema.names)
        odd = [n for n in schema.names if n not in has] + [n for n in there.names if n not in wants]
        found = f"without or with others: {', '.join(odd)}" if odd else f"another order: {', '.join(there.names)}"
        yield _COLUMNS_DIFFER, f"the table's columns: {', '.join(schema.names)}", found
    for have, want in zip(there, schema, strict=False):
        if not _is_as(have, want):
            yield _COLUMNS_DIFFER, str(want), str(have)
    columns = footer.metadata.schema
    for number in range(len(columns)):
        if columns.column(number).physical_type == _OLD_TIMES:
            yield _COLUMNS_DIFFER, "times of 64 bits", f"{columns.column(number).path}: {_OLD_TIMES}"


def _is_as(have: pa.Field, want: pa.Field) -> bool:
    """Whether values need no change, and nulls exist only where they may; names of parts of lists may differ."""
    return not (have.nullable and not want.nullable) and _is_type(have.type, want.type)


def _is_type(have: pa.DataType, want: pa.DataType) -> bool:
    kind = pa.types
    if kind.is_struct(have) and kind.is_struct(want):
        parts = zip(have, want, strict=False)
        return have.num_fields == want.num_fields and all(h.name == w.name and _is_as(h, w) for h, w in parts)
    if kind.is_list(have) and kind.is_list(want):
        return _is_as(have.value_field, want.value_field)
    if kind.is_map(have) and kind.is_map(want):
        return _is_as(have.key_field, want.key_field) and _is_as(have.item_field, want.item_field)
    return bool(have == want)


def _other_calendar(footer: Footer) -> Iterator[_Found]:
    if footer.is_old_calendar:
        expected, found = "dates and times of the calendar of the new file", "a footer of Spark's legacy mode"
        yield "dates or times in Spark's legacy calendar", expected, found


def _other_footer(footer: Footer, first: Footer) -> Iterator[_Found]:
    """The same schema, and the same writer: readers decide by its name and version whether to trust its statistics."""
    to = f"as in {first.path}"
    if _text(footer.tree, at.SCHEMA) != _text(first.tree, at.SCHEMA):
        expected, found = _first_difference(first, footer)
        yield "another Parquet schema", f"{expected}, {to}", found
    if any(_text(footer.tree, n) != _text(first.tree, n) for n in (at.VERSION, at.CREATED_BY, at.COLUMN_ORDERS)):
        yield "another writer", f"{_writer(first)}, {to}", _writer(footer)


def _first_difference(*footers: Footer) -> tuple[str, str]:
    shown = [[line.strip() for line in str(f.metadata.schema).splitlines()[2:]] for f in footers]
    lines = zip_longest(*shown, fillvalue="nothing")
    return next(((a, b) for a, b in lines if a != b), ("a schema", "the same columns, described in another way"))


def _writer(footer: Footer) -> str:
    return f"{footer.metadata.created_by}, format {footer.metadata.format_version}"


def _text(tree: Struct, number: int) -> bytes:
    """A field as bytes; a schema without the name of its root, which has no meaning."""
    found = field_of(tree, number)
    if found is None:
        return b""
    if number != at.SCHEMA:
        return write_struct([found])
    root, *others = found.value.items
    return write_struct([f for f in root if f.number == _CHILDREN]) + b"".join(map(write_struct, others))


def _odd_chunks(footer: Footer) -> Iterator[_Found]:
    """Each column chunk fits its column, and has a valid description: pyarrow aborts the process otherwise."""
    columns = [
        element for element in value_of(footer.tree, at.SCHEMA).items[1:] if field_of(element, _CHILDREN) is None
    ]
    paths = [footer.metadata.schema.column(at).path for at in range(footer.metadata.num_columns)]
    for number, group in enumerate(value_of(footer.tree, at.ROW_GROUPS).items):
        chunks = [value_of(chunk, at.CHUNK_META) for chunk in value_of(group, at.COLUMNS).items]
        found = [b".".join(value_of(meta, _META_PATH).items).decode(errors="replace") for meta in chunks]
        odd = next((name for name, path in zip(found, paths, strict=False) if name != path), "")
        if not odd and len(found) == len(paths):
            fits = (_fits(meta, column) for meta, column in zip(chunks, columns, strict=True))
            odd = next((name for name, fit in zip(found, fits, strict=True) if not fit), "")
        if odd or len(found) != len(paths):
            expected = f"the {len(paths)} columns of the schema: their types, known codecs, bounds of their width"
            what = odd or f"{len(found)} columns"
            yield "column chunks that do not fit their columns", expected, f"row group {number}: {what}"


def _fits(meta: Struct, column: Struct) -> bool:
    kind = value_of(column, _TYPE)
    stored = field_of(meta, at.STATISTICS)
    width = value_of(column, _LENGTH) if kind == _FIXED else _WIDTHS.get(kind)
    bounds = [f.value for f in stored.value if f.number in _BOUNDS] if stored is not None else []
    known = value_of(meta, _TYPE) == kind and value_of(meta, at.CODEC) in _CODECS
    known = known and _ENCODINGS.issuperset(value_of(meta, _USED_ENCODINGS).items)
    return known and (width is None or all(len(one) == width for one in bounds))


def _outside(footer: Footer) -> Iterator[_Found]:
    """Pages lie between the first four bytes and the footer, and together fit there."""
    metadata = footer.metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    spans = [chunk_span(group.column(at)) for group in groups if group.num_rows for at in range(group.num_columns)]
    odd = [(start, size) for start, size in spans if start < len(at.MAGIC) or size < 1 or start + size > footer.end]
    total = sum(size for _, size in spans)
    if odd or total > footer.end:
        found = f"{odd[0][1]} bytes at {odd[0][0]}" if odd else f"{total} bytes in all"
        yield "pages outside of their file", f"pages from {len(at.MAGIC)} to {footer.end}", found


def _small(footer: Footer, least_bytes: int) -> Iterator[_Found]:
    for number in range(footer.metadata.num_row_groups):
        group = footer.metadata.row_group(number)
        size = sum(group.column(at).total_compressed_size for at in range(group.num_columns))
        if size < least_bytes:
            yield "small row groups", f"row groups of {least_bytes} bytes at least", f"{size} bytes"
