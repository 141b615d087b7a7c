"""Schemas of new tables, their evolution, and incoming rows brought into them."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from itertools import product
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.codec.arrow_schema import arrow_schema
from phantombase.timeline.codec.avro_schema import with_meta_columns
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.writer_hooks.schema.column_types import column_type, data_fields
from phantombase.writer_hooks.schema.table_schema import evolve, new_schema, sanitized, to_file_schema
from tests.support.builders import schema
from tests.support.selection import for_each

TS = pa.timestamp("us", tz="UTC")


def struct(**fields: pa.DataType) -> pa.StructType:
    """A record type, written as `schema`."""
    return pa.struct(list(schema(**fields)))


BASE = schema(
    id_=pa.string(), n=pa.int32(), r=struct(x=pa.int32(), y_=pa.string()), l=pa.list_(pa.int32()), f=pa.float32()
)
TEXT = new_schema("t", BASE)

# --- new tables -------------------------------------------------------------------------------------------------


def test_names_and_shapes() -> None:
    """As Hudi writes them: hudi-format.md 4.4."""
    text = new_schema(
        "9 t-é",
        schema(
            id_=pa.string(),
            w=pa.decimal128(12, 2),
            st=struct(w=pa.decimal128(20, 0), a=pa.list_(struct(z=pa.decimal128(1, 1)))),
            m=pa.map_(pa.string(), pa.decimal128(38, 3)),
            tn=pa.timestamp("us"),
            s=pa.int16(),
        ),
    )
    record = json.loads(text)
    home = "hoodie.____t____"
    assert (record["name"], record["namespace"]) == ("____t_____record", home)
    id_, w, st_, m, tn, s = record["fields"]
    assert id_ == {"name": "id", "type": "string"}
    assert w == {
        "name": "w",
        "type": [
            "null",
            {
                "type": "fixed",
                "name": "fixed",
                "namespace": f"{home}.____t_____record.w",
                "size": 6,
                "logicalType": "decimal",
                "precision": 12,
                "scale": 2,
            },
        ],
        "default": None,
    }
    inner = st_["type"][1]
    assert (inner["name"], inner["namespace"]) == ("st", f"{home}.____t_____record")
    assert inner["fields"][0]["type"][1]["namespace"] == f"{home}.____t_____record.st.w"
    item = inner["fields"][1]["type"][1]["items"][1]
    assert (item["name"], item["namespace"]) == ("a", f"{home}.____t_____record.st")
    assert m["type"][1]["values"][1]["size"] == 16
    assert tn["type"][1]["logicalType"] == "local-timestamp-micros"
    assert s["type"] == ["null", "int"]
    fastavro.parse_schema(json.loads(with_meta_columns(text)))


_NUMBERS = [pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(9, 4), pa.decimal128(38, 0)]
_OTHERS = [pa.string(), pa.binary(), pa.bool_(), pa.date32(), TS, pa.timestamp("us")]
_LEAVES = st.sampled_from([*_NUMBERS, *_OTHERS])


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3)
    return (
        fields.map(lambda fs: pa.struct([pa.field(f"f{i}", k, nullable=n) for i, (k, n) in enumerate(fs)]))
        | st.tuples(inner, st.booleans()).map(lambda t: pa.list_(pa.field("element", t[0], nullable=t[1])))
        | st.tuples(inner, st.booleans()).map(lambda t: pa.map_(pa.string(), pa.field("value", t[0], nullable=t[1])))
    )


TYPES = st.recursive(_LEAVES, _nested, max_leaves=5)
SCHEMAS = st.lists(st.tuples(TYPES, st.booleans()), min_size=1, max_size=5).map(
    lambda fs: pa.schema([pa.field(f"c{i}", k, nullable=n) for i, (k, n) in enumerate(fs)])
)


@given(SCHEMAS)
def test_a_schema_reads_back(columns: pa.Schema) -> None:
    """Arrow to Avro and back; valid Avro; it covers itself."""
    text = new_schema("t", columns)
    assert arrow_schema(text).equals(columns)
    fastavro.parse_schema(json.loads(text))
    assert evolve(text, columns) == text
    assert to_file_schema(columns.empty_table(), columns).schema.equals(columns)


@given(SCHEMAS, SCHEMAS)
def test_new_columns_come_last(columns: pa.Schema, more: pa.Schema) -> None:
    """With and without meta columns in the table's text; the old columns stay as they were, to the letter."""
    added = [pa.field(f"new_{f.name}", f.type) for f in more]
    for text in (new_schema("t", columns), with_meta_columns(new_schema("t", columns))):
        evolved = evolve(text, pa.schema([*added, *columns]))
        assert arrow_schema(evolved).equals(pa.schema([*arrow_schema(text), *added]))
        assert json.loads(evolved)["fields"][: -len(added)] == json.loads(text)["fields"]
        fastavro.parse_schema(json.loads(evolved))


