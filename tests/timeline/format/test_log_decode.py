"""Rows and delete entries of log blocks: Avro by numpy, by fastavro and Parquet say the same; faults have names."""

from __future__ import annotations

import io
import itertools
import json
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import product
from typing import Any
from unittest import mock

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.codec import avro_container, avro_decode
from phantombase.timeline.codec.arrow_schema import arrow_schema, arrow_type, project
from phantombase.timeline.codec.avro_container import decode_long, decode_records, encode_long
from phantombase.timeline.codec.avro_schema import parse_avro
from phantombase.timeline.codec.conform import conform
from phantombase.timeline.errors import MalformedError, UnsupportedError
from phantombase.timeline.format import log_decode as decode_module
from phantombase.timeline.format import log_deletes as delete_module
from phantombase.timeline.format.log_block import LogBlock
from phantombase.timeline.format.log_decode import count_entries, decode_rows
from phantombase.timeline.format.log_deletes import Deletes, decode_deletes
from tests.support.builders import (
    AVRO,
    CDC,
    DELETE,
    HFILE,
    INSTANT_TIME,
    IS_PARTIAL,
    NO_ORDERING,
    PARQUET,
    SCHEMA,
    OrderingValue,
    avro_block,
    avro_content,
    avro_schema,
    block,
    blocks_of,
    delete_block,
    delete_content,
    parquet_block,
)
from tests.support.selection import ALL, for_each

ONE = avro_schema(("k", "string"), ("v", "long"))
ROWS = [{"k": "a", "v": 1}, {"k": "bb", "v": 2}]


def rows_of(data: bytes, schema: pa.Schema, *, float_as_text: bool = True) -> pa.Table:
    (only,) = blocks_of(data)
    (rows,) = decode_rows(only, pa.BufferReader(data), schema, float_as_text=float_as_text)
    with without_native():
        (again,) = decode_rows(only, pa.BufferReader(data), schema, float_as_text=float_as_text)
        assert again.equals(rows) or str(again.to_pylist()) == str(rows.to_pylist())  # NaN
    assert count_entries(only, pa.BufferReader(data)) == rows.num_rows
    return rows


def parts_of(data: bytes) -> list[Deletes]:
    (only,) = blocks_of(data)
    parts = decode_deletes(only, pa.BufferReader(data))
    assert count_entries(only, pa.BufferReader(data)) == sum(len(part.keys) for part in parts)
    return parts


def deletes_of(data: bytes) -> Deletes:
    """The entries of a block that comes in one part."""
    (only,) = parts_of(data)
    return only


def entries_of(data: bytes) -> list[tuple[str | None, bool, tuple[Any, ...]]]:
    """(key, natural, ordering values) of each entry; values of natural ones are left out."""
    return [
        (key, natural, () if natural else values)
        for part in parts_of(data)
        for key, natural, *values_ in zip(
            part.keys.to_pylist(), part.natural.to_pylist(), *(a.to_pylist() for a in part.ordering), strict=True
        )
        for values in [tuple(values_)]
    ]


@contextmanager
def without_native() -> Iterator[None]:
    """The decoders in Python only, as where `phantombase-native` is not installed."""
    with mock.patch.object(decode_module, "native_columns", return_value=None):
        yield


@contextmanager
def without_numpy() -> Iterator[None]:
    """numpy refuses every schema: fastavro decodes."""
    refused = mock.patch.object(avro_decode, "decode_columns", side_effect=ValueError("refused by the test"))
    with without_native(), refused:
        yield


# --- random schemas and rows ------------------------------------------------------------------------------------

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
moments = st.integers(-(10**14), 10**15).map(lambda us: EPOCH + timedelta(microseconds=us))
millis = st.integers(-(10**11), 10**12).map(lambda ms: EPOCH + timedelta(milliseconds=ms))
PLAIN: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text(max_size=8)),
    ("bytes", st.binary(max_size=8)),
    ({"type": "int", "logicalType": "date"}, st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    ({"type": "long", "logicalType": "timestamp-micros"}, moments),
    ({"type": "long", "logicalType": "timestamp-millis"}, millis),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, moments.map(lambda m: m.replace(tzinfo=None))),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
        st.integers(-(10**19), 10**19).map(lambda i: Decimal(i).scaleb(-3)),
    ),
]


