"""When work on compactions is to end: between instants, and while slices are staged, never while one is published."""

from __future__ import annotations

import time
from collections.abc import Callable

from phantombase.timeline.errors import StoppedError


class Limit:
    """A point in time that may come closer while the work goes on, also by another thread.

    `seconds` from now; None: no limit so far. `clock`: seconds, monotonic.
    """

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = float("inf") if seconds is None else clock() + seconds
        self._closed = False
        self._why = "its time limit"

    def close(self, seconds: float, why: str = "its time limit") -> None:
        """From now on no instant begins; the one at work has so many seconds left, or less if that is the limit."""
        self._closed, self._why = True, why
        self._end = min(self._end, self._clock() + seconds)

    @property
    def closed(self) -> bool:
        """Whether no instant may begin."""
        return self._closed or self._clock() >= self._end

    def check_begin(self) -> None:
        """StoppedError when no instant may begin."""
        if self.closed:
            raise self._stopped()

    def check(self) -> None:
        """StoppedError when the instant at work has no time left."""
        if self._clock() >= self._end:
            raise self._stopped()

    def _stopped(self) -> StoppedError:
        return StoppedError(
            f"the work was stopped by {self._why}",
            todo="Nothing of this instant was published. Run again; finished file slices are adopted.",
        )
