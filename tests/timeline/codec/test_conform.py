"""Schema evolution: data of an older schema in the table's schema, by promotion only."""

from __future__ import annotations

import io
import math
import pickle
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.codec.conform import Defaults, check_conformable, conform, convert
from phantombase.timeline.codec.stored_names import SAME_NAMES, StoredNames, names_in, stored
from phantombase.timeline.errors import MalformedError, UnsupportedError
from tests.support.selection import for_each


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


@for_each(
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
    ]
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


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_the_same_numbers_under_another_label(unit: str) -> None:
    """Millis under the label micros, and longs since labelled local timestamps, before 1970 and with a rest, too."""
    numbers = [1720631224939, None, -1]
    millis = pa.timestamp("ms", tz="UTC")
    mislabelled = pa.array(numbers, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    assert convert(mislabelled, millis, "here").cast(pa.int64()).to_pylist() == numbers
    local = convert(pa.array(numbers, pa.int64()), pa.timestamp(unit), "here")
    assert local.type == pa.timestamp(unit)
    assert local.cast(pa.int64()).to_pylist() == numbers


@for_each(
    [
        (
            pa.float64(),
            [1.0, -0.0, 1e7, 9999999.0, 123456789.0, 100.5],
            ["1.0", "-0.0", "1.0E7", "9999999.0", "1.23456789E8", "100.5"],
        ),
        (
            pa.float64(),
            [1e-3, 9.99e-4, -1.5e-7, 1e15, 1.1e22, 1.7976931348623157e308],
            ["0.001", "9.99E-4", "-1.5E-7", "1.0E15", "1.1E22", "1.7976931348623157E308"],
        ),
        (
            pa.float64(),
            [math.nan, math.inf, -math.inf, None, 5e-324, 1e-323],
            ["NaN", "Infinity", "-Infinity", None, "4.9E-324", "9.9E-324"],
        ),
        (
            pa.float32(),
            [1.1, 3.0, 1e10, 1.4e-45, 16777216.0, None],
            ["1.1", "3.0", "1.0E10", "1.4E-45", "1.6777216E7", None],
        ),
    ]
)
def test_texts_of_floats_are_those_of_java(kind: pa.DataType, values: list[Any], texts: list[str | None]) -> None:
    """As `Double.toString` and `Float.toString` of Java 19 and later."""
    assert converted(values, kind, pa.string()) == texts


def test_a_value_that_does_not_fit_is_named() -> None:
    """Not an error of Arrow: decimals of more digits than their type says, bytes that are no text."""
    for array, target in (
        (pa.array([b"\xff"]), pa.string()),
        (pa.array([b"abc"]), pa.binary(2)),
        (pa.array([Decimal("12345678.90")], pa.decimal128(10, 2)), pa.decimal128(10, 4)),
    ):
        with pytest.raises(MalformedError, match="does not fit") as failure:
            convert(array, target, "p/base.parquet: column x")
        assert failure.value.path == "p/base.parquet: column x"


# --- defaults ---------------------------------------------------------------------------------------------------

DEFAULTED = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("tag", pa.string()),
        pa.field("flag", pa.bool_(), nullable=False),
        pa.field("s", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.float64(), nullable=False)])),
        pa.field("l", pa.list_(pa.field("element", pa.struct([pa.field("d", pa.decimal128(4, 2), nullable=False)])))),
        pa.field("m", pa.map_(pa.string(), pa.struct([pa.field("t", pa.date32(), nullable=False)]))),
    ]
)
VALUES = {("tag",): "t0", ("flag",): False, ("s", "y"): 1.5, ("l", "element", "d"): "\x00\x96", ("m", "value", "t"): 3}
OLD = pa.table(
    {
        "a": [1, 2],
        "s": pa.array([{"x": 1}, None], pa.struct([("x", pa.int32())])),
        "l": [[{"n": 1}], None],
        "m": pa.array([[("k", {"n": 1})], None], pa.map_(pa.string(), pa.struct([("n", pa.int32())]))),
    }
)


def test_defaults_of_columns_and_their_parts() -> None:
    """Avro's rule, where it holds; elsewhere such a file is refused, also by its schema alone."""
    found = conform(OLD, DEFAULTED, "here", defaults=Defaults(values=VALUES, filled=True)).to_pylist()
    part = {"x": 1, "y": 1.5}, [{"d": Decimal("1.50")}], [("k", {"t": date(1970, 1, 4)})]
    assert found == [
        {"a": 1, "tag": "t0", "flag": False, "s": part[0], "l": part[1], "m": part[2]},
        {"a": 2, "tag": "t0", "flag": False, "s": None, "l": None, "m": None},
    ]
    check_conformable(OLD.schema, DEFAULTED, "here", defaults=Defaults(values=VALUES, filled=True))
    for refused in (conform, lambda data, *given, **more: check_conformable(data.schema, *given, **more)):
        with pytest.raises(UnsupportedError, match="another default than null"):
            refused(OLD, DEFAULTED, "here", defaults=Defaults(values=VALUES))


@for_each(["a", "s", "l", "m"])
def test_required_parts_without_a_default(name: str) -> None:
    """Named, and not an array that says it has no nulls; a null record, or list, needs no parts."""
    schema = pa.schema([DEFAULTED.field(name)])
    rows = OLD.select([name]) if name != "a" else OLD.select(["s"])
    for refused in (conform, lambda data, *given: check_conformable(data.schema, *given)):
        with pytest.raises(MalformedError, match="required column"):
            refused(rows, schema, "here")
    if name != "a":
        assert conform(rows.slice(1), schema, "here").to_pylist() == [{name: None}]