@for_each(
    [
        (pa.int8(), pa.int32()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(3), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns", tz="Europe/Berlin"), TS),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.decimal256(12, 2), pa.decimal128(12, 2)),
        (pa.large_list(pa.int8()), pa.list_(pa.field("element", pa.int32()))),
        (pa.list_(pa.int64(), 3), pa.list_(pa.field("element", pa.int64()))),
        (pa.map_(pa.large_string(), pa.int8()), pa.map_(pa.string(), pa.field("value", pa.int32()))),
    ]
)
def test_types_of_columns(given_type: pa.DataType, column: pa.DataType) -> None:
    """What Arrow has more than one of."""
    assert column_type(given_type, "c") == column


@for_each(
    [
        pa.null(),
        pa.uint64(),
        pa.duration("us"),
        pa.time64("us"),
        pa.decimal256(40, 2),
        pa.map_(pa.int32(), pa.string()),
        pa.struct([]),
        pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})]),
    ]
)
def test_types_no_column_has(kind: pa.DataType) -> None:
    """By name, wherever they are nested."""
    for outer in (kind, pa.list_(kind), struct(x=kind)):
        with pytest.raises(UsageError, match=r"found c"):
            new_schema("t", pa.schema([("c", outer)]))


def test_names_of_columns() -> None:
    """Meta columns go; names that Avro or a reader without case could not tell are refused."""
    assert data_fields(schema(_hoodie_commit_time=pa.string(), _hoodie_is_deleted=pa.bool_())).names == [
        "_hoodie_is_deleted"
    ]
    for wrong in (
        schema(_hoodie_operation=pa.string()),
        pa.schema([("a-b", pa.int32())]),
        pa.schema([("1a", pa.int32())]),
    ):
        with pytest.raises(UsageError):
            data_fields(wrong)
    for twice in (pa.schema([("a", pa.int32())] * 2), schema(a=pa.int32(), A=pa.int32()), schema(r=struct(x=TS, X=TS))):
        with pytest.raises(UsageError, match="two columns"):
            data_fields(twice)
    with pytest.raises(UsageError, match="needs a column"):
        new_schema("t", schema(_hoodie_file_name=pa.string()))
    assert [sanitized(n) for n in ("t1", "1t", "a.b-c", "é")] == ["t1", "__t", "a__b__c", "__"]


# --- evolution --------------------------------------------------------------------------------------------------

_ORDER = (pa.int32(), pa.int64(), pa.float32(), pa.float64())


@for_each(product(_ORDER, _ORDER))
def test_numbers_widen_only(incoming: pa.DataType, table: pa.DataType) -> None:
    """At the top, in a record, a list and a map."""
    wraps: list[Callable[[pa.DataType], pa.DataType]] = [
        lambda k: k,
        lambda k: struct(x=k),
        lambda k: pa.list_(k),
        lambda k: pa.map_(pa.string(), k),
    ]
    for wrap in wraps:
        text = new_schema("t", schema(c=wrap(table)))
        evolved = arrow_schema(evolve(text, schema(c=wrap(incoming)))).field("c").type
        assert evolved == data_fields(schema(c=wrap(max(table, incoming, key=_ORDER.index)))).field("c").type


def test_a_record_grows() -> None:
    """A field inside a record inside a list, with the right namespace; other definitions stay."""
    old = schema(id_=pa.string(), l=pa.list_(struct(x=pa.int32(), d=pa.decimal128(5, 1))))
    new = schema(id_=pa.string(), l=pa.list_(struct(x=pa.int64(), e=pa.decimal128(5, 1), r=struct(q=pa.int32()))))
    evolved = json.loads(evolve(new_schema("t", old), new))
    record = evolved["fields"][1]["type"][1]["items"][1]
    assert [f["name"] for f in record["fields"]] == ["x", "d", "e", "r"]
    assert record["fields"][0]["type"] == ["null", "long"]
    assert record["fields"][2]["type"][1]["namespace"] == "hoodie.t.t_record.l.e"
    assert record["fields"][3]["type"][1]["namespace"] == "hoodie.t.t_record.l"
    fastavro.parse_schema(evolved)


