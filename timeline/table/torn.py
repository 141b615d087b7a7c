"""Torn plans on the timeline: which there are, when one may be removed, and its removal.

Hudi writes a plan in place on local disks: killed there, it leaves an empty or torn file. A plan that is only requested
has done nothing: each process reads it from its file before it makes its instant inflight. It may be removed under the
table lock, where nothing else shows that a process works by it:

    requested      its instant is not inflight
    not written    its file has not changed for two minutes, and no heartbeat of its instant is live
    no files       of a clustering: no file of its instant is in the table

A process that stalls may have read the plan of a clustering before it was damaged: it finds the tombstone of the
instant. On version 6 an empty plan of a replace commit is that of an overwrite, which the next write rolls back. A plan
of a compaction blocks nothing but itself while no write depends on it: see `undo.unschedule`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from ..errors import ConflictError, MalformedError, PhantombaseError
from ..event_log import get_logger
from ..format.clean import decode_clean_plan
from ..format.replace_request import decode_cluster_plan, pending_clustering_file_groups
from ..format.rollback_plan import RollbackPlan, decode_restore_plan, decode_rollback_plan
from ..instants.instant_files import Torn
from ..instants.reserved_times import put_tombstone
from ..locks.heartbeat import EXPIRY_S, may_be_written
from ..locks.table_lock import TableLock
from ..storage.contract import Storage
from ..storage.server_clock import storage_ms
from .in_progress import READ_INSIDE, Guard, exclusive, refuse_pending_restore
from .table import Snapshot, Table

_log = get_logger()
_NOT_BEGUN = {
    **READ_INSIDE,
    **dict.fromkeys((Guard.RESTORE, Guard.ROLLBACK), "what is removed has done nothing, and may be what blocks both"),
}
_UNDOING = {"restore", "rollback"}


def _replacing(data: bytes, path: str) -> None:
    pending_clustering_file_groups(data, path)
    decode_cluster_plan(data, path)


def _clustering(data: bytes, path: str) -> None:
    if not data:
        raise MalformedError("an empty plan", path=path)
    _replacing(data, path)


_DECODE: dict[str, Callable[[bytes, str], object]] = {
    "clean": decode_clean_plan,
    "clustering": _clustering,
    "replacecommit": _replacing,
    "restore": decode_restore_plan,
    "rollback": decode_rollback_plan,
}


def torn_plans(table: Snapshot, *actions: str) -> tuple[Torn, ...]:
    """The torn plans of pending instants of these actions. One that is gone, and was not executed, has ended."""
    found = (
        table.files.plan(i, _DECODE[i.action])
        for i in table.timeline.instants
        if i.action in actions and not i.completed
    )
    torn = (plan for plan in found if isinstance(plan, Torn))
    return tuple(t for t in torn if t.size is not None or (t.has_begun and t.instant.family != "replacecommit"))


def removal_refused(
    table: Table, torn: Torn, now_ms: Callable[[], int], expiry_s: float = EXPIRY_S
) -> PhantombaseError | None:
    """Why a torn plan may not be removed: MalformedError, a process began on it; ConflictError, one may be at work.
    `now_ms`: by the storage's clock. `expiry_s`: after which a heartbeat is no sign of life, nor the file's change."""
    if torn.has_begun:
        return torn.error()
    what = f"be writing the plan of a {torn.name}, which cannot be read"
    if (error := still_written(table.storage, torn.path, torn.time, what, now_ms(), expiry_s)) is not None:
        return error
    if torn.instant.family != "replacecommit":
        return None
    from .traces import traces_of  # late: only a torn plan of a clustering needs it

    if doomed := traces_of(table, torn.time, "replacecommit", scan=False).doomed:
        return torn.error(f"{doomed[0][1]}, and {len(doomed) - 1} more files of it")
    return None


def still_written(
    storage: Storage, path: str, instant: str, what: str, now_ms: int, expiry_s: float = EXPIRY_S
) -> ConflictError | None:
    """Why a torn file of an instant is left alone: a process may be at work on it. `what`: it may do."""
    if not may_be_written(storage, path, instant, now_ms, expiry_s):
        return None
    return ConflictError(
        f"a process may still {what}",
        path=path,
        instant=instant,
        expected=f"a file that has not changed for {expiry_s:g} s, and no fresh heartbeat",
        todo="Stop it, or wait, then run again.",
    )


def removable(table: Snapshot, now_ms: Callable[[], int], *actions: str, strict: bool = False) -> tuple[Torn, ...]:
    """The torn plans of these actions that may be removed. `strict`: another one is an error, see `removal_refused`."""
    found = []
    for torn in torn_plans(table, *actions):
        error = removal_refused(table, torn, now_ms)
        if error is None:
            found.append(torn)
        elif strict:
            raise error
    return tuple(found)


def discard_torn(table: Snapshot, *actions: str, strict: bool = False) -> tuple[str, ...]:
    """Removes the `removable` plans; may be repeated. Returns their times. `table`: of a section."""
    storage = table.storage
    found = removable(table, cache(lambda: storage_ms(storage)), *actions, strict=strict)
    for torn in found:
        if torn.instant.family == "replacecommit":
            from .traces import undo  # late, as above

            put_tombstone(storage, torn.time)
            undo(table, torn.instant, partial(RollbackPlan, target=torn.time, action=torn.instant.action))
        else:
            storage.delete(torn.path)
        _log.warning("torn_plan_removed", table=storage.base_path, instant=torn.time, action=torn.instant.action)
    return tuple(torn.time for torn in found)


def remove_torn(table: Table, lock: TableLock, *actions: str, strict: bool = False) -> tuple[str, ...]:
    """`discard_torn` in a section of its own, which is opened if there is a torn plan."""
    if not torn_plans(table.snapshot(same_settings=True, cached=False), *actions):
        return ()
    with exclusive(table, lock, "remove a torn plan", _NOT_BEGUN) as held:
        if not _UNDOING.issuperset(actions):
            refuse_pending_restore(held)
        return discard_torn(held, *actions, strict=strict)