def draw_type(draw: st.DrawFn, names: Iterator[int], depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
    """An Avro type and a strategy for its values."""
    choice = draw(st.integers(0, 9))
    if choice == 0:
        precision = draw(st.integers(1, 38))
        size = math.ceil((precision * math.log2(10) + 1) / 8)
        fixed = {"type": "fixed", "name": f"fixed{next(names)}", "size": size}
        top = 10**precision - 1
        scale = draw(st.integers(0, precision))
        logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
        # Not scaleb: that rounds to the context's 28 digits.
        values: st.SearchStrategy[Any] = st.integers(-top, top).map(
            lambda i: Decimal((i < 0, tuple(map(int, str(abs(i)))), -scale))
        )
        return {**fixed, **logical}, values
    if choice == 1 and depth:
        inner, values = draw_nullable(draw, names, depth - 1)
        return {"type": "array", "items": inner}, st.lists(values, max_size=3)
    if choice == 2 and depth:
        inner, values = draw_nullable(draw, names, depth - 1)
        return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=3), values, max_size=3)
    if choice == 3 and depth:
        fields, values = draw_fields(draw, names, depth - 1)
        return {"type": "record", "name": f"record{next(names)}", "fields": fields}, values
    plain: tuple[Any, st.SearchStrategy[Any]] = draw(st.sampled_from(PLAIN))
    return plain


def draw_nullable(draw: st.DrawFn, names: Iterator[int], depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
    kind, values = draw_type(draw, names, depth)
    null = draw(st.integers(0, 3))
    if null == 0:
        return kind, values
    return [kind, "null"] if null == 1 else ["null", kind], st.none() | values


def draw_fields(draw: st.DrawFn, names: Iterator[int], depth: int) -> tuple[list[Any], st.SearchStrategy[Any]]:
    drawn = {f"f{i}": draw_nullable(draw, names, depth) for i in range(draw(st.integers(1, 4)))}
    fields = [{"name": name, "type": kind} for name, (kind, _) in drawn.items()]
    return fields, st.fixed_dictionaries({name: values for name, (_, values) in drawn.items()})


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]]]:
    """A record schema and rows."""
    fields, values = draw_fields(draw, itertools.count(), 2)
    schema = json.dumps({"type": "record", "name": "t", "namespace": "hoodie.t", "fields": fields})
    return schema, draw(st.lists(values, max_size=5))


def as_arrow(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([{k: arrow_value(v) for k, v in row.items()} for row in rows], schema=schema)


def arrow_value(value: Any) -> Any:
    """Records and maps are both dicts in Python; Arrow wants a map's entries as a list."""
    if isinstance(value, dict):
        if value and all(key in ("f0", "f1", "f2", "f3") for key in value) and "f0" in value:
            return {k: arrow_value(v) for k, v in value.items()}
        return [(k, arrow_value(v)) for k, v in value.items()]
    return [arrow_value(v) for v in value] if isinstance(value, list) else value


def records_of(log: bytes) -> Iterator[bytes]:
    """The records of an Avro block without their lengths."""
    (only,) = blocks_of(log)
    at, end = only.content_offset + 8, only.content_offset + only.content_bytes
    while at < end:
        (length,) = struct.unpack_from(">i", log, at)
        yield log[at + 4 : at + 4 + length]
        at += 4 + length


@settings(max_examples=250 if ALL else 50)
@given(tables(), st.data())
def test_avro_fastavro_and_parquet_agree(drawn: tuple[str, list[dict[str, Any]]], data: st.DataObject) -> None:
    """Rows come out of an Avro block as they went in, by each decoder (`rows_of` takes two), and of a Parquet block
    too; and so do any of their columns alone."""
    text, rows = drawn
    schema = arrow_schema(text)
    expected = as_arrow(schema, rows)
    log = avro_block("10", text, rows)
    assert rows_of(log, schema).equals(expected)
    if avro_decode.native is not None and rows:
        with mock.patch.object(decode_module, "decode_framed", side_effect=AssertionError("by others")):
            (only,) = blocks_of(log)
            (by_module,) = decode_rows(only, pa.BufferReader(log), schema)
        assert by_module.equals(expected)
    with without_native(), mock.patch.object(avro_decode, "decode_records", side_effect=AssertionError("by others")):
        assert rows_of(log, schema).equals(expected)
    with without_numpy():
        assert rows_of(log, schema).equals(expected)
        content = b"".join(records_of(log))
        by_row = decode_records(pa.py_buffer(content), len(rows), parse_avro(text), "log")
        assert conform(by_row, schema, "log").equals(expected)
    assert rows_of(parquet_block("10", text, expected), schema).equals(expected)
    some = project(schema, data.draw(st.lists(st.sampled_from(schema.names), unique=True, min_size=1)))
    assert rows_of(log, some).equals(expected.select(some.names))


@pytest.mark.parametrize("kind", ["float", "double"])
def test_not_a_number_and_negative_zero(kind: str) -> None:
    """Floats come with their bits: NaN, infinities, -0.0."""
    text = avro_schema(("v", kind))
    values = [math.nan, math.inf, -math.inf, -0.0, 0.0]
    found = rows_of(avro_block("10", text, [{"v": v} for v in values]), arrow_schema(text))
    assert [struct.pack(">d", v) for v in found.column(0).to_pylist()] == [struct.pack(">d", v) for v in values]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(["null", {"type": "enum", "name": "en", "symbols": ["A", "B"]}], "B", id="nullable enum"),
        pytest.param(
            {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 1}, Decimal("1.5"), id="wide decimal"
        ),
    ],
)
def test_schemas_that_numpy_refuses(kind: Any, value: Any) -> None:
    """fastavro decodes a block of another schema."""
    text = avro_schema(("v", kind))
    assert rows_of(avro_block("10", text, [{"v": value}]), arrow_schema(text)).to_pylist() == [{"v": value}]


