"""A 64-bit hash of every row, the same on every machine and with every library version (pure, vectorised).

The ledger compares sums of these hashes mod 2^64: the rows that went in against the file that came out. A sum does
not depend on the order of rows, and a swapped, stale or doubled row changes it. The hash does not protect against an
attacker who chooses rows that collide.

A value's hash covers its bytes in 8-byte little-endian words, as Arrow lays them out: text as UTF-8 bytes, lists and
maps as their items in order, records field by field.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import UnsupportedError
from .byte_matrix import byte_blocks
from .columns import Hashes, flat

_A, _B, _C = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x2545F4914F6CDD1D)
_WORD = 8
_LONG_BYTES = 1024
"""Many values longer than this rarely have one length: their words are hashed all at once, not one after the other."""


def row_hashes(columns: Iterable[pa.Array | pa.ChunkedArray], rows: int) -> Hashes:
    """One hash for each row over its columns, in their order. UnsupportedError: a column type without a rule."""
    total = np.zeros(rows, np.uint64)
    for column in columns:
        total = _mixed(total * _A + _hashes(flat(column)))
    return total


def hash_sum(hashes: Hashes) -> int:
    """The sum mod 2^64."""
    return int(hashes.sum(dtype=np.uint64))


def _hashes(array: pa.Array) -> Hashes:
    array = _laid_out(array)
    kind = array.type
    if pa.types.is_dictionary(kind):
        found = _hashes(array.dictionary)[np.asarray(array.indices.fill_null(0))] if len(array.dictionary) else None
        result = np.zeros(len(array), np.uint64) if found is None else found
    elif pa.types.is_struct(kind):
        result = row_hashes(array.flatten(), len(array))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        result = _lists(array)
    elif _is_text(kind):
        result = np.zeros(len(array), np.uint64)
        for block in byte_blocks(array):
            result[block.ordinals] = _bytes(block.data)
    elif pa.types.is_null(kind):
        return np.full(len(array), _NULL)
    else:
        result = _fixed(array)
    if array.null_count:
        result[np.asarray(array.is_null())] = _NULL
    return result


def _laid_out(array: pa.Array) -> pa.Array:
    """Views and lists of one length, which rows of a writer may have (Polars), in the layout that has a rule."""
    kind = array.type
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    return array.cast(pa.list_(kind.value_field)) if pa.types.is_fixed_size_list(kind) else array


def _lists(array: pa.Array) -> Hashes:
    """Each item is hashed with its index; the sum for a list is the difference of two running sums."""
    offsets = np.asarray(array.offsets).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    if pa.types.is_map(array.type):
        items = row_hashes(
            [array.keys.slice(first, last - first), array.items.slice(first, last - first)], last - first
        )
    else:
        items = _hashes(array.values.slice(first, last - first))
    offsets = offsets - first
    lengths = np.diff(offsets)
    place = np.arange(len(items), dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mixed(items + place.astype(np.uint64) * _A))])
    return _mixed(running[offsets[1:]] - running[offsets[:-1]] + lengths.astype(np.uint64))


def _fixed(array: pa.Array) -> Hashes:
    """Hashes of fixed-width values, by their bytes."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    try:
        width = array.type.bit_width // 8
        data = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
    except (ValueError, TypeError) as error:
        raise UnsupportedError("rows of this column type cannot be hashed", found=str(array.type)) from error
    return _bytes(data.reshape(len(array), width))


def _bytes(data: npt.NDArray[np.uint8]) -> Hashes:
    """Hashes of values of one length. The last word ends where the value ends, so it may overlap the word before."""
    count, length = data.shape
    # The length goes in first, spread over all 64 bits, so that the bytes of a short value cannot cancel it out.
    result = _mixed(np.full(count, length + 1, np.uint64))
    if not length or not count:
        return _mixed(result)
    if length < _WORD:
        padded = np.zeros((count, _WORD), np.uint8)
        padded[:, :length] = data
        return _mixed(result ^ padded.view("<u8")[:, 0])
    if length > _LONG_BYTES:
        places = np.arange(1, length // _WORD + 1, dtype=np.uint64) * _A
        words: Hashes = np.ndarray((count, len(places)), "<u8", data, 0, (length, _WORD))
        last: Hashes = np.ndarray((count,), "<u8", data, length - _WORD, (length,))
        return _mixed((result ^ last) * _C + _mixed(words + places).sum(axis=1, dtype=np.uint64))
    for start in [*range(0, length - _WORD, _WORD), length - _WORD]:
        word: Hashes = np.ndarray((count,), "<u8", data, start, (length,)) * _A
        word ^= word >> np.uint64(32)
        result ^= word
        result *= _C
    return _mixed(result)


def _mixed(value: Hashes) -> Hashes:
    """Every input bit affects every bit of the result (the final step of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * _B
    value = (value ^ (value >> np.uint64(27))) * _C
    return value ^ (value >> np.uint64(31))


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
