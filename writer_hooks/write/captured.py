"""What may be written to a table with Hudi's change data capture, so that Hudi's CDC query stays exact.

Where there is no `.cdc` file the query infers the changes of a write: each row of a new base file is inserted; each
row of a log file is merged with the rows before it, which are in the files that its statistics name; the rows of
replaced file groups are deleted. phantombase makes no `.cdc` files. So it writes no base file anew: rows of new keys go
into new base files, not into small ones (`KeyIndex`).
"""

from __future__ import annotations

from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.format.table_config import PROPERTIES, MergeMode
from phantombase.timeline.merge.rule import IS_DELETED
from phantombase.timeline.table.table import Table, TableSchema

from ..options import Write

_BY_EVENT_TIME = (MergeMode.EVENT_TIME, MergeMode.EVENT_TIME_0X, MergeMode.EVENT_TIME_AVRO_0X)


def refuse_inexact(table: Table, schema: TableSchema, write: Write) -> None:
    """UnsupportedError: of this write Hudi's CDC query may show other changes than it makes.

    Seen with 0.15.0 and 1.2.0, but for partial updates, which were not tried. Tables without change data capture may be
    written so.
    """
    if not table.config.captures_changes:
        return
    settings = table.config.merge_settings
    if write.operation.replaces and not table.layout.has_completion_times:
        # The query shows one row of a replaced file group several times, and others not at all.
        raise _refusal(table, "replacing partitions of a version 6 table", "Delete the rows of the partitions by key.")
    if write.into is not None:
        raise _refusal(table, "setting some columns of a table", "Write whole rows with upsert.")
    if settings.not_given is not None or settings.marker is not None:
        raise _refusal(table, "writing, by this payload class, a table")
    merges = write.looks_keys_up or (write.options.buckets is not None and not write.operation.replaces)
    if write.deletes or not merges:
        return  # nothing is merged by ordering values: deletes by key win, and new base files hold new rows
    if settings.mode in _BY_EVENT_TIME and IS_DELETED in schema.arrow.names:
        # A late row that is marked deleted loses; the query shows the row deleted.
        todo = "Give the keys to delete to delete(), and leave the column out of the table."
        raise _refusal(table, f"merging rows with the column {IS_DELETED} by event time into a table", todo)
    if settings.mode is MergeMode.OVERWRITE_WITH_LATEST_0X and table.config.ordering_fields:
        # Between log files a late row loses; the query shows it as an update.
        raise _refusal(table, "upserts by this payload class into a table")


def _refusal(table: Table, what: str, todo: str = "Use Hudi for that.") -> UnsupportedError:
    return UnsupportedError(
        f"{what} with change data capture is not supported",
        path=f"{table.storage.base_path}/{PROPERTIES}",
        expected="a write of which Hudi's CDC query shows what it changes",
        found="hoodie.table.cdc.enabled=true",
        todo=todo,
    )
