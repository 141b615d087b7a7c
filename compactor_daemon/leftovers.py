"""Removes leftovers of processes that ended or died: staged files and markers of writes, and heartbeats."""

from __future__ import annotations

from collections.abc import Callable

from phantombase.timeline.locks.heartbeat import heartbeat_path, is_live, read_heartbeat
from phantombase.timeline.storage.folders import WRITES, staged_folder
from phantombase.timeline.table.in_progress import clustering_in_rollback, completed_rollback_of
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import delete_markers


def forget_heartbeats(table: Table, *, now_ms: Callable[[], int], expiry_s: float) -> None:
    """Removes heartbeats of rollbacks and of their targets, left by a process that was killed at its very end. Also
    removes phantombase heartbeats that are no longer live, of instants that completed or never started. `now_ms`: see
    `roll_back_dead_writers`."""
    folder = heartbeat_path("").rstrip("/")
    if table.storage.find(folder) is None:
        return
    beats = [e.name for e in table.storage.list(folder) if e.name.isdigit()]
    seen = table.with_timeline(table.load_timeline())
    active = {i.requested_time: i for i in seen.timeline.instants}
    half_way = clustering_in_rollback(seen) if beats else None
    for name in beats:
        instant = active.get(name)
        if instant is not None and (not instant.completed or instant == half_way):
            continue
        beat = read_heartbeat(table.storage, name)
        if beat is not None and beat.ours and not is_live(beat, now_ms(), expiry_s):
            over = True
        elif instant is None:
            over = completed_rollback_of(table, name) is not None
        else:
            over = instant.action == "rollback"
        if over:
            table.storage.delete(heartbeat_path(name))


def remove_left_behind(table: Table) -> None:
    """Removes staged files and markers of writes that are not pending. Staged folders are listed before the timeline is
    loaded: a write is on the timeline before it stages files."""
    storage = table.storage
    if storage.find(WRITES) is None:
        return
    staged = [e.name for e in storage.list(WRITES) if e.is_folder]
    pending = table.load_timeline().pending_writes
    for instant in staged:
        if instant not in pending:
            delete_markers(storage, instant)  # before the staging folder, which shows that there may be markers
            storage.delete_folder(staged_folder(instant))
