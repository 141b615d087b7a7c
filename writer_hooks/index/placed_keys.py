"""For tables whose keys are unique over all partitions: rows go to, or leave, the partitions that hold their keys.

    held     per bin of file slices: which keys of the batch they hold, in which partition, with their ordering values
    place    per target: one row per key of the whole batch, to the partitions where it is written, and keys to delete

Every task of the first step gets all keys of the batch and some of the table's file slices, and reads only what it
must, as the key index does. A key of a base file may be deleted by the logs on top of it; only then, or where its
ordering value is asked for, is a slice merged. It always is if its logs may hold keys that no base file has.

If keys move (`MovedKeys`), a row that deletes goes where the key is, and any other is merged with the row of its key
first, as under Hudi's global indexes: one that loses is written nowhere. Seen: 0.15.0 and 1.2.0, GLOBAL_SIMPLE and
GLOBAL_BLOOM. A key that two partitions hold already leaves both for its new one; otherwise it is updated in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.avro_schema import PARTITION_PATH, RECORD_KEY
from phantombase.timeline.codec.columns import Flags, flat
from phantombase.timeline.codec.row_hash import KeyLookup
from phantombase.timeline.format.record_key import looks_like_bucket
from phantombase.timeline.merge.rule import Keyed, SliceRules
from phantombase.timeline.merge.slice_merge import SliceMerge
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.read.slice_log import may_delete
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.view.view import FileSlice, latest_slice

from ..engine.engine import Pieces
from ..engine.row_blobs import Piece, by_target, pack, split
from ..files.stored_keys import slice_keys
from ..files.task_context import WriteWork
from ..options import MovedKeys
from .assign_step import combined
from .lookup_step import HITS, Slices, bins_of, distinct, keys_in_base, keys_of
from .misplaced_keys_step import KeysToAllBins
from .prepare_step import KeyRoute


def place_keys(rows: Pieces, work: WriteWork, route: KeyRoute, slots: int, moved: MovedKeys) -> Pieces:
    """The rows by the partitions in which they are written, and tables of keys alone to delete in others.

    `rows`: those of all partitions together, see `PrepareRows`. `route`: the rule that gave them their targets, which
    they keep.
    """
    by_time = moved is MovedKeys.MOVE and not work.deletes
    groups = (g for of in prefetched(work.table.partitions(), work.groups) for g in of)
    bins = bins_of(((s,) for g in groups if (s := latest_slice(g)) is not None), slots)
    if bins:
        step = HeldStep(
            storage=work.table.storage,
            bins=bins,
            rules=work.rules,
            route=route,
            ordering=work.rules.ordering_fields if by_time else (),
        )
        rows = rows.union(rows.map(KeysToAllBins(len(bins))).regroup(step))
    return rows.regroup(PlaceStep(work, moved))


@dataclass(frozen=True, kw_only=True)
class HeldStep:
    """Makes tables of keys, with their partition and ordering values, from the keys of a bin, for the keys' targets."""

    storage: Storage
    bins: Sequence[Sequence[Slices]]
    rules: SliceRules
    route: KeyRoute
    ordering: tuple[str, ...]

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """See `engine.Step`."""
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
            yield Piece(partition="", target=str(code), source=HITS, number=number, rows=0, payload=pack(part))

    def _held(self, slice_: FileSlice, keys: pa.StringArray, lookup: KeyLookup) -> Iterator[pa.Table]:
        """The living keys that a slice holds; one bare table of them, or some with ordering values."""
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
        return bool(slice_.logs) and looks_like_bucket(slice_.file_id)


@dataclass(frozen=True)
class PlaceStep:
    """Makes rows by partition from the held keys and rows of a target, and tables of keys alone to delete."""

    work: WriteWork
    moved: MovedKeys

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """See `engine.Step`. Pieces with held keys come first."""
        for (_, target), group in by_target(pieces):
            held: list[pa.Table] = []
            parts: list[pa.Table] = []
            for piece in group:
                (held if piece.source == HITS else parts).append(piece.table())
            for number, (rows, paths) in enumerate(self._placed(parts, held)):
                encoded = pc.dictionary_encode(paths)
                for code, part in split(rows, np.asarray(encoded.indices).astype(np.int64)):
                    yield Piece(
                        partition=encoded.dictionary[code].as_py(),
                        target=target,
                        source=slot,
                        number=number,
                        rows=part.num_rows,
                        payload=pack(part),
                    )

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
        """Which rows go where their key is: those that delete, if keys move."""
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
    """Which rows of two columns of keys have the same key: numbers of the first, and of the second."""
    left = pa.table({RECORD_KEY: keys, "row": np.arange(len(keys))})
    right = pa.table({RECORD_KEY: held, "held": np.arange(len(held))})
    both = left.join(right, RECORD_KEY, join_type="inner").sort_by([("row", "ascending"), ("held", "ascending")])
    return np.asarray(both.column("row")), np.asarray(both.column("held"))
