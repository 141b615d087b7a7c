"""The order of the rows of a clustering: by columns, or along a curve through them (pure, vectorised).

    order     by the first column, then by the second, ...
    zorder    along the Z-order curve: bits of all columns in turn
    hilbert   along the Hilbert curve: neighbours are adjacent also where the Z-order curve jumps

A curve runs through the ranks of the values, so each column has the same weight, whatever its type and distribution.
Nulls come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.errors import UsageError

from .options import SortOrder

_BITS = 64
Ranks: TypeAlias = npt.NDArray[np.uint64]


def check_sortable(schema: pa.Schema, columns: Sequence[str], where: str) -> None:
    """UsageError: a column is not in the table, is named twice, or its values have no order."""
    for name in columns:
        if name not in schema.names or pa.types.is_nested(schema.field(name).type) or columns.count(name) > 1:
            raise UsageError(
                "not a column to sort by",
                path=where,
                expected="columns of the table without fields of their own, each once: "
                + ", ".join(field.name for field in schema if not pa.types.is_nested(field.type)),
                found=", ".join(columns),
            )


def sorted_rows(rows: pa.Table, columns: Sequence[str], order: SortOrder) -> pa.Table:
    """The rows in the given order; the sort is stable."""
    if order is SortOrder.ORDER or len(columns) == 1:
        return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in columns]))
    bits = min(16, _BITS // len(columns))
    ranks = [_ranks(rows.column(name), bits) for name in columns]
    places = _hilbert(ranks, bits) if order is SortOrder.HILBERT else _interleaved(ranks, bits)
    return rows.take(pa.array(np.argsort(places, kind="stable")))


def _ranks(column: pa.ChunkedArray, bits: int) -> Ranks:
    """The ranks of values, spread over the range of `bits`-bit numbers."""
    ranks: Ranks = pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.uint64)
    ranks -= np.uint64(1)
    most = int(ranks.max(initial=0))
    spread: Ranks = ranks * np.uint64((1 << bits) - 1) // np.uint64(max(1, most))
    return spread


def _interleaved(ranks: Sequence[Ranks], bits: int) -> Ranks:
    """One number for each row: the highest bit of each rank, then the next of each, ..."""
    found = np.zeros(len(ranks[0]), np.uint64)
    for bit in reversed(range(bits)):
        for rank in ranks:
            found = found << np.uint64(1) | rank >> np.uint64(bit) & np.uint64(1)
    return found


def _hilbert(ranks: Sequence[Ranks], bits: int) -> Ranks:
    """The position of each row on the curve, by J. Skilling's transformation of coordinates (2004)."""
    axes = [rank.copy() for rank in ranks]
    for bit in reversed(range(1, bits)):
        half = np.uint64(1 << bit)
        low = half - np.uint64(1)
        for number, axis in enumerate(axes):
            is_set = (axis & half).astype(bool)
            swap = np.where(is_set, np.uint64(0), (axes[0] ^ axis) & low)
            first = np.where(is_set, axes[0] ^ low, axes[0] ^ swap)
            if number:
                axes[number] = axis ^ swap
            axes[0] = first
    for number in range(1, len(axes)):
        axes[number] ^= axes[number - 1]
    flip = np.zeros(len(axes[0]), np.uint64)
    for bit in reversed(range(1, bits)):
        half = np.uint64(1 << bit)
        flip = np.where((axes[-1] & half).astype(bool), flip ^ (half - np.uint64(1)), flip)
    return _interleaved([axis ^ flip for axis in axes], bits)
