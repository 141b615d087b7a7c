"""What live pins keep a cleaner from removing (pure).

A cleaner asks after it has put its plan on the timeline, and before it removes the first file: a reader puts its pin
before it looks at the timeline. So one of the two sees the other: the cleaner leaves out what the pin holds, or the
reader is refused, since the clean is there.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..format.instant import Instant
from ..instants.timeline import Timeline
from .pin import COMPLETED, FoundPin


def earliest_to_retain(timeline: Timeline, pins: Iterable[FoundPin], now_ms: int) -> str | None:
    """The greatest `earliestCommitToRetain` that a clean may have now; None: no pin limits it.

    `timeline`: with the archived writes, if some may have completed after a pin's moment. `now_ms`: by the storage's
    clock. A requested time: a clean retains of each file group the newest slice before it, and all later ones. A write
    that completes after a pin's moment, or may still do so, takes no part in the state there: so the clean must not
    pass its requested time.
    """
    limits = [_limit(timeline, found) for found in pins if found.is_live(now_ms)]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit(timeline: Timeline, found: FoundPin) -> str | None:
    def is_later(write: Instant) -> bool:
        if not write.completed:
            return True
        by_completion = found.pin.axis == COMPLETED
        return (timeline.moment_of(write) if by_completion else write.requested_time) > found.pin.moment

    writes = (i for i in (*timeline.instants, *timeline.archived) if i.is_write)
    return min((write.requested_time for write in writes if is_later(write)), default=None)
