"""Removes what finished and dead writes have left: staged files, markers, and rows between Spark stages."""

from __future__ import annotations

import time

import structlog

from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.storage.folders import WRITES, staged_folder
from phantombase.timeline.table.table import Table
from phantombase.timeline.traces.markers import delete_markers

from ..engine.spool import remove_old

_log = structlog.get_logger()


def remove_traces(table: Table) -> None:
    """Removes markers and staged files of finished and dead writes. After an error the next write tries again."""
    try:
        remove_old(table.storage, round(time.time() * 1000))
        _remove_all(table)
    except PhantombaseError as error:
        _log.warning("clean_up_failed", error=str(error))


def _remove_all(table: Table) -> None:
    """Staged folders are listed before the timeline is loaded: a write is on the timeline before it stages files."""
    storage = table.storage
    if storage.find(WRITES) is None:
        return
    staged = [e.name for e in storage.list(WRITES) if e.is_folder]
    pending = table.load_timeline().pending_writes
    for instant in staged:
        if instant not in pending:
            delete_markers(storage, instant)  # before the staging folder, which shows that there may be markers
            storage.delete_folder(staged_folder(instant))
