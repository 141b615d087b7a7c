"""Keys, columns, ranges and records of column statistics in the metadata table."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.codec.bloom import ALWAYS_TRUE
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.filter.possible import UNKNOWN, Bounds
from phantombase.timeline.metadata_table.column_range import ColumnRange, merged_ranges, ranges_of_rows, stats_bounds
from phantombase.timeline.metadata_table.indexed_columns import (
    IndexedColumn,
    IndexVersion,
    Kind,
    ValueType,
    columns_to_index,
    index_version,
)
from phantombase.timeline.metadata_table.measure import (
    bloom_filter_record,
    column_stats_records,
    partition_stats_records,
    ranges_of_log,
    ranges_of_parquet,
)
from phantombase.timeline.metadata_table.records.keys import (
    bloom_filter_key,
    column_stats_key,
    file_group_index,
    partition_stats_key,
)
from tests.support.builders import avro_block, avro_schema, delete_block
from tests.support.selection import for_each

V1, V2 = IndexVersion.V1, IndexVersion.V2
MODEL = "org.apache.hudi.avro.model"


def test_keys_are_hudis() -> None:
    """As Hudi 1.2.0 wrote them for a table without partitions."""
    assert partition_stats_key("_hoodie_commit_time", "even") == "JBBzUToHtLc=1fCLNkL5ILM="
    assert column_stats_key("_hoodie_commit_time", "", "f").startswith("JBBzUToHtLc=FXThHwelITM=")
    assert bloom_filter_key("", "f").startswith("FXThHwelITM=")
    assert column_stats_key("c", "", "f") == column_stats_key("c", ".", "f")


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 50))
def test_file_groups_are_by_javas_string_hash(key: str, count: int) -> None:
    hashed = 0
    units = key.encode("utf-16-be")
    for i in range(0, len(units), 2):
        hashed = (31 * hashed + int.from_bytes(units[i : i + 2], "big")) % 2**32
    assert file_group_index(key, count) == abs(hashed - 2**32 if hashed >= 2**31 else hashed) % count


def test_the_hash_that_has_no_absolute_value() -> None:
    """-2**31 stays what it is in Java's Math.abs, and its remainder is made positive afterwards."""
    assert file_group_index("polygenelubricants", 10) == 8


META = [(f"_hoodie_{name}", ["null", "string"]) for name in ("commit_time", "record_key", "partition_path")]
ENUM = {"type": "enum", "name": "e", "symbols": ["A"]}
WIDE = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18}
STRUCT = {"type": "record", "name": "s", "fields": [{"name": "a", "type": ["null", "int"]}]}
LIST = {"type": "array", "items": "int"}


def names(schema: str, definitions: bytes | None, version: int) -> list[str]:
    """Names of the columns that get statistics."""
    return [column.name for column in columns_to_index(schema, definitions, version)]


def test_columns_that_hudi_takes_by_default() -> None:
    many = [(f"c{i:02}", "long") for i in range(40)]
    schema = avro_schema(*META, ("l", LIST), ("e", ENUM), ("w", WIDE), ("s", STRUCT), *many)
    meta = ["_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_record_key"]
    assert names(schema, None, 9) == [*meta, "w", *(name for name, _ in many[:31])]
    assert names(schema, None, 8) == [*meta, *(name for name, _ in many[:32])]
    assert names(schema, None, 6) == [*(name for name, _ in META), "w", *(name for name, _ in many)]


def definitions_of(*fields: str, version: str | None = "V2") -> bytes:
    """An `index.json`."""
    definition = {"sourceFields": list(fields), **({"version": version} if version else {})}
    return json.dumps({"indexDefinitions": {"column_stats": definition}}).encode()


def test_columns_that_are_written_down_come_too() -> None:
    """Through structs; those that are no more are left out."""
    schema = avro_schema(("a", "int"), ("s", STRUCT))
    found = columns_to_index(schema, definitions_of("s.a", "gone", "a.b"), 9)
    assert found == (IndexedColumn("s.a", ValueType(Kind.INT)), IndexedColumn("a", ValueType(Kind.INT)))