def test_records_that_are_not_as_their_schema_says() -> None:
    """Shorter or longer than their length, without such a branch or symbol, not UTF-8: no decoder takes one."""
    enum = {"type": "enum", "name": "e", "symbols": ["A"]}
    wrong: list[tuple[Any, bytes]] = [("int", b"\x02\x02"), ("string", b"\x7e"), ("string", b"\x02\xff")]
    wrong += [(enum, b"\x02"), (enum, b"\x01"), ("boolean", b"\x02"), ("long", b"\xff" * 11 + b"\x01")]
    wrong += [(["null", "int"], b"\x04"), (["null", "int"], b"\x01\x02"), ("int", b"\x80\x80\x80\x80\x10")]
    for kind, record in wrong:
        text = avro_schema(("v", kind))
        content = struct.pack(">iii", 3, 1, len(record)) + record
        with pytest.raises(MalformedError):
            rows_of(block(AVRO, {INSTANT_TIME: "1", SCHEMA: text}, content), arrow_schema(text))


def test_columns_of_records_without_fields() -> None:
    """They have rows, also where they are the only column that is read."""
    text = avro_schema(("k", "string"), ("v", {"type": "record", "name": "empty", "fields": []}))
    rows = [{"k": "a", "v": {}}, {"k": "b", "v": {}}]
    for names in ["v"], ["k", "v"]:
        found = rows_of(avro_block("10", text, rows), project(arrow_schema(text), names))
        assert found.to_pylist() == [{name: row[name] for name in names} for row in rows]


def test_long_lists_of_few_records() -> None:
    """numpy would take a step for each item: 15,625 of them in 16 KB. fastavro decodes such a block; times that Python
    does not have, and text that is no UUID, are values as others are, and no more rows are held than fill a table."""
    three: Any = "int"
    for _ in range(3):
        three = {"type": "array", "items": three}
    moment, name = {"type": "long", "logicalType": "timestamp-micros"}, {"type": "string", "logicalType": "uuid"}
    text = avro_schema(("v", three), ("t", moment), ("u", name))
    record = b"\x64" + (b"\x32" + (b"\x32" + b"\x02" * 25 + b"\x00") * 25 + b"\x00") * 50 + b"\x00"
    record += encode_long(2**63 - 1) + b"\x02u"
    content = struct.pack(">ii", 3, 2) + (struct.pack(">i", len(record)) + record) * 2
    reads = mock.patch.object(avro_decode._Walk, "read", autospec=True, side_effect=avro_decode._Walk.read)
    with without_native(), mock.patch.object(avro_container, "_ROWS", 1), reads as read:
        found = rows_of(block(AVRO, {INSTANT_TIME: "1", SCHEMA: text}, content), arrow_schema(text))
    assert found.column("v").to_pylist() == [[[[1] * 25] * 25] * 50] * 2
    assert found.column("t").cast(pa.int64()).to_pylist() == [2**63 - 1] * 2
    assert found.column("u").to_pylist() == ["u"] * 2
    assert read.call_count < 5000


