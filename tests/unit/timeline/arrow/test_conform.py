"""Schema evolution: data of an older schema in the table's schema, by promotion only."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.arrow.conform import conform, convert
from phantombase.timeline.errors import MalformedError, UnsupportedError


def converted(values: list[Any], source: pa.DataType, target: pa.DataType, *, text: bool = True) -> list[Any]:
    """Converts, sliced too, and checks that both say the same; returns the values."""
    whole = convert(pa.array(values, source), target, "here", text)
    assert whole.type == target
    whole.validate(full=True)
    padded = pa.array([*values[:1], *values, *values[:1]], source).slice(len(values[:1]), len(values))
    part = convert(padded, target, "here", text)
    part.validate(full=True)
    assert repr(part.to_pylist()) == repr(whole.to_pylist())
    result: list[Any] = whole.to_pylist()
    return result


# --- columns ----------------------------------------------------------------------------------------------------


def test_columns_are_matched_by_name() -> None:
    """Missing columns are null, unknown ones go, order and names are the target's; a batch or a table alike."""
    batch = pa.RecordBatch.from_pydict({"b": [1, 2], "a": ["x", "y"], "gone": [0, 0]})
    schema = pa.schema([("a", pa.string()), ("new", pa.list_(pa.int32())), ("b", pa.int64())])
    for data in (batch, pa.Table.from_batches([batch, batch]).slice(1, 2)):
        found = conform(data, schema, "here")
        assert found.schema == schema
        assert found.num_rows == 2
        assert set(found.column("new").to_pylist()) == {None}
        assert set(found.column("b").to_pylist()) == {1, 2}


def test_a_name_twice_is_not_a_missing_column() -> None:
    """Not read as null: at the top, nor inside a record."""
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["v", "v"])
    inside = pa.table({"s": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["v", "v"])})
    for table, kind in ((twice, ("v", pa.int64())), (inside, ("s", pa.struct([("v", pa.int64())])))):
        with pytest.raises(MalformedError, match="two columns of one name"):
            conform(table, pa.schema([kind]), "here")


def test_required_columns() -> None:
    """A column that must not be null is there and has none, or the file is refused by name."""
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    assert conform(pa.table({"a": [1]}), schema, "here").schema == schema
    assert conform(pa.table({"a": pa.array([1], pa.int32())}), schema, "here").column(0).to_pylist() == [1]
    for table in (pa.table({"a": [1, None]}), pa.table({"b": [1]}), pa.table({"a": pa.array([1, None], pa.int32())})):
        with pytest.raises(MalformedError, match="required column") as failure:
            conform(table, schema, "p/base.parquet")
        assert failure.value.path == "p/base.parquet"


def test_refusals_name_the_column() -> None:
    """The error leads to the file and the column, nested ones too."""
    inner = pa.struct([("y", pa.int64())])
    schema = pa.schema([("x", pa.struct([("y", pa.int32())]))])
    with pytest.raises(UnsupportedError) as failure:
        conform(pa.table({"x": pa.array([{"y": 1}], inner)}), schema, "p/base.parquet")
    assert failure.value.path == "p/base.parquet: column x.y"
    assert (failure.value.expected, failure.value.found) == ("int32", "int64")


# --- promotions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "values", "expected"),
    [
        (pa.int32(), pa.int64(), [1, None, -(2**31)], [1, None, -(2**31)]),
        (pa.int32(), pa.float32(), [1, None], [1.0, None]),
        (pa.int32(), pa.float64(), [2**31 - 1, None], [2147483647.0, None]),
        (pa.int64(), pa.float64(), [2**53, None], [9007199254740992.0, None]),
        (pa.float32(), pa.float64(), [1.5, None, 2.25], [1.5, None, 2.25]),
        (pa.int32(), pa.string(), [4, None, -7], ["4", None, "-7"]),
        (pa.int64(), pa.string(), [2**62], [str(2**62)]),
        (pa.string(), pa.binary(), ["é", None], [b"\xc3\xa9", None]),
        (pa.binary(), pa.string(), [b"\xc3\xa9", None], ["é", None]),
        (pa.large_string(), pa.string(), ["x", None], ["x", None]),
        (pa.string_view(), pa.string(), ["x", None], ["x", None]),
        (pa.large_binary(), pa.binary(), [b"x", None], [b"x", None]),
        (pa.binary(2), pa.binary(), [b"xy", None], [b"xy", None]),
        (pa.binary(), pa.binary(2), [b"xy", None], [b"xy", None]),
        (pa.decimal128(5, 1), pa.decimal128(8, 2), [Decimal("1.5"), None], [Decimal("1.50"), None]),
        (pa.null(), pa.int64(), [None], [None]),
    ],
    ids=str,
)
def test_promotions(source: pa.DataType, target: pa.DataType, values: list[Any], expected: list[Any]) -> None:
    """What Avro may widen, and the other spellings of text and bytes."""
    assert converted(values, source, target) == expected


