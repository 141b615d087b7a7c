"""The file groups of pending clusterings, and the pending writes that are none."""

from __future__ import annotations

from collections.abc import Iterable

from ..format.compaction_plan import pending_clustering_file_groups
from ..format.instant import Instant
from ..instants.timeline import Timeline
from ..view.view import GroupKey
from .table import Table


def clustered_file_groups(table: Table, timeline: Timeline) -> Iterable[GroupKey]:
    """File groups in pending clusterings: no process may write to them."""
    for instant in timeline.instants:
        if instant.family == "replacecommit" and not instant.completed:
            yield from _clustered(table, instant)


def pending_replacing_writes(table: Table, timeline: Timeline) -> tuple[Instant, ...]:
    """Pending writes that will replace file groups, like insert overwrites. Only their commits will name the groups."""
    return tuple(i for i in timeline.pending("replacecommit") if not any(_clustered(table, i)))


def _clustered(table: Table, instant: Instant) -> Iterable[GroupKey]:
    requested = _requested_path(table, instant)
    if table.storage.find(requested) is None:
        return ()
    return pending_clustering_file_groups(table.storage.read(requested), requested)


def _requested_path(table: Table, instant: Instant) -> str:
    return f"{table.config.timeline_folder}/{instant.requested_time}.{instant.action}.requested"
