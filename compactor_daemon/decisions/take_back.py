"""Takes back a decision that does not stand any more (`standing`), under the table lock, in this order:

    revoked    the record `revoked` is put: the decision never stands again. Publishing looks for this record too
    staged     the staged files are deleted, before the placed ones: from then on no file can be placed
    metadata   the metadata table forgets the instant: a publisher may have died after it had entered it there
    placed     the placed files are deleted

Any process may repeat each step. After a crash in between, the next run finishes: placed files of a revoked decision
are litter (`retire`). So they go last: while one is there, the rest is done again.
"""

from __future__ import annotations

from phantombase.timeline.errors import ConflictError, MalformedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.attempt_names import attempt_folder
from phantombase.timeline.locks.heartbeat import process_name
from phantombase.timeline.locks.section import Section
from phantombase.timeline.metadata_table.update import forget
from phantombase.timeline.table.table import Table

from ..records.outcome import STAGED_ENDINGS, CommitDecision, is_revoked, revoke_decision
from .completed import completed_compaction, remove_placed

_log = get_logger()


def take_back(table: Table, decision: CommitDecision, why: str, section: Section) -> None:
    """Takes `commit` back; the caller holds the table lock.

    ConflictError: it is completed; no file was removed then. LockError: the lock was lost before the metadata table
    forgot it; the next run finishes. MalformedError: the metadata table cannot forget it; all else is done.
    """
    table = table.reload()
    storage = table.storage
    _refuse_completed(table, decision)
    revoke_decision(storage, decision.instant, decision.attempt, why, process_name())
    # Again: a process whose lock was lost may have looked for the record before it was put, and then completed.
    _refuse_completed(table, decision)
    folder = attempt_folder(decision.instant, decision.attempt)
    own = [f"{folder}/{e.name}" for e in storage.list(folder) if e.name.endswith(STAGED_ENDINGS)]
    for path in sorted({*own, *(p.staged for p in decision.placements)}):
        storage.delete(path)
    try:
        forget(table, decision.instant, section)
    except MalformedError:  # nor will it ever; but the files must go
        remove_placed(table, decision, keep=set())
        raise
    remove_placed(table, decision, keep=set())
    _log.warning("decision_taken_back", instant=decision.instant, attempt=decision.attempt, why=why)


def _refuse_completed(table: Table, decision: CommitDecision) -> None:
    done = completed_compaction(table, decision.instant)
    if done is not None:
        raise ConflictError(
            "a completed compaction cannot be taken back", path=table.instant_path(done), instant=decision.instant
        )


def refuse_revoked(table: Table, decision: CommitDecision) -> None:
    """ConflictError: the decision was taken back."""
    if is_revoked(table.storage, decision.instant, decision.attempt):
        path = attempt_folder(decision.instant, decision.attempt)
        raise ConflictError("this decision was taken back", path=path, instant=decision.instant, todo="Run again.")
