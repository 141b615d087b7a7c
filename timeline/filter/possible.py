"""Gives the values of a filter the types of their columns, evaluates it on rows, and says whether any row of a part of
a table can match it (pure, vectorised).

A value must be one of the column's type: then a comparison is exact. `fare > 10.5` on a column of integers becomes
`fare > 10`, which is the same; `fare = 10.5` there is refused: it is never true. A number compared with a column of
floats becomes the nearest float of that width, so `ratio = 0.1` finds what was written as 0.1.

From the bounds of columns, each part of the filter has a set of possible results: true, false, unknown. The set is
never too small, so "no row can match" is certain, and "some row may match" is not.

A Parquet footer's statistics are not exact bounds of every column. Parquet writers omit NaN from those of floats, so
floats have no upper bound. A column whose type changed since has no bounds. Neither have dates and times of the old
calendar, old timestamps of 96 bits, and decimals of variable length, which a writer may have shortened."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from functools import reduce
from itertools import product
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as types

from ..codec.calendar import old_calendar
from ..codec.stored_names import SAME_NAMES, Names
from ..errors import UsageError
from .tree import And, Compare, Filter, In, IsNull, Like, Not, Op, Or, columns_of

_ROUNDED_DOWN = {Op.GT: Op.GT, Op.GE: Op.GT, Op.LT: Op.LE, Op.LE: Op.LE}
"""The comparison with the next lower value of the column's type, for a given value between two values of the type."""


def bound(node: Filter, schema: pa.Schema) -> Filter:
    """The filter with a `pa.Scalar` of the column's type in place of each value.
    UsageError: no such column, a value that is not of its type, a comparison that the type does not support."""
    if isinstance(node, And | Or):
        return type(node)(tuple(bound(part, schema) for part in node.parts))
    if isinstance(node, Not):
        return Not(bound(node.part, schema))
    if not isinstance(node, Filter):
        raise UsageError("not a filter", expected="a text, like \"fare > 10 and zone = 'north'\"", found=repr(node))
    if node.column not in schema.names:
        raise UsageError("no such column in the filter", expected=", ".join(schema.names), found=node.column)
    kind = schema.field(node.column).type
    if isinstance(node, IsNull):
        return node
    if types.is_nested(kind):
        raise UsageError(
            "a filter cannot compare values of this type", expected="is null", found=f"{node.column}: {kind}"
        )
    if isinstance(node, Like):
        if not types.is_string(kind):
            raise UsageError(
                "`like` needs a column of texts",
                found=f"{node.column}: {kind}",
                todo="Compare other types by =, <, > or between.",
            )
        return node
    if isinstance(node, In):
        return In(node.column, tuple(_scalar(node.column, Op.EQ, value, kind)[1] for value in node.values))
    return Compare(node.column, *_scalar(node.column, node.op, node.value, kind))


def _scalar(column: str, op: Op, value: Any, kind: pa.DataType) -> tuple[Op, pa.Scalar]:
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    known = ((name, convert) for is_of, name, convert in _TYPES if is_of(kind))
    wanted, convert = next(known, ("no value", None))
    try:
        if types.is_integer(kind) or types.is_decimal(kind):
            op, value = _on_the_grid(op, value, kind.scale if types.is_decimal(kind) else 0)
        else:
            if convert is None:
                raise TypeError(value)
            value = convert(value, kind)
        return op, pa.scalar(value, kind)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
        what = "a value of the filter does not have the column's type"
        raise UsageError(what, expected=f"{wanted} for {column} ({kind})", found=repr(value)[:100]) from error


