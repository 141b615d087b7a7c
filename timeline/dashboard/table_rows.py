"""Tables as plain dicts: sizes in bytes, times in seconds, names as in the JSON of `timeline show`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from ..errors import PhantombaseError
from ..report.overview import overview
from ..service.served_table import Held, ServedTable
from ..table.table import consistent
from ..terminal.plain import Row
from .health import Health, Word, health_of

_FRESH_S = 5.0


async def table_row(table: ServedTable, slo_s: float | None, *, whole: bool = False) -> Row:
    """One table. `whole`: with its settings and instants."""
    try:
        held = await _recent(table)
        shown = await asyncio.to_thread(lambda: consistent(lambda: overview(table.table.still())))
    except PhantombaseError as error:
        return _row(table, Health(Word.BROKEN, str(error)), {})
    numbers = {**debt(held), **_writes(held, shown), "pending_instants": len(shown["pending"])}
    return _row(table, health_of(shown["pending"], slo_s), {**numbers, **(shown if whole else {})})


async def table_rows(tables: Iterable[ServedTable], slo_s: float | None) -> list[Row]:
    """All tables, worst first, then by name."""
    rows = await asyncio.gather(*(table_row(table, slo_s) for table in tables))
    order = [word.value for word in Word]
    return sorted(rows, key=lambda row: (order.index(row["health"]), row["served_as"]))


async def _recent(table: ServedTable) -> Held:
    held = table.newest
    return held if held is not None and time.monotonic() - held.loaded_s < _FRESH_S else await table.load()


def _row(table: ServedTable, health: Health, more: Row) -> Row:
    return {"served_as": table.name, "path": table.path, "health": health.word.value, "reason": health.reason, **more}


def debt(held: Held) -> Row:
    """What compactions have before them: the log files that readers merge."""
    state = held.state
    groups = [g for p in state.partitions.values() for g in p.live if g.slices]
    newest = [g.slices[-1:] if g.pending_compaction is None else g.slices[-2:] for g in groups]
    logs = [sum(len(s.logs) for s in slices) for slices in newest]
    return {
        "partitions": len(state.partitions),
        "file_groups": len(groups),
        "file_groups_with_logs": sum(count > 0 for count in logs),
        "log_files": sum(logs),
        "log_files_max": max(logs, default=0),
        "log_bytes": sum(s.log_bytes for slices in newest for s in slices),
        "base_bytes": sum(s.base_bytes for slices in newest for s in slices),
    }


def _writes(held: Held, shown: Row) -> Row:
    timeline = held.state.timeline
    deltas = [i.requested_time for i in timeline.completed if i.action == "deltacommit"]
    compacted = max((i.requested_time for i in timeline.completed if i.action == "commit"), default=None)
    compactions = [row for row in shown["pending"] if row["action"] == "compaction"]
    return {
        "last_write": timeline.latest_completed or None,
        "last_compaction": compacted,
        "delta_commits_since_compaction": sum(compacted is None or time > compacted for time in deltas),
        "pending_compactions": len(compactions),
        "oldest_pending_s": max((row["age_s"] or 0.0 for row in compactions), default=None),
    }
