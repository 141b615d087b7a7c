"""The file groups of pending clusterings, and the pending writes that are none."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import MalformedError
from ..format.compaction_plan import pending_clustering_file_groups
from ..format.instant import SERVICES, Instant, State
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


def is_pending_service(table: Table, instant: Instant) -> bool:
    """Whether a pending write is an attempt at a table service: its requested file must stay, so Hudi must handle it.

    A clustering of version 6 is a replace commit whose requested file names file groups.
    """
    path = table.instant_path(instant.at(State.REQUESTED))
    if instant.family != "replacecommit" or table.storage.find(path) is None:
        return instant.action in SERVICES
    return instant.action in SERVICES or bool(pending_clustering_file_groups(table.storage.read(path), path))


def may_be_service(table: Table, instant: Instant) -> bool:
    """The same for a restore, which undoes services and writes alike: an instant whose plan cannot be read counts."""
    try:
        return is_pending_service(table, instant)
    except MalformedError:
        return True
