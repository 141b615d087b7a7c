"""Brings incoming rows into the table's schema (pure, vectorised): exactly, or not at all."""

from __future__ import annotations

import pyarrow as pa

from phantombase.timeline.codec.avro_schema import META_COLUMNS
from phantombase.timeline.codec.columns import flat, list_parts
from phantombase.timeline.codec.conform import null_mask
from phantombase.timeline.errors import UsageError

from .column_types import data_fields
from .table_schema import merged_fields


def to_file_schema(rows: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with exactly the columns of `schema`, the Arrow form of the evolved table schema, in its order and types.

    Hudi's meta columns are left out on both sides. Nullable columns that the rows lack become null, also inside
    records, and so do columns of Arrow's type null. Floats are widened through their decimal text (1.1 stays 1.1), as
    in Hudi.
    UsageError, with the column: `schema` does not cover the rows (`table_schema.evolve` makes one that does); nulls in
    a column that allows none (with their number); values that do not fit, or would be rounded or cut.
    """
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    target = pa.schema([f for f in schema if f.name not in META_COLUMNS])
    merged = merged_fields(list(target), list(data_fields(table.schema, untyped=True)))
    if merged != list(target):
        raise UsageError(
            "the table's schema does not cover the rows",
            expected=", ".join(str(f) for f in target),
            found=", ".join(str(f) for f in merged if f not in target),
        )
    columns, there = [], frozenset(table.column_names)
    for field in target:
        if field.name in there:
            columns.append(_field(flat(table.column(field.name)), field, field.name, 0))
        else:
            columns.append(pa.nulls(table.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=target)


def _field(array: pa.Array, field: pa.Field, path: str, nulls_above: int) -> pa.Array:
    """`array` as the values of a field. `nulls_above`: the nulls of the record around it, in which it is null too."""
    count = array.null_count - nulls_above
    if not field.nullable and count:
        raise UsageError(
            "nulls in a column that allows none", expected=str(field), found=f"{path}: {count} of {len(array)} values"
        )
    try:
        return _values(array, field.type, path)
    except pa.ArrowException as error:
        raise UsageError(
            "values that do not fit the table's column",
            expected=f"{path}: {field.type}",
            found=f"{array.type}: {error}",
            todo="Cast the column, or write it in a wider type.",
        ) from error


def _values(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    types, source = pa.types, array.type
    if types.is_null(source):
        return pa.nulls(len(array), target)
    if types.is_dictionary(source):
        if types.is_string_view(source.value_type):  # Polars' categories; views cannot be taken
            array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(pa.string()))
        return _values(array.dictionary_decode(), target, path)
    if types.is_struct(target):
        return _struct(array, target, path)
    if types.is_list(target):
        if types.is_fixed_size_list(source):
            array = array.cast(pa.list_(source.value_field))
        offsets, values = list_parts(array)
        values = _field(values, target.value_field, f"{path}.element", 0)
        return pa.ListArray.from_arrays(offsets, values, type=target, mask=null_mask(array))
    if types.is_map(target):
        offsets, pairs = list_parts(array)
        keys = _values(pairs.field(0), target.key_type, f"{path}.key")
        items = _field(pairs.field(1), target.item_field, f"{path}.value", 0)
        return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=null_mask(array))
    if types.is_float32(source) and types.is_float64(target):
        return array.cast(pa.string()).cast(target)
    return array.cast(target)


def _struct(array: pa.StructArray, target: pa.StructType, path: str) -> pa.StructArray:
    fields = [target.field(i) for i in range(target.num_fields)]
    given = dict(zip((f.name for f in array.type), array.flatten(), strict=True))  # null if the record is null
    children = [
        _field(given[f.name], f, f"{path}.{f.name}", array.null_count)
        if f.name in given
        else pa.nulls(len(array), f.type)
        for f in fields
    ]
    return pa.StructArray.from_arrays(children, fields=fields, mask=null_mask(array))
