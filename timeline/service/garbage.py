"""When Python looks for garbage in the service's process: from time to time, not within requests.

States are many objects that live long: a full collection looks at all of them, which takes 0.15 s for 20 thousand file
groups, with everything else waiting. Python would begin one whenever a quarter of them is new, so about every twentieth
load. Here it looks at what came since the last time, and at everything only each `_ALL_EVERY`-th time. What is in no
cycle, a state among others, is freed at once as ever.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from itertools import count

_LOOK_S = 1.0
_EVERY, _ALL_EVERY = 30, 86_400
"""Looks between two collections, and between two of everything."""

_NEVER = 1 << 30


async def collect_from_time_to_time(loaded: Callable[[], int]) -> None:
    """Until it is cancelled. `loaded`: how many states were loaded whole so far. The next collections do not look at
    these.
    """
    seen = loaded()
    young, middle, full = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    try:
        for number in count(1):
            await asyncio.sleep(_LOOK_S)
            if (now := loaded()) != seen:
                gc.freeze()
                seen = now
            if number % _EVERY == 0:
                collect(everything=number % _ALL_EVERY == 0)
    finally:
        gc.set_threshold(young, middle, full)
        gc.unfreeze()


def collect(*, everything: bool = False) -> None:
    """Frees what is garbage. Later calls do not look at what is left, but those with `everything`."""
    if everything:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
