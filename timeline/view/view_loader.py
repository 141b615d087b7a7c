"""Loads a table's file-system view: first the timeline, then facts, and the files last."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ..errors import MissingFileError, TableChangedError, UsageError
from ..format.compaction_plan import CompactionPlan
from ..format.table_config import TableConfig, load_table_config
from ..instants.instant_files import InstantFiles
from ..instants.timeline import Timeline
from ..instants.timeline_loader import TimelineLoader
from ..look.look import latest, list_ahead
from ..storage.contract import Entry, Storage, listed_if_there
from ..storage.folders import HOODIE
from .fact_loader import FactLoader
from .listing import Listing
from .view import FileGroup, TableView, ViewFacts, base_instants, check_partitions, file_groups, log_instants


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLoader:
    """`listing`: where to look up the files of partitions."""

    storage: Storage
    config: TableConfig
    listing: Listing
    timelines: TimelineLoader
    files: InstantFiles
    facts: FactLoader

    def load(
        self,
        partition: str | None = None,
        *,
        exactly: Collection[str] | None = None,
        pending: str | None = None,
        prevails: str | None = None,
        completed_by: str | None = None,
    ) -> TableView:
        """Timeline, then facts, then listing.

        `partition`: only partitions at or under that path. `exactly`: these partitions and no others. `pending`: a
        compaction or log compaction that is treated as not completed. `prevails`: see `FactLoader.pending_plans`.
        `completed_by`: the state at this completion time (versions 8 and 9), see `Timeline.completed_by`.
        UsageError: no such partition. MissingFileError, TableChangedError: see `consistent`.
        """
        timeline = newest = self.timelines.load(archived=completed_by is not None)
        if completed_by is not None:
            timeline = newest.completed_by(completed_by)
        if pending is not None:
            timeline = timeline.with_pending_merge(self.files.requested_merge(pending))
        facts = self.facts.load(timeline, prevails)
        if exactly is not None:
            listings = list(self.listing.exactly(self.storage, self.config, exactly))
        else:
            listings = list(self.listing.below(self.storage, self.config, _folder(partition)))
        if partition and not listings:
            raise _no_partition(partition)
        if partition is None and exactly is None:
            check_partitions(facts, {part for part, _ in listings})
        if completed_by is None and any(needs_archive(timeline, entries) for _, entries in listings):
            timeline = self.timelines.with_archive(timeline)
        groups = tuple(g for part, entries in listings for g in file_groups(part, entries, timeline, facts))
        self.check_unchanged()
        self.check_not_cleaned(newest if completed_by else timeline, (entries for _, entries in listings))
        return TableView(timeline=timeline, facts=facts, groups=groups)

    def planned_partitions(self, plans: Iterable[CompactionPlan]) -> set[str]:
        """The partitions that plans name and whose folders exist."""
        return self.existing(partition for plan in plans for partition, _ in plan.groups)

    def existing(self, partitions: Iterable[str]) -> set[str]:
        """Those of these partitions whose folders exist."""
        named = set(partitions)
        list_ahead(self.storage, named)
        return {p for p in named if not p or listed_if_there(self.storage, p) is not None}

    def check_unchanged(self) -> None:
        """TableChangedError if the settings have changed.

        An upgrade renames the whole timeline: the listing may contain only half of it.
        """
        if load_table_config(latest(self.storage)) != self.config:
            raise TableChangedError(
                "the table's settings changed while it was read",
                path=self.storage.base_path,
                todo="Open it again.",
            )

    def partition_groups(self, partition: str, timeline: Timeline, facts: ViewFacts) -> tuple[FileGroup, ...]:
        """The file groups of one partition with a timeline and facts loaded before; () if there is no such folder."""
        try:
            entries = self.storage.list(partition)
        except MissingFileError:
            return ()
        if needs_archive(timeline, entries):
            timeline = self.timelines.with_archive(timeline)
        self.check_not_cleaned(timeline, [entries])
        return file_groups(partition, entries, timeline, facts)

    def check_not_cleaned(self, timeline: Timeline, listings: Iterable[Iterable[Entry]]) -> None:
        """TableChangedError if files that are the newest by the timeline may have been removed before the listing.

        A base file completed after the timeline was loaded is ignored, but the files that it replaces may be cleaned.
        """
        ignored = {t for entries in listings for t in base_instants(entries) if not timeline.is_committed(t)}
        if not ignored:
            return
        now = replace(self.timelines, storage=latest(self.storage)).load()
        completed = sorted(ignored & now.completed_writes.keys())
        if completed and now.may_be_cleaned_since(timeline):
            raise TableChangedError(
                "the table was compacted and cleaned while it was read",
                path=self.storage.base_path,
                instant=completed[-1],
                todo="Run it again.",
            )


def needs_archive(timeline: Timeline, entries: Iterable[Entry]) -> bool:
    """Whether only the archive shows which files of a listing count: also for base files, if archiving has passed a
    savepoint, which keeps its own instant in the active timeline."""
    entries = list(entries)
    if any(timeline.needs_archive(t) for t in log_instants(entries)):
        return True
    return any(timeline.needs_archive(t) for t in base_instants(entries) if not timeline.is_committed(t))


def _folder(partition: str | None) -> str:
    folder = (partition or "").strip("/")
    if not {".", "..", HOODIE}.isdisjoint(folder.split("/")):
        raise _no_partition(folder)
    return folder


def _no_partition(partition: str) -> UsageError:
    return UsageError("no such partition", path=partition, todo="`timeline slices TABLE` lists them.")
