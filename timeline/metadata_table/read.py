"""Reads the metadata table as Hudi's readers with `hoodie.metadata.enable=true` do, and lists a table's files by it.

When Hudi builds an index again, it removes the partition's folder, with base files that a completed compaction names,
and fills a new folder under artificial times with the same file ids. The files that this compaction names there are
then ignored. Version 6 does not show which came first, so a missing base file remains an error there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from ..errors import MalformedError, MissingFileError, PhantombaseError, TableChangedError, UsageError
from ..event_log import get_logger
from ..format.file_name import BaseFileName, LogFileName, parse_data_file
from ..format.instant import Instant
from ..format.layout import Slicing
from ..format.log_block import HeaderKey, LogBlock, Visibility, select_blocks
from ..format.table_config import TableConfig
from ..storage.contract import Entry, Storage, listed_if_there, open_listed
from ..storage.folders import METADATA_FOLDER
from ..table.table import BUILD_AGAIN, Snapshot, Table, advising_rebuild, from_one_snapshot, open_metadata_table
from ..view.log_blocks import slice_blocks, visibility_of
from ..view.view import FileGroup, FileSlice, TableView, ViewFacts, latest_slice
from ..view.view_loader import Listed, Named, Sizes
from ..view.witness import NamedFile, named_files, named_instant
from .records.entries import Keys, MetadataEntry, base_entries, block_entries, fold, merge, present_files
from .records.keys import ALL_PARTITIONS, FILES, PARTITION_STATS, MetadataRecord, expression_stats_key, partition_path
from .valid_instants import ARTIFICIAL, refuse_uncompleted, valid_instants

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSlice:
    """The latest file slice of a file group. `base_file`: its name, "" if it has none; `logs`: in merge order."""

    partition: str
    file_id: str
    base_instant: str
    base_file: str
    logs: tuple[LogFileName, ...]


def open_slices(metadata: Snapshot, partition: str) -> list[OpenSlice]:
    """The latest slice of each file group, in the order of their indexes (file ids end in the index).
    If a pending compaction contains the file group, new log files belong to the slice that this compaction opens
    (version 6). It contains the groups that had logs when it was planned. Other groups get no base file from it, so a
    new slice there would hide the older one."""
    names = list(_names(listed_if_there(metadata.storage, partition) or ()))
    with advising_rebuild(metadata):
        planned = metadata.facts.pending_plans(metadata.timeline)
    found = []
    for file_id in sorted({n.file_id for n in names}):
        mine = [n for n in names if n.file_id == file_id]
        bases = [n for n in mine if isinstance(n, BaseFileName)]
        logs = [n for n in mine if isinstance(n, LogFileName)]
        by_name = metadata.layout.slicing is Slicing.BY_BASE_INSTANT
        pending = planned.get((partition, file_id), "")
        instants = [pending, *(n.instant for n in bases), *(n.instant for n in logs if by_name)]
        base_instant = max(instants) or min(n.instant for n in logs)
        base = next((str(n) for n in bases if n.instant == base_instant), "")
        found.append(
            OpenSlice(
                partition=partition,
                file_id=file_id,
                base_instant=base_instant,
                base_file=base,
                logs=tuple(sorted((n for n in logs if n.instant == base_instant), key=lambda n: n.sort_key)),
            )
        )
    if not found:
        raise _no_file_groups(metadata, partition)
    return found


def _no_file_groups(metadata: Table, partition: str) -> MalformedError:
    what = "a partition of the metadata table has no file groups"
    return MalformedError(what, path=f"{metadata.storage.base_path}/{partition}", todo=BUILD_AGAIN)


def _names(entries: Sequence[Entry]) -> Iterator[BaseFileName | LogFileName]:
    for entry in entries:
        if entry.is_folder or entry.name.endswith(".crc") or entry.name.startswith(".hoodie"):
            continue
        yield LogFileName.parse(entry.name) if entry.name.startswith(".") else BaseFileName.parse(entry.name)


def load_metadata_view(metadata: Snapshot, partitions: Collection[str], *, witness: bool = False) -> TableView:
    """Timeline, facts, then the listing of these partitions. MissingFileError: no such folder; see `file_groups`.
    `witness`: also compares files with the delta commits that name them; reads all of these."""
    timeline = metadata.timeline
    with advising_rebuild(metadata):
        facts = without_rebuilt(metadata, metadata.facts.load(timeline, witness=witness))
    groups = list[FileGroup]()
    for partition in sorted(partitions):
        found = metadata.views.partition_groups(partition, timeline, facts)
        if not found:
            metadata.storage.list(partition)  # a missing folder has no groups either
        for slice_ in (s for group in found for s in group.slices):
            slice_.check_whole()
        groups += found
    metadata.views.check_unchanged()
    return TableView(timeline=timeline, facts=facts, groups=tuple(groups))


def without_rebuilt(metadata: Snapshot, facts: ViewFacts) -> ViewFacts:
    """The facts without files of a partition from before it was last filled: those of writes that completed before, and
    log files of slices that an earlier fill opened (version 6)."""
    if not (facts.compacted or facts.witness.writes):
        return facts
    filled, opened = dict[str, str](), dict[str, str]()
    for instant, partitions in _fillings(metadata):
        for partition in partitions:
            filled[partition] = max(filled.get(partition, ""), metadata.timeline.completed_at(instant))
            opened[partition] = max(opened.get(partition, ""), instant.requested_time)

    def counts(partition: str, one: NamedFile) -> bool:
        time = named_instant(one.path.rpartition("/")[2])
        return not time.startswith(ARTIFICIAL) or time >= opened.get(partition, "")

    writes = list[tuple[str, Mapping[str, Sequence[NamedFile]]]]()
    for time, named in facts.witness.writes:
        done = metadata.timeline.completed_at(metadata.timeline.completed_writes[time])
        current = (p for p in named if done >= filled.get(p, ""))
        writes.append((time, {p: [one for one in named[p] if counts(p, one)] for p in current}))
    facts = replace(facts, witness=replace(facts.witness, writes=tuple(writes)))
    if not metadata.timeline.layout.has_completion_times:
        return facts
    kept = {
        (partition, file_id): {time: name for time, name in names.items() if time > filled.get(partition, "")}
        for (partition, file_id), names in facts.compacted.items()
    }
    return replace(facts, compacted={key: names for key, names in kept.items() if names})


def _fillings(metadata: Snapshot) -> Iterator[tuple[Instant, Collection[str]]]:
    """The active delta commits that filled partitions, and which."""
    for instant in metadata.timeline.completed:
        if instant.action == "deltacommit" and instant.requested_time.startswith(ARTIFICIAL):
            yield instant, metadata.commit_metadata(instant).partition_to_write_stats.keys()


@dataclass(frozen=True, slots=True)
class Completeness:
    """Whether the slices of a metadata table have the blocks of all its delta commits.
    Only delta commits without a block in a slice are read, each once. So a complete `files` partition, which every
    delta commit writes to, is verified without a request. `below`: the instant of a
    compaction, whose slices lack the delta commits that completed later."""

    metadata: Snapshot
    below: str | None = None
    _named: dict[str, Mapping[str, tuple[NamedFile, ...]]] = field(default_factory=dict)

    def check(self, slice_: FileSlice, blocks: Iterable[LogBlock]) -> None:
        """MissingFileError: a completed delta commit names a file of the slice, but the slice has no block of it, and
        its partition was not filled again since."""
        seen = {block.headers.get(HeaderKey.INSTANT_TIME) for block in blocks}
        by_name = self.metadata.timeline.layout.slicing is Slicing.BY_BASE_INSTANT
        instants = {slice_.base_instant, *(log.name.instant for log in slice_.logs)}
        floor = "" if slice_.base is None else slice_.base_instant
        for write in self.metadata.timeline.completed:
            time = write.requested_time
            since = self.metadata.timeline.moment_of(write)
            if write.family != "deltacommit" or time in seen or max(time, since) <= floor or time == floor:
                continue
            if not by_name and self.below is not None and since >= self.below:
                continue
            for one in self._files(write).get(slice_.partition, ()):
                text = one.path.rpartition("/")[2]
                name = parse_data_file(text)
                if name is None or name.file_id != slice_.file_id or (by_name and name.instant not in instants):
                    continue
                if (text.startswith(".") or slice_.base is None) and not self._is_rebuilt(slice_.partition, since):
                    raise MissingFileError(
                        "blocks of a completed delta commit of the metadata table are missing",
                        path=f"{self.metadata.storage.base_path}/{one.path}",
                        instant=time,
                        expected=f"{one.size} bytes" if one.size else None,
                        todo=f"Restore the file from a copy. {BUILD_AGAIN}",
                    )

    def _is_rebuilt(self, partition: str, since: str) -> bool:
        """Whether the partition was filled after a delta commit that completed at `since`; unknown on version 6."""
        fillings = _fillings(self.metadata)
        return any(partition in names and self.metadata.timeline.completed_at(i) > since for i, names in fillings)

    def _files(self, write: Instant) -> Mapping[str, tuple[NamedFile, ...]]:
        """The files of a delta commit; none if its file is torn, as a killed Hudi leaves it."""
        if write.requested_time not in self._named:
            path = self.metadata.files.path(write)
            try:
                self._named[write.requested_time] = named_files(self.metadata.storage.read(path), path)
            except (MalformedError, MissingFileError):
                self._named[write.requested_time] = {}
        return self._named[write.requested_time]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFiles:
    """The files that the metadata table names: for every partition that it names, file names and sizes in bytes.
    `unnamed`: files of partitions that it does not name; a reader that knows such a partition sees them."""

    partitions: Mapping[str, Mapping[str, int]]
    unnamed: Mapping[str, Mapping[str, int]]


def read_files(table: Table, folder: str = "") -> ListedFiles:
    """The `files` partition of a data table's metadata table; errors as in `read_entries`. A file that is marked
    deleted but was never added is left out, as in Hudi by default. `folder`: only partitions at or under it."""
    keys: Keys = None
    if folder:
        every = (present_files(record) for _, record in read_entries(table, FILES, [ALL_PARTITIONS]))
        named = {partition_path(name) for names in every for name in names}
        below = [p for p in named if p == folder or p.startswith(f"{folder}/")]
        keys = [ALL_PARTITIONS, *sorted({folder, *below})]
    names: Mapping[str, int] = {}
    files: dict[str, dict[str, int]] = {}
    for key, record in read_entries(table, FILES, keys):
        present = present_files(record)
        if key == ALL_PARTITIONS:
            names = {partition_path(name): size for name, size in present.items()}
        else:
            files[partition_path(key)] = present
    if folder:
        names = {name: size for name, size in names.items() if name in below}
    return ListedFiles(
        partitions={name: files.get(name, {}) for name in sorted(names)},
        unnamed={name: files[name] for name in sorted(files.keys() - names)},
    )


def read_entries(table: Table, partition: str, keys: Keys = None) -> Iterator[tuple[str, MetadataRecord]]:
    """The merged entries of one partition of a data table's metadata table, file group by file group. Memory holds the
    log entries of one file group and one block of its base file. Index entries that are marked deleted are included: a
    reader of that index must skip them. `keys`: only these are needed. UsageError: the metadata table, or this
    partition of it, is off or still being built. MalformedError, UnsupportedError: its files cannot be read.
    MissingFileError: a file was removed since, see `from_one_snapshot`, or see `refuse_uncompleted`."""
    built = table.config.built_metadata_partitions
    if partition not in built:
        raise UsageError(
            "the metadata table does not have this partition",
            path=f"{table.storage.base_path}/{METADATA_FOLDER}/{partition}",
            expected=", ".join(built) or "none: it is off",
            todo="Let Hudi build it, or list the storage.",
        )
    # The data table's timeline first: entries of an instant that completes later may be included, but none is missed.
    data = table.with_timeline(table.load_timeline())
    metadata = open_metadata_table(table)
    with advising_rebuild(metadata):
        view = load_metadata_view(metadata, {partition})
    if partition in _NEVER_LESS:
        refuse_uncompleted(data, metadata)
        if not any(map(latest_slice, view.groups)):
            raise _no_file_groups(metadata, partition)
    valid = valid_instants(data, view.timeline)
    visibility = visibility_of(view.timeline)
    complete = Completeness(metadata) if partition in _NEVER_LESS else None
    with advising_rebuild(metadata):
        for slice_ in view.slices():
            yield from slice_entries(metadata.storage, slice_, visibility, valid, keys, complete)


_NEVER_LESS = (FILES, PARTITION_STATS)
"""Partitions without whose entries a reader would leave out rows; other indexes are optional for a reader."""


def slice_entries(
    storage: Storage,
    slice_: FileSlice,
    visibility: Visibility,
    valid: frozenset[str],
    keys: Keys = None,
    complete: Completeness | None = None,
) -> Iterator[tuple[str, MetadataRecord]]:
    """The merged entries of one slice; `complete` is checked before the first. Other arguments: `read_entries`."""
    logs = fold(_log_entries(storage, slice_, visibility, valid, keys, complete))
    if slice_.base is None:
        yield from merge((), logs)
        return
    with open_listed(storage, slice_.base.path, slice_.base.size) as source:
        yield from merge(base_entries(source.read_buffer(), slice_.base.path, keys), logs)


def _log_entries(
    storage: Storage,
    slice_: FileSlice,
    visibility: Visibility,
    valid: frozenset[str],
    keys: Keys,
    complete: Completeness | None,
) -> Iterator[MetadataEntry]:
    with ExitStack() as stack:
        sources = {log.path: stack.enter_context(open_listed(storage, log.path, log.size)) for log in slice_.logs}
        blocks = slice_blocks(storage, slice_)
        if complete is not None:
            complete.check(slice_, blocks)
        for block in select_blocks(blocks, visibility).blocks:
            if block.instant in valid:
                yield from block_entries(block, sources[block.path], keys)


@dataclass(frozen=True, slots=True)
class MetadataListing:
    """Reads the metadata table again at each call; errors as in `read_entries`. Entries have no times.
    Instants pending when the table's timeline was loaded do not count; a later clean does."""

    @property
    def lacks_later_files(self) -> bool:
        return True

    @property
    def is_witness(self) -> bool:
        return True

    def below(self, storage: Storage, config: TableConfig, folder: str) -> Iterator[Listed]:
        for partition, files in read_files(Table(storage, config)).partitions.items():
            if not folder or partition == folder or partition.startswith(f"{folder}/"):
                yield partition, _entries(files)

    def exactly(self, storage: Storage, config: TableConfig, partitions: Collection[str]) -> Iterator[Listed]:
        named = read_files(Table(storage, config)).partitions
        for partition in sorted(set(partitions)):
            if partition not in named:
                raise MissingFileError("no such partition in the metadata table", path=partition)
            yield partition, _entries(named[partition])


