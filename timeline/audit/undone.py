"""Whether a completed compaction was undone later: by a rollback or a restore.

Hudi then removes the commit and its files. The entry in the audit log remains; its files need not exist.
"""

from __future__ import annotations

from collections.abc import Collection

from ..instants.timeline import Timeline
from ..table.half_upgraded import refuse_half_upgraded
from ..table.table import Table
from .group_ledger import LEDGER


def is_undone(table: Table, instant: str, written: Collection[str]) -> bool:
    """Whether the execution of a compaction that wrote these files (paths in the table) was undone.

    Raises an error of the tree if the table cannot be read: then the answer is unknown.
    """
    table = table.reload()
    refuse_half_upgraded(table)
    timeline = table.load_timeline()  # before the archive is: Hudi archives an instant, then removes it here
    for done in table.files.completed_commits(instant):
        metadata = table.commit_metadata(done)
        if LEDGER in metadata.extra_metadata or not metadata.named_files.isdisjoint(written):
            return False
        # Otherwise the commit names other files: a write of the same millisecond, or Hudi executed the plan since.
    return was_undone(instant, table.with_archive(timeline))


def was_undone(instant: str, timeline: Timeline) -> bool:
    """Whether a compaction that once completed, and no longer has a phantombase commit, was not archived (pure).

    `timeline`: with its archive. Archiving removes the oldest completed instants first. So if it has passed this
    instant, the archive holds this instant or older ones.
    """
    archived = [i.requested_time for i in timeline.archived if i.is_write]
    if instant in archived:
        return False
    return instant >= timeline.start or any(time < instant for time in archived)
