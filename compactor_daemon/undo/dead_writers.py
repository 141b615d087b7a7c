"""Rolls back pending writes of dead writers, and removes rollbacks and restores that have undone nothing.

dead write    its writer is dead: see `roll_back_dead_writers`
unbegun       a rollback of a completed write, or the tombstone of a clustering, whose process died before it hid
              the write (see `undo.rollback`): it is removed, and the write is valid as if the command had not been run
torn          a requested plan of a rollback or restore, see `timeline.table.torn`. Until it is removed it blocks
              restores, rollbacks and archiving; the plan of a restore also blocks all writes. Hudi's next writer also
              removes the plan of a rollback"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

from phantombase.timeline.errors import ConflictError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.instant_files import Torn
from phantombase.timeline.instants.reserved_times import remove_tombstone
from phantombase.timeline.locks.heartbeat import EXPIRY_S, heartbeat_path, is_live, read_heartbeat
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.record_index import check_keepable
from phantombase.timeline.storage.folders import marker_folder
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.in_progress import (
    READ_INSIDE,
    Guard,
    PendingRollback,
    clustering_in_rollback,
    exclusive,
    is_pending_service,
    may_be_service,
    pending_rollbacks,
    rollbacks_of_completed,
    undoes_completed,
)
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.table.traces import forget_heartbeats

from .undo import roll_back

_log = get_logger()
_NOT_BEGUN = {
    **READ_INSIDE,
    **dict.fromkeys((Guard.RESTORE, Guard.ROLLBACK), "what is removed has undone nothing, and blocks both"),
}


def remove_unbegun_rollbacks(table: Table, lock: TableLock) -> None:
    """Removes the unbegun rollbacks whose heartbeat shows that their process, of this machine, has ended: a stalled
    process could still hide the write. LockError: see `Section`."""
    seen = table.snapshot(same_settings=True, cached=False)
    if not _unbegun(seen) and _with_tombstone(seen) is None:
        return
    with exclusive(table, lock, "remove a rollback that has undone nothing", _NOT_BEGUN) as table:
        if (clustering := _with_tombstone(table)) is not None:
            remove_tombstone(table.storage, clustering.requested_time)
            table.storage.delete(heartbeat_path(clustering.requested_time))
            where = table.storage.base_path
            _log.warning("unbegun_rollback_removed", table=where, instant=None, target=clustering.requested_time)
        for one in _unbegun(table):
            table.storage.delete(table.instant_path(one.at(State.REQUESTED)))
            table.storage.delete(heartbeat_path(one.instant))
            _log.warning(
                "unbegun_rollback_removed", table=table.storage.base_path, instant=one.instant, target=one.target
            )


def _unbegun(table: Snapshot) -> list[PendingRollback]:
    requested = {i.requested_time for i in table.timeline.pending("rollback") if i.state is State.REQUESTED}
    left = [r for r in rollbacks_of_completed(table) if r.instant in requested]
    return [r for r in left if _is_gone(table, r.instant)]


def _with_tombstone(table: Snapshot) -> Instant | None:
    """A clustering with a tombstone whose files all exist: another process may have begun to cancel it before it
    completed."""
    clustering = clustering_in_rollback(table)
    if clustering is None or not _is_gone(table, clustering.requested_time):
        return None
    made = table.commit_metadata(clustering).named_files
    return clustering if all(table.storage.find(path) is not None for path in made) else None


def _is_gone(table: Table, instant: str) -> bool:
    beat = read_heartbeat(table.storage, instant)
    return beat is not None and beat.owner_gone


def roll_back_dead_writers(
    table: Table,
    lock: TableLock,
    *,
    lazy: bool,
    now_ms: Callable[[], int] | None = None,
    expiry_s: float = EXPIRY_S,
    completed_too: bool = True,
) -> list[str]:
    """Finishes rollbacks that are in progress, rolls back every write of a dead writer, returns the rollbacks'
    instants. A rollback of a completed write that has undone nothing is removed if its process has ended. `now_ms`: the
    storage's clock (`storage_ms`), which is read once, and only if something depends on it. A writer is dead if its
    heartbeat is not live (see `heartbeat.is_live`). `lazy`: other writers may be at work, even writers without
    heartbeats; then a writer counts as dead only if none of its files is younger than `expiry_s` either, unless its
    process is known to have ended. The latest instant is first, as in Hudi. A rollback whose process is live is left
    alone. If its plan cannot be read, all other writes are left alone too: it may be of any of them. `completed_too`:
    False skips rollbacks of completed writes. ConflictError: another rollback of a completed write is pending, see
    `half_rolled_back`."""
    check_keepable(table, moves_rows=False)
    if completed_too:
        remove_unbegun_rollbacks(table, lock)
    now_ms = cache(now_ms or partial(storage_ms, table.storage))
    done: list[str] = []
    dead = partial(_is_dead, table, lazy=lazy, now_ms=now_ms, expiry_s=expiry_s)
    for instant, begun in _doomed(table, dead, completed_too=completed_too):
        done += [roll_back(table, instant, lock)] if begun else _roll_back_unless_done(table, instant, lock)
    forget_heartbeats(table, now_ms=now_ms, expiry_s=expiry_s)
    return done


def dead_writes(table: Table, *, lazy: bool, expiry_s: float = EXPIRY_S) -> frozenset[str]:
    """The times of the writes that `roll_back_dead_writers` would roll back now. Changes nothing."""
    check_keepable(table, moves_rows=False)
    dead = partial(_is_dead, table, lazy=lazy, now_ms=cache(partial(storage_ms, table.storage)), expiry_s=expiry_s)
    return frozenset(instant.requested_time for instant, _ in _doomed(table, dead, completed_too=False))


def _doomed(table: Table, dead: Callable[[Instant], bool], *, completed_too: bool) -> Iterator[tuple[Instant, bool]]:
    """Writes to roll back, and whether a rollback was started; each is checked after the rollback of the one before."""
    pending = pending_rollbacks(table)
    readable = [r for r in pending if isinstance(r, PendingRollback)]
    is_service = is_pending_service if completed_too else may_be_service
    left = [r for r in readable if not is_service(table, r.plan.instant)]
    if left and not completed_too:
        timeline = table.load_timeline()
        left = [r for r in left if not undoes_completed(timeline, r)]
    for rollback in left:
        if dead(rollback.at(State.INFLIGHT)):
            yield rollback.plan.instant, True
    known = {r.target for r in left}
    # The process of an unreadable rollback may be writing the plan right now. If it is dead, the writes are undone.
    if any(not dead(r.instant) for r in pending if isinstance(r, Torn)):
        return
    timeline = table.load_timeline()
    if completed_too:  # not for a restore, which may undo them
        known |= table.facts.uncompleted(timeline).keys()
    for instant in reversed(timeline.inflight_writers):
        if instant.requested_time not in known and not is_service(table, instant) and dead(instant):
            yield instant, False


def _roll_back_unless_done(table: Table, instant: Instant, lock: TableLock) -> list[str]:
    """Does nothing if the instant completed, or another process undid it, after it was found pending."""
    try:
        return [roll_back(table, instant, lock)]
    except ConflictError:
        now = table.load_timeline().find(instant.requested_time, instant.family)
        if now is not None and not now.completed:
            raise
        return []


def _is_dead(table: Table, instant: Instant, *, lazy: bool, now_ms: Callable[[], int], expiry_s: float) -> bool:
    storage, time = table.storage, instant.requested_time
    beat = read_heartbeat(storage, time)
    if beat is not None and is_live(beat, now_ms(), expiry_s):
        return False
    if not lazy or (beat is not None and beat.owner_gone):
        return True
    own = [storage.find(table.instant_path(instant.at(state))) for state in (State.REQUESTED, State.INFLIGHT)]
    entries = [*own, *(entry for _, entry in storage.list_below(marker_folder(time)))]
    return all(now_ms() - entry.modified_ms > expiry_s * 1000 for entry in entries if entry is not None)
