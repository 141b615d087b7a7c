"""What a reader must answer for a table, by the history of its writes alone: an oracle that reads no table (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TypeAlias

from tests.hudi.conformance.history import History, Key, Write

Row: TypeAlias = tuple[str, str, int, int, str]
"""Partition, id, ts, v, and the instant of the write that wrote it."""


def snapshot(history: History) -> set[Row]:
    """All writes."""
    return _merged(history.writes)


def read_optimized(history: History) -> set[Row]:
    """What the base files hold."""
    parts = (
        {row for row in _merged(history.writes[:count]) if row[0] == part} for part, count in history.based.items()
    )
    return set().union(*parts)


def as_of(history: History, instant: str) -> set[Row]:
    """The writes requested up to an instant."""
    return _merged(w for w in history.writes if w.instant <= instant)


def window(history: History, begin: str, end: str | None) -> set[Row]:
    """The rows as of the end that writes of (begin, end] have written."""
    seen = [w for w in history.writes if end is None or w.moment <= end]
    inside = {w.instant for w in seen if w.moment > begin}
    return {row for row in _merged(seen) if row[-1] in inside}


def windows(history: History) -> list[tuple[str, str | None]]:
    """From before all writes and from each of them: up to the next, and up to the newest."""
    moments = sorted(w.moment for w in history.writes)
    pairs: list[tuple[str, str | None]] = list(pairwise(moments))
    return [("0" * 17, moments[0]), *pairs, ("0" * 17, None), *((begin, None) for begin in moments[:-1])]


def _merged(writes: Iterable[Write]) -> set[Row]:
    """The last write of a key wins, unless its row has an older ts; no late row comes after a delete of its key."""
    rows: dict[Key, Row] = {}
    for write in writes:
        for part, key, ts, v in write.rows:
            if write.deletes:
                rows.pop((part, key), None)
            elif (part, key) not in rows or rows[part, key][2] <= ts:
                rows[part, key] = (part, key, ts, v, write.instant)
    return set(rows.values())