@pytest.mark.parametrize("logical", [("int", "time-millis"), ("long", "time-micros")])
def test_times_of_day(logical: tuple[str, str]) -> None:
    """Times of day, which the schema table of `avro.schema` lists."""
    text = avro_schema(("v", {"type": logical[0], "logicalType": logical[1]}))
    rows = [{"v": time(3, 4, 5, 6000)}]
    assert rows_of(avro_block("10", text, rows), arrow_schema(text)).to_pylist() == rows


def test_more_logical_types() -> None:
    """Times, enums, fixed: whichever decoder takes them."""
    text = avro_schema(
        ("e", {"type": "enum", "name": "en", "symbols": ["A", "B"]}),
        ("f", {"type": "fixed", "name": "fx", "size": 3}),
        ("lm", {"type": "long", "logicalType": "local-timestamp-millis"}),
    )
    rows = [{"e": "B", "f": b"xyz", "lm": datetime(2026, 1, 2, 3, 4, 5, 6000)}]
    found = rows_of(avro_block("10", text, rows), arrow_schema(text))
    assert found.to_pylist() == rows


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_are_avros(value: int) -> None:
    """`encode_long` writes what fastavro writes, `decode_long` reads it at any position."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, "long", value)
    assert encode_long(value) == stream.getvalue()
    assert decode_long(b"\xff" + encode_long(value) + b"\x01", 1) == (value, 1 + len(stream.getvalue()))


# --- columns ----------------------------------------------------------------------------------------------------


def test_projection_and_added_columns() -> None:
    """Columns come in the reader's order; one the block does not know is null, one the reader does not know goes."""
    schema = pa.schema([("new", pa.int32()), ("v", pa.int64())])
    for log in (avro_block("10", ONE, ROWS), parquet_block("10", ONE, pa.Table.from_pylist(ROWS))):
        assert rows_of(log, schema).to_pylist() == [{"new": None, "v": 1}, {"new": None, "v": 2}]


def test_no_column_in_common_keeps_the_row_count() -> None:
    """A block all of whose columns are unknown to the reader still has its rows."""
    schema = pa.schema([("new", pa.int32())])
    for log in (avro_block("10", ONE, ROWS), parquet_block("10", ONE, pa.Table.from_pylist(ROWS))):
        assert rows_of(log, schema).num_rows == 2


def test_required_column_missing_in_an_old_block() -> None:
    """A column that must not be null and is not there is refused by name."""
    schema = pa.schema([pa.field("new", pa.int32(), nullable=False)])
    with pytest.raises(MalformedError, match="required column"):
        rows_of(avro_block("10", ONE, ROWS), schema)


def test_float_widening_is_the_readers_choice() -> None:
    """Through text (1.x) or by bits (0.15) in Avro blocks, also beside an enum; a Parquet block goes through text
    always."""
    text = avro_schema(("v", "float"), ("e", {"type": "enum", "name": "en", "symbols": ["A"]}))
    for schema in (pa.schema([("v", pa.float64())]), pa.schema([("v", pa.float64()), ("e", pa.string())])):
        avro = avro_block("10", text, [{"v": 1.1, "e": "A"}])
        assert rows_of(avro, schema).column(0).to_pylist() == [1.1]
        assert rows_of(avro, schema, float_as_text=False).column(0).to_pylist() == [1.100000023841858]


def test_an_empty_block() -> None:
    """No records: no rows, in the reader's schema."""
    found = rows_of(avro_block("10", ONE, []), arrow_schema(ONE))
    assert found.num_rows == 0
    assert found.schema == arrow_schema(ONE)


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2, 4])
@pytest.mark.parametrize("kind", [AVRO, DELETE])
def test_other_content_versions_are_refused(kind: int, version: int) -> None:
    """Older layouts (schema inside, Kryo) are refused by name, also when only counting."""
    content = struct.pack(">i", version) + avro_content(ONE, ROWS)[4:]
    data = block(kind, {INSTANT_TIME: "10", SCHEMA: ONE}, content)
    (only,) = blocks_of(data)
    for decode in (decode_deletes if kind == DELETE else all_rows, count_entries):
        with pytest.raises(UnsupportedError, match="old content version") as failure:
            decode(only, pa.BufferReader(data))
        assert failure.value.found == str(version)


