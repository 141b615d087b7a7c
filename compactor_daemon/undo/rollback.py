"""Rolls back the newest completed write, as Hudi's rollback of an instant does, or the newest completed clustering.

    write        lock   preconditions (`undo.preconditions`)
                        R.rollback.requested: the plan. From here on no process builds upon t, even if this process
                        stalls and loses the lock. If the lock was already lost, the plan is removed: others may have
                        built upon t
                        the completion time of t is kept in use: consumers may have read up to it, and no later write
                        may complete below it, by a slow clock
                        the completed file of t is deleted: t is now a write of a dead writer. A heartbeat shows
                        other processes of this machine whether this process has ended
                 then   t is rolled back as a write of a dead writer, see `undo.undo`
    clustering   lock   preconditions; a tombstone for t: no process completes t again or builds upon it. If the lock
                        was already lost, the tombstone is removed
                        the completed file of t is deleted: t is now a pending clustering. It is cancelled: the file
                        groups that it replaced are visible again

If the process dies before t is hidden, the next writer on the same machine removes the plan or the tombstone; otherwise
`compactor-daemon rollback`, or Hudi for a write, finishes the rollback. Once t is hidden, the next writer finishes it.
Hudi's rollback of a clustering leaves the plan pending: Hudi's next clustering executes the plan again."""

from __future__ import annotations

from dataclasses import dataclass

from phantombase.timeline.errors import UsageError, in_table
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import LOG_COMPACT
from phantombase.timeline.format.instant import MERGES, Instant, State
from phantombase.timeline.format.ledger import CLUSTERED, GroupLedger, decode_ledgers
from phantombase.timeline.format.rollback_plan import RollbackPlan, encode_rollback_plan
from phantombase.timeline.instants.instant_files import load_state_files
from phantombase.timeline.instants.reserved_times import has_tombstone, put_tombstone, remove_tombstone
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import first_beat, heartbeat_path
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.create import drop_within
from phantombase.timeline.read.windows import retained_since
from phantombase.timeline.shown import Shown
from phantombase.timeline.table.history import WorkFacts
from phantombase.timeline.table.in_progress import (
    Guard,
    PendingRollback,
    completed_rollback_of,
    exclusive,
    is_pending_service,
    refuse_left_to_hudi,
    regardless,
    rollbacks_of_completed,
)
from phantombase.timeline.table.table import Snapshot, Table, open_metadata_table, put_requested
from phantombase.timeline.table.torn import remove_torn
from phantombase.timeline.table.traces import traces_of, unpublish

from ..attempt.pending_clusterings import PendingClustering, planned_clustering
from ..clustering.cancel import remove
from ..unit_of_work import unit_of_work
from .preconditions import (
    is_own,
    is_requested,
    refuse_held,
    refuse_left_out,
    refuse_stale,
    refuse_upgraded_logs,
    refuse_work,
    stale_plan_removed,
)
from .undo import pending_rollback_of, roll_back

