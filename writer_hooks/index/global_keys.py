"""Tables whose keys are unique over all partitions: rows that would move a key are refused, or moved.

`GlobalKeys` refuses them on a table with Hudi's global record index. With that index and its defaults, Hudi updates
such a row in the partition that has the key, whatever the row's own partition is. A write of phantombase would put the
key into a second partition: the row would be doubled, and Hudi could not build the index any more. The look-up runs
before the write begins, so that a refused write leaves no files. It runs again after the write has begun if another
write has completed since then, or one that was pending has ended: Hudi archives a slow write as soon as it has
completed. A write that completes later is a conflict (`WriteSet.everywhere`).

`place_keys` moves them, for writers that ask for it (`MovedKeys`):

    held     per bin of file slices: the keys of the batch that they hold, with partition and ordering values
    place    per target: one row per key of the batch, to the partitions where it is written, and keys to delete

If keys move, a row that deletes is written to the partition that holds the key, and any other is merged with the row of
its key first, as under Hudi's global indexes: one that loses is not written. Seen: 0.15.0 and 1.2.0, GLOBAL_SIMPLE and
GLOBAL_BLOOM. A key that two partitions hold already leaves both for its new one; otherwise it is updated in each.

Every task of a lookup gets all keys of the batch and some of the table's file slices, and reads only what it must, as
the key index does. Logs on top of a base file may delete a key: a slice is merged only if they do, if ordering values
are asked for, or if its logs may hold keys that no base file has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.avro_schema import PARTITION_PATH, RECORD_KEY
from phantombase.timeline.codec.columns import Flags, flat
from phantombase.timeline.codec.row_hash import KeyLookup
from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.format.record_key import looks_like_bucket
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.merge.rule import Keyed, SliceRules
from phantombase.timeline.merge.slice_log import may_delete
from phantombase.timeline.merge.slice_merge import SliceMerge
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.metadata_table.record_index import keys_are_global
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table, TableSchema, from_one_snapshot
from phantombase.timeline.view.view import FileSlice, GroupKey, TableView, latest_slice

from ..engine.engine import Pieces
from ..engine.row_blobs import Piece, by_target, fact, pack, piece_of, split
from ..files.stager import WriteWork
from ..files.stored_keys import positions_in, slice_keys
from ..options import MovedKeys, Operation, Write
from .key_index import combined, new_keys_in_logs
from .lookup_step import HITS, Slices, bins_of, distinct, keys_in_base, keys_of
from .prepare_step import KeyRoute

_PARTITION = b"partition"
_FIRST_BIN = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Misplaced:
    """Misplaced keys of a batch: `count` keys, such as `key`, whose rows are for `partition` but which are in `other`.
    `in_batch`: other rows of the batch, not rows of the table, have them in `other`."""

    count: int
    key: str
    partition: str
    other: str
    in_batch: bool


@dataclass(frozen=True)
class KeysToAllBins:
    """Makes keys from rows, one copy for each bin, with the partition of the rows in the schema's metadata."""

    bins: int

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            keys = piece.table().select([RECORD_KEY]).replace_schema_metadata({_PARTITION: piece.partition.encode()})
            payload = pack(keys)
            for number in range(self.bins):
                yield replace(piece, partition="", target=str(number), rows=0, payload=payload)


@dataclass(frozen=True)
class MisplacedStep:
    """Makes pieces with a `Misplaced` in JSON from the keys of a bin. `keys_in_logs`: the table's index puts new keys
    into logs. `once`: the batch may have a key in one partition only."""

    storage: Storage
    bins: Sequence[Sequence[Slices]]
    rules: SliceRules
    keys_in_logs: bool
    once: bool

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for (_, target), group in by_target(pieces):
            asked = _Asked(group)
            found = [asked.twice()] if self.once and target == _FIRST_BIN else []
            here = (self._misplaced(slice_, asked) for slice_ in chain.from_iterable(self.bins[int(target)]))
            yield from (fact(json.dumps(asdict(one)).encode()) for one in chain(found, here) if one is not None)

    def _misplaced(self, slice_: FileSlice, asked: _Asked) -> Misplaced | None:
        if asked.partitions == [slice_.partition]:
            return None  # all rows are for this partition, so no key is misplaced
        if slice_.base is None or (slice_.logs and self.keys_in_logs):
            return asked.misplaced(slice_.partition, positions_in(self.storage, slice_, self.rules, asked.lookup))
        base = keys_in_base(self.storage, slice_.base, asked.keys, asked.lookup, self.rules)
        found = asked.misplaced(slice_.partition, base)
        if found is None or not may_delete(self.storage, self.rules.merge.marker, slice_):
            return found
        return asked.misplaced(slice_.partition, positions_in(self.storage, slice_, self.rules, asked.lookup))