def _on_the_grid(op: Op, value: Any, scale: int) -> tuple[Op, Any]:
    """A number as a multiple of 10**-scale; one in between is rounded down, and the comparison adapted."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal | float):
        raise TypeError(value)
    exact = Decimal(value) if not isinstance(value, float) else Decimal(repr(value))
    units = exact.scaleb(scale, _EXACT)
    floor = math.floor(units)
    if units != floor:
        if op not in _ROUNDED_DOWN:
            raise ValueError(value)
        op = _ROUNDED_DOWN[op]
    return op, floor if scale == 0 else Decimal(floor).scaleb(-scale, _EXACT)


def _float(value: Any, kind: pa.DataType) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError(value)
    number = float(value)
    if math.isnan(number) or (math.isinf(number) and not isinstance(value, float)):
        raise ValueError(value)
    return number


def _unchanged(value: Any, kind: pa.DataType) -> Any:
    if not isinstance(value, bool if types.is_boolean(kind) else str):
        raise TypeError(value)
    return value


def _bytes(value: Any, kind: pa.DataType) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(value)
    if types.is_fixed_size_binary(kind) and len(value) != kind.byte_width:
        raise ValueError(value)
    return value


_FINER = re.compile(r"[.,]\d{7}")


def _date(value: Any, kind: pa.DataType) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise TypeError(value)


def _to_micros(text: str) -> str:
    """ValueError: finer than microseconds, which Python would cut off."""
    if _FINER.search(text):
        raise ValueError(text)
    return text


def _time(value: Any, kind: pa.DataType) -> time:
    found = time.fromisoformat(_to_micros(value)) if isinstance(value, str) else value
    if not isinstance(found, time) or found.tzinfo is not None:
        raise TypeError(value)
    return found


def _moment(value: Any, kind: pa.DataType) -> datetime:
    """A time without a zone gets that of the column: UTC, or none."""
    found = datetime.fromisoformat(_to_micros(value)) if isinstance(value, str) else value
    if not isinstance(found, datetime) or (kind.tz is None and found.tzinfo is not None):
        raise TypeError(value)
    if kind.unit == "ms" and found.microsecond % 1000:
        raise ValueError(value)
    return found.replace(tzinfo=UTC) if kind.tz is not None and found.tzinfo is None else found


_TYPES: tuple[tuple[Callable[[pa.DataType], bool], str, Callable[[Any, pa.DataType], Any] | None], ...] = (
    (types.is_integer, "an integer in its range", None),
    (types.is_decimal, "a number in its range", None),
    (types.is_floating, "a number", _float),
    (types.is_boolean, "true or false", _unchanged),
    (types.is_date32, "'yyyy-MM-dd'", _date),
    (types.is_timestamp, "'yyyy-MM-dd HH:mm:ss'", _moment),
    (types.is_time, "'HH:mm:ss'", _time),
    (types.is_string, "a text", _unchanged),
    (types.is_binary, "X'hex digits'", _bytes),
    (types.is_fixed_size_binary, "X'hex digits'", _bytes),
)
"""Types of columns, what a filter compares them with, and how a value becomes a Python value from which Arrow makes a
scalar of the type without loss; None: see `_on_the_grid`."""


_COMPARE = {
    Op.EQ: pc.equal,
    Op.NE: pc.not_equal,
    Op.LT: pc.less,
    Op.LE: pc.less_equal,
    Op.GT: pc.greater,
    Op.GE: pc.greater_equal,
}


def matching(node: Filter, rows: pa.Table) -> pa.Table:
    """The rows for which a bound filter is true, in their order."""
    return rows.filter(truth(node, rows))


def truth(node: Filter, rows: pa.Table) -> Any:
    """For each row true, false or null (unknown)."""
    if isinstance(node, And):
        return reduce(pc.and_kleene, (truth(part, rows) for part in node.parts))
    if isinstance(node, Or):
        return reduce(pc.or_kleene, (truth(part, rows) for part in node.parts))
    if isinstance(node, Not):
        return pc.invert(truth(node.part, rows))
    column = rows.column(node.column)
    if isinstance(node, IsNull):
        return column.is_null()
    if isinstance(node, Like):
        return pc.match_like(column, node.pattern)
    if isinstance(node, In) and pa.types.is_string(column.type):  # floats have two zeros and NaN
        values = pa.array([value.as_py() for value in node.values], column.type)
        return pc.if_else(column.is_null(), pa.scalar(None, pa.bool_()), pc.is_in(column, value_set=values))
    return _one_of(node, column) if isinstance(node, In) else _compared_rows(node, column)


def _one_of(node: In, column: pa.ChunkedArray) -> Any:
    if pa.types.is_floating(column.type):  # a set of values would distinguish -0.0 from 0.0
        return reduce(pc.or_kleene, (pc.equal(column, value) for value in node.values))
    found = pc.is_in(column, value_set=pa.array(list(node.values), column.type))
    return pc.if_else(column.is_null(), pa.scalar(None, pa.bool_()), found)


def _compared_rows(node: Compare, column: pa.ChunkedArray) -> Any:
    found = _COMPARE[node.op](column, node.value)
    if node.op in (Op.GT, Op.GE) and pa.types.is_floating(column.type):
        return pc.or_kleene(found, pc.is_nan(column))  # NaN is above all numbers
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of a column's values: `low` <= each value <= `high`, None for no bound. Values are as `comparable` gives
    them. `values`, `nulls`: whether there may be values that are not null, or nulls."""

    low: Any = None
    high: Any = None
    values: bool = True
    nulls: bool = True


UNKNOWN = Bounds()
"""Nothing is known."""

BoundsOf: TypeAlias = Callable[[str], Bounds]
"""The bounds of a column, by its name."""

Results: TypeAlias = frozenset[bool | None]


def comparable(value: pa.Scalar) -> Any:
    """A value that Python compares as the filter does: times as integers, texts by code points (their UTF-8 order)."""
    temporal = pa.types.is_temporal(value.type)
    return value.value if temporal else value.as_py()


def may_match(node: Filter, bounds: BoundsOf) -> bool:
    """False only if no row within these bounds matches the bound filter."""
    return True in _results(node, bounds)


