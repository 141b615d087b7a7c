"""Mutations of log files: the framing stays whole, so that what is inside is reached."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.support.builders import AVRO, DELETE, INSTANT_TIME, MAGIC, PARQUET, SCHEMA, rollback_block
from tests.support.builders import delete_content as builders_deletes
from tests.world.fuzz.avro import mutate_record
from tests.world.fuzz.numbers import blind, lie, zigzag
from tests.world.fuzz.parquet import mutate_parquet
from tests.world.fuzz.text import mutate_schema

_COMPACTED, _POSITIONS, _PARTIAL = 4, 5, 7


@dataclass
class Block:
    """One block. The fields behind `content` override what is true when they are not None."""

    version: int
    kind: int
    headers: list[tuple[int, bytes]]
    content: bytes
    header_count: int | None = None
    content_size: int | None = None
    size: int | None = None
    total: int | None = None

    def dump(self) -> bytes:
        """The block's bytes."""
        count = len(self.headers) if self.header_count is None else self.header_count
        body = struct.pack(">iii", self.version, self.kind, count)
        for key, value in self.headers:
            body += struct.pack(">ii", key, len(value)) + value
        content_size = len(self.content) if self.content_size is None else self.content_size
        body += struct.pack(">q", content_size) + self.content + struct.pack(">i", 0)
        size = len(body) + 8 if self.size is None else self.size
        total = min(size + 6, (1 << 63) - 1) if self.total is None else self.total
        return MAGIC + struct.pack(">q", size) + body + struct.pack(">q", total)


def parse(data: bytes) -> list[Block]:
    """All blocks of a sound log file."""
    blocks, at = [], 0
    while at < len(data):
        size, version, kind, count = struct.unpack_from(">qiii", data, at + 6)
        end, at = at + 14 + size, at + 26
        headers = []
        for _ in range(count):
            key, length = struct.unpack_from(">ii", data, at)
            headers.append((key, data[at + 8 : at + 8 + length]))
            at += 8 + length
        (length,) = struct.unpack_from(">q", data, at)
        blocks.append(Block(version, kind, headers, data[at + 8 : at + 8 + length]))
        at = end
    return blocks


def mutate_log(rng: Random, data: bytes) -> bytes:
    """A log file with one thing wrong."""
    try:
        blocks = parse(data)
    except struct.error:
        return blind(rng, data)
    if not blocks:
        return blind(rng, data)
    at = rng.randrange(len(blocks))
    block = blocks[at]
    pick = rng.random()
    if pick < 0.12:
        _lie_in_frame(rng, block)
    elif pick < 0.3:
        _lie_in_headers(rng, block)
    elif pick < 0.4:
        blocks[at:at] = _extra_blocks(rng, block)
    elif pick < 0.47:
        changed = blind(rng, block.dump()[14:-8])
        framed = MAGIC + struct.pack(">q", len(changed) + 8) + changed + struct.pack(">q", len(changed) + 14)
        return b"".join([b.dump() for b in blocks[:at]] + [framed] + [b.dump() for b in blocks[at + 1 :]])
    else:
        _lie_in_content(rng, block)
    return b"".join(b.dump() for b in blocks)


def _lie_in_frame(rng: Random, block: Block) -> None:
    name, bits = rng.choice((("version", 32), ("kind", 32), ("header_count", 32), ("content_size", 64), ("size", 64)))
    true = {"header_count": len(block.headers), "content_size": len(block.content), "size": len(block.dump()) - 14}
    if name == "kind":
        block.kind = rng.randint(-1, 8)
    else:
        setattr(block, name, lie(rng, true.get(name, 1), bits))


def _lie_in_headers(rng: Random, block: Block) -> None:
    at = rng.randrange(len(block.headers)) if block.headers else 0
    key, value = block.headers[at] if block.headers else (0, b"")
    pick = rng.randrange(5)
    if pick == 0:
        block.headers[at : at + 1] = [(lie(rng, key, 32), value)]
    elif pick == 1:
        block.headers[at : at + 1] = [(key, rng.choice((b"", b"\xff\xfe", b"0", b"9" * 40, blind(rng, value))))]
    elif pick == 2:
        block.headers += block.headers * rng.choice((1, 200))
    elif pick == 3:
        instants = [v for k, v in block.headers if k == INSTANT_TIME] or [b"1"]
        extra: tuple[tuple[int, bytes], ...] = (
            (_COMPACTED, b",".join(instants * 3)),
            (_COMPACTED, b",,, ,"),
            (_PARTIAL, rng.choice((b"true", b"TRUE", b"x"))),
            (_POSITIONS, rng.choice((b"", b"AAAA", b"/" * 44, b"\xff"))),
        )
        block.headers.append(rng.choice(extra))
    else:
        _change_schema(rng, block)


