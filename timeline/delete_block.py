"""The entries of delete blocks as Arrow: record keys and ordering values.

    int32 3, int32 length, Avro {array of {recordKey, partitionPath, orderingVal}}

The ordering value is a union of one-field wrapper records. Writers use one wrapper type per block, so a block
is decoded as if the union were an `int` (its index) and the value behind it; where the indexes turn out to
differ, fastavro decodes the block row by row.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from timeline.avro_arrow import decode_long, decode_records
from timeline.errors import MalformedError, UnsupportedError
from timeline.log_block import LogBlock
from timeline.log_decode import content_of, content_version, decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletes:
    """Entries of one delete block. `ordering`: one array per ordering value, empty when all are natural.

    `natural`: whether the entry carries the Integer 0 that stands for "no ordering value", which deletes
    whatever came before.
    """

    keys: pa.Array
    ordering: tuple[pa.Array, ...]
    natural: pa.BooleanArray


_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 15}
_DATE = {"type": "int", "logicalType": "date"}
_TIMESTAMP = {"type": "long", "logicalType": "timestamp-micros"}
_WRAPPED: tuple[Any, ...] = (
    "null", "boolean", "int", "long", "float", "double", "bytes", "string", _DATE, _DECIMAL,
    {"type": "long", "logicalType": "time-micros"}, _TIMESTAMP,
)  # fmt: skip
"""The value types behind union indexes 0..11 of `orderingVal`."""

_INT, _ARRAY, _LOCAL_DATE = 2, 12, 12
_NESTED: tuple[Any, ...] = (*_WRAPPED, _DATE)
"""The value types inside an array wrapper: index 12 is a date there."""


def decode_deletes(block: LogBlock, source: pa.NativeFile) -> Deletes:
    """The entries of a delete block; MalformedError and UnsupportedError as `decode_rows`."""
    with decoding(block):
        content = content_of(block, source)
        length = content_version(content[:8].to_pybytes(), block)
        if length != content.size - 8:
            raise MalformedError(
                "delete block length is wrong",
                path=block.path,
                expected=str(content.size - 8),
                found=str(length),
            )
        body = content[8:]
        head = body[: min(64, body.size)].to_pybytes()
        count, start = decode_long(head, 0)
        if count == 0:
            return Deletes(keys=pa.array([], pa.string()), ordering=(), natural=pa.array([], pa.bool_()))
        if count > 0:
            branches = _first_branches(memoryview(body), start)
            uniform = _uniform_deletes(body, start, count, branches, block)
            if uniform is not None:
                return uniform
        return _deletes_by_row(body, block)


def _first_branches(data: memoryview, position: int) -> tuple[int, ...]:
    """Union indexes of the first entry's ordering value: (index,), or (12, i1, i2, ...) of an array wrapper."""
    for _ in range(2):  # recordKey, partitionPath
        index, position = decode_long(data, position)
        if index == 1:
            length, position = decode_long(data, position)
            position += length
    index, position = decode_long(data, position)
    if index != _ARRAY:
        return (index,)
    present, position = decode_long(data, position)
    if present != 1:
        raise UnsupportedError("delete entry with an empty array of ordering values")
    size, position = decode_long(data, position)
    indexes = []
    for _ in range(size):
        inner, position = decode_long(data, position)
        indexes.append(inner)
        position = _skip(_NESTED[inner], data, position)
    return (_ARRAY, *indexes)


def _skip(kind: Any, data: memoryview, position: int) -> int:
    name = kind if isinstance(kind, str) else kind["type"]
    if name in ("int", "long"):
        return decode_long(data, position)[1]
    if name in ("bytes", "string"):
        length, position = decode_long(data, position)
        return position + length
    return position + {"null": 0, "boolean": 1, "float": 4, "double": 8}[name]


