"""Loads a table's file-system view: first the timeline, then facts, and the files last; which folders of a table are
partitions, and the source of a reader's partitions and files (`Table.listing`).

The default source is the storage; the alternative is the metadata table (`metadata_table.read.MetadataListing`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeAlias, TypedDict

from ..errors import MalformedError, MissingFileError, PhantombaseError, TableChangedError, UsageError, in_table
from ..format.compaction_plan import CompactionPlan
from ..format.file_name import PARTITION_METADATA, parse_data_file
from ..format.instant import Instant
from ..format.layout import Slicing
from ..format.table_config import TableConfig, load_table_config
from ..instants.instant_files import InstantFiles, retained_by
from ..instants.table_clock import TimelineLoader
from ..instants.timeline import Timeline
from ..prefetch import AHEAD, Threads, at_once, prefetched, prefetched_when_slow
from ..storage.contract import Entry, Storage, listed_if_there
from ..storage.folders import HOODIE, join
from ..storage.snapshot import list_ahead, without_snapshot
from .facts import FactLoader
from .grouping import file_groups, may_share_time, strays
from .view import FileGroup, TableView, ViewFacts, base_instants, log_instants
from .witness import Flaw, lost_completion

_LISTED = "files"


def is_partition(entries: Collection[Entry], config: TableConfig) -> bool:
    """Whether a folder with these entries is a partition. A partition has a partition metadata file. If this file is
    lost, Hudi still reads the rows of a table whose metadata table lists its files. In such tables a folder with data
    files and without subfolders is also a partition; the metadata table is not read for this."""
    if any(e.name.startswith(PARTITION_METADATA) and not e.is_folder for e in entries):
        return True
    if _LISTED not in config.built_metadata_partitions or any(e.is_folder for e in entries):
        return False
    return any(parse_data_file(e.name) is not None for e in entries)


def subfolders(folder: str, entries: Iterable[Entry]) -> list[str]:
    """Paths of the subfolders that may be or contain partitions: all except Hudi's own, as in Hudi."""
    names = [e.name for e in entries if e.is_folder and e.name != HOODIE]
    return [f"{folder}/{name}" if folder else name for name in names]


Listed: TypeAlias = tuple[str, list[Entry]]
"""A partition path and the files in its folder; these may include files that are not data files."""


class Listing(Protocol):
    """Partitions and files of a table, found by its storage and its current settings."""

    @property
    def lacks_later_files(self) -> bool:
        """Whether the listing, as one in pages, lacks files of writes that complete during it, and files then cleaned.
        The caller must check whether a clean ran during the listing."""
        ...

    @property
    def is_witness(self) -> bool:
        """Whether the listing has exactly the files of completed writes, as these name them."""
        ...

    def below(self, storage: Storage, config: TableConfig, folder: str) -> Iterable[Listed]:
        """The partitions at or under a folder; empty if there is no such folder."""
        ...

    def exactly(self, storage: Storage, config: TableConfig, partitions: Collection[str]) -> Iterable[Listed]:
        """These partitions, by name; MissingFileError if one does not exist."""
        ...


def folders(storage: Storage, folder: str, ends: Callable[[str, Collection[Entry]], bool]) -> Iterator[Listed]:
    """A folder and all folders below it that are not Hudi's own, level by level; none below one that `ends` accepts."""
    level, ahead = [folder], prefetched_when_slow if storage.is_file_system else prefetched
    while level:
        below: list[str] = []
        for path, entries in zip(level, ahead(level, storage.list), strict=True):
            yield path, entries
            if not ends(path, entries):
                below += subfolders(path, entries)
        level = below


@dataclass(frozen=True, slots=True)
class StorageListing:
    """Lists folders of the storage, see `is_partition`. Pages are those of the storage, see `Storage`."""

    @property
    def lacks_later_files(self) -> bool:
        return False

    @property
    def is_witness(self) -> bool:
        return False

    def below(self, storage: Storage, config: TableConfig, folder: str) -> Iterator[Listed]:
        if folder and ((entry := storage.find(folder)) is None or not entry.is_folder):
            return
        found = folders(storage, folder, lambda _, entries: is_partition(entries, config))
        yield from ((path, entries) for path, entries in found if is_partition(entries, config))

    def exactly(self, storage: Storage, config: TableConfig, partitions: Collection[str]) -> Iterator[Listed]:
        return ((partition, storage.list(partition)) for partition in sorted(set(partitions)))


