"""Cleaning up behind a compaction that is completed and whole.

Before that nobody deletes staged data. `open` and `fate` records stay until Hudi has archived the instant: they stop
zombies that old.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence

import structlog

from phantombase.timeline.audit.audit_log import add_entry
from phantombase.timeline.audit.group_ledger import LEDGER
from phantombase.timeline.errors import MalformedError, MissingFileError, PhantombaseError, StorageError
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.instants.attempt_names import attempts, instant_folder, recorded_instants, staged_files
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import TEMPORARY
from phantombase.timeline.table.half_upgraded import refuse_half_upgraded
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import GroupKey

from ..decisions.completed import completed_commits, completed_compaction, is_ours, named_files, remove_placed
from ..decisions.late_commit import late_commit, withdraw
from ..decisions.of_commit import go_of_commit
from ..decisions.replaced import placed_group
from ..decisions.standing import Standing, refuse_rollback, standing_of
from ..decisions.take_back import take_back
from ..records.fate import STAGED_ENDINGS, Go, decisions, declare_dead, is_revoked
from .publish import place

_log = structlog.get_logger()


def retire(table: Table, go: Go) -> None:
    """Places what is missing again, then removes strays of the instant, staged data and the heartbeat.

    MissingFileError: the decision is not published. ConflictError: a rollback names the instant.
    """
    table = table.reload()
    done = completed_compaction(table, go.instant)
    if done is None:
        raise MissingFileError("a decided compaction is not completed", path=go.completed_path, instant=go.instant)
    refuse_rollback(table, go.instant)
    named = named_files(table, done)  # a file group that was replaced before the compaction was published is not in it
    placements = [p for p in go.placements if p.final in named]
    names = _data_names(table, {p.final.rpartition("/")[0] for p in placements})
    finals = [(p, *p.final.rpartition("/")[::2]) for p in placements]
    gone = any(parse_data_file(text) not in names[partition] for _, partition, text in finals)
    timeline = table.load_timeline()
    if gone and completed_compaction(table, go.instant) is None:
        # Archived since it was looked for: a file may be gone with a replace commit that was archived, too.
        raise MissingFileError(
            "a decided compaction is not completed any more", path=go.completed_path, instant=go.instant
        )
    replaced = table.facts.replaced_groups(timeline) if gone else {}
    for placement, partition, text in finals:
        # A newer base file of the group, or the group replaced: a cleaner may have taken this one, and it is needed no
        # more. In a replaced group it would come to light again once the replace commit is archived.
        mine, bases = parse_data_file(text), [n for n in names[partition] if isinstance(n, BaseFileName)]
        later = [n for n in bases if mine is not None and n.file_id == mine.file_id and n.instant > go.instant]
        newer = any(timeline.is_committed(n.instant) for n in later)
        is_replaced = mine is not None and (partition, mine.file_id) in replaced
        if not newer and (mine in names[partition] or not is_replaced):
            place(table, go, placement)
    keep_books(table, go, done)
    _remove_strays(table, done, _groups(table, go))
    remove_staged(table.storage, go.instant)


def keep_books(table: Table, go: Go, done: Instant) -> None:
    """The ledger of a compaction, completed as `done`, into the audit log, which outlives its commit.

    Nothing where that is the commit of another decision: of a process that slept while the compaction was rolled back
    and executed again. The last entry is to be that of the last execution.
    """
    if not is_ours(table, done, go):
        return
    ledger = decode_commit(go.content, go.completed_path).extra_metadata[LEDGER]
    add_entry(table.storage, go.instant, go.attempt, table.instant_path(done), ledger)


def _data_names(table: Table, partitions: Iterable[str]) -> dict[str, list[BaseFileName | LogFileName]]:
    """What is in these partitions; nothing where one was removed."""
    found: dict[str, list[BaseFileName | LogFileName]] = {}
    for partition in partitions:
        try:
            names = [parse_data_file(e.name) for e in table.storage.list(partition) if not e.is_folder]
        except MissingFileError:
            names = []
        found[partition] = [n for n in names if n is not None]
    return found


def _groups(table: Table, go: Go) -> frozenset[GroupKey]:
    """The file groups of the plan; where that is gone already, those that were decided."""
    try:
        return table.compaction_plan(go.instant).groups
    except MissingFileError:
        return frozenset(placed_group(p.final) for p in go.placements)


def _remove_strays(table: Table, done: Instant, groups: Collection[GroupKey]) -> None:
    """Files of these file groups and of the instant that its commit does not name: readers would take either.

    No others: a writer that takes no lock may have begun in the same millisecond.
    A log that carries a compaction's instant is a write: of version 6, which lies on the slice to be, also once a Hudi
    writer has upgraded the table. So logs go only where the instant is a log compaction, from version 8 on.
    """
    named = named_files(table, done)
    kind = BaseFileName if done.action == "commit" else LogFileName
    if kind is LogFileName and table.layout.slicing is Slicing.BY_BASE_INSTANT:
        return
    write = Instant(requested_time=done.requested_time, action="deltacommit", state=State.REQUESTED)
    begun = (table.storage.find(table.instant_path(write.at(state))) for state in (State.REQUESTED, State.INFLIGHT))
    if kind is LogFileName and any(begun):
        return  # of a writer that takes no lock and began in the same millisecond: its logs have such names, too
    for partition, names in _data_names(table, {partition for partition, _ in groups}).items():
        for name in names:
            path = f"{partition}/{name}" if partition else str(name)
            is_of_plan = isinstance(name, kind) and (partition, name.file_id) in groups
            if is_of_plan and name.instant == done.requested_time and path not in named:
                table.storage.delete(path)


def remove_staged(storage: Storage, instant: str) -> None:
    """Removes what was staged for an instant, and its heartbeat."""
    for path in staged_files(storage, instant, STAGED_ENDINGS):
        storage.delete(path)
    storage.delete(heartbeat_path(instant))


_ABANDONED_MS = 3_600_000
"""A file being written for so long has lost its writer."""


def finish_completed(table: Table, lock: TableLock) -> None:
    """Brings instants that are no longer pending to their end: what earlier runs, killed there, had left.

    Each for itself: the first error is raised when the others are done.
    """
    failed: PhantombaseError | None = None
    for instant in littered_instants(table):
        try:
            finish(table, instant, lock)
        except PhantombaseError as error:
            _log.warning("not_finished", instant=instant, error=str(error))
            failed = failed or error
    forget_archived(table)
    if failed is not None:
        raise failed


def littered_instants(table: Table) -> tuple[str, ...]:
    """Instants that are no longer pending and have staged files, a heartbeat, or files of a revoked decision left."""
    recorded = recorded_instants(table.storage)  # first: one that is requested and opened meanwhile is none of these
    pending = {i.requested_time for i in table.load_timeline().pending_merges}
    return tuple(i for i in recorded if i not in pending and _is_littered(table, i))


def finish(table: Table, instant: str, lock: TableLock) -> None:
    """Cleans up behind an instant that is no longer pending.

    Completed by this project: retired. Completed by a Hudi compactor, or gone from the timeline: what was placed and
    staged is removed, after undecided attempts were declared dead. ConflictError: see `take_back`, `standing`.
    MalformedError: it is not completed, and whether it was decided cannot be read.
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
    late = late_commit(table, done, made) if done is not None else None
    if late is not None and withdraw(table, late, lock):
        return
    go = next((one for one in made if not is_revoked(storage, instant, one.attempt)), None)
    if done is not None:
        if go is not None and is_ours(table, done, go):
            retire(table, go)
        if not _lost_removed(table, done, made, lock):
            return
    elif made and not _taken_back(table, instant, lock):
        return
    if go is None:
        declare_dead(storage, instant, "completed by somebody else")
    remove_staged(storage, instant)


