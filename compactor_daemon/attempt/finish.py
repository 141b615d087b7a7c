"""Finishes what processes that died have left at instants that are no longer pending, and removes abandoned files.

    completed by phantombase      the instant is retired
    completed by Hudi, or absent  undecided attempts are declared dead, placed and staged files removed
    replaced                      `replan` died between the old plan and the new one: its file groups are planned
    completed by a stale commit   the commit is retracted (`revert`)
    archived                      the records are removed: no process can act on the instant any more
    abandoned                     temporary files, and unfinished uploads to an object store, are removed

A pending instant needs none of this: the next run publishes its decision, or opens the next attempt
(`compact_or_resume`).

Mostly nothing is left. So what publishes and reverts, which takes pyarrow, is imported where something is: commands
that find nothing start without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from phantombase.timeline.audit.ledgers import entries
from phantombase.timeline.errors import LockError, MalformedError, PausedError, PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import LEDGER
from phantombase.timeline.format.file_name import is_of_phantombase, parse_data_file
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.ledger import CLUSTERED
from phantombase.timeline.instants.reserved_times import (
    attempts,
    instant_folder,
    outcome_path,
    recorded_instants,
    staged_files,
)
from phantombase.timeline.locks.heartbeat import heartbeat_path, read_heartbeat
from phantombase.timeline.locks.pause import COMPACTION, held_by
from phantombase.timeline.locks.table_lock import StorageLock, TableLock
from phantombase.timeline.prefetch import Threads
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.storage.folders import RECORDS, TEMPORARY
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.storage.snapshot import without_snapshot
from phantombase.timeline.storage.staged_file import PLACED, abort_uploads
from phantombase.timeline.table.in_progress import (
    READ_INSIDE,
    Guard,
    clustering_in_rollback,
    exclusive,
    refuse_half_upgraded,
)
from phantombase.timeline.table.table import Snapshot, Table

from .outcome import STAGED_ENDINGS, CommitDecision, decisions, declare_dead, is_revoked, replaced_groups
from .pending_clusterings import remove_dead_runs
from .validity import ASKED, Validity, decided_instant, validity_of

_log = get_logger()
_BY_COMMIT = {
    **READ_INSIDE,
    **dict.fromkeys(
        (Guard.UPGRADE, Guard.RESTORE, Guard.ROLLBACK), "the completed commit is there, and names the files that stay"
    ),
}

_ABANDONED_MS = 3_600_000
"""The writer of a temporary file that has not changed for this long counts as dead."""
_UPLOAD_S = 86_400
"""An older upload counts as abandoned: it lasts as long as its merge. A day, as in a bucket's lifecycle rule."""


def finish_completed(table: Table, lock: TableLock) -> Snapshot:
    """Finishes instants that are no longer pending, where earlier runs were killed; returns a snapshot after that. An
    error of one instant does not stop the others; the first error is raised at the end."""
    failed: PhantombaseError | None = None
    seen = table.snapshot(also=(TEMPORARY,))
    for instant in (littered := _littered(seen)):
        try:
            finish(table, instant, lock)
        except PhantombaseError as error:
            _log.warning("not_finished", instant=instant, error=str(error))
            failed = failed or error
    _forget_archived(table, seen)
    if failed is not None:
        raise failed
    return table.snapshot() if littered else seen


class Releasable(Protocol):
    """A claim, see `fleet.claims`."""

    def release(self) -> None: ...


def sweep_table(table: Table, lock: TableLock, take: Callable[[str], Releasable | None]) -> bool:
    """Finishes instants of which `take` gives a claim; whether nothing was left. False: the table is paused."""
    seen = table.snapshot()
    if held_by(seen.storage, COMPACTION) is not None:
        return False
    table = seen.on_storage(without_snapshot(seen.storage))  # with its settings of now
    for instant in (littered := _littered(seen)):
        if (held := take(instant)) is None:
            continue
        try:
            finish(table, instant, lock)
        except PhantombaseError as error:
            _log.warning("not_finished", table=table.storage.base_path, instant=instant, error=str(error))
        finally:
            held.release()
    _forget_archived(table, seen)
    abort_abandoned_uploads(table.storage)
    return not littered


def littered_instants(table: Table) -> tuple[str, ...]:
    """Instants that are no longer pending and still have staged files, a heartbeat, an open attempt, or files of a
    revoked decision."""
    return _littered(table.snapshot())


def _littered(table: Snapshot) -> tuple[str, ...]:
    recorded, pending = recorded_instants(table.storage), _pending(table)
    found = [i for i in recorded if i not in pending and _is_littered(table, i)]
    # A snapshot lists records and timeline in any order: an instant requested and opened in between has no leftovers.
    pending = _pending(table.snapshot(same_settings=True)) if found else pending
    return tuple(i for i in found if i not in pending)