def _change_schema(rng: Random, block: Block) -> None:
    block.headers = [
        (k, mutate_schema(rng, v.decode(errors="replace")).encode("utf-8", "replace") if k == SCHEMA else v)
        for k, v in block.headers
    ]


def _extra_blocks(rng: Random, block: Block) -> list[Block]:
    if rng.random() < 0.5:
        return [block] * rng.choice((1, 50))
    instant = next((v.decode(errors="replace") for k, v in block.headers if k == INSTANT_TIME), "1")
    return parse(rollback_block(instant, instant)) * rng.choice((1, 50))


def _lie_in_content(rng: Random, block: Block) -> None:
    if rng.random() < 0.1 or len(block.content) < 8:
        block.content = blind(rng, block.content)
    elif block.kind == PARQUET:
        block.content = mutate_parquet(rng, block.content)
    elif block.kind == AVRO:
        _lie_in_avro(rng, block)
    elif block.kind == DELETE:
        block.content = _lying_deletes(rng, block.content)


def _lie_in_avro(rng: Random, block: Block) -> None:
    version, count = struct.unpack_from(">ii", block.content)
    records, at = [], 8
    while at + 4 <= len(block.content):
        (length,) = struct.unpack_from(">i", block.content, at)
        records.append((length, block.content[at + 4 : at + 4 + max(length, 0)]))
        at += 4 + max(length, 0)
    pick = rng.randrange(9)
    if pick == 0:
        count = lie(rng, count, 32)
    elif pick == 1:
        version = lie(rng, version, 32)
    elif pick == 2 and len(records) > 1:  # swapped lengths: their sum stays right
        i, j = rng.randrange(len(records)), rng.randrange(len(records))
        a, b = records[i], records[j]
        records[i], records[j] = (b[0], a[1]), (a[0], b[1])
    elif pick == 3 and records:
        i = rng.randrange(len(records))
        records[i] = (lie(rng, records[i][0], 32), records[i][1])
    elif pick == 4:
        # As many records of no bytes as are promised, or none of them.
        _change_schema(rng, block)
        records = [(0, b"")] * rng.choice((0, 1, 1000))
        count = rng.choice((len(records), (1 << 31) - 1, 1 << 24))
    elif pick == 5 and records:
        _zero_bytes(rng, block, records)
    elif records:
        try:
            schema: Any = json.loads(next(v for k, v in block.headers if k == SCHEMA))
        except (ValueError, StopIteration):
            schema = None
        i = rng.randrange(len(records))
        changed = mutate_record(rng, records[i][1], schema)
        true = records[i][0] if rng.random() < 0.2 else len(changed)
        records[i] = (true, changed)
    block.content = struct.pack(">ii", version, count) + b"".join(struct.pack(">i", n) + r for n, r in records)


def _zero_bytes(rng: Random, block: Block, records: list[tuple[int, bytes]]) -> None:
    """A field in front of all others: an array of nothing, with any number of items."""
    nothing = rng.choice(("null", {"type": "fixed", "name": "nothing", "size": 0}))
    front = zigzag(rng.choice((1 << 16, 1 << 26, 1 << 40, 1 << 60))) + b"\x00"
    headers = []
    for key, value in block.headers:
        if key == SCHEMA:
            schema = json.loads(value)
            schema["fields"].insert(0, {"name": "nothing", "type": {"type": "array", "items": nothing}})
            value = json.dumps(schema).encode()
        headers.append((key, value))
    block.headers = headers
    records[:] = [(n + len(front), front + r) for n, r in records]


_VALUES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string", "int", "bytes", "long", "long"]
"""The wrappers of ordering values, as Avro writes them: a record of one field is that field."""


def _record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


_TEXT = ["null", "string"]
_TUPLE = _record("tuple", values=["null", {"type": "array", "items": [*_VALUES, "int"]}])
_ENTRY = _record("entry", key=_TEXT, path=_TEXT, ordering=[*_VALUES, _TUPLE])
_DELETES = _record("deletes", entries={"type": "array", "items": _ENTRY})


def _lying_deletes(rng: Random, content: bytes) -> bytes:
    if rng.random() < 0.2:
        wrappers = [
            ("IntWrapper", 0),
            ("LongWrapper", 5),
            ("StringWrapper", "x"),
            None,
            ("ArrayWrapper", [("IntWrapper", 1)]),
        ]
        content = builders_deletes([(f"k{i}", rng.choice(wrappers)) for i in range(rng.choice((0, 1, 30)))])
    body = mutate_record(rng, content[8:], _DELETES)
    version = 3 if rng.random() < 0.9 else lie(rng, 3, 32)
    length = len(body) if rng.random() < 0.8 else lie(rng, len(body), 32)
    return struct.pack(">ii", version, length) + body
