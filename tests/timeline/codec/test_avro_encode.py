"""Rows encoded as columns are, byte for byte, what a writer of single records makes of them."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phantombase.timeline.codec.arrow_schema import arrow_schema
from phantombase.timeline.codec.avro_decode import record_starts
from phantombase.timeline.codec.avro_encode import encode_rows, encode_table
from phantombase.timeline.codec.avro_schema import changelog, parse_avro, project_text
from phantombase.timeline.errors import MalformedError, UnsupportedError, UsageError
from tests.support.builders import avro_schema
from tests.support.selection import ALL, for_each

# --- the reference: plain Python, one value at a time --------------------------------------------------------------


def java_bytes(number: int) -> bytes:
    """Two's complement in as few bytes as BigInteger.toByteArray uses."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def raw(value: Any, node: Any) -> Any:
    """A value as fastavro takes it where no logical types are."""
    if isinstance(node, list):
        return None if value is None else raw(value, next(n for n in node if n != "null"))
    if isinstance(node, str):
        return value
    if node.get("logicalType") == "decimal":
        negative, digits, _ = value.as_tuple()  # its exponent is the scale; scaleb would round to 28 digits
        number = int("".join(map(str, digits))) * (-1 if negative else 1)
        return number.to_bytes(node["size"], "big", signed=True) if node["type"] == "fixed" else java_bytes(number)
    if node["type"] == "record":
        return {f["name"]: raw(value[f["name"]], f["type"]) for f in node["fields"]}
    if node["type"] == "array":
        return [raw(v, node["items"]) for v in value]
    if node["type"] == "map":
        return {k: raw(v, node["values"]) for k, v in value}
    return value


def without_logical_types(node: Any) -> Any:
    """The same bytes without their meaning."""
    if isinstance(node, list):
        return [without_logical_types(n) for n in node]
    if isinstance(node, dict):
        return {k: without_logical_types(v) for k, v in node.items() if k not in ("logicalType", "precision", "scale")}
    return node


def reference(rows: Sequence[Any], schema: str) -> list[bytes]:
    """Each row as fastavro writes it."""
    node = parse_avro(schema)
    parsed = fastavro.parse_schema(without_logical_types(node))
    encoded = []
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, raw(row, node))
        encoded.append(stream.getvalue())
    return encoded


# --- types and their values ----------------------------------------------------------------------------------------

INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
DAY_MS = 86_400_000
SYMBOLS = ["A", "B", "C"]


def decimal_of(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    edge = 10**digits - 1
    near = st.sampled_from([2**k + d for k in range(7, int(math.log2(edge)), 8) for d in (-1, 0, 1)] or [0])
    number = st.one_of(st.integers(-edge, edge), near, near.map(lambda n: -n))
    # Decimal's own arithmetic rounds to 28 digits, its text does not.
    return number.map(lambda n: Decimal(f"{n}e-{scale}"))


SIMPLE: tuple[tuple[Any, st.SearchStrategy[Any]], ...] = (
    ("string", st.text(st.characters(exclude_categories=["Cs"]), max_size=80)),
    ("bytes", st.binary(max_size=9)),
    ("boolean", st.booleans()),
    ("int", st.one_of(INT, st.integers(-70, 70))),
    ("long", st.one_of(LONG, st.integers(-9000, 9000))),
    ("float", st.floats(width=32, allow_nan=False) | st.just(math.nan)),
    ("double", st.floats(allow_nan=False) | st.just(math.nan)),
    ({"type": "int", "logicalType": "date"}, INT),
    ({"type": "int", "logicalType": "time-millis"}, st.integers(0, DAY_MS - 1)),
    ({"type": "long", "logicalType": "time-micros"}, st.integers(0, 1000 * DAY_MS - 1)),
    ({"type": "long", "logicalType": "timestamp-millis"}, LONG),
    ({"type": "long", "logicalType": "timestamp-micros"}, LONG),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, LONG),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, LONG),
    ({"type": "enum", "symbols": SYMBOLS}, st.sampled_from(SYMBOLS)),
    ({"type": "fixed", "size": 3}, st.binary(min_size=3, max_size=3)),
    *(
        ({"type": kind, "logicalType": "decimal", "precision": p, "scale": s, **more}, decimal_of(p, s))
        for p, s in ((2, 0), (12, 2), (20, 5), (38, 9), (60, 20))
        for kind, more in (
            ("bytes", {}),
            # As few bytes as the precision takes, and more than Arrow's own.
            ("fixed", {"size": math.ceil((p * math.log2(10) + 1) / 8)}),
            ("fixed", {"size": 40}),
        )
    ),
)  # fmt: skip
Typed = tuple[Any, st.SearchStrategy[Any]]