def _lost_removed(table: Table, done: Instant, made: Sequence[Go], lock: TableLock) -> bool:
    """Whether no file stands of decisions other than the one that was completed as `done`."""
    named = named_files(table, done)
    placed = (p.final for one in made for p in one.placements)
    if not any(final not in named and table.storage.find(final) is not None for final in placed):
        return True
    with lock.hold("remove files of a decision"):  # else from under the hands of a process that publishes it
        table = table.reload()
        still = completed_compaction(table, done.requested_time)
        if still is None or named_files(table, still) != named:
            return False  # rolled back, and perhaps published by another decision: the next run looks at it anew
        for one in made:
            remove_placed(table, one, keep=named)
    return True


def _taken_back(table: Table, instant: str, lock: TableLock) -> bool:
    """Whether no file stands of decisions whose instant is neither pending nor completed, as far as that is known."""
    with lock.hold("take a decision back"):
        table = table.reload()
        for go in decisions(table.storage, instant):
            ruling = standing_of(table, go)
            if ruling.standing in (Standing.STANDS, Standing.WAITS):
                return False
            if ruling.standing is Standing.FALLEN:
                take_back(table, go, ruling.why)
    return True


def _finish_by_commit(table: Table, done: Instant) -> None:
    """Cleans up behind a completed compaction of which it cannot be read how it was decided: its commit tells."""
    if LEDGER in table.commit_metadata(done).extra_metadata:
        retire(table, go_of_commit(table, done))
        return
    plan = table.compaction_plan(done.requested_time)
    _remove_strays(table, done, plan.groups)
    remove_staged(table.storage, done.requested_time)


