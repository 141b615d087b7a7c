"""Reverts an invalid commit decision (`validity`), under the table lock, in this order:

    revoked    the record `revoked` is put: the decision is never valid again. Publishing asks for this record too
    staged     the staged files are deleted, before the placed ones: from then on no file can be placed
    metadata   the instant is removed from the metadata table: a publisher may have died after it had recorded it there
    placed     the placed files are deleted

Any process may repeat each step. After a crash in between, the next run finishes (`finish`): placed files of a
revoked decision are deleted last, so that while one exists the other steps are repeated.

A stale commit is a completed file that was put after its decision became invalid: its process stalled under the lock,
between its last check and the put. No storage can prevent such a put. So the process checks again right after the put.
If it died before that, the next run retracts the commit. The commit is kept where other processes have built upon it:
then restored rows are visible again, but no row that was written since is lost.

Decided files of file groups that were replaced since get no final name, and the commit does not name them. No reader
reads a replaced file group, but a cleaner visits it only once: a file placed after that would remain, and its rows
would be visible again once the replace commit is archived.
"""

from __future__ import annotations

from collections.abc import Collection

from phantombase.timeline.errors import ConflictError, MalformedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.instants.reserved_times import attempt_folder
from phantombase.timeline.locks.heartbeat import process_name
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.update import forget
from phantombase.timeline.table.in_progress import READ_INSIDE, exclusive, regardless
from phantombase.timeline.table.table import Table

from .outcome import STAGED_ENDINGS, CommitDecision, is_revoked, revoke_decision
from .slice_record import completed_commits, completed_compaction, is_ours, remove_placed
from .validity import ASKED, Assessment, Validity, decided_instant, job_of, refuse, validity_of

_log = get_logger()


def revert_files(table: Table, decision: CommitDecision, why: str) -> None:
    """Revokes a decision and deletes its files; `table`: of a section (`exclusive`). ConflictError: it is completed; no
    file was removed then. LockError: the lock was lost; the next run finishes. MalformedError: the metadata table
    cannot be updated; all other steps are done."""
    table = table.snapshot(cached=False)
    storage = table.storage
    _refuse_completed(table, decision)
    revoke_decision(storage, decision.instant, decision.attempt, why, process_name())
    # Again: a process whose lock was lost may have checked for the record before the put, and then completed.
    _refuse_completed(table, decision)
    folder = attempt_folder(decision.instant, decision.attempt)
    own = [f"{folder}/{e.name}" for e in storage.list(folder) if e.name.endswith(STAGED_ENDINGS)]
    storage.delete_all(sorted({*own, *(p.staged for p in decision.placements)}))
    try:
        forget(table, decision.instant)
    except MalformedError:  # a retry does not help, and the files must be deleted
        remove_placed(table, decision, keep=set())
        raise
    remove_placed(table, decision, keep=set())
    _log.warning("decision_reverted", instant=decision.instant, attempt=decision.attempt, why=why)


def _refuse_completed(table: Table, decision: CommitDecision) -> None:
    done = completed_compaction(table, decision.instant, decided_instant(table, decision).family)
    if done is not None:
        raise ConflictError(
            f"a completed {job_of(table, decision).name} cannot be reverted",
            path=table.instant_path(done),
            instant=decision.instant,
        )


def refuse_revoked(table: Table, decision: CommitDecision) -> None:
    """ConflictError: the decision was revoked."""
    if is_revoked(table.storage, decision.instant, decision.attempt):
        path = attempt_folder(decision.instant, decision.attempt)
        raise ConflictError("this decision was revoked", path=path, instant=decision.instant, todo="Run again.")


def check_after_put(table: Table, decision: CommitDecision, path: str) -> bool:
    """Deletes the completed file that was just put at `path`, or may have been put, if it must not exist. Returns
    whether it did; it asks no lock, whose loss before the put is what it repairs. ConflictError: the plan, or a write
    that was merged, was removed, or the decision was revoked. If another compactor has completed the instant, only its
    commit remains."""
    free = regardless(table)
    family = decided_instant(table, decision).family
    theirs = [i for i in completed_commits(table, decision.instant, family) if not is_ours(table, i, decision)]
    if theirs:
        is_second = table.storage.find(path) is not None and path not in {table.instant_path(i) for i in theirs}
        if is_second:
            free.storage.delete(path)
        return is_second
    job, assessment = job_of(table, decision), validity_of(table, decision)
    if assessment.may_be_published and not is_revoked(table.storage, decision.instant, decision.attempt):
        return False
    if assessment.validity is not Validity.SUPERSEDED and (upon := _remains(table, decision, assessment)):
        job.stays(table, decision, f"{assessment.why}; and {upon}")
        return False
    free.storage.delete(path)
    if assessment.validity is Validity.INVALID:
        revert_files(free, decision, assessment.why)
    refuse(table, job, assessment)
    refuse_revoked(free, decision)
    return True


def stale_commit(table: Table, done: Instant, made: Collection[CommitDecision]) -> CommitDecision | None:
    """The decision that a completed commit carried out, if all decisions of its instant were revoked."""
    if not all(is_revoked(table.storage, decision.instant, decision.attempt) for decision in made):
        return None
    return next((decision for decision in made if is_ours(table, done, decision)), None)


def retract_commit(table: Table, decision: CommitDecision, lock: TableLock) -> bool:
    """Deletes the completed file of a `stale_commit`, if that decision is invalid; returns whether it did."""
    with exclusive(table, lock, "retract a stale commit", {**READ_INSIDE, **ASKED}, cached=True) as table:
        family = decided_instant(table, decision).family
        done, assessment = completed_compaction(table, decision.instant, family), validity_of(table, decision)
        if done is None or not is_ours(table, done, decision) or assessment.validity is not Validity.INVALID:
            return False
        # A pending write of version 6 may be about to write a log that is named after the commit.
        is_awaited = table.layout.slicing is Slicing.BY_BASE_INSTANT and table.timeline.pending_delta_commits
        if is_awaited or _remains(table, decision, assessment):
            return False
        table.storage.delete(table.instant_path(done))
        revert_files(table, decision, assessment.why)
        return True


def _remains(table: Table, decision: CommitDecision, assessment: Assessment) -> str:
    """What was built upon a stale commit, so that it must remain; "": nothing."""
    is_valid = assessment.validity is not Validity.INVALID
    if not (upon := job_of(table, decision).built_upon(table, decision, is_valid=is_valid)):
        return ""
    _log.error(
        "stale_commit_remains", instant=decision.instant, attempt=decision.attempt, why=assessment.why, upon=upon
    )
    return upon