def _uniform_deletes(
    body: pa.Buffer, start: int, count: int, branches: tuple[int, ...], block: LogBlock
) -> Deletes | None:
    """All entries decoded as if their unions took the first entry's branches; None when they do not.

    The first entry that deviates still shows its true index, because all before it were read right: so a
    constant index column proves the whole block.
    """
    fields: list[dict[str, Any]] = [
        {"name": "key", "type": ["null", "string"]},
        {"name": "path", "type": ["null", "string"]},
        {"name": "b0", "type": "int"},
    ]
    expected = {"b0": branches[0]}
    values = []
    if branches[0] == _ARRAY:
        inner = branches[1:]
        fields += [{"name": "present", "type": "int"}, {"name": "size", "type": "int"}]
        expected |= {"present": 1, "size": len(inner)}
        for i, index in enumerate(inner, 1):
            fields.append({"name": f"b{i}", "type": "int"})
            expected[f"b{i}"] = index
            if index:
                fields.append({"name": f"v{i}", "type": _NESTED[index]})
            values.append((f"v{i}", index))
        fields.append({"name": "end", "type": "int"})
        expected["end"] = 0
    else:
        if branches[0]:
            fields.append({"name": "v0", "type": _WRAPPED[branches[0]]})
        values.append(("v0", branches[0]))
    try:
        table = decode_records(
            body[start : body.size - 1], count, {"type": "record", "name": "d", "fields": fields}, block.path
        )
    except MalformedError:
        return None
    if body[body.size - 1 :].to_pybytes() != b"\x00":
        raise MalformedError("delete block does not end its list", path=block.path)
    if any(not pc.all(pc.equal(table.column(name), value)).as_py() for name, value in expected.items()):
        return None
    arrays = tuple(_plain(table, name, index) for name, index in values)
    return _deletes(_plain(table, "key", 7), branches[0], arrays)


def _plain(table: pa.Table, name: str, index: int) -> pa.Array:
    if index == 0:
        return pa.nulls(table.num_rows)
    array = table.column(name).combine_chunks()
    return array.cast(pa.string()) if pa.types.is_large_string(array.type) else array


def _deletes(keys: pa.Array, branch: int, ordering: tuple[pa.Array, ...]) -> Deletes:
    if branch == 0:  # a null ordering value is a plain delete, as Hudi 1.x reads it
        return Deletes(keys=keys, ordering=(), natural=pa.repeat(True, len(keys)))
    if branch == _INT:
        natural = pc.equal(ordering[0], 0)
        return Deletes(keys=keys, ordering=() if pc.all(natural).as_py() else ordering, natural=natural)
    return Deletes(keys=keys, ordering=ordering, natural=pa.repeat(False, len(keys)))


def _deletes_by_row(body: pa.Buffer, block: LogBlock) -> Deletes:
    """The fallback for blocks that mix wrapper types."""
    stream = io.BytesIO(body.to_pybytes())
    decoded: Any = fastavro.schemaless_reader(stream, _LIST_SCHEMA, None, return_record_name=True)
    entries = decoded["deleteRecordList"]
    values = [_unwrap(e["orderingVal"]) for e in entries]
    typed = [None if v in (None, ("IntWrapper", 0)) else v[1] for v in values]
    natural = pa.array([v is None for v in typed], pa.bool_())
    keys = pa.array([e["recordKey"] for e in entries], pa.string())
    width = max((len(v) for v in typed if isinstance(v, list)), default=1)
    columns = [[v[i] if isinstance(v, list) else v for v in typed] for i in range(width)]
    if all(v is None for v in typed):
        columns = []
    return Deletes(keys=keys, ordering=tuple(pa.array(c) for c in columns), natural=natural)


def _unwrap(value: Any) -> tuple[str, Any] | None:
    if value is None:
        return None
    name, record = value
    name = name.rpartition(".")[2]
    if name == "ArrayWrapper":
        return name, [v if v is None else v[1]["value"] for v in record["wrappedValues"]]
    return name, record["value"]


def _wrapper(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "value", "type": kind}]}


_WRAPPER_NAMES = (
    "BooleanWrapper", "IntWrapper", "LongWrapper", "FloatWrapper", "DoubleWrapper", "BytesWrapper", "StringWrapper",
    "DateWrapper", "DecimalWrapper", "TimeMicrosWrapper", "TimestampMicrosWrapper",
)  # fmt: skip
_ARRAY_ITEMS = ["null", *_WRAPPER_NAMES, _wrapper("LocalDateWrapper", _DATE)]
_ARRAY_WRAPPER = {
    "type": "record",
    "name": "ArrayWrapper",
    "fields": [{"name": "wrappedValues", "type": ["null", {"type": "array", "items": _ARRAY_ITEMS}]}],
}
_LIST_SCHEMA: Any = fastavro.parse_schema({
    "type": "record",
    "name": "HoodieDeleteRecordList",
    "fields": [{"name": "deleteRecordList", "type": {"type": "array", "items": {
        "type": "record",
        "name": "HoodieDeleteRecord",
        "fields": [
            {"name": "recordKey", "type": ["null", "string"]},
            {"name": "partitionPath", "type": ["null", "string"]},
            {"name": "orderingVal", "type": [
                "null", *(_wrapper(n, k) for n, k in zip(_WRAPPER_NAMES, _WRAPPED[1:], strict=True)), _ARRAY_WRAPPER,
            ]},
        ],
    }}}],
})  # fmt: skip
