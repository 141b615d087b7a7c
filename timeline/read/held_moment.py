"""Which moment of a table a read needs: its pin holds the state at it, and all later ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from ..instants.timeline import Timeline
from ..pins.hold import hold
from ..pins.pin import PinOptions, moment_to_hold
from ..table.table import Table
from ..windows.state import moment_of_text
from ..windows.window import EARLIEST, completed_writes
from .table_read import Query, ReadOptions


def pinned(
    open_table: Callable[[], Table], options: ReadOptions, pin: PinOptions | None
) -> AbstractContextManager[None]:
    """Holds what a read needs while it reads, if it has a pin; begins before the files are planned, so that a clean
    that is planned from then on knows the pin."""
    if pin is None:
        return nullcontext()
    table = open_table()
    return hold(table.storage, pin, held_moment(table, options))


def held_moment(table: Table, options: ReadOptions) -> str:
    """A moment on the axis of incremental reads, see `moment_to_hold`. UsageError: an impossible point in time."""
    text = options.begin if options.query is Query.CHANGES else options.end
    timeline = table.load_timeline()
    if text is not None:
        moment = moment_of_text(table, text)
    elif options.as_of is not None:
        moment = moment_of_as_of(timeline, table.point_in_time(options.as_of))
    else:
        moment = max((timeline.counts_from(w) for w in completed_writes(timeline)), default=EARLIEST)
    return moment_to_hold(timeline, moment)


def moment_of_as_of(timeline: Timeline, as_of: str) -> str:
    """The last moment before the write that the point in time shows last (pure).

    What is retained from then on begins at that write or earlier. The point may lie in the archive: then before all.
    """
    writes = {w.requested_time: timeline.counts_from(w) for w in completed_writes(timeline)}
    shown = max((time for time in writes if time <= as_of), default=None)
    return EARLIEST if shown is None else max((m for m in writes.values() if m < writes[shown]), default=EARLIEST)
