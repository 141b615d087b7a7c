"""Restores a table to the state at an instant: every later write is undone, the newest first.

    lock   preconditions are checked; writes of dead writers are rolled back
           <T>.restore.requested: the instants to undo. From here on the next run continues after a crash. If the lock
           was already lost, the plan is removed: others may have written
           the metadata table, if there is one, is dropped: the next Hudi writer builds it again
           <T>.restore.inflight, then each instant, see `undo.undo`
           <T>.restore

A plan that cannot be read, since Hudi was killed while it wrote it, is removed if nothing began. If the restore has
begun, a plan to the instant that a user names takes its place: what is left of the later writes is undone.

The lock is held all the time. Writers, planners and other services of phantombase refuse to start while a restore is
pending. Hudi can finish a restore of phantombase, and phantombase one of Hudi."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from phantombase.timeline.errors import ConflictError, MissingFileError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.instant import State
from phantombase.timeline.format.rollback_plan import (
    RestorePlan,
    RollbackPlan,
    encode_restore_metadata,
    encode_restore_plan,
    rollback_record,
)
from phantombase.timeline.instants.instant_files import Torn
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import EXPIRY_S
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.create import drop_within
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.history import WorkFacts
from phantombase.timeline.table.in_progress import (
    READ_INSIDE,
    Guard,
    PendingRestore,
    PendingRollback,
    exclusive,
    forget_rollbacks,
    pending_restore,
    pending_rollbacks,
    refuse_in_progress,
    refuse_left_to_hudi,
)
from phantombase.timeline.table.table import Snapshot, Table, put_requested
from phantombase.timeline.table.torn import remove_torn, still_written, torn_plans
from phantombase.timeline.table.traces import Undone, undo

from ..unit_of_work import unit_of_work
from .dead_writers import dead_writes, roll_back_dead_writers
from .preconditions import (
    refuse_held,
    refuse_left_out,
    refuse_overtaken,
    refuse_stale,
    refuse_torn_target,
    refuse_upgraded_logs,
    refuse_work,
    refuse_writers,
    stale_plan_removed,
    without_torn,
)
from .savepoint import refuse_cleaned
from .undo import traces_of_all

_log = get_logger()
_OWN = {
    **READ_INSIDE,
    Guard.RESTORE: "a pending restore is the one to finish",
    Guard.ROLLBACK: "rollbacks of writes that are undone are removed with these",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Shown):
    """`instant`: of the restore; None: nothing was to be undone, or a dry run. `target`: whose state is restored.
    `undone`: (time, action), the newest first. `files`: the number of files removed, or to be removed. `finished`: the
    restore was pending. `metadata_dropped`: the metadata table was dropped. `dead`: times of pending writes of dead
    writers, which are rolled back first, or would be."""

    instant: str | None
    target: str | None
    undone: tuple[tuple[str, str], ...]
    files: int
    finished: bool = False
    metadata_dropped: bool = False
    dead: tuple[str, ...] = ()


def _said(done: Restored) -> WorkFacts | None:
    if done.instant is None and not done.dead:
        return None
    why = f"to {done.target}: asked for by a person"
    return WorkFacts(instant=done.instant, why=why, files_before=done.files, files_after=0)


@unit_of_work("restore", _said)
def restore_table(
    table: Table, lock: TableLock, target: str | None, *, dry_run: bool = False, expiry_s: float = EXPIRY_S
) -> Restored:
    """Restores the state at a completed write, or at a savepoint. A pending restore is finished instead.

    `target` None: only a pending restore is finished. `expiry_s`: see `roll_back_dead_writers`. UsageError: no such
    write, no complete state of it, a later savepoint, none pending, or see `preconditions`. ConflictError: a process is
    at work, or a reader holds a later state; another restore is pending. UnsupportedError: a resize of buckets could be
    undone. LockError, StorageError: the next run continues."""
    refuse_left_to_hudi(table, "restoring")
    if target is not None and _unreadable(table.snapshot(same_settings=True, cached=False)) is not None:
        return _restore_anew(table, lock, target, dry_run=dry_run)
    if dry_run:
        seen = table.snapshot(cached=False)
        refuse_in_progress(seen, _OWN)
        is_new = target is not None and pending_restore(seen) is None
        dead = dead_writes(seen, lazy=False, expiry_s=expiry_s) if is_new else frozenset()
        found, plan, traces = _decide(seen, target, dead)
        return Restored(
            instant=None,
            target=plan.target,
            undone=plan.undone,
            files=sum(len(one.doomed) for one in traces.values()),
            finished=found is not None,
            metadata_dropped=bool(plan.undone and seen.config.metadata_partitions),
            dead=tuple(sorted(dead)),
        )
    dead = frozenset()
    remove_torn(table, lock, "restore")
    if target is not None and pending_restore(table.snapshot(same_settings=True, cached=False)) is None:
        remove_torn(table, lock, "rollback")
        dead = dead_writes(table, lazy=False, expiry_s=expiry_s)
        # Rollbacks of completed writes are undone with the others, see `forget_rollbacks`.
        roll_back_dead_writers(table, lock, lazy=False, expiry_s=expiry_s, completed_too=False)
    with stale_plan_removed(table, lock, _remove_stale), exclusive(table, lock, "restore the table", _OWN) as seen:
        found, plan, traces = _decide(seen, target)  # refuses what cannot be undone: nothing is changed yet
        if found is not None:
            return _execute(seen, found, traces, finished=True)
        if not plan.undone:
            return Restored(instant=None, target=target, undone=(), files=0, dead=tuple(sorted(dead)))
        refuse_writers(seen)
        restore = PendingRestore(instant=seen.next_time((), plan.times), plan=plan)
        put_requested(seen, restore.at(State.REQUESTED), encode_restore_plan(plan))
        refuse_stale(seen, restore.instant)
        return replace(_execute(seen, restore, traces, finished=False), dead=tuple(sorted(dead)))


def _decide(
    table: Snapshot, target: str | None, dead: frozenset[str] = frozenset()
) -> tuple[PendingRestore | None, RestorePlan, Mapping[tuple[str, str], RollbackPlan]]:
    """The pending restore, if there is one; its plan or that of a new one; and the files of what is undone. `dead`: as
    in `_plan`."""
    found = pending_restore(table)
    if found is not None:
        _refuse_other(table, found, target)
        refuse_overtaken(table, found)
    plan = found.plan if found is not None else _plan(table, target, dead)
    refuse_upgraded_logs(table, plan.times, plan.target, begun=found is not None)
    return found, plan, traces_of_all(table, plan.undone) if plan.undone else {}


def _unreadable(table: Snapshot) -> Torn | None:
    """The restore that has begun and whose plan cannot be read, if there is one: what it was to undo is unknown."""
    return next((torn for torn in torn_plans(table, "restore") if torn.has_begun), None)


def _restore_anew(table: Table, lock: TableLock, target: str, *, dry_run: bool) -> Restored:
    """Finishes a restore whose plan cannot be read: a plan to `target` takes the place of that plan. Each completed
    write that is left is whole, since an undo hides a write before it touches its files. Errors: as `restore_table`;
    ConflictError: a process may still work on it; see `_refuse_gap`."""
    if dry_run:
        seen = table.snapshot(cached=False)
        plan = _plan(seen, target, begun=True)
        traces = traces_of_all(seen, plan.undone)
        doomed = sum(len(one.doomed) for one in traces.values())
        return Restored(instant=None, target=target, undone=plan.undone, files=doomed, finished=True)
    remove_torn(table, lock, "rollback")
    with exclusive(table, lock, "restore the table", _OWN) as seen:
        torn = _unreadable(seen)
        if torn is None:
            raise ConflictError(
                "the plan of a restore was written again", path=seen.storage.base_path, todo="Run again."
            )
        restore, now_ms = torn.time, storage_ms(seen.storage)
        for path in (torn.path, seen.instant_path(torn.instant.at(State.INFLIGHT))):
            what = "work on a restore whose plan cannot be read"
            if (error := still_written(seen.storage, path, restore, what, now_ms)) is not None:
                raise error
        plan = _plan(seen, target, begun=True)
        refuse_upgraded_logs(seen, plan.times, target, begun=True)
        traces = traces_of_all(seen, plan.undone)
        seen.storage.overwrite(torn.path, encode_restore_plan(plan))  # from here on it is any pending restore
        _log.warning("restore_planned_anew", table=seen.storage.base_path, instant=restore, target=target)
        return _execute(seen, PendingRestore(instant=restore, plan=plan), traces, finished=True)


def _refuse_gap(table: Snapshot, target: str) -> None:
    """UsageError: a write up to `target` was built upon files of a write that is undone, so that the restore was to an
    earlier instant. Hudi's restore undoes clusterings before all other writes."""
    known = {i.requested_time for i in table.with_archive(table.timeline).archived}
    known |= {i.requested_time for i in table.timeline.instants}
    for time_, done in sorted(table.timeline.completed_writes.items()):
        if time_ > target:
            return
        for stats in table.commit_metadata(done).partition_to_write_stats.values():
            bases = {_instant_of(name) for stat in stats for name in (stat.base_file, stat.prev_base_file)}
            bases |= {stat.prev_commit for stat in stats}
            for base in sorted(one for one in bases if one not in (None, "", "null")):
                if table.timeline.start < base and base not in known:
                    raise UsageError(
                        "the restore in progress was to an earlier instant: it has undone what a later write needs",
                        path=table.instant_path(done),
                        instant=target,
                        expected=f"a state before {base}",
                        found=f"files of {base}, which is undone, under write {time_}",
                    )