def test_all_columns_where_hudi_is_told_to_take_more_than_by_default() -> None:
    """Hudi will take one that a write of ours adds, too."""
    many = [f"c{i:02}" for i in range(40)]
    schema = avro_schema(*((name, "long") for name in many))
    assert sorted(names(schema, definitions_of(*many[:39]), 9)) == many
    assert names(schema, definitions_of(*many[:32]), 9) == many[:32]


def test_index_version_is_written_down_or_the_tables() -> None:
    assert [index_version(None, version) for version in (6, 8, 9)] == [V1, V1, V2]
    assert index_version(definitions_of(version="V1"), 9) is V1
    assert index_version(definitions_of(version=None), 8) is V1


@for_each([b"", b"[]", b'{"indexDefinitions": {"column_stats": 1}}', definitions_of(version="V3")])
def test_damaged_definitions_are_an_error(content: bytes) -> None:
    with pytest.raises(MalformedError, match="index"):
        columns_to_index(avro_schema(("a", "int")), content, 9)


def indexed(rows: pa.Table, *more: IndexedColumn) -> list[IndexedColumn]:
    """All columns of a table that can have statistics."""
    kinds = [(field.name, ValueType.of(field.type)) for field in rows.schema]
    return [*(IndexedColumn(name, kind) for name, kind in kinds if kind is not None), *more]


def range_of(values: pa.Array) -> ColumnRange:
    """The range of one column."""
    rows = pa.table({"c": values})
    (found,) = ranges_of_rows(rows, indexed(rows))
    return found


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_nan_has_bounds_that_spark_understands(kind: pa.DataType) -> None:
    """Spark has it above all numbers, Arrow leaves it out, and Spark's cache takes a bound of NaN for none."""
    found = range_of(pa.array([1.0, math.nan, None, -3.5], kind))
    assert (found.low, found.high, found.nulls, found.values) == (-3.5, math.inf, 1, 4)
    both = found.merged(range_of(pa.array([9.0], kind)))
    assert (both.low, both.high) == (-3.5, math.inf)
    for values in ([math.nan], [math.inf, math.nan]):
        found = range_of(pa.array(values, kind))
        assert isinstance(found.low, float)
        assert math.isfinite(found.low)
        assert found.high == math.inf


@pytest.mark.parametrize("zeros", [[0.0], [-0.0], [-0.0, 0.0]])
def test_zero_bounds_leave_no_zero_out(zeros: list[float]) -> None:
    found = range_of(pa.array(zeros))
    assert (str(found.low), str(found.high)) == ("-0.0", "0.0")


def test_text_is_ordered_by_utf8_bytes() -> None:
    """Spark's order; UTF-16 units would put U+FFFD above U+1F600."""
    found = range_of(pa.array(["\U0001f600", "\ufffd"]))
    assert (found.low, found.high) == ("\ufffd", "\U0001f600")


def test_a_null_struct_has_a_null_field() -> None:
    rows = pa.table({"s": [{"a": 1}, None, {"a": None}]})
    (found,) = ranges_of_rows(rows, [IndexedColumn("s.a", ValueType(Kind.LONG))])
    assert (found.low, found.high, found.nulls, found.values) == (1, 1, 2, 3)


def test_a_column_that_is_not_there_is_null() -> None:
    (found,) = ranges_of_rows(pa.table({"a": [1, 2]}), [IndexedColumn("b", ValueType(Kind.INT))])
    assert (found.low, found.high, found.nulls, found.values) == (None, None, 2, 2)


