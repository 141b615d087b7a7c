"""Rows to be written, in exactly the types of a schema (pure, vectorised).

Reading promotes types (see `conform`); writing does not. The rows must already have the table's types; they may differ
only in how Arrow stores them. These differences are removed here:

    dictionary of T             T
    int8, int16 (int32)         int32 (int64)
    large or view text, bytes   text, bytes
    names of list elements, nullability of nested fields
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ..errors import UsageError
from .columns import flat, list_parts
from .conform import convert


def exact_rows(rows: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of `schema`, in its order and types, each column in one piece.

    UsageError names the column: it is missing, unknown or given twice, has another type, or holds a null although
    the schema, at any depth, forbids it.
    """
    _check_names(rows.schema.names, schema.names, "columns of the rows")
    columns = []
    for field in schema:
        column = rows.column(field.name)
        _check_type(column.type, field.type, field.name)
        column = convert(flat(column), field.type, field.name)
        _check_nulls(column, field, field.name)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _check_names(found: list[str], expected: list[str], what: str) -> None:
    if sorted(found) != sorted(expected):
        odd = sorted(set(found) ^ set(expected)) or sorted({n for n in found if found.count(n) > 1})
        raise UsageError(f"{what} are not those of the schema", expected=str(expected), found=f"{odd} differ")


def _check_type(source: pa.DataType, target: pa.DataType, where: str) -> None:
    types = pa.types
    if types.is_dictionary(source):
        source = source.value_type
    if types.is_struct(target) and types.is_struct(source):
        fields = {f.name: f for f in source}
        _check_names([f.name for f in source], [f.name for f in target], f"fields of column {where}")
        for field in target:
            _check_type(fields[field.name].type, field.type, f"{where}.{field.name}")
    elif types.is_map(target) and types.is_map(source):
        _check_type(source.key_type, target.key_type, f"{where}.key")
        _check_type(source.item_type, target.item_type, f"{where}.value")
    elif types.is_list(target) and (types.is_list(source) or types.is_large_list(source)):
        _check_type(source.value_type, target.value_type, f"{where}.element")
    elif not (source == target or _same_values(source, target)):
        raise UsageError(
            f"column {where} has another type than the schema",
            expected=str(target),
            found=str(source),
            todo="Cast it before writing.",
        )


def _same_values(source: pa.DataType, target: pa.DataType) -> bool:
    types = pa.types
    if types.is_signed_integer(target):
        return bool(types.is_signed_integer(source) and source.bit_width <= target.bit_width)
    if types.is_string(target):
        return bool(types.is_large_string(source) or types.is_string_view(source))
    return bool(types.is_binary(target) and (types.is_large_binary(source) or types.is_binary_view(source)))


def _check_nulls(array: Any, field: pa.Field, where: str, above: int = 0) -> None:
    """`above`: how many of the array's nulls exist only because the record around them is null."""
    if not field.nullable and array.null_count > above:
        raise UsageError(f"column {where} must not hold nulls", found=f"{array.null_count - above} nulls")
    kind = field.type
    if pa.types.is_struct(kind):
        # flatten() makes the fields of a null record null.
        for child, child_field in zip(array.flatten(), kind, strict=True):
            _check_nulls(child, child_field, f"{where}.{child_field.name}", array.null_count)
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        # A null list may stand over values that belong to no list.
        values = list_parts(array.drop_null())[1]
        if pa.types.is_map(kind):
            _check_nulls(values.field(1), kind.item_field, f"{where}.value")
        else:
            _check_nulls(values, kind.value_field, f"{where}.element")
