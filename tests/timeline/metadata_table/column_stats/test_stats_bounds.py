"""Which stored bounds a filter may trust."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from phantombase.timeline.filter.possible import UNKNOWN, Bounds
from phantombase.timeline.metadata_table.column_stats.bounds import stats_bounds

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


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (record(1, 5, "IntWrapper"), pa.int32()),
        (record(1, 5, "LongWrapper"), pa.int64()),
        (record(1, 5, "IntWrapper"), pa.int64()),
        (record(1, 5, "IntWrapper", named=_DATE), pa.date32()),
        (record(1, 5, "LongWrapper", named=_MICROS), pa.timestamp("us", tz="UTC")),
    ],
)
def test_trusted(stored: dict[str, Any], kind: pa.DataType) -> None:
    assert stats_bounds(stored, kind) == Bounds(low=1, high=5, nulls=False)


def test_nulls_are_counted() -> None:
    assert stats_bounds(record("a", "b", "StringWrapper", nullCount=1), pa.string()) == Bounds(low="a", high="b")


@pytest.mark.parametrize(
    ("stored", "kind"),
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
    ],
)
def test_not_trusted(stored: dict[str, Any] | None, kind: pa.DataType) -> None:
    assert stats_bounds(stored, kind) == UNKNOWN


@pytest.mark.parametrize(("low", "high"), [("a", "\ufffd"), ("\U0001f600", "\ufffd"), ("a", "b\U0001f600")])
def test_texts_whose_order_depends_on_the_writer(low: str, high: str) -> None:
    """Of three texts U+FFFD is the last by UTF-16 units, and an emoji by UTF-8 bytes."""
    assert stats_bounds(record(low, high, "StringWrapper"), pa.string()) == UNKNOWN
