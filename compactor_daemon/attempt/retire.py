"""Cleaning up behind a compaction that is completed and whole.

Staged data is deleted only then. The `open` and `outcome` records stay until Hudi has archived the instant: they stop a
process that slept since it opened an attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from phantombase.timeline.audit.audit_log import add_entry
from phantombase.timeline.audit.group_ledger import LEDGER
from phantombase.timeline.errors import MalformedError, MissingFileError, PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.instants.attempt_names import attempts, instant_folder, recorded_instants, staged_files
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.snapshot import list_ahead
from phantombase.timeline.table.half_upgraded import refuse_half_upgraded
from phantombase.timeline.table.pending_rollbacks import half_taken_back
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import GroupKey

from ..decisions.completed import completed_commits, completed_compaction, is_ours, named_files, remove_placed
from ..decisions.of_commit import go_of_commit
from ..decisions.stale_commit import placed_group, stale_commit, withdraw
from ..decisions.take_back import take_back
from ..decisions.validity import Validity, refuse_rollback, validity_of
from ..records.outcome import STAGED_ENDINGS, CommitDecision, decisions, declare_dead, is_revoked
from .abandoned import abort_abandoned_uploads, remove_abandoned
from .publish import place

_log = get_logger()


def retire(table: Table, decision: CommitDecision) -> Table:
    """Places missing files again, then removes strays of the instant, staged data and the heartbeat.

    Returns its look at the table, which shows the partitions of the decision.
    MissingFileError: the decision is not published. ConflictError: a rollback names the instant.
    """
    table = table.still()
    done = completed_compaction(table, decision.instant)
    if done is None:
        raise MissingFileError(
            "a decided compaction is not completed", path=decision.completed_path, instant=decision.instant
        )
    refuse_rollback(table, decision.instant)
    named = named_files(table, done)  # without file groups that were replaced before the compaction was published
    placements = [p for p in decision.placements if p.final in named]
    names = _data_names(table, {p.final.rpartition("/")[0] for p in placements})
    finals = [(p, *p.final.rpartition("/")[::2]) for p in placements]
    gone = any(parse_data_file(text) not in names[partition] for _, partition, text in finals)
    table = table.still() if gone else table
    timeline = table.load_timeline()
    if gone and completed_compaction(table, decision.instant) is None:
        # The instant was archived since the check above. A file may be gone because its file group was replaced, and
        # that replace commit archived too.
        raise MissingFileError(
            "a decided compaction is not completed any more", path=decision.completed_path, instant=decision.instant
        )
    replaced = table.facts.replaced_groups(timeline) if gone else {}
    for placement, partition, text in finals:
        # If the group has a newer base file, or is replaced, a cleaner may have removed this file, and it is not needed
        # any more. Placed again in a replaced group, it would become visible once the replace commit is archived.
        mine, bases = parse_data_file(text), [n for n in names[partition] if isinstance(n, BaseFileName)]
        later = [n for n in bases if mine is not None and n.file_id == mine.file_id and n.instant > decision.instant]
        newer = any(timeline.is_committed(n.instant) for n in later)
        is_replaced = mine is not None and (partition, mine.file_id) in replaced
        if not newer and (mine in names[partition] or not is_replaced):
            # By the snapshot that shows the completed commit: a file that went since was removed together with it.
            place(table, decision, placement)
    keep_ledger(table, decision, done)
    _remove_strays(table, done, _groups(table, decision))
    remove_staged(table.storage, decision.instant)
    return table


def keep_ledger(table: Table, decision: CommitDecision, done: Instant) -> None:
    """Copies the ledger of a compaction, completed as `done`, into the audit log, which outlives the commit.

    Does nothing if `done` is the commit of another decision: this process may have slept while the compaction was
    rolled back and executed again, and the last entry must be that of the last execution.
    """
    if not is_ours(table, done, decision):
        return
    ledger = decode_commit(decision.content, decision.completed_path).extra_metadata[LEDGER]
    add_entry(table.storage, decision.instant, decision.attempt, table.instant_path(done), ledger)


def _data_names(table: Table, partitions: Collection[str]) -> dict[str, list[BaseFileName | LogFileName]]:
    """The data files in these partitions; none for a partition that was removed."""
    found: dict[str, list[BaseFileName | LogFileName]] = {}
    list_ahead(table.storage, partitions)
    for partition in partitions:
        try:
            names = [parse_data_file(e.name) for e in table.storage.list(partition) if not e.is_folder]
        except MissingFileError:
            names = []
        found[partition] = [n for n in names if n is not None]
    return found


def _groups(table: Table, decision: CommitDecision) -> frozenset[GroupKey]:
    """The file groups of the plan; if the plan is gone already, those of the decision."""
    try:
        return table.compaction_plan(decision.instant).groups
    except MissingFileError:
        return frozenset(placed_group(p.final) for p in decision.placements)


def _remove_strays(table: Table, done: Instant, groups: Collection[GroupKey]) -> None:
    """Removes files of these file groups and of the instant that its commit does not name: a reader might take them.

    Files of other groups stay: a writer that takes no lock may have begun in the same millisecond.
    A log that carries a compaction's instant belongs to a write of version 6, on the phantom slice; a Hudi writer may
    have upgraded the table since. So logs are removed only if the instant is a log compaction, from version 8 on.
    """
    named = named_files(table, done)
    kind = BaseFileName if done.action == "commit" else LogFileName
    if kind is LogFileName and table.layout.slicing is Slicing.BY_BASE_INSTANT:
        return
    write = Instant(requested_time=done.requested_time, action="deltacommit", state=State.REQUESTED)
    begun = (table.storage.find(table.instant_path(write.at(state))) for state in (State.REQUESTED, State.INFLIGHT))
    if kind is LogFileName and any(begun):
        return  # a writer that takes no lock began in the same millisecond: its logs have the same form of name
    for partition, names in _data_names(table, {partition for partition, _ in groups}).items():
        for name in names:
            path = f"{partition}/{name}" if partition else str(name)
            is_of_plan = isinstance(name, kind) and (partition, name.file_id) in groups
            if is_of_plan and name.instant == done.requested_time and path not in named:
                table.storage.delete(path)


def remove_staged(storage: Storage, instant: str) -> None:
    """Removes what was staged for an instant, and its heartbeat."""
    storage.delete_all([*staged_files(storage, instant, STAGED_ENDINGS), heartbeat_path(instant)])


def finish_completed(table: Table, lock: TableLock) -> Table:
    """Finishes instants that are no longer pending: cleans up what earlier runs left when they were killed.

    Returns a look at the table since which nothing was changed.

    An error of one instant does not stop the others; the first error is raised at the end.
    """
    failed: PhantombaseError | None = None
    seen = table.still()
    for instant in (littered := _littered(seen)):
        try:
            finish(table, instant, lock)
        except PhantombaseError as error:
            _log.warning("not_finished", instant=instant, error=str(error))
            failed = failed or error
    _forget_archived(table, seen)
    if failed is not None:
        raise failed
    return table.still() if littered else seen


def littered_instants(table: Table) -> tuple[str, ...]:
    """Instants that are no longer pending and still have staged files, a heartbeat, or files of a revoked decision."""
    return _littered(table.still())


def _littered(table: Table) -> tuple[str, ...]:
    recorded, pending = recorded_instants(table.storage), _pending(table)
    found = [i for i in recorded if i not in pending and _is_littered(table, i)]
    # A snapshot shows records and timeline in no order: what was requested and opened in between is not littered.
    pending = _pending(table.still(reload=False)) if found else pending
    return tuple(i for i in found if i not in pending)


def _pending(table: Table) -> set[str]:
    """Also a clustering that is being taken back: its heartbeat shows whether its process is gone."""
    timeline = table.load_timeline()
    clustering = half_taken_back(table, timeline)
    half_way = () if clustering is None else (clustering,)
    return {i.requested_time for i in (*timeline.pending_merges, *half_way)}


def finish(table: Table, instant: str, lock: TableLock) -> None:
    """Cleans up behind an instant that is no longer pending.

    An instant that phantombase completed is retired. If a Hudi compactor completed it, or it is gone from the timeline,
    undecided attempts are declared dead, then placed and staged files are removed. ConflictError: see `take_back`,
    `standing`. MalformedError: it is not completed, and the record that shows whether it was decided cannot be read.
    """
    storage = table.storage
    done = completed_compaction(table, instant)
    try:
        made = decisions(storage, instant)
    except MalformedError:
        if done is None:
            raise
        _finish_by_commit(table, done)
        return
    late = stale_commit(table, done, made) if done is not None else None
    if late is not None and withdraw(table, late, lock):
        return
    decision = next((one for one in made if not is_revoked(storage, instant, one.attempt)), None)
    if done is not None:
        if decision is not None and is_ours(table, done, decision):
            retire(table, decision)
        if not _lost_removed(table, done, made, lock):
            return
    elif made and not _taken_back(table, instant, lock):
        return
    if decision is None:
        declare_dead(storage, instant, "completed by another process")
    remove_staged(storage, instant)


def _lost_removed(table: Table, done: Instant, made: Sequence[CommitDecision], lock: TableLock) -> bool:
    """Removes files that only lost decisions name, not the commit `done`; whether none is left."""
    named = named_files(table, done)
    placed = (p.final for one in made for p in one.placements)
    if not any(final not in named and table.storage.find(final) is not None for final in placed):
        return True
    # Without the lock, another process might be publishing them.
    with lock.hold("remove files of a decision") as section:
        table = table.reload()
        still = completed_compaction(table, done.requested_time)
        if still is None or named_files(table, still) != named:
            return False  # rolled back, and perhaps published by another decision: the next run checks it again
        section.check()
        for one in made:
            remove_placed(table, one, keep=named)
    return True


def _taken_back(table: Table, instant: str, lock: TableLock) -> bool:
    """Takes back fallen decisions of an instant that is neither pending nor completed.

    False: a decision stands or waits after all; nothing else of the instant may be removed.
    """
    with lock.hold("take a decision back") as section:
        table = table.reload()
        for decision in decisions(table.storage, instant):
            assessment = validity_of(table, decision)
            if assessment.validity in (Validity.VALID, Validity.BLOCKED):
                return False
            if assessment.validity is Validity.INVALID:
                section.check()
                take_back(table, decision, assessment.why, section)
    return True


def _finish_by_commit(table: Table, done: Instant) -> None:
    """Cleans up behind a completed compaction whose decision cannot be read; its commit says what was decided."""
    if LEDGER in table.commit_metadata(done).extra_metadata:
        retire(table, go_of_commit(table, done))
        return
    plan = table.compaction_plan(done.requested_time)
    _remove_strays(table, done, plan.groups)
    remove_staged(table.storage, done.requested_time)


def _is_littered(table: Table, instant: str) -> bool:
    storage = table.storage
    if storage.find(heartbeat_path(instant)) is not None or staged_files(storage, instant, STAGED_ENDINGS):
        return True
    if not any(is_revoked(storage, instant, number) for number in attempts(storage, instant)):
        return False
    try:
        made = decisions(storage, instant)
        finals = [
            p.final for decision in made if is_revoked(storage, instant, decision.attempt) for p in decision.placements
        ]
    except MalformedError:  # `finish` reports it
        return True
    if any(storage.find(final) is not None for final in finals):
        return True
    return any(stale_commit(table, done, made) is not None for done in completed_commits(table, instant))


def forget_archived(table: Table) -> None:
    """Removes the records of archived instants, on which no process can act any more, and what is abandoned.

    The records of a littered instant stay. Another process may be about to take its files back, or has failed to do so;
    without the records nothing shows that these files must not be read.
    """
    _forget_archived(table, table.still())
    abort_abandoned_uploads(table.storage)


def _forget_archived(table: Table, seen: Table) -> None:
    """`seen`: a look at the table; if it shows that nothing is archived, nothing else is read."""
    remove_abandoned(table.storage)
    start = seen.load_timeline().start
    if all(instant >= start for instant in recorded_instants(seen.storage)):
        return
    table = table.reload()
    timeline = table.load_timeline()
    refuse_half_upgraded(table)  # in a half upgraded table an instant of the other half would seem to be archived
    active = {i.requested_time for i in timeline.instants}
    for instant in recorded_instants(table.storage):
        if instant not in active and instant < timeline.start and not _is_littered(table, instant):
            table.storage.delete_folder(instant_folder(instant))
