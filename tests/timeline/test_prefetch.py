"""Work that goes to threads only when it waits."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from phantombase.timeline import prefetch
from phantombase.timeline.prefetch import AHEAD, prefetched_when_slow
from tests.support.servers.zookeeper_server import wait_until


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass while nothing works; otherwise the clocks stand still."""
    passed: list[float] = []
    clocks = SimpleNamespace(perf_counter=lambda: sum(passed), thread_time=lambda: 0.0)
    monkeypatch.setattr(prefetch, "time", clocks)
    return passed


def test_quick_work_stays_in_its_thread(passes: list[float]) -> None:
    """One by one, and no further than it is asked for."""
    seen: list[int] = []

    def do(number: int) -> int:
        assert threading.current_thread() is threading.main_thread()
        passes.append(0.001)
        seen.append(number)
        return -number

    found = prefetched_when_slow(range(100), do)
    assert [next(found), next(found)] == [0, -1]
    assert seen == [0, 1]
    assert list(found) == [-n for n in range(2, 100)]


def test_what_waits_is_done_ahead(passes: list[float]) -> None:
    """In order; nothing is done twice."""
    seen: list[int] = []

    def do(number: int) -> int:
        seen.append(number)
        passes.append(0.02)
        return -number

    found = prefetched_when_slow(range(20), do)
    assert [next(found), next(found)] == [0, -1]
    wait_until(lambda: len(seen) >= AHEAD)
    assert len(seen) <= AHEAD + 2
    assert list(found) == [-n for n in range(2, 20)]
    assert sorted(seen) == list(range(20))