class _Asked:
    """The keys of a batch, and the partitions of their rows."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        tables = [piece.table() for piece in pieces]
        names = [table.schema.metadata[_PARTITION].decode() for table in tables]
        self.partitions = list(dict.fromkeys(names))
        keys = pa.chunked_array([c for t in tables for c in t.column(RECORD_KEY).chunks], pa.string())
        encoded = pc.dictionary_encode(keys.combine_chunks())
        places = np.repeat([self.partitions.index(name) for name in names], [t.num_rows for t in tables])
        pairs = np.unique(np.asarray(encoded.indices).astype(np.int64) * len(self.partitions) + places)
        self._key, self._place = np.divmod(pairs, len(self.partitions))
        self.keys = encoded.dictionary
        self.lookup = KeyLookup(self.keys)

    def misplaced(self, partition: str, positions: Iterable[npt.NDArray[np.int64]]) -> Misplaced | None:
        """The misplaced ones among the keys at these positions, which `partition` holds: their rows are for another."""
        at = distinct(positions)
        if not len(at):
            return None
        held = np.zeros(len(self.keys), np.bool_)
        held[at] = True
        own = self.partitions.index(partition) if partition in self.partitions else -1
        moved = np.flatnonzero(held[self._key] & (self._place != own))
        return self._first(moved, partition, in_batch=False)

    def twice(self) -> Misplaced | None:
        """Keys that the batch has in two partitions."""
        again = 1 + np.flatnonzero(self._key[1:] == self._key[:-1])
        other = self.partitions[int(self._place[again[0] - 1])] if len(again) else ""
        return self._first(again, other, in_batch=True)

    def _first(self, pairs: npt.NDArray[np.int64], other: str, *, in_batch: bool) -> Misplaced | None:
        if not len(pairs):
            return None
        first = int(pairs[0])
        return Misplaced(
            count=len(pairs),
            key=self.keys[int(self._key[first])].as_py(),
            partition=self.partitions[int(self._place[first])],
            other=other,
            in_batch=in_batch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The writes that a lookup has read, by requested time: `done` were completed, `pending` were not."""

    done: frozenset[str]
    pending: frozenset[str]

    def is_all_of(self, timeline: Timeline) -> bool:
        """Whether no write has ended since the lookup."""
        return self.done >= timeline.completed_writes.keys() and self.pending <= timeline.pending_writes.keys()


@dataclass(frozen=True, kw_only=True)
class GlobalKeys:
    """The look-up of one write. `rows`: from `prepare_rows`, computed already."""

    rows: Pieces
    slots: int
    schema: TableSchema
    write: Write

    def check(self, table: Table, seen: Seen | None = None) -> Seen | None:
        """The writes that the look-up has read; None: this table's keys need no look-up. `seen`: the result of an
        earlier check; if no write has ended since then, it is returned without a look-up. UnsupportedError: keys are in
        other partitions than their rows, or the batch has one key in two partitions."""
        if self.write.moved_keys is not None or not looks_everywhere(self.write, table):
            return None
        if seen is not None and seen.is_all_of(table.load_timeline()):
            return seen
        return from_one_snapshot(lambda: self._looked_up(table.snapshot(cached=False)))

    def _looked_up(self, table: Table) -> Seen:
        view = table.load_view()
        seen = Seen(done=frozenset(view.timeline.completed_writes), pending=frozenset(view.timeline.pending_writes))
        if not seen.done and self.write.deletes:
            return seen
        found = [Misplaced(**json.loads(data)) for data in self._misplaced(table, view)]
        if found:
            raise _refusal(table, found)
        return seen

    def _misplaced(self, table: Table, view: TableView) -> list[bytes]:
        output = self.write.options.output
        rules = slice_rules(table.with_timeline(view.timeline), self.schema)
        rules = replace(rules, memory_bytes=output.memory_limit, spill_folder=output.spill_dir)
        bins = bins_of(((slice_,) for slice_ in view.slices()), self.slots) or [[]]
        buckets, upserts = self.write.options.buckets is not None, self.write.operation is Operation.UPSERT
        step = MisplacedStep(table.storage, bins, rules, keys_in_logs=buckets, once=upserts)
        return self.rows.map(KeysToAllBins(len(bins))).regroup(step).collect()


