"""Whether the row groups of some Parquet files may be put into one file as bytes (pure).

What a footer contains once then applies to the pages of all of them. So it must be equal in all, and contain no field
that is unknown here. Page indexes and filters of column chunks are not copied: readers do without them. Source of the
numbers of fields: parquet.thrift of the Parquet format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

import pyarrow as pa

from . import parquet_footer as pf
from .parquet_footer import Footer, Struct, field_of, value_of, write_struct
from .parquet_read import chunk_span

_FILE = {1: pf.I32, 2: pf.LIST, 3: pf.I64, 4: pf.LIST, 5: pf.LIST, 6: pf.BINARY, 7: pf.LIST}
_GROUP = {1: pf.LIST, 2: pf.I64, 3: pf.I64, 4: pf.LIST, 5: pf.I64, 6: pf.I64, 7: pf.I16}
_CHUNK = {2: pf.I64, 3: pf.STRUCT, 4: pf.I64, 5: pf.I32, 6: pf.I64, 7: pf.I32}
_META = {1: pf.I32, 2: pf.LIST, 3: pf.LIST, 4: pf.I32, 5: pf.I64, 6: pf.I64, 7: pf.I64, 8: pf.LIST, 9: pf.I64}
_META |= {11: pf.I64, 12: pf.STRUCT, 13: pf.LIST, 14: pf.I64, 15: pf.I32, 16: pf.STRUCT}
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
    for number, group in enumerate(_structs(tree, pf.ROW_GROUPS)):
        yield from _other_fields(f"row group {number}", group, _GROUP)
        for chunk in _structs(group, pf.COLUMNS):
            yield from _other_fields(f"a column of row group {number}", chunk, _CHUNK)
            meta = field_of(chunk, pf.CHUNK_META)
            if meta is None:
                yield f"a column of row group {number} without a description"
            else:
                yield from _other_fields(f"a column of row group {number}", meta.value, _META)


def _structs(struct: Struct, number: int) -> list[Struct]:
    found = field_of(struct, number)
    return found.value.items if found is not None and found.type == pf.LIST and found.value.type == pf.STRUCT else []


def _other_fields(where: str, struct: Struct, known: Mapping[int, int]) -> Iterator[str]:
    last = 0
    for field in struct:
        if known.get(field.number) != field.type or field.number <= last:
            yield f"{where}: field {field.number} of wire type {field.type}"
        last = field.number


def _other_schema(footer: Footer, schema: pa.Schema) -> Iterator[_Found]:
    there = footer.arrow
    if there.names != schema.names:
        odd = [n for n in schema.names if n not in there.names] + [n for n in there.names if n not in schema.names]
        found = f"without or with others: {', '.join(odd)}" if odd else f"another order: {', '.join(there.names)}"
        yield _COLUMNS_DIFFER, f"the table's columns: {', '.join(schema.names)}", found
    for have, want in zip(there, schema, strict=False):
        if not _is_as(have, want):
            yield _COLUMNS_DIFFER, str(want), str(have)
    columns = footer.metadata.schema
    for at in range(len(columns)):
        if columns.column(at).physical_type == _OLD_TIMES:
            yield _COLUMNS_DIFFER, "times of 64 bits", f"{columns.column(at).path}: {_OLD_TIMES}"


def _is_as(have: pa.Field, want: pa.Field) -> bool:
    """Whether values need no change, and nulls only exist where they may. The names of the parts of lists and maps
    differ by writer."""
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
    if _text(footer.tree, pf.SCHEMA) != _text(first.tree, pf.SCHEMA):
        expected, found = _first_difference(first, footer)
        yield "another Parquet schema", f"{expected}, {to}", found
    if any(_text(footer.tree, n) != _text(first.tree, n) for n in (pf.VERSION, pf.CREATED_BY, pf.COLUMN_ORDERS)):
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
    if number != pf.SCHEMA:
        return write_struct([found])
    root, *others = found.value.items
    return write_struct([f for f in root if f.number == _CHILDREN]) + b"".join(map(write_struct, others))


def _odd_chunks(footer: Footer) -> Iterator[_Found]:
    """Each column chunk fits its column, and has a valid description: pyarrow aborts the process otherwise."""
    columns = [
        element for element in value_of(footer.tree, pf.SCHEMA).items[1:] if field_of(element, _CHILDREN) is None
    ]
    paths = [footer.metadata.schema.column(at).path for at in range(footer.metadata.num_columns)]
    for number, group in enumerate(value_of(footer.tree, pf.ROW_GROUPS).items):
        chunks = [value_of(chunk, pf.CHUNK_META) for chunk in value_of(group, pf.COLUMNS).items]
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
    stored = field_of(meta, pf.STATISTICS)
    width = value_of(column, _LENGTH) if kind == _FIXED else _WIDTHS.get(kind)
    bounds = [f.value for f in stored.value if f.number in _BOUNDS] if stored is not None else []
    known = value_of(meta, _TYPE) == kind and value_of(meta, pf.CODEC) in _CODECS
    known = known and _ENCODINGS.issuperset(value_of(meta, _USED_ENCODINGS).items)
    return known and (width is None or all(len(one) == width for one in bounds))


def _outside(footer: Footer) -> Iterator[_Found]:
    """Pages lie between the first four bytes and the footer, and together fit there."""
    metadata = footer.metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    spans = [chunk_span(group.column(at)) for group in groups if group.num_rows for at in range(group.num_columns)]
    odd = [(start, size) for start, size in spans if start < len(pf.MAGIC) or size < 1 or start + size > footer.end]
    total = sum(size for _, size in spans)
    if odd or total > footer.end:
        found = f"{odd[0][1]} bytes at {odd[0][0]}" if odd else f"{total} bytes in all"
        yield "pages outside of their file", f"pages from {len(pf.MAGIC)} to {footer.end}", found


def _small(footer: Footer, least_bytes: int) -> Iterator[_Found]:
    for number in range(footer.metadata.num_row_groups):
        group = footer.metadata.row_group(number)
        size = sum(group.column(at).total_compressed_size for at in range(group.num_columns))
        if size < least_bytes:
            yield "small row groups", f"row groups of {least_bytes} bytes at least", f"{size} bytes"
