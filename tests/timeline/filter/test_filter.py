"""The parts of a filter: what its text may say, the types of its values, and what bounds of columns rule out."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phantombase.timeline.errors import UsageError
from phantombase.timeline.filter.possible import (
    Bounds,
    bound,
    comparable,
    matching,
    may_match,
    may_match_together,
    truth,
)
from phantombase.timeline.filter.tree import And, Compare, In, IsNull, Like, Not, Op, only_values, parse_filter
from tests.support.drawn_partitions import random_filter
from tests.support.places import SEED
from tests.support.selection import for_each

SCHEMA = pa.schema(
    [
        ("n", pa.int32()),
        ("big", pa.int64()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("t", pa.string()),
        ("raw", pa.binary()),
        ("two", pa.binary(2)),
        ("ok", pa.bool_()),
        ("d", pa.date32()),
        ("ms", pa.timestamp("ms", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("at", pa.time64("us")),
        ("dec", pa.decimal128(6, 2)),
        ("list", pa.list_(pa.int32())),
    ]
)


@for_each(
    [
        ("n > -10", Compare("n", Op.GT, -10)),
        ("10.5 <= n", Compare("n", Op.GE, Decimal("10.5"))),
        ("ok", Compare("ok", Op.EQ, True)),
        ("t = 'it''s'", Compare("t", Op.EQ, "it's")),
        ('"odd name" in (1, 2)', In("odd name", (1, 2))),
        ("not t like 'a%'", Not(Like("t", "a%"))),
        ("t is not null", Not(IsNull("t"))),
        ("n between 1 and 2", And((Compare("n", Op.GE, 1), Compare("n", Op.LE, 2)))),
        ("raw = X'00ff'", Compare("raw", Op.EQ, b"\x00\xff")),
        ("d = date '2026-01-02'", Compare("d", Op.EQ, "2026-01-02")),
    ]
)
def test_text_becomes_a_tree(text: str, tree: Any) -> None:
    assert parse_filter(text) == tree


@for_each(
    [
        "",
        "n >",
        "n = null",
        "n in (1, null)",
        "n = 1; drop table t",
        "n = big",
        "1 = 1",
        "n in (select 1)",
        "abs(n) = 1",
        "n = 1 order by n",
        "n = 1) or (t = 'a'",
        "t ilike 'x'",
        "s.t = 1",
        "n = 1 + 1",
        "t like 'x' escape '!'",
        "n in ()",
        "n is 1",
        "t = 'x",
        "n = cast('1' as int)",
        "t = 'x' collate nocase",
        "n = 1 t",
        "select 1",
        "(" * 300 + "ok" + ")" * 300,
        "n between symmetric 2 and 1",
        "n = :x",
        "case when ok then ok end",
        "n = 1 union select 2",
        "t = t2 and",
        "x" * 200000,
    ]
)
def test_other_text_is_refused(text: str) -> None:
    """Never read as something else, never an error from below."""
    with pytest.raises(UsageError):
        parse_filter(text)


@for_each([("n > 1.5", [2]), ("n >= 1.5", [2]), ("n < 1.5", [-2, 1]), ("n <= -1.5", [-2]), ("n <= 1", [-2, 1])])
def test_a_number_between_two_integers_keeps_its_meaning(text: str, kept: list[int]) -> None:
    rows = pa.table({"n": pa.array([-2, 1, 2, None], pa.int32())})
    assert matching(bound(parse_filter(text), rows.schema), rows)["n"].to_pylist() == kept


@for_each(
    [
        "n = 1.5",
        "n = 3000000000",
        "n = 'x'",
        "n = true",
        "t = 1",
        "ok = 1",
        "ok > 'x'",
        "d = '2026-13-01'",
        "d = 5",
        "ms = '2026-01-01 00:00:00.0005'",
        "local = '2026-01-01 00:00:00+02:00'",
        "dec = 1.001",
        "dec > 10000",
        "x = 1e999",
        "raw = 'a'",
        "two = X'00'",
        "at = '25:00:00'",
        "list = 1",
        "list in (1)",
        "n like 'a'",
        "nope = 1",
        "t",
    ]
)
def test_a_value_of_another_type_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        bound(parse_filter(text), SCHEMA)


def test_values_take_their_columns_types() -> None:
    """A float the nearest one, a moment without a zone that of the column."""
    assert bound(parse_filter("f = 0.1"), SCHEMA) == Compare("f", Op.EQ, pa.scalar(0.1, pa.float32()))
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for text in ("ms = '2026-01-01 12:00:00'", "ms = '2026-01-01T14:00:00+02:00'"):
        assert bound(parse_filter(text), SCHEMA) == Compare("ms", Op.EQ, pa.scalar(noon, pa.timestamp("ms", tz="UTC")))
    with pytest.raises(UsageError, match="does not have the column's type"):
        bound(Compare("x", Op.EQ, math.nan), SCHEMA)


def test_nan_is_above_all_numbers_and_nulls_are_unknown() -> None:
    rows = pa.table({"x": [1.0, math.nan, None, -0.0]})
    counts = {
        text: matching(bound(parse_filter(text), rows.schema), rows).num_rows
        for text in ("x > 0.5", "not x <= 0.5", "x >= 1e300", "x < 1e300", "x = 0", "x != 1", "not x = 1", "x is null")
    }
    assert counts == {
        "x > 0.5": 2,
        "not x <= 0.5": 2,
        "x >= 1e300": 1,
        "x < 1e300": 2,
        "x = 0": 1,
        "x != 1": 2,
        "not x = 1": 2,
        "x is null": 1,
    }


@for_each([f for f in SCHEMA if not pa.types.is_nested(f.type)])
def test_in_is_equal_to_any(field: pa.Field) -> None:
    """For every type; unknown for null."""
    zero = pa.scalar(0, pa.int64())
    values = {"t": "a", "raw": b"a", "two": b"ab", "ok": True, "dec": Decimal("1.25")}
    value = pa.scalar(values[field.name], field.type) if field.name in values else _cast(zero, field.type)
    rows = pa.table({"c": pa.array([value, None], field.type)})
    assert truth(In("c", (value,)), rows).to_pylist() == [True, None]
    assert truth(In("c", (value,)), rows).equals(truth(Compare("c", Op.EQ, value), rows))


def _cast(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar:
    return (value.cast(pa.int32()) if pa.types.is_date32(kind) else value).cast(kind)


def test_only_values() -> None:
    """The values that a row must have: only if every way to match says so."""
    cases = {
        "n = 1": {1},
        "n in (1, 2) and n in (2, 3)": {2},
        "n = 1 or n = 2": {1, 2},
        "n = 1 and ok": {1},
        "n = 1 or ok": None,
        "not n = 1": None,
        "n > 1": None,
    }
    assert {text: only_values(parse_filter(text), "n") for text in cases} == cases


def test_what_bounds_rule_out_is_not_there() -> None:
    """Random rows and filters: whatever matches is possible by the rows' bounds, also by wider ones."""
    random = Random(SEED)
    ruled_out = 0
    for _ in range(400):
        count = random.randint(1, 4)
        rows = pa.table(
            {
                "n": pa.array([random.choice((None, 1, 2, 3, 9)) for _ in range(count)], pa.int32()),
                "t": pa.array(
                    [random.choice((None, "", "a", "ab", "b", "\U0001f600", "ﷺ")) for _ in range(count)], pa.string()
                ),
                "dec": pa.array(
                    [random.choice((None, Decimal("1.00"), Decimal("-1.25"))) for _ in range(count)],
                    pa.decimal128(6, 2),
                ),
            }
        )
        other = rows.slice(random.randrange(count)) if random.random() < 0.5 else rows
        node = bound(parse_filter(random_filter(random, rows)), rows.schema)
        possible = may_match(node, lambda name, rows=other: _bounds(rows.column(name)))  # type: ignore[misc]
        assert possible or not matching(node, other).num_rows, f"seed {SEED}: {node} on {other.to_pylist()}"
        assert may_match(node, lambda name: Bounds()) or not possible
        ruled_out += not possible
    assert ruled_out > 20


