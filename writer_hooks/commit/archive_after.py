"""Archives old instants once a write is committed and its compactions are requested or executed.

The write is complete whatever happens here: an error is reported, not raised.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.timeline.archiving.options import ArchiveOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.table.table import Table

from ..options import CompactionOptions
from .after_commit import AfterCommit

_log = structlog.get_logger()


def archive_after(
    table: Table, lock: TableLock, archive: ArchiveOptions | None, compaction: CompactionOptions, after: AfterCommit
) -> AfterCommit:
    """`after` with the number of instants that were archived now; None: nothing is archived.

    As many delta commits stay as the write's own trigger of compactions counts.
    """
    if archive is None:
        return after
    counted = max(archive.compaction_commits, compaction.schedule.max_delta_commits)
    try:
        done = archive_table(table.reload(), replace(archive, compaction_commits=counted), lock)
    except PhantombaseError as error:
        _log.warning("archiving_failed", table=table.storage.base_path, error=str(error))
        return replace(after, error=after.error or str(error))
    return replace(after, archived=len(done.archived))
