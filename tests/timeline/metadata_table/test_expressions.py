"""Bounds of expressions hold in each time zone and for each letter, and what has no sure bounds is said."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from phantombase.timeline.metadata_table.column_range import merged_ranges, ranges_of_rows
from phantombase.timeline.metadata_table.expression_index import LAST_TEXT, Expression, expressions_in

NAME = "expr_index_x"
T = pa.timestamp("us", "UTC")


def said(function: str, type_: pa.DataType, **options: str) -> Expression | None:
    one = {"indexType": "column_stats", "indexFunction": function, "sourceFields": ["x"], "version": "V2"}
    definitions = {NAME: {**one, "indexOptions": {"expr": function, **options}}}
    schema = mock.Mock(arrow=pa.schema([("x", type_)]), defaults={("y",): 1})
    return expressions_in(definitions, [NAME], schema).get(NAME)


def bounds(function: str, values: list[Any], type_: pa.DataType, **options: str) -> tuple[Any, Any, bool]:
    column = said(function, type_, **options)
    assert column is not None
    (found,) = ranges_of_rows(pa.table({"x": pa.array(values, type_)}), [column])
    return found.low, found.high, found.unknown


def test_texts() -> None:
    text = pa.string()
    assert bounds("lower", ["Rome", None, "OSLO"], text) == ("oslo", "rome", False)
    assert bounds("upper", ["Rome", "oslo"], text) == ("OSLO", "ROME", False)
    assert bounds("lower", ["Rome", "İ"], text) == ("", LAST_TEXT, False), "letters as Java's version has them"
    assert bounds("trim", ["  b\t ", "a "], text) == ("a", "b\t", False)
    assert bounds("rtrim", [" b ", "a "], text) == (" b", "a", False)
    assert bounds("length", ["é\U0001f600", "abc"], text) == (2, 3, False)
    assert bounds("identity", ["\ud7ff", "\uff01"], text) == ("\ud7ff", "\uff01", False)
    assert bounds("lower", [None, None], text) == (None, None, False)
    for beyond in ("\U0001f600", "\uffff"):
        assert bounds("identity", ["a", beyond], text) == (None, None, True)
    column = said("lower", text)
    assert column is not None
    parts = [ranges_of_rows(pa.table({"x": values}), [column]) for values in (["a"], ["\U0001f600"], ["b"])]
    assert merged_ranges(parts)[0].unknown
    assert ranges_of_rows(pa.table({"x": [1, 2]}), [column])[0].unknown, "a file from before the column was a text"


def test_days() -> None:
    days = [date(2021, 2, 3), date(2021, 4, 5)]
    number = [(day - date(1970, 1, 1)).days for day in days]
    day = pa.date32()
    assert bounds("year", days, day) == (2021, 2021, False)
    assert bounds("month", days, day) == (2, 4, False)
    assert bounds("month", [date(2020, 12, 1), *days], day) == (1, 12, False)
    assert bounds("day", days, day) == (1, 31, False)
    assert bounds("day", days[:1], day) == (3, 3, False)
    assert bounds("to_date", days, day) == (*number, False)
    assert bounds("date_sub", days, day, days="-2") == (number[0] + 2, number[1] + 2, False)
    assert bounds("date_format", days, day, format="yyyy-MM-dd") == ("2021-02-03", "2021-04-06", False), "Samoa"
    assert bounds("date_format", days, day, format="yyyyMMdd HH") == ("20210203 00", "20210406 23", False)
    assert bounds("year", [date(1200, 1, 1)], day) == (-(2**31), 2**31 - 1, False), "another calendar"
    assert bounds("date_format", [date(1200, 1, 1)], day, format="yyyy") == ("", LAST_TEXT, False)


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "America/New_York"])
def test_times_in_each_zone(zone: str) -> None:
    start = datetime(2020, 12, 30, 1, tzinfo=UTC)
    for hours in range(0, 24 * 70, 11):
        moments = [start + timedelta(hours=hours), start + timedelta(hours=hours + 3)]
        local = [one.astimezone(ZoneInfo(zone)) for one in moments]
        for function in ("year", "month", "day", "hour"):
            low, high, _ = bounds(function, moments, T)
            assert all(low <= getattr(one, function) <= high for one in local)
        low, high, _ = bounds("date_format", moments, T, format="yyyy-MM-dd HH:mm")
        assert all(low <= f"{one:%Y-%m-%d %H:%M}" <= high for one in local)
        low, high, _ = bounds("from_unixtime", [int(one.timestamp()) for one in moments], pa.int64())
        assert all(low <= f"{one:%Y-%m-%d %H:%M:%S}" <= high for one in local)
        low, high, _ = bounds("to_date", moments, T)
        assert all(low <= (one.date() - date(1970, 1, 1)).days <= high for one in local)
    assert bounds("to_date", [datetime(1500, 1, 1, tzinfo=UTC)], T) == (None, None, True)


def test_what_is_left_to_hudi() -> None:
    for function, type_, options in (
        ("regexp_replace", pa.string(), {"pattern": "a", "replacement": "b"}),
        ("trim", pa.string(), {"trimString": "x"}),
        ("substring", pa.string(), {"pos": "1", "len": "2"}),
        ("identity", pa.float64(), {}),
        ("date_format", T, {"format": "dd-MM-yyyy"}),
        ("date_format", T, {"format": "yyyy-DDD"}),
        ("to_date", pa.string(), {}),
        ("to_date", T, {"format": "yyyy"}),
        ("lower", pa.int64(), {}),
    ):
        assert said(function, type_, **options) is None
    one = {"indexType": "column_stats", "indexFunction": "lower", "sourceFields": ["x"], "version": "V2"}
    schema = mock.Mock(arrow=pa.schema([("x", pa.string())]), defaults={})
    for name in ("indexFunction", "sourceFields", "version", "indexOptions"):  # no definition of Hudi
        assert expressions_in({NAME: {**one, name: [["x"]]}}, [NAME], schema) == {}
