"""How far the compactions of a metadata table are: read from its timeline alone."""

from __future__ import annotations

from ..instants.since_compaction import commits_since_compaction
from ..table.table import Table
from .location import open_metadata_table


def commits_to_compact(table: Table) -> int:
    """Delta commits of a data table's metadata table since its last compaction, as Hudi counts them."""
    return commits_since_compaction(open_metadata_table(table).load_timeline())


def compacted_after(table: Table, time: str) -> bool:
    """Whether a data table's metadata table, if it has one, has a compaction with an instant after `time`."""
    if not table.config.metadata_partitions:
        return False
    instants = open_metadata_table(table).load_timeline().instants
    return any(i.family == "commit" and i.requested_time > time for i in instants)
