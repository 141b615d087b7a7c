"""Filters from text: the conditions of SQL's WHERE, as far as `tree` has them.

condition   column op value | column | column [not] in (value, ...) | column [not] between value and value
            column [not] like 'text' | column is [not] null | not condition | condition and|or condition | (condition)
op          = != <> < <= > >=
value       number | 'text' | true | false | date 'yyyy-MM-dd' | timestamp 'yyyy-MM-dd HH:mm:ss' | X'hex digits'
column      name, or "name" or `name` if it is no plain word
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from ..errors import UsageError
from .tree import And, Compare, Filter, In, IsNull, Like, Not, Op, Or

_DIALECT = "sqlite"
"""The one dialect with the standard's quotes in texts, both kinds of quotes around names, and X'00'."""

_TEXT_MAX = 100_000
_DEPTH_MAX = 100


def parse_filter(text: str) -> Filter:
    """The filter that a text says. UsageError: not a condition, or one that reads do not have."""
    if len(text) > _TEXT_MAX:
        raise UsageError("the filter is too long", expected=f"at most {_TEXT_MAX} characters", found=str(len(text)))
    import sqlglot  # late: most reads have no filter
    from sqlglot.errors import ErrorLevel, SqlglotError
    from sqlglot.expressions import Condition

    try:
        parsed = sqlglot.parse_one(text, into=Condition, dialect=_DIALECT, error_level=ErrorLevel.RAISE)
        return _Reader(text).condition(parsed, 0)
    except (SqlglotError, RecursionError, ValueError, ArithmeticError) as error:
        raise UsageError(
            "not a filter",
            expected="conditions like: fare > 10 and zone in ('a', 'b') and note is not null",
            found=text[:200],
        ) from error


class _Reader:
    """Turns the parser's tree into ours; what has no place there is refused by name."""

    def __init__(self, text: str) -> None:
        from sqlglot import expressions

        self._text = text
        self._e = e = expressions
        self._ops = {e.EQ: Op.EQ, e.NEQ: Op.NE, e.LT: Op.LT, e.LTE: Op.LE, e.GT: Op.GT, e.GTE: Op.GE}

    def condition(self, node: Any, depth: int) -> Filter:
        """One condition."""
        e = self._e
        if depth > _DEPTH_MAX:
            raise UsageError("the filter is nested too deep", expected=f"at most {_DEPTH_MAX} levels")
        if isinstance(node, e.Paren):
            return self.condition(node.this, depth + 1)
        if isinstance(node, e.And | e.Or):
            parts = tuple(self.condition(part, depth + 1) for part in node.flatten(unnest=False))
            return And(parts) if isinstance(node, e.And) else Or(parts)
        if isinstance(node, e.Not):
            return Not(self.condition(node.this, depth + 1))
        found = self._simple(node)
        return Not(found) if node.args.get("negate") else found

    def _simple(self, node: Any) -> Filter:
        e = self._e
        op = self._ops.get(type(node))
        if op is not None and isinstance(node.this, e.Column):
            return Compare(self._column(node.this), op, self._value(node.expression))
        if op is not None:
            return Compare(self._column(node.expression), op.flipped, self._value(node.this))
        if isinstance(node, e.In) and node.expressions:
            return In(self._column(node.this), tuple(self._value(v) for v in node.expressions))
        if isinstance(node, e.Between) and not node.args.get("symmetric"):
            column = self._column(node.this)
            low, high = self._value(node.args["low"]), self._value(node.args["high"])
            return And((Compare(column, Op.GE, low), Compare(column, Op.LE, high)))
        if isinstance(node, e.Is) and isinstance(node.expression, e.Null):
            return IsNull(self._column(node.this))
        if isinstance(node, e.Like) and isinstance(self._value(node.expression), str):
            return Like(self._column(node.this), self._value(node.expression))
        if isinstance(node, e.Column):
            return Compare(self._column(node), Op.EQ, True)
        raise self._unknown(node, "a condition")

    def _column(self, node: Any) -> str:
        if isinstance(node, self._e.Column) and not node.table and isinstance(node.this, self._e.Identifier):
            return str(node.name)
        raise self._unknown(node, "a column")

    def _value(self, node: Any) -> Any:
        e = self._e
        if isinstance(node, e.Paren):
            return self._value(node.this)
        if isinstance(node, e.Neg):
            return -self._number(node.this)
        if isinstance(node, e.Literal):
            return str(node.this) if node.is_string else self._number(node)
        if isinstance(node, e.Boolean):
            return bool(node.this)
        if isinstance(node, e.HexString):
            return bytes.fromhex(str(node.this))
        if isinstance(node, e.Cast) and node.is_type("date", "timestamp") and isinstance(node.this, e.Literal):
            return str(node.this.this)  # the column's type says how to read it
        if isinstance(node, e.Null):
            raise UsageError("a comparison with null is never true", found=self._text[:200], todo="Write `is null`.")
        raise self._unknown(node, "a value")

    def _number(self, node: Any) -> int | Decimal:
        if not isinstance(node, self._e.Literal) or node.is_string:
            raise self._unknown(node, "a number")
        text = str(node.this)
        return int(text) if text.isdecimal() else Decimal(text)

    def _unknown(self, node: Any, expected: str) -> UsageError:
        return UsageError(
            "this filter has a part that reads do not support",
            expected=expected,
            found=node.sql(dialect=_DIALECT)[:200],
            todo="Filter what is read with another tool.",
        )
