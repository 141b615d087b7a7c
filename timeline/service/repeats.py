"""Requests that were answered before, by their whole target: what a kept answer still costs is mostly the way to it.

A large Hudi job asks for the same few things from each of its tasks, in the same words.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass

from .served_table import Held, ServedTable
from .wire.answers import Answer, AnswerCache

_TARGET_BYTES_MAX = 1024
_BYTES_EACH = 16 << 10
"""Of the memory for answers, for one target that is remembered: it takes less than a tenth of this itself."""


@dataclass(frozen=True, slots=True)
class _Repeat:
    table: ServedTable
    held: Held
    key: Hashable


class Repeats:
    """What was asked by GET, and under which key its answer is kept. `cache_bytes`: what `answers` may take."""

    def __init__(self, answers: AnswerCache, cache_bytes: int) -> None:
        self._answers = answers
        self._most = cache_bytes // _BYTES_EACH
        self._by_target: dict[bytes, _Repeat] = {}

    def keep(self, target: bytes, table: ServedTable, held: Held, key: Hashable) -> None:
        """Remembers which state of a table answers this. `target`: path and query as they were sent."""
        if len(target) > _TARGET_BYTES_MAX:
            return
        if len(self._by_target) >= self._most:
            self._by_target.clear()
        self._by_target[target] = _Repeat(table, held, key)

    def find(self, target: bytes) -> Answer | None:
        """The answer, if the table is served and the state that answered is its newest.

        From an older one a client is answered only while it is one step behind: that is looked at anew each time.
        """
        known = self._by_target.get(target)
        if known is None:
            return None
        table = known.table
        if table.gone or table.newest is not known.held:
            del self._by_target[target]
            return None
        table.used_s = time.monotonic()
        return self._answers.find(known.key)
