"""The tree of a filter (pure).

A filter is true, false or unknown for a row, as in SQL; only rows for which it is true are kept. Comparisons with a
null are unknown. Values are plain Python values until `bind.bound` gives them the types of their columns.

Order of values, as in Spark: texts by their UTF-8 bytes, NaN above all numbers and equal to itself, -0.0 equal to 0.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias


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
    """The part is false; unknown stays unknown."""

    part: Filter


Filter: TypeAlias = Compare | In | Like | IsNull | And | Or | Not


def columns_of(node: Filter) -> frozenset[str]:
    """The columns that a filter reads."""
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
    """The values of a column that a row must have to match, None if the filter does not tell (pure)."""
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