def test_timestamps_of_other_units() -> None:
    """Milliseconds and Spark's zone-less microseconds are the same moments."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)
    micros = pa.timestamp("us", tz="UTC")
    assert converted([moment, None], pa.timestamp("ms", tz="UTC"), micros) == [moment, None]
    assert converted([moment.replace(tzinfo=None)], pa.timestamp("us"), micros) == [moment]


def test_float_to_double_through_text_or_bits() -> None:
    """Through text 1.1f is 1.1; by its bits, as 0.15 reads Avro logs, it is 1.100000023841858."""
    values = [1.1, None, -0.0, 3.4e38, 1e-45, 16777216.0]
    assert converted(values, pa.float32(), pa.float64())[0] == 1.1
    assert converted(values, pa.float32(), pa.float64(), text=False)[0] == 1.100000023841858
    nested = converted(
        [{"x": [1.1]}], pa.struct([("x", pa.list_(pa.float32()))]), pa.struct([("x", pa.list_(pa.float64()))])
    )
    assert nested == [{"x": [1.1]}]


@settings(deadline=None)
@given(st.floats(width=32))
def test_float_text_is_the_shortest_that_reads_back(value: float) -> None:
    """The double found through text rounds to the very float it came from; so do NaN, infinity, -0.0."""
    (wide,) = converted([value], pa.float32(), pa.float64())
    assert math.isnan(wide) if math.isnan(value) else struct.pack(">f", wide) == struct.pack(">f", value)


@pytest.mark.parametrize(
    ("source", "target", "value"),
    [(pa.int64(), pa.float64(), 2**53 + 1), (pa.int32(), pa.float32(), 2**24 + 1)],
)
def test_large_integers_round(source: pa.DataType, target: pa.DataType, value: int) -> None:
    """long -> double and int -> float lose digits, as they do in Java."""
    assert converted([value], source, target) == [value - 1]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.int64(), pa.int32()),
        (pa.float64(), pa.float32()),
        (pa.float32(), pa.int64()),
        (pa.string(), pa.int64()),
        (pa.float32(), pa.string()),  # Hudi prints 1.0 and 1.0E10, Arrow 1 and 1e+10
        (pa.float64(), pa.string()),
        (pa.bool_(), pa.string()),
        (pa.bool_(), pa.int32()),
        (pa.date32(), pa.string()),
        (pa.int32(), pa.date32()),
        (pa.int64(), pa.timestamp("us", tz="UTC")),
        (pa.int64(), pa.binary()),
        (pa.decimal128(8, 2), pa.decimal128(5, 2)),
        (pa.decimal128(8, 2), pa.decimal128(8, 1)),
        (pa.int32(), pa.decimal128(12, 2)),
        (pa.int32(), pa.list_(pa.int32())),
        (pa.list_(pa.int64()), pa.list_(pa.int32())),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32())),
        (pa.struct([("x", pa.int32())]), pa.int32()),
        (pa.list_(pa.int32()), pa.struct([("x", pa.int32())])),
        (pa.int32(), pa.bool_()),
    ],
    ids=str,
)
def test_refused(source: pa.DataType, target: pa.DataType) -> None:
    """Narrowing and everything else that is no promotion, at any depth."""
    with pytest.raises(UnsupportedError, match="not a promotion"):
        convert(pa.nulls(1, source), target, "here")


# --- nested -----------------------------------------------------------------------------------------------------


def test_structs_field_by_field() -> None:
    """Added fields are null, dropped ones go, widened ones are cast; a null struct stays null."""
    source = pa.struct([("b", pa.int32()), ("gone", pa.string()), ("in", pa.struct([("x", pa.int32())]))])
    target = pa.struct(
        [("new", pa.string()), ("in", pa.struct([("x", pa.int64()), ("y", pa.int32())])), ("b", pa.int64())]
    )
    values = [{"b": 1, "gone": "g", "in": {"x": 2}}, None, {"b": None, "gone": None, "in": None}]
    assert converted(values, source, target) == [
        {"new": None, "in": {"x": 2, "y": None}, "b": 1},
        None,
        {"new": None, "in": None, "b": None},
    ]


@pytest.mark.parametrize("source", [pa.list_(pa.int32()), pa.large_list(pa.int32())], ids=str)
def test_lists(source: pa.DataType) -> None:
    """Elements are widened; empty and null lists stay what they are."""
    values = [[1, None], [], None, [2]]
    assert converted(values, source, pa.list_(pa.field("element", pa.int64()))) == values


def test_lists_of_structs() -> None:
    """An added field inside a list's elements."""
    source = pa.list_(pa.struct([("x", pa.int32())]))
    target = pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())]))
    assert converted([[{"x": 1}, None], None, []], source, target) == [[{"x": 1, "y": None}, None], None, []]