def random_rows(rng: random.Random, rows: int) -> pa.Table:
    """A column of every type."""

    def some(make: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.2 else make() for _ in range(rows)], kind)

    def number(digits: int) -> Any:
        return lambda: Decimal(rng.randrange(-(10**digits) + 1, 10**digits)).scaleb(-2)

    floats = (math.nan, 0.0, -0.0, math.inf, -math.inf, 1.5, -2.5)
    return pa.table(
        {
            "flag": some(lambda: rng.random() < 0.5, pa.bool_()),
            "int": some(lambda: rng.randrange(-(2**31), 2**31), pa.int32()),
            "long": some(lambda: rng.randrange(-(2**63), 2**63), pa.int64()),
            "float": some(lambda: rng.choice(floats), pa.float32()),
            "double": some(lambda: rng.choice(floats), pa.float64()),
            "text": some(lambda: "".join(rng.choices("aé\ufffd\U0001f600", k=rng.randrange(3))), pa.string()),
            "long_text": some(lambda: rng.choice("ab") * 9000, pa.string()),
            "bytes": some(lambda: rng.randbytes(rng.randrange(3)), pa.binary()),
            "fixed": some(lambda: rng.randbytes(3), pa.binary(3)),
            "day": some(lambda: rng.randrange(-9999, 9999), pa.date32()),
            "time": some(lambda: rng.randrange(86_400_000), pa.time32("ms")),
            "at": some(lambda: rng.randrange(-(10**15), 10**15), pa.timestamp("us", tz="UTC")),
            "local": some(lambda: rng.randrange(-(10**12), 10**12), pa.timestamp("ms")),
            "dec": some(number(9), pa.decimal128(9, 2)),
            "wide": some(number(38), pa.decimal128(38, 2)),
            "struct": some(
                lambda: {"x": rng.choice((None, 1, 2)), "y": math.nan}, pa.struct([("x", "i4"), ("y", "f8")])
            ),
        }
    )


@for_each(range(20))
def test_files_have_the_ranges_of_their_rows(seed: int) -> None:
    """Whatever a footer leaves out; and JSON loses nothing. Parametrised by its seed."""
    rng = random.Random(seed)
    rows = random_rows(rng, rng.randrange(1, 12))
    struct = [IndexedColumn("struct.x", ValueType(Kind.INT)), IndexedColumn("struct.y", ValueType(Kind.DOUBLE))]
    columns = indexed(rows, *struct, IndexedColumn("gone", ValueType(Kind.DATE)))
    whole = ranges_of_rows(rows, columns)
    cut = rng.randrange(len(rows) + 1)
    parts = [ranges_of_rows(part, columns) for part in (rows.slice(0, cut), rows.slice(cut))]
    assert repr(merged_ranges(parts)) == repr(whole)
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        row_group_size=rng.randrange(1, 12),
        write_statistics=rng.random() < 0.8,
        store_decimal_as_integer=rng.random() < 0.5,
    )
    found = ranges_of_parquet(pa.BufferReader(sink.getvalue()), "f", columns)
    assert repr(tuple(replace(r, bytes_=0, uncompressed=0) for r in found)) == repr(whole)
    assert repr([ColumnRange.from_json(json.loads(json.dumps(r.to_json()))) for r in whole]) == repr(list(whole))


