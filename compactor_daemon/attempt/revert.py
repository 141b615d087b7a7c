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

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.clean import decode_clean_plan
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.compaction_plan import CompactionPlan, planned_paths
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.layout import Layout, Slicing
from phantombase.timeline.instants.reserved_times import attempt_folder
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import process_name
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.update import forget
from phantombase.timeline.read.windows import cleans
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.snapshot import list_ahead
from phantombase.timeline.table.exclusive import READ_INSIDE, exclusive, regardless
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import data_files
from phantombase.timeline.view.view import GroupKey

from .completed import completed_commits, completed_compaction, is_ours, remove_placed
from .outcome import STAGED_ENDINGS, CommitDecision, is_revoked, revoke_decision
from .validity import ASKED, Assessment, Validity, refuse, validity_of

_log = get_logger()


def revert_files(table: Table, decision: CommitDecision, why: str) -> None:
    """Revokes a decision and deletes its files; `table`: of a section (`exclusive`).

    ConflictError: it is completed; no file was removed then. LockError: the lock was lost; the next run finishes.
    MalformedError: the metadata table cannot be updated; all other steps are done.
    """
    table = table.reload()
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
    done = completed_compaction(table, decision.instant)
    if done is not None:
        raise ConflictError(
            "a completed compaction cannot be reverted", path=table.instant_path(done), instant=decision.instant
        )


def refuse_revoked(table: Table, decision: CommitDecision) -> None:
    """ConflictError: the decision was revoked."""
    if is_revoked(table.storage, decision.instant, decision.attempt):
        path = attempt_folder(decision.instant, decision.attempt)
        raise ConflictError("this decision was revoked", path=path, instant=decision.instant, todo="Run again.")


def without_groups(decision: CommitDecision, gone: Collection[GroupKey], layout: Layout) -> CommitDecision:
    """The decision without the files of these file groups (pure). It retains their ledgers."""
    kept = tuple(p for p in decision.placements if placed_group(p.final) not in gone)
    if len(kept) == len(decision.placements):
        return decision
    finals = {p.final for p in kept}
    metadata = decode_commit(decision.content, decision.completed_path)
    stats = {
        partition: left
        for partition, of in metadata.partition_to_write_stats.items()
        if (left := tuple(s for s in of if s.path in finals))
    }
    content = encode_commit(replace(metadata, partition_to_write_stats=stats), layout.encoding)
    return replace(decision, placements=kept, content=content)


def placed_group(final: str) -> GroupKey:
    """The file group of the file with this path. MalformedError: not a data file."""
    partition, _, text = final.rpartition("/")
    name = parse_data_file(text)
    if name is None:
        raise MalformedError("not the name of a data file", path=final)
    return partition, name.file_id


def is_built_upon(table: Table, decision: CommitDecision, *, is_valid: bool) -> bool:
    """Whether the commit of a decision cannot be deleted any more. `is_valid`: whether the decision is not invalid."""
    timeline, plan = table.load_timeline(), _plan(table, decision.instant)
    if _is_planned(table, decision, timeline):
        return True
    later = list(_written_since(table, decision, timeline))
    # With the plan, readers find the logs on its slice also without the commit.
    if plan is None and any(name.instant == decision.instant for _, name in later):
        return True
    below = {group for group, name in later if isinstance(name, BaseFileName)}
    if plan is not None:
        return bool(below) or _lacks_inputs(table, timeline, plan, logs_too=is_valid)
    # If the plan was removed, what was merged is unknown.
    shown = {placed_group(p.final) for p in decision.placements} - below - set(table.facts.replaced_groups(timeline))
    partitions = sorted({partition for partition, _ in shown})
    list_ahead(table.storage, partitions)
    found = {join(p, entry.name): name for p in partitions for entry, name in data_files(table, p)}
    if any(placed_group(p.final) in shown and p.final not in found for p in decision.placements):
        return False  # its files were reverted before the commit was put: readers would miss this file
    return bool(below) or _is_cleaned(table, decision, timeline, shown, found)


def _plan(table: Table, instant: str) -> CompactionPlan | None:
    try:
        return table.compaction_plan(instant)
    except MissingFileError:
        return None


def _is_planned(table: Table, decision: CommitDecision, timeline: Timeline) -> bool:
    finals = {p.final for p in decision.placements}
    others = [i.requested_time for i in timeline.pending_merges if i.requested_time != decision.instant]
    return any(not finals.isdisjoint(planned_paths(table.compaction_plan(other))) for other in others)