@pytest.mark.parametrize("as_list", [False, True])
def test_maps(as_list: bool) -> None:
    """Values are widened; a map may come as the list of pairs that it is in Avro."""
    pair = pa.struct([pa.field("key", pa.large_string(), nullable=False), ("value", pa.int32())])
    source = pa.large_list(pair) if as_list else pa.map_(pa.string(), pa.int32())
    target = pa.map_(pa.string(), pa.field("value", pa.int64()))
    values = [[("a", 1), ("b", None)], [], None, [("c", 2)]]
    given_ = [v and [{"key": k, "value": x} for k, x in v] for v in values] if as_list else values
    assert converted(given_, source, target) == values


def test_dictionaries() -> None:
    """Dictionary-encoded columns are plain ones, then promoted."""
    kind = pa.dictionary(pa.int8(), pa.int32())
    assert converted([7, None, 7], kind, pa.int64()) == [7, None, 7]


def test_null_parents_hide_their_children() -> None:
    """What lies under a null struct or list entry does not show."""
    hidden = pa.StructArray.from_arrays([pa.array([1, 2], pa.int32())], ["x"], mask=pa.array([True, False]))
    assert convert(hidden, pa.struct([("x", pa.int64())]), "here").to_pylist() == [None, {"x": 2}]
    lists = pa.ListArray.from_arrays([0, 1, 2], pa.array([1, 2], pa.int32()), mask=pa.array([True, False]))
    assert convert(lists, pa.list_(pa.int64()), "here").to_pylist() == [None, [2]]


def test_list_elements_of_any_name() -> None:
    """Elements named `array`, `item` or `element` in Parquet are the same (Hudi's own files: the golden tables)."""
    values = [[1, 2], [], [3]]
    schema = pa.schema([pa.field("l", pa.list_(pa.field("element", pa.int64())), nullable=True)])
    for compliant in (True, False):
        stream = io.BytesIO()
        table = pa.table({"l": pa.array(values, pa.list_(pa.field("array", pa.int32(), nullable=False)))})
        pq.write_table(table, stream, use_compliant_nested_type=compliant, store_schema=False)
        found = conform(pq.read_table(io.BytesIO(stream.getvalue())), schema, "here")
        assert found.schema == schema
        assert found.column(0).to_pylist() == values


def test_chunks_and_emptiness() -> None:
    """Several chunks, and none."""
    schema = pa.schema([("a", pa.int64())])
    chunked = pa.table(
        {"a": pa.chunked_array([pa.array([1], pa.int32()), pa.array([], pa.int32()), pa.array([2], pa.int32())])}
    )
    assert conform(chunked, schema, "here").column(0).to_pylist() == [1, 2]
    assert conform(chunked.schema.empty_table(), schema, "here").num_rows == 0
    assert conform(pa.table({"a": pa.chunked_array([], pa.int32())}), schema, "here").num_rows == 0


@pytest.mark.parametrize("kind", [pa.list_, lambda item: pa.map_(pa.string(), item)])
def test_the_beginning_of_an_array_with_nulls(kind: Callable[[pa.DataType], pa.DataType]) -> None:
    """Its offsets begin with 0 and yet are a slice."""
    values = pa.array([None, None, None], kind(pa.int32())).slice(1)
    assert convert(values, kind(pa.int64()), "here").to_pylist() == [None, None]