def _pending(table: Snapshot) -> set[str]:
    """The pending instants, also a completed clustering whose rollback is in progress, or may be about to begin. The
    heartbeat of such a clustering shows whether its process has ended."""
    timeline = table.timeline
    clustering = clustering_in_rollback(table)
    reverting = () if clustering is None else (clustering,)
    clusterings = (i for i in timeline.instants if i.family == "replacecommit" and _may_be_at_work(table, i))
    return {i.requested_time for i in (*timeline.pending_merges, *clusterings, *reverting)}


def _may_be_at_work(table: Table, clustering: Instant) -> bool:
    beat = read_heartbeat(table.storage, clustering.requested_time) if clustering.completed else None
    return not clustering.completed or (beat is not None and not beat.owner_gone)


def finish(table: Table, instant: str, lock: TableLock) -> None:
    """Finishes an instant that is no longer pending. An instant that phantombase completed is retired. If a Hudi
    compactor completed it, or it is not on the timeline, undecided attempts are declared dead, then placed and staged
    files are removed. ConflictError: see `revert_files`, `refuse_rollback`. MalformedError: it is not completed, and
    the record of its decision cannot be read."""
    from .publish import remove_staged, retire
    from .revert import retract_commit, stale_commit
    from .slice_record import completed_compaction, is_ours

    storage = table.storage
    try:
        made = decisions(storage, instant)
    except MalformedError:
        if (done := completed_compaction(table, instant)) is None:
            raise
        _finish_by_commit(table, done)
        return
    family = decided_instant(table, made[-1]).family if made else None
    done = completed_compaction(table, instant, family)
    stale = stale_commit(table, done, made) if done is not None else None
    if stale is not None and retract_commit(table, stale, lock):
        return
    decision = next((one for one in made if not is_revoked(storage, instant, one.attempt)), None)
    if done is not None:
        if decision is not None and is_ours(table, done, decision):
            retire(table, decision)
        if not _lost_removed(table, done, made, lock):
            return
    elif (made and not _reverted(table, instant, lock)) or not _replanned(table, instant, lock):
        return
    if decision is None:
        declare_dead(storage, instant, "completed by another process")
    remove_staged(storage, instant)


def _replanned(table: Table, instant: str, lock: TableLock) -> bool:
    """Plans the file groups of a plan whose replacement has not ended, unless another plan has them by now. False: the
    table is paused, or its writers may not share the lock, so that a plan could lose the rows of one at work."""
    if groups := replaced_groups(table.storage, instant):
        if isinstance(lock, StorageLock) and lock.is_assumed:
            todo = f"`compactor-daemon replan TABLE {instant}`, with --lock or --sole-writer, finishes it."
            _log.warning("replan_unfinished", table=table.storage.base_path, instant=instant, todo=todo)
            return False
        from phantombase.timeline.planning.options import PLAN_NAMED
        from phantombase.timeline.planning.schedule import schedule_compaction

        try:
            schedule_compaction(table, lock, PLAN_NAMED, only=groups)
        except PausedError:
            return False
    return True


def _lost_removed(table: Table, done: Instant, made: Sequence[CommitDecision], lock: TableLock) -> bool:
    """Removes files that decisions name and the commit `done` does not; returns whether none is left."""
    from .slice_record import completed_compaction, named_files, remove_placed

    named = named_files(table, done)
    placed = (p.final for one in made for p in one.placements)
    if not any(final not in named and table.storage.find(final) is not None for final in placed):
        return True
    # Without the lock, another process might be publishing them.
    with exclusive(table, lock, "remove files of a decision", _BY_COMMIT) as table:
        still = completed_compaction(table, done.requested_time, done.family)
        if still is None or named_files(table, still) != named:
            return False  # rolled back, and perhaps published by another decision: the next run checks it again
        for one in made:
            remove_placed(table, one, keep=named)
    return True


def _reverted(table: Table, instant: str, lock: TableLock) -> bool:
    """Reverts invalid decisions of an instant that is neither pending nor completed. False: a decision is valid or
    blocked after all; nothing else of the instant may be removed."""
    from .revert import revert_files

    with exclusive(table, lock, "revert a decision", {**READ_INSIDE, **ASKED}) as table:
        for decision in decisions(table.storage, instant):
            assessment = validity_of(table, decision)
            if assessment.may_be_published:
                return False
            if assessment.validity is Validity.INVALID:
                revert_files(table, decision, assessment.why)
    return True


