"""Work that goes to threads only when it waits, or one step ahead of its consumer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from phantombase.timeline import prefetch
from phantombase.timeline.prefetch import AHEAD, at_once, computed_ahead, prefetched, prefetched_when_slow
from phantombase.timeline.storage.contract import count_requests, counted_requests
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.snapshot import ContentCache, SnapshotStorage, list_ahead
from tests.project.rooms import modules
from tests.support.failing_storage import Call, OnObjects
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


def test_one_step_ahead_in_another_thread() -> None:
    """In order, no further than asked for, and no more behind the end of the block; an error comes in its place."""
    seen: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(9):
            assert threading.current_thread() is not threading.main_thread()
            seen.append(number)
            if number == 7:
                raise KeyError(number)
            yield number

    with computed_ahead(numbers()) as found:
        assert next(found) == 0
        wait_until(lambda: seen == [0, 1])
        assert next(found) == 1
    assert len(seen) <= 3
    seen.clear()
    with computed_ahead(numbers(), 2) as found:
        assert [next(found) for _ in range(7)] == list(range(7))
        with pytest.raises(KeyError):
            next(found)
    with computed_ahead(iter([1, 2])) as found:
        assert list(found) == [1, 2]


@pytest.mark.parametrize("threads", [1, 3])
def test_all_at_once(threads: int) -> None:
    """In order, the first error; a single item, and all of them with one thread, need no other thread."""

    def do(number: int) -> threading.Thread:
        if number == 4:
            raise KeyError(number)
        return threading.current_thread()

    assert at_once([], do) == []
    assert at_once([1], do) == list(prefetched([1], do)) == [threading.main_thread()]
    assert (threading.main_thread() in at_once([1, 2, 3], do, threads)) is (threads == 1)
    with pytest.raises(KeyError):
        at_once(range(9), do, threads)


def test_threads_count_for_their_caller(tmp_path: Path) -> None:
    """So a unit of work has the requests that a snapshot makes ahead, too."""
    (tmp_path / ".hoodie" / "timeline").mkdir(parents=True)
    asked: list[str] = []

    def counting(call: Call) -> object:
        asked.append(call.name)
        count_requests()
        return call.do()

    storage = OnObjects(LocalStorage(str(tmp_path)), counting)
    with counted_requests() as counted:
        list_ahead(SnapshotStorage(storage, {".hoodie"}, ContentCache()), [".hoodie", ".hoodie/timeline"])
    assert counted.number == len(asked) >= 2


def test_each_pool_has_the_context_of_its_caller() -> None:
    """But those of a daemon's loop, whose units of work have their own, and of tasks, which take a copy each."""
    own = {"timeline.prefetch", "compactor_daemon.daemon.loop", "compactor_daemon.execution.runners"}
    assert {name for name, path in modules().items() if "ThreadPoolExecutor" in path.read_text()} == own
