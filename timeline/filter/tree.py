"""The tree of a filter, and its text: the supported conditions of SQL's WHERE (pure).

condition   column op value | column | column [not] in (value, ...) | column [not] between value and value
            column [not] like 'text' | column is [not] null | not condition | condition and|or condition | (condition)
op          = != <> < <= > >=
value       number | 'text' | true | false | date 'yyyy-MM-dd' | timestamp 'yyyy-MM-dd HH:mm:ss' | X'hex digits'
column      name, or "name" or `name` if it is not a plain word

A filter is true, false or unknown for a row, as in SQL; a row matches only if it is true. Comparisons with a null are
unknown. Values are plain Python values until `possible.bound` gives them the types of their columns.

Order of values, as in Spark: texts by their UTF-8 bytes, NaN above all numbers and equal to itself, -0.0 equal to 0.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias

from ..errors import UsageError


class Op(Enum):
    """How a column's value compares with a given one."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def flipped(self) -> Op:
        """The same comparison with its sides exchanged."""
        return _FLIPPED.get(self, self)


_FLIPPED = {Op.LT: Op.GT, Op.GT: Op.LT, Op.LE: Op.GE, Op.GE: Op.LE}


@dataclass(frozen=True, slots=True)
class Compare:
    """`column op value`; the value is not None."""

    column: str
    op: Op
    value: Any


@dataclass(frozen=True, slots=True)
class In:
    """The column's value is one of these; none of them is None."""

    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """A text column matches a pattern: `%` stands for any text, `_` for one character, `\\` escapes both."""

    column: str
    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """The column's value is null: never unknown."""

    column: str


@dataclass(frozen=True, slots=True)
class And:
    """All parts are true."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any part is true."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The part is false; unknown if the part is."""

    part: Filter


Filter: TypeAlias = Compare | In | Like | IsNull | And | Or | Not


def columns_of(node: Filter) -> frozenset[str]:
    return frozenset(_columns(node))


def _columns(node: Filter) -> Iterator[str]:
    if isinstance(node, And | Or):
        for part in node.parts:
            yield from _columns(part)
    elif isinstance(node, Not):
        yield from _columns(node.part)
    else:
        yield node.column


def only_values(node: Filter, column: str) -> frozenset[Any] | None:
    """The values of a column that a row must have to match, None if the filter does not determine them (pure)."""
    if isinstance(node, Compare) and node.op is Op.EQ and node.column == column:
        return frozenset({node.value})
    if isinstance(node, In) and node.column == column:
        return frozenset(node.values)
    if isinstance(node, And | Or):
        found = [only_values(part, column) for part in node.parts]
        known = [values for values in found if values is not None]
        if isinstance(node, And):
            return frozenset.intersection(*known) if known else None
        return frozenset().union(*known) if len(known) == len(found) else None
    return None


_DIALECT = "sqlite"
"""The one dialect with the standard's quotes in texts, both kinds of quotes around names, and X'00'."""

_TEXT_MAX = 100_000
_DEPTH_MAX = 100


def parse_filter(text: str) -> Filter:
    """The filter of a text. UsageError: not a condition, or an unsupported one."""
    if len(text) > _TEXT_MAX:
        raise UsageError("the filter is too long", expected=f"at most {_TEXT_MAX} characters", found=str(len(text)))
    import sqlglot  # late: most reads have no filter
    from sqlglot.errors import ErrorLevel, SqlglotError
    from sqlglot.expressions import Condition

    try:
        parsed = sqlglot.parse_one(text, into=Condition, dialect=_DIALECT, error_level=ErrorLevel.RAISE)
        return _Reader(text).condition(parsed, 0)
    except (SqlglotError, RecursionError, ValueError, ArithmeticError) as error:
        expected = "conditions like: fare > 10 and zone in ('a', 'b') and note is not null"
        raise UsageError("not a filter", expected=expected, found=text[:200]) from error


class _Reader:
    """Turns the parser's tree into a `Filter`; unsupported conditions are refused by name."""

    def __init__(self, text: str) -> None:
        from sqlglot import expressions

        self._text = text
        self._e = e = expressions
        self._ops = {e.EQ: Op.EQ, e.NEQ: Op.NE, e.LT: Op.LT, e.LTE: Op.LE, e.GT: Op.GT, e.GTE: Op.GE}

    def condition(self, node: Any, depth: int) -> Filter:
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
            return str(node.this.this)  # the column's type determines how to read it
        if isinstance(node, e.Null):
            raise UsageError("a comparison with null is never true", found=self._text[:200], todo="Write `is null`.")
        if isinstance(node, e.Column):
            raise UsageError(
                "this filter compares with a column, not with a value",
                found=f"{node.sql(dialect=_DIALECT)} in {self._text[:200]}",
                todo=f"Write a text in quotes: '{node.name}'. Reads do not compare columns with each other.",
            )
        raise self._unknown(node, "a value")

    def _number(self, node: Any) -> int | Decimal:
        if not isinstance(node, self._e.Literal) or node.is_string:
            raise self._unknown(node, "a number")
        text = str(node.this)
        return int(text) if text.isdecimal() else Decimal(text)

    def _unknown(self, node: Any, expected: str) -> UsageError:
        found, todo = node.sql(dialect=_DIALECT)[:200], "Filter what is read with another tool."
        return UsageError("this filter has a part that reads do not support", expected=expected, found=found, todo=todo)
