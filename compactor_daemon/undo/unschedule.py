"""Removes a requested compaction from the timeline (docs/internals/protocol.md: Cancelling a plan). All steps run under
one hold of the table lock, in this order:

    revert     the files of a decision that was not published are reverted, see `revert_files`
    end        every attempt without an outcome is declared dead
    cancel     a new attempt gets the outcome `cancelled`: the tombstone, so that the instant is never used again
    remove     the files of a dead Hudi executor are removed (see `preconditions.refuse_touched`), then the plan. From
               here on the instant is unscheduled, and no attempt can decide
    check      attempts that were opened since then are ended too (opening one takes no lock). If a process without the
               lock, or with an expired one, has nevertheless touched the instant, the plan is put back: so there is
               never a `commit` without a plan, and never two

A crash before the removal of the plan changes nothing: unscheduling starts again, with all its checks.

From a plan of several file groups, those without a log of the instant are removed, and the plan is kept with the
others: see `_narrow`. A file group with such logs cannot be removed. The logs name the plan as their base instant:
without a plan and without a base file of that instant, Hudi's readers take them for the complete file group, or skip
them. Renamed logs would be found by readers, but not by the commits that wrote them, nor by Hudi's rollbacks, which
search for the base instant that a commit names: rolled back rows would be visible again once the commit is archived. So
the file group must be compacted, or replaced by an insert_overwrite of its partition.

A pending log compaction is safe to remove: no reader or writer depends on it.

Hudi has its own command (CompactionAdminClient, with all writers stopped). Release 0.15 renames the logs, and removes
the plan only if there were logs; 1.x removes the plan without looking for logs. Neither leaves a tombstone.

Torn plans (`timeline.table.torn`): no process can have worked under an empty compaction plan, because readers and
writers fail on it. And no reader or writer depends on a log compaction plan, whatever its content. So such a plan may
be removed unread, if nothing of its instant exists. But the file may also have been emptied later, by a damaged disk: a
write after the plan may depend on it."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial

from phantombase.timeline.errors import AttemptDeadError, BarrierError, ConflictError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.compaction_plan import CompactionOperation, CompactionPlan, decode_plan, encode_plan
from phantombase.timeline.format.instant import State
from phantombase.timeline.instants.instant_files import Torn
from phantombase.timeline.instants.reserved_times import instant_folder
from phantombase.timeline.locks.heartbeat import Heartbeat, is_live, process_name, read_heartbeat
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.merge.slice_log import log_may_delete
from phantombase.timeline.metadata_table.update import forget
from phantombase.timeline.planning.partition_walk import NOTES
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.in_progress import READ_INSIDE, Guard, exclusive, regardless
from phantombase.timeline.table.table import Snapshot, Table, from_one_snapshot
from phantombase.timeline.table.torn import removal_refused
from phantombase.timeline.view.view import GroupKey, TableView

from ..attempt.compact_or_resume import pending_instants
from ..attempt.hudi_executors import inflight_path
from ..attempt.outcome import (
    CommitDecision,
    cancelled_record,
    decisions,
    declare_dead,
    find_decision,
    leave_replaced,
    open_next,
    read_outcomes,
    write_outcome,
)
from ..attempt.publish import remove_staged
from ..attempt.revert import revert_files
from ..options import AttemptOptions
from .preconditions import refuse_inflight, refuse_touched, written_groups
from .undo import movable_keys, refuse_moved

_BY_NAME = {**READ_INSIDE, Guard.ROLLBACK: "one that concerns the plan is refused by name; the plan may block others"}
_RESTORE = (
    "Restore the file from a copy, or restore the table to an instant before it: `compactor-daemon restore TABLE --to "
    "INSTANT`."
)


def _torn(table: Table, instant: str) -> Torn | None:
    """A pending plan that is torn, and may be removed unread. MalformedError: it is torn, and must be kept."""
    torn = table.files.plan(table.files.requested_merge(instant), decode_plan)
    if not isinstance(torn, Torn):
        return None
    if table.storage.find(inflight_path(table, instant)) is not None:
        torn = replace(torn, instant=torn.instant.at(State.INFLIGHT))
    if torn.size and torn.instant.action == "compaction":
        raise torn.error()
    return torn


def _refuse_begun(table: Table, torn: Torn, options: AttemptOptions) -> CompactionPlan:
    """A plan without operations, as a substitute for the torn one; the caller holds the table lock. ConflictError,
    BarrierError, MalformedError: something of the instant exists, or may still appear, or a write may depend on the
    plan."""
    refused = removal_refused(table, torn, lambda: storage_ms(table.storage), options.heartbeat_expiry_s)
    if refused is None and decisions(table.storage, torn.time):
        refused = torn.error("a decision")
    if refused is not None:
        raise refused
    plan = CompactionPlan(operations=(), action=torn.instant.action)
    if not plan.merges_logs:
        _refuse_written(table, torn.time, torn.path)
    refuse_touched(table, torn.time, plan, options)
    return plan


def _refuse_written(table: Table, instant: str, path: str) -> None:
    """ConflictError, BarrierError: a write is later than the plan. The write may have read the plan, and put keys into
    other file groups because of it."""
    later = [i for i in table.load_timeline().instants if i.family == "deltacommit" and i.requested_time > instant]
    for write in later:
        if write.completed:
            raise ConflictError(
                "a write came after a plan that cannot be read; without the plan its rows may be lost or doubled",
                path=path,
                instant=instant,
                expected="no delta commit after it",
                found=write.requested_time,
                todo=_RESTORE,
            )
        raise BarrierError(
            "a pending write may depend on a plan that cannot be read",
            path=path,
            instant=instant,
            expected="no delta commit after it",
            found=write.requested_time,
            todo="Wait until it was rolled back, then run again.",
        )


_log = get_logger()

_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscheduled(Shown):
    """A removed plan: its instant, the number of its file groups that are free now, and the attempts that were ended.
    `kept`: file groups that are kept in the plan, see `_narrow`."""

    instant: str
    file_groups: int
    attempts: tuple[int, ...]
    kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Removable:
    """A plan that may be removed, in a section. `kept`: file groups that must be kept in it. `decision`: to revert.
    `beat`: of a process at work. `torn`: it cannot be read."""

    table: Snapshot
    instant: str
    plan: CompactionPlan
    kept: frozenset[GroupKey] = frozenset()
    decision: CommitDecision | None = None
    beat: Heartbeat | None = None
    torn: Torn | None = None


def unschedule(
    table: Table, instant: str, lock: TableLock, options: AttemptOptions | None = None, *, dry_run: bool = False
) -> Unscheduled:
    """Removes a pending compaction plan. `lock` is the one that all writers and schedulers share. A plan that cannot be
    read: see the module. `dry_run`: everything is checked, nothing is changed. UsageError: no such plan.
    MalformedError: the plan cannot be read, and must be kept. ConflictError, BarrierError: refused, see the module;
    also if the compaction is being published, or a rollback names it. After a refusal the plan still exists."""
    options = options or AttemptOptions()
    with removable(table, instant, lock, options, "unschedule a compaction", dry_run=dry_run) as found:
        groups, kept = len(found.plan.operations), len(found.kept)
        done = Unscheduled(instant=instant, file_groups=groups - kept, attempts=(), kept=kept)
        if dry_run:
            return done
        if kept:
            ended = _narrow(found)
        else:
            ended = remove_plan(found, options, f"unscheduled by {process_name()}")
            remove_staged(regardless(found.table).storage, instant)
    done = replace(done, attempts=tuple(sorted(ended)))
    _log.info("unscheduled", instant=instant, file_groups=done.file_groups, kept=done.kept, attempts=done.attempts)
    return done


def group_of(operation: CompactionOperation) -> GroupKey:
    return operation.partition_path, operation.file_id


@contextmanager
def removable(
    table: Table, instant: str, lock: TableLock, options: AttemptOptions, purpose: str, *, dry_run: bool
) -> Iterator[Removable]:
    """The section in which a plan is removed, once all of it is checked. The keys are looked at before the section."""
    pending_instants(table, instant)
    deletes = cache(partial(log_may_delete, table.storage, table.config.merge_settings.marker))
    for _ in range(_TRIES):
        table, keys = table.snapshot(cached=False), None
        if is_read := _torn(table, instant) is None:
            view = from_one_snapshot(partial(_view, table, instant))
            keys = movable_keys(view, instant, deletes)
            refuse_moved(table, view, instant, keys)
        if not dry_run:
            table.storage.verify()
        with exclusive(table, lock, purpose, _BY_NAME) as held:
            pending_instants(held, instant)
            if ((torn := _torn(held, instant)) is None) != is_read:
                continue
            if torn is not None:
                found = Removable(table=held, instant=instant, plan=_refuse_begun(held, torn, options), torn=torn)
            else:
                found = _refuse(held, instant, options)
                if movable_keys(_view(held, instant), instant, deletes) != keys:
                    continue
            yield found
            return
    raise ConflictError(
        "writes under this plan kept completing while their keys were looked at",
        path=table.storage.base_path,
        instant=instant,
        found=f"{_TRIES} rounds",
        todo="Run again while fewer writers are at work.",
    )


def _view(table: Table, instant: str) -> TableView:
    """The view of the plan's file groups, also if another plan names them: unscheduling one resolves that."""
    return table.snapshot(cached=False).load_plan_view([table.compaction_plan(instant)], prevails=instant)


