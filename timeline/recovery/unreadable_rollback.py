"""Removes plans of rollbacks that cannot be read and that no process has begun to execute.

Hudi writes a plan in place: killed there, it leaves an empty or torn file, which keeps restores, rollbacks and
archiving out. Nothing has been undone by it (see `table.pending_rollbacks`). Hudi's next writer removes it, too.
"""

from __future__ import annotations

from ..event_log import get_logger
from ..locks.heartbeat import may_be_written
from ..locks.table_lock import TableLock
from ..storage.server_clock import storage_ms
from ..table.half_upgraded import refuse_half_upgraded
from ..table.pending_rollbacks import UnreadableRollback, pending_rollbacks
from ..table.table import Table

_log = get_logger()


def remove_unreadable_rollbacks(table: Table, lock: TableLock) -> tuple[str, ...]:
    """Removes them, except those that a process may still be writing; their instants. LockError: see `Section`."""
    if not _only_requested(table):
        return ()
    gone = []
    with lock.hold("remove an unreadable plan of a rollback") as section:
        table = table.reload()
        refuse_half_upgraded(table)
        now_ms = storage_ms(table.storage)
        for one in _only_requested(table):
            if not may_be_written(table.storage, one.path, one.instant, now_ms):
                section.check()
                table.storage.delete(one.path)
                gone.append(one.instant)
                _log.warning("unreadable_rollback_removed", table=table.storage.base_path, instant=one.instant)
    return tuple(gone)


def _only_requested(table: Table) -> list[UnreadableRollback]:
    return [r for r in pending_rollbacks(table) if isinstance(r, UnreadableRollback) and r.inflight is None]