def test_what_parts_rule_out_is_not_in_rows_put_together() -> None:
    """Each column of a row may come from another file; a part alone rules out what it did."""
    random, ruled_out = Random(SEED), 0
    for _ in range(400):
        parts = [
            pa.table(
                {
                    "n": pa.array([random.choice((None, 1, 2, 3, 9)) for _ in range(2)], pa.int32()),
                    "t": pa.array([random.choice((None, "a", "ab", "b")) for _ in range(2)], pa.string()),
                }
            )
            for _ in range(random.randint(1, 3))
        ]
        node = bound(parse_filter(random_filter(random, parts[0])), parts[0].schema)
        bounds = [lambda name, rows=rows: _bounds(rows.column(name)) for rows in parts]
        possible = may_match_together(node, bounds)
        n, t = (pa.chunked_array([c for rows in parts for c in rows.column(name).chunks]) for name in ("n", "t"))
        pairs = [(x, y) for x in n for y in t]
        mixed = pa.table({"n": [x.as_py() for x, _ in pairs], "t": [y.as_py() for _, y in pairs]}, parts[0].schema)
        assert possible or not matching(node, mixed).num_rows, f"seed {SEED}: {node} on {mixed.to_pylist()}"
        assert len(parts) > 1 or possible == may_match(node, bounds[0])
        ruled_out += not possible
    assert ruled_out > 20


def _bounds(column: pa.ChunkedArray) -> Bounds:
    ends = pc.min_max(column)
    if column.null_count == len(column):
        return Bounds(values=False)
    return Bounds(low=comparable(ends["min"]), high=comparable(ends["max"]), nulls=column.null_count > 0)
