"""A table on storage: the way in to its clock, timeline, file-system view, instants and schema.

Readers load the timeline first and list the files afterwards; if a file is removed in between, all is read again
(`from_one_snapshot`). `Table` combines units that do the work. Files of instants are put by put-if-absent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from os import PathLike
from typing import TypeVar, Unpack

from ..errors import (
    ConflictError,
    LockError,
    MalformedError,
    MissingFileError,
    NotATableError,
    PhantombaseError,
    TableChangedError,
    UnknownStateError,
    UnsupportedError,
    UsageError,
)
from ..format.commit_metadata import LATEST_SCHEMA, CommitMetadata
from ..format.commit_metadata import TableSchema as TableSchema
from ..format.compaction_plan import CompactionPlan
from ..format.instant import Instant, is_time, parse_as_of, parse_time
from ..format.layout import Layout
from ..format.table_config import PROPERTIES, TableConfig, load_table_config
from ..instants.clock_check import ClockOptions
from ..instants.instant_files import InstantFiles
from ..instants.table_clock import TableClock, TimelineLoader
from ..instants.timeline import Timeline
from ..option import path_text, spelled
from ..storage.contract import PrefixStorage, Storage
from ..storage.folders import HEARTBEATS, HOODIE, METADATA_FOLDER
from ..storage.open_storage import open_storage
from ..storage.snapshot import ContentCache, SnapshotStorage, list_ahead, unguarded, without_snapshot
from ..storage.storage_options import Given
from ..view.facts import FactLoader
from ..view.view import TableView, ViewFacts
from ..view.view_loader import Listing, StorageListing, ViewAsked, ViewLoader
from .schema_finder import WasVisible, find_schema, names_in_inputs

T = TypeVar("T")
TableT = TypeVar("TableT", bound="Table")
_PUTS_MAX = 4
_READ_AGAIN_MAX = 5


@dataclass(frozen=True, repr=False)
class Table:
    """A Hudi table. `config`: as it was when the table was opened. `listing`: source of views. `clock`: settings of
    this process's clock. `reading`: the table is only read, see `open`. `kept`: contents that snapshots have read."""

    storage: Storage
    config: TableConfig
    listing: Listing = StorageListing()
    clock: ClockOptions = ClockOptions()
    reading: bool = False
    kept: ContentCache = field(default_factory=ContentCache, compare=False, repr=False)

    def __repr__(self) -> str:
        kind = "MERGE_ON_READ" if self.config.has_logs else "COPY_ON_WRITE"
        return f"<{type(self).__name__} {self.storage.base_path}: {kind}, version {self.config.version}>"

    @staticmethod
    @spelled
    def open(path: str | PathLike[str], storage_options: Given = None, *, reading: bool = False) -> Table:
        """The table at a path or URL; `storage_options`: see `StorageOptions`. `reading`: the table is only inspected
        or read, so it may be COPY_ON_WRITE, and its merge rules may be unknown if no merge is needed. NotATableError,
        UnsupportedError: refused by name before any change. UsageError: an unknown option."""
        path = path_text(path)
        storage = open_storage(path, storage_options)
        if storage.is_file_system and ((entry := storage.find("")) is None or not entry.is_folder):
            what = "no such folder" if entry is None else "a file lies where a folder is expected"
            raise NotATableError(what, path=storage.base_path, expected="the base path of a Hudi table")
        return Table.on(storage, reading=reading)

    @staticmethod
    def on(storage: Storage, *, reading: bool = False) -> Table:
        """The table on a storage; `reading`: see `open`."""
        kept = ContentCache()
        snapshot = SnapshotStorage(storage, {HOODIE}, kept)
        list_ahead(snapshot, [HOODIE], reads=[PROPERTIES])
        config = _supported(snapshot, reading=reading)
        return Table(storage, config, reading=reading, kept=kept)

    def snapshot(
        self,
        *,
        same_settings: bool = False,
        records: bool = True,
        cached: bool = True,
        also: Collection[str] = (),
        reads: Collection[str] = (),
    ) -> Snapshot:
        """A snapshot of the table, with the current settings. For one step. `same_settings`: these are not read again.
        `records`: whether the step also reads the records of instants. `cached`: each request is made once
        (`SnapshotStorage`); False: only the timeline is loaded once. `also`, `reads`: further folders and objects that
        the step needs: an object store is asked for all of them at the same time (`list_ahead`)."""
        if not cached:
            storage = without_snapshot(self.storage)
            config = self.config if same_settings else _supported(storage, reading=self.reading)
            return self._as(Snapshot, storage, config)
        snapshot = SnapshotStorage(self.storage, {HOODIE, HEARTBEATS, self.config.timeline_folder}, self.kept)
        if not same_settings:
            list_ahead(snapshot, [HOODIE, self.config.timeline_folder, *also], records=records, reads=reads)
        config = self.config if same_settings else _supported(snapshot, reading=self.reading)
        if config != self.config:  # the listing may be older than these settings, and lack their timeline
            snapshot = SnapshotStorage(self.storage, {HOODIE, HEARTBEATS, config.timeline_folder}, self.kept)
        return self._as(Snapshot, snapshot, config)

    def with_timeline(self, timeline: Timeline) -> Snapshot:
        """The same moment with another timeline: that of a view, without instants to be undone, or with the archive."""
        return Snapshot(self.storage, self.config, self.listing, self.clock, self.reading, self.kept, timeline)

    def on_storage(self, storage: Storage) -> Table:
        """The same table with another storage in front of its files."""
        return self._as(Table, storage, self.config)

    def _as(self, kind: type[TableT], storage: Storage, config: TableConfig) -> TableT:
        return kind(storage, config, self.listing, self.clock, self.reading, self.kept)

    def with_clock(self, clock: ClockOptions) -> Table:
        """The same table with other clock settings, by which this process chooses and reads its instants."""
        return replace(self, clock=clock)

    @property
    def layout(self) -> Layout:
        return self.config.layout

    # --- its units ---------------------------------------------------------------------------------------------

    @property
    def files(self) -> InstantFiles:
        return InstantFiles(self.storage, self.config)

    @property
    def timelines(self) -> TimelineLoader:
        return TimelineLoader(self.storage, self.config, self.times)

    @property
    def facts(self) -> FactLoader:
        return FactLoader(self.files)

    @property
    def views(self) -> ViewLoader:
        return ViewLoader(self.storage, self.config, self.listing, self.timelines, self.files, self.facts)

    @property
    def times(self) -> TableClock:
        return TableClock(storage=self.storage, config=self.config, options=self.clock)

    def now(self) -> datetime:
        """The current time in the zone of the table's instants (naive, as instants are)."""
        return self.times.now()

    @spelled
    def age_s(self, time: str) -> float | None:
        """Seconds since an instant time; None for artificial ones such as `00000000000001`."""
        try:
            return (self.now() - parse_time(time)).total_seconds()
        except UsageError:
            return None

    @spelled
    def point_in_time(self, text: str) -> str:
        """A user's point in time as an instant time: one of the timeline, or see `parse_as_of`. UsageError: neither."""
        try:
            return parse_as_of(text, self.times.moment)
        except UsageError:
            if is_time(text) and text in self.load_timeline(archived=True).used_times():
                return text
            raise

    # --- timeline ----------------------------------------------------------------------------------------------

    def load_timeline(self, *, archived: bool = False) -> Timeline:
        return self.timelines.load(archived=archived)

    def with_archive(self, timeline: Timeline) -> Timeline:
        return self.timelines.with_archive(timeline)

    def instant_path(self, instant: Instant) -> str:
        """The instant's file, relative to the base path."""
        return self.files.path(instant)

    def commit_metadata(self, instant: Instant) -> CommitMetadata:
        return self.files.commit_metadata(instant)

    def archived_commits(self, writes: Collection[Instant]) -> dict[Instant, CommitMetadata]:
        from ..instants.archived_timeline import archived_commits  # late: few commands need it

        return archived_commits(self.storage, self.config, writes)

    def archived_records(self, instants: Collection[Instant], *, plans: bool = False) -> dict[Instant, bytes]:
        from ..instants.archived_timeline import archived_records  # late: few commands need it

        return archived_records(self.storage, self.config, instants, plans=plans)

    def compaction_plan(self, instant: str) -> CompactionPlan:
        return self.files.compaction_plan(instant)

    # --- view --------------------------------------------------------------------------------------------------

    @spelled
    def partitions(self, under: str = "") -> list[str]:
        """Partition paths at or under a folder, from the table's listing."""
        return [partition for partition, _ in self.listing.below(self.storage, self.config, under)]

    @spelled
    def load_view(self, partition: str | None = None, **asked: Unpack[ViewAsked]) -> TableView:
        """See `ViewLoader.load`."""
        return self.views.load(partition, **asked)

    def load_plan_view(
        self, plans: Iterable[CompactionPlan], *, pending: Instant | None = None, prevails: str | None = None
    ) -> TableView:
        """`load_view` of the partitions of the plans that still exist: some may have been removed since then."""
        return self.load_view(exactly=self.views.planned_partitions(plans), pending=pending, prevails=prevails)

    # --- schema ------------------------------------------------------------------------------------------------

    def schema(self, text: str) -> TableSchema:
        """A schema as stored in files: with meta columns if the table has them."""
        return TableSchema.of(text, populate_meta_fields=self.config.populate_meta_fields)