def _instant_of(name: str | None) -> str | None:
    parsed = parse_data_file(name.rpartition("/")[2]) if name else None
    return None if parsed is None else parsed.instant


def _remove_stale(table: Table, instant: str) -> None:
    late = table.load_timeline().find(instant, "restore")
    if late is not None and late.state is State.REQUESTED:
        table.storage.delete(table.instant_path(late))


# --- the plan --------------------------------------------------------------------------------------------------------


def to_undo(timeline: Timeline, target: str) -> tuple[tuple[str, str], ...]:
    """The writes, plans and services after an instant, the newest first (pure). By requested time, as in reads as of an
    instant. A compaction that was requested before the target and completed after it is kept: it merged nothing that
    was written after its plan."""
    later = [i for i in timeline.instants if i.is_write and i.requested_time > target]
    # Of two instants of one time the service is undone first: the other one is older.
    ordered = sorted(later, key=lambda i: (i.requested_time, i.family != "deltacommit"), reverse=True)
    return tuple((i.requested_time, i.action) for i in ordered)


def _plan(
    table: Snapshot, target: str | None, dead: frozenset[str] = frozenset(), *, begun: bool = False
) -> RestorePlan:
    """The plan of a new restore. `dead`: times of pending writes that are rolled back before it starts. `begun`: a
    restore is in progress whose plan cannot be read, and which may have left an instant half undone."""
    if target is None:
        raise UsageError(
            "no restore is pending",
            path=table.storage.base_path,
            todo="Give the instant whose state you want back: --to INSTANT. `timeline show TABLE` lists them.",
        )
    if target not in table.timeline.completed_writes:
        raise UsageError(
            "only the state at a completed write of the active timeline can be restored",
            path=table.storage.base_path,
            instant=target,
            todo="`timeline show TABLE` lists the instants, `compactor-daemon savepoint list TABLE` the savepoints.",
        )
    _refuse_archived(table, target)
    refuse_torn_target(table, target)
    half = _half_undone(table, target) if begun else {}
    refuse_work(table, dead | half.keys() | {time for time in table.timeline.completed_writes if time > target})
    refuse_held(table, target)
    left = [i for i in table.timeline.instants if i.completed or i.requested_time not in dead]
    living = replace(table.timeline, instants=tuple(left))
    refuse_cleaned(table.with_timeline(living), target)
    seen = table.snapshot(same_settings=True)  # both read all partitions
    undone = to_undo(living, target)
    undone = (*(one for one in half.items() if one[0] not in dict(undone)), *undone)
    if begun:
        _refuse_gap(seen.with_timeline(table.timeline), target)
    known = without_torn(seen.with_timeline(table.timeline), {time for time, _ in undone})
    _check_whole(seen.with_timeline(known), target)
    _refuse_lost(seen.with_timeline(known), undone, target)
    refuse_left_out(seen.with_timeline(table.timeline), {time for time, _ in undone}, target)
    return RestorePlan(target=target, undone=undone)


