"""The time limit of compaction work: it ends between instants or while slices are staged, never during publishing."""

from __future__ import annotations

import time
from collections.abc import Callable

from phantombase.timeline.errors import StoppedError


class Limit:
    """A point in time at which work ends. It may be moved closer while the work goes on, also by another thread.

    `seconds` from now; None: no limit so far. `clock`: seconds, monotonic; None: this machine's.
    """

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic
        self._end = float("inf") if seconds is None else self._clock() + seconds
        self._closed = False
        self._why = "its time limit"

    def close(self, seconds: float, why: str = "its time limit") -> None:
        """Lets no more instants begin. The instant at work has at most `seconds` left, or less by an earlier limit."""
        self._closed, self._why = True, why
        self._end = min(self._end, self._clock() + seconds)

    @property
    def closed(self) -> bool:
        """Whether no instant may begin."""
        return self._closed or self._clock() >= self._end

    def check_begin(self) -> None:
        """StoppedError: no instant may begin."""
        if self.closed:
            raise self._stopped()

    def check(self) -> None:
        """StoppedError: the instant at work has no time left."""
        if self._clock() >= self._end:
            raise self._stopped()

    def _stopped(self) -> StoppedError:
        return StoppedError(
            f"the work was stopped by {self._why}",
            todo="Nothing of this instant was published. Run again; finished file slices are adopted.",
        )
