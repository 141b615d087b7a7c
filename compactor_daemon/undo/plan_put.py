"""Makes the plan of a restore or rollback visible, before anything of a completed write is undone.

From then on the processes of phantombase build upon nothing that it names. A process may sleep right before the put,
and lose the lock: others may have written, and have cleaned the older states. So the lock is asked once more behind the
put, and a plan that came too late goes again: it has undone nothing. It goes under the lock, since another process may
go on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from phantombase.timeline.errors import ConflictError, LockError, LockLostPlanError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import Process, read_heartbeat
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.table.pending import PendingRestore
from phantombase.timeline.table.table import Table


@contextmanager
def stale_plan_removed(table: Table, lock: TableLock, remove: Callable[[Table, str, Section], None]) -> Iterator[None]:
    """Around the section that makes a plan visible: removes one that came too late, if no process goes on with it.

    `remove`: called under the lock, with the instant of the plan. Where the lock is not had, the plan stays: see
    `refuse_overtaken`.
    """
    try:
        yield
    except LockLostPlanError as late:
        with suppress(LockError), lock.hold("remove a plan that came too late") as section:
            remove(table.reload(), late.instant or "", section)
        raise


def refuse_stale(section: Section, instant: str) -> None:
    """Called right after the put of a plan. LockLostPlanError: the lock was lost; `stale_plan_removed` removes it."""
    try:
        section.check()
    except LockError as error:
        raise LockLostPlanError(
            error.what, path=error.path, instant=instant, expected=error.expected, found=error.found, todo=error.todo
        ) from error


def is_own(table: Table, instant: str) -> bool:
    """Whether the heartbeat of a plan is of this process: one that goes on with the plan removes it."""
    beat = read_heartbeat(table.storage, instant)
    return beat is not None and beat.owner == Process.current()


def refuse_overtaken(table: Table, timeline: Timeline, restore: PendingRestore) -> None:
    """ConflictError: others have written since the plan of a restore was made, and it has undone nothing.

    What it would undo may be all that is left of their rows. Its process slept right before it put the plan, lost the
    lock, and died; or a writer of Hudi did not look for it.
    """
    requested, times = restore.at(State.REQUESTED), restore.plan.times
    if not times or not is_requested(timeline, requested):
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


def is_requested(timeline: Timeline, instant: Instant) -> bool:
    """Whether it is there, and has not begun."""
    found = timeline.find(instant.requested_time, instant.family)
    return found is not None and found.state is State.REQUESTED