def _refuse(table: Snapshot, instant: str, options: AttemptOptions) -> Removable:
    """The plan, unless all of it must be kept. A decision found later is valid."""
    storage, plan = table.storage, table.compaction_plan(instant)
    # A publisher holds the lock when it completes. If its lock has expired, its heartbeat shows that it is live. The
    # heartbeat starts before the decision, so the decision is read first.
    decision, beat = find_decision(storage, instant), read_heartbeat(storage, instant)
    if beat is not None and not is_live(beat, storage_ms(storage), options.heartbeat_expiry_s):
        beat = None
    if decision is not None and beat is not None:
        raise _decided(instant)
    kept = written_groups(table, instant, plan)
    if kept == plan.groups:
        kept = frozenset()  # refused below
    dead = refuse_touched(table, instant, _without(plan, kept), options)
    if kept and dead is not None:  # the kept file groups have its files too
        refuse_touched(table, instant, plan, options)
    return Removable(table=table, instant=instant, plan=plan, kept=kept, decision=decision, beat=beat)


def _without(plan: CompactionPlan, groups: Collection[GroupKey]) -> CompactionPlan:
    left = tuple(o for o in plan.operations if group_of(o) not in groups)
    return replace(plan, operations=left) if groups else plan


def _narrow(found: Removable) -> set[int]:
    """Removes the other file groups from a plan that must be kept because writes have put logs onto it (version 6). No
    row is lost: the plan is replaced in one step, under the lock, while no delta commit is pending that could still put
    a log onto a removed file group; the kept ones are read and compacted as before. A removed file group has no file of
    the instant, so it is as if it had never been planned. The next planning checks all file groups, since the notes of
    the plan, which say where to check, lack the removed ones. No process executes the earlier plan: its attempts are
    ended, and one opened concurrently compares the plans (`attempt.open_attempt`, `attempt.decision`)."""
    table, instant, plan, kept = found.table, found.instant, found.plan, found.kept
    storage, free, who = table.storage, regardless(table).storage, f"taken out by {process_name()}"
    if found.decision is not None:
        revert_files(table, found.decision, who)
    ended = _end_attempts(storage, instant, who)
    path = table.instant_path(table.files.requested_merge(instant))
    data, gone = storage.read(path), sorted({partition for partition, _ in plan.groups - kept})
    left = _without(plan, plan.groups - kept)
    notes = {name: text for name, text in (plan.extra_metadata or {}).items() if name != NOTES}
    missing = tuple(dict.fromkeys([*(plan.missing_schedule_partitions or ()), *gone]))
    storage.overwrite(path, encode_plan(replace(left, extra_metadata=notes, missing_schedule_partitions=missing)))
    try:  # as after the removal of a plan: the lock is not asked any more
        ended |= _end_attempts(free, instant, who)
    except ConflictError:
        free.overwrite(path, data)
        raise
    return ended