def _written_since(
    table: Table, decision: CommitDecision, timeline: Timeline
) -> Iterator[tuple[GroupKey, BaseFileName | LogFileName]]:
    """Files of the same file groups that later writes name."""
    groups = {placed_group(p.final) for p in decision.placements}
    for instant in timeline.completed:
        if instant.requested_time > decision.instant:
            for path in table.commit_metadata(instant).named_files:
                partition, _, text = path.rpartition("/")
                name = parse_data_file(text)
                if name is not None and (partition, name.file_id) in groups:
                    yield (partition, name.file_id), name


def _is_cleaned(
    table: Table,
    decision: CommitDecision,
    timeline: Timeline,
    groups: Collection[GroupKey],
    found: Mapping[str, BaseFileName | LogFileName],
) -> bool:
    """Whether a cleaner, which saw the compaction completed, removed all earlier files of a file group."""
    left = {(path.rpartition("/")[0], name.file_id) for path, name in found.items() if name.instant < decision.instant}
    bare = set(groups) - left
    for clean in cleans(timeline) if bare else ():
        if clean.requested_time > decision.instant:
            files = table.files.needed_plan(clean, decode_clean_plan).files
            named = ((p, parse_data_file(text)) for p, texts in files.items() for text in texts)
            if any(name is not None and (p, name.file_id) in bare for p, name in named):
                return True
    return False


def _lacks_inputs(table: Table, timeline: Timeline, plan: CompactionPlan, *, logs_too: bool) -> bool:
    """Whether a cleaner removed what was merged. A rollback removes the log of its write, too."""
    replaced = table.facts.replaced_groups(timeline)
    for operation in plan.operations:
        if (operation.partition_path, operation.file_id) not in replaced:
            for path in planned_paths(CompactionPlan(operations=(operation,))):
                is_base = isinstance(parse_data_file(path.rpartition("/")[2]), BaseFileName)
                if (is_base or logs_too) and table.storage.find(path) is None:
                    return True
    return False


def check_after_put(table: Table, decision: CommitDecision, path: str) -> bool:
    """Deletes the completed file that was just put at `path`, or may have been put, if it must not exist.

    Returns whether it did; it asks no lock, whose loss before the put is what it repairs.

    ConflictError: the plan, or a write that was merged, was removed, or the decision was revoked. If another compactor
    has completed the instant, only its commit remains.
    """
    free = regardless(table)
    theirs = [i for i in completed_commits(table, decision.instant) if not is_ours(table, i, decision)]
    if theirs:
        is_second = table.storage.find(path) is not None and path not in {table.instant_path(i) for i in theirs}
        if is_second:
            free.storage.delete(path)
        return is_second
    assessment = validity_of(table, decision)
    is_over = assessment.validity in (Validity.SUPERSEDED, Validity.INVALID)
    if not is_over and not is_revoked(table.storage, decision.instant, decision.attempt):
        return False
    if assessment.validity is not Validity.SUPERSEDED and _remains(table, decision, assessment):
        return False
    free.storage.delete(path)
    if assessment.validity is Validity.INVALID:
        revert_files(free, decision, assessment.why)
    refuse(table, decision.instant, assessment)
    refuse_revoked(free, decision)
    return True


def stale_commit(table: Table, done: Instant, made: Collection[CommitDecision]) -> CommitDecision | None:
    """The decision that a completed commit carried out, if all decisions of its instant were revoked."""
    if not all(is_revoked(table.storage, decision.instant, decision.attempt) for decision in made):
        return None
    return next((decision for decision in made if is_ours(table, done, decision)), None)


def retract_commit(table: Table, decision: CommitDecision, lock: TableLock) -> bool:
    """Deletes the completed file of a `stale_commit`, if that decision is invalid; returns whether it did."""
    with exclusive(table, lock, "retract a stale commit", {**READ_INSIDE, **ASKED}, snapshot=True) as held:
        table = held.table
        done, assessment = completed_compaction(table, decision.instant), validity_of(table, decision)
        if done is None or not is_ours(table, done, decision) or assessment.validity is not Validity.INVALID:
            return False
        # A pending write of version 6 may be about to write a log that is named after the commit.
        is_awaited = table.layout.slicing is Slicing.BY_BASE_INSTANT and held.timeline.pending_delta_commits
        if is_awaited or _remains(table, decision, assessment):
            return False
        table.storage.delete(table.instant_path(done))
        revert_files(table, decision, assessment.why)
        return True


def _remains(table: Table, decision: CommitDecision, assessment: Assessment) -> bool:
    if not is_built_upon(table, decision, is_valid=assessment.validity is not Validity.INVALID):
        return False
    _log.error("stale_commit_remains", instant=decision.instant, attempt=decision.attempt, why=assessment.why)
    return True