def test_a_file_of_another_type_is_read() -> None:
    """Days are days whatever a footer says them in."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"c": pa.array([1, 2], pa.int16())}), sink)
    (found,) = ranges_of_parquet(pa.BufferReader(sink.getvalue()), "f", [IndexedColumn("c", ValueType(Kind.LONG))])
    assert (found.low, found.high) == (1, 2)


def test_ranges_of_a_log_file_are_those_of_all_its_rows() -> None:
    """Deletes have none."""
    text = avro_schema(("id", "string"), ("n", ["null", "int"]))
    data = avro_block("1", text, [{"id": "b", "n": 5}, {"id": "a", "n": None}]) + delete_block("2", [("zz", None)])
    data += avro_block("3", text, [{"id": "c", "n": -1}])
    columns = [IndexedColumn("id", ValueType(Kind.STRING)), IndexedColumn("n", ValueType(Kind.INT))]
    schema = pa.schema([("id", pa.string()), ("n", pa.int32())])
    ids, ns = ranges_of_log(pa.BufferReader(data), "log", columns, schema)
    assert (ids.low, ids.high, ids.nulls, ids.values) == ("a", "c", 0, 3)
    assert (ns.low, ns.high, ns.nulls, ns.values) == (-1, 5, 1, 3)
    (nothing,) = ranges_of_log(pa.BufferReader(delete_block("2", [("zz", None)])), "log", columns[:1], schema)
    assert (nothing.low, nothing.values) == (None, 0)


def between(kind: ValueType, low: Any, high: Any) -> ColumnRange:
    """A range of two values."""
    return ColumnRange(column="c", type=kind, low=low, high=high, nulls=0, values=2)


def bounds(found: ColumnRange, version: IndexVersion) -> tuple[Any, Any] | None:
    """As a record has them."""
    records = column_stats_records("p", "f", [found], version)
    stats = records[0][1]["ColumnStatsMetadata"] if records else None
    return stats and (stats["minValue"], stats["maxValue"])


def test_bounds_are_wrapped_by_type_and_version() -> None:
    day = between(ValueType(Kind.DATE), 1, 2)
    assert bounds(day, V1) == ((f"{MODEL}.DateWrapper", {"value": 1}), (f"{MODEL}.DateWrapper", {"value": 2}))
    assert bounds(day, V2) == ((f"{MODEL}.IntWrapper", {"value": 1}), (f"{MODEL}.IntWrapper", {"value": 2}))
    cents = between(ValueType(Kind.DECIMAL, 10, 2), -1, 128)
    assert bounds(cents, V2) == (
        (f"{MODEL}.BytesWrapper", {"value": b"\xff"}),
        (f"{MODEL}.BytesWrapper", {"value": b"\x00\x80"}),
    )
    ((_, record),) = column_stats_records("p", "f", [cents], V2)
    assert record["ColumnStatsMetadata"]["valueType"] == {"typeOrdinal": 10, "additionalInfo": "10,2"}


def test_decimals_that_version_1_cannot_store_get_wider_bounds_or_none() -> None:
    """Without a bound in one column, the file has no records at all: no reader may leave it out."""
    fine = between(ValueType(Kind.DECIMAL, 38, 18), -1, 1)  # 10**-18 on both sides of zero
    low, high = bounds(fine, V1) or (None, None)
    assert low == (f"{MODEL}.DecimalWrapper", {"value": b"\xff"})
    assert high == (f"{MODEL}.DecimalWrapper", {"value": b"\x01"})
    large = between(ValueType(Kind.DECIMAL, 38, 0), 0, 10**15)
    small = replace(fine, column="d")
    assert column_stats_records("p", "f", [small, large], V1) == []
    assert len(column_stats_records("p", "f", [small, large], V2)) == 2
    assert [r["ColumnStatsMetadata"]["columnName"] for _, r in partition_stats_records("p", [small, large], V1)] == [
        "d"
    ]


@pytest.mark.parametrize("kind", [Kind.TIMESTAMP_MILLIS, Kind.LOCAL_TIMESTAMP_MILLIS])
def test_milliseconds_are_within_their_bounds_as_microseconds_too(kind: Kind) -> None:
    """Hudi 0.15 reads version 1's bounds of a timestamp as microseconds."""
    past, future = between(ValueType(kind), -5, -1), between(ValueType(kind), 7, 10**18)
    assert bounds(past, V1) == ((f"{MODEL}.LongWrapper", {"value": -5000}), (f"{MODEL}.LongWrapper", {"value": -1}))
    assert bounds(future, V1) == (
        (f"{MODEL}.LongWrapper", {"value": 7}),
        (f"{MODEL}.LongWrapper", {"value": 2**63 - 1}),
    )
    assert bounds(past, V2) == ((f"{MODEL}.LongWrapper", {"value": -5}), (f"{MODEL}.LongWrapper", {"value": -1}))


