"""Mutations of Avro data at the places where it holds lengths, counts and union indexes."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.world.fuzz.numbers import blind, lie, zigzag
from tests.world.fuzz.text import TEXTS, mutate_schema


@dataclass
class Walk:
    """Reads one record along its schema and notes where its varints are: (start, end, value), and its texts."""

    data: bytes
    at: int = 0
    marks: list[tuple[int, int, int]] = field(default_factory=list)
    texts: list[tuple[int, int]] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)

    def long(self) -> int:
        """One varint, noted."""
        start, result, shift = self.at, 0, 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            result |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        value = (result >> 1) ^ -(result & 1)
        self.marks.append((start, self.at, value))
        return value

    def value(self, schema: Any) -> None:
        """One value of a schema."""
        if isinstance(schema, list):
            return self.value(schema[self.long()])
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, (dict, list)):
            return self.value(kind)
        if kind in ("record", "fixed", "enum"):
            self.named[schema["name"].rpartition(".")[2]] = schema
        if kind in ("int", "long", "enum"):
            self.long()
        elif kind in ("bytes", "string"):
            self._text()
        elif kind == "record":
            for child in schema["fields"]:
                self.value(child["type"])
        elif kind in ("array", "map"):
            while (count := self.long()) != 0:
                if count < 0:
                    self.long()
                for _ in range(abs(count)):
                    if kind == "map":
                        self._text()
                    self.value(schema["items" if kind == "array" else "values"])
        elif kind == "fixed":
            self.at += schema["size"]
        elif kind in _SIZES:
            self.at += _SIZES[kind]
        else:
            self.value(self.named[kind.rpartition(".")[2]])
        return None

    def _text(self) -> None:
        start, length = self.at, self.long()
        if length < 0 or self.at + length > len(self.data):
            raise IndexError("length")
        self.at += length
        self.texts.append((start, self.at))


_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def mutate_record(rng: Random, data: bytes, schema: Any) -> bytes:
    """The record with one or a few of its varints wrong, or one of its texts another."""
    walk = Walk(data)
    try:
        walk.value(schema)
    except (IndexError, KeyError, TypeError, AttributeError):
        return blind(rng, data)
    if walk.texts and rng.random() < 0.3:
        start, end = rng.choice(walk.texts)
        wrong = rng.choice(TEXTS).encode("utf-8", "replace")
        return data[:start] + zigzag(len(wrong)) + wrong + data[end:]
    for _ in range(rng.choice((1, 1, 1, 3))):
        if walk.marks:
            start, end, value = walk.marks.pop(rng.randrange(len(walk.marks)))
            wrong = zigzag(lie(rng, value))
            if rng.random() < 0.05:
                wrong = b"\xff" * 11 + b"\x01"
            data = data[:start] + wrong + data[end:]
            # Later places have moved: only those in front are still where they were.
            walk.marks = [mark for mark in walk.marks if mark[1] <= start]
    return data


@dataclass
class Container:
    """An Avro object container of one block."""

    metadata: dict[str, bytes]
    sync: bytes
    count: int
    body: bytes
    size: int | None = None
    behind: bytes = b""

    @staticmethod
    def parse(data: bytes) -> Container:
        """As written by Hudi; ValueError or IndexError for anything else."""
        walk = Walk(data, 4)
        metadata = {}
        while (count := walk.long()) != 0:
            for _ in range(count):
                pair = []
                for _ in range(2):
                    size = walk.long()
                    pair.append(data[walk.at : walk.at + size])
                    walk.at += size
                metadata[pair[0].decode()] = pair[1]
        sync = data[walk.at : walk.at + 16]
        walk.at += 16
        count, size = walk.long(), walk.long()
        return Container(metadata, sync, count, data[walk.at : walk.at + size])

    def dump(self) -> bytes:
        """The file; `size` overrides that of the body."""
        head = zigzag(len(self.metadata))
        for key, value in self.metadata.items():
            head += zigzag(len(key.encode())) + key.encode() + zigzag(len(value)) + value
        size = len(self.body) if self.size is None else self.size
        block = zigzag(self.count) + zigzag(size) + self.body + self.sync
        return b"Obj\x01" + head + b"\x00" + self.sync + block + self.behind


def mutate_container(rng: Random, data: bytes) -> bytes:
    """A container file with one lie: in its record, its schema, its codec or its framing."""
    try:
        file = Container.parse(data)
        schema = json.loads(file.metadata["avro.schema"])
    except (ValueError, IndexError, KeyError):
        return blind(rng, data)
    pick = rng.randrange(12)
    if pick < 5:
        file.body = mutate_record(rng, file.body, schema)
    elif pick < 8:
        file.metadata["avro.schema"] = mutate_schema(rng, json.dumps(schema)).encode("utf-8", "replace")
        if rng.random() < 0.5:
            file.count = lie(rng, 1)
    elif pick == 8:
        file.count = lie(rng, file.count)
    elif pick == 9:
        file.size = lie(rng, len(file.body))
    elif pick == 10:
        file.metadata["avro.codec"] = rng.choice(
            (b"deflate", b"bzip2", b"zstandard", b"snappy", b"", b"\xff", b"nosuch")
        )
        if rng.random() < 0.7:
            file.metadata["avro.codec"] = b"deflate"
            file.body = _deflated(file.body if rng.random() < 0.3 else bytes(1 << 29))
    else:
        _as_empty_array(rng, file, schema)
    return file.dump()


def _as_empty_array(rng: Random, file: Container, schema: Any) -> None:
    """Gives the record a field in front that is an array of nothing, with any number of items."""
    nothing = rng.choice(("null", {"type": "record", "name": "nothing", "fields": []}))
    schema["fields"].insert(0, {"name": "nothing", "type": {"type": "array", "items": nothing}})
    file.metadata["avro.schema"] = json.dumps(schema).encode()
    file.body = zigzag(rng.choice((1 << 20, 1 << 40, 1 << 60))) + b"\x00" + file.body


def _deflated(data: bytes) -> bytes:
    key = (len(data), zlib.crc32(data[:4096]))
    if key not in _CACHE:
        packer = zlib.compressobj(1, zlib.DEFLATED, -15)
        _CACHE[key] = packer.compress(data) + packer.flush()
    return _CACHE[key]


_CACHE: dict[tuple[int, int], bytes] = {}
