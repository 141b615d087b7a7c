"""Work that goes to threads only when it waits."""

from __future__ import annotations

import threading
import time

from phantombase.timeline.prefetch import AHEAD, prefetched_when_slow


def test_quick_work_stays_in_its_thread() -> None:
    """One by one, and no further than it is asked for."""
    seen: list[int] = []

    def do(number: int) -> int:
        assert threading.current_thread() is threading.main_thread()
        seen.append(number)
        return -number

    found = prefetched_when_slow(range(100), do)
    assert [next(found), next(found)] == [0, -1]
    assert seen == [0, 1]
    assert list(found) == [-n for n in range(2, 100)]


def test_what_waits_is_done_ahead() -> None:
    """In order; nothing is done twice."""
    seen: list[int] = []

    def do(number: int) -> int:
        seen.append(number)
        time.sleep(0.02)
        return -number

    found = prefetched_when_slow(range(20), do)
    assert [next(found), next(found)] == [0, -1]
    time.sleep(0.3)
    assert AHEAD <= len(seen) <= AHEAD + 2
    assert list(found) == [-n for n in range(2, 20)]
    assert sorted(seen) == list(range(20))
