"""Which of several log entries of one key wins (pure, vectorised).

Entries come in log order. An entry is a row, a row marked deleted (`_hoodie_is_deleted`), or an entry of a delete
block. A *natural* delete carries the Integer 0 that stands for "no ordering value".

    COMMIT_TIME     the last entry
    EVENT_TIME      (Hudi 1.x) a natural delete beats all earlier entries and loses to any later row; a delete-block
                    entry right after it changes nothing; otherwise the greatest ordering value, ties to the later
    *_0X            (Hudi 0.15, both payloads) a delete-block entry takes effect if it is natural, or if no row
                    since the last effective delete has a greater ordering value; any row after an effective
                    delete beats it; among rows the greatest ordering value wins, ties to the later

Sources: Hudi 1.2.0 EventTimeRecordMerger / deltaMergeDeleteRecord; Hudi 0.15.0 HoodieMergedLogRecordScanner and
preCombine of both payload classes."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..codec.columns import Flags
from ..format.table_config import MergeMode

Ints: TypeAlias = npt.NDArray[np.int64]


class EntryKind(IntEnum):
    ROW = 0
    DELETED_ROW = 1
    DELETE = 2


def winners(mode: MergeMode, codes: Ints, kinds: npt.NDArray[np.uint8], natural: Flags, order: Ints, keys: int) -> Ints:
    """For each key 0..keys-1 the index of its winning entry.
    codes: key of each entry; order: rank of its ordering value (see `ordering.ranks`). Every key has an entry."""
    positions = np.arange(len(codes), dtype=np.int64)
    if mode is MergeMode.COMMIT_TIME:
        return _last(codes, positions, keys)
    resets = natural if mode is MergeMode.EVENT_TIME else kinds == EntryKind.DELETE
    if not resets.any():
        return _greatest(codes, order, positions, keys)
    if mode is MergeMode.EVENT_TIME:
        alive, reset = after_natural(codes, kinds, natural, keys)
    else:
        alive, reset = after_effective(codes, kinds, natural, order, keys)
    found = _greatest(codes[alive], order[alive], positions[alive], keys)
    return np.where(found >= 0, found, reset)


def _last(codes: Ints, positions: Ints, keys: int) -> Ints:
    """For each key its last position, -1 if it has none (numpy keeps the last of repeated assignments)."""
    result = np.full(keys, -1, np.int64)
    result[codes] = positions
    return result


def _greatest(codes: Ints, order: Ints, positions: Ints, keys: int) -> Ints:
    """For each key the last of its positions with the greatest order, -1 if it has none."""
    top = np.full(keys, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(top, codes, order)
    best = order == top[codes]
    return _last(codes[best], positions[best], keys)


def after_natural(codes: Ints, kinds: npt.NDArray[np.uint8], natural: Flags, keys: int) -> tuple[Flags, Ints]:
    """Which entries follow the last natural delete of their key, by the rule of EVENT_TIME; and that delete, or -1."""
    positions = np.arange(len(codes), dtype=np.int64)
    reset = _last(codes[natural], positions[natural], keys)
    alive = positions > reset[codes]
    # After a natural delete, a delete-block entry counts only if there is a row in between.
    rows = alive & (kinds != EntryKind.DELETE)
    first_row = np.full(keys, len(codes), np.int64)
    first_row[codes[rows][::-1]] = positions[rows][::-1]
    alive &= (reset[codes] < 0) | (positions >= first_row[codes])
    return alive, reset


def after_effective(
    codes: Ints, kinds: npt.NDArray[np.uint8], natural: Flags, order: Ints, keys: int
) -> tuple[Flags, Ints]:
    """Which entries are rows after the last delete of their key that took effect, by the rule of Hudi 0.15; and that
    delete, or -1."""
    positions = np.arange(len(codes), dtype=np.int64)
    is_delete = kinds == EntryKind.DELETE
    effective = is_delete & natural
    typed = is_delete & ~natural
    if typed.any():
        concerned = np.zeros(keys, np.bool_)
        concerned[codes[typed]] = True
        subset = positions[concerned[codes]]
        effective[subset] = _effective_deletes(codes[subset], is_delete[subset], effective[subset], order[subset])
    reset = _last(codes[effective], positions[effective], keys)
    return (positions > reset[codes]) & ~is_delete, reset


def _effective_deletes(codes: Ints, is_delete: Flags, effective: Flags, order: Ints) -> Flags:
    """Which delete-block entries take effect. An entry's effect depends on the rows since the last effective delete, so
    the result is a least fixed point: it starts from the natural deletes, and each round can only add some. The number
    of rounds is the nesting depth of effective deletes in one key."""
    by_key = np.argsort(codes, kind="stable")
    code, delete, marked = codes[by_key], is_delete[by_key], effective[by_key].copy()
    rank = np.unique(order[by_key], return_inverse=True)[1].astype(np.int64) + 1
    span = int(rank.max()) + 1
    new_key = np.concatenate([[True], code[1:] != code[:-1]])
    while True:
        starts = new_key | np.concatenate([[False], marked[:-1]])
        segment = np.cumsum(starts)
        running = np.maximum.accumulate(segment * span + np.where(delete, 0, rank))
        before = np.concatenate([[0], running[:-1]]) - segment * span
        greatest_row = np.where(starts, 0, np.maximum(before, 0))  # 0: no row yet in this segment
        grown = marked | (delete & (rank >= greatest_row))
        if (grown == marked).all():
            result = np.empty_like(marked)
            result[by_key] = marked
            return result
        marked = grown
