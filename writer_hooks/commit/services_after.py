"""Runs the table's services once a write is committed and its compactions are requested or executed.

The write is complete whatever happens here: an error is reported, not raised.

Removes what finished and dead writes have left: staged files, markers, and rows between Spark stages.
"""

from __future__ import annotations

import time
from dataclasses import replace

from phantombase.compactor_daemon.leftovers import remove_left_behind
from phantombase.compactor_daemon.services.options import Service
from phantombase.compactor_daemon.services.serve import serve_table
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.table.table import Table

from ..engine.spool import remove_old
from ..options import WriteOptions
from .after_commit import AfterCommit

_log = get_logger()


def remove_traces(table: Table) -> None:
    """Removes markers and staged files of finished and dead writes. After an error the next write tries again."""
    try:
        remove_old(table.storage, round(time.time() * 1000))
        remove_left_behind(table)
    except PhantombaseError as error:
        _log.warning("clean_up_failed", error=str(error))


def services_after(table: Table, lock: TableLock, options: WriteOptions, after: AfterCommit) -> AfterCommit:
    """`after` with what the services did that the options of the write name."""
    done = {one.service: one for one in serve_table(table, options.services, lock)}
    errors = [after.error, *(one.what for one in done.values() if one.failed)]
    cleaned, archived = done.get(Service.CLEAN), done.get(Service.ARCHIVE)
    return replace(
        after,
        cleaned=0 if cleaned is None else cleaned.files,
        archived=0 if archived is None else archived.instants,
        error=next((error for error in errors if error is not None), None),
    )
