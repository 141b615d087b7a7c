"""The order of the rows of a clustering: by columns, or along a curve through them (pure, vectorised).

    order     by the first column, then by the second, ...
    zorder    along the Z-order curve: bits of all columns in turn
    hilbert   along the Hilbert curve: neighbours are adjacent also where the Z-order curve jumps

A curve runs through the ranks of the values, so each column has the same weight, whatever its type and distribution.
Of many rows the ranks are those among a sample. Nulls come last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.avro_schema import FILE_NAME
from phantombase.timeline.errors import UsageError

from .options import SortOrder

_BITS = 64
_SAMPLE_ROWS = 200_000
Ranks: TypeAlias = npt.NDArray[np.uint64]


def check_sortable(schema: pa.Schema, columns: Sequence[str], where: str) -> None:
    """UsageError: a column is not in the table, is named twice, or its values have no order."""
    known = [field.name for field in schema if not pa.types.is_nested(field.type) and field.name != FILE_NAME]
    for name in columns:
        if name not in known or columns.count(name) > 1:
            raise UsageError(
                "not a column to sort by",
                path=where,
                expected="columns of the table without fields of their own, each once: " + ", ".join(known),
                found=", ".join(columns),
            )


class CurveRanks:
    """The places of rows on a curve through some columns. First every batch is `seen`, then rows have `places`.

    The ranks of values are their places among the values of a sample: every n-th row, at most `_SAMPLE_ROWS`, all rows
    if there are no more. So the places do not depend on how much memory there is, nor on how rows come in batches."""

    def __init__(self, columns: Sequence[str], order: SortOrder) -> None:
        self._columns, self._order = list(columns), order
        self._bits = min(16, _BITS // len(columns))
        self._sample: list[pa.Table] = []
        self._sampled = self._rows = 0
        self._every = 1
        self._nulls = dict.fromkeys(columns, False)
        self._levels: dict[str, pa.Array] = {}

    def seen(self, rows: pa.Table) -> None:
        keys = rows.select(self._columns)
        for name in self._columns:
            self._nulls[name] |= keys.column(name).null_count > 0
        taken = np.arange(-self._rows % self._every, keys.num_rows, self._every)
        self._rows += keys.num_rows
        self._sample.append(keys.take(pa.array(taken)))
        self._sampled += len(taken)
        while self._sampled > _SAMPLE_ROWS:
            held = pa.concat_tables(self._sample).combine_chunks()
            self._sample, self._every = [held.take(pa.array(np.arange(0, held.num_rows, 2)))], 2 * self._every
            self._sampled = self._sample[0].num_rows

    def places(self, rows: pa.Table) -> Ranks:
        """The place of each row, after all rows were seen."""
        ranks = [self._ranks(rows.column(name), name) for name in self._columns]
        if self._order is SortOrder.HILBERT:
            return _hilbert(ranks, self._bits)
        return _interleaved(ranks, self._bits)

    def _ranks(self, column: pa.ChunkedArray, name: str) -> Ranks:
        """The ranks of values, spread over the numbers of `bits` bits; nulls last."""
        if name not in self._levels:
            self._levels[name] = self._levels_of(name)
        levels = self._levels[name]
        most = max(1, len(levels) - 1 + self._nulls[name])
        known = np.asarray(column.is_valid())
        ranks = np.full(len(column), most, np.uint64)
        both = pa.chunked_array([levels, *column.drop_null().chunks], column.type)
        place = np.asarray(pc.sort_indices(both))  # levels first, so each comes before the values that equal it
        is_level = place < len(levels)
        below = np.cumsum(is_level)[~is_level]
        found = np.empty(len(both) - len(levels), np.uint64)
        found[place[~is_level] - len(levels)] = np.maximum(below, 1) - 1
        ranks[known] = found
        spread: Ranks = ranks * np.uint64((1 << self._bits) - 1) // np.uint64(most)
        return spread

    def _levels_of(self, name: str) -> pa.Array:
        """The different values of the sample in order, evenly thinned out to as many as there are ranks."""
        values = pa.chunked_array([c for t in self._sample for c in t.column(name).chunks], self._type(name))
        values = pc.unique(values.drop_null())
        values = values.take(pc.sort_indices(values))
        most = 1 << self._bits
        if len(values) <= most:
            return values
        return values.take(pa.array(np.arange(most) * (len(values) - 1) // (most - 1)))

    def _type(self, name: str) -> pa.DataType:
        return self._sample[0].schema.field(name).type


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
