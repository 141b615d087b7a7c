"""64-bit hashes of rows and keys, the same on every machine and with every library version (pure, vectorised).

The ledger compares sums of row hashes mod 2^64: those of the input rows with those of the output file. A sum does not
depend on the order of rows, and a swapped, stale or duplicate row changes it. The hash does not protect against an
attacker who chooses rows that collide.

A value's hash covers its bytes in 8-byte little-endian words, as Arrow lays them out: text as UTF-8 bytes, lists and
maps as their items in order, records field by field. Strings are hashed as matrices of bytes (`byte_blocks`).

`KeyLookup` looks up many record keys in a fixed set of keys. The set is hashed once and sorted by the leading bits of
the hash. A table over them gives each probe its short run of candidates. Equal hashes are compared by the keys
themselves, so no answer depends on a hash alone. Unlike in `pyarrow.compute.index_in`, nothing is rebuilt for each
batch: the base file can be streamed in small batches. Where the module in `native/` is installed, its hash table does
the same in a quarter of the time."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import MalformedError, UnsupportedError
from .avro_decode import native
from .columns import Hashes, Indices, byte_blocks, flags, flat, is_text

_SEEDS = range(8)


class KeyLookup:
    """Positions of keys in `keys`, an Arrow string array of distinct values. MalformedError: they are not."""

    def __init__(self, keys: pa.Array) -> None:
        self._keys = keys
        self._native = _native_table(keys)
        self._sorted = _SortedKeys(keys) if self._native is None else None

    def __reduce__(self) -> tuple[type[KeyLookup], tuple[pa.Array]]:
        return KeyLookup, (self._keys,)

    def find(self, probes: pa.Array) -> Indices:
        """For each probe its position in the set, -1 if the set does not contain it (it never contains null)."""
        if self._native is not None and len(probes) and probes.type == self._keys.type:
            _, offsets, data = probes.buffers()
            with suppress(ValueError):
                found = np.frombuffer(self._native.find(offsets, data or b"", probes.offset, len(probes)), np.int64)
                return np.where(flags(probes.is_null()), -1, found) if probes.null_count else found
        if self._sorted is None:
            self._sorted = _SortedKeys(self._keys)
        return self._sorted.find(probes)


def _native_table(keys: pa.Array) -> Any:
    """The keys in a table of the module in Rust; None: the table here is asked, whose errors are the product's."""
    if native is None or keys.type != pa.string() or keys.null_count or not len(keys):
        return None
    _, offsets, data = keys.buffers()
    with suppress(ValueError):
        return native.Keys(offsets, data or b"", keys.offset, len(keys))
    return None


class _SortedKeys:
    """The table where the module is not installed, or does not take the keys."""

    def __init__(self, keys: pa.Array) -> None:
        self._keys = keys
        for seed in _SEEDS:
            self._seed = seed
            hashes = hash_keys(keys, seed)
            self._order = _by_leading_bits(hashes)
            self._sorted = hashes[self._order]
            # If two distinct keys had the same hash, a hash would need several candidates: use another seed.
            if not _has_twice(self._sorted):
                break
        else:
            raise MalformedError("record keys are not distinct", found=f"{len(keys)} keys")
        self._bits = max(1, len(keys).bit_length())
        runs = np.bincount(self._prefixes(self._sorted), minlength=1 << self._bits)
        self._starts = np.concatenate(([0], np.cumsum(runs)))

    def _prefixes(self, hashes: Hashes) -> Indices:
        return (hashes >> np.uint64(64 - self._bits)).astype(np.int64)

    def find(self, probes: pa.Array) -> Indices:
        found = np.full(len(probes), -1, np.int64)
        if not len(self._keys) or not len(probes):
            return found
        hashes = hash_keys(probes, self._seed)
        prefix = self._prefixes(hashes)
        candidate, end = self._starts[prefix], self._starts[prefix + 1]
        open_probes = np.flatnonzero(candidate < end)
        while len(open_probes):
            at = candidate[open_probes]
            hit = self._sorted[at] == hashes[open_probes]
            found[open_probes[hit]] = self._order[at[hit]]
            candidate[open_probes] += 1
            open_probes = open_probes[~hit & (at + 1 < end[open_probes])]
        rows = np.flatnonzero(found >= 0)
        same = pc.equal(probes.take(pa.array(rows)), self._keys.take(pa.array(found[rows])))
        found[rows[~np.asarray(pc.fill_null(same, False))]] = -1
        return found


def _by_leading_bits(hashes: Hashes) -> npt.NDArray[np.int64]:
    """Numbers of the hashes in the order of their leading 32 bits. numpy sorts 16 at a time by their digits, in a fifth
    of the time of a whole sort."""
    order = np.argsort((hashes >> np.uint64(32)).astype(np.uint16), kind="stable")
    return order[np.argsort((hashes[order] >> np.uint64(48)).astype(np.uint16), kind="stable")]


def _has_twice(ordered: Hashes) -> bool:
    """Whether two hashes are equal. `ordered`: by their leading 32 bits."""
    leading = ordered >> np.uint64(32)
    alike = np.flatnonzero(leading[1:] == leading[:-1])
    those = ordered[np.union1d(alike, alike + 1)]
    return len(np.unique(those)) < len(those)


def hash_keys(keys: pa.Array, seed: int) -> npt.NDArray[np.uint64]:
    """A 64-bit hash for each key; a null is as an empty text."""
    found = np.empty(len(keys), np.uint64)
    for block in byte_blocks(keys):
        found[block.ordinals] = _bytes(block.data, seed)
    return found


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
    elif is_text(kind):
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
    """Converts views and fixed-size lists, which a writer's rows may have (Polars), to the layout that has a rule."""
    kind = array.type
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    return array.cast(pa.list_(kind.value_field)) if pa.types.is_fixed_size_list(kind) else array


def _lists(array: pa.Array) -> Hashes:
    """Hashes each item with its index; the sum for a list is the difference of two running sums."""
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
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    try:
        width = array.type.bit_width // 8
        data = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
    except (ValueError, TypeError) as error:
        raise UnsupportedError("rows of this column type cannot be hashed", found=str(array.type)) from error
    return _bytes(data.reshape(len(array), width))


def _bytes(data: npt.NDArray[np.uint8], seed: int = 0) -> Hashes:
    """Hashes of values of one length. The last word ends where the value ends, so it may overlap the word before."""
    count, length = data.shape
    # The length is mixed in first, spread over all 64 bits, so that the bytes of a short value cannot cancel it.
    result = _mixed(np.full(count, (seed << 40) + length + 1, np.uint64))
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
