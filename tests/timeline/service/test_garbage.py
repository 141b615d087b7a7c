"""Garbage is collected from time to time, not within requests; afterwards Python is as it was."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator
from itertools import count

import pytest

from phantombase.timeline.service import run
from phantombase.timeline.service.run import collect, collect_from_time_to_time


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


class Ring:
    """Refers to itself: only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


def test_what_came_since_the_last_time_is_freed() -> None:
    collect()
    seen = weakref.ref(Ring())
    collect()
    assert seen() is None


def test_what_was_kept_then_is_freed_when_everything_is_looked_at() -> None:
    ring = Ring()
    seen = weakref.ref(ring)
    collect()
    del ring
    collect()
    assert seen() is not None
    collect(everything=True)
    assert seen() is None


@pytest.mark.parametrize("every", [1, 1000], ids=["collected", "loaded"])
def test_full_collections_are_not_begun_meanwhile(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_GARBAGE_LOOK_S", 0.005)
    monkeypatch.setattr(run, "_EVERY", every)
    before = gc.get_threshold()

    async def thresholds() -> tuple[int, int]:
        task = asyncio.create_task(collect_from_time_to_time(count().__next__))
        until = time.monotonic() + 60
        while (found := (gc.get_threshold()[2], gc.get_freeze_count()))[1] == 0 and time.monotonic() < until:
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])
        return found

    full, frozen = asyncio.run(thresholds())
    assert (full > 1_000_000, frozen > 0) == (True, True)
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