@st.composite
def types(draw: st.DrawFn, depth: int = 3) -> Typed:
    """(Avro type, its values as Arrow takes them)."""
    shape = draw(st.sampled_from(["simple"] * 5 + ["array", "map", "record"] * bool(depth)))
    if shape == "simple":
        kind, values = draw(st.sampled_from(SIMPLE))
        if not isinstance(kind, str) and kind["type"] in ("enum", "fixed"):
            kind = {**kind, "name": f"n{draw(st.uuids()).hex}"}
    elif shape == "record":
        kind, values = draw(records(depth - 1))
    else:
        kind, values = draw(types(depth - 1))
        if shape == "array":
            kind, values = {"type": "array", "items": kind}, st.lists(values, max_size=4)
        else:
            entries = st.tuples(st.text("aé", max_size=3), values)
            kind, values = {"type": "map", "values": kind}, st.lists(entries, max_size=4, unique_by=lambda e: e[0])
    unions: list[Typed] = [(["null", kind], st.none() | values), ([kind, "null"], st.none() | values)]
    chosen: Typed = draw(st.sampled_from([(kind, values), *unions]))
    return chosen


@st.composite
def records(draw: st.DrawFn, depth: int = 3) -> Typed:
    fields = draw(st.lists(types(depth), min_size=1, max_size=5))
    node = {
        "type": "record",
        "name": f"n{draw(st.uuids()).hex}",
        "fields": [{"name": f"f{i}", "type": kind} for i, (kind, _) in enumerate(fields)],
    }
    return node, st.fixed_dictionaries({f"f{i}": values for i, (_, values) in enumerate(fields)})


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[Any]]:
    """(schema, rows)."""
    node, values = draw(records())
    return json.dumps(node), draw(st.lists(values, max_size=12))


def table_of(rows: Sequence[Any], schema: str) -> pa.Table:
    """The rows in Arrow."""
    return pa.Table.from_pylist(list(rows), arrow_schema(schema))


# --- tests -----------------------------------------------------------------------------------------------------------


@settings(max_examples=400 if ALL else 80)
@given(tables(), st.data())
def test_every_type_as_one_record_at_a_time(case: tuple[str, list[Any]], data: st.DataObject) -> None:
    """Any nesting of any types, nulls on either side of the union, in slices and chunks of any place."""
    schema, rows = case
    table = table_of(rows, schema)
    cut, skip = data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, len(rows)))
    table = pa.concat_tables([table.slice(0, cut), table.slice(cut)]).slice(skip)
    expected = reference(rows[skip:], schema)
    encoded = encode_rows(table, parse_avro(schema))
    encoded.validate(full=True)
    assert encoded.to_pylist() == expected
    framed = b"".join(len(r).to_bytes(4, "big") + r for r in expected)
    assert b"".join(encode_table(table, parse_avro(schema), framed=True)) == framed


def test_many_batches() -> None:
    """A table longer than a step of the encoder, cut where its chunks end and where a step ends."""
    schema = avro_schema(("n", "long"), ("t", ["null", "string"]))
    rows = [{"n": i * i, "t": None if i % 3 else str(i)} for i in range(40_000)]
    table = pa.concat_tables([table_of(rows[:100], schema), table_of(rows[100:], schema)])
    assert b"".join(encode_table(table, parse_avro(schema))) == b"".join(reference(rows, schema))


