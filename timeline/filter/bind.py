"""Gives the values of a filter the types of their columns (pure).

A value must be one of the column's type: then a comparison is exact. `fare > 10.5` on a column of integers becomes
`fare > 10`, which is the same; `fare = 10.5` there is refused: it is never true. A number compared with a column of
floats becomes the nearest float of that width, so `ratio = 0.1` finds what was written as 0.1."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from ..errors import UsageError
from .tree import And, Compare, Filter, In, IsNull, Like, Not, Op, Or

_EXACT = Context(prec=100)
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