Sizes: TypeAlias = Mapping[str, Mapping[str, int]]
"""Bytes of files, by partition and name."""
Named: TypeAlias = Callable[[str], Sizes]


def _unlike(named: Sizes, listings: Iterable[Listed]) -> Sizes:
    """The named files that the listings lack or have with another size."""
    found = dict[str, Mapping[str, int]]()
    there = dict(listings) if named else {}
    for partition, files in named.items():
        listed = {entry.name: entry.size for entry in there.get(partition, ())}
        if wrong := {name: size for name, size in files.items() if listed.get(name) != size}:
            found[partition] = wrong
    return found


def believed(storage: Storage, groups: Iterable[FileGroup]) -> tuple[FileGroup, ...]:
    """The groups without the flaws of base files that are complete, but have another size than their write recorded.
    The footer at the end of a Parquet file shows that the file is complete, and its number of rows; log files have
    none. Another tool has then rewritten the file. If its number of rows is another, the flaw is kept."""
    return tuple(_believed(storage, group) if group.flaws else group for group in groups)


def _believed(storage: Storage, group: FileGroup) -> FileGroup:
    slices = (replace(s, flaws=tuple(f for f in s.flaws if not _is_whole(storage, f))) for s in group.slices)
    return replace(group, slices=tuple(slices))


def _is_whole(storage: Storage, flaw: Flaw) -> bool:
    if not flaw.is_base or not flaw.found or flaw.second is not None or flaw.named_by is not None:
        return False
    from ..codec.parquet_read import open_parquet, readable  # imported here: few tables have such a file

    try:
        with storage.open_input(flaw.path, whole=False) as source, readable("base file", flaw.path):
            rows: int = open_parquet(source).metadata.num_rows
    except PhantombaseError:
        return False
    return not flaw.rows or rows == flaw.rows


class ViewAsked(TypedDict, total=False):
    exactly: Collection[str] | None
    pending: Instant | None
    prevails: str | None
    completed_by: str | None
    as_of: str | None
    brief: bool
    archive: bool
    named: Named | None


