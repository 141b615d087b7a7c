"""Where framed Avro records begin, without decoding them (pure, vectorised).

    n x {big-endian int32 length, Avro record}

Each prefix leads to the next, which would be a loop over records. But a record shorter than 64 KiB has a prefix of two
zero bytes and two others, and few other places look like that: these are the candidates. Those that no other candidate
leads to, or that lead nowhere, are dropped until one chain is left from the first byte to the last.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

_Integers: TypeAlias = npt.NDArray[np.int64]
_Bytes: TypeAlias = npt.NDArray[np.uint8]

_PREFIX = 4
_WINDOW_BYTES = 1 << 19
"""Bytes that are searched at a time: so few that they stay in the processor's cache."""


def record_starts(raw: _Bytes, count: int) -> _Integers | None:
    """The offset of each of `count` records, and of the end; None if there is no such chain, as with long records."""
    if raw.size < _PREFIX:
        return None
    at = np.concatenate([_prefixes(raw, low) for low in range(0, raw.size - _PREFIX + 1, _WINDOW_BYTES)])
    while at.size and at[0] == 0:
        end = _ends(raw, at)
        if len(at) == count and end[-1] == raw.size and (end[:-1] == at[1:]).all():
            return np.append(at, raw.size)
        place = np.searchsorted(at, end)
        leads = at[np.minimum(place, at.size - 1)] == end
        reached = np.zeros(at.size, np.bool_)
        reached[0] = True
        reached[place[leads]] = True
        kept = reached & (leads | (end == raw.size))
        if kept.all():
            return None
        at = at[kept]
    return None


def _prefixes(raw: _Bytes, low: int) -> _Integers:
    """The candidates of one window: two zero bytes, from where the length leads to two more, or to the end."""
    zero = raw[low : min(low + _WINDOW_BYTES + 1, raw.size - 2)] == 0
    at = np.flatnonzero(zero[:-1] & zero[1:]) + low
    end = _ends(raw, at)
    inside = np.minimum(end, raw.size - 2)
    leads = (end == raw.size) | ((end == inside) & (raw[inside] == 0) & (raw[inside + 1] == 0))
    return np.asarray(at[leads], np.int64)


def _ends(raw: _Bytes, at: _Integers) -> _Integers:
    """Where the records end that begin with these prefixes of two zero bytes."""
    return np.asarray(at + _PREFIX + raw[at + 2].astype(np.int64) * 256 + raw[at + 3])