@pytest.mark.parametrize("flag", ["true", "TRUE"])
def test_partial_updates_are_refused(flag: str) -> None:
    """A block with only some columns must not be read as whole rows."""
    with pytest.raises(UnsupportedError, match="partial-update"):
        rows_of(avro_block("10", ONE, ROWS, {IS_PARTIAL: flag}), arrow_schema(ONE))
    assert rows_of(avro_block("10", ONE, ROWS, {IS_PARTIAL: "false"}), arrow_schema(ONE)).num_rows == 2


def test_changelogs_are_refused() -> None:
    """A row of operation D or -U deletes; the table's schema does not tell of the column."""
    schema = avro_schema(("_hoodie_operation", ["null", "string"]), ("k", "string"), ("v", "long"))
    with pytest.raises(UnsupportedError, match="changelog tables"):
        rows_of(avro_block("10", schema, [{"_hoodie_operation": "D", **ROWS[0]}]), arrow_schema(ONE))


@pytest.mark.parametrize("kind", [HFILE, CDC])
def test_other_blocks_hold_no_rows(kind: int) -> None:
    """Rows are only in Avro and Parquet blocks."""
    data = block(kind, {INSTANT_TIME: "10", SCHEMA: ONE}, avro_content(ONE, ROWS))
    (only,) = blocks_of(data)
    with pytest.raises(UnsupportedError, match="not supported in data tables"):
        list(decode_rows(only, pa.BufferReader(data), arrow_schema(ONE)))
    with pytest.raises(UnsupportedError, match="not supported in data tables"):
        count_entries(only, pa.PythonFile(io.BytesIO(data)))


def all_rows(block: LogBlock, source: pa.NativeFile) -> list[pa.Table]:
    """Blocks are decoded as their rows are asked for."""
    return list(decode_rows(block, source, arrow_schema(ONE)))


def malformed(kind: int, content: bytes, schema: str = ONE) -> MalformedError:
    data = block(kind, {INSTANT_TIME: "10", SCHEMA: schema}, content)
    (only,) = blocks_of(data, "p/.f_10.log.1")
    decode = decode_deletes if kind == DELETE else all_rows
    with pytest.raises(MalformedError) as failure:
        decode(only, pa.BufferReader(data))
    return failure.value


def test_errors_name_the_file() -> None:
    """Whatever the content lacks, the error says in which file."""
    for kind, content in ((AVRO, GOOD[:-1]), (AVRO, GOOD[:3]), (PARQUET, b"PAR1"), (DELETE, GOOD)):
        assert malformed(kind, content).path == "p/.f_10.log.1"


def test_a_broken_schema_names_the_file() -> None:
    """The schema stands in the block's header."""
    assert malformed(AVRO, GOOD, "{").path == "p/.f_10.log.1"


GOOD = avro_content(ONE, ROWS)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(struct.pack(">ii", 3, 3) + GOOD[8:], id="one record too few"),
        pytest.param(struct.pack(">ii", 3, 1) + GOOD[8:], id="one record too many"),
        pytest.param(struct.pack(">ii", 3, -1) + GOOD[8:], id="negative count"),
        pytest.param(GOOD[:8] + struct.pack(">i", 99) + GOOD[12:], id="length too large"),
        pytest.param(GOOD[:8] + struct.pack(">i", -3) + GOOD[12:], id="negative length"),
        pytest.param(GOOD + b"\x00", id="a byte behind the last record"),
        pytest.param(GOOD[:-1], id="a byte short"),
        pytest.param(GOOD[:3], id="cut in the count"),
        pytest.param(b"", id="empty"),
    ],
)
def test_malformed_avro(content: bytes) -> None:
    """Content that is not what its numbers say is refused, and the file is named."""
    malformed(AVRO, content)


def test_a_negative_count_is_named() -> None:
    """Both where rows are decoded and where they are only counted."""
    assert "negative count" in malformed(AVRO, struct.pack(">ii", 3, -1) + GOOD[8:]).what


def test_malformed_avro_by_any_cut() -> None:
    """Content cut at any byte is refused."""
    for cut in range(len(GOOD)):
        malformed(AVRO, GOOD[:cut])


