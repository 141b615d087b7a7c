"""Checks the inputs of a clustering again after its commit: others may have changed them right before.

A process may stall between its last snapshot and the put until its lock is lost. A write of Hudi that replaces file
groups checks no plan, so it may replace the inputs in that time; a rollback may undo the write that wrote them. The
commit makes their rows visible again. It is deleted as long as nothing can depend on it.

If the plan was cancelled in that time, the commit replaces file groups by removed files. If the process died before
this check, the next write or run withdraws the commit: until then phantombase does not read the table, and Hudi reads
it without the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from phantombase.timeline.errors import ConflictError, MissingFileError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.ledger import CLUSTERED, decode_ledgers
from phantombase.timeline.instants.reserved_times import has_tombstone, recorded_instants
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.planning.schedule import busy_file_groups
from phantombase.timeline.storage.contract import list_of_table
from phantombase.timeline.table.exclusive import READ_INSIDE, Guard, exclusive, regardless
from phantombase.timeline.table.in_progress import is_pending_service
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import GroupKey

from .outputs import Made

_log = get_logger()
_OWN = dict.fromkeys(Guard, "this process has put the commit, and no other one removes it")
_BLOCKS = {
    **READ_INSIDE,
    **dict.fromkeys((Guard.RESTORE, Guard.ROLLBACK), "a write that is not to be there may be what blocks them"),
}
_WRITES = ("commit", "deltacommit", "replacecommit")


def refuse_changed_inputs(
    table: Table, before: Timeline, done: Instant, placed: Sequence[Made], lock: TableLock
) -> None:
    """ConflictError: a write changed the inputs between `before`, the last snapshot, and the put of `done`. The commit
    is then deleted, and the clustering is pending again; if others may have built upon the commit, it is kept, and the
    error says so."""
    if (other := _changed_by(table, before, done, placed)) is None:
        return
    with exclusive(table, lock, "look back at a clustering", _OWN) as held:
        upon = next(_built_upon(held.table, held.timeline, before, done, placed), None)
        if upon is None:
            regardless(held.table).storage.delete(held.table.instant_path(done))
    raise ConflictError(
        "another write changed the files of a clustering while its process slept, right before its commit",
        path=table.instant_path(done),
        instant=done.requested_time,
        found=other if upon is None else f"{other}; and {upon}, so the commit stays",
        todo="Nothing of it is visible. Run again."
        if upon is None
        else f"Rows that {other} replaced or undid are visible again. Stop the writers, then restore the table to an "
        "instant before that: compactor-daemon restore TABLE --to INSTANT.",
    )


def withdraw_stale(table: Table, timeline: Timeline, lock: TableLock) -> None:
    """Withdraws the commits of clusterings that were put after their plans had been cancelled. Errors: of the storage.
    A commit is kept, with an error in the log, if another write has completed in its partitions since: that write may
    have written rows again that it did not see. `timeline`: loaded shortly before."""
    if not any(i.family == "replacecommit" for i in timeline.completed):
        return
    names, recorded = _modified(table), recorded_instants(table.storage)
    for done in timeline.completed:
        if not _is_late(table, done, names, recorded):
            continue
        with exclusive(table, lock, "withdraw a stale clustering", _BLOCKS) as held:
            table, now, names = held.table, held.timeline, _modified(held.table)
            if done not in now.completed or not _is_late(table, done, names, recorded):
                continue
            if since := _written_since(table, now, done, names):
                where = table.storage.base_path
                _log.error("stale_clustering_stays", table=where, instant=done.requested_time, why=since)
                continue
            table.storage.delete(table.instant_path(done))
        _log.warning("stale_clustering_withdrawn", table=table.storage.base_path, instant=done.requested_time)


def _modified(table: Table) -> dict[str, int]:
    """The files of the active timeline, with the times when they were put (ms)."""
    return {e.name: e.modified_ms for e in list_of_table(table.storage, table.config.timeline_folder)}


def _is_late(table: Table, done: Instant, names: Collection[str], recorded: Collection[str]) -> bool:
    """True if the clustering was cancelled before this commit: its outputs are missing and all inputs exist. A
    clustering whose plan an archiver has removed differs: its inputs were removed before."""
    time = done.requested_time
    if done.family != "replacecommit":
        return False
    planned = any(n.startswith(f"{time}.") and n.endswith(".requested") for n in names)
    if planned and not (time in recorded and has_tombstone(table.storage, time)):
        return False  # a plan without a tombstone was not cancelled
    try:
        metadata = table.commit_metadata(done)
    except MissingFileError:
        return False  # archived since the timeline was loaded
    text = metadata.extra_metadata.get(CLUSTERED)
    groups = () if text is None else decode_ledgers(text, table.instant_path(done))
    find = table.storage.find
    made = [one.path(name) for one in groups for name, _ in one.outputs]
    return (
        bool(made)
        and all(find(path) is None for path in made)
        and all(find(one.path(name)) is not None for one in groups for name in one.inputs)
    )


def _written_since(table: Table, now: Timeline, done: Instant, names: Mapping[str, int]) -> str:
    """A write that completed in the partitions of a clustering after the put of its commit; "": none."""
    partitions = {partition for partition, _ in _groups_of(table, done)}
    put = names[table.layout.file_name(done)]
    behind = (i for i in now.completed if i.family in _WRITES and names.get(table.layout.file_name(i), put) >= put)
    for other in behind:
        if other != done and not partitions.isdisjoint(partition for partition, _ in _groups_of(table, other)):
            return f"{other.action} {other.requested_time} completed behind it"
    return ""


def _changed_by(table: Table, before: Timeline, done: Instant, placed: Sequence[Made]) -> str | None:
    now = table.load_timeline()
    inputs = {(one.partition, slice_.file_id) for one in placed for slice_ in one.inputs}
    writers = {base.name.instant for one in placed for slice_ in one.inputs if (base := slice_.base) is not None}
    writers.update(write for one in placed for write in one.logs.merged)
    if undone := next((time for time in sorted(writers) if not now.is_committed(time)), None):
        return f"the rollback of {undone}"
    for instant in _since(now, before, done):
        if not inputs.isdisjoint(_groups_of(table, instant)):
            return f"{instant.action} {instant.requested_time}"
    return None


def _built_upon(table: Table, now: Timeline, before: Timeline, done: Instant, placed: Sequence[Made]) -> Iterator[str]:
    """What depends on the new file groups, or may soon: then the commit cannot be deleted."""
    made = {(one.partition, file.file_id): file.name for one in placed for file in one.files}
    for instant in _since(now, before, done):
        if not made.keys().isdisjoint(_groups_of(table, instant)):
            yield f"{instant.action} {instant.requested_time} wrote to its files"
    for write in now.inflight_writers:
        if not is_pending_service(table, write):
            yield f"{write.action} {write.requested_time} is pending, which may write to its files"
    planned = {*table.facts.pending_plans(now), *busy_file_groups(table, now).groups}
    if not planned.isdisjoint(made):
        yield "a pending plan names its files"
    for partition in sorted({partition for partition, _ in made}):
        for entry in table.storage.list(partition):
            name = parse_data_file(entry.name)
            if (
                isinstance(name, BaseFileName | LogFileName)
                and made.get((partition, name.file_id), entry.name) != entry.name
            ):
                yield f"{entry.name} belongs to its files"


def _since(now: Timeline, before: Timeline, done: Instant) -> Iterator[Instant]:
    known = {i.identity for i in (*before.completed, done)}
    yield from (i for i in now.completed if i.family in _WRITES and i.identity not in known)


def _groups_of(table: Table, instant: Instant) -> frozenset[GroupKey]:
    """File groups that a completed write wrote to, or replaced."""
    metadata = table.commit_metadata(instant)
    return metadata.written_groups | metadata.replaced_groups