def named_files_of(table: Table) -> Named | None:
    """What the metadata table names in addition to a listing of the storage, for `Table.load_view`.
    None: it is off, or is the listing itself. Without a readable metadata table, files of archived writes count by
    their names. Its log files are left out on version 6: they are named after the instant of their base, so a pending
    write may have made them."""
    if FILES not in table.config.built_metadata_partitions or table.listing.is_witness:
        return None
    has_logs = table.layout.slicing is Slicing.BY_COMPLETION_TIME

    def named(folder: str) -> Sizes:
        try:
            found = from_one_snapshot(lambda: read_files(table.snapshot(cached=False), folder)).partitions
        except TableChangedError:
            raise
        except PhantombaseError:
            return {}
        if has_logs:
            return found
        return {p: {n: size for n, size in of.items() if not n.startswith(".")} for p, of in found.items()}

    return named


def _entries(files: Mapping[str, int]) -> list[Entry]:
    return [Entry(name=name, is_folder=False, size=size) for name, size in sorted(files.items())]


def value_type(record: MetadataRecord) -> str | None:
    """How the bounds of an entry of statistics are stored; None: it has none."""
    bound = (record.get("ColumnStatsMetadata") or {}).get("minValue")
    return None if bound is None else str(bound[0])


def cannot_widen(table: Table, partition: str, types: Mapping[str, str | None], column: str = "") -> bool:
    """Whether records of these keys cannot be added to bounds: older ones have bounds of another type, from before the
    column was widened, or cannot be read. `types`: of their bounds, None: they have none. `column`: of an expression
    index, see `_lacks_bounds`."""
    if partition not in table.config.built_metadata_partitions:
        return False
    try:
        keys = _bounds_of_partitions(table, column) if column else {}
        older = dict(read_entries(table, partition, {*types, *keys}))
    except (MalformedError, MissingFileError) as error:  # readers then go without it, which is exact
        _log.warning("partition_statistics_damaged", table=table.storage.base_path, error=str(error))
        return True
    for key, kind in types.items():
        record = older.get(key, {})
        if kind is not None and (value_type(record) not in (None, kind) or (column and _is_beyond(record))):
            return True
    return _lacks_bounds(table, {path for key, path in keys.items() if key not in older and key not in types})


def _bounds_of_partitions(table: Table, column: str) -> dict[str, str]:
    """The keys of the bounds of all partitions in an expression index of this column, and their paths."""
    named = read_entries(table, FILES, [ALL_PARTITIONS])
    paths = [partition_path(name) for _, record in named for name in present_files(record)]
    return {expression_stats_key(column, path): path for path in paths}


def _lacks_bounds(table: Table, without: Collection[str]) -> bool:
    """Whether a partition with rows is among those `without` bounds in an expression index: once one has bounds, Hudi's
    readers leave out those that have none."""
    view = table.with_timeline(table.load_timeline()).load_view() if without else None
    return view is not None and any(slice_.partition in without for slice_ in view.slices())


def _is_beyond(record: MetadataRecord) -> bool:
    """Whether a bound has a character above U+FFFF: bounds are merged in the order of UTF-16, and compared in that of
    UTF-8."""
    stats = record.get("ColumnStatsMetadata") or {}
    values = [bound[1].get("value") for name in ("minValue", "maxValue") if (bound := stats.get(name)) is not None]
    return any(isinstance(value, str) and max(value, default="") > "\uffff" for value in values)