_log = get_logger()
_OWN = {Guard.ROLLBACK: "a pending rollback of the instant is the one to finish; another one is work in progress"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(Shown):
    """`rollback`: its instant; "": of a clustering, which has none. `files`: those that a clustering had joined, which
    are visible again; None: a write. `metadata_dropped`: the metadata table was dropped, since a compaction holds
    the write, or it was built after it."""

    instant: str
    rollback: str = ""
    files: int | None = None
    metadata_dropped: bool = False


def _said(done: RolledBack) -> WorkFacts:
    return WorkFacts(instant=done.instant, why="asked for by a person")


@unit_of_work("rollback", _said)
def roll_back_newest(table: Table, lock: TableLock, instant: str, *, dry_run: bool = False) -> RolledBack:
    """Rolls back a completed write, or clustering of phantombase, that nothing was built upon; a rollback of it that is
    in progress, Hudi's too, is finished.

    `dry_run`: everything is checked, nothing is changed, and `rollback` is empty.
    UsageError: a later write, plan or savepoint exists, the instant is no write of a writer, or a file that the
    clustering joined was removed. ConflictError: a process is at work, or Hudi executes the plan of the clustering.
    UnsupportedError: rows may lie in buckets of a resize. LockError, StorageError: run again; once the write is hidden
    the next writer also finishes the rollback."""
    is_write = not is_clustering(table, instant)
    if is_write:
        refuse_left_to_hudi(table, "taking back writes of")
    if not dry_run:
        remove_torn(table, lock, "rollback")
    plan = _plan(table, instant) if is_write and not dry_run else None
    with stale_plan_removed(table, lock, _remove_stale), exclusive(table, lock, f"roll back {instant}", _OWN) as table:
        if is_write and (done := completed_rollback_of(table, instant)) is not None:
            return RolledBack(instant=instant, rollback=done)
        clustering = None if is_write else _clustering(table, instant)
        found = _write(table, instant) if clustering is None else clustering[0]
        begun = pending_rollback_of(table, instant) if is_write else None
        if found.completed or (is_write and begun is None):
            refuse_work(table, {instant} if is_write else ())
            _refuse_lost(table, found, begun)
        elif is_write:
            refuse_built_upon(table, found)
        files = _refuse_lost_inputs(table, found) if clustering is not None else None
        drops = is_merged(table, found)
        if dry_run:
            table.times.check_zone(table.timeline)
            return RolledBack(instant=instant, files=files, metadata_dropped=drops)
        if clustering is not None:
            table.next_time((), {instant})  # a clock that is wrong is refused before anything is hidden
            _put_tombstone(table, found)
        elif found.completed and begun is None:
            plan = plan or traces_of(table, instant, found.action, scan=True)
            _make_visible(table, PendingRollback(instant=table.next_time((), {instant}), plan=plan))
        elif found.completed and begun is not None:  # two processes may work on it: none removes the plan now
            table.storage.delete(heartbeat_path(begun.instant))
        if drops:
            table = drop_within(table, f"this {'write' if is_write else 'clustering'} cannot be taken out of it")
        if found.completion_time is not None:  # from here on no file shows that this time was used
            put_tombstone(table.storage, found.completion_time)
        if clustering is not None:
            remove(table, clustering[1])
            _log.info("clustering_rolled_back", table=table.storage.base_path, instant=instant)
            return RolledBack(instant=instant, files=files, metadata_dropped=drops)
        with first_beat(regardless(table).storage, instant):
            unpublish(table, found)
    table = regardless(table)
    with first_beat(table.storage, instant):
        table = table.snapshot(cached=False)
        pending = table.timeline.find(instant, found.family)
        if pending is None:  # another process has rolled it back since
            table.storage.delete(heartbeat_path(instant))
            return RolledBack(instant=instant, rollback=completed_rollback_of(table, instant) or "")
        return RolledBack(instant=instant, rollback=roll_back(table, pending, lock), metadata_dropped=drops)


def _plan(table: Table, instant: str) -> RollbackPlan | None:
    """The files of a completed write, found without the lock; None: there is no such write."""
    found = [i for i in table.load_timeline().completed if i.is_write and i.requested_time == instant]
    return traces_of(table, instant, found[0].action, scan=True) if len(found) == 1 else None


def _make_visible(table: Table, rollback: PendingRollback) -> None:
    content = encode_rollback_plan(rollback.plan, table.storage.base_path)
    with first_beat(regardless(table).storage, rollback.instant):
        put_requested(table, rollback.at(State.REQUESTED), content)
    refuse_stale(table, rollback.instant)


def _remove_stale(table: Table, instant: str) -> None:
    """Removes the plan or the tombstone, unless another process executes the rollback."""
    seen = table.snapshot(same_settings=True, cached=False)
    clustering = seen.timeline.find(instant, "replacecommit")
    if not is_own(table, instant):
        return
    marked = next((r for r in rollbacks_of_completed(seen) if r.instant == instant), None)
    if marked is not None and is_requested(seen.timeline, marked.at(State.REQUESTED)):
        table.storage.delete(table.instant_path(marked.at(State.REQUESTED)))
    elif clustering is not None and clustering.completed:
        remove_tombstone(table.storage, instant)
    else:
        return
    table.storage.delete(heartbeat_path(instant))


def _refuse_lost(table: Snapshot, write: Instant, begun: PendingRollback | None) -> None:
    """UsageError: the state before the write cannot be restored, or the write was built upon. `begun`: a rollback
    that has undone nothing yet."""
    time = write.requested_time
    try:
        refuse_last(table, write)
        refuse_cleaned(table, write)
        refuse_left_out(table, {time}, time)
        refuse_upgraded_logs(table, {time}, time)
        refuse_built_upon(table, write)
    except UsageError as error:
        if begun is None:
            raise
        raise UsageError(
            error.what,
            path=error.path,
            instant=time,
            expected=error.expected,
            found="; ".join(filter(None, (error.found, f"rollback {begun.instant} of it has undone nothing"))),
            todo="Keep the write: stop all processes, and remove "
            + " and ".join(table.instant_path(begun.at(state)) for state in (State.INFLIGHT, State.REQUESTED))
            + " by hand, in this order. Hudi's next write would finish the rollback, and lose rows.",
        ) from error


def _write(table: Snapshot, instant: str) -> Instant:
    found = [i for i in table.timeline.instants if i.is_write and i.requested_time == instant]
    if len(found) != 1 or is_service(table, found[0]):
        raise UsageError(
            "only a completed write of a writer can be rolled back",
            path=table.storage.base_path,
            instant=instant,
            found=", ".join(i.action for i in found) or "no such write",
            todo=_instead(table.timeline, found[0] if len(found) == 1 else None, instant),
        )
    return found[0]


def _instead(timeline: Timeline, found: Instant | None, instant: str) -> str:
    """The way to undo an instant that is not a write of a writer."""
    if found is None:
        return "`timeline show TABLE` lists the instants."
    if not found.completed:
        pending = "cluster TABLE --cancel" if found.family == "replacecommit" else f"unschedule TABLE {instant}"
        return f"It is pending: `compactor-daemon {pending}` takes a plan of phantombase back."
    before = max((t for t in timeline.completed_writes if t < instant), default=None)
    if before is None:
        return "It changed no row, and there is no write before it."
    return f"It changed no row. `compactor-daemon restore TABLE --to {before}` undoes it, and all behind it."


def is_service(table: Table, write: Instant) -> bool:
    """Whether a write, pending or completed, is a compaction, log compaction or clustering: its first file shows it."""
    files = load_state_files(table.storage, table.config).files(write)
    return bool(files) and is_pending_service(table, files[0].instant)


def refuse_built_upon(table: Snapshot, write: Instant) -> None:
    """UsageError: a later instant was built upon the write, or a savepoint keeps it."""
    moment = table.timeline.moment_of(write) if write.completed else write.requested_time
    for other in table.timeline.instants:
        if not other.is_write or other == write:
            continue
        if other.requested_time > write.requested_time or (
            other.completed and table.timeline.moment_of(other) > moment
        ):
            raise UsageError(
                "only the newest write can be rolled back",
                path=table.storage.base_path,
                instant=write.requested_time,
                found=f"{other.action} {other.requested_time} came later",
                todo="`compactor-daemon restore TABLE --to INSTANT` takes all after an instant back; a plan that is "
                "only requested: `compactor-daemon unschedule`.",
            )
    before = max((t for t in table.timeline.completed_writes if t < write.requested_time), default="")
    refuse_held(table, before)


def refuse_last(table: Snapshot, write: Instant) -> None:
    """UsageError: only archived writes would be left. Hudi would find none of their rows; its upserts double them."""
    if all(i == write for i in table.timeline.completed) and table.with_archive(table.timeline).has_archived_writes:
        raise UsageError(
            "no completed write would be left on the active timeline, and earlier ones are archived",
            path=table.storage.base_path,
            instant=write.requested_time,
            expected="another write that stays there",
            found="none: Hudi would find none of the rows, and its next upsert would double them",
            todo="Write the old rows again.",
        )


def refuse_cleaned(table: Snapshot, write: Instant) -> None:
    """UsageError: a clean did not retain the state before the write, as one that retains one file version."""
    retained = retained_since(table)
    if write.completed and retained > write.requested_time:
        raise UsageError(
            "files of the state before this write may have been cleaned",
            path=table.storage.base_path,
            instant=write.requested_time,
            expected=f"a write from {retained} on",
            todo="Write the old rows again.",
        )


def is_merged(table: Table, write: Instant) -> bool:
    """Whether a compaction, or log compaction, of the metadata table has merged the write, or its plan may name a log
    file of it; or the metadata table was built after the write. The write's records cannot be removed then: a plan
    without one of its files cannot be executed, and Hudi's readers would list what was merged, or built upon."""
    if not table.config.metadata_partitions:
        return False
    metadata = open_metadata_table(table)
    if write.completed and metadata.timeline.find(write.requested_time, "deltacommit") is None:
        return True
    later = [i for i in metadata.timeline.instants if i.requested_time > write.requested_time]
    logs = (i for i in later if i.completed and i.family == "deltacommit")
    return any(i.family == "commit" or i.action in MERGES for i in later) or any(
        metadata.commit_metadata(i).operation_type == LOG_COMPACT for i in logs
    )


def is_clustering(table: Table, instant: str) -> bool:
    """Whether an instant is a clustering of phantombase: its rollback is one, or has begun."""
    found = table.load_timeline().find(instant, "replacecommit")
    if found is None or planned_clustering(table, found) is None:
        return False
    return has_tombstone(table.storage, instant) if not found.completed else bool(_ledgers(table, found))


def _put_tombstone(table: Table, found: Instant) -> None:
    """From here on no process builds upon the clustering. LockLostPlanError: one may have built upon it."""
    time = found.requested_time
    if has_tombstone(table.storage, time):
        if found.completed:  # two processes may work on it: none removes the tombstone now
            table.storage.delete(heartbeat_path(time))
        return
    with first_beat(regardless(table).storage, time):
        put_tombstone(table.storage, time)
    refuse_stale(table, time)


def _clustering(table: Snapshot, instant: str) -> tuple[Instant, PendingClustering]:
    found = table.timeline.find(instant, "replacecommit")
    pending = None if found is None else planned_clustering(table, found)
    if found is None or pending is None:
        raise UsageError(
            "no such clustering",
            path=table.storage.base_path,
            instant=instant,
            todo="`timeline show TABLE --pending` lists the pending ones.",
        )
    return found, pending


def _ledgers(table: Table, done: Instant) -> list[GroupLedger]:
    """The ledgers of a clustering that phantombase completed; empty if Hudi executed it."""
    text = table.commit_metadata(done).extra_metadata.get(CLUSTERED)
    return [] if text is None else decode_ledgers(text, table.instant_path(done))


def _refuse_lost_inputs(table: Table, done: Instant) -> int:
    """The number of joined files. UsageError: one of them does not exist any more, so its rows would be lost."""
    if not done.completed:
        return 0
    joined = [one.path(name) for one in _ledgers(table, done) for name in one.inputs]
    for path in joined:
        if table.storage.find(path) is None:
            raise UsageError(
                "a file that this clustering joined is gone",
                path=in_table(path),
                instant=done.requested_time,
                todo="The clustering must stay: its files have all rows.",
            )
    return len(joined)