@dataclass(frozen=True, repr=False)
class Snapshot(Table):
    """One moment of a table: its settings, its timeline and what was read since. A step makes its own, by
    `Table.snapshot` or in the lock by `exclusive`, and passes it on. A step that must see the newest state makes a new
    one. `given`: see `with_timeline`."""

    given: Timeline | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[type[Table], tuple[object, ...]]:
        """Another process receives the table: it makes its own snapshots."""
        return Table, (self.storage, self.config, self.listing, self.clock, self.reading, self.kept)

    @property
    def timeline(self) -> Timeline:
        """The active timeline, loaded once: the instants that this process puts later are not in it."""
        if self.given is not None:
            return self.given
        # No functools.cached_property: before Python 3.12 it makes other threads wait, also those of other tables.
        known: dict[str, Timeline] = self.__dict__
        return known.get("_loaded") or known.setdefault("_loaded", self.load_timeline())

    def next_time(self, also_above: Iterable[str] = (), undone: Collection[str] = ()) -> str:
        """A time greater than every used one, see `TableClock.next_time`. For snapshots of a section."""
        return self.times.next_time(self.timeline, also_above, undone)

    def completion_time(self, also_above: Iterable[str] = (), undone: Collection[str] = ()) -> str | None:
        """`next_time` for the name of a completed file; None if the table's version has no completion times."""
        return self.next_time(also_above, undone) if self.layout.has_completion_times else None

    def load_facts(self) -> ViewFacts:
        return self.facts.load(self.timeline)

    def newest_schema(self, *, before: str | None = None, then: WasVisible | None = None) -> TableSchema:
        """See `find_schema`. `before`: the instant of a compaction. `then`: the past state to read."""
        return find_schema(self.files, self.timeline, before=before, then=then)

    def schema_to_cluster(self) -> TableSchema:
        """The newest schema. UnsupportedError: columns evolve on read, and files may have other names for them."""
        schema = self.newest_schema()
        if schema.evolved is not None:
            raise UnsupportedError(
                "clustering tables with schema evolution on read is not supported",
                path=self.storage.base_path,
                expected=f"commits without {LATEST_SCHEMA}",
                found=f"{LATEST_SCHEMA} in the newest write",
                todo="Let Hudi cluster this table; phantombase reads, writes and compacts it.",
            )
        return schema

    def schema_written(self, text: str, instant: str, *, evolved: str | None = None) -> TableSchema:
        """The schema of a file that an instant wrote from older ones, see `names_in_inputs`."""
        names = names_in_inputs(self.files, self.timeline, instant, evolved)
        return replace(self.schema(text), evolved=evolved, names=names)


