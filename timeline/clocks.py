"""Time as a process measures it: the current time, elapsed time, pauses between tries, and work in the background.

No other module asks the machine for the time of day (a test reads the code for it), and the schedules of retries are
here.

Elapsed time includes time in which the process or its machine is suspended, or a clock is set."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime


def clock_ms() -> int:
    """Milliseconds since the epoch."""
    return round(time.time() * 1000)


def utc_now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


def utc_text(ms: int) -> str:
    """Milliseconds since the epoch for people, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def doubling_pauses(first_s: float, most_s: float) -> Iterator[float]:
    """Seconds, doubled each time up to `most_s`; each shortened at random by up to half, so that tries differ."""
    pause_s = first_s
    while True:
        yield pause_s * random.uniform(0.5, 1)
        pause_s = min(2 * pause_s, most_s)


@dataclass(frozen=True, slots=True)
class Retry:
    """Pauses in seconds between tries, one more than pauses; each is longer at random by up to `spread` of it."""

    pauses_s: tuple[float, ...]
    spread: float = 0.0


READ_AGAIN = Retry((0.2, 1.0), spread=0.5)
"""A read of an object whose answer is too short, or an error that may pass."""
PUT_AGAIN = Retry((0.1, 0.2, 0.4, 0.8, 1.6, 3.2), spread=0.5)
"""A conditional put or copy whose outcome is unknown, or which met a conflict."""
LEASE_AGAIN = Retry((0.1, 0.4, 1.6))
"""A put of a lease: it must be renewed before it ends."""
COPY_ENDS = Retry((*PUT_AGAIN.pauses_s, *(5.0,) * 120))
"""A copy within a store that continues after its answer."""
TORN_AGAIN = Retry((0.02, 0.1, 0.5))
"""A file of the timeline that is read while Hudi writes it in place."""
CATALOG_AGAIN = Retry((0.2, 0.6, 1.8, 5.0), spread=0.5)
"""A request to a catalog that refuses some when there are too many, or that is changed by another process just now."""


def retries(schedule: Retry) -> Iterator[bool]:
    """One item for each try: whether it is the last one. Between two tries it pauses."""
    for pause_s in schedule.pauses_s:
        yield False
        time.sleep(pause_s * random.uniform(1, 1 + schedule.spread))
    yield True


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
