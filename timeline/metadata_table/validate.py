"""Compares the files that the metadata table names with the files of the table.

The files that count are those that the file-system view shows: files of completed writes. Files that a pending write
has left on storage are no difference. On version 6 the same holds for log files that only a pending write has written
or appends to: their blocks, not their names, show which write they are from. Every file that the metadata table names
must exist."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np
import pyarrow as pa

from ..codec.avro_schema import RECORD_KEY
from ..codec.columns import flat
from ..codec.row_hash import hash_keys
from ..errors import MissingFileError, PhantombaseError, TableChangedError
from ..format.file_name import LogFileName, parse_data_file
from ..format.layout import Slicing
from ..format.log_block import BlockKind, scan_blocks
from ..instants.timeline import Timeline
from ..merge.slice_stream import SliceStream
from ..merge.table_rules import slice_rules
from ..shown import Shown
from ..storage.contract import Entry
from ..storage.folders import join
from ..table.table import Snapshot, Table, from_one_snapshot, open_metadata_table
from ..view.grouping import file_groups
from ..view.log_blocks import visibility_of
from ..view.view import ViewFacts
from ..view.view_loader import StorageListing, needs_archive
from .column_range import FLOATS
from .expression_index import LAST_TEXT, Expression
from .index_definitions import unfollowed_signs
from .measure import Measure, index_records, lacks_bounds
from .read import ListedFiles, load_metadata_view, read_entries, read_files, slice_entries
from .record_index import followed_indexes
from .records.entries import combine, entry_keys
from .records.keys import COLUMN_STATS, EXPRESSION_INDEX, FILES, SECONDARY_INDEX, column_stats_key
from .valid_instants import refuse_uncompleted, valid_instants

_LOOKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Shown):
    """One file, or a partition if `name` is None, about which storage and metadata table disagree.
    Sizes in bytes, None on the side that lacks it. Partitions have no size: 0 on a side that has it."""

    partition: str
    name: str | None
    storage_bytes: int | None
    metadata_bytes: int | None

    @property
    def what(self) -> str:
        if self.metadata_bytes is None:
            return "missing in the metadata table"
        return "only in the metadata table" if self.storage_bytes is None else "other size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation(Shown):
    """What was compared, and where the two differ, by partition and name."""

    partitions: int
    files: int
    differences: tuple[Difference, ...]


def validate(table: Table, seen: Snapshot | None = None) -> Validation:
    """Compares every partition. A pending clean, rollback or restore may have removed files that are still named.
    `seen`: a snapshot of it; the table is read again only where that differs. Errors as in `read_entries`.
    TableChangedError: the table changed at every try, or its settings did: the metadata table may have been dropped."""
    with suppress(MissingFileError):
        if seen is not None and not (found := _compare(seen)).differences:
            return found
    for _ in range(_LOOKS):
        before = table.with_timeline(table.load_timeline())
        try:
            found = _compare(before)
        except MissingFileError:
            table.views.check_unchanged()
            if table.load_timeline() == before.timeline:
                raise
            continue
        if not found.differences:
            return found
        table.views.check_unchanged()
        if table.load_timeline() == before.timeline:
            return found
    raise _always_changed(table)


def _settled(table: Table, find: Callable[[Snapshot], str]) -> str:
    """What is found wrong in a snapshot that is still the newest one; "": nothing is. TableChangedError: the table
    changed at every try."""
    for _ in range(_LOOKS):
        before = table.snapshot(cached=False)
        before = before.with_timeline(before.timeline)
        if not (found := find(before)) or table.load_timeline() == before.timeline:
            return found
    raise _always_changed(table)


def _always_changed(table: Table) -> TableChangedError:
    what, todo = "the table changed at every try", "Try again while less is written."
    return TableChangedError(what, path=table.storage.base_path, todo=todo)


def damaged_partitions(table: Table, *, contents: bool) -> dict[str, str]:
    """The partitions, besides `files`, that cannot be read or lack a file that a completed delta commit names, and why.
    `contents`: every block of each file is read, with its checksums, and the entries of secondary indexes are compared
    with the rows, and bounds of expressions; otherwise only names and sizes are compared. Indexes that no write updates
    are included."""
    found = unfollowed_signs(table)
    for partition in table.config.built_metadata_partitions:
        if partition != FILES and partition not in found:
            try:
                from_one_snapshot(partial(_read_through, table, partition, contents=contents))
                for kind, find in ((SECONDARY_INDEX, _other_entries), (EXPRESSION_INDEX, _narrow_bounds)):
                    if contents and partition.startswith(kind) and (why := _settled(table, partial(find, partition))):
                        found[partition] = why
            except TableChangedError:
                raise
            except PhantombaseError as error:
                found[partition] = f"{error.what}: {error.path}"
    return found


def _read_through(table: Table, partition: str, *, contents: bool) -> None:
    """Reads what a reader of the partition reads, without decoding an entry."""
    data = table.snapshot(cached=False)
    if partition not in data.config.built_metadata_partitions:
        return
    data = data.with_timeline(data.timeline)
    metadata = open_metadata_table(data)
    view = load_metadata_view(metadata, {partition}, witness=True)
    refuse_uncompleted(data, metadata)
    valid, visibility = valid_instants(data, view.timeline), visibility_of(view.timeline)
    for slice_ in view.slices() if contents else ():
        for _ in slice_entries(metadata.storage, slice_, visibility, valid, keys=()):
            pass


def _other_entries(partition: str, before: Snapshot) -> str:
    """How the entries of a secondary index differ from what the rows give; "": they do not, or the text of its column
    is not known here. Memory: a batch of rows; compared are the number of entries and two sums of their hashes."""
    if (followed := followed_indexes(before).get(partition)) is None:
        return ""
    index, rules, rows, entries = followed[0], slice_rules(before, before.newest_schema()), _Sums(), _Sums()
    for slice_ in before.load_view().slices():
        slice_.check_whole(before.storage.base_path)
        for batch in SliceStream(before.storage, slice_, rules, [RECORD_KEY, index.column]).batches():
            rows.add(entry_keys(index, batch.column(RECORD_KEY), batch.column(index.column)))
    keys = (key for key, _ in read_entries(before, partition))
    while some := list(islice(keys, _AT_ONCE)):
        entries.add(pa.array(some, pa.string()))
    return "" if entries == rows else f"its {entries.count} entries are not those of the {rows.count} rows"


def narrow_floats(table: Snapshot) -> list[str]:
    """Newest files with NaN in a column of floats whose statistics leave it out, so that Hudi's queries skip them: it
    writes 0.0 to 0.0 for a base file, which has no bounds in its footer then, and NaN for a log file. Read are the
    entries of these columns, and footers where they are 0.0. Errors as in `read_entries`; MissingFileError."""
    if COLUMN_STATS not in table.config.built_metadata_partitions:
        return []
    measure = Measure.of(table, table.newest_schema())
    columns = () if measure is None else measure.columns
    floats = [c.name for c in columns if c.type.kind in FLOATS and not isinstance(c, Expression)]
    if not floats:
        return []
    places = {
        column_stats_key(column, slice_.partition, str(file.name)): join(slice_.partition, str(file.name))
        for slice_ in table.load_view().slices()
        for file in slice_.files
        for column in floats
    }
    found = dict[str, None]()
    for key, record in read_entries(table, COLUMN_STATS, list(places)):
        stats = record["ColumnStatsMetadata"]
        if key not in places or stats is None or stats["isDeleted"] or places[key] in found:
            continue
        low, high = (stats[bound] and stats[bound][1]["value"] for bound in ("minValue", "maxValue"))
        is_nan = any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high))
        if is_nan or (low == high == 0 and lacks_bounds(table.storage, places[key], stats["columnName"])):
            found[places[key]] = None
    return list(found)


def _narrow_bounds(partition: str, before: Snapshot) -> str:
    """Which bounds of an expression leave out a value of the rows; "": none, or they depend on the time zone of who
    asks, or are not known here. Memory: the entries."""
    names = set(before.config.metadata_partitions) - {partition}
    alone = replace(before, config=before.config.without_metadata_partitions(names))
    measure = Measure.of(alone, before.newest_schema())
    if measure is None or measure.names or not all(one.is_exact for one in measure.expressions):
        return ""
    files = defaultdict[str, dict[str, int]](dict)
    for slice_ in before.load_view().slices():  # the newest: Hudi narrows bounds of a partition to their files
        files[slice_.partition] |= {str(file.name): file.size for file in slice_.files}
    entries, narrow = dict(read_entries(before, partition)), list[str]()
    for _, keyed in index_records(before, files, "", measure, {partition}, {}):
        high = None if keyed is None else keyed[1]["ColumnStatsMetadata"]["maxValue"]
        if keyed is None or high is None or high[1]["value"] == LAST_TEXT:
            continue
        stats, older = keyed[1]["ColumnStatsMetadata"], entries.get(keyed[0])
        if older is not None:
            widened, found = combine(older, keyed[1])["ColumnStatsMetadata"], older["ColumnStatsMetadata"]
            is_narrow = any(widened[bound] != found[bound] for bound in ("minValue", "maxValue"))
        else:
            is_narrow = stats["fileName"] in files  # a file without an entry is read, a partition is not
        if is_narrow:
            narrow.append(stats["fileName"])
    return f"its bounds of {narrow[0]} leave out values of the rows" if narrow else ""


_AT_ONCE = 1 << 16


@dataclass
class _Sums:
    """The number of texts, and sums of their hashes."""

    count: int = 0
    sums: tuple[int, int] = (0, 0)

    def add(self, texts: pa.Array) -> None:
        self.count += len(texts)
        hashed = (hash_keys(flat(texts), seed) for seed in _SEEDS)
        first, second = (int(of.sum(dtype=np.uint64)) for of in hashed)
        self.sums = (self.sums[0] + first) % _WORD, (self.sums[1] + second) % _WORD


_SEEDS, _WORD = (1, 2), 1 << 64


def _compare(table: Snapshot) -> Validation:
    timeline = table.timeline
    facts = table.load_facts()
    listed = read_files(table)
    stored = dict(StorageListing().below(table.storage, table.config, ""))
    if any(needs_archive(timeline, facts, *one) for one in stored.items()):
        table = table.with_timeline(timeline := table.with_archive(timeline))
    partitions = sorted({*stored, *listed.partitions, *listed.unnamed})
    compared = [_Partition.of(p, stored.get(p), listed, timeline, facts) for p in partitions]
    return Validation(
        partitions=len(partitions),
        files=sum(len(one.counted.keys() | one.listed.keys()) for one in compared),
        differences=tuple(d for one in compared for d in one.differences() if not _unfinished(table, d)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    """File names and sizes of a partition: all on storage, those that count, those in the metadata table (`listed`)."""

    path: str
    there: bool
    named: bool
    stored: Mapping[str, int]
    counted: Mapping[str, int]
    listed: Mapping[str, int]

    @staticmethod
    def of(
        path: str, entries: list[Entry] | None, listed: ListedFiles, timeline: Timeline, facts: ViewFacts
    ) -> _Partition:
        groups = file_groups(path, entries or (), timeline, facts)
        files = (file for g in groups for s in g.slices for file in (s.base, *s.logs) if file is not None)
        return _Partition(
            path=path,
            there=entries is not None,
            named=path in listed.partitions,
            stored={e.name: e.size for e in entries or () if not e.is_folder},
            counted={str(file.name): file.size for file in files},
            listed=listed.partitions.get(path, listed.unnamed.get(path, {})),
        )

    def differences(self) -> Iterator[Difference]:
        if self.there != self.named and (self.counted or self.named):
            there, named = (0 if one else None for one in (self.there, self.named))
            yield Difference(partition=self.path, name=None, storage_bytes=there, metadata_bytes=named)
        for name in sorted(self.counted.keys() | self.listed.keys()):
            stored, listed = self.stored.get(name), self.listed.get(name)
            if stored != listed:
                yield Difference(partition=self.path, name=name, storage_bytes=stored, metadata_bytes=listed)


def _unfinished(table: Snapshot, difference: Difference) -> bool:
    """Whether pending writes explain the difference: a version 6 log file that they wrote or appended to."""
    name, stored = difference.name, difference.storage_bytes
    if name is None or stored is None or table.timeline.layout.slicing is not Slicing.BY_BASE_INSTANT:
        return False
    if not isinstance(parse_data_file(name), LogFileName):
        return False
    path = join(difference.partition, name)
    done = finished_bytes(table, path)
    return done == 0 if difference.metadata_bytes is None else done == difference.metadata_bytes < stored


def finished_bytes(table: Snapshot, path: str) -> int:
    """Of a log file of version 6: the offset at which the last block of a completed action ends."""
    timeline = table.timeline
    completed = {i.requested_time for i in timeline.instants if i.completed}
    with table.storage.open_input(path) as source:
        blocks = list(scan_blocks(source, path))
        ends = [*(b.offset for b in blocks[1:]), source.size()] if blocks else []
    finished = (
        end
        for block, end in zip(blocks, ends, strict=True)
        if block.kind is not BlockKind.CORRUPT and (block.instant in completed or timeline.is_committed(block.instant))
    )
    return max(finished, default=0)
