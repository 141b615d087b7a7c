"""Removes plans of rollbacks and restores that cannot be read and that no process has begun to execute.

Hudi writes a plan in place: killed there, it leaves an empty or torn file, which keeps restores, rollbacks and
archiving out, that of a restore all writes. Nothing has been undone by it (see `table.pending_rollbacks`). Hudi's next
writer removes that of a rollback, too.
"""

from __future__ import annotations

from ..errors import MalformedError, MissingFileError
from ..event_log import get_logger
from ..format.instant import State
from ..format.restore import decode_restore_plan
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


def remove_unreadable_restores(table: Table, lock: TableLock) -> tuple[str, ...]:
    """As `remove_unreadable_rollbacks`."""
    if not _torn_restores(table):
        return ()
    gone = []
    with lock.hold("remove an unreadable plan of a restore") as section:
        table = table.reload()
        refuse_half_upgraded(table)
        now_ms = storage_ms(table.storage)
        for instant, path in _torn_restores(table):
            if not may_be_written(table.storage, path, instant, now_ms):
                section.check()
                table.storage.delete(path)
                gone.append(instant)
                _log.warning("unreadable_restore_removed", table=table.storage.base_path, instant=instant)
    return tuple(gone)


def _torn_restores(table: Table) -> list[tuple[str, str]]:
    """(instant, path) of those that are only requested."""
    found = []
    for instant in table.load_timeline().pending("restore"):
        if instant.state is State.REQUESTED:
            path = table.instant_path(instant)
            try:
                decode_restore_plan(table.storage.read(path), path)
            except MalformedError:
                found.append((instant.requested_time, path))
            except MissingFileError:  # it has begun, or is gone
                continue
    return found


def _only_requested(table: Table) -> list[UnreadableRollback]:
    return [r for r in pending_rollbacks(table) if isinstance(r, UnreadableRollback) and r.inflight is None]
