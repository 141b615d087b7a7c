"""Columns of Arrow tables as single arrays (pure)."""

from __future__ import annotations

import pyarrow as pa


def flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array, without a copy where it is one already."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
