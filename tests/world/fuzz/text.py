"""Mutations of JSON, Avro schemas, properties and file names."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.world.fuzz.numbers import blind, lie

_DEEP = 10_000
PATHS = ("..", "../..", "../../escape", "/", "/etc", "/tmp", "a/../../..", "./.", "//", "\x00", "a\x00b", "x" * 5000)
TEXTS = (
    "",
    " ",
    "null",
    "0",
    "-1",
    "9" * 5000,
    "1e999",
    "é\U0010ffff",
    "\ud800",
    "%s{}",
    "a\nb",
    "true",
    "../north/x.parquet",
    "20261121091347510",
    *PATHS,
)


def wrong_value(rng: Random) -> Any:
    """A JSON value of some other type or size than whatever should be there."""
    return rng.choice(
        (None, True, 0, -1, 1.5, 1e300, lie(rng, 1), 10**30, [], {}, [None], {"": None}, [[]], rng.choice(TEXTS))
    )


def _places(node: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every (container, key or index) below a node."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in pairs:
        found.append((node, key))
        _places(child, found)
    return found


def mutate_json(rng: Random, data: bytes) -> bytes:
    """One node of a JSON text replaced, dropped, renamed, doubled or nested very deeply."""
    if rng.random() < 0.1:
        return _nested(rng, data)
    try:
        root = json.loads(data)
    except ValueError:
        return blind(rng, data)
    places = _places(root, [])
    if not places:
        return json.dumps(wrong_value(rng)).encode()
    for _ in range(rng.choice((1, 1, 1, 3))):
        node, key = rng.choice(places)
        _change(rng, node, key)
    return json.dumps(root).encode()


def _change(rng: Random, node: Any, key: Any) -> None:
    if isinstance(node, list):
        if not node:
            return
        key = min(key, len(node) - 1)
    elif key not in node:
        return
    pick = rng.randrange(6)
    old = node[key]
    if pick == 0:
        del node[key]
    elif pick == 1 and isinstance(node, dict):
        node[rng.choice(("", "x", *TEXTS[:6]))] = node.pop(key)
    elif pick == 2 and isinstance(old, str):
        node[key] = old[: rng.randint(0, len(old))] + rng.choice(TEXTS)
    elif pick == 3 and isinstance(old, int):
        node[key] = lie(rng, old)
    elif pick == 4 and isinstance(old, list):
        node[key] = old * rng.choice((2, 100))
    else:
        node[key] = wrong_value(rng)


def _nested(rng: Random, data: bytes) -> bytes:
    front, back = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"[", b""), (b'{"type":"array","items":', b"}")))
    depth = rng.choice((30, 70, 300, 900, _DEEP, 10 * _DEEP))
    return front * depth + rng.choice((b'"string"', b"1", data)) + back * depth


def mutate_schema(rng: Random, text: str) -> str:
    """An Avro record schema turned into a bomb, a contradiction or nonsense."""
    return rng.choice((_bomb, _bomb, _bad_field, _bad_field, _any_json))(rng, text)


def _any_json(rng: Random, text: str) -> str:
    return mutate_json(rng, text.encode()).decode(errors="replace")


def _bomb(rng: Random, text: str) -> str:
    makers = (_recursive, _laughs, _wide, _deep_arrays, _deep_records, _empty_record)
    return (
        json.dumps(rng.choice(makers)(rng)) if rng.random() < 0.5 else _with_field(rng, text, rng.choice(makers)(rng))
    )


def _record(name: str, *kinds: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{i}", "type": k} for i, k in enumerate(kinds)]}


def _recursive(rng: Random) -> Any:
    inner = rng.choice(("r", ["null", "r"], {"type": "array", "items": "r"}, {"type": "map", "values": "r"}))
    return _record("r", inner)


def _laughs(rng: Random) -> Any:
    """Each record holds the one before it several times: the expansion doubles with every step."""
    steps = range(1, rng.choice((8, 25, 60)))
    return _record("top", _record("n0", "int"), *[_record(f"n{i}", *[f"n{i - 1}"] * 3) for i in steps])


def _wide(rng: Random) -> Any:
    return _record("wide", *["int"] * rng.choice((100, 2000)))


def _deep_arrays(rng: Random) -> Any:
    kind: Any = rng.choice(("int", "null", "string"))
    for _ in range(rng.choice((3, 70, 300))):
        kind = {"type": "array", "items": kind} if rng.random() < 0.7 else {"type": "map", "values": kind}
    return _record("deep", kind)


def _deep_records(rng: Random) -> Any:
    kind: Any = "int"
    for i in range(rng.choice((20, 63, 66, 200))):
        kind = _record(f"d{i}", rng.choice((kind, ["null", kind])))
    return kind


def _empty_record(rng: Random) -> Any:
    """Records of no bytes, alone or in an array: any count of them fits into nothing."""
    nothing = rng.choice((_record("e"), "null", {"type": "fixed", "name": "z", "size": 0}, _record("n", "null")))
    return rng.choice((_record("top"), _record("top", {"type": "array", "items": nothing}), _record("top", nothing)))


_BAD_TYPES: tuple[Any, ...] = (
    "null", "nosuch", "", 7, None, [], ["null"], ["null", "null"], ["int", "string", "null"], [["int"]],
    {"type": "fixed", "name": "x", "size": 1 << 31}, {"type": "fixed", "name": "x", "size": -1},
    {"type": "fixed", "name": "x", "size": "4"}, {"type": "fixed", "name": "x", "size": 1 << 70},
    {"type": "fixed", "name": "x", "size": 1 << 20}, {"type": "fixed", "name": "x", "size": 1.5},
    {"type": "enum", "name": "e", "symbols": []}, {"type": "enum", "name": "e", "symbols": "abc"},
    {"type": "enum", "name": "e", "symbols": [1, None]}, {"type": "enum", "name": "e"},
    {"type": "bytes", "logicalType": "decimal", "precision": 0, "scale": 0},
    {"type": "bytes", "logicalType": "decimal", "precision": 10**6, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 50},
    {"type": "bytes", "logicalType": "decimal", "precision": "x"}, {"type": "bytes", "logicalType": "decimal"},
    {"type": "int", "logicalType": "decimal", "precision": 5, "scale": 1},
    {"type": "fixed", "name": "d", "size": 40, "logicalType": "decimal", "precision": 90, "scale": 1},
    {"type": "string", "logicalType": "timestamp-micros"}, {"type": "long", "logicalType": ["x"]},
    {"type": {"type": {"type": "int"}}}, {"type": "array"}, {"type": "map", "values": None},
    {"type": "array", "items": "null"}, {"type": "map", "values": "null"}, {"type": "record", "name": "r"},
    {"type": "record", "name": "r", "fields": {}}, {"type": "record", "name": "r", "fields": [1]},
    {"type": "record", "name": 5, "fields": []}, {"type": "record", "name": "t1", "fields": []},
    "int", "long", "float", "double", "boolean", "bytes", "string",
)  # fmt: skip


def _bad_field(rng: Random, text: str) -> str:
    return _with_field(rng, text, rng.choice(_BAD_TYPES))


def _with_field(rng: Random, text: str, kind: Any) -> str:
    """The schema with one field's type replaced, or a field added (now and then under a name it has already)."""
    try:
        schema = json.loads(text)
        fields = schema["fields"]
    except (ValueError, KeyError, TypeError):
        return json.dumps(_record("t1_record", kind))
    if fields and rng.random() < 0.7:
        rng.choice(fields)["type"] = kind
    else:
        name = rng.choice(fields)["name"] if fields and rng.random() < 0.3 else rng.choice(("new", "", "a.b", "é", 5))
        fields.insert(rng.randint(0, len(fields)), {"name": name, "type": kind})
    return json.dumps(schema)


