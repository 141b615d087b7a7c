"""Looks back at a commit of a stitching that was put: other processes may have changed its inputs right before.

A process may sleep between its last look and the put, for so long that its lock is lost. A write of Hudi that replaces
file groups asks for no plan, so it may replace the inputs meanwhile; a rollback may undo what wrote them. The commit
makes their rows visible again. It is taken away as long as nothing can rest on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.planning.schedule import busy_file_groups
from phantombase.timeline.recovery.dead_writers import is_pending_service
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import GroupKey

from .made import Made

_WRITES = ("commit", "deltacommit", "replacecommit")


def refuse_changed_inputs(
    table: Table, before: Timeline, done: Instant, placed: Sequence[Made], lock: TableLock
) -> None:
    """ConflictError: a write changed the inputs between `before`, the last look, and the put of `done`.

    The commit is gone then, and the stitching pending; if others may have built upon it, it stays, and the error says
    so.
    """
    if (other := _changed_by(table, before, done, placed)) is None:
        return
    with lock.hold("look back at a stitching"):
        now = table.load_timeline()
        upon = next(_built_upon(table, now, before, done, placed), None)
        if upon is None:
            table.storage.delete(table.instant_path(done))
    raise ConflictError(
        "another write changed the files of a stitching while its process slept, right before its commit",
        path=table.instant_path(done),
        instant=done.requested_time,
        found=other if upon is None else f"{other}; and {upon}, so the commit stays",
        todo="Nothing of it is visible. Run again."
        if upon is None
        else f"Rows that {other} replaced or undid are visible again. Stop the writers, then roll it back: "
        f"compactor-daemon rollback TABLE {done.requested_time}, or restore the table.",
    )


def _changed_by(table: Table, before: Timeline, done: Instant, placed: Sequence[Made]) -> str | None:
    now = table.load_timeline()
    inputs = {(one.partition, slice_.file_id) for one in placed for slice_ in one.inputs}
    writers = {base.name.instant for one in placed for slice_ in one.inputs if (base := slice_.base) is not None}
    if undone := next((time for time in sorted(writers) if not now.is_committed(time)), None):
        return f"the rollback of {undone}"
    for instant in _since(now, before, done):
        if not inputs.isdisjoint(_groups_of(table, instant)):
            return f"{instant.action} {instant.requested_time}"
    return None


def _built_upon(table: Table, now: Timeline, before: Timeline, done: Instant, placed: Sequence[Made]) -> Iterator[str]:
    """What rests on the new file groups, or may soon: the commit cannot be taken away any more."""
    made = {(one.partition, one.file_id): one.final.rpartition("/")[2] for one in placed}
    for instant in _since(now, before, done):
        if not made.keys().isdisjoint(_groups_of(table, instant)):
            yield f"{instant.action} {instant.requested_time} wrote to its files"
    for write in now.inflight_writers:
        if not is_pending_service(table, write):
            yield f"{write.action} {write.requested_time} is pending, which may write to its files"
    planned = {*table.facts.pending_plans(now), *busy_file_groups(table, now).groups}
    if not planned.isdisjoint(made):
        yield "a pending plan names its files"
    for partition in {partition for partition, _ in made}:
        for entry in table.storage.list(partition):
            name = parse_data_file(entry.name)
            if (
                isinstance(name, BaseFileName | LogFileName)
                and made.get((partition, name.file_id), entry.name) != entry.name
            ):
                yield f"{entry.name} belongs to its files"


def _since(now: Timeline, before: Timeline, done: Instant) -> Iterator[Instant]:
    known = {(i.requested_time, i.family) for i in (*before.completed, done)}
    yield from (i for i in now.completed if i.family in _WRITES and (i.requested_time, i.family) not in known)


def _groups_of(table: Table, instant: Instant) -> frozenset[GroupKey]:
    """File groups that a completed write wrote to, or replaced."""
    metadata = table.commit_metadata(instant)
    return metadata.written_groups | metadata.replaced_groups
