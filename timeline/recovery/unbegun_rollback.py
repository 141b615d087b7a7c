"""Removes rollbacks of completed writes that have undone nothing, and whose process is gone.

`compactor-daemon rollback` puts the plan before it hides the write, so that nothing is built upon the write meanwhile
(see `restoring.plan_put`). If it dies in between, the write stays, as if the command had not been run.
"""

from __future__ import annotations

from ..event_log import get_logger
from ..format.instant import State
from ..instants.timeline import Timeline
from ..locks.heartbeat import heartbeat_path, read_heartbeat
from ..locks.table_lock import TableLock
from ..table.pending_rollbacks import PendingRollback, rollbacks_of_completed
from ..table.table import Table

_log = get_logger()


def remove_unbegun_rollbacks(table: Table, lock: TableLock) -> None:
    """Those with a heartbeat of a process of this machine that is gone: a process that may only sleep could hide the
    write behind that. LockError: see `Section`."""
    if not _unbegun(table, table.load_timeline()):
        return
    with lock.hold("remove a rollback that has undone nothing") as section:
        table = table.reload()
        for one in _unbegun(table, table.load_timeline()):
            section.check()
            table.storage.delete(table.instant_path(one.at(State.REQUESTED)))
            table.storage.delete(heartbeat_path(one.instant))
            _log.warning(
                "unbegun_rollback_removed", table=table.storage.base_path, instant=one.instant, target=one.target
            )


def _unbegun(table: Table, timeline: Timeline) -> list[PendingRollback]:
    requested = {i.requested_time for i in timeline.pending("rollback") if i.state is State.REQUESTED}
    left = [r for r in rollbacks_of_completed(table, timeline) if r.instant in requested]
    beats = ((r, read_heartbeat(table.storage, r.instant)) for r in left)
    return [r for r, beat in beats if beat is not None and beat.owner_gone]