def _remove_abandoned(storage: Storage) -> None:
    """Ages are taken by the storage's clock: ours may be hours ahead, and files just being written would go."""
    entries = storage.list(TEMPORARY) if storage.find(TEMPORARY) is not None else []
    if not entries:
        return
    now_ms = _storage_ms(storage)
    for entry in entries:
        if now_ms - entry.modified_ms > _ABANDONED_MS:
            storage.delete(f"{TEMPORARY}/{entry.name}")


def _storage_ms(storage: Storage) -> int:
    """The storage's clock: the time it gives a new file."""
    path = f"{TEMPORARY}/{uuid.uuid4().hex}"
    storage.put_if_absent(path, b"")
    entry = storage.find(path)
    storage.delete(path)
    if entry is None:
        raise StorageError("a file that was just put is not there", path=path)
    return entry.modified_ms


def _is_littered(table: Table, instant: str) -> bool:
    storage = table.storage
    if storage.find(heartbeat_path(instant)) is not None or staged_files(storage, instant, STAGED_ENDINGS):
        return True
    if not any(is_revoked(storage, instant, number) for number in attempts(storage, instant)):
        return False
    try:
        made = decisions(storage, instant)
        finals = [p.final for go in made if is_revoked(storage, instant, go.attempt) for p in go.placements]
    except MalformedError:  # `finish` says so
        return True
    if any(storage.find(final) is not None for final in finals):
        return True
    return any(late_commit(table, done, made) is not None for done in completed_commits(table, instant))


def forget_archived(table: Table) -> None:
    """Removes the records of instants that Hudi has archived, where nothing can act on those any more, and files whose
    writers were killed long ago.

    Not of one that is littered: another process may be about to take its files back, or has failed to; without the
    records nothing would tell that these count for nothing.
    """
    _remove_abandoned(table.storage)
    timeline = table.load_timeline()
    refuse_half_upgraded(table)  # else an instant that is in the other half seems to be archived
    active = {i.requested_time for i in timeline.instants}
    for instant in recorded_instants(table.storage):
        if instant not in active and instant < timeline.start and not _is_littered(table, instant):
            table.storage.delete_folder(instant_folder(instant))
