"""Removes rollbacks of completed writes that have undone nothing, and whose process is gone.

`compactor-daemon rollback` puts the plan before it hides the write, so that nothing is built upon the write meanwhile
(see `restoring.plan_put`). If it dies in between, the write stays, as if the command had not been run. So it is with
the burial of a stitching that is taken back (see `stitching.rollback`).
"""

from __future__ import annotations

from ..event_log import get_logger
from ..format.instant import Instant, State
from ..instants.reserved_times import dig_up
from ..instants.timeline import Timeline
from ..locks.heartbeat import heartbeat_path, read_heartbeat
from ..locks.table_lock import TableLock
from ..table.pending_rollbacks import PendingRollback, half_taken_back, rollbacks_of_completed
from ..table.table import Table

_log = get_logger()


def remove_unbegun_rollbacks(table: Table, lock: TableLock) -> None:
    """Those with a heartbeat of a process of this machine that is gone: a process that may only sleep could hide the
    write behind that. LockError: see `Section`."""
    timeline = table.load_timeline()
    if not _unbegun(table, timeline) and _buried(table, timeline) is None:
        return
    with lock.hold("remove a rollback that has undone nothing") as section:
        table = table.reload()
        timeline = table.load_timeline()
        if (stitching := _buried(table, timeline)) is not None:
            section.check()
            dig_up(table.storage, stitching.requested_time)
            table.storage.delete(heartbeat_path(stitching.requested_time))
            where = table.storage.base_path
            _log.warning("unbegun_rollback_removed", table=where, instant=None, target=stitching.requested_time)
        for one in _unbegun(table, timeline):
            section.check()
            table.storage.delete(table.instant_path(one.at(State.REQUESTED)))
            table.storage.delete(heartbeat_path(one.instant))
            _log.warning(
                "unbegun_rollback_removed", table=table.storage.base_path, instant=one.instant, target=one.target
            )


def _unbegun(table: Table, timeline: Timeline) -> list[PendingRollback]:
    requested = {i.requested_time for i in timeline.pending("rollback") if i.state is State.REQUESTED}
    left = [r for r in rollbacks_of_completed(table, timeline) if r.instant in requested]
    return [r for r in left if _is_gone(table, r.instant)]


def _buried(table: Table, timeline: Timeline) -> Instant | None:
    """A stitching whose files are all there: another process may have begun to take it back before it completed."""
    stitching = half_taken_back(table, timeline)
    if stitching is None or not _is_gone(table, stitching.requested_time):
        return None
    made = table.commit_metadata(stitching).named_files
    return stitching if all(table.storage.find(path) is not None for path in made) else None


def _is_gone(table: Table, instant: str) -> bool:
    beat = read_heartbeat(table.storage, instant)
    return beat is not None and beat.owner_gone