@dataclass(frozen=True, slots=True)
class ViewLoader:
    """`listing`: the source of the files of partitions."""

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
        pending: Instant | None = None,
        prevails: str | None = None,
        completed_by: str | None = None,
        as_of: str | None = None,
        brief: bool = False,
        archive: bool = False,
        named: Named | None = None,
    ) -> TableView:
        """Timeline, then facts, then listing. `partition`: only partitions at or under that path. `exactly`: these
        partitions and no others. `pending`: a requested compaction, log compaction or clustering that is treated as not
        completed. `prevails`: see `FactLoader.pending_plans`. `completed_by`: the state at this completion time
        (versions 8 and 9), see `Timeline.completed_by`. `as_of`, `brief`: see `file_groups`. `archive`: archived writes
        are witnesses, too; reads the complete archive. `named`: the files that the metadata table names at or under a
        folder, see `Witness.listed`. UsageError: no such partition. MissingFileError, TableChangedError: see
        `from_one_snapshot`. MissingFileError: the metadata table is listed, which has no files of a write whose
        completed file is lost."""
        timeline = newest = self.timelines.load(archived=archive or completed_by is not None)
        if completed_by is not None:
            timeline = newest.completed_by(completed_by)
        if pending is not None:
            timeline = timeline.with_pending(pending)
        if self.listing.is_witness:  # it does not list the files of such a write
            for time, later in sorted(self.facts.uncompleted(newest).items()):
                raise lost_completion(time, later)
        folder = _folder(partition)
        facts, listings, names = self._facts_and_files(timeline, prevails, folder, exactly, named)
        if self.listing.is_witness and any(_may_be_homeless(timeline, entries) for _, entries in listings):
            facts = self.facts.load(timeline, prevails)
        wrong = _unlike(names, listings)
        facts = replace(facts, witness=replace(facts.witness, listed=wrong))
        if archive:
            facts = self.facts.with_archived(facts, timeline)
        if exactly is None:
            listings += self.unlisted(folder, {part for part, _ in listings}, facts, as_of)
        if partition and not listings:
            raise _no_partition(partition)
        unseen = [Entry(name=name, is_folder=False) for of in wrong.values() for name in of]
        if completed_by is None and any(needs_archive(timeline, facts, *one) for one in (("", unseen), *listings)):
            timeline = self.timelines.with_its_archive(timeline)
        found = (
            group
            for part, entries in listings
            for group in file_groups(part, entries, timeline, facts, as_of=as_of, brief=brief)
        )
        groups = believed(self.storage, found)
        # A past state is checked by its moment, see `windows.retained_since`.
        several = completed_by is None and exactly is None and bool(self.config.partition_fields)
        since, entries = newest if completed_by else timeline, [e for _, e in listings]
        checks: tuple[Callable[[], None], ...] = (
            self.check_unchanged,
            partial(self.check_not_undone, newest),
            partial(self.check_not_cleaned, since, entries, several=several),
        )
        at_once(checks, lambda check: check(), 1 if self.storage.is_file_system else AHEAD)
        return TableView(timeline=timeline, facts=facts, groups=groups)

    def _facts_and_files(
        self,
        timeline: Timeline,
        prevails: str | None,
        folder: str,
        exactly: Collection[str] | None,
        named: Named | None,
    ) -> tuple[ViewFacts, list[Listed], Sizes]:
        """Facts, listing and named files, loaded concurrently on an object store."""

        def listed() -> list[Listed]:
            if exactly is not None:
                return list(self.listing.exactly(self.storage, self.config, exactly))
            return list(self.listing.below(self.storage, self.config, folder))

        def loaded() -> ViewFacts:
            return self.facts.load(timeline, prevails, witness=not self.listing.is_witness)

        if self.storage.is_file_system:
            return loaded(), listed(), {} if named is None else named(folder)
        with Threads(2) as pool:
            listing = pool.submit(listed)
            names = None if named is None else pool.submit(named, folder)
            return loaded(), listing.result(), {} if names is None else names.result()

    def unlisted(
        self, folder: str, listed: Collection[str], facts: ViewFacts, as_of: str | None = None
    ) -> list[Listed]:
        """The partitions at or under a folder that completed writes name and that a listing lacks, with their files.
        The partition metadata file of such a folder is lost, or the folder is missing or empty."""
        named = facts.partitions_at(as_of)
        below = (p for p in named if not folder or p == folder or p.startswith(f"{folder}/"))
        return [(p, listed_if_there(self.storage, p) or []) for p in sorted(set(below) - set(listed))]

    def strays(self, view: TableView) -> list[str]:
        """Paths of the files that a view ignores, see `grouping.strays`."""
        listed = self.listing.below(self.storage, self.config, "")
        return [join(p, name) for p, entries in listed for name in strays(p, entries, view.timeline, view.facts)]

    def planned_partitions(self, plans: Iterable[CompactionPlan]) -> set[str]:
        """The partitions that plans name and whose folders exist."""
        return self.existing(partition for plan in plans for partition, _ in plan.groups)

    def existing(self, partitions: Iterable[str]) -> set[str]:
        named = set(partitions)
        list_ahead(self.storage, named)
        return {p for p in named if not p or listed_if_there(self.storage, p) is not None}

    def check_unchanged(self) -> None:
        """TableChangedError if the settings have changed. An upgrade renames the timeline's files."""
        if load_table_config(without_snapshot(self.storage)) != self.config:
            raise TableChangedError(
                "the table's settings changed while it was read", path=self.storage.base_path, todo="Open it again."
            )

    def check_not_undone(self, timeline: Timeline) -> None:
        """TableChangedError if a rollback or restore may have removed files of known writes before the listing. Both
        undo the newest writes first, and remove the completed file of each write first."""
        writes = timeline.completed_writes.values()
        newest = [max(writes, key=by) for by in (lambda i: i.requested_time, timeline.completed_at) if writes]
        for write in dict.fromkeys(newest):
            if without_snapshot(self.storage).find(self.files.path(write)) is None:
                what = "a write was rolled back, or archived, while the table was read"
                raise TableChangedError(
                    what, path=self.storage.base_path, instant=write.requested_time, todo="Run it again."
                )

    def partition_groups(self, partition: str, timeline: Timeline, facts: ViewFacts) -> tuple[FileGroup, ...]:
        """The file groups of a partition; without its folder those that completed writes name, with flaws."""
        entries = listed_if_there(self.storage, partition) or []
        if needs_archive(timeline, facts, partition, entries):
            timeline = self.timelines.with_its_archive(timeline)
        self.check_not_cleaned(timeline, [entries])
        return believed(self.storage, file_groups(partition, entries, timeline, facts))

    def check_not_cleaned(
        self, timeline: Timeline, listings: Collection[Sequence[Entry]], *, several: bool = False
    ) -> None:
        """TableChangedError if files that are the newest by the timeline may have been removed before the listing. A
        base file completed after the timeline was loaded is ignored, but the files that it replaces may be cleaned if
        its write was requested before the cutoff that the clean retained: of each file group a clean also retains the
        newest slice below the cutoff. `several`: the listing may be of several partitions. A partition whose rows were
        all deleted has no files left, while other partitions are read without the writes that preceded the deletion. A
        listing in pages may also lack a base file that was put during the listing."""
        in_one = self.storage.names_at_once
        in_pages = in_one is not None and any(len(entries) > in_one for entries in listings)
        unseen = in_pages or self.listing.lacks_later_files
        ignored = {t for entries in listings for t in base_instants(entries) if not timeline.is_committed(t)}
        if not ignored and not several and not unseen:
            return
        timelines = replace(self.timelines, storage=without_snapshot(self.storage))
        now = timelines.load()
        if not now.may_be_cleaned_since(timeline):
            return
        if now.start != timeline.start:
            now = timelines.with_archive(now)
        cutoff = self._retained_since(timeline, now)
        if completed := now.superseding_since(timeline, None if unseen else ignored, below=cutoff):
            what = "the table was compacted and cleaned while it was read"
            raise TableChangedError(what, path=self.storage.base_path, instant=completed[-1], todo="Run it again.")

    def _retained_since(self, before: Timeline, now: Timeline) -> str:
        """The cutoff that all cleans started after the timeline `before` retained, at least; see `retained_by`."""
        begun = {i.requested_time for i in before.instants if i.action == "clean"}
        files = replace(self.files, storage=without_snapshot(self.storage))
        new = (i for i in now.instants if i.action == "clean" and i.requested_time not in begun)
        gone = (i for i in now.archived if i.action == "clean" and i.requested_time >= before.start)
        archived = (i.requested_time for i in gone if i.requested_time not in begun)
        return max((*(_retained_at_least(files, clean) for clean in new), *archived), default="")


