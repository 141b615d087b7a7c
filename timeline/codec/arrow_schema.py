"""Arrow schemas that match Avro schemas (pure).

    Avro                                  Arrow
    string, enum                          string
    bytes                                 binary
    boolean int long float double         bool int32 int64 float32 float64
    int + date                            date32
    long + timestamp-millis / -micros     timestamp[ms|us, UTC]
    long + local-timestamp-millis / -micros   timestamp[ms|us]
    int + time-millis, long + time-micros time32[ms], time64[us]
    fixed or bytes + decimal(p, s)        decimal128(p, s)
    fixed                                 fixed-size binary
    array, map, record                    list<element>, map<string, value>, struct
    ["null", T] or [T, "null"]            T, nullable

A separate module: code that only reads plans and commits starts without pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ..errors import UnsupportedError
from .avro_schema import parse_avro, part_of, reading, without_null

_ARROW_TYPES = {
    "string": pa.string(),
    "bytes": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


@lru_cache(maxsize=64)
def arrow_schema(text: str) -> pa.Schema:
    """The Arrow schema that matches an Avro record schema."""
    record = parse_avro(text)
    with reading(text, pa.ArrowException):
        return pa.schema([avro_field(f["name"], f["type"]) for f in record["fields"]])


def avro_field(name: str, node: Any) -> pa.Field:
    """The Arrow field of one Avro field, which may be a union with null."""
    inner, nullable = without_null(node)
    return pa.field(name, arrow_type(inner), nullable=nullable)


def arrow_type(node: Any) -> pa.DataType:
    """The Arrow type of one Avro type (not a union)."""
    if isinstance(node, str):
        if node not in _ARROW_TYPES:
            raise UnsupportedError("Avro type not supported as a column", found=node)
        return _ARROW_TYPES[node]
    kind, logical = node["type"], node.get("logicalType")
    if logical == "decimal" and kind in ("fixed", "bytes"):
        precision, scale = int(part_of(node, "precision")), int(node.get("scale", 0))
        return (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)
    if kind == "record":
        return pa.struct([avro_field(f["name"], f["type"]) for f in node["fields"]])
    if kind == "array":
        return pa.list_(avro_field("element", node["items"]))
    if kind == "map":
        value = avro_field("value", node["values"])
        return pa.map_(pa.string(), value)
    if kind == "fixed":
        return pa.binary(int(node["size"]))
    if kind == "enum":
        return pa.string()
    return _LOGICAL.get((kind, logical)) or arrow_type(kind)


def project(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """The named fields, in the schema's own order."""
    wanted = set(columns)
    return pa.schema([f for f in schema if f.name in wanted])
