"""For tables whose keys must be unique over all partitions: finds keys of a batch that are in another partition.

Every task gets all keys of the batch and some of the table's file slices, and reads only what it must, as the key index
does. A key found in a base file may be deleted by the logs on top of it; only then are the logs merged. A slice is
always merged if its logs may hold keys that no base file has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.columns import flat
from phantombase.timeline.codec.row_hash import KeyLookup
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.read.slice_log import may_delete
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.view.view import FileSlice

from ..engine.row_blobs import Piece, by_target, pack
from ..files.stored_keys import slice_keys
from .lookup_step import Slices, distinct, keys_in_base

_PARTITION = b"partition"
_FIRST_BIN = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Misplaced:
    """Misplaced keys of a batch: `count` keys, such as `key`, whose rows are for `partition` but which are in `other`.

    `in_batch`: not the table has them in `other`, but other rows of the batch.
    """

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
        """See `engine.Step`."""
        for piece in pieces:
            keys = piece.table().select([RECORD_KEY]).replace_schema_metadata({_PARTITION: piece.partition.encode()})
            payload = pack(keys)
            for number in range(self.bins):
                yield replace(piece, partition="", target=str(number), rows=0, payload=payload)


@dataclass(frozen=True)
class MisplacedStep:
    """Makes pieces with a `Misplaced` in JSON from the keys of a bin.

    `keys_in_logs`: the table's index puts new keys into logs. `once`: the batch may have a key in one partition only.
    """

    storage: Storage
    bins: Sequence[Sequence[Slices]]
    rules: SliceRules
    keys_in_logs: bool
    once: bool

    def __call__(self, slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """See `engine.Step`."""
        for (_, target), group in by_target(pieces):
            asked = _Asked(group)
            found = asked.twice() if self.once and target == _FIRST_BIN else None
            if found is not None:
                yield _piece(found)
            for slices in self.bins[int(target)]:
                for slice_ in slices:
                    found = self._misplaced(slice_, asked)
                    if found is not None:
                        yield _piece(found)

    def _misplaced(self, slice_: FileSlice, asked: _Asked) -> Misplaced | None:
        if asked.partitions == [slice_.partition]:
            return None  # all rows are for this partition, so no key is misplaced
        if slice_.base is None or (slice_.logs and self.keys_in_logs):
            return asked.misplaced(slice_.partition, self._merged(slice_, asked))
        base = keys_in_base(self.storage, slice_.base, asked.keys, asked.lookup, self.rules)
        found = asked.misplaced(slice_.partition, base)
        if found is None or not may_delete(self.storage, self.rules.merge.marker, slice_):
            return found
        return asked.misplaced(slice_.partition, self._merged(slice_, asked))

    def _merged(self, slice_: FileSlice, asked: _Asked) -> Iterator[npt.NDArray[np.int64]]:
        for held in slice_keys(self.storage, slice_, self.rules):
            yield asked.lookup.find(flat(held.column(RECORD_KEY)))


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


def _piece(found: Misplaced) -> Piece:
    return Piece(partition="", target="", source=0, number=0, rows=0, payload=json.dumps(asdict(found)).encode())
