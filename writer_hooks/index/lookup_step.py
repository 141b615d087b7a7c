"""The key index, first half: finds the base files that hold a batch's keys; and the keys of replaced file groups.

Keys go to bins of base files of their partition. A bin's task reads only what it must: it skips a file whose key range
or bloom filter excludes every key, and reads the key column of the others. Under this index, as under Hudi's SIMPLE and
BLOOM, logs hold no new keys, so they are not read, except in one case: a pending compaction whose logs delete keys. Its
base file will lack the deleted keys. Rows of such a key must not go to the log of the phantom slice, where no later
look-up would find them (Hudi's writers put them there, and their next upsert doubles the key). So these keys count as
new, unless a Hudi writer has put the key there already.

`replaced_keys` stages, for the record index, the keys that a snapshot reader finds in the file groups that a write
replaces. A key that logs delete may be alive in another file group, which the index names. Where a delete and a row are
compared by ordering values, a compaction may show a key that no reader sees yet; then the keys are unknown."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.bloom import BloomFilter
from phantombase.timeline.codec.columns import flat
from phantombase.timeline.codec.parquet_read import open_parquet, readable
from phantombase.timeline.codec.row_hash import KeyLookup
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.slice_log import may_delete, may_delete_by_value
from phantombase.timeline.metadata_table.index_logs import FileKeys, cannot_hold, stage_keys
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import staged_folder
from phantombase.timeline.view.view import (
    BaseFile,
    FileGroup,
    FileSlice,
    GroupKey,
    latest_base,
    latest_slice,
    slice_before,
)

from ..engine.engine import Pieces
from ..engine.row_blobs import Piece, by_target, fact, pack, piece_of, split
from ..files.stager import WriteWork
from ..files.stored_keys import base_keys, compares, positions_in, slice_keys
from .prepare_step import ToSlot

HITS = -1
"""The `source` of pieces with hits, and of `keys_twice`: it sorts them before the rows of their target."""
FILE_ID, IS_TWICE = "file_id", "in several rows"
_BLOOM_KEYS_MAX = 10_000
"""With more keys a filter costs more than reading the key column, and would hardly exclude all of them."""
_LAST_ORDERED = "\ud7ff"
"""Up to this character, Java's order of strings (by UTF-16 units) and the order of UTF-8 bytes agree. So the least and
the greatest key of a file are the same in both orders, whichever of them its writer used."""
Slices = tuple[FileSlice, ...]
"""The slices of one file group that are read: see `looked_into`."""
Bins = Mapping[str, Sequence[Sequence[Slices]]]
"""Partition path to bins."""


def looked_into(group: FileGroup, *, merged: bool = False) -> Slices:
    """The slices that hold a group's keys (pure). This is its base file; with a pending compaction, the slice that it
    merges, then the phantom slice; `merged`: what a reader merges, since logs hold new keys. Lost or damaged ones are
    refused before (base files), or by `bins_of`."""
    if merged:
        return () if (last := latest_slice(group)) is None else (last,)
    plan = group.pending_compaction
    if plan is not None:
        before = slice_before(group, plan)
        return (before, *(s for s in group.slices if s.base_instant >= plan)) if before is not None else ()
    base = latest_base(group)
    if base is None:
        return ()
    instant = base.name.instant
    return (FileSlice(partition=group.partition, file_id=group.file_id, base_instant=instant, base=base, logs=()),)


def bins_of(groups: Iterable[Slices], count: int) -> list[list[Slices]]:
    """Distributes groups, the largest first, to at most `count` bins of about the same size (pure). MissingFileError,
    MalformedError: a slice has a flaw."""
    bins: list[list[Slices]] = [[] for _ in range(count)]
    sizes = [0] * count
    sized = ((sum(s.base_bytes + s.log_bytes for s in slices), slices) for slices in groups)
    for size, slices in sorted(sized, key=lambda pair: -pair[0]):
        for slice_ in slices:
            slice_.check_whole()
        least = sizes.index(min(sizes))
        bins[least].append(slices)
        sizes[least] += size
    return [one for one in bins if one]


@dataclass(frozen=True)
class KeysToBins:
    """Makes keys from rows, one copy for each bin of their partition."""

    bins: Mapping[str, int]

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            count = self.bins.get(piece.partition, 0)
            if count:
                payload = pack(piece.table().select([RECORD_KEY]))
                for number in range(count):
                    yield replace(piece, target=str(number), payload=payload)


@dataclass(frozen=True)
class LookupStep:
    """Makes hits from the keys of a bin: tables of keys with the id of their file, for the slot of the keys' rows.
    `merged`: see `looked_into`."""

    storage: Storage
    bins: Bins
    route: ToSlot
    rules: SliceRules
    merged: frozenset[GroupKey] = frozenset()

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for (partition, target), group in by_target(pieces):
            keys = keys_of(group)
            lookup = KeyLookup(keys)
            for number, slices in enumerate(self.bins[partition][int(target)]):
                at = np.concatenate([np.zeros(0, np.int64), *self._found(slices, keys, lookup)])
                at, rows = np.unique(at[at >= 0], return_counts=True)
                found, twice = keys.take(pa.array(at)), pa.array((rows > 1) & (len(slices) == 1))
                ids = pa.repeat(pa.scalar(slices[0].file_id), len(found))
                hits = pa.table({RECORD_KEY: found, FILE_ID: ids, IS_TWICE: twice})
                for code, part in split(hits, self.route(found, 0)):
                    yield piece_of(part, partition=partition, target=str(code), source=HITS, number=number)

    def _found(self, slices: Slices, keys: pa.StringArray, lookup: KeyLookup) -> Iterator[npt.NDArray[np.int64]]:
        """Positions of the keys that the slices hold, and -1 for keys that are not in the batch."""
        if slices[0].key in self.merged or may_delete(self.storage, self.rules.merge.marker, slices[0]):
            for slice_ in slices:
                yield from positions_in(self.storage, slice_, self.rules, lookup)
        elif slices[0].base is not None:
            yield from keys_in_base(self.storage, slices[0].base, keys, lookup, self.rules)


def keys_twice(hits: pa.Table, partition: str, slot: int) -> Iterator[Piece]:
    """For each file that has several rows of a key, a piece with such keys, before the rows of that target."""
    twice = hits.filter(pc.field(IS_TWICE))
    for file_id in twice.column(FILE_ID).unique().to_pylist():
        keys = twice.filter(pc.field(FILE_ID) == file_id).select([RECORD_KEY])
        yield piece_of(keys, partition=partition, target=file_id, source=HITS, number=slot)


def keys_of(pieces: Iterable[Piece]) -> pa.StringArray:
    return pc.unique(pa.chunked_array([p.table().column(RECORD_KEY).combine_chunks() for p in pieces], pa.string()))


def distinct(positions: Iterable[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """The positions of keys that were found, each once, in order; -1 means none."""
    at = np.unique(np.concatenate([np.zeros(0, np.int64), *positions]))
    return at[at >= 0]


def keys_in_base(
    storage: Storage, file: BaseFile, keys: pa.StringArray, lookup: KeyLookup, rules: SliceRules
) -> Iterator[npt.NDArray[np.int64]]:
    """Positions of the keys that a base file holds, and -1 for others; nothing if its footer excludes all keys.
    `lookup`: of the same `keys`. MalformedError: not a readable base file with keys."""
    with storage.open_input(file.path, whole=False) as source, readable("base file", file.path):
        parquet = open_parquet(source)
        if rules.keys.are_stored and not _may_hold(parquet.metadata, keys):
            return
        yield from map(lookup.find, base_keys(source, parquet, file.path, rules))


def _may_hold(footer: pq.FileMetaData, keys: pa.StringArray) -> bool:
    """False: the footer shows that the file holds none of the keys."""
    notes = {k.decode(errors="replace"): v.decode(errors="replace") for k, v in (footer.metadata or {}).items()}
    low, high = notes.get("hoodie_min_record_key"), notes.get("hoodie_max_record_key")
    if low is not None and high is not None:
        outside = pc.or_(pc.less(keys, low), pc.greater(keys, high))
        ordered = pc.invert(pc.match_substring_regex(keys, rf"[^\x{{0}}-\x{{{ord(_LAST_ORDERED):X}}}]"))
        keys = keys.filter(pc.invert(pc.and_(outside, ordered)))
    text, type_code = notes.get("org.apache.hudi.bloomfilter"), notes.get("hoodie_bloom_filter_type_code")
    if not len(keys):
        return False
    if text is None or type_code is None or len(keys) > _BLOOM_KEYS_MAX:
        return True
    try:
        return bool(BloomFilter.parse(type_code, text).might_contain(keys).any())
    except PhantombaseError:
        return True  # a filter that cannot be read excludes nothing


def replaced_keys(
    rows: Pieces, work: WriteWork, slots: int, replacing: Mapping[str, Sequence[str]]
) -> tuple[FileKeys, ...] | str:
    """The staged keys of replaced file groups; text instead: why they are not known. `replacing`: by partition."""
    slices = [
        slice_
        for partition, file_ids in ((partition, frozenset(ids)) for partition, ids in replacing.items() if ids)
        for group in work.groups(partition)
        if group.file_id in file_ids and (slice_ := latest_slice(group)) is not None
    ]
    bins = bins_of(((slice_,) for slice_ in slices), slots)
    found = rows.map(_ABin(len(bins))).regroup(ReplacedKeysStep(work, bins)).collect() if bins else []
    answers = [json.loads(data) for data in found]
    unknown = next((answer for answer in answers if isinstance(answer, str)), None)
    if unknown is None and len(answers) != sum(map(len, replacing.values())):
        unknown = "the keys of replaced file groups are not known"  # no task for an input without parts
    return unknown or tuple(FileKeys(**answer) for answer in answers)


@dataclass(frozen=True)
class _ABin:
    """Makes a piece without rows for each bin, whatever the input."""

    bins: int

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for number in range(self.bins) if slot == 0 else ():
            yield fact(b"", target=str(number))


@dataclass(frozen=True)
class ReplacedKeysStep:
    """Makes a piece for each slice of a bin, in JSON: its `FileKeys`, or why they are not known."""

    work: WriteWork
    bins: Sequence[Sequence[Slices]]

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for (_, target), _ in by_target(pieces):
            for slice_ in chain.from_iterable(self.bins[int(target)]):
                yield fact(json.dumps(self._staged(slice_)).encode(), target=target)

    def _staged(self, slice_: FileSlice) -> object:
        work, storage, refused = self.work, self.work.table.storage, list[str]()
        if compares(work.merge) and may_delete_by_value(storage, work.merge.marker, slice_):
            return "rows of replaced file groups are merged by their ordering values with deletes"

        def keys() -> Iterator[pa.Array]:
            for batch in slice_keys(storage, slice_, work.rules):
                held = flat(batch.column(RECORD_KEY))
                if why := cannot_hold(held):
                    refused.append(why)
                yield held

        path = f"{staged_folder(work.instant)}/{uuid.uuid4().hex}.keys"
        staged = stage_keys(storage, (slice_.partition, slice_.file_id), path, (), keys())
        return refused[0] if refused else staged.to_json()
