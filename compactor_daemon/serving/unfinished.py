"""The file groups of a running compaction that are not merged yet, by name."""

from __future__ import annotations

from phantombase.timeline.format.compaction_plan import TOTAL_LOG_FILES_SIZE
from phantombase.timeline.instants.attempt_names import staged_files
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.plain import Row

from ..records.fate import OK

_SHOWN = 3


def unfinished(table: Table, instant: str) -> list[Row]:
    """Those with most log bytes first, a few of them: what an attempt that seems to stand still may be at work on."""
    done = {path.rpartition("/")[2].removesuffix(OK) for path in staged_files(table.storage, instant, (OK,))}
    plan = table.compaction_plan(instant)
    left = [
        ((o.metrics or {}).get(TOTAL_LOG_FILES_SIZE) or 0.0, o)
        for position, o in enumerate(plan.operations)
        if str(position) not in done
    ]
    largest = sorted(left, key=lambda one: -one[0])[:_SHOWN]
    return [{"partition": o.partition_path, "file_id": o.file_id, "log_bytes": round(size)} for size, o in largest]
