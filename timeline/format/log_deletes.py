"""The entries of delete blocks: to Arrow (record keys and ordering values), and the layout of their bytes.

    int32 3, int32 length, Avro {array of {recordKey, partitionPath, orderingVal}}

The ordering value is a union of one-field wrapper records. Writers use one wrapper type per block. So an entry is
treated as a record in which the index of each union branch is an `int`, followed by the value. A block whose indexes
differ is decoded row by row with fastavro."""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.arrow_schema import arrow_type
from ..codec.avro_container import decode_long, decode_records, encode_long, physical
from ..codec.conform import convert
from ..errors import MalformedError, UnsupportedError
from .log_block import LogBlock
from .log_decode import content_of, content_version, decoding

_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 15}
DATE = {"type": "int", "logicalType": "date"}
_TIMESTAMP = {"type": "long", "logicalType": "timestamp-micros"}
WRAPPED: tuple[Any, ...] = (
    "null", "boolean", "int", "long", "float", "double", "bytes", "string", DATE, _DECIMAL,
    {"type": "long", "logicalType": "time-micros"}, _TIMESTAMP,
)  # fmt: skip
"""The value types of union indexes 0..11 of `orderingVal`."""

INT, ARRAY, LOCAL_DATE = 2, 12, 12
ORDERING_VALUES_MAX = 64
NESTED: tuple[Any, ...] = (*WRAPPED, DATE)
"""The value types inside an array wrapper: there index 12 is a date."""


def value_kinds(branches: tuple[int, ...]) -> list[Any]:
    """The types of the ordering values for union indexes: (index,), or (12, i1, i2, ...) for an array wrapper."""
    inner = branches[1:]
    return [(NESTED if inner else WRAPPED)[index] for index in inner or branches]


def entry_layout(branches: tuple[int, ...]) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """An entry whose unions take these branches, as a record without unions: (its constant fields, all its fields).
    Fields: `key`, `path`, then for one ordering value `branch`, `value0`; for several the wrapper's `branch`,
    `present`, the array's `size`, then `index0`, `value0`, ..., and the array's `end`."""
    inner = branches[1:]
    indexes = {"branch": branches[0]}
    if inner:
        indexes |= {"present": 1, "size": len(inner)}
    fields: list[dict[str, Any]] = [{"name": n, "type": ["null", "string"]} for n in ("key", "path")]
    fields += [{"name": n, "type": "int"} for n in indexes]
    for i, kind in enumerate(value_kinds(branches)):
        if inner:
            indexes[f"index{i}"] = inner[i]
            fields.append({"name": f"index{i}", "type": "int"})
        if kind != "null":
            fields.append({"name": f"value{i}", "type": kind})
    if inner:
        indexes["end"] = 0
        fields.append({"name": "end", "type": "int"})
    return indexes, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletes:
    """Entries of one delete block. `ordering`: one array per ordering column, empty if all entries are natural.
    `natural`: whether the entry carries the Integer 0 that stands for "no ordering value"; it deletes every earlier row
    of its key."""

    keys: pa.Array
    ordering: tuple[pa.Array, ...]
    natural: pa.BooleanArray


def decode_deletes(block: LogBlock, source: pa.NativeFile) -> list[Deletes]:
    """The entries of a delete block in order, one part for each run of a wrapper type; errors as in `decode_rows`."""
    with decoding(block):
        content = content_of(block, source)
        length = content_version(content[:8].to_pybytes(), block)
        if length != content.size - 8:
            raise MalformedError(
                "delete block length is wrong", path=block.path, expected=str(content.size - 8), found=str(length)
            )
        body = content[8:]
        count, start = decode_long(body[: min(16, body.size)].to_pybytes(), 0)
        if count == 0:
            return []
        if count > 0:
            branches = _first_branches(memoryview(body), start)
            uniform = _uniform_deletes(body[start : body.size - 1], count, branches, block)
            if uniform is not None and body[body.size - 1 :].to_pybytes() == b"\x00":
                return [uniform]
        return _deletes_by_row(body)


