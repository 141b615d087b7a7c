"""The Avro schema of a table that is written, and incoming rows in it (pure, vectorised).

Arrow is the common form: a Spark schema becomes an Arrow schema (`engine.spark.from_spark`), and an Arrow schema
becomes an Avro record (`new_schema`). An existing record changes only where necessary (`evolve`): names, order and all
properties that phantombase does not know are preserved. `to_file_schema` converts rows exactly, or refuses them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from phantombase.timeline.codec.arrow_schema import arrow_schema
from phantombase.timeline.codec.avro_schema import META_COLUMNS
from phantombase.timeline.codec.columns import flat, list_parts, null_mask
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.table.table import Table

from .column_types import column_type, data_fields


def new_schema(table_name: str, schema: pa.Schema) -> str:
    """The Avro record of a new table's rows, without meta columns, as Hudi's Spark writer makes it. Record
    `<table>_record` in namespace `hoodie.<table>`, nullable columns as ["null", T] with default null (hudi-format.md
    4.4). UsageError as `data_fields`, and if there is no column."""
    fields = data_fields(schema)
    if not len(fields):
        raise UsageError(
            "a table needs a column", found="no columns but Hudi's own", todo="Give the rows a column of your own."
        )
    name = sanitized(table_name)
    record, namespace = f"{name}_record", f"hoodie.{name}"
    children = [_avro_field(f, f"{namespace}.{record}") for f in fields]
    return _text({"type": "record", "name": record, "namespace": namespace, "fields": children})


def evolve(table_text: str, incoming: pa.Schema) -> str:
    """The table's Avro record after a write of `incoming`; the same text if nothing changes.

        new column                      added at the end; it must be nullable
        missing column                  is kept; it must be nullable
        int -> long -> float -> double  the table's type widens; a narrower incoming type is cast up
        records, arrays, maps           the same rules inside
        a column without any value      keeps the table's type

    Whether a column may hold nulls never changes. UsageError, with the column and both types: any other change, and
    names that differ from a column's in case only."""
    record = json.loads(table_text)
    fields = data_fields(incoming, untyped=True)
    data = [f for f in arrow_schema(table_text) if f.name not in META_COLUMNS]
    merged = merged_fields(data, list(fields))
    if merged == data:
        return table_text
    home = record["name"] if "." in record["name"] else f"{record.get('namespace', '')}.{record['name']}".lstrip(".")
    meta = [f for f in record["fields"] if f["name"] in META_COLUMNS]
    own = [f for f in record["fields"] if f["name"] not in META_COLUMNS]
    text = _text({**record, "fields": [*meta, *_changed_fields(own, data, merged, home)]})
    if [f for f in arrow_schema(text) if f.name not in META_COLUMNS] != merged:
        raise _shared_type("of the table's schema")  # a changed definition is used in another place too
    return text


def sanitized(name: str) -> str:
    """A table name as part of an Avro name: characters that Avro does not allow become `__`."""
    return re.sub(r"[^A-Za-z0-9_]", "__", re.sub(r"^[^A-Za-z_]", "__", name))


# --- Arrow to Avro ----------------------------------------------------------------------------------------------


def _avro_field(field: pa.Field, home: str) -> dict[str, Any]:
    node = _avro_type(field.type, field.name, home)
    if not field.nullable:
        return {"name": field.name, "type": node}
    return {"name": field.name, "type": ["null", node], "default": None}


_AVRO: dict[pa.DataType, Any] = {
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", tz="UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}


