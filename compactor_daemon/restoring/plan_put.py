"""Makes the plan of a restore or rollback visible, before anything of a completed write is undone.

From then on the processes of phantombase build upon nothing that it names. A process may sleep right before the put,
and lose the lock: others may have written, and have cleaned the older states. So the lock is asked once more behind the
put, and a plan that came too late goes again: it has undone nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from phantombase.timeline.errors import ConflictError, LockError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.section import Section
from phantombase.timeline.table.instant_puts import put_requested
from phantombase.timeline.table.pending_restores import PendingRestore
from phantombase.timeline.table.table import Table


def put_plan(
    table: Table, requested: Instant, content: bytes, section: Section, unused: Callable[[Timeline], bool]
) -> None:
    """LockError: the lock was lost, and the plan is gone again.

    `unused`: whether no process has begun to execute it, as far as the timeline shows that beyond the plan's own state.
    """
    put_requested(table, requested, content, section)
    try:
        section.check()
    except LockError:
        timeline = table.load_timeline()
        if _is_requested(timeline, requested) and unused(timeline):
            table.storage.delete(table.instant_path(requested))
        raise


def refuse_overtaken(table: Table, timeline: Timeline, restore: PendingRestore) -> None:
    """ConflictError: others have written since the plan of a restore was made, and it has undone nothing.

    What it would undo may be all that is left of their rows. Its process slept right before it put the plan, lost the
    lock, and died; or a writer of Hudi did not look for it.
    """
    requested, times = restore.at(State.REQUESTED), restore.plan.times
    if not times or not _is_requested(timeline, requested):
        return
    later = (i for i in timeline.instants if i.is_write and i.requested_time > min(times))
    for write in later:
        if write.requested_time not in times:
            raise ConflictError(
                "the plan of a restore does not know a later write",
                path=table.instant_path(requested),
                instant=write.requested_time,
                found=f"a {write.action}; restore {restore.instant} has undone nothing",
                todo="Stop all processes that restore the table, remove this file by hand, and restore it again.",
            )


def _is_requested(timeline: Timeline, instant: Instant) -> bool:
    """Whether it is there, and has not begun."""
    found = timeline.find(instant.requested_time, instant.family)
    return found is not None and found.state is State.REQUESTED
