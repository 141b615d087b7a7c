"""The window of an incremental read: which writes it holds (pure).

A window (begin, end] holds the completed writes whose moment lies in it: their completion time on versions 8 and 9,
their requested time on version 6. Table services in it change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from ..format.instant import Instant
from ..instants.timeline import Timeline

EARLIEST = ""
"""A begin before everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window with its end fixed: no write that completes from now on will lie in it.

    `blocked_by`: on version 6 the first pending write; the window ends before it, since rows may still appear there.
    `begin_requested`: begin is the requested time of a write and nothing's completion time, so it may be a mistake.
    """

    begin: str
    end: str
    blocked_by: str | None = None
    begin_requested: bool = False

    def holds(self, moment: str) -> bool:
        """Whether a moment lies in the window."""
        return self.begin < moment <= self.end


def fix_window(timeline: Timeline, begin: str, end: str | None) -> Window:
    """The window up to `end`, or up to the newest write. `timeline`: with its archive if it has completion times.

    UsageError: the end is before the begin. An end in the future is moved back to the newest write: what completes
    after this read belongs to the next window.
    """
    if end is not None and end < begin:
        raise UsageError("the window ends before it begins", expected=f"an end from {begin} on", found=end)
    writes = completed_writes(timeline)
    pending = min((i.requested_time for i in timeline.inflight_writers), default=None)
    blocked = None
    if not timeline.layout.has_completion_times and pending is not None and (end is None or pending <= end):
        blocked = pending
        writes = [w for w in writes if w.requested_time < pending]
    moments = {timeline.moment_of(w) for w in writes}
    newest = max(moments, default="")
    return Window(
        begin=begin,
        end=max(begin, newest if end is None else min(end, newest)),
        blocked_by=blocked,
        begin_requested=begin not in moments and begin in {w.requested_time for w in writes},
    )


def completed_writes(timeline: Timeline) -> list[Instant]:
    """Completed writes and table services, of the archive too as far as it is loaded, each once."""
    found = {i.identity: i for i in (*timeline.archived, *timeline.instants)}
    return [i for i in found.values() if i.is_write and i.completed]