def _half_undone(table: Table, target: str) -> dict[str, str]:
    """The instants behind `target` that a restore of Hudi undoes by a pending rollback: their actions, by time."""
    pending = (one for one in pending_rollbacks(table) if isinstance(one, PendingRollback))
    return {one.target: one.plan.action for one in pending if one.target > target}


def _check_whole(table: Snapshot, target: str) -> None:
    """MissingFileError: a file of a completed compaction is lost. Plans that are to be undone are not read: an
    unreadable plan is a reason to restore the table."""
    known = tuple(i for i in table.timeline.instants if i.completed or i.requested_time <= target)
    _load_groups(table.with_timeline(replace(table.timeline, instants=known)))


def _load_groups(table: Snapshot) -> None:
    """MissingFileError: a base file that a completed compaction made by this timeline does not exist."""
    facts = table.load_facts()
    made = {i.requested_time for i in table.timeline.completed if i.family != "deltacommit"}
    for partition in table.partitions():
        for group in table.views.partition_groups(partition, table.timeline, facts):
            for flaw in group.flaws:
                if flaw.found is None and flaw.instant in made:
                    raise flaw.error()


def _refuse_lost(table: Snapshot, undone: Sequence[tuple[str, str]], target: str) -> None:
    """UsageError: the restored state would lack a base file. A compaction or clustering that was pending at the target,
    and completed later, is kept (see `to_undo`); a savepoint keeps its inputs, not its base files, which a clean of
    Hudi may have removed since."""
    later = set(undone)
    left = replace(
        table.timeline, instants=tuple(i for i in table.timeline.instants if (i.requested_time, i.action) not in later)
    )
    try:
        _load_groups(table.with_timeline(left))
    except MissingFileError as error:
        raise UsageError(
            "the state at this instant cannot be restored whole: a base file that was made later is gone",
            path=error.below(table.storage.base_path).path,
            instant=target,
            found=f"{error.instant} completed after it, and its file was cleaned",
            todo="Restore to a later instant.",
        ) from error


