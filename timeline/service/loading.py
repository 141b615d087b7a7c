"""Loads states of a table from storage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from ..format.compaction_plan import pending_clustering_file_groups
from ..format.instant import Instant, State
from ..format.table_config import TableConfig
from ..instants.timeline import Timeline
from ..storage.contract import Entry, Storage, listed_if_there
from ..table.table import Table, consistent
from ..view.listing import Listed, Listing
from ..view.partition_folders import is_partition
from ..view.view import FileGroup, GroupKey
from .synchronisation import digests
from .table_state import TableState, groups_with, partition_files


@dataclass(frozen=True, slots=True)
class _Remembered:
    """A listing, and what it has answered."""

    listing: Listing
    found: dict[str, list[Entry]] = field(default_factory=dict)

    def below(self, storage: Storage, config: TableConfig, folder: str) -> Iterator[Listed]:
        yield from self._keep(self.listing.below(storage, config, folder))

    def exactly(self, storage: Storage, config: TableConfig, partitions: Collection[str]) -> Iterator[Listed]:
        yield from self._keep(self.listing.exactly(storage, config, partitions))

    def _keep(self, listed: Iterable[Listed]) -> Iterator[Listed]:
        for partition, entries in listed:
            self.found[partition] = entries
            yield partition, entries


def load_state(table: Table) -> TableState:
    """The table as it stands now.

    PhantombaseError: it cannot be read, among others MissingFileError: a base file that a commit names is lost. Hudi's
    server answers without that file; a writer that went on from such an answer would lose its rows.
    """
    return consistent(lambda: _load(table.still()))


def _load(table: Table) -> TableState:
    listing = _Remembered(table.listing)
    view = replace(table, listing=listing).load_view()
    by_partition: dict[str, list[FileGroup]] = {partition: [] for partition in listing.found}
    for group in view.groups:
        by_partition.setdefault(group.partition, []).append(group)
    return TableState(
        timeline=view.timeline,
        facts=view.facts,
        partitions={
            name: partition_files(name, listing.found.get(name, ()), view.timeline, view.facts, tuple(groups))
            for name, groups in by_partition.items()
        },
        plans={i.requested_time: table.compaction_plan(i.requested_time) for i in view.timeline.pending_compactions},
        log_plans={
            i.requested_time: table.compaction_plan(i.requested_time) for i in view.timeline.pending("logcompaction")
        },
        clusterings=_clusterings(table, view.timeline),
    )


def _clusterings(table: Table, timeline: Timeline) -> dict[GroupKey, Instant]:
    found: dict[GroupKey, Instant] = {}
    for instant in timeline.instants:
        if instant.family == "replacecommit" and not instant.completed:
            path = table.instant_path(instant.at(State.REQUESTED))
            for key in pending_clustering_file_groups(table.storage.read(path), path):
                found[key] = instant
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshPartition:
    """A state in which one partition was listed anew. `inflight`: see `routes.Question`."""

    state: TableState
    inflight: tuple[FileGroup, ...]


def load_partition(table: Table, state: TableState, partition: str, inflight: str | None = None) -> FreshPartition:
    """`state` with one partition as it stands now, also with the files of writes that began later.

    `inflight`: a pending write whose files are asked for. TableChangedError: the state is too old for the listing.
    """
    now = table.still()
    timeline = replace(now.load_timeline(), archived=state.timeline.archived)
    if digests(timeline) != state.digests:  # the client is answered from what it knows
        timeline = state.timeline
    known = partition in state.partitions
    if not known and (entry := now.storage.find(partition)) is not None and not entry.is_folder:
        return FreshPartition(state=state, inflight=())
    entries = listed_if_there(now.storage, partition) or []
    if not known and not is_partition(entries):
        return FreshPartition(state=state, inflight=())
    groups = now.views.partition_groups(partition, timeline, state.facts)
    files = partition_files(partition, entries, timeline, state.facts, groups)
    shown = () if inflight is None else groups_with(partition, entries, timeline, state.facts, inflight)
    return FreshPartition(state=state.with_partition(partition, files), inflight=shown)