def test_values_behind_nulls_leave_no_bytes() -> None:
    """What Arrow holds under a null, in lists and records too, belongs to nobody."""
    schema = avro_schema(
        ("a", ["null", {"type": "array", "items": "int"}]),
        ("r", ["null", {"type": "record", "name": "r", "fields": [{"name": "x", "type": "string"}]}]),
        ("t", ["null", "string"]),
        ("n", ["null", "long"]),
        (
            "d",
            ["null", {"type": "fixed", "name": "d1", "size": 1, "logicalType": "decimal", "precision": 2, "scale": 0}],
        ),
        ("e", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}]),
    )
    gone = pa.array([False, True, False])
    kinds = {f.name: f.type for f in arrow_schema(schema)}
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 4], pa.int32()), pa.array([1, None, 3, 4], pa.int32()), type=kinds["a"], mask=gone
    )
    text = pa.array(["one", "two", "three"])
    record = pa.StructArray.from_arrays([text], fields=list(kinds["r"]), mask=gone)
    valid = pa.array([True, False, True]).buffers()[1]
    hidden = pa.Array.from_buffers(pa.string(), 3, [valid, *text.buffers()[1:]])
    numbers = pa.Array.from_buffers(pa.int64(), 3, [valid, pa.array([1, 2**60, 3]).buffers()[1]])
    wide = pa.array([Decimal(1), Decimal(1000), Decimal(-3)], pa.decimal128(9, 0)).buffers()[1]
    decimals = pa.Array.from_buffers(pa.decimal128(2, 0), 3, [valid, wide])
    table = pa.table({"a": lists, "r": record, "t": hidden, "n": numbers, "d": decimals, "e": decimals})
    assert encode_rows(table, parse_avro(schema)).to_pylist() == reference(table.to_pylist(), schema)


def test_how_arrow_holds_a_column_does_not_matter() -> None:
    """Dictionaries, large and view types, short integers, other names of list elements and another order."""
    schema = avro_schema(
        ("t", ["null", "string"]), ("b", "bytes"), ("s", "int"), ("l", "long"), ("v", "string"),
        ("a", {"type": "array", "items": ["null", "string"]}), ("m", {"type": "map", "values": "int"}),
    )  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"t": "x", "b": b"1", "s": 7, "l": -8, "v": "v", "a": ["p", None], "m": [("k", 1)]},
        {"t": None, "b": b"", "s": -7, "l": 8, "v": "", "a": [], "m": []},
    ]
    held = {
        "a": pa.array([r["a"] for r in rows], pa.large_list(pa.field("item", pa.large_string()))),
        "t": pa.array(["x", None]).dictionary_encode(),
        "b": pa.array([b"1", b""], pa.large_binary()),
        "s": pa.array([7, -7], pa.int8()),
        "l": pa.array([-8, 8], pa.int16()),
        "v": pa.array(["v", ""], pa.string_view()),
        "m": pa.array([r["m"] for r in rows], pa.map_(pa.string(), pa.int16())),
    }
    assert encode_rows(pa.table(held), parse_avro(schema)).to_pylist() == reference(rows, schema)


RECORD: Any = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "int"}]}


@for_each(
    [
        ("int", [1, None], pa.int32(), "column c must not hold nulls; found 1 nulls"),
        (["null", RECORD], [None, {"x": None}], pa.struct([("x", pa.int32())]), "column c.x must not hold nulls"),
        ({"type": "array", "items": "int"}, [[1], [None]], pa.list_(pa.int32()), "column c.element must not"),
        ({"type": "map", "values": "int"}, [[("k", None)]], pa.map_(pa.string(), pa.int32()), "column c.value must"),
        ("int", [1], pa.int64(), "column c has another type"),
        ("int", [1], pa.uint8(), "column c has another type"),
        ("string", [b"1"], pa.binary(), "column c has another type"),
        ("double", [1.0], pa.float32(), "column c has another type"),
        ({"type": "long", "logicalType": "timestamp-micros"}, [1], pa.timestamp("us"), "column c has another type"),
        (RECORD, [{"x": 1, "y": 1}], pa.struct([("x", pa.int32()), ("y", pa.int32())]), "fields of column c"),
        ({"type": "array", "items": RECORD}, [[{"y": 1}]], pa.list_(pa.struct([("y", pa.int32())])), "c.element"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, ["A", "Z"], pa.string(), "column c holds a text"),
        (
            {"type": "fixed", "name": "d", "size": 1, "logicalType": "decimal", "precision": 5, "scale": 0},
            [Decimal(127), Decimal(128)],
            pa.decimal128(5, 0),
            "column c holds a decimal beyond its fixed type",
        ),
    ]
)
def test_rows_the_schema_does_not_allow(kind: Any, values: list[Any], arrow: pa.DataType, said: str) -> None:
    """Refused by the name of the column."""
    with pytest.raises(UsageError, match=said):
        encode_rows(pa.table({"c": pa.array(values, arrow)}), parse_avro(avro_schema(("c", kind))))