@for_each(
    [
        (schema(n=pa.int32()), "missing.*id"),
        (schema(id=pa.string(), z_=pa.int32()), "nullable.*z"),
        (schema(id=pa.string(), r=struct(x=pa.int32())), r"missing.*r\.y"),
        (schema(id=pa.string(), r=struct(y=pa.string(), z_=TS)), r"nullable.*r\.z"),
        (schema(id=pa.int32()), "expected id: string; found int32"),
        (schema(id=pa.binary()), "expected id: string; found binary"),
        (schema(id=pa.string(), n=pa.string()), "expected n: int32; found string"),
        (schema(id=pa.string(), n=TS), "expected n: int32"),
        (schema(id=pa.string(), l=pa.int32()), "expected l: list"),
        (schema(id=pa.string(), l=pa.list_(pa.string())), r"expected l\.element: int32; found string"),
        (schema(id=pa.string(), N=pa.int32()), "expected n; found N"),
        (schema(id=pa.string(), r=struct(X=pa.int32(), y=pa.string())), r"expected r\.x; found r\.X"),
    ]
)
def test_refused_changes(incoming: pa.Schema, message: str) -> None:
    """With the column and both types; the rows are refused as well."""
    for act in (lambda: evolve(TEXT, incoming), lambda: to_file_schema(incoming.empty_table(), arrow_schema(TEXT))):
        with pytest.raises(UsageError, match=message):
            act()


def test_columns_without_any_value_take_the_type_of_the_table() -> None:
    """As pandas gives them; at any depth. What the table does not have, or must not be null, is refused."""
    nothing = pa.table({"id": ["a"], "n": pa.nulls(1), "r": pa.array([{"x": None, "y": "q"}]), "l": pa.array([[None]])})
    assert {"n", "r", "l"} < set(arrow_schema(TEXT).names)
    assert evolve(TEXT, nothing.schema) == TEXT
    (row,) = to_file_schema(nothing, arrow_schema(TEXT)).to_pylist()
    assert {k: v for k, v in row.items() if v is not None} == {"id": "a", "r": {"x": None, "y": "q"}, "l": [None]}
    (row,) = to_file_schema(nothing.set_column(2, "r", pa.nulls(1)), arrow_schema(TEXT)).to_pylist()
    assert row["r"] is None
    for new in (pa.null(), struct(x=pa.null()), pa.list_(pa.null()), pa.map_(pa.string(), pa.null())):
        with pytest.raises(UsageError, match=r"without any value.*new.*Cast it"):
            evolve(TEXT, nothing.schema.append(pa.field("new", new)))
    with pytest.raises(UsageError, match="id: 1 of 1"):
        to_file_schema(nothing.set_column(0, "id", pa.nulls(1)), arrow_schema(TEXT))


@pytest.mark.parametrize(
    ("table", "given", "cast"),
    [(TS, pa.timestamp("ns"), r"assume_timezone\(column"), (pa.timestamp("us"), TS, r"local_timestamp\(column")],
)
def test_times_of_another_kind_say_which_cast(table: pa.DataType, given: pa.DataType, cast: str) -> None:
    """pandas makes times without a zone."""
    with pytest.raises(UsageError, match=rf"expected at: .*tz_localize.*{cast}"):
        evolve(new_schema("t", schema(at=table)), schema(at=given))


def test_times_and_decimals_keep_their_type() -> None:
    """What other writers store stays: milliseconds, wider decimals; zones do not mix."""
    text = (
        '{"type":"record","name":"r","namespace":"n","fields":['
        '{"name":"t","type":{"type":"long","logicalType":"timestamp-millis"}},'
        '{"name":"d","type":{"type":"bytes","logicalType":"decimal","precision":10,"scale":3}}]}'
    )
    assert evolve(text, schema(t=pa.timestamp("ns", "UTC"), d=pa.decimal128(9, 2))) == text
    for wrong in (schema(t=pa.timestamp("us"), d=pa.decimal128(9, 2)), schema(t=TS, d=pa.decimal128(10, 2))):
        with pytest.raises(UsageError):
            evolve(text, wrong)


def test_a_type_used_twice_does_not_change() -> None:
    """Its one definition stands for both columns."""
    text = (
        '{"type":"record","name":"r","fields":['
        '{"name":"a","type":{"type":"record","name":"q","fields":[{"name":"x","type":"int"}]}},{"name":"b","type":"q"}]}'
    )
    grown, same = struct(x_=pa.int32(), y=pa.int32()), struct(x_=pa.int32())
    for incoming in (schema(a=grown, b=same), schema(a=same, b=grown)):
        with pytest.raises(UnsupportedError, match="several places"):
            evolve(text, incoming)
    assert arrow_schema(evolve(text, schema(a=same, b=same, c=TS))).names == ["a", "b", "c"]