def looks_everywhere(write: Write, table: Table) -> bool:
    """Whether a write looks its keys up in all partitions."""
    return write.looks_keys_up and (write.moved_keys is not None or keys_are_global(table))


def _refusal(table: Table, found: Iterable[Misplaced]) -> UnsupportedError:
    """The error for all misplaced keys; its example is a key in the table, if there is one."""
    ordered = sorted(found, key=lambda one: (one.in_batch, one.key))
    first, count = ordered[0], sum(one.count for one in ordered)
    place = "other rows of the batch have it in" if first.in_batch else "the table has it in"
    return UnsupportedError(
        "rows that move keys to another partition are not supported on a table with a global record index",
        path=table.storage.base_path,
        expected="each key in one partition only",
        found=f"{count} of them, such as {first.key!r} in partition {first.partition!r}: {place} {first.other!r}",
        todo="Nothing was written. Give these rows the partition that has their keys; or delete the keys there, in a "
        "separate write, and then write the rows; or write them with Hudi.",
    )


def place_keys(rows: Pieces, work: WriteWork, route: KeyRoute, slots: int, moved: MovedKeys) -> Pieces:
    """The rows by the partitions in which they are written, and tables of keys alone to delete in others. `rows`: those
    of all partitions together, see `PrepareRows`. `route`: the rule that gave them their targets, which they keep."""
    by_time = moved is MovedKeys.MOVE and not work.deletes
    groups = [g for of in prefetched(work.table.partitions(), work.groups) for g in of]
    merged = new_keys_in_logs(work, (group for group in groups if not looks_like_bucket(group.file_id)))
    bins = bins_of(((s,) for g in groups if (s := latest_slice(g)) is not None), slots)
    if bins:
        step = HeldStep(
            storage=work.table.storage,
            bins=bins,
            rules=work.rules,
            route=route,
            ordering=work.rules.ordering_fields if by_time else (),
            merged=merged,
        )
        rows = rows.union(rows.map(KeysToAllBins(len(bins))).regroup(step))
    return rows.regroup(PlaceStep(work, moved))


@dataclass(frozen=True, kw_only=True)
class HeldStep:
    """Makes tables of keys, with their partition and ordering values, from the keys of a bin, for the keys' targets.
    `merged`: file groups whose logs hold new keys."""

    storage: Storage
    bins: Sequence[Sequence[Slices]]
    rules: SliceRules
    route: KeyRoute
    ordering: tuple[str, ...]
    merged: frozenset[GroupKey]

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for (_, target), group in by_target(pieces):
            keys = keys_of(group)
            lookup = KeyLookup(keys)
            for number, slices in enumerate(self.bins[int(target)]):
                for slice_ in slices:
                    for held in self._held(slice_, keys, lookup):
                        yield from self._pieces(held, slice_.partition, number)

    def _pieces(self, held: pa.Table, partition: str, number: int) -> Iterator[Piece]:
        paths = pa.repeat(pa.scalar(partition), held.num_rows)
        rows = held.append_column(PARTITION_PATH, paths)
        for code, part in split(rows, self.route(flat(rows.column(RECORD_KEY)), 0)):
            yield piece_of(part, target=str(code), source=HITS, number=number)

    def _held(self, slice_: FileSlice, keys: pa.StringArray, lookup: KeyLookup) -> Iterator[pa.Table]:
        """The living keys that a slice holds: one table of keys alone, or tables with ordering values."""
        if slice_.base is not None and not self._logs_add(slice_):
            at = distinct(keys_in_base(self.storage, slice_.base, keys, lookup, self.rules))
            if not len(at):
                return
            if not self.ordering and not may_delete(self.storage, self.rules.merge.marker, slice_):
                yield pa.table({RECORD_KEY: keys.take(pa.array(at))})
                return
        for held in slice_keys(self.storage, slice_, self.rules, self.ordering):
            here = lookup.find(flat(held.column(RECORD_KEY))) >= 0
            if here.any():
                yield held.filter(pa.array(here))

    def _logs_add(self, slice_: FileSlice) -> bool:
        """Whether its logs may hold keys that its base file lacks: those of a bucket do."""
        return slice_.key in self.merged or (bool(slice_.logs) and looks_like_bucket(slice_.file_id))