def _first_branches(data: memoryview, position: int) -> tuple[int, ...]:
    """Union indexes of the first entry's ordering value: (index,), or (12, i1, i2, ...) for an array wrapper."""
    for _ in range(2):  # recordKey, partitionPath
        index, position = decode_long(data, position)
        if index == 1:
            length, position = decode_long(data, position)
            position += length
    index, position = decode_long(data, position)
    if not 0 <= index <= ARRAY:
        raise MalformedError("unknown type of an ordering value", found=str(index))
    if index != ARRAY:
        return (index,)
    present, position = decode_long(data, position)
    if present != 1:
        raise UnsupportedError("delete entry with an empty array of ordering values")
    size, position = decode_long(data, position)
    if not 0 < size <= ORDERING_VALUES_MAX:
        raise UnsupportedError(
            "number of ordering values of a delete", expected=f"1 to {ORDERING_VALUES_MAX}", found=str(size)
        )
    indexes = []
    for _ in range(size):
        inner, position = decode_long(data, position)
        if not 0 <= inner < len(NESTED):
            raise MalformedError("unknown type of an ordering value", found=str(inner))
        indexes.append(inner)
        position = _skip(NESTED[inner], data, position)
    return (ARRAY, *indexes)


def _skip(kind: Any, data: memoryview, position: int) -> int:
    name = kind if isinstance(kind, str) else kind["type"]
    if name in ("int", "long"):
        return decode_long(data, position)[1]
    if name in ("bytes", "string"):
        length, position = decode_long(data, position)
        return position + length
    return position + {"null": 0, "boolean": 1, "float": 4, "double": 8}[name]


def _uniform_deletes(entries: pa.Buffer, count: int, branches: tuple[int, ...], block: LogBlock) -> Deletes | None:
    """All entries, decoded as if their unions took the first entry's branches; None if they do not.
    The first entry that deviates shows its true index, because all entries before it were read correctly. So a constant
    index column verifies the entire block. A sentinel is appended to the entries and must be decoded as the last entry:
    this verifies that all bytes were used (Avro may split a list into several runs)."""
    indexes, fields = entry_layout(branches)
    sentinel = b"".join(_smallest(f["type"], indexes.get(f["name"], 0)) for f in fields[2:])
    data = pa.py_buffer(b"".join((entries, _SENTINEL, sentinel)))
    try:
        table = decode_records(data, count + 1, {"type": "record", "name": "d", "fields": fields}, block.path)
    except MalformedError:
        return None
    if table.column("key")[count].as_py() != _SENTINEL_KEY.decode():
        return None
    table = table.slice(0, count)
    if any(not pc.all(pc.equal(table.column(name), index)).as_py() for name, index in indexes.items()):
        return None
    keys = _plain(table, "key", "string")
    kinds = value_kinds(branches)
    values = tuple(_plain(table, f"value{i}", kind) for i, kind in enumerate(kinds))
    return _deletes(keys, branches[0], values)


_SENTINEL_KEY = b"\x01 end of deletes"
_SENTINEL = b"\x02" + encode_long(len(_SENTINEL_KEY)) + _SENTINEL_KEY + b"\x00"
"""An entry's key that ends a block for `_uniform_deletes`, with a null partition path."""


def _smallest(kind: Any, value: int) -> bytes:
    """The shortest value of a wrapper's type, or an index, in Avro."""
    name = kind if isinstance(kind, str) else kind["type"]
    return {"boolean": b"\x00", "float": bytes(4), "double": bytes(8), "bytes": b"\x02\x00", "string": b"\x00"}.get(
        name, encode_long(value)
    )


def _plain(table: pa.Table, name: str, kind: Any) -> pa.Array:
    if kind == "null":
        return pa.nulls(table.num_rows)
    return convert(table.column(name).combine_chunks(), arrow_type(kind), name)