def test_malformed_parquet_and_schema() -> None:
    """No Parquet file; a schema that is none; a block without a schema."""
    malformed(PARQUET, b"PAR1 and nothing else")
    malformed(PARQUET, b"")
    malformed(AVRO, GOOD, "{")
    malformed(AVRO, GOOD, '"string"')
    data = block(AVRO, {INSTANT_TIME: "10"}, GOOD)
    with pytest.raises(MalformedError, match="SCHEMA"):
        rows_of(data, arrow_schema(ONE))


def test_content_shorter_than_the_header_says() -> None:
    """A file that shrank between scan and decode is an error."""
    data = avro_block("10", ONE, ROWS)
    (only,) = blocks_of(data)
    with pytest.raises(MalformedError, match="shorter"):
        list(decode_rows(only, pa.BufferReader(data[: only.content_offset + 9]), arrow_schema(ONE)))


# --- delete blocks ----------------------------------------------------------------------------------------------

WRAPPED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "BooleanWrapper": (pa.bool_(), [True, False]),
    "IntWrapper": (pa.int32(), [5, -1, 2**31 - 1]),
    "LongWrapper": (pa.int64(), [0, -1, 2**62]),
    "FloatWrapper": (pa.float32(), [0.0, 1.5]),
    "DoubleWrapper": (pa.float64(), [0.0, 1.5]),
    "BytesWrapper": (pa.binary(), [b"", b"x" * 70]),
    "StringWrapper": (pa.string(), ["", "é" * 70]),
    "DateWrapper": (pa.date32(), [date(2026, 1, 2), date(1969, 12, 31)]),
    "DecimalWrapper": (pa.decimal128(30, 15), [Decimal("-1.500000000000000"), Decimal("3.000000000000000")]),
    "TimestampMicrosWrapper": (pa.timestamp("us", tz="UTC"), [EPOCH, EPOCH + timedelta(days=1)]),
}


def columns(deletes: Deletes) -> list[list[Any]]:
    return [a.to_pylist() for a in deletes.ordering]


@contextmanager
def by_row() -> Iterator[None]:
    """No block counts as uniform: fastavro decodes."""
    with mock.patch.object(delete_module, "_uniform_deletes", return_value=None):
        yield


@for_each(list(WRAPPED))
def test_uniform_deletes(wrapper: str) -> None:
    """Every wrapper type with its own Arrow type, by either decoder; none of these entries is natural."""
    kind, values = WRAPPED[wrapper]
    data = delete_block("10", [(f"k{i}", (wrapper, v)) for i, v in enumerate(values)])
    for decoder in (nullcontext(), by_row()):
        with decoder:
            found = deletes_of(data)
        assert found.keys.to_pylist() == [f"k{i}" for i in range(len(values))]
        assert found.natural.to_pylist() == [False] * len(values)
        assert columns(found) == [values]
        assert found.ordering[0].type == kind


def test_deletes_at_times_that_python_does_not_have() -> None:
    """The last moment of 64 bits is an ordering value as others are, by either decoder."""
    data = delete_block("10", [("a", ("TimestampMicrosWrapper", 2**63 - 1))])
    for decoder in (nullcontext(), by_row()):
        with decoder:
            assert deletes_of(data).ordering[0].cast(pa.int64()).to_pylist() == [2**63 - 1]


@pytest.mark.parametrize("natural", [NO_ORDERING, None])
def test_natural_deletes(natural: OrderingValue) -> None:
    """IntWrapper 0 and a null ordering value are deletes without one; nothing is left to compare."""
    found = deletes_of(delete_block("10", [("a", natural), ("b", natural)]))
    assert (found.ordering, found.natural.to_pylist()) == ((), [True, True])


def test_integer_zero_among_other_integers() -> None:
    """In a block of IntWrapper only the zeros are natural."""
    found = deletes_of(delete_block("10", [("a", ("IntWrapper", 0)), ("b", ("IntWrapper", 7))]))
    assert (columns(found), found.natural.to_pylist()) == ([[0, 7]], [True, False])


@for_each(product(WRAPPED, [0, 1, 2]))
def test_mixed_deletes(wrapper: str, first: int) -> None:
    """Natural deletes among typed ones: each entry keeps its place, its value and the wrapper's type."""
    kind, values = WRAPPED[wrapper]
    entries: list[tuple[str | None, OrderingValue]] = [("a", NO_ORDERING), ("b", (wrapper, values[0])), ("c", None)]
    data = delete_block("10", entries[first:] + entries[:first])
    expected: list[tuple[str, bool, tuple[Any, ...]]] = [("a", True, ()), ("b", False, (values[0],)), ("c", True, ())]
    assert entries_of(data) == expected[first:] + expected[:first]
    assert {a.type for part in parts_of(data) for a in part.ordering} == {kind}