@dataclass(frozen=True)
class PlaceStep:
    """Makes rows by partition from the held keys and rows of a target, and tables of keys alone to delete."""

    work: WriteWork
    moved: MovedKeys

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """See `engine.Step`. Pieces with held keys come first."""
        for (_, target), group in by_target(pieces):
            held, parts = list[pa.Table](), list[pa.Table]()
            for piece in group:
                (held if piece.source == HITS else parts).append(piece.table())
            for number, (rows, paths) in enumerate(self._placed(parts, held)):
                encoded = pc.dictionary_encode(paths)
                for code, part in split(rows, np.asarray(encoded.indices).astype(np.int64)):
                    partition = encoded.dictionary[code].as_py()
                    yield piece_of(part, partition=partition, target=target, source=slot, number=number)

    def _placed(self, parts: Sequence[pa.Table], held: Sequence[pa.Table]) -> Iterator[tuple[pa.Table, pa.Array]]:
        """Rows with the partition of each, then keys to delete with theirs."""
        if self.work.deletes:
            places = [(one.select([RECORD_KEY]), flat(one.column(PARTITION_PATH))) for one in held]
            yield from places
            return
        rows = combined(self.work, parts)
        own, rows = flat(rows.column(PARTITION_PATH)), rows.drop_columns([PARTITION_PATH])
        if not held:
            yield rows, own
            return
        there = pa.concat_tables(held)
        keys, other = flat(there.column(RECORD_KEY)), flat(there.column(PARTITION_PATH))
        row, place = _met(flat(rows.column(RECORD_KEY)), keys)
        leaves, goes = self._leaves(rows, there)[place], self._goes(rows)[row]
        withheld = np.zeros(rows.num_rows, np.bool_)
        withheld[row[~leaves]] = True
        yield rows.filter(pa.array(~withheld)), own.filter(pa.array(~withheld))
        yield rows.take(pa.array(row[goes])), other.take(pa.array(place[goes]))
        elsewhere = np.asarray(pc.not_equal(own.take(pa.array(row)), other.take(pa.array(place))))
        gone = place[leaves & elsewhere & ~withheld[row]]
        yield pa.table({RECORD_KEY: keys.take(pa.array(gone))}), other.take(pa.array(gone))

    def _goes(self, rows: pa.Table) -> Flags:
        """Which rows are written to the partition that holds their key: if keys move, those that delete; else all."""
        deleted = self.work.keyed(rows).deleted if self.moved is MovedKeys.MOVE else np.ones(rows.num_rows, np.bool_)
        return np.zeros(rows.num_rows, np.bool_) if deleted is None else deleted

    def _leaves(self, rows: pa.Table, held: pa.Table) -> Flags:
        """Which held keys leave their partition, since the new row wins."""
        leaves = np.zeros(held.num_rows, np.bool_)
        if self.moved is MovedKeys.MOVE:
            work = self.work
            fold = work.fold()
            work.add(fold, rows)
            merge = SliceMerge(replace(work.merge, every_duplicate=True), fold.finish())
            ordering = tuple(flat(held.column(name)) for name in work.rules.ordering_fields)
            base = Keyed(rows=held, keys=flat(held.column(RECORD_KEY)), ordering=ordering)
            leaves[merge.changes(base).replaced] = True
        return leaves


def _met(keys: pa.Array, held: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which rows of two columns of keys have the same key: positions in the first, and in the second."""
    left = pa.table({RECORD_KEY: keys, "row": np.arange(len(keys))})
    right = pa.table({RECORD_KEY: held, "held": np.arange(len(held))})
    both = left.join(right, RECORD_KEY, join_type="inner").sort_by([("row", "ascending"), ("held", "ascending")])
    return np.asarray(both.column("row")), np.asarray(both.column("held"))