def _supported(storage: Storage, *, reading: bool) -> TableConfig:
    """The settings. An error names the table, since each table has such a file."""
    try:
        config = load_table_config(storage)
        if reading:
            config.check_readable()
        else:
            config.check_changeable()
    except (MalformedError, UnsupportedError) as error:
        raise error.below(storage.base_path) from error
    return config


def from_one_snapshot(load: Callable[[], T]) -> T:
    """Runs a read again if a listed file was removed before it was opened, or if the table was upgraded. `load` must
    open the table again at each call; the last failure is raised."""
    for _ in range(_READ_AGAIN_MAX - 1):
        try:
            return load()
        except (MissingFileError, TableChangedError):
            continue
    return load()


BUILD_AGAIN = (
    "Build the metadata table again: `compactor-daemon metadata TABLE --rebuild`. Or turn it off: "
    "`compactor-daemon compact TABLE --drop-metadata-table`; the next Hudi writer builds it."
)
"""What to do about an unusable metadata table."""


def open_metadata_table(table: Table) -> Snapshot:
    """The metadata table of a data table; `config.metadata_partitions` of the data table shows whether it has one. The
    checks of data tables do not apply: its base files are HFiles, and its records have their own merge rules.
    MissingFileError: it has no settings. TableChangedError: it was removed since. MalformedError: its settings are
    unusable."""
    storage = PrefixStorage(without_snapshot(table.storage), METADATA_FOLDER)
    try:
        return Snapshot(storage, load_table_config(storage), clock=table.clock)
    except NotATableError as error:
        table.views.check_unchanged()
        path = f"{storage.base_path}/{PROPERTIES}"
        raise MissingFileError("the metadata table has no settings", path=path, todo=BUILD_AGAIN) from error
    except MalformedError as error:
        raise error.below(storage.base_path).advising(BUILD_AGAIN) from error