def _avro_type(kind: pa.DataType, name: str, home: str) -> Any:
    """The Avro type of an Arrow type. `name` of the nearest field and `home`, the record around, name types."""
    if pa.types.is_struct(kind):
        children = [_avro_field(f, f"{home}.{name}") for f in _children(kind)]
        return {"type": "record", "name": name, "namespace": home, "fields": children}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _item(kind.value_field, name, home)}
    if pa.types.is_map(kind):
        return {"type": "map", "values": _item(kind.item_field, name, home)}
    if pa.types.is_decimal(kind):
        size = int(10**kind.precision - 1).bit_length() // 8 + 1  # of the shortest two's complement of every number
        fixed = {"type": "fixed", "name": "fixed", "namespace": f"{home}.{name}", "size": size}
        return {**fixed, "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    return _AVRO[kind]


def _item(field: pa.Field, name: str, home: str) -> Any:
    node = _avro_type(field.type, name, home)
    return ["null", node] if field.nullable else node


# --- evolution --------------------------------------------------------------------------------------------------


def merged_fields(table: Sequence[pa.Field], incoming: Sequence[pa.Field], above: str = "") -> list[pa.Field]:
    """The table's fields after rows of `incoming` (from `data_fields`), see `evolve`. `above`: for messages."""
    own, given = {f.name: f for f in table}, {f.name: f for f in incoming}
    lower = {name.lower(): name for name in own}
    for name in given:
        like = lower.get(name.lower(), name)
        if like != name:
            raise UsageError(
                "a column's name differs from the table's in case only", expected=above + like, found=above + name
            )
    missing = [above + f.name for f in table if not f.nullable and f.name not in given]
    if missing:
        raise UsageError("required columns are missing in the rows", expected=", ".join(missing))
    added = [f for f in incoming if f.name not in own]
    required = [above + f.name for f in added if not f.nullable]
    if required:
        raise UsageError(
            "new columns must be nullable: the table's rows do not have them",
            found=", ".join(required),
            todo="Make them nullable in the schema of the rows.",
        )
    for field in added:
        column_type(field.type, above + field.name)  # refuses columns without a type
    merged = [_merged(f, given[f.name], above + f.name) if f.name in given else f for f in table]
    return [*merged, *added]


def _merged(table: pa.Field, incoming: pa.Field, path: str) -> pa.Field:
    return table.with_type(_merged_type(table.type, incoming.type, path))


def _merged_type(table: pa.DataType, incoming: pa.DataType, path: str) -> pa.DataType:
    """The table's type after a column of `incoming`, which comes from `column_type`."""
    types = pa.types
    if table == incoming or types.is_null(incoming):
        return table
    if types.is_struct(table) and types.is_struct(incoming):
        return pa.struct(merged_fields(_children(table), _children(incoming), f"{path}."))
    if types.is_list(table) and types.is_list(incoming):
        return pa.list_(_merged(table.value_field, incoming.value_field, f"{path}.element"))
    if types.is_map(table) and types.is_map(incoming):
        return pa.map_(pa.string(), _merged(table.item_field, incoming.item_field, f"{path}.value"))
    if table in _WIDENING and incoming in _WIDENING:
        return max(table, incoming, key=_WIDENING.index)
    if _holds(table, incoming):
        return table
    raise UsageError(
        "the rows' type of a column does not fit the table's",
        expected=f"{path}: {table}",
        found=str(incoming),
        todo=_cast(table, incoming),
    )


def _cast(table: pa.DataType, incoming: pa.DataType) -> str:
    """The cast from the rows' type to the table's. It assumes no zone, since the times may be in any zone."""
    if not (pa.types.is_timestamp(table) and pa.types.is_timestamp(incoming)):
        return "Cast the column."
    if table.tz is not None:
        return (
            "Give the zone of these times: pandas column.dt.tz_localize('UTC'), "
            "pyarrow.compute.assume_timezone(column, 'UTC')."
        )
    return "Remove the zone: pandas column.dt.tz_localize(None), pyarrow.compute.local_timestamp(column)."


_WIDENING = (pa.int32(), pa.int64(), pa.float32(), pa.float64())


def _children(kind: pa.StructType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _holds(table: pa.DataType, incoming: pa.DataType) -> bool:
    """Whether a column can take values of another type without a change of its own; single values may not fit."""
    types = pa.types
    if types.is_timestamp(table) and types.is_timestamp(incoming):
        return (table.tz is None) == (incoming.tz is None)
    if types.is_decimal(table) and types.is_decimal(incoming):
        whole, whole_incoming = table.precision - table.scale, incoming.precision - incoming.scale
        return bool(incoming.scale <= table.scale and whole_incoming <= whole)
    return bool(types.is_fixed_size_binary(table) and types.is_binary(incoming))


def _changed_fields(
    nodes: list[dict[str, Any]], table: list[pa.Field], merged: list[pa.Field], home: str
) -> list[dict[str, Any]]:
    kept = [
        {**node, "type": _changed(node["type"], old.type, new.type, f"{home}: {old.name}", home)}
        for node, old, new in zip(nodes, table, merged, strict=False)
    ]
    return [*kept, *(_avro_field(f, home) for f in merged[len(nodes) :])]


def _changed(node: Any, old: pa.DataType, new: pa.DataType, path: str, home: str) -> Any:
    if old == new:
        return node
    if isinstance(node, list):
        return [branch if branch == "null" else _changed(branch, old, new, path, home) for branch in node]
    if isinstance(node, dict) and node.get("type") == "record":
        name = node["name"]
        own_home = name if "." in name else f"{node.get('namespace', home.rpartition('.')[0])}.{name}"
        return {**node, "fields": _changed_fields(node["fields"], _children(old), _children(new), own_home)}
    if isinstance(node, dict) and node.get("type") == "array":
        return {**node, "items": _changed(node["items"], old.value_type, new.value_type, path, home)}
    if isinstance(node, dict) and node.get("type") == "map":
        return {**node, "values": _changed(node["values"], old.item_type, new.item_type, path, home)}
    if isinstance(node, dict) and isinstance(node.get("type"), dict | list):
        return {**node, "type": _changed(node["type"], old, new, path, home)}
    if new in _WIDENING:
        return _AVRO[new]
    raise _shared_type(path)


def _shared_type(found: str) -> UnsupportedError:
    return UnsupportedError("a type that the table's schema uses in several places cannot change", found=found)


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def to_file_schema(rows: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with exactly the columns of `schema`, the Arrow form of the evolved table schema, in its order and types.
    Hudi's meta columns are left out on both sides. Nullable columns that the rows lack become null, also inside
    records, and so do columns of Arrow's type null. Floats are widened through their decimal text (1.1 stays 1.1), as
    in Hudi. UsageError, with the column: `schema` does not cover the rows (`table_schema.evolve` makes one that does);
    nulls in a column that allows none (with their number); values that do not fit, or would be rounded or cut."""
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
    """`array` as the values of a field. `nulls_above`: the nulls of the record around it, where it is null too."""
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


def columns_of(table: Table) -> pa.Schema:
    """The table's columns, without Hudi's. MalformedError: it has none yet."""
    return arrow_schema(table.with_timeline(table.load_timeline()).newest_schema().commit_text)