def _refuse_archived(table: Snapshot, target: str) -> None:
    """UsageError: a later write is archived, as where Hudi archives beyond savepoints."""
    archived = (i.requested_time for i in table.with_archive(table.timeline).archived if i.is_write)
    if later := min((time for time in archived if time > target), default=None):
        raise UsageError(
            "a later write is archived, and cannot be undone",
            path=table.storage.base_path,
            instant=later,
            expected=f"all writes after {target} on the active timeline",
        )


def _refuse_other(table: Table, found: PendingRestore, target: str | None) -> None:
    if target not in (None, found.plan.target):
        raise ConflictError(
            "a restore to another instant is in progress",
            path=table.storage.base_path,
            instant=found.instant,
            expected=f"to {target}",
            found=f"to {found.plan.target}",
            todo="Finish it first: `compactor-daemon restore TABLE`.",
        )


# --- execution -------------------------------------------------------------------------------------------------------


def _execute(
    table: Table, restore: PendingRestore, traces: Mapping[tuple[str, str], RollbackPlan], *, finished: bool
) -> Restored:
    """Undoes what the plan names and completes the restore; every step may have been done before."""
    started, storage, plan = time.monotonic(), table.storage, restore.plan
    if dropped := bool(table.config.metadata_partitions):
        table = drop_within(table, "the table is restored")
    storage.put_if_absent(table.instant_path(restore.at(State.INFLIGHT)), b"")
    undone: list[Undone] = []
    for one in plan.undone:
        undone.append(undo(table, traces[one].instant, partial(traces.__getitem__, one)))
        _log.info("undone", table=storage.base_path, instant=one[0], action=one[1])
    # Hudi's restore requests such rollbacks, too.
    forget_rollbacks(table.with_timeline(table.load_timeline()), plan.times)
    milliseconds = int((time.monotonic() - started) * 1000)
    records = {
        u.plan.target: rollback_record(u.plan, restore.instant, milliseconds, u.commands, storage.base_path)
        for u in undone
    }
    content = encode_restore_metadata(plan, restore.instant, milliseconds, records)
    completion = table.with_timeline(table.load_timeline()).completion_time((), plan.times)
    done = replace(restore.at(State.COMPLETED), completion_time=completion)
    storage.put_if_absent(table.instant_path(done), content)
    return Restored(
        instant=restore.instant,
        target=plan.target,
        undone=plan.undone,
        files=sum(len(u.plan.doomed) for u in undone),
        finished=finished,
        metadata_dropped=dropped,
    )