@contextmanager
def advising_rebuild(metadata: Table) -> Iterator[None]:
    """Adds the full path and the remedy to a MalformedError or MissingFileError of the metadata table's own timeline.
    The remedy for a plan of the data table does not apply: a restore would undo writes without need."""
    try:
        yield
    except (MalformedError, MissingFileError) as error:
        raise error.below(metadata.storage.base_path).advising(BUILD_AGAIN) from error


def put_requested(table: Table, requested: Instant, content: bytes) -> None:
    """Makes a plan visible, and takes it back if another action has its time: this process lost the lock, or the other
    takes none. Files and records of a time are those of one action. ConflictError: so it was. UnknownStateError:
    an object store did not answer, and the plan may still appear."""
    path, free = table.instant_path(requested), unguarded(table.storage)
    is_put = _put_answered(table.storage, path, content)
    if is_put and not table.on_storage(free).load_timeline().shares_time(requested):
        return
    if is_put:
        free.delete(path)
    raise ConflictError(
        "another process began an action at the same instant",
        path=path,
        instant=requested.requested_time,
        todo="This plan is not requested. All processes that write to a table must share one lock. Run again.",
    )


def _put_answered(storage: Storage, path: str, content: bytes) -> bool:
    """An object store is asked until it answers: a request that was given up may take effect later, and a plan that
    appears behind writes and plans that do not know it loses rows. Once a put was answered, such a request has no
    effect. On a file system an error means that the file does not exist."""
    unanswered: PhantombaseError | None = None
    for _ in range(_PUTS_MAX):
        try:
            return storage.put_if_absent(path, content) or (unanswered is not None and storage.read(path) == content)
        except LockError:  # asked before the put
            raise
        except PhantombaseError as error:
            if storage.is_file_system:
                raise
            unanswered = error
    raise UnknownStateError(
        "whether a plan is requested is not known: the storage did not answer, and it may appear yet",
        path=path,
        expected=f"an answer to one of {_PUTS_MAX} requests",
        found=str(unanswered),
    ) from unanswered


def put_completed(
    table: Table, path: str, data: bytes, unknown: Callable[[PhantombaseError], PhantombaseError]
) -> bool:
    """Puts a completed file. False: the file existed before, or the storage did not answer and the file exists now. On
    a file system an error means that the file does not exist. `unknown`: makes the error for another storage that did
    not answer while the file does not exist: the request may still be in progress."""
    storage = table.storage
    try:
        return storage.put_if_absent(path, data)
    except LockError:  # asked before the put
        raise
    except PhantombaseError as error:  # the request may have taken effect
        if storage.find(path) is None:
            if storage.is_file_system:
                raise
            raise unknown(error) from error
        return False