def _deletes(keys: pa.Array, branch: int, ordering: tuple[pa.Array, ...]) -> Deletes:
    if branch == 0:  # a null ordering value is a plain delete, as Hudi 1.x reads it
        return Deletes(keys=keys, ordering=(), natural=pa.repeat(True, len(keys)))
    if branch == INT:
        natural = pc.equal(ordering[0], 0)
        return Deletes(keys=keys, ordering=() if pc.all(natural).as_py() else ordering, natural=natural)
    return Deletes(keys=keys, ordering=ordering, natural=pa.repeat(False, len(keys)))


def _deletes_by_row(body: pa.Buffer) -> list[Deletes]:
    """For blocks that mix wrapper types: decodes entry by entry, one part for each run of one type."""
    stream = io.BytesIO(body.to_pybytes())
    decoded: Any = fastavro.schemaless_reader(stream, _LIST_SCHEMA, None, return_record_name=True)
    if stream.read(1):
        raise MalformedError("bytes after the entries of a delete block")
    return [_part(branches, list(run)) for branches, run in groupby(decoded["deleteRecordList"], key=_branches)]


def _branches(entry: Any) -> tuple[int, ...]:
    """Union indexes of an entry's ordering value, in the form of `_first_branches`."""
    value = entry["orderingVal"]
    if value is None:
        return (0,)
    index = _index(value)
    return (index,) if index != ARRAY else (index, *(_index(v) for v in value[1]["wrappedValues"] or ()))


def _index(value: Any) -> int:
    if value is None:
        return 0
    name = value[0].rpartition(".")[2]
    return LOCAL_DATE if name == "LocalDateWrapper" else _NAMES.index(name)


def _part(branches: tuple[int, ...], entries: list[Any]) -> Deletes:
    keys = pa.array([e["recordKey"] for e in entries], pa.string())
    inner = branches[1:]
    if branches[0] == 0:
        return _deletes(keys, 0, ())
    if branches[0] != ARRAY:
        values = [[e["orderingVal"][1]["value"] for e in entries]]
    else:
        rows = [[None if v is None else v[1]["value"] for v in e["orderingVal"][1]["wrappedValues"]] for e in entries]
        values = [[row[i] for row in rows] for i in range(len(inner))]
    kinds = (pa.null() if kind == "null" else arrow_type(kind) for kind in value_kinds(branches))
    typed = (pa.array(v, kind) for v, kind in zip(values, kinds, strict=True))
    return _deletes(keys, branches[0], tuple(typed))


def _wrapper(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "value", "type": kind}]}


_WRAPPER_NAMES = (
    "BooleanWrapper", "IntWrapper", "LongWrapper", "FloatWrapper", "DoubleWrapper", "BytesWrapper", "StringWrapper",
    "DateWrapper", "DecimalWrapper", "TimeMicrosWrapper", "TimestampMicrosWrapper",
)  # fmt: skip
_NAMES = ("null", *_WRAPPER_NAMES, "ArrayWrapper")
"""Wrapper names by union index; index 12 is `LocalDateWrapper` inside an array wrapper."""
_ARRAY_ITEMS = ["null", *_WRAPPER_NAMES, _wrapper("LocalDateWrapper", DATE)]
_ARRAY_WRAPPER = {
    "type": "record",
    "name": "ArrayWrapper",
    "fields": [{"name": "wrappedValues", "type": ["null", {"type": "array", "items": _ARRAY_ITEMS}]}],
}
_LIST_SCHEMA: Any = fastavro.parse_schema(physical({
    "type": "record",
    "name": "HoodieDeleteRecordList",
    "fields": [{"name": "deleteRecordList", "type": {"type": "array", "items": {
        "type": "record",
        "name": "HoodieDeleteRecord",
        "fields": [
            {"name": "recordKey", "type": ["null", "string"]},
            {"name": "partitionPath", "type": ["null", "string"]},
            {"name": "orderingVal", "type": [
                "null", *(_wrapper(n, k) for n, k in zip(_WRAPPER_NAMES, WRAPPED[1:], strict=True)), _ARRAY_WRAPPER,
            ]},
        ],
    }}}],
}))  # fmt: skip
