"""Removes plans of rollbacks and restores that cannot be read and that no process has begun to execute.

Hudi writes a plan in place: killed there, it leaves an empty or torn file, which keeps restores, rollbacks and
archiving out, that of a restore all writes. Nothing has been undone by it (see `table.pending_rollbacks`). Hudi's next
writer removes that of a rollback, too.
"""

from __future__ import annotations

from collections.abc import Callable

from phantombase.timeline.errors import MalformedError, MissingFileError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.instant import State
from phantombase.timeline.format.rollback_plan import decode_restore_plan
from phantombase.timeline.locks.heartbeat import may_be_written
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.pending import UnreadableRollback, pending_rollbacks, refuse_half_upgraded
from phantombase.timeline.table.table import Table

_log = get_logger()


def remove_unreadable_rollbacks(table: Table, lock: TableLock) -> None:
    """Removes them, except those that a process may still be writing. LockError: see `Section`."""
    _remove(table, lock, "rollback", _torn_rollbacks)


def remove_unreadable_restores(table: Table, lock: TableLock) -> None:
    """As `remove_unreadable_rollbacks`."""
    _remove(table, lock, "restore", _torn_restores)


def _remove(table: Table, lock: TableLock, action: str, find: Callable[[Table], list[tuple[str, str]]]) -> None:
    if not find(table):
        return
    with lock.hold(f"remove an unreadable plan of a {action}") as section:
        table = table.reload()
        refuse_half_upgraded(table)
        now_ms = storage_ms(table.storage)
        for instant, path in find(table):
            if not may_be_written(table.storage, path, instant, now_ms):
                section.check()
                table.storage.delete(path)
                _log.warning(f"unreadable_{action}_removed", table=table.storage.base_path, instant=instant)


def _torn_rollbacks(table: Table) -> list[tuple[str, str]]:
    """(instant, path) of those that are only requested."""
    found = (r for r in pending_rollbacks(table) if isinstance(r, UnreadableRollback) and r.inflight is None)
    return [(r.instant, r.path) for r in found]


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
