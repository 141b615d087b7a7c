"""A table on storage: the way in to its clock, timeline, file-system view, instants and schema.

Readers load the timeline first and list the files afterwards; a file gone in between means the whole is read
again (`consistent`). The work is done by the units that `Table` puts together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from ..clock.options import ClockOptions
from ..errors import MissingFileError, NotATableError, TableChangedError, UnsupportedError, UsageError
from ..format.commit_metadata import CommitMetadata
from ..format.compaction_plan import CompactionPlan
from ..format.instant import Instant, parse_time
from ..format.layout import Layout
from ..format.table_config import TableConfig, load_table_config
from ..instants.archived_timeline import with_archive
from ..instants.instant_files import InstantFiles
from ..instants.table_clock import TableClock
from ..instants.timeline import Timeline
from ..instants.timeline_loader import TimelineLoader
from ..storage.contract import Storage
from ..storage.folders import HOODIE
from ..storage.open_storage import open_storage
from ..view.fact_loader import FactLoader
from ..view.listing import Listing, StorageListing
from ..view.view import TableView, ViewFacts
from ..view.view_loader import ViewLoader
from .schema_finder import TableSchema as TableSchema
from .schema_finder import find_schema

T = TypeVar("T")

_CONSISTENT_HASHING = f"{HOODIE}/.bucket_index/consistent_hashing_metadata"
_READ_AGAIN_MAX = 5


@dataclass(frozen=True)
class Table:
    """A Hudi table that phantombase can read.

    `config` is a snapshot: see `reload`. `listing`: where views come from. `clock`: of this process, and its zone.
    """

    storage: Storage
    config: TableConfig
    listing: Listing = StorageListing()
    clock: ClockOptions = ClockOptions()

    @staticmethod
    def open(path: str) -> Table:
        """The table at a path or URL. NotATableError, UnsupportedError: refused by name, nothing is touched."""
        storage = open_storage(path)
        entry = storage.find("")
        if entry is None or not entry.is_folder:
            raise NotATableError("no such folder", path=path, expected="the base path of a Hudi table")
        return Table.on(storage)

    @staticmethod
    def on(storage: Storage) -> Table:
        """The table on a storage."""
        config = load_table_config(storage)
        config.check_supported()
        if storage.find(_CONSISTENT_HASHING) is not None:
            raise UnsupportedError(
                "the consistent-hashing bucket index is not supported",
                path=f"{storage.base_path}/{_CONSISTENT_HASHING}",
                todo="Use Hudi for this table.",
            )
        return Table(storage, config)

    def reload(self) -> Table:
        """The table as hoodie.properties stands now: a Hudi 1.x writer may have upgraded it meanwhile."""
        return replace(Table.on(self.storage), listing=self.listing, clock=self.clock)

    def with_clock(self, clock: ClockOptions) -> Table:
        """The same table, whose instants this process chooses and reads in another zone."""
        return replace(self, clock=clock)

    @property
    def layout(self) -> Layout:
        """What differs by table version."""
        return self.config.layout

    # --- what it is put together from --------------------------------------------------------------------------

    @property
    def files(self) -> InstantFiles:
        """Its instants' own files."""
        return InstantFiles(self.storage, self.config)

    @property
    def facts(self) -> FactLoader:
        """What the instants say of file groups."""
        return FactLoader(self.files)

    @property
    def views(self) -> ViewLoader:
        """Its views."""
        return ViewLoader(
            storage=self.storage,
            config=self.config,
            listing=self.listing,
            timelines=TimelineLoader(self.storage, self.config, self.times),
            files=self.files,
            facts=self.facts,
        )

    @property
    def times(self) -> TableClock:
        """What its times mean to this process."""
        return TableClock(storage=self.storage, config=self.config, options=self.clock)

    def now(self) -> datetime:
        """The clock in the zone the table's instants are generated in (naive, as instants are)."""
        return self.times.now()

    def next_time(self, timeline: Timeline, also_above: Iterable[str] = ()) -> str:
        """A time greater than every one in use, see `TableClock.next_time`. `timeline`: loaded under the table lock."""
        return self.times.next_time(timeline, also_above)

    def completion_time(self, timeline: Timeline, also_above: Iterable[str] = ()) -> str | None:
        """The same for the name of a completed file; None where the table's version has no completion times."""
        return self.next_time(timeline, also_above) if self.layout.has_completion_times else None

    def age_s(self, time: str) -> float | None:
        """Seconds since an instant time; None for made-up ones such as `00000000000001`."""
        try:
            return (self.now() - parse_time(time)).total_seconds()
        except UsageError:
            return None

    # --- timeline ----------------------------------------------------------------------------------------------

    def load_timeline(self, *, archived: bool = False) -> Timeline:
        """See `TimelineLoader.load`."""
        return TimelineLoader(self.storage, self.config, self.times).load(archived=archived)

    def with_archive(self, timeline: Timeline) -> Timeline:
        """The timeline with its archived instants loaded."""
        return with_archive(self.storage, self.config, timeline)

    def instant_path(self, instant: Instant) -> str:
        """The instant's file, relative to the base path."""
        return self.files.path(instant)

    def commit_metadata(self, instant: Instant) -> CommitMetadata:
        """See `InstantFiles.commit_metadata`."""
        return self.files.commit_metadata(instant)

    def compaction_plan(self, instant: str) -> CompactionPlan:
        """See `InstantFiles.compaction_plan`."""
        return self.files.compaction_plan(instant)

    # --- view --------------------------------------------------------------------------------------------------

    def partitions(self, under: str = "") -> list[str]:
        """Partition paths at or under a folder, as the table's listing has them."""
        return [partition for partition, _ in self.listing.below(self.storage, self.config, under)]

    def load_view(
        self,
        partition: str | None = None,
        *,
        exactly: Collection[str] | None = None,
        pending: str | None = None,
        prevails: str | None = None,
    ) -> TableView:
        """See `ViewLoader.load`."""
        return self.views.load(partition, exactly=exactly, pending=pending, prevails=prevails)

    def load_plan_view(
        self, plans: Iterable[CompactionPlan], *, pending: str | None = None, prevails: str | None = None
    ) -> TableView:
        """`load_view` of the partitions that plans name, as far as they are there: one may have been removed since."""
        return self.load_view(exactly=self.views.planned_partitions(plans), pending=pending, prevails=prevails)

    def check_unchanged(self) -> None:
        """See `ViewLoader.check_unchanged`."""
        self.views.check_unchanged()

    def load_facts(self, timeline: Timeline, prevails: str | None = None) -> ViewFacts:
        """See `FactLoader.load`."""
        return self.facts.load(timeline, prevails)

    # --- schema ------------------------------------------------------------------------------------------------

    def schema_text(self, timeline: Timeline) -> str:
        """See `find_schema`."""
        return find_schema(self.files, timeline)

    def schema(self, text: str) -> TableSchema:
        """The schema as files carry it: with meta columns where the table has them."""
        return TableSchema.of(text, populate_meta_fields=self.config.populate_meta_fields)


def consistent(load: Callable[[], T]) -> T:
    """Runs a read again when a listed file was gone by the time it was opened, or the table was upgraded.

    `load` opens the table anew each time; the last failure is raised.
    """
    for _ in range(_READ_AGAIN_MAX - 1):
        try:
            return load()
        except (MissingFileError, TableChangedError):
            continue
    return load()
