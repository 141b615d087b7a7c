"""Undoes instants of a restore, completed ones too, in the order of its plan: the newest first.

    <t>.<action>           its completed files are deleted: from here on no reader sees it
    data                   version 6      files named by t deleted; blocks of t in other log files revoked
                           versions 8, 9  files named by t deleted
    markers, staged files, then the inflight and the requested file of t

Between two instants the table is in the state after those that are left: they were written before those that are gone.
Every step may have been done before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.format.rollback_plan import RollbackPlan
from phantombase.timeline.instants.instant_files import StateFile, load_state_files
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.storage.folders import join, staged_folder
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import data_files, delete_markers, instants_in, revoke, revoked_slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """`plan`: what an instant had left. `commands`: (partition, name) of the log files that revoke it, and sizes."""

    plan: RollbackPlan
    commands: Mapping[tuple[str, str], int]


def traces_of_all(
    table: Table, timeline: Timeline, undone: Collection[tuple[str, str]]
) -> dict[tuple[str, str], RollbackPlan]:
    """What instants, (time, action), have left in the table, by listing it once.

    ConflictError: on version 6 a log file that would go holds blocks of a write that stays.
    """
    times = frozenset(time for time, _ in undone)
    by_base = table.layout.slicing is Slicing.BY_BASE_INSTANT
    doomed: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    logs: defaultdict[str, dict[tuple[str, str, str], dict[str, int]]] = defaultdict(dict)
    for partition in table.partitions():
        for entry, name in data_files(table, partition):
            goes = name.instant in times
            if goes:
                doomed[name.instant].append((partition, entry.name))
            if not by_base or not isinstance(name, LogFileName):
                continue
            path = join(partition, entry.name)
            for time in sorted(set(instants_in(table, path))):
                if goes and time not in times and timeline.is_committed(time):
                    raise ConflictError(
                        "a log file that would go holds rows of a write that stays",
                        path=path,
                        instant=time,
                        todo="Restore the table with Hudi, or to an earlier instant.",
                    )
                if not goes and time in times:
                    key = (partition, name.file_id, name.instant)
                    logs[time].setdefault(key, {})[entry.name] = entry.size
    return {
        (time, action): RollbackPlan(
            target=time,
            action=action,
            doomed=tuple(doomed[time]),
            revoked=revoked_slices(logs[time]),
        )
        for time, action in undone
    }


def undo(table: Table, traces: RollbackPlan, check: Callable[[], None]) -> Undone:
    """Undoes one instant. `check` is called before each step: it raises if the lock is lost."""
    storage, time = table.storage, traces.target
    files = unpublish(table, traces.instant, check)
    check()
    storage.delete_all([join(partition, name) for partition, name in traces.doomed])
    commands = {}
    for slice_ in traces.revoked:
        check()
        if (made := revoke(table, slice_, time)) is not None:
            commands[made[0]] = made[1]
    check()
    delete_markers(storage, time)
    storage.delete_folder(staged_folder(time))
    # The requested file goes last: until then it is known that the instant was there.
    for one in sorted((f for f in files if not f.instant.completed), key=lambda f: -f.instant.state):
        check()
        storage.delete(one.path)
    storage.delete(heartbeat_path(time))
    return Undone(plan=traces, commands=commands)


def unpublish(table: Table, instant: Instant, check: Callable[[], None]) -> Sequence[StateFile]:
    """Deletes the completed files of an instant: from here on no reader sees it. Returns all its files until then."""
    files = load_state_files(table.storage, table.config).files(instant)
    for one in files:
        if one.instant.completed:
            check()
            table.storage.delete(one.path)
    return files
