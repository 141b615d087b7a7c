"""Whether any row of a part of a table can match a filter, from the bounds of its columns (pure).

Each part of the filter has a set of possible results: true, false, unknown. The set is never too small, so "no row
can match" is certain; "some row may" is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any, TypeAlias

import pyarrow as pa

from .tree import And, Compare, Filter, In, IsNull, Like, Not, Op, Or, columns_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is known of a column's values: `low` <= each value <= `high`, None for no bound.

    Values are as `comparable` gives them. `values`, `nulls`: whether there may be any that is not null, or null.
    """

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
    """False only if no row matches of which each column is that of a row of any of these parts."""
    if len(parts) == 1 or len(columns_of(node)) == 1:
        return any(may_match(node, bounds) for bounds in parts)
    if isinstance(node, And):
        return all(may_match_together(one, parts) for one in node.parts)
    return not isinstance(node, Or) or any(may_match_together(one, parts) for one in node.parts)


def _results(node: Filter, bounds: BoundsOf) -> Results:
    if isinstance(node, And | Or):
        combine = _both if isinstance(node, And) else _either
        return reduce(
            lambda left, right: frozenset(combine(a, b) for a, b in product(left, right)),
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
    """The results for values that are not null."""
    if isinstance(node, Compare):
        return _compared(node.op, comparable(node.value), found)
    if isinstance(node, In):
        each = [_compared(Op.EQ, comparable(value), found) for value in node.values]
        return _chosen(true=any(True in one for one in each), false=all(False in one for one in each))
    prefix = _prefix(node.pattern)
    within = (found.high is None or found.high >= prefix) and (found.low is None or found.low[: len(prefix)] <= prefix)
    return _chosen(true=within, false=True)


def _compared(op: Op, value: Any, found: Bounds) -> Results:
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


def _both(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _either(left: bool | None, right: bool | None) -> bool | None:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


def _prefix(pattern: str) -> str:
    """The text with which every match of a `like` pattern begins."""
    for at, character in enumerate(pattern):
        if character in "%_\\":
            return pattern[:at]
    return pattern
