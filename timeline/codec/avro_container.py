"""Avro by fastavro, record by record. Container files holding exactly one: how Hudi writes plans and (v8+) commits.

    Obj\x01 | header map {avro.schema, avro.codec} | marker | one block: count 1, size, record | marker

Records are resolved by name against the requested schema, as Hudi's readers do: fields that only the writer's schema
has are skipped, fields that it does not have get their default.

Variable-length integers are groups of seven bits, the lowest first, as Avro, protobuf and Thrift write them.
`EncodedArray` and `OnDemand` hold a million elements of a plan in the memory of their encoded bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import fastavro

from ..errors import MalformedError, PhantombaseError, UnsupportedError, reason_of
from .avro_schema import parse_avro, without_null

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
U = TypeVar("U")


class OnDemand(Sequence[U]):
    """`make` of each item. `make` must be pure: it is called at each access."""

    def __init__(self, items: Sequence[T], make: Callable[[T], U]) -> None:
        self.items: Sequence[Any] = items
        self._make = make

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        found = self.items[index]
        return type(self)(found, self._make) if isinstance(index, slice) else self._make(found)

    def __iter__(self) -> Iterator[U]:
        return map(self._make, self.items)

    def __repr__(self) -> str:
        return f"<{len(self):,} items, made when they are asked for>"


class EncodedArray(OnDemand[U]):
    """`items`: the bytes of each element, decoded at each access."""


_BITS = 64


def encode_varint(number: int) -> bytes:
    """An integer that is not negative."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode_varint(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """(value, position after it); IndexError past the end, or beyond 64 bits."""
    result = shift = 0
    while shift < _BITS:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return result, position
        shift += 7
    raise IndexError("varint longer than 10 bytes")


def encode_long(value: int) -> bytes:
    """A signed integer of 64 bits, its sign in the lowest bit (zigzag)."""
    return encode_varint((value << 1) ^ (value >> 63))


def decode_long(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """(value, position after it) of a zigzag varint; IndexError as in `decode_varint`."""
    coded, behind = decode_varint(data, position)
    return (coded >> 1) ^ -(coded & 1), behind


MAGIC = b"Obj\x01"

Schema = dict[str, Any]
"""An Avro schema as parsed JSON."""

NAMESPACE = "org.apache.hudi.avro.model"
STRING: Schema = {"type": "string", "avro.java.string": "String"}

# A file of one block may use any marker; a fixed one makes equal records equal bytes.
_SYNC_MARKER = b"phantombase-sync"


def array_of(items: Schema | list[Any]) -> Schema:
    return {"type": "array", "items": items}


def map_of(values: Schema | str) -> Schema:
    """The schema of a map, as Hudi's generated classes declare them."""
    return {"type": "map", "values": values, "avro.java.string": "String"}


def required(name: str, kind: Schema | str) -> Schema:
    """A record field that may be null and must be present."""
    return {"name": name, "type": ["null", kind]}


def plain(name: str, kind: Any, **extra: Any) -> Schema:
    """A record field that is never null."""
    return {"name": name, "type": kind, **extra}


def optional(name: str, kind: Schema | str, **extra: str) -> Schema:
    """A record field that is null when missing."""
    return {"name": name, "type": ["null", kind], **extra, "default": None}


def defaulted(name: str, kind: str, default: int | bool) -> Schema:
    """A record field with null as the second branch of its union and a non-null default, as in some schemas of Hudi."""
    return {"name": name, "type": [kind, "null"], "default": default}


def listed(name: str, items: Schema | str) -> Schema:
    """A record field with an array that is empty when missing; the stray inner "default" is in Hudi's own schemas."""
    return {"name": name, "type": {"type": "array", "items": items, "default": []}, "default": []}


def record_of(name: str, *fields: Schema | str) -> Schema:
    """The schema of a record that is nested in another Hudi record. A name alone: a field of text, never null."""
    return {"type": "record", "name": name, "fields": [plain(f, STRING) if isinstance(f, str) else f for f in fields]}


def root_record(name: str, *fields: Schema | str) -> Schema:
    """The schema of a file's record, in Hudi's namespace; `fields` as in `record_of`."""
    record = record_of(name, *fields)
    return {"type": "record", "name": name, "namespace": NAMESPACE, "fields": record["fields"]}


def read_record(data: bytes, where: str, *schemas: Schema) -> tuple[str, dict[str, Any]]:
    """The one record of a container file and its name; the record is resolved against the schema of that name.
    MalformedError: empty, truncated or broken bytes, a record of another name, no record or several. UnsupportedError:
    a compressed file (Hudi writes none, and a few bytes could expand to anything), or a writer's schema that
    `parse_avro` refuses."""
    by_name = {schema["name"]: schema for schema in schemas}
    name, records = _decoded(data, where, by_name)
    if records is None or len(records) != 1:
        expected = f"one {' or '.join(by_name)}"
        found = name if records is None else f"{len(records)} records{' or more' if records else ''} of {name}"
        raise MalformedError("not the expected Avro record", path=where, expected=expected, found=found)
    return name, records[0]


