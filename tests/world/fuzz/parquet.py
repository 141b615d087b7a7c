"""Mutations of Parquet files: footers that lie, damaged pages, and small files of enormous content."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.world.fuzz.numbers import blind, lie, varint, zigzag

MAGIC = b"PAR1"
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)


@dataclass
class Value:
    """A Thrift value: integers, bytes, raw doubles, a list of values, or a struct's (field id, value) pairs."""

    kind: int
    data: Any


class _Reader:
    """Thrift's compact protocol to `Value`s."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def _varint(self) -> int:
        result = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            result |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return result

    def value(self, kind: int) -> Value:
        """One value of a wire type."""
        if kind in _INTEGERS:
            raw = self._varint()
            return Value(kind, (raw >> 1) ^ -(raw & 1))
        if kind == _BINARY:
            return Value(kind, self._take(self._varint()))
        if kind in (_LIST, _SET):
            head = self._take(1)[0]
            count = self._varint() if head >> 4 == 15 else head >> 4
            return Value(kind, (head & 15, [self.value(head & 15) for _ in range(count)]))
        if kind == _STRUCT:
            return Value(kind, self._struct())
        return Value(kind, self._take({_BYTE: 1, _DOUBLE: 8, _TRUE: 0, _FALSE: 0}[kind]))

    def _struct(self) -> list[tuple[int, Value]]:
        fields, last = [], 0
        while (head := self._take(1)[0]) != 0:
            if head >> 4:
                last += head >> 4
            else:
                raw = self._varint()
                last = (raw >> 1) ^ -(raw & 1)
            fields.append((last, self.value(head & 15)))
        return fields


def dump(value: Value) -> bytes:
    """A `Value` in Thrift's compact protocol."""
    if value.kind in _INTEGERS:
        return zigzag(value.data)
    if value.kind == _BINARY:
        return varint(len(value.data)) + bytes(value.data)
    if value.kind in (_LIST, _SET):
        kind, items = value.data
        head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + varint(len(items))
        return head + b"".join(dump(item) for item in items)
    if value.kind == _STRUCT:
        out, last = b"", 0
        for number, child in value.data:
            step = number - last
            head = bytes([step << 4 | child.kind]) if 0 < step < 16 else bytes([child.kind]) + zigzag(number)
            out += head + dump(child)
            last = number
        return out + b"\x00"
    return bytes(value.data)


def _leaves(value: Value, found: list[Value]) -> list[Value]:
    children = (
        value.data[1] if value.kind in (_LIST, _SET) else [c for _, c in value.data] if value.kind == _STRUCT else ()
    )
    found.append(value)
    for child in children:
        _leaves(child, found)
    return found


def split(data: bytes) -> tuple[bytes, Value]:
    """(everything in front of the footer, the footer)."""
    (length,) = struct.unpack_from("<i", data, len(data) - 8)
    start = len(data) - 8 - length
    return data[:start], _Reader(data[start:-8]).value(_STRUCT)


def join(front: bytes, footer: bytes) -> bytes:
    """Inverse of `split`, after `dump`."""
    return front + footer + struct.pack("<i", len(footer)) + MAGIC


def mutate_parquet(rng: Random, data: bytes) -> bytes:
    """A Parquet file with a lie in its footer, damaged pages, or far more rows than bytes."""
    pick = rng.random()
    try:
        front, footer = split(data)
    except (struct.error, IndexError, KeyError):
        return blind(rng, data)
    if pick < 0.45:
        _lie_in_footer(rng, footer)
    elif pick < 0.55:
        _nest(rng, footer)
    elif pick < 0.75:
        front = front[:4] + blind(rng, front[4:])
    elif pick < 0.85:
        return blind(rng, data)
    elif pick < 0.94:
        return front + dump(footer) + struct.pack("<i", lie(rng, len(dump(footer)), 32)) + MAGIC
    else:
        return _bomb(rng, data)
    return join(front, dump(footer))


def _lie_in_footer(rng: Random, footer: Value) -> None:
    places = _leaves(footer, [])
    numbers = [v for v in places if v.kind in _INTEGERS]
    for _ in range(rng.choice((1, 1, 1, 3))):
        pick = rng.random()
        if pick < 0.7 and numbers:
            value = rng.choice(numbers)
            value.data = lie(rng, value.data, 64 if value.kind == 6 else 32)
            continue
        value = rng.choice(places)
        if value.kind == _BINARY:
            value.data = blind(rng, value.data)
        elif value.kind == _LIST:
            kind, items = value.data
            value.data = (kind, rng.choice((items[1:], items[:-1], items * 2, items[::-1], [])))
        elif value.kind == _STRUCT and value.data:
            del value.data[rng.randrange(len(value.data))]


def _nest(rng: Random, footer: Value) -> None:
    """Groups inside groups around the first column of the schema, or a group that has far too many children."""
    schema = next(v for n, v in footer.data if n == 2)
    kind, items = schema.data
    depth = rng.choice((10, 100, 1000, 20_000))
    repetition = rng.choice((0, 1, 2))
    group = Value(_STRUCT, [(3, Value(5, repetition)), (4, Value(_BINARY, b"g")), (5, Value(5, 1))])
    schema.data = (kind, [items[0], *[group] * depth, *items[1:]])


def _bomb(rng: Random, data: bytes) -> bytes:
    """The same columns, every row alike: a page of run lengths and a dictionary of one value."""
    schema = pq.read_schema(pa.BufferReader(data)).remove_metadata()
    rows, wide = rng.choice(((200_000, 10), (300_000, 1), (30_000, 4000), (1000, 200_000), (50, 3_000_000)))
    # Not the record key: Hudi's key filter hashes it byte after byte, which takes its time with long ones.
    texts = [f.name for f in schema if pa.types.is_string(f.type) and f.name != "_hoodie_record_key"]
    big = rng.choice(texts) if texts else None
    try:
        columns = [_repeated(f, rows, wide if f.name == big else 8) for f in schema]
    except pa.ArrowException:  # a required column of a nested type
        return blind(rng, data)
    stream = io.BytesIO()
    codec = rng.choice(("zstd", "gzip", "none"))
    written = pa.table(columns, names=schema.names)
    pq.write_table(written, stream, compression=codec, store_schema=False, dictionary_pagesize_limit=1 << 30)
    return stream.getvalue()


def _repeated(field: pa.Field, rows: int, width: int) -> pa.Array:
    if pa.types.is_string(field.type):
        codes = pa.repeat(pa.scalar(0, pa.int32()), rows)
        return pa.DictionaryArray.from_arrays(codes, pa.array(["x" * width]))
    if field.nullable:
        return pa.nulls(rows, field.type)
    return pa.repeat(pa.scalar(0, pa.int64()).cast(field.type), rows)