def may_match_together(node: Filter, parts: Sequence[BoundsOf]) -> bool:
    """False only if no combination of column values from any of these parts matches."""
    if len(parts) == 1 or len(columns_of(node)) == 1:
        return any(may_match(node, bounds) for bounds in parts)
    if isinstance(node, And):
        return all(may_match_together(one, parts) for one in node.parts)
    return not isinstance(node, Or) or any(may_match_together(one, parts) for one in node.parts)


def _results(node: Filter, bounds: BoundsOf) -> Results:
    if isinstance(node, And | Or):
        chosen = min if isinstance(node, And) else max
        return reduce(
            lambda left, right: frozenset(chosen(pair, key=_RANKS.__getitem__) for pair in product(left, right)),
            (_results(part, bounds) for part in node.parts),
        )
    if isinstance(node, Not):
        return frozenset(None if one is None else not one for one in _results(node.part, bounds))
    found = bounds(node.column)
    if isinstance(node, IsNull):
        return _chosen(true=found.nulls, false=found.values)
    results = _of_values(node, found) if found.values else frozenset()
    return results | ({None} if found.nulls else frozenset())


def _of_values(node: Compare | In | Like, found: Bounds) -> Results:
    if isinstance(node, Compare):
        return _compared_bounds(node.op, comparable(node.value), found)
    if isinstance(node, In):
        each = [_compared_bounds(Op.EQ, comparable(value), found) for value in node.values]
        return _chosen(true=any(True in one for one in each), false=all(False in one for one in each))
    prefix = _prefix(node.pattern)
    within = (found.high is None or found.high >= prefix) and (found.low is None or found.low[: len(prefix)] <= prefix)
    return _chosen(true=within, false=True)


def _compared_bounds(op: Op, value: Any, found: Bounds) -> Results:
    low, high = found.low, found.high
    below = low is None or low < value  # a value below the given one is possible
    above = high is None or high > value
    equal = (low is None or low <= value) and (high is None or high >= value)
    if op is Op.EQ:
        return _chosen(true=equal, false=below or above)
    if op is Op.NE:
        return _chosen(true=below or above, false=equal)
    if op is Op.LT:
        return _chosen(true=below, false=equal or above)
    if op is Op.LE:
        return _chosen(true=below or equal, false=above)
    if op is Op.GT:
        return _chosen(true=above, false=below or equal)
    return _chosen(true=above or equal, false=below)


def _chosen(*, true: bool, false: bool) -> Results:
    return frozenset(result for result, possible in ((True, true), (False, false)) if possible)


_RANKS: Mapping[bool | None, int] = {False: 0, None: 1, True: 2}
"""`and` has the least of the results of its parts, `or` the greatest: SQL's logic of three values."""


def _prefix(pattern: str) -> str:
    """The text with which every match of a `like` pattern begins."""
    for at, character in enumerate(pattern):
        if character in "%_\\":
            return pattern[:at]
    return pattern


_EXACT = Context(prec=100)


def group_bounds(file: pq.ParquetFile, group: int, schema: pa.Schema, names: Names = SAME_NAMES) -> BoundsOf:
    """The bounds of the columns of one row group; `schema`: the table's; `names`: of the columns in the file."""
    metadata = file.metadata
    places = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    stored = file.schema_arrow
    moved = old_calendar(file) is not None

    def bounds(column: str) -> Bounds:
        there, kind = names.get(column, column), schema.field(column).type
        at = None if there is None else places.get(there)
        if at is None or stored.get_field_index(there) < 0 or stored.field(there).type != kind:
            return UNKNOWN
        if moved and pa.types.is_temporal(kind):
            return UNKNOWN
        return _chunk_bounds(metadata.row_group(group).column(at), kind)

    return bounds


def _chunk_bounds(chunk: pq.ColumnChunkMetaData, kind: pa.DataType) -> Bounds:
    found = chunk.statistics
    if found is None:
        return UNKNOWN
    nulls = not found.has_null_count or found.null_count > 0
    if found.has_null_count and found.null_count == chunk.num_values:
        return Bounds(values=False)
    low, high = _ends(found, kind, chunk.physical_type) if found.has_min_max else (None, None)
    return Bounds(low=low, high=high, nulls=nulls)


def _ends(found: pq.Statistics, kind: pa.DataType, physical: str) -> tuple[Any, Any]:
    """The least and the greatest value as `comparable` gives them; None: not known."""
    low, high = found.min_raw, found.max_raw
    if pa.types.is_floating(kind):
        return (None if math.isnan(low) else low), None
    if pa.types.is_decimal(kind):
        if physical == "BYTE_ARRAY":
            return None, None
        return _decimal(low, kind), _decimal(high, kind)
    if pa.types.is_string(kind):
        return _text(low), _text(high)
    return (None, None) if physical == "INT96" else (low, high)


def _decimal(raw: int | bytes, kind: pa.DataType) -> Decimal:
    unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
    return Decimal(unscaled).scaleb(-kind.scale, _EXACT)


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None  # truncated in the middle of a character
