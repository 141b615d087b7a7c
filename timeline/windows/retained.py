"""Which past states of a table are still whole: what cleans have retained."""

from __future__ import annotations

from typing import Any

from ..avro.container import STRING, optional, read_record, root_record
from ..errors import UsageError
from ..format.instant import Instant
from ..instants.timeline import Timeline
from ..table.table import Table
from .window import completed_writes

_CLEAN = root_record(
    "HoodieCleanMetadata", optional("totalFilesDeleted", "int"), optional("earliestCommitToRetain", STRING)
)


def retained_since(table: Table, timeline: Timeline) -> str:
    """The newest instant whose state, and all later ones, every clean has retained; "" if nothing was cleaned.

    The requested time of a write as the cleaner recorded it. A cleaner that retains file versions records none: then it
    is the clean's own time. MalformedError: unreadable clean metadata.
    """
    for clean in reversed([i for i in timeline.instants if i.action == "clean" and i.completed]):
        metadata = _read(table, clean)
        if metadata["earliestCommitToRetain"]:
            return str(metadata["earliestCommitToRetain"])
        if metadata["totalFilesDeleted"] != 0:
            return clean.requested_time
    return ""


def earliest_whole(table: Table, timeline: Timeline) -> str:
    """The earliest moment whose state no clean has touched; "" if nothing was cleaned."""
    retained = retained_since(table, timeline)
    return earliest_state(timeline, retained) if retained else ""


def _read(table: Table, clean: Instant) -> dict[str, Any]:
    path = table.instant_path(clean)
    return read_record(table.storage.read(path), path, _CLEAN)[1]


def earliest_state(timeline: Timeline, retained: str) -> str:
    """The earliest point of whole states, on the axis of `Timeline.counts_from` (pure).

    `retained`: see `retained_since`. A cleaner keeps the newest slice below it of every group, so the state just before
    it is whole too: that of the last of the writes that were requested before it.
    """
    before = (w for w in completed_writes(timeline) if w.requested_time < retained)
    return max((timeline.counts_from(w) for w in before), default="")


def check_as_of(table: Table, timeline: Timeline, as_of: str) -> None:
    """Refuses a point in time whose result would be incomplete or could still change, as Hudi does."""
    pending = [i.requested_time for i in timeline.inflight_writers]
    if pending and as_of >= min(pending):
        raise UsageError(
            "the as-of point is not before the first pending write",
            instant=as_of,
            expected=f"before {min(pending)}",
            found="a write that may still complete at or before it",
        )
    retained = retained_since(table, timeline)
    if as_of < retained:
        raise UsageError(
            "files of that point in time may have been cleaned",
            instant=as_of,
            expected=f"{retained} or later",
        )
