"""Looks up many record keys among a fixed set of keys (pure, vectorised, exact).

The set is hashed once (64 bit) and sorted. A table over the leading bits of the hash gives each probe its short run
of candidates. Equal hashes are compared by the keys themselves, so an answer never rests on a hash alone.
Unlike in `pyarrow.compute.index_in`, nothing is rebuilt for each batch: the base file can be streamed in small batches.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import MalformedError

_SEEDS = range(8)


class KeyLookup:
    """Positions of keys in `keys`, an Arrow string array of distinct values."""

    def __init__(self, keys: pa.Array) -> None:
        self._keys = keys
        for seed in _SEEDS:
            self._seed = seed
            hashes = hash_keys(keys, seed)
            self._order = np.argsort(hashes, kind="stable")
            self._sorted = hashes[self._order]
            # If two distinct keys had one hash, a hash would need several candidates: use another seed.
            if not (self._sorted[1:] == self._sorted[:-1]).any():
                break
        else:
            raise MalformedError("record keys are not distinct", found=f"{len(keys)} keys")
        self._bits = max(1, len(keys).bit_length())
        edges = np.arange((1 << self._bits) + 1, dtype=np.uint64)
        # The edge behind the last prefix is 2**64, which does not fit: it is the end of the array.
        starts = np.searchsorted(self._sorted, edges[:-1] << np.uint64(64 - self._bits))
        self._starts = np.append(starts, len(keys))

    def find(self, probes: pa.Array) -> npt.NDArray[np.int64]:
        """For each probe its position in the set, -1 if the set does not contain it (it never contains null)."""
        found = np.full(len(probes), -1, np.int64)
        if not len(self._keys) or not len(probes):
            return found
        hashes = hash_keys(probes, self._seed)
        prefix = (hashes >> np.uint64(64 - self._bits)).astype(np.int64)
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


def hash_keys(keys: pa.Array, seed: int) -> npt.NDArray[np.uint64]:
    """A 64-bit hash for each key. Valid within one process only: polars releases may hash differently."""
    import polars as pl  # late: a fifth of a command's start, and the Spark driver never needs it

    return pl.Series(pl.from_arrow(keys)).hash(seed=seed).to_numpy()