def mutate_properties(rng: Random, data: bytes) -> bytes:
    """One property given another value, another name, or broken escapes."""
    lines = data.split(b"\n")
    at = rng.choice([i for i, line in enumerate(lines) if b"=" in line] or [0])
    name, _, value = lines[at].partition(b"=")
    pick = rng.randrange(6)
    if pick == 0:
        lines[at] = name + b"=" + rng.choice(TEXTS).encode("utf-8", "replace")
    elif pick == 1:
        lines[at] = name + b"=" + mutate_schema(rng, value.decode(errors="replace").replace("\\", "")).encode()
    elif pick == 2:
        lines[at] = name + b"=" + rng.choice((b"\\u", b"\\uD800", b"\\uZZZZ", b"\\", b"\xff\xfe", b"\x00", b"\\u0000"))
    elif pick == 3:
        lines.insert(at, rng.choice(_PROPERTIES) + rng.choice(TEXTS).encode("utf-8", "replace"))
    elif pick == 4:
        del lines[at]
    else:
        return blind(rng, data)
    return b"\n".join(lines)


_PROPERTIES = tuple(
    f"{key}=".encode()
    for key in (
        "hoodie.timeline.path", "hoodie.timeline.history.path", "hoodie.archivelog.folder", "hoodie.table.version",
        "hoodie.table.recordkey.fields", "hoodie.table.precombine.field", "hoodie.table.ordering.fields",
        "hoodie.table.partition.fields", "hoodie.table.create.schema", "hoodie.record.merge.mode",
        "hoodie.populate.meta.fields", "hoodie.table.timeline.timezone",
    )
)  # fmt: skip


def mutate_name(rng: Random, name: str) -> str:
    """A file name with a digit, a separator or an ending changed."""
    at = rng.randrange(len(name))
    wrong = rng.choice(("0", "9", "_", ".", "-", "é", "²", "", name[at] * 2, "99999999999999999999"))
    return (name[:at] + wrong + name[at + 1 :]).strip("/")[:200] or "x"
