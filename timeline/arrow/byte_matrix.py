"""Strings as matrices of bytes, so that numpy can hash many of them at once (pure, vectorised)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Index = npt.NDArray[np.intp]

_CACHE_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class ByteBlock:
    """Some values of one byte length, few enough to fit into the L2 cache: `data` is (values, bytes) of uint8.

    `ordinals`: the indices of these values in the array.
    """

    ordinals: Index
    data: npt.NDArray[np.uint8]


def byte_blocks(values: pa.Array) -> Iterator[ByteBlock]:
    """Every value of a string or binary array, each in exactly one block; a null counts as empty."""
    if not len(values):
        return
    text = values.cast(pa.large_binary())
    lengths = np.diff(_offsets(text))
    order = np.arange(len(text))
    if lengths.min() != lengths.max():
        # Sorted by length, the values of one length form a matrix of bytes, without a copy for each length.
        order = np.argsort(lengths, kind="stable")
        text, lengths = text.take(pa.array(order)), lengths[order]
    offsets = _offsets(text)
    bounds = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(text)]
    content = text.buffers()[2]
    for low, high in pairwise(bounds):
        length = int(lengths[low])
        # Besides its bytes, each value needs some words of scratch space.
        step = max(1, _CACHE_BYTES // (length + 20))
        for start in range(low, high, step):
            stop = min(start + step, high)
            size = (stop - start) * length
            data = np.frombuffer(content, np.uint8, size, int(offsets[start])) if size else np.zeros(0, np.uint8)
            yield ByteBlock(order[start:stop], data.reshape(stop - start, length))


def _offsets(values: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    return np.frombuffer(values.buffers()[1], np.int64, len(values) + 1, values.offset * 8)
