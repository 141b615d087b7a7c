"""A table lock that a process loses in the middle of a section."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from contextlib import contextmanager

from phantombase.timeline.locks.section import Section


class LockLostAt:
    """It is lost at the n-th question. `asked`: how often it was asked for."""

    def __init__(self, number: int) -> None:
        self.asked = 0
        self._number = number

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        yield Section(purpose=purpose, lock="lost", is_held=self._is_held)

    def _is_held(self) -> bool:
        self.asked += 1
        return self.asked <= self._number


class LockLostBehind:
    """It keeps nobody out, and is lost once something has happened: `events` is longer than at its beginning."""

    def __init__(self, events: Sized) -> None:
        self._events = events

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        before = len(self._events)
        yield Section(purpose=purpose, lock="lost", is_held=lambda: len(self._events) == before)
