"""The column types of a table, for the types of incoming rows (pure).

    text, binary                         string, binary (large, view, dictionary, fixed-size too)
    int8 int16 int32, uint8 uint16       int32
    int64, uint32                        int64
    float16 float32, float64             float32, float64
    boolean, date32 date64               bool, date32
    timestamp of any unit                timestamp[us, UTC], or without zone timestamp[us]
    decimal(p, s), p at most 38          decimal128(p, s)
    struct, map with text keys, lists    struct, map<string, value>, list<element>
    null (no value at all)               the type of the table, which must have the column

The types that `timeline.codec.arrow_schema` makes from an Avro schema are among these, except time-of-day types that
other writers store."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from phantombase.timeline.codec.avro_schema import META_COLUMNS, OPERATION
from phantombase.timeline.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def data_fields(schema: pa.Schema, *, untyped: bool = False) -> pa.Schema:
    """The columns that are written, in the types of columns. Hudi's meta columns are left out. Rows that were read from
    a Hudi table have meta columns. `untyped`: keep Arrow's type null, of columns without any value. UsageError: two
    equal names, or names that differ in case only; names and types that Avro or Hudi does not have."""
    fields = [f for f in schema if f.name not in META_COLUMNS]
    if any(f.name == OPERATION for f in fields):
        raise UsageError(f"the column {OPERATION} is Hudi's own", todo="Drop it.")
    return pa.schema(_column_fields(fields, "", untyped))


def _column_fields(fields: Iterable[pa.Field], above: str, untyped: bool) -> list[pa.Field]:
    names: dict[str, str] = {}
    result: list[pa.Field] = []
    for field in fields:
        path, lower = f"{above}{field.name}", field.name.lower()
        if lower in names:
            raise UsageError(
                "two columns whose names are the same, ignoring case",
                found=f"{above}{names[lower]} and {path}",
                todo="Rename one of them.",
            )
        names[lower] = field.name
        if not _NAME.fullmatch(field.name):
            raise UsageError(
                "not a column name that Avro allows", expected="letters, digits and _, no digit first", found=repr(path)
            )
        result.append(pa.field(field.name, column_type(field.type, path, untyped), nullable=field.nullable))
    return result


def column_type(kind: pa.DataType, path: str, untyped: bool = False) -> pa.DataType:
    """The type of a table's column for incoming values of a type (`timeline.codec.avro_schema` lists them all).
    `untyped`: see `data_fields`. UsageError: there is no such type; `path` names the column."""
    types = pa.types
    if types.is_null(kind):
        if untyped:
            return kind
        raise UsageError(
            "a column without any value has no type",
            found=f"{path}: {kind}",
            todo="Cast it to the type that it must have, or drop it.",
        )
    if types.is_dictionary(kind):
        return column_type(kind.value_type, path, untyped)
    if types.is_struct(kind):
        children = [kind.field(i) for i in range(kind.num_fields)]
        tagged = (child for child in children if _TAGS & set(child.metadata or ()))
        if not children or any(tagged):
            raise _no_column(path, kind)
        return pa.struct(_column_fields(children, f"{path}.", untyped))
    if types.is_map(kind):
        if not _is_text(kind.key_type):
            raise UsageError("maps need text keys", found=f"{path}: {kind}", todo="Cast the keys to texts.")
        item = kind.item_field
        value = column_type(item.type, f"{path}.value", untyped)
        return pa.map_(pa.string(), pa.field("value", value, nullable=item.nullable))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = kind.value_field
        element = column_type(item.type, f"{path}.element", untyped)
        return pa.list_(pa.field("element", element, nullable=item.nullable))
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    for is_kind, column in _COLUMNS:
        if is_kind(kind):
            return column
    raise _no_column(path, kind)


_TAGS = {b"variant", b"geometry", b"geography"}
"""Metadata of fields of Spark's variants and geometries, which in Arrow are structs."""


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


_INTS = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())
_COLUMNS = (
    (_is_text, pa.string()),
    (_is_bytes, pa.binary()),
    (pa.types.is_boolean, pa.bool_()),
    (lambda kind: kind in _INTS, pa.int32()),
    (lambda kind: kind in (pa.int64(), pa.uint32()), pa.int64()),
    (lambda kind: kind in (pa.float16(), pa.float32()), pa.float32()),
    (pa.types.is_float64, pa.float64()),
    (pa.types.is_date, pa.date32()),
)


def _no_column(path: str, kind: pa.DataType) -> UsageError:
    return UsageError("no column can have this type", found=f"{path}: {kind}", todo="Cast or drop it.")