def test_partition_records_widen_what_is_there() -> None:
    """They are not tight; a column without rows has nothing to add."""
    there, empty = (between(ValueType(Kind.INT), 1, 2), replace(between(ValueType(Kind.INT), None, None), values=0))
    ((key, record),) = partition_stats_records("p", [there, replace(empty, column="d")], V2)
    assert key == partition_stats_key("c", "p")
    assert record["type"] == 6
    assert record["ColumnStatsMetadata"]["fileName"] == "p"
    assert record["ColumnStatsMetadata"]["isTightBound"] is False


def test_filter_record() -> None:
    key, record = bloom_filter_record("", "f", "1", ALWAYS_TRUE)
    assert key == bloom_filter_key("", "f")
    assert record["BloomFilterMetadata"] == {
        "type": "SIMPLE",
        "timestamp": "1",
        "bloomFilter": ALWAYS_TRUE.text.encode(),
        "isDeleted": False,
    }


# Which stored bounds a filter may trust.


_DATE, _MILLIS, _MICROS = 12, 15, 16


def record(low: Any, high: Any, wrapper: str, *, named: int | None = None, **other: Any) -> dict[str, Any]:
    values = {
        "minValue": (f"org.apache.hudi.avro.model.{wrapper}", {"value": low}),
        "maxValue": (f"org.apache.hudi.avro.model.{wrapper}", {"value": high}),
        "valueCount": 10,
        "nullCount": 0,
        "isDeleted": False,
        "valueType": None if named is None else {"typeOrdinal": named, "additionalInfo": None},
    }
    return {"ColumnStatsMetadata": {**values, **other}}


@for_each(
    [
        (record(1, 5, "IntWrapper"), pa.int32()),
        (record(1, 5, "LongWrapper"), pa.int64()),
        (record(1, 5, "IntWrapper"), pa.int64()),
        (record(1, 5, "IntWrapper", named=_DATE), pa.date32()),
        (record(1, 5, "LongWrapper", named=_MICROS), pa.timestamp("us", tz="UTC")),
    ]
)
def test_trusted(stored: dict[str, Any], kind: pa.DataType) -> None:
    assert stats_bounds(stored, kind) == Bounds(low=1, high=5, nulls=False)


def test_nulls_are_counted() -> None:
    assert stats_bounds(record("a", "b", "StringWrapper", nullCount=1), pa.string()) == Bounds(low="a", high="b")


@for_each(
    [
        (None, pa.int32()),
        ({"ColumnStatsMetadata": None}, pa.int32()),
        (record(1, 5, "IntWrapper", isDeleted=True), pa.int32()),
        (record(1, 5, "IntWrapper", valueCount=-1), pa.int32()),
        (record(1, 5, "IntWrapper", nullCount=None), pa.int32()),
        (record(1, 5, "IntWrapper", minValue=None), pa.int32()),
        (record(1, 5, "LongWrapper"), pa.int32()),
        (record(1, 5, "LongWrapper"), pa.date32()),
        (record(1, 5, "LongWrapper"), pa.timestamp("us", tz="UTC")),
        (record(1, 5, "LongWrapper", named=_MILLIS), pa.timestamp("us", tz="UTC")),
        (record(1.0, 5.0, "DoubleWrapper"), pa.float64()),
        (record(b"\1", b"\5", "BytesWrapper"), pa.decimal128(10, 2)),
        (record(1, 5, "IntWrapper"), pa.string()),
    ]
)
def test_not_trusted(stored: dict[str, Any] | None, kind: pa.DataType) -> None:
    assert stats_bounds(stored, kind) == UNKNOWN


@pytest.mark.parametrize(("low", "high"), [("a", "\ufffd"), ("\U0001f600", "\ufffd"), ("a", "b\U0001f600")])
def test_texts_whose_order_depends_on_the_writer(low: str, high: str) -> None:
    """Of three texts U+FFFD is the last by UTF-16 units, and an emoji by UTF-8 bytes."""
    assert stats_bounds(record(low, high, "StringWrapper"), pa.string()) == UNKNOWN
