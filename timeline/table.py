"""A table on storage: loads its configuration, timeline and file-system view, and reads its instants.

Readers load the timeline first and list the files afterwards; a file gone in between means the whole is read
again (`consistent`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from timeline.active import Timeline
from timeline.avro_schema import arrow_schema, with_meta_columns, without_meta_columns
from timeline.clock_evidence import written
from timeline.clock_options import ClockOptions
from timeline.commit_metadata import LOG_COMPACT, CommitMetadata
from timeline.commit_metadata import decode as decode_commit
from timeline.errors import (
    MalformedError,
    MissingFileError,
    NotATableError,
    TableChangedError,
    UnsupportedError,
    UsageError,
)
from timeline.history import with_archive
from timeline.instant import Instant, State, highest_states, parse_time
from timeline.layout import HOODIE, Layout
from timeline.listing import Listing, StorageListing
from timeline.open_storage import open_storage
from timeline.plan import CompactionPlan, decode_plan
from timeline.storage import Entry, Storage
from timeline.table_clock import TableClock
from timeline.table_config import TableConfig, load_table_config
from timeline.view import (
    FileGroup,
    GroupKey,
    TableView,
    ViewFacts,
    base_instants,
    check_partitions,
    file_groups,
    log_instants,
)

T = TypeVar("T")

_CONSISTENT_HASHING = f"{HOODIE}/.bucket_index/consistent_hashing_metadata"
_EVOLVED_SCHEMA = "latest_schema"
_SERVICE_OPERATIONS = frozenset({"COMPACT", LOG_COMPACT, "CLUSTER", "INDEX"})
_TORN_PAUSES_S = (0.02, 0.1, 0.5)
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

    # --- the clock ---------------------------------------------------------------------------------------------

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
        """The active timeline; with `archived` the archived one too.

        UnknownStateError: the archived timeline is there and cannot be read.
        """
        entries = self.storage.list(self.config.timeline_folder)
        parsed = {e.name: self.layout.parse(e.name) for e in entries if not e.is_folder}
        files = [(i, e.modified_ms) for e in entries if (i := parsed.get(e.name)) is not None]
        legacy = {
            instant.requested_time: self.times.moment(modified_ms)
            for instant, modified_ms in files
            if instant.completed and instant.completion_time is None and self.layout.has_completion_times
        }
        timeline = Timeline(
            layout=self.layout,
            instants=highest_states(i for i, _ in files),
            legacy_completions=legacy,
            written=written(files),
        )
        return self.with_archive(timeline) if archived else timeline

    def with_archive(self, timeline: Timeline) -> Timeline:
        """The timeline with its archived instants loaded."""
        return with_archive(self.storage, self.config, timeline)

    def moment(self, milliseconds: int) -> str:
        """A time since the epoch, as the storage has it, as an instant time of this table."""
        return self.times.moment(milliseconds)

    def instant_path(self, instant: Instant) -> str:
        """The instant's file, relative to the base path."""
        return f"{self.config.timeline_folder}/{instant.file_name or self.layout.file_name(instant)}"

    def completed_commits(self, only: str | None = None) -> list[Instant]:
        """Every completed commit on storage; of one instant also a delta commit, as which log compactions complete.

        On versions 8 and 9 one instant can have two: each completed name has its own completion time.
        """
        names = [e.name for e in self.storage.list(self.config.timeline_folder) if not e.is_folder]
        found = [i for n in names if (i := self.layout.parse(n)) and i.completed]
        if only is None:
            return [i for i in found if i.action == "commit"]
        return [i for i in found if i.requested_time == only and i.action in ("commit", "deltacommit")]

    def commit_metadata(self, instant: Instant) -> CommitMetadata:
        """The metadata of a completed write.

        Hudi writes it in place on local storage: a reader may see it empty or half for a moment, so what cannot
        be decoded is read again before it is an error.
        """
        path = self.instant_path(instant)
        for pause_s in _TORN_PAUSES_S:
            try:
                return decode_commit(self.storage.read(path), path)
            except MalformedError:
                time.sleep(pause_s)
        return decode_commit(self.storage.read(path), path)

    def requested_merge(self, time: str) -> Instant:
        """The requested instant of a log compaction, where its plan is there, else of a compaction."""
        log = Instant(requested_time=time, action="logcompaction", state=State.REQUESTED)
        return log if self.storage.find(self.instant_path(log)) is not None else replace(log, action="compaction")

    def compaction_plan(self, instant: str) -> CompactionPlan:
        """The plan of a compaction or log compaction, pending or done.

        MissingFileError: there is none. MalformedError: it cannot be read; what ends that is named.
        """
        requested = self.requested_merge(instant)
        path = self.instant_path(requested)
        data = self.storage.read(path)
        try:
            return replace(decode_plan(data, path), action=requested.action)
        except MalformedError as error:
            raise MalformedError(
                error.what,
                path=path,
                instant=instant,
                expected=error.expected,
                found=error.found,
                todo=_unreadable_todo(instant, may_go=not data or requested.action == "logcompaction"),
            ) from error

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
        """Timeline, then facts, then listing.

        `partition`: only partitions at or under that path. `exactly`: these partitions and no others. `pending`: a
        compaction or log compaction that counts as not completed. `prevails`: see `pending_plans`.
        UsageError: no such partition. MissingFileError, TableChangedError: see `consistent`.
        """
        timeline = self.load_timeline()
        if pending is not None:
            timeline = timeline.with_pending_merge(self.requested_merge(pending))
        facts = self.load_facts(timeline, prevails)
        if exactly is not None:
            listings = list(self.listing.exactly(self.storage, self.config, exactly))
        else:
            listings = list(self.listing.below(self.storage, self.config, _folder(partition)))
        if partition and not listings:
            raise _no_partition(partition)
        if partition is None and exactly is None:
            check_partitions(facts, {part for part, _ in listings})
        if any(_needs_archive(timeline, entries) for _, entries in listings):
            timeline = self.with_archive(timeline)
        groups = tuple(g for part, entries in listings for g in file_groups(part, entries, timeline, facts))
        self.check_unchanged()
        self._check_not_cleaned(timeline, (entries for _, entries in listings))
        return TableView(timeline=timeline, facts=facts, groups=groups)

    def load_plan_view(
        self, plans: Iterable[CompactionPlan], *, pending: str | None = None, prevails: str | None = None
    ) -> TableView:
        """`load_view` of the partitions that plans name, as far as they are there: one may have been removed since."""
        return self.load_view(exactly=self.planned_partitions(plans), pending=pending, prevails=prevails)

    def planned_partitions(self, plans: Iterable[CompactionPlan]) -> set[str]:
        """The partitions that plans name, as far as their folders are there."""
        named = {partition for plan in plans for partition, _ in plan.groups}
        return {p for p in named if not p or self.storage.find(p) is not None}

    def check_unchanged(self) -> None:
        """TableChangedError when the settings are others by now.

        An upgrade renames the whole timeline: what was listed may be half of it.
        """
        if load_table_config(self.storage) != self.config:
            raise TableChangedError(
                "the table's settings changed while it was looked at",
                path=self.storage.base_path,
                todo="Open it again.",
            )

    def partition_groups(self, partition: str, timeline: Timeline, facts: ViewFacts) -> tuple[FileGroup, ...]:
        """The file groups of one partition under a timeline and facts loaded before; () without such a folder."""
        try:
            entries = self.storage.list(partition)
        except MissingFileError:
            return ()
        if _needs_archive(timeline, entries):
            timeline = self.with_archive(timeline)
        self._check_not_cleaned(timeline, [entries])
        return file_groups(partition, entries, timeline, facts)

    def _check_not_cleaned(self, timeline: Timeline, listings: Iterable[Iterable[Entry]]) -> None:
        """TableChangedError when files that the timeline takes for the newest may have been gone from the listings.

        A base file completed after the timeline was loaded is ignored; but what it stands for may be cleaned by then.
        """
        ignored = {t for entries in listings for t in base_instants(entries) if not timeline.is_committed(t)}
        if not ignored:
            return
        now = self.load_timeline()
        completed = sorted(ignored & now.completed_writes.keys())
        if completed and now.may_be_cleaned_since(timeline):
            raise TableChangedError(
                "the table was compacted and cleaned while it was looked at",
                path=self.storage.base_path,
                instant=completed[-1],
                todo="Do it again.",
            )

    def load_facts(self, timeline: Timeline, prevails: str | None = None) -> ViewFacts:
        """Pending plans, replaced file groups and compacted base files, from the instants' own files.

        `prevails`: see `pending_plans`.
        """
        plans = self.pending_plans(timeline, prevails)
        compacted: defaultdict[GroupKey, dict[str, str]] = defaultdict(dict)
        for instant in timeline.completed:
            if instant.family == "commit":
                for part, stats in self.commit_metadata(instant).partition_to_write_stats.items():
                    for stat in stats:
                        if stat.file_id and stat.path:
                            compacted[part, stat.file_id][instant.requested_time] = stat.path.rpartition("/")[2]
        return ViewFacts(
            pending_plans=plans,
            replaced=self.replaced_groups(timeline),
            compacted=compacted,
            shared={time: self.named_files(timeline, time) for time in timeline.shared_times},
        )

    def named_files(self, timeline: Timeline, time: str, but: str | None = None) -> frozenset[str]:
        """Paths of the files that the completed writes of one time name; `but`: not those of this action."""
        writes = (i for i in timeline.completed if i.requested_time == time and i.family != but)
        return frozenset().union(*(self.commit_metadata(i).named_files for i in writes))

    def replaced_groups(self, timeline: Timeline) -> dict[GroupKey, str]:
        """File groups that completed replace commits have replaced, each with the instant that did."""
        replaced: dict[GroupKey, str] = {}
        for instant in timeline.completed:
            if instant.family == "replacecommit":
                for part, file_ids in (self.commit_metadata(instant).partition_to_replace_file_ids or {}).items():
                    replaced.update({(part, file_id): instant.requested_time for file_id in file_ids})
        return replaced

    def pending_plans(self, timeline: Timeline, prevails: str | None = None) -> dict[GroupKey, str]:
        """The file groups of pending compaction plans, each with its plan's instant.

        MalformedError: one in two plans, unless `prevails`, the instant of a plan, is one of those: then it is there.
        """
        plans: dict[GroupKey, str] = {}
        for instant in timeline.pending_compactions:
            time = instant.requested_time
            for operation in self.compaction_plan(time).operations:
                key = (operation.partition_path, operation.file_id)
                other = plans.setdefault(key, time)
                if other == time:
                    continue
                if prevails not in (other, time):
                    raise MalformedError(
                        "file group in two pending compaction plans",
                        path="/".join(key),
                        found=f"{other} and {time}",
                        todo="One of them was requested without the table's lock. Take the later one back, or where "
                        f"that is refused the other: compactor-daemon unschedule TABLE {time}.",
                    )
                plans[key] = prevails
        return plans

    # --- schema ------------------------------------------------------------------------------------------------

    def schema_text(self, timeline: Timeline) -> str:
        """The table's Avro schema without meta columns: that of the newest completed write that records one.

        Newest by requested time. Table services come last: they repeat the schema they found. Then the schema of
        CREATE TABLE. MalformedError where the table has none. UnsupportedError: columns that may have other names in
        older files, which only Hudi's own schema beside it tells (`hoodie.schema.on.read.enable`).
        """
        fallback = ""
        for requested in sorted(timeline.completed_writes, reverse=True):
            metadata = self.commit_metadata(timeline.completed_writes[requested])
            if metadata.extra_metadata.get(_EVOLVED_SCHEMA):
                raise UnsupportedError(
                    "schema evolution on read is not supported",
                    path=self.storage.base_path,
                    instant=requested,
                    expected="commits without a schema of Hudi's own",
                    found=_EVOLVED_SCHEMA,
                    todo="Use Hudi for this table.",
                )
            text = metadata.extra_metadata.get("schema", "")
            if text and metadata.operation_type not in _SERVICE_OPERATIONS:
                return text
            fallback = fallback or text
        text = fallback or self.config.create_schema or ""
        if not text:
            raise MalformedError("no commit of the table records its schema", path=self.storage.base_path)
        return text

    def schema(self, text: str) -> TableSchema:
        """The schema as files carry it: with meta columns where the table has them."""
        own = without_meta_columns(text)  # version 6 delete_partition commits record the meta columns too
        full = with_meta_columns(own) if self.config.populate_meta_fields else own
        return TableSchema(commit_text=own, file_text=full)


@dataclass(frozen=True)
class TableSchema:
    """`commit_text`: as commits record it; `file_text`: as data files carry it (Avro JSON)."""

    commit_text: str
    file_text: str

    @cached_property
    def arrow(self) -> pa.Schema:
        """The data files' schema."""
        return arrow_schema(self.file_text)


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


def _needs_archive(timeline: Timeline, entries: Iterable[Entry]) -> bool:
    """Whether only the archive tells which files of a listing count: also of base files, where archiving has passed a
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


def _unreadable_todo(instant: str, *, may_go: bool) -> str:
    """`may_go`: nobody ever worked under it: its writer was killed before the first byte, or it is a log compaction."""
    restore = "restore the file, or restore the table with Hudi to an instant before it."
    if not may_go:
        return f"Where a copy is at hand {restore}"
    return f"Take it back: compactor-daemon unschedule TABLE {instant}. Where that is refused, {restore}"


def _no_partition(partition: str) -> UsageError:
    return UsageError("no such partition", path=partition, todo="`timeline slices TABLE` lists them.")
