"""Time as a process sees it: the current time, time that has passed, and pauses between tries.

Elapsed time counts also while the process or its machine is suspended, or a clock is set.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator


def clock_ms() -> int:
    """Milliseconds since the epoch."""
    return round(time.time() * 1000)


def doubling_pauses(first_s: float, most_s: float) -> Iterator[float]:
    """Seconds, each twice the one before, up to `most_s`; of each a random half to all, so that tries come apart."""
    pause_s = first_s
    while True:
        yield pause_s * random.uniform(0.5, 1)
        pause_s = min(2 * pause_s, most_s)


_SET_S = 2.0


class Since:
    """A moment: that of its making."""

    def __init__(self) -> None:
        self._wall, self._steady = time.time(), time.monotonic()

    def seconds(self) -> float:
        """How long ago it was, by the clock that says longer: one of them may stand while the machine sleeps."""
        return max(self._by_wall(), self._by_steady())

    def was_set(self) -> bool:
        """Whether the wall clock was set since, or the machine slept: the two clocks do not say the same."""
        return abs(self._by_wall() - self._by_steady()) > _SET_S

    def _by_wall(self) -> float:
        return time.time() - self._wall

    def _by_steady(self) -> float:
        return time.monotonic() - self._steady
