"""Columns of Arrow tables as single arrays (pure).

Type names of the numpy arrays that functions take and return (pure).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Flags: TypeAlias = npt.NDArray[np.bool_]


Indices: TypeAlias = npt.NDArray[np.int64]


Hashes: TypeAlias = npt.NDArray[np.uint64]


def flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array, without a copy if it is one already."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def list_parts(array: Any) -> tuple[pa.Array, pa.Array]:
    """(int32 offsets from 0, values) of a list-like array, sliced or not."""
    offsets = array.offsets
    start = offsets[0].as_py()
    values = array.values.slice(start, offsets[-1].as_py() - start)
    # Computed also when they begin with 0: Arrow cannot build a list from a slice of offsets together with a mask.
    return pc.subtract(offsets, offsets[0]).cast(pa.int32()), values
