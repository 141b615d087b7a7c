"""Brings Arrow data written under an older schema into the table's schema (pure, vectorised).

Columns are matched by name (`stored_names`): missing ones become null, unknown ones are dropped, widened ones are
cast. The changes are the Avro promotions: int -> long, float, double; long -> float, double; float -> double; string
<-> bytes; and int, long -> string; nested records field by field. Hudi also turns floats into text. That is refused
here, because Java prints floats differently from every other implementation.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ..errors import MalformedError, UnsupportedError
from .columns import list_parts
from .stored_names import SAME_NAMES, Names


def conform(
    data: pa.RecordBatch | pa.Table,
    schema: pa.Schema,
    where: str,
    *,
    float_as_text: bool = True,
    names: Names = SAME_NAMES,
) -> pa.Table:
    """`data` with exactly the columns of `schema`, in its order and types; `where` names the source in errors.

    `names`: those of the columns in `data`, where they differ.

    `float_as_text`: float widens to double through its decimal text (1.1f -> 1.1). Hudi does this everywhere except
    in Avro log blocks read by 0.15, which keep the bits (1.100000023841858) unless another column of the record
    turns into text or bytes: then 0.15 rewrites the whole record, floats through their text.

    MalformedError: a required column is missing or holds nulls. UnsupportedError: a type change that is not a
    promotion.
    """
    table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
    kinds = {f.name: f.type for f in table.schema}
    float_as_text = float_as_text or any(
        _is_rewrite(kinds.get(names.get(f.name, f.name) or ""), f.type) for f in schema
    )
    columns = []
    for field in schema:
        there = names.get(field.name, field.name)
        index = -1 if there is None else _place(table.schema, there, where)
        column = pa.nulls(table.num_rows, field.type) if index < 0 else table.column(index)
        columns.append(_column(column, field, where, float_as_text))
    return pa.Table.from_arrays(columns, schema=schema)


def check_conformable(
    there: pa.Schema,
    schema: pa.Schema,
    where: str,
    *,
    float_as_text: bool = True,
    names: Names = SAME_NAMES,
    rows: int = 1,
) -> None:
    """What `conform` raises of data with these columns, whatever its values, as far as the types show it.

    `there`: those of the schema's columns that the data has, in the schema's order; `rows`: how many rows at least.
    """
    lacking = [f for f in schema if names.get(f.name, f.name) not in there.names] if len(there) < len(schema) else []
    if there.types != [f.type for f in schema if f not in lacking]:
        conform(there.empty_table(), schema, where, float_as_text=float_as_text, names=names)
    if rows and lacking:
        conform(pa.table({"": pa.nulls(1)}), pa.schema(lacking), where, float_as_text=float_as_text, names=names)


def _place(fields: pa.Schema | pa.StructType, name: str, where: str) -> int:
    """The index of the field, -1 if it is missing. MalformedError: it exists twice, which Arrow reports as -1 too."""
    index = fields.get_field_index(name)
    if index < 0 and any(f.name == name for f in fields):
        raise MalformedError("two columns of one name", path=where, found=name)
    return int(index)


def _column(column: Any, field: pa.Field, where: str, text: bool) -> Any:
    if column.type != field.type:
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        column = pa.chunked_array(
            [convert(c, field.type, f"{where}: column {field.name}", text) for c in chunks], type=field.type
        )
    if not field.nullable and column.null_count:
        raise MalformedError(
            "required column is missing or holds nulls",
            path=where,
            expected=str(field),
            found=f"{column.null_count} nulls",
        )
    return column


def convert(array: pa.Array, target: pa.DataType, where: str, float_as_text: bool = True) -> pa.Array:
    """`array` as `target`, by promotion only."""
    source = array.type
    if source == target:
        return array
    if pa.types.is_dictionary(source):
        return convert(array.dictionary_decode(), target, where, float_as_text)
    if pa.types.is_struct(target) and pa.types.is_struct(source):
        return _struct(array, target, where, float_as_text)
    if pa.types.is_list(target) and _is_list(source):
        offsets, values = list_parts(array)
        values = convert(values, target.value_type, where, float_as_text)
        return pa.ListArray.from_arrays(offsets, values, type=target, mask=null_mask(array))
    if pa.types.is_map(target) and _is_list(source):
        return _map(array, target, where, float_as_text)
    if not _is_promotion(source, target):
        raise UnsupportedError(
            "column type change is not a promotion", path=where, expected=str(target), found=str(source)
        )
    if float_as_text and pa.types.is_float32(source) and pa.types.is_float64(target):
        return array.cast(pa.string()).cast(pa.float64())
    # Java rounds whole numbers beyond a float's mantissa; polars has times of day in nanoseconds only.
    rounds = pa.types.is_floating(target) or pa.types.is_time(target)
    return array.cast(target, safe=not rounds)


def _struct(array: pa.StructArray, target: pa.StructType, where: str, text: bool) -> pa.StructArray:
    children = []
    fields = [target.field(i) for i in range(target.num_fields)]
    for field in fields:
        index = _place(array.type, field.name, where)
        if index < 0:
            children.append(pa.nulls(len(array), field.type))
        else:
            # field(i) ignores the parent's validity; the mask below carries it.
            children.append(convert(array.field(index), field.type, f"{where}.{field.name}", text))
    return pa.StructArray.from_arrays(children, fields=fields, mask=null_mask(array))


def _map(array: Any, target: pa.MapType, where: str, text: bool) -> pa.MapArray:
    offsets, pairs = list_parts(array)
    keys = convert(pairs.field(0), target.key_type, where, text)
    items = convert(pairs.field(1), target.item_type, where, text)
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=null_mask(array))


def null_mask(array: pa.Array) -> pa.Array | None:
    """Which values are null, for building a new array; None if there are no nulls."""
    return array.is_null() if array.null_count else None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))


def _is_promotion(source: pa.DataType, target: pa.DataType) -> bool:
    types = pa.types
    if types.is_null(source):
        return True
    if _is_text(target) or _is_bytes(target):
        return _is_text(source) or _is_bytes(source) or (_is_text(target) and bool(types.is_integer(source)))
    if types.is_fixed_size_binary(target):
        return _is_bytes(source)
    if types.is_integer(target):
        return bool(types.is_integer(source) and source.bit_width <= target.bit_width)
    if types.is_floating(target):
        return bool(types.is_integer(source) or (types.is_floating(source) and source.bit_width <= target.bit_width))
    if types.is_decimal(target):
        return bool(types.is_decimal(source) and source.scale <= target.scale and source.precision <= target.precision)
    if types.is_timestamp(target):
        return bool(types.is_timestamp(source))
    if types.is_time(target):
        return bool(types.is_time(source))
    return False


def _is_rewrite(source: pa.DataType | None, target: pa.DataType) -> bool:
    """Whether a column of another type turns into text or bytes."""
    if source is None or not (_is_text(target) or _is_bytes(target)):
        return False
    return not (_is_text(source) and _is_text(target)) and not (_is_bytes(source) and _is_bytes(target))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
