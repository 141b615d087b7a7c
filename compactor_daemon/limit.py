"""When work on compactions is to end: between instants, and while slices are staged, never while one is published."""

from __future__ import annotations

import time
from collections.abc import Callable

from timeline.errors import StoppedError


class Limit:
    """A point in time that may come closer while the work goes on, also by another thread.

    `seconds` from now; None: no limit so far. `clock`: seconds, monotonic.
    """

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = float("inf") if seconds is None else clock() + seconds
        self._closed = False

    def close(self, seconds: float) -> None:
        """From now on no instant begins; the one at work has so many seconds left, or less if that is the limit."""
        self._closed = True
        self._end = min(self._end, self._clock() + seconds)

    @property
    def closed(self) -> bool:
        """Whether no instant may begin."""
        return self._closed or self._clock() >= self._end

    def check_begin(self) -> None:
        """StoppedError when no instant may begin."""
        if self.closed:
            raise _stopped()

    def check(self) -> None:
        """StoppedError when the instant at work has no time left."""
        if self._clock() >= self._end:
            raise _stopped()


def _stopped() -> StoppedError:
    return StoppedError(
        "the work was stopped by its time limit",
        todo="Nothing of this instant was published. Run again; finished file slices are adopted.",
    )
