"""Evaluates a bound filter on rows (pure, vectorised)."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .tree import And, Compare, Filter, In, IsNull, Like, Not, Op, Or

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
    if isinstance(node, In) and pa.types.is_string(column.type):  # floats have zeros and NaN of their own
        values = pa.array([value.as_py() for value in node.values], column.type)
        return pc.if_else(column.is_null(), pa.scalar(None, pa.bool_()), pc.is_in(column, value_set=values))
    if isinstance(node, In):
        return reduce(pc.or_kleene, (pc.equal(column, value) for value in node.values))
    return _compared(node, column)


def _compared(node: Compare, column: pa.ChunkedArray) -> Any:
    found = _COMPARE[node.op](column, node.value)
    if node.op in (Op.GT, Op.GE) and pa.types.is_floating(column.type):
        return pc.or_kleene(found, pc.is_nan(column))  # NaN is above all numbers
    return found