def remove_plan(found: Removable, options: AttemptOptions, who: str, *, replaced: bool = False) -> set[int]:
    """Removes the plan; returns the attempts that were ended. The caller has done all checks in this section. After the
    removal the lock is not asked any more: what is found then must be repaired even without the lock. `replaced`:
    another plan follows, see `outcome.leave_replaced`."""
    table, instant, plan, nonce = found.table, found.instant, found.plan, uuid.uuid4().hex
    storage, free = table.storage, regardless(table).storage
    if found.decision is not None:
        revert_files(table, found.decision, who)
    ended = _end_attempts(storage, instant, who)
    number = open_next(storage, instant, who)
    write_outcome(storage, instant, number, cancelled_record(nonce, who), nonce)
    dead = refuse_touched(table, instant, plan, options)
    path, inflight = table.instant_path(table.files.requested_merge(instant)), inflight_path(table, instant)
    data = storage.read(path)
    if replaced:
        leave_replaced(storage, instant, number, data)
    forget(table, instant)
    if dead is not None:
        storage.delete_all(dead.files)
        storage.delete(dead.inflight)
    storage.delete(path)
    try:
        ended |= _end_attempts(free, instant, who)
        refuse_inflight(table, instant, inflight, options)
        refuse_touched(table, instant, plan, options)
    except ConflictError:
        free.put_if_absent(path, data)
        if dead is not None:
            free.put_if_absent(dead.inflight, b"")
        raise
    return ended


def _end_attempts(storage: Storage, instant: str, who: str) -> set[int]:
    """Declares attempts dead until each has an outcome. ConflictError: one of them has `commit`."""
    ended: set[int] = set()
    while open_ := {number for number, outcome in read_outcomes(storage, instant).items() if outcome is None}:
        with suppress(AttemptDeadError):  # another process has put the outcome: it is read below
            declare_dead(storage, instant, who)
        ended |= open_
    if find_decision(storage, instant) is not None:
        raise _decided(instant)
    return ended


def _decided(instant: str) -> ConflictError:
    return ConflictError(
        "this compaction is decided and is being published",
        path=instant_folder(instant),
        instant=instant,
        todo="Run compactor-daemon compact, which completes it. If that fails, run this again once its heartbeat is "
        "stale.",
    )