def test_nulls_in_required_parts() -> None:
    """A file may hold nulls where the table's records may not."""
    schema = pa.schema([pa.field("s", pa.struct([pa.field("y", pa.float64(), nullable=False)]))])
    assert conform(pa.table({"s": [None, {"y": 1.0}]}), schema, "here").to_pylist() == [{"s": None}, {"s": {"y": 1.0}}]
    with pytest.raises(MalformedError, match="required column"):
        conform(pa.table({"s": [{"y": None}, {"y": 1.0}]}), schema, "here")


@for_each([{"x": 1}, 300000000000, "text", True])
def test_defaults_that_are_not_supported(value: Any) -> None:
    """Named, not an error of Python."""
    schema = pa.schema([("a", pa.int32())])
    with pytest.raises(UnsupportedError, match="a default that is not supported"):
        conform(pa.table({"b": [1]}), schema, "here", defaults=Defaults(values={("a",): value}, filled=True))


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
    ("source", "target", "value"), [(pa.int64(), pa.float64(), 2**53 + 1), (pa.int32(), pa.float32(), 2**24 + 1)]
)
def test_large_integers_round(source: pa.DataType, target: pa.DataType, value: int) -> None:
    """long -> double and int -> float lose digits, as they do in Java."""
    assert converted([value], source, target) == [value - 1]


@for_each(
    [
        (pa.int64(), pa.int32()),
        (pa.float64(), pa.float32()),
        (pa.float32(), pa.int64()),
        (pa.string(), pa.int64()),
        (pa.bool_(), pa.string()),
        (pa.bool_(), pa.int32()),
        (pa.date32(), pa.string()),
        (pa.int32(), pa.date32()),
        (pa.int64(), pa.timestamp("us", tz="UTC")),
        (pa.int64(), pa.binary()),
        (pa.decimal128(8, 2), pa.decimal128(5, 2)),
        (pa.decimal128(8, 2), pa.decimal128(8, 1)),
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.int32(), pa.decimal128(12, 2)),
        (pa.int32(), pa.list_(pa.int32())),
        (pa.list_(pa.int64()), pa.list_(pa.int32())),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32())),
        (pa.struct([("x", pa.int32())]), pa.int32()),
        (pa.list_(pa.int32()), pa.struct([("x", pa.int32())])),
        (pa.int32(), pa.bool_()),
    ]
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


# Names of columns in older files.


def test_columns_by_their_names_in_a_file() -> None:
    """Those that it does not have are left out."""
    assert stored(["a", "b", "c"], SAME_NAMES, ["c", "a", "d"]) == ["a", "c"]
    assert stored(["a", "b", "c"], {"a": "b", "b": None}, ["a", "b", "c"]) == ["b", "c"]


def test_columns_in_other_letters() -> None:
    """A column that the file lacks is the one of another case there, but not one that is another column's."""
    assert stored(["State", "id"], SAME_NAMES, ["id", "state"]) == ["state", "id"]
    assert names_in(["State", "id"], SAME_NAMES, ["id", "state"]) == {"State": "state"}
    assert names_in(["State", "STATE"], SAME_NAMES, ["STATE"]) == {}
    assert names_in(["a"], {"b": "a"}, ["A"]) == {"b": "a"}  # columns that evolve on read have numbers
    with pytest.raises(UnsupportedError, match="differ by case only") as failure:
        names_in(["State"], SAME_NAMES, ["state", "STATE"], "p/base.parquet")
    assert failure.value.path == "p/base.parquet"


@for_each([("10", {"a": "x"}), ("20", {"a": "x"}), ("29", {"a": "x"}), ("30", {}), ("25", {"a": "y"})])
def test_names_of_an_instant(instant: str, names: dict[str, str]) -> None:
    """Its commit's, else those since the last change before it; the first before all."""
    found = StoredNames(commits={"25": {"a": "y"}}, changes=((20, {"a": "x"}), (30, {})))
    assert found
    assert found.at(instant) == names
    assert pickle.loads(pickle.dumps(found)).at(instant) == names


def test_without_changes_all_names_are_the_same() -> None:
    """Nothing is looked up."""
    assert not StoredNames()
    assert StoredNames().at("10") == {}


def test_rows_of_renamed_columns() -> None:
    """Swapped names, one that the file does not have though another column has its name, and its type is kept."""
    rows = pa.table({"a": [1, 2], "b": ["x", "y"], "c": [True, None]})
    schema = pa.schema([("b", pa.int64()), ("a", pa.string()), ("c", pa.string()), ("d", pa.int32())])
    found = conform(rows, schema, "t", names={"a": "b", "b": "a", "c": None})
    assert found.schema == schema
    assert found.to_pydict() == {"b": [1, 2], "a": ["x", "y"], "c": [None, None], "d": [None, None]}


def test_a_file_of_which_nothing_is_known_is_refused() -> None:
    """By its own name a column could be another one."""
    found = StoredNames(commits={"15": {}}, changes=((20, {"a": "x"}),), unknown_before=20)
    assert (found.at("20"), found.at("15")) == ({"a": "x"}, {})
    with pytest.raises(UnsupportedError, match="first change of columns are not known"):
        found.at("19")