def any_record(data: bytes, where: str) -> dict[str, Any]:
    """The one record of a container file, with the fields of its writer. Errors as `read_record`."""
    records = _decoded(data, where, None)[1] or []
    if len(records) != 1:
        raise MalformedError("not one Avro record", path=where, found=f"{len(records)} records")
    return dict(records[0])


def _decoded(data: bytes, where: str, wanted: Mapping[str, Schema] | None) -> tuple[str, list[Any] | None]:
    """The name of the records, and the first two; None: the name is not `wanted`. Without `wanted`: with all fields."""
    try:
        header = fastavro.reader(io.BytesIO(data))
        if header.codec != "null":
            raise UnsupportedError("compressed Avro container files are not supported", found=str(header.codec))
        parse_avro(header.metadata["avro.schema"])
        schema: Any = header.writer_schema
        name = str(schema["name"]).rpartition(".")[2]
        if wanted is not None and name not in wanted:
            return name, None
        reader = fastavro.reader(io.BytesIO(data), reader_schema=None if wanted is None else wanted[name])
        return name, list(islice(reader, 2))
    except PhantombaseError as error:
        raise error.at(where) from error
    except Exception as error:  # a decoder may raise anything when it reads arbitrary bytes
        found = f"{len(data)} bytes, {reason_of(error)}"
        raise MalformedError("unreadable Avro container file", path=where, found=found) from error


def decode_records(
    data: pa.Buffer,
    count: int,
    schema: dict[str, Any],
    where: str,
    *,
    starts: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The `count` bare records in `data`, as Arrow: only `columns`, if given. `starts`: where the lengths in front of
    the records begin, and the end; without, each record follows the one before. `schema` has no named references (see
    `parse_avro`). MalformedError names `where` and the record."""
    import pyarrow as pa  # late, as is its schema: plans and commits need neither

    from .arrow_schema import arrow_type

    stream, rows, number, parts = io.BytesIO(data), list[Any](), 0, list[pa.Table]()

    def arrow() -> pa.Table:
        found = pa.table({name: pa.array([row[name] for row in rows], type=kinds[name]) for name in names})
        found.validate(full=True)
        return found

    try:
        known = fastavro.parse_schema(physical(schema))
        kinds = {f["name"]: arrow_type(without_null(f["type"])[0]) for f in schema["fields"]}
        names = kinds if columns is None else columns
        for number in range(count):
            if starts is not None:
                stream.seek(starts[number] + 4)
            rows.append(fastavro.schemaless_reader(stream, known))
            if starts is not None and stream.tell() != starts[number + 1]:
                raise ValueError("it is not as long as its length says")
            if len(rows) == _ROWS:  # objects of Python take many times the memory of Arrow
                parts.append(arrow())
                rows.clear()
        return pa.concat_tables([*parts, arrow()])
    except Exception as error:
        found = f"record {number} of {count}: {reason_of(error)}"
        raise MalformedError("Avro records cannot be decoded", path=where, found=found) from error


_ROWS = 1 << 12


def physical(node: Any) -> Any:
    """A type without logical types other than decimals: times are the numbers from which Arrow makes them, also those
    that Python does not have, and UUIDs are text."""
    if isinstance(node, list):
        return [physical(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    plain = {key: physical(node[key]) if key in ("type", "items", "values") else node[key] for key in node}
    if node.get("logicalType", "decimal") != "decimal":
        del plain["logicalType"]
    if "fields" in node:
        plain["fields"] = [{"name": one["name"], "type": physical(one["type"])} for one in node["fields"]]
    return plain


def optional_array(items: Sequence[T], make: Callable[[T], U]) -> tuple[str, Sequence[U]]:
    """The value of an optional array whose elements are created while they are written.
    It names its union branch: otherwise fastavro first tests every element against every branch of the union."""
    return "array", OnDemand(items, make)


def write_record(record: Mapping[str, Any], schema: Schema, *, first: Sequence[bytes] | None = None) -> bytes:
    """A container file (codec null) of one record; equal records give equal bytes.
    `first`: the elements of its first field, an optional array that is empty in the record, already encoded."""
    out = io.BytesIO()
    if not first:
        fastavro.writer(out, schema, [record], codec="null", sync_marker=_SYNC_MARKER)
        return out.getvalue()
    fastavro.writer(out, schema, [], codec="null", sync_marker=_SYNC_MARKER)
    branch, rest = (body := encode_value(record, schema))[:1], body[1:]
    count = encode_long(len(first))
    size = len(body) + len(count) + sum(map(len, first))
    # An array is one block: the number of its elements, the elements, and a zero: the first byte of the rest.
    return b"".join([out.getvalue(), encode_long(1), encode_long(size), branch, count, *first, rest, _SYNC_MARKER])


def encode_value(value: Any, schema: Schema) -> bytes:
    """One value without a container."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def decode_value(data: bytes, schema: Schema) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), schema, None)


@lru_cache(maxsize=64)
def parsed_schema(text: str) -> Any:
    """A schema in fastavro's form; `parse_avro` refuses schemas that expand to too much."""
    parse_avro(text)
    return fastavro.parse_schema(json.loads(text))