def test_mixed_wrapper_types() -> None:
    """IntWrapper 5 is not LongWrapper 5: parts of a block keep wrapper types apart."""
    entries: list[tuple[str | None, OrderingValue]] = [
        ("a", ("LongWrapper", 5)),
        ("b", ("IntWrapper", 5)),
        ("c", ("IntWrapper", 6)),
        ("d", ("StringWrapper", "x")),
        ("e", ("ArrayWrapper", [("IntWrapper", 5), ("LongWrapper", 5)])),
        ("f", ("ArrayWrapper", [("LongWrapper", 5), ("IntWrapper", 5)])),
    ]
    parts = parts_of(delete_block("10", entries))
    assert [(part.keys.to_pylist(), [a.type for a in part.ordering]) for part in parts] == [
        (["a"], [pa.int64()]),
        (["b", "c"], [pa.int32()]),
        (["d"], [pa.string()]),
        (["e"], [pa.int32(), pa.int64()]),
        (["f"], [pa.int64(), pa.int32()]),
    ]


def test_array_wrappers() -> None:
    """Several ordering fields: one Arrow array each; Integer 0 inside is a value, not "none"."""
    entries: list[tuple[str | None, OrderingValue]] = [
        ("a", ("ArrayWrapper", [("IntWrapper", 0), ("LongWrapper", 7), ("StringWrapper", "x")])),
        ("b", ("ArrayWrapper", [("IntWrapper", 2), ("LongWrapper", 0), ("StringWrapper", "")])),
    ]
    data = delete_block("10", entries)
    for decoder in (nullcontext(), by_row()):
        with decoder:
            found = deletes_of(data)
        assert columns(found) == [[0, 2], [7, 0], ["x", ""]]
        assert found.natural.to_pylist() == [False, False]
        assert [a.type for a in found.ordering] == [pa.int32(), pa.int64(), pa.string()]


def test_array_wrappers_with_nulls_and_natural_entries() -> None:
    """A null inside an array, dates (their index is another one there), natural entries beside."""
    day = date(2026, 1, 2)
    entries: list[tuple[str | None, OrderingValue]] = [
        ("a", ("ArrayWrapper", [None, ("LocalDateWrapper", day)])),
        ("b", ("ArrayWrapper", [("LongWrapper", 1), ("LocalDateWrapper", day)])),
        ("c", NO_ORDERING),
    ]
    expected: list[tuple[str, bool, tuple[Any, ...]]] = [
        ("a", False, (None, day)),
        ("b", False, (1, day)),
        ("c", True, ()),
    ]
    assert entries_of(delete_block("10", entries)) == expected
    for i in range(3):
        assert entries_of(delete_block("10", entries[i : i + 1])) == expected[i : i + 1]


wrapped_values = st.one_of(
    st.none(), st.just(NO_ORDERING), st.integers(-(2**63), 2**63 - 1).map(lambda v: ("LongWrapper", v))
)
keys = st.none() | st.text(max_size=5) | st.text(min_size=60, max_size=80)


@settings(deadline=None)
@given(st.lists(st.tuples(keys, wrapped_values), max_size=8))
def test_any_block_of_longs_and_natural_deletes(entries: list[tuple[str | None, OrderingValue]]) -> None:
    """Keys (null and longer than the snapshot ahead too), values and natural flags come out as they went in."""
    expected = [(key, v in (None, NO_ORDERING), () if v in (None, NO_ORDERING) else (v[1],)) for key, v in entries]
    assert entries_of(delete_block("10", entries)) == expected


@pytest.mark.parametrize("partition", [None, "", "d=0/e=é"])
def test_partition_paths_do_not_matter(partition: str | None) -> None:
    """They are read over, null too."""
    content = delete_content([("a", ("LongWrapper", 5)), (None, ("LongWrapper", 6))], partition=partition)
    found = deletes_of(block(DELETE, {INSTANT_TIME: "10"}, content))
    assert (found.keys.to_pylist(), columns(found)) == (["a", None], [[5, 6]])


