"""Ordering values: Java's comparisons on Arrow columns (pure, vectorised).

A row's ordering value is the tuple of its ordering columns, compared in declared order. Floats follow
`Double.compareTo` (-0.0 < 0.0 < NaN); text compares by UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .columns import flags

Ordering: TypeAlias = tuple[pa.Array, ...]
"""One array per ordering column; empty if the table has none."""


def orderable(array: pa.Array) -> pa.Array:
    """The array in a form that Arrow sorts as Java does: floats become integers of the same order."""
    if pa.types.is_floating(array.type):
        bits = np.ascontiguousarray(array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)).copy()
        bits[np.isnan(bits)] = np.nan  # one NaN for all payloads
        raw = bits.view(np.int64)
        ordered = np.where(raw < 0, raw ^ np.int64(0x7FFFFFFFFFFFFFFF), raw)
        return pa.array(ordered, mask=array.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_boolean(array.type):
        return array.cast(pa.int8())
    return array


def ranks(ordering: Ordering, rows: int, *, hudi_0x: bool = False) -> npt.NDArray[np.int64]:
    """One integer for each row; the integers sort as the rows' ordering values do, nulls first.
    `hudi_0x`: compare decimals as 0.15 compares them in log entries, by their raw bytes: negative ones are greatest."""
    result = np.zeros(rows, np.int64)
    for column in ordering:
        dense = _rank(column)
        if hudi_0x and pa.types.is_decimal(column.type):
            negative = flags(pc.fill_null(pc.less(column, 0), False))
            dense = np.where(negative, dense + dense.max(initial=0), dense)
        if len(ordering) > 1:
            # Raw numbers become dense ranks, here and after each step, so that the product fits into 64 bits.
            dense = np.unique(dense, return_inverse=True)[1].astype(np.int64)
            dense = np.unique(result * len(dense) + dense, return_inverse=True)[1].astype(np.int64)
        result = dense
    return result


def _rank(column: pa.Array) -> npt.NDArray[np.int64]:
    values = orderable(column)
    kind = values.type
    # Integers are their own rank; all other values are ranked once.
    if not values.null_count and (pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind)):
        if pa.types.is_temporal(kind):
            values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        return np.asarray(values).astype(np.int64)
    dense = np.asarray(pc.rank(values, sort_keys="ascending", tiebreaker="dense")).astype(np.int64)
    return np.where(flags(values.is_null()), 0, dense)


def at_least(left: Ordering, right: Ordering, rows: int) -> npt.NDArray[np.bool_]:
    """Row by row, whether `left` >= `right`; a null is smaller than every value and equal to a null."""
    greater = np.zeros(rows, np.bool_)
    equal = np.ones(rows, np.bool_)
    for a, b in zip(left, right, strict=True):
        x, y = orderable(a), orderable(b)
        x_null, y_null = flags(x.is_null()), flags(y.is_null())
        both = ~x_null & ~y_null
        greater |= equal & ((y_null & ~x_null) | (both & flags(pc.fill_null(pc.greater(x, y), False))))
        equal &= (x_null & y_null) | (both & flags(pc.fill_null(pc.equal(x, y), False)))
    return greater | equal


def same_class(wrapper: pa.DataType, column: pa.DataType, *, hudi_0x: bool) -> bool:
    """Whether a delete's ordering value has the same Java class as the ordering column of the rows. If the classes
    differ, Hudi cannot compare the values, and the delete wins over every earlier row. That happens with an IntWrapper
    on a long column, with the wrappers made for dates, and in 0.15 (whose rows hold Avro objects) also with text and
    decimals. Rows hold dates and timestamps as Avro's integers. (Observed with typed deletes in 0.15.0 and 1.2.0.)"""
    types = pa.types
    if hudi_0x and (types.is_string(column) or types.is_decimal(column)):
        return False
    if types.is_date(column):
        return bool(wrapper == pa.int32())
    if types.is_timestamp(column):
        return bool(wrapper == pa.int64())
    if types.is_decimal(column):
        return bool(types.is_decimal(wrapper))
    return bool(wrapper == column)


def concat(parts: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """All parts, concatenated, as `kind`."""
    return pa.concat_arrays([p.cast(kind) if p.type != kind else p for p in parts]) if parts else pa.array([], kind)
