"""Cancels pending clusterings, and retracts completed files that were put after their plan had been cancelled.

A plan is pending only while a process works on it: updates of its file groups are refused until then. So a write, or
the next run, cancels the plan of a dead process, unless that process had decided: then it publishes the decision.

A process may stall between its last check and the put of the completed file, until its lock is lost and the plan is
cancelled. Its commit replaces file groups by removed files, so readers fail. If that process dies before it checks
again, the next write or run retracts the commit."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from contextlib import suppress
from functools import partial

from phantombase.timeline.errors import AttemptDeadError, ConflictError, LockError, MalformedError, PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.reserved_times import attempts, has_tombstone, put_tombstone, recorded_instants
from phantombase.timeline.locks.heartbeat import process_name
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.update import forget
from phantombase.timeline.storage.contract import Storage, list_of_table
from phantombase.timeline.table.in_progress import READ_INSIDE, Guard, exclusive
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.table.torn import remove_torn
from phantombase.timeline.table.traces import delete_markers, traces_of, undo, unpublish
from phantombase.timeline.view.witness import lost_completion

from ..attempt.outcome import (
    CommitDecision,
    dead_record,
    decisions,
    find_decision,
    is_revoked,
    read_outcome,
    revoke_decision,
    write_outcome,
)
from ..attempt.pending_clusterings import (
    PendingClustering,
    has_begun,
    is_at_work,
    pending_clusterings,
    remove_dead_runs,
    work_left,
)
from ..attempt.publish import publish, remove_staged, retire
from ..attempt.revert import revert_files
from ..attempt.slice_record import is_ours, named_staged_files
from ..attempt.validity import job_of, validity_of

_log = get_logger()
_PENDING = {Guard.ROLLBACK: "a rollback of a completed write does not depend on a plan, which may be what blocks it"}
_BLOCKS = {
    **READ_INSIDE,
    **dict.fromkeys((Guard.RESTORE, Guard.ROLLBACK), "a write that is not to be there may be what blocks them"),
}
_CANCELLED = {
    **READ_INSIDE,
    **dict.fromkeys((Guard.RESTORE, Guard.ROLLBACK), "the plan is cancelled: nothing depends on its inflight file"),
}


_SHARED = "another action has its time: the plan was put after the lock was lost"


def cancel_clustering(
    table: Table, pending: PendingClustering, lock: TableLock, why: str, *, decided_too: bool = False
) -> bool:
    """Removes the plan and all files made by it. False: another process has removed or completed the clustering, or it
    is decided, and may be published. `decided_too`: a decision that is not published yet is reverted. ConflictError:
    Hudi executes the plan. MissingFileError: its completed file is lost, see `FactLoader.uncompleted`. MalformedError:
    a record of an attempt cannot be read."""
    with exclusive(table, lock, "cancel a clustering", _PENDING) as table:
        found = table.timeline.find(pending.time, "replacecommit")
        if found is None or found.completed:
            return False
        if table.timeline.shares_time(pending.requested):
            has_begun(table, pending.requested)
            for state in (State.INFLIGHT, State.REQUESTED):
                table.storage.delete(table.instant_path(pending.requested.at(state)))
            _log.warning("clustering_cancelled", table=table.storage.base_path, instant=pending.time, why=_SHARED)
            return True
        if (later := table.facts.uncompleted(table.timeline).get(pending.time)) is not None:
            raise lost_completion(pending.time, later, table.storage.base_path)
        decision = None if decided_too else find_decision(table.storage, pending.time)
        if decision is not None and may_be_published(table, decision):
            return False
        remove(table, pending)
    _log.info("clustering_cancelled", table=table.storage.base_path, instant=pending.time, why=why)
    return True


def may_be_published(table: Table, decision: CommitDecision) -> bool:
    """Whether a decision is valid, or may be later. Under another version of the table it is never published."""
    return decision.table_version == table.config.version and validity_of(table, decision).may_be_published


def remove(table: Table, pending: PendingClustering) -> None:
    """Removes a clustering, its files first. `table`: of a section. ConflictError: Hudi executes the plan."""
    has_begun(table, pending.requested)
    # From here on no process decides or completes the clustering. Nor does a process with a slow clock get this instant
    # for another action.
    put_tombstone(table.storage, pending.time)
    unpublish(table, pending.requested)
    _end_attempts(table.storage, pending.time)
    # Before its files are listed: from here on no process can place one.
    table.storage.delete_all(named_staged_files(table.storage, pending.time))
    find = partial(traces_of, table, pending.time, "replacecommit", scan=False)
    undo(table, pending.requested, find, partial(forget, table, pending.time))
    _end_attempts(table.storage, pending.time)  # those that were opened since then: they find the tombstone
    remove_staged(table.storage, pending.time)
    remove_dead_runs(table)


def give_up(table: Table, pending: PendingClustering, lock: TableLock, why: str) -> None:
    """Ends the execution of a plan of Hudi, which stays requested: Hudi, or the next run, executes it. Does nothing if
    it is completed, or decided and valid: the next run publishes that. ConflictError: Hudi executes it."""
    with exclusive(table, lock, "give up a clustering of Hudi", _PENDING) as table:
        found = table.timeline.find(pending.time, "replacecommit")
        if found is None or found.completed or table.timeline.shares_time(pending.requested):
            return
        decision = find_decision(table.storage, pending.time)
        if decision is not None and may_be_published(table, decision):
            return
        begun = has_begun(table, pending.requested)
        _end_attempts(table.storage, pending.time)
        for one in decisions(table.storage, pending.time):
            revert_files(table, one, why)
        remove_staged(table.storage, pending.time)
        if begun:  # last: until then Hudi would remove the files by their markers
            delete_markers(table.storage, pending.time)
            table.storage.delete(table.instant_path(pending.requested.at(State.INFLIGHT)))
    _log.warning("clustering_of_hudi_given_up", table=table.storage.base_path, instant=pending.time, why=why)


def _end_attempts(storage: Storage, time: str) -> None:
    """Declares open attempts dead, and revokes decisions, also one that cannot be read."""
    who = f"cancelled by {process_name()}"
    for number in attempts(storage, time):
        with suppress(MalformedError):
            outcome = read_outcome(storage, time, number)
            if outcome is None:
                nonce = uuid.uuid4().hex
                with suppress(AttemptDeadError):  # it has just decided
                    write_outcome(storage, time, number, dead_record(nonce, who), nonce)
                outcome = read_outcome(storage, time, number)
            if outcome is not None and outcome.decision is None:
                continue
        revoke_decision(storage, time, number, who, who)


def end_clustering(table: Table, pending: PendingClustering, lock: TableLock, why: str) -> None:
    """Cancels a clustering, or gives it up: a plan of Hudi stays. Errors: see `cancel_clustering`, `give_up`."""
    (cancel_clustering if pending.plan.is_own else give_up)(table, pending, lock, why)


def left_by_dead(table: Snapshot) -> tuple[PendingClustering, ...]:
    """The clusterings that dead processes of phantombase left, which hold file groups until they are ended. Of Hudi's
    plans, those with a decision, or with an inflight file of phantombase. MalformedError: see `work_left`."""
    return tuple(one for one in work_left(table) if one.plan.is_own or _is_decided(table, one))


def _is_decided(table: Table, pending: PendingClustering) -> bool:
    """Whether a process of phantombase has decided, or may have; also while that is being reverted."""
    try:
        return has_begun(table, pending.requested) or find_decision(table.storage, pending.time) is not None
    except MalformedError:
        return True


def settle_dead_clusterings(table: Snapshot, lock: TableLock) -> None:
    """Ends the clusterings of dead processes before a write, which would fail on the file groups in their plans: those
    that are decided are published, the others cancelled, or given up. Also retracts stale commits, see `retract_stale`.
    One whose completed file is lost, or whose records cannot be read, is left alone. `table`: made shortly before.
    Errors: see `cancel_clustering`, `work_left`."""
    retract_stale(table, lock)
    left = left_by_dead(table)
    lost = table.facts.uncompleted(table.timeline) if left else {}
    for pending in (one for one in left if one.time not in lost):
        _settle(table, pending, lock)
    for orphan in _orphans(table):
        with exclusive(table, lock, "remove what is left of a clustering", _CANCELLED) as held:
            if orphan in _orphans(held):
                held.storage.delete(held.instant_path(orphan))


def _settle(table: Table, pending: PendingClustering, lock: TableLock) -> None:
    try:
        shared = table.load_timeline().shares_time(pending.requested)
        decision = None if shared else find_decision(table.storage, pending.time)
    except MalformedError as error:  # it may be decided: the write fails where it changes a file group of the plan
        _log.warning("clustering_left", instant=pending.time, error=str(error))
        return
    if decision is not None:
        try:
            publish(table, decision, lock)
            retire(table, decision)
            return
        except LockError:
            raise
        except PhantombaseError as error:
            _log.warning("clustering_not_published", instant=pending.time, error=str(error))
    end_clustering(table, pending, lock, "its process is dead")


def _orphans(table: Snapshot) -> tuple[Instant, ...]:
    """Inflight instants whose plan was cancelled: a process that had stalled put the inflight file, and died."""
    pending = [i for i in table.timeline.instants if i.family == "replacecommit" and i.state is State.INFLIGHT]
    if not pending:
        return ()
    names = {e.name for e in list_of_table(table.storage, table.config.timeline_folder)}
    without = (i for i in pending if table.layout.file_name(i.at(State.REQUESTED)) not in names)
    return tuple(i for i in without if has_tombstone(table.storage, i.requested_time))


def retract_stale(table: Snapshot, lock: TableLock) -> None:
    """Retracts the completed files of clusterings that were put after their plans had been cancelled, or undone by a
    restore. Errors: of the storage. A commit is kept, with an error in the log, if another write has completed in its
    partitions since. `table`: made shortly before."""
    done = [i for i in table.timeline.completed if i.family == "replacecommit"]
    if not done:
        return
    recorded = set(recorded_instants(table.storage))
    where = table.storage.base_path
    for one in (i for i in done if i.requested_time in recorded and _stale(table, i) is not None):
        with exclusive(table, lock, "retract a stale clustering", _BLOCKS) as held:
            stale = _stale(held, one) if one in held.timeline.completed else None
            if stale is None:
                continue
            if upon := job_of(held, stale).built_upon(held, stale, is_valid=False):
                _log.error("stale_clustering_remains", table=where, instant=one.requested_time, upon=upon)
                continue
            held.storage.delete(held.instant_path(one))
            revert_files(held, stale, "it was cancelled before its completed file was put")
        _log.warning("stale_clustering_retracted", table=where, instant=one.requested_time)


def _stale(table: Table, done: Instant) -> CommitDecision | None:
    """The decision of a completed file that must not be there: its plan is gone, and so are its files, but none of
    those that it replaced, unless it was cancelled. A clustering whose plan an archiver has removed differs: a clean
    removed those before."""
    storage, time = table.storage, done.requested_time
    planned = storage.find(table.instant_path(_requested(table, done))) is not None
    cancelled = has_tombstone(storage, time)
    if planned and not cancelled:
        return None
    with suppress(MalformedError):
        made: Collection[CommitDecision] = decisions(storage, time)
        for decision in made:
            is_gone = all(storage.find(one.final) is None for one in decision.placements)
            whole = all(storage.find(one.path(name)) is not None for one in decision.replaced for name in one.files)
            revoked = cancelled and not planned and is_revoked(storage, time, decision.attempt)
            whole = whole or revoked  # then a later clustering, or write, may have replaced them
            if is_gone and whole and is_ours(table, done, decision):
                return decision
    return None


def _requested(table: Table, done: Instant) -> Instant:
    return Instant(requested_time=done.requested_time, action=table.layout.pending_clustering, state=State.REQUESTED)


def cancel_pending_clusterings(table: Table, lock: TableLock) -> tuple[str, ...]:
    """Cancels pending clusterings, decided ones too, and removes torn plans of clusterings; returns their instants.
    ConflictError: a process works on one, or Hudi executes it."""
    gone = [*remove_torn(table.snapshot(cached=False), lock, "clustering", "replacecommit", strict=True)]
    now = table.snapshot(cached=False)
    for pending in pending_clusterings(now):
        if is_at_work(now, pending):
            raise ConflictError(
                "a process is at work on this clustering",
                path=table.storage.base_path,
                instant=pending.time,
                todo="Stop it, or wait until it has ended.",
            )
        if cancel_clustering(table, pending, lock, "by command", decided_too=True):
            gone.append(pending.time)
    return tuple(gone)