def test_nulls_that_a_null_record_makes_are_none() -> None:
    """A field that must not be null is not there in a null record, at any depth."""
    inner = {"type": "record", "name": "i", "fields": [{"name": "y", "type": "int"}]}
    outer = {"type": "record", "name": "o", "fields": [{"name": "i", "type": inner}]}
    schema = avro_schema(("c", ["null", outer]))
    rows = [{"c": None}, {"c": {"i": {"y": 5}}}]
    assert encode_rows(table_of(rows, schema), parse_avro(schema)).to_pylist() == reference(rows, schema)


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], ["a", "a", "b"]])
def test_other_columns(names: list[str]) -> None:
    """Missing, unknown and doubled columns are refused."""
    rows = pa.Table.from_arrays([pa.array([1], pa.int32())] * len(names), names=names)
    with pytest.raises(UsageError, match="columns of the rows"):
        encode_rows(rows, parse_avro(avro_schema(("a", "int"), ("b", "int"))))


@for_each(["null", ["null"], ["null", "int", "string"], {"type": "array", "items": ["int", "string"]}])
def test_types_that_tables_do_not_have(kind: Any) -> None:
    """Refused by the name of the column."""
    with pytest.raises(UnsupportedError, match="column c"):
        encode_rows(pa.table({"c": pa.array([1])}), parse_avro(avro_schema(("c", kind))))


# Where framed records begin.


_RECORDS = st.lists(
    st.binary(max_size=12) | st.sampled_from([b"\0" * 9, b"\0\0\0\0", b"\0\0\0\1\0", b"\0" * 300]), max_size=9
)


def framed(records: list[bytes]) -> pa.Buffer:
    """The records behind their lengths."""
    return pa.py_buffer(b"".join(struct.pack(">i", len(r)) + r for r in records))


def chain(records: list[bytes]) -> list[int]:
    """One offset after the other."""
    return [0, *np.cumsum([4 + len(r) for r in records]).tolist()]


@given(_RECORDS)
@example([b"\0\0\0\0"])
@example([b"\0\0\0\2ab"])
@example([b"x" * 65536, b""])
def test_a_chain_is_the_one_of_the_prefixes(records: list[bytes]) -> None:
    """Also where the records' own bytes look like prefixes."""
    assert record_starts(framed(records), len(records), "log").tolist() == chain(records)


def test_what_is_no_chain_is_refused() -> None:
    """Another count, a cut end, a length below zero."""
    whole = framed([b"abc", b"de"]).to_pybytes()
    for data, count in ((whole, 3), (whole[:-1], 2), (whole, 1), (b"\xff" + whole, 2)):
        with pytest.raises(MalformedError, match=r"do not add up; at log; expected \d records in \d+ bytes"):
            record_starts(pa.py_buffer(data), count, "log")


# A table's Avro schema with some of its columns.


PRICE = {"type": "fixed", "name": "price", "namespace": "x", "size": 4, "logicalType": "decimal", "precision": 8}
TEXT = json.dumps(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "paid", "type": {**PRICE, "scale": 2}},
            {"name": "owed", "type": "x.price"},
        ],
    }
)


def test_the_named_columns_in_the_order_of_the_schema() -> None:
    """Names that the schema does not have are left out."""
    assert arrow_schema(project_text(TEXT, ["owed", "paid", "none"])).names == ["paid", "owed"]


def test_a_type_that_is_defined_elsewhere() -> None:
    """Without its definition the schema could not be read."""
    with pytest.raises(UnsupportedError, match="share a named type"):
        project_text(TEXT, ["owed"])


# What a schema is read into.


ONE = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": "string"}]})


def test_a_schema_is_parsed_once() -> None:
    """Thousands of blocks and commits have the same."""
    assert parse_avro(ONE) is parse_avro(ONE)


def test_each_refusal_of_a_changelog_is_an_error_of_its_own() -> None:
    """An error that is raised again would carry the trace of where it was raised first."""
    assert changelog("rides") is not changelog("rides")
