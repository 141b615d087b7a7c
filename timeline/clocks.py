"""Time as a process measures it: the current time, elapsed time, pauses between tries, and work in the background.

Elapsed time includes time in which the process or its machine is suspended, or a clock is set.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def clock_ms() -> int:
    """Milliseconds since the epoch."""
    return round(time.time() * 1000)


def doubling_pauses(first_s: float, most_s: float) -> Iterator[float]:
    """Seconds, doubled each time up to `most_s`; each shortened at random by up to half, so that tries differ."""
    pause_s = first_s
    while True:
        yield pause_s * random.uniform(0.5, 1)
        pause_s = min(2 * pause_s, most_s)


def tries(timeout_s: float, first_s: float, most_s: float) -> Iterator[None]:
    """One item for each try, at least one, until the time is over; between two tries pauses as `doubling_pauses`."""
    deadline, pauses = time.monotonic() + timeout_s, doubling_pauses(first_s, most_s)
    while True:
        yield
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return
        time.sleep(min(left_s, next(pauses)))


@contextmanager
def in_background(run: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Runs a function in a thread while the body runs. At its end sets the event, and waits for the function."""
    ended = threading.Event()
    thread = threading.Thread(target=run, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


_SET_S = 2.0


class Stopwatch:
    """Measures the time since its creation."""

    def __init__(self) -> None:
        self._wall, self._steady = time.time(), time.monotonic()

    def seconds(self) -> float:
        """Elapsed seconds: the larger of wall-clock and steady time, as one may stop while the machine is suspended."""
        return max(self._by_wall(), self._by_steady())

    def was_set(self) -> bool:
        """Whether the wall clock was set since, or the machine suspended: the two clocks differ."""
        return abs(self._by_wall() - self._by_steady()) > _SET_S

    def _by_wall(self) -> float:
        return time.time() - self._wall

    def _by_steady(self) -> float:
        return time.monotonic() - self._steady
