"""Refuses to undo writes whose blocks are in log files of before an upgrade from version 6.

Such a file carries its base instant, and holds blocks of many writes. From version 8 on readers take all blocks of a
log file for those of the write that it is named after, and a log file goes as a whole: a write cannot be undone without
the others in it.
"""

from __future__ import annotations

from collections.abc import Collection

from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import data_files, instants_in


def refuse_upgraded_logs(
    table: Table, timeline: Timeline, undone: Collection[str], instant: str | None, *, begun: bool = False
) -> None:
    """UsageError: a log file holds blocks of a write of `undone`, or would go, and is shared with another write.

    Reads the block headers of all log files, unless the table was made in its present version. `instant`: what the
    command named. `begun`: a restore to it is half-way, and no other one can begin. Version 6 revokes single blocks,
    see `undo.undo`.
    """
    if not undone or not table.config.may_have_upgraded_logs:
        return
    shared: dict[str, str] = {}
    for partition in table.partitions():
        for entry, name in data_files(table, partition):
            if not isinstance(name, LogFileName):
                continue
            path = join(partition, entry.name)
            for time in set(instants_in(table, path)) - {name.instant}:
                if time in undone or (name.instant in undone and timeline.is_committed(time)):
                    shared[path] = max(shared.get(path, ""), time, name.instant)
    if shared:
        newest = max(shared.values())
        raise UsageError(
            "log files of before the upgrade from version 6 hold rows of writes that would be undone",
            path=min(shared),
            instant=instant,
            expected=f"a state from {newest} on",
            found=f"{len(shared)} such log files",
            todo="The restore is half-way. Only Hudi can finish it: restore to the same instant with Hudi. It takes "
            "such a file whole or leaves it, so rows may be missing, or others come back: compare them then."
            if begun
            else f"Restore to {newest} or later. Older states can be read as of their instants, and written anew.",
        )