def _retained_at_least(files: InstantFiles, clean: Instant) -> str:
    """See `retained_by`; the clean's own time, which is later, if the cutoff is unknown."""
    try:
        return retained_by(files, clean)
    except (MalformedError, MissingFileError):
        return clean.requested_time


def needs_archive(timeline: Timeline, facts: ViewFacts, partition: str, entries: Iterable[Entry]) -> bool:
    """Whether only the archive shows which files of a partition's listing count, see `Timeline.needs_archive`,
    `is_unknown` and `may_share_time`."""
    entries = list(entries)
    logs, bases = log_instants(entries), base_instants(entries)
    if any(timeline.needs_archive(t) for t in logs) or any(timeline.is_unknown(t) for t in logs | bases):
        return True
    return timeline.start in logs | bases and may_share_time(partition, entries, timeline, facts)


def _may_be_homeless(timeline: Timeline, entries: Iterable[Entry]) -> bool:
    """Version 6: whether log files may be in no slice, since no instant opened theirs. Only the writes show whether
    these are files of rolled back writes, or the plan of a compaction is lost, see `grouping`."""
    if timeline.layout.slicing is not Slicing.BY_BASE_INSTANT:
        return False
    return any(not timeline.is_committed(t) and t not in timeline.pending_writes for t in log_instants(entries))


def _folder(partition: str | None) -> str:
    folder = (partition or "").strip("/")
    if not {".", "..", HOODIE}.isdisjoint(folder.split("/")):
        raise _no_partition(folder)
    return folder


def _no_partition(partition: str) -> UsageError:
    return UsageError("no such partition", path=in_table(partition), todo="`timeline slices TABLE` lists them.")
