"""Whether a completed compaction was undone since: rolled back, or restored away.

Hudi takes its commit and its files then. The audit log keeps the entry: of its files nothing is to be expected.
"""

from __future__ import annotations

from collections.abc import Collection

from ..instants.timeline import Timeline
from ..table.half_upgraded import refuse_half_upgraded
from ..table.table import Table
from .books import LEDGER


def is_undone(table: Table, instant: str, written: Collection[str]) -> bool:
    """Whether the execution of a compaction that wrote these files, paths in the table, was undone.

    Errors of the tree: what cannot be looked at is unknown.
    """
    table = table.reload()
    refuse_half_upgraded(table)
    timeline = table.load_timeline()  # the archive behind it: Hudi archives an instant before it takes it off
    for done in table.files.completed_commits(instant):
        metadata = table.commit_metadata(done)
        if LEDGER in metadata.extra_metadata or not metadata.named_files.isdisjoint(written):
            return False
        # Else a write that shares the millisecond, or the same plan, executed by Hudi since: it names other files.
    return was_undone(instant, table.with_archive(timeline))


def was_undone(instant: str, timeline: Timeline) -> bool:
    """Whether a compaction that once completed, and has no commit of ours any more, was not archived (pure).

    `timeline`: with its archive. Archiving takes the oldest completed instants: where it passed the instant the
    archive has it, or older ones.
    """
    archived = [i.requested_time for i in timeline.archived if i.is_write]
    if instant in archived:
        return False
    return instant >= timeline.start or any(time < instant for time in archived)