def _finish_by_commit(table: Table, done: Instant) -> None:
    """Finishes a completed compaction whose decision cannot be read, by its commit."""
    from .publish import remove_staged, remove_strays, retire
    from .slice_record import decision_of_commit

    if not {LEDGER, CLUSTERED}.isdisjoint(table.commit_metadata(done).extra_metadata):
        retire(table, decision_of_commit(table, done))
        return
    if done.family == "replacecommit":  # of Hudi: its files are in file groups that no plan names
        remove_staged(table.storage, done.requested_time)
        return
    plan = table.compaction_plan(done.requested_time)
    remove_strays(table, done, plan.groups)
    remove_staged(table.storage, done.requested_time)


def tidy(table: Table, lock: TableLock, *, runs: bool = True) -> None:
    """Finishes completed compactions, so that their records are not needed, and removes what dead processes staged for
    a clustering, unless `runs` is False. Errors other than LockError are logged. A stale commit is retracted here:
    until then what it merged must remain."""
    try:
        finish_completed(table, lock)
        if runs:
            remove_dead_runs(table)
    except LockError:
        raise
    except PhantombaseError as error:
        _log.warning("not_cleaned_up", table=table.storage.base_path, error=str(error))


def unfinished_compactions(table: Snapshot) -> Iterator[str]:
    """The instants whose records are needed; a record that cannot be read is needed."""
    completed = {i.requested_time for i in table.timeline.completed}
    recorded = [i for i in recorded_instants(table.storage) if i in completed]
    if not recorded:
        return
    littered = littered_instants(table)
    for instant in recorded:
        if instant in littered or not _is_audited(table, instant):
            yield instant


def _is_audited(table: Table, instant: str) -> bool:
    """Whether its ledger is in the audit log, or phantombase did not execute it. That of a clustering is put before its
    leftovers are removed."""
    try:
        made = [one for one in decisions(table.storage, instant) if not one.replaced]
        return not made or bool(entries(table.storage, instant))
    except MalformedError:
        return False


def _is_littered(table: Table, instant: str) -> bool:
    storage = table.storage
    if storage.find(heartbeat_path(instant)) is not None or staged_files(storage, instant, STAGED_ENDINGS):
        return True
    numbers = attempts(storage, instant)
    if numbers and storage.find(outcome_path(instant, numbers[-1])) is None:
        return True
    if not any(is_revoked(storage, instant, number) for number in numbers):
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
    from .revert import stale_commit
    from .slice_record import completed_commits

    return any(stale_commit(table, done, made) is not None for done in completed_commits(table, instant))


def forget_archived(table: Table) -> None:
    """Removes the records of archived instants, on which no process can act any more, and abandoned files. The records
    of an unfinished instant are kept. Another process may be about to revert its files, or has failed to do so; without
    the records nothing shows that these files must not be read."""
    _forget_archived(table, table.snapshot(also=(TEMPORARY,)))
    abort_abandoned_uploads(table.storage)


def _forget_archived(table: Table, seen: Table) -> None:
    """`seen`: a snapshot of the table; if it shows that nothing is archived, nothing else is read."""
    remove_abandoned(seen.storage)
    start = seen.load_timeline().start
    if all(instant >= start for instant in recorded_instants(seen.storage)):
        return
    table = table.snapshot(cached=False)
    timeline = table.load_timeline()
    refuse_half_upgraded(table)  # in a half upgraded table an instant of the other half would seem to be archived
    active = {i.requested_time for i in timeline.instants}
    for instant in recorded_instants(table.storage):
        if instant not in active and instant < timeline.start and not _is_littered(table, instant):
            table.storage.delete_folder(instant_folder(instant))


def abort_abandoned_uploads(storage: Storage) -> None:
    """Aborts abandoned uploads to staged and to final names of phantombase; ages are by the clock of the storage."""
    abort_uploads(storage, _is_ours, _UPLOAD_S)


@contextmanager
def abandoned_uploads_aborted(storage: Storage) -> Iterator[None]:
    """Aborts abandoned uploads while the body runs: the client that lists them loads slowly, nothing depends on it."""
    with Threads(1) as pool:
        aborted = pool.submit(abort_abandoned_uploads, storage)
        yield
    aborted.result()


def remove_abandoned(storage: Storage) -> None:
    """Removes abandoned temporary files. Ages are by the clock of the storage. The clock of this process may be hours
    ahead: then files that are just being written would be removed."""
    entries = listed_if_there(storage, TEMPORARY)
    if not entries:
        return
    now_ms = storage_ms(storage)
    for entry in entries:
        if now_ms - entry.modified_ms > _ABANDONED_MS:
            storage.delete(f"{TEMPORARY}/{entry.name}")


def _is_ours(path: str) -> bool:
    """Whether an upload to this path is phantombase's; others may be in progress there, such as Hudi's."""
    name = path.rpartition("/")[2]
    if path.startswith(f"{RECORDS}/") or name == PLACED:
        return True
    file = parse_data_file(name)
    return file is not None and is_of_phantombase(file.token)