def test_an_empty_delete_block() -> None:
    """No entries."""
    assert parts_of(delete_block("10", [])) == []


BODY = delete_content([("a", ("LongWrapper", 5)), ("b", ("LongWrapper", 6))])[8:]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(BODY[:-1] + b"\x02", id="list goes on at the end"),
        pytest.param(b"\x06" + BODY[1:], id="one entry too few"),
        pytest.param(BODY[:-4] + BODY[-1:], id="cut in an entry"),
        pytest.param(b"\x04" + b"\x08" * 30, id="no such union index"),
    ],
)
def test_malformed_deletes(body: bytes) -> None:
    """A body that is no list of delete records is refused."""
    malformed(DELETE, struct.pack(">ii", 3, len(body)) + body)


def test_malformed_delete_length() -> None:
    """The length must be that of the rest of the content."""
    error = malformed(DELETE, struct.pack(">ii", 3, len(BODY) + 1) + BODY)
    assert (error.expected, error.found) == (str(len(BODY)), str(len(BODY) + 1))


def test_malformed_deletes_by_any_cut() -> None:
    """A body cut at any byte is refused, with a length that fits it."""
    for cut in range(len(BODY)):
        malformed(DELETE, struct.pack(">ii", 3, cut) + BODY[:cut])


def test_a_list_of_two_runs() -> None:
    """Avro may cut a list into runs: all entries come out."""
    one = delete_content([("a", ("LongWrapper", 5))])[8:]
    two = delete_content([("b", ("LongWrapper", 6))])[8:]
    body = one[:-1] + two
    data = block(DELETE, {INSTANT_TIME: "10"}, struct.pack(">ii", 3, len(body)) + body)
    (only,) = blocks_of(data)
    parts = decode_deletes(only, pa.BufferReader(data))
    assert [key for part in parts for key in part.keys.to_pylist()] == ["a", "b"]


def test_bytes_behind_the_list() -> None:
    """What lies behind the end of the list is no part of it."""
    body = delete_content([("a", ("LongWrapper", 5))])[8:] + b"\x00"
    malformed(DELETE, struct.pack(">ii", 3, len(body)) + body)


# --- schemas ----------------------------------------------------------------------------------------------------


def test_named_types_and_namespaces() -> None:
    """A type defined once and named twice, in its namespace, reads as if it were written out."""
    fixed = {"type": "fixed", "name": "fixed", "size": 4, "logicalType": "decimal", "precision": 8, "scale": 2}
    text = avro_schema(("a", {**fixed, "namespace": "x.y"}), ("b", ["null", "x.y.fixed"]), ("c", "string"))
    schema = arrow_schema(text)
    assert schema.types == [pa.decimal128(8, 2), pa.decimal128(8, 2), pa.string()]
    rows = [{"a": Decimal("1.25"), "b": Decimal("-3.00"), "c": "x"}]
    assert rows_of(avro_block("10", text, rows), schema).to_pylist() == rows


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (["null", "int", "string"], "unions of several types"),
        (["null"], "unions of several types"),
        ("null", "not supported as a column"),
    ],
)
def test_unsupported_types(kind: Any, message: str) -> None:
    """Types without one Arrow type are refused by name."""
    with pytest.raises(UnsupportedError, match=message):
        arrow_schema(avro_schema(("v", kind)))


def test_recursive_records_are_refused() -> None:
    """A record that contains itself has no columns."""
    with pytest.raises(UnsupportedError, match="recursive"):
        arrow_schema(avro_schema(("next", ["null", "t1_record"])))


@for_each(["{", "[]", '"x"', "{}", '{"type":"record","name":"t"}', '{"type":"array","items":"int"}'])
def test_malformed_schemas(text: str) -> None:
    """No JSON, no record, parts missing."""
    with pytest.raises(MalformedError):
        parse_avro(text)


def test_wide_decimals() -> None:
    """Beyond 38 digits Arrow needs 256 bits."""
    assert arrow_type({"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 1}) == pa.decimal256(39, 1)


def test_blocks_are_values() -> None:
    """A block can be kept and decoded later, from another handle on the file."""
    data = avro_block("10", ONE, ROWS)
    (only,) = blocks_of(data)
    assert isinstance(only, LogBlock)
    (rows,) = decode_rows(only, pa.BufferReader(data), arrow_schema(ONE))
    assert rows.to_pylist() == ROWS