# --- rows -------------------------------------------------------------------------------------------------------


def one(value: Any, kind: pa.DataType, target: pa.DataType) -> Any:
    """A value of one column, brought into another type."""
    made = pa.array([None, value], kind.value_type if pa.types.is_dictionary(kind) else kind)
    made = made.dictionary_encode() if pa.types.is_dictionary(kind) else made
    rows = pa.table({"c": pa.chunked_array([made.slice(1)])})
    return to_file_schema(rows, arrow_schema(new_schema("t", schema(c=target)))).column("c")[0].as_py()


@for_each(
    [
        (7, pa.int8(), pa.float64(), 7.0),
        (2**53, pa.int64(), pa.float64(), 2.0**53),
        (1.1, pa.float32(), pa.float64(), 1.1),  # through its text, as Hudi
        (Decimal("1.5"), pa.decimal128(5, 1), pa.decimal128(9, 3), Decimal("1.500")),
        ("a", pa.dictionary(pa.int32(), pa.large_string()), pa.string(), "a"),
        ([1, None], pa.large_list(pa.int8()), pa.list_(pa.int64()), [1, None]),
        ([1, 2], pa.list_(pa.int16(), 2), pa.list_(pa.int32()), [1, 2]),
        ([("k", 1)], pa.map_(pa.large_string(), pa.int8()), pa.map_(pa.string(), pa.int64()), [("k", 1)]),
        ({"x": 1}, struct(x=pa.int8()), struct(x=pa.int64(), y=pa.string()), {"x": 1, "y": None}),
        ([{"x": 1.1}], pa.list_(struct(x=pa.float32())), pa.list_(struct(x=pa.float64())), [{"x": 1.1}]),
    ]
)
def test_values_widen_exactly(value: Any, kind: pa.DataType, target: pa.DataType, expected: Any) -> None:
    """Out of the middle of an array."""
    assert one(value, kind, target) == expected
    assert one(None, kind, target) is None


@for_each(
    [
        (2**53 + 1, pa.int64(), pa.float64()),
        (2**24 + 1, pa.int32(), pa.float32()),
        (1, pa.timestamp("ns", "UTC"), TS),
        (2**62, pa.timestamp("s", "UTC"), TS),
        (1, pa.date64(), pa.date32()),
        ({"x": 2**53 + 1}, struct(x=pa.int64()), struct(x=pa.float64())),
        ([2**53 + 1], pa.list_(pa.int64()), pa.list_(pa.float64())),
    ]
)
def test_values_that_would_be_rounded(value: Any, kind: pa.DataType, target: pa.DataType) -> None:
    """Named by column."""
    with pytest.raises(UsageError, match="expected c"):
        one(value, kind, target)


def test_nulls_that_are_not_allowed() -> None:
    """Counted; not those of a record that is null as a whole."""
    target = arrow_schema(
        new_schema(
            "t",
            schema(id_=pa.string(), r=struct(y_=pa.string()), l=pa.list_(pa.field("e", pa.int32(), nullable=False))),
        )
    )
    ints = pa.list_(pa.int32())
    rows = {"id": ["a", "b"], "r": [None, {"y": "q"}], "l": pa.array([[1], None], ints)}
    assert to_file_schema(pa.table(rows), target).equals(pa.table(rows).cast(target))
    for wrong, found in (
        ({"id": pa.array([None, None], pa.string())}, "id: 2 of 2"),
        ({"r": pa.array([{"y": None}, None], struct(y=pa.string()))}, r"r\.y: 1 of 2"),
        ({"l": pa.array([[1, None], None], ints)}, r"l\.element: 1 of 2"),
    ):
        with pytest.raises(UsageError, match=found):
            to_file_schema(pa.table({**rows, **wrong}), target)


def test_columns_are_matched_by_name() -> None:
    """Order, missing and meta columns; a column the schema lacks is not dropped in silence."""
    rows = pa.table({"n": pa.array([1], pa.int8()), "_hoodie_record_key": ["x"], "id": ["a"]})
    target = arrow_schema(TEXT)
    done = to_file_schema(rows.to_batches()[0], pa.schema(arrow_schema(with_meta_columns(TEXT))))
    assert done.schema.equals(target)
    assert done.to_pylist() == [{"id": "a", "n": 1, "r": None, "l": None, "f": None}]
    for more in ({"id": ["a"], "z": [1]}, {"id": ["a"], "n": pa.array([1], pa.int64())}):
        with pytest.raises(UsageError, match="does not cover"):
            to_file_schema(pa.table(more), target)
