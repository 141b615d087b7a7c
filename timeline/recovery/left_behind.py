"""Removes leftovers of finished or removed writes and clusterings of phantombase: staged files, markers."""

from __future__ import annotations

from ..storage.folders import WRITES, staged_folder
from ..table.table import Table
from ..traces.markers import delete_markers


def remove_left_behind(table: Table) -> None:
    """Removes it. Staged folders are listed before the timeline is loaded: a write is on it before it stages files."""
    storage = table.storage
    if storage.find(WRITES) is None:
        return
    staged = [e.name for e in storage.list(WRITES) if e.is_folder]
    pending = table.load_timeline().pending_writes
    for instant in staged:
        if instant not in pending:
            delete_markers(storage, instant)  # before the staging folder, which shows that there may be markers
            storage.delete_folder(staged_folder(instant))
