"""Removes what finished and dead writes have left: staged files, markers, and rows between Spark stages."""

from __future__ import annotations

import time

from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.recovery.left_behind import remove_left_behind
from phantombase.timeline.table.table import Table

from ..engine.spool import remove_old

_log = get_logger()


def remove_traces(table: Table) -> None:
    """Removes markers and staged files of finished and dead writes. After an error the next write tries again."""
    try:
        remove_old(table.storage, round(time.time() * 1000))
        remove_left_behind(table)
    except PhantombaseError as error:
        _log.warning("clean_up_failed", error=str(error))
