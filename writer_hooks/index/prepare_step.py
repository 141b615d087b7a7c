"""The first step of a write: gives rows of the input their key and partition path, and sends them to their targets.

`check_once` rejects a batch with several rows of one key where no ordering decides between them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.avro_schema import PARTITION_PATH, RECORD_KEY
from phantombase.timeline.codec.row_hash import row_hashes
from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.record_key import KeySplit, bucket_of

from ..engine.engine import Pieces
from ..engine.row_blobs import Piece, by_target, fact, piece_of, split
from ..schema.key_generator import KeyGenerator
from ..schema.table_schema import to_file_schema


def check_once(rows: Pieces) -> None:
    """UsageError: the batch has a key twice in one partition. `rows`: all rows of a key have one target."""
    found = sorted(json.loads(data) for data in rows.map(_keys).regroup(_repeated).collect())
    if found:
        _, key, partition = found[0]
        raise UsageError(
            "several rows of the source match one row of the table",
            expected="one row for each key",
            found=f"{sum(count for count, _, _ in found)} keys with more, such as {key!r} in partition {partition!r}",
            todo="Nothing was written. Choose one row for each key first.",
        )


def _keys(slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        yield replace(piece, payload=piece.table().select([RECORD_KEY]))


def _repeated(slot: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """For each target with repeated keys: their number, one of them, its partition."""
    for (partition, target), group in by_target(pieces):
        keys = pa.chunked_array([c for p in group for c in p.table().column(RECORD_KEY).chunks], pa.string())
        counted = keys.value_counts()
        more = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
        if len(more):
            yield fact(json.dumps([len(more), more[0].as_py(), partition]).encode(), partition=partition, target=target)


class KeyRoute(Protocol):
    """Gives each row its target, a number below `targets`. `source`: the number of the input's part."""

    @property
    def targets(self) -> int:
        """The number of targets of a partition path."""

    def __call__(self, keys: pa.StringArray, source: int) -> npt.NDArray[np.int64]:
        """The target of each key."""


@dataclass(frozen=True, slots=True)
class ToBucket:
    targets: int
    index_fields: tuple[str, ...]
    split: KeySplit

    def __call__(self, keys: pa.StringArray, source: int) -> npt.NDArray[np.int64]:
        return bucket_of(keys, self.index_fields, self.targets, self.split).astype(np.int64)


@dataclass(frozen=True, slots=True)
class ToSlot:
    """Targets by a hash of the key that is the same on every machine: all rows of one key get the same target."""

    targets: int

    def __call__(self, keys: pa.StringArray, source: int) -> npt.NDArray[np.int64]:
        return (row_hashes([keys], len(keys)) % np.uint64(self.targets)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class BySource:
    """Targets by the part of the input, without reading the keys."""

    targets: int

    def __call__(self, keys: pa.StringArray, source: int) -> npt.NDArray[np.int64]:
        return np.full(len(keys), source % self.targets, np.int64)


@dataclass(frozen=True, kw_only=True)
class PrepareRows:
    """Makes pieces from batches of the input. Picklable. `data_schema`: the columns that are taken from the input, in
    the table's types. `ordering_fields` must not be null. `batch_bytes`: input that is gathered before it is split, so
    that pieces are large. `together`: rows of all partitions stay together, in the input's order, with their partition
    path as a column."""

    keys: KeyGenerator
    data_schema: pa.Schema
    ordering_fields: tuple[str, ...]
    route: KeyRoute
    key_only: bool
    batch_bytes: int
    together: bool = False

    def __call__(self, source: int, batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
        """UsageError: a row without key or ordering value, or a value that does not fit its column."""
        needed = frozenset(self.data_schema.names)
        for number, table in enumerate(_gathered(batches, self.batch_bytes)):
            names = [n for n in table.column_names if n in needed] if self.key_only else None
            rows = to_file_schema(table if names is None else table.select(names), self.data_schema)
            self._check_ordering(rows)
            keys = self.keys.keys(rows)
            paths = pc.dictionary_encode(self.keys.partition_paths(rows))
            codes = self.route(keys, source)
            keyed = pa.table({RECORD_KEY: keys}) if self.key_only else rows.add_column(0, RECORD_KEY, keys)
            if self.together:
                partitions, keyed = [""], keyed.append_column(PARTITION_PATH, paths.dictionary_decode())
            else:
                partitions = paths.dictionary.to_pylist()
                codes = codes + np.asarray(paths.indices).astype(np.int64) * self.route.targets
            for code, part in split(keyed, codes):
                path, target = divmod(code, self.route.targets)
                yield piece_of(part, partition=partitions[path], target=str(target), source=source, number=number)

    def _check_ordering(self, rows: pa.Table) -> None:
        for name in () if self.key_only else self.ordering_fields:
            nulls = rows.column(name).null_count
            if nulls:
                raise UsageError(
                    "rows without an ordering value",
                    expected=f"no null in {name}",
                    found=f"{nulls} of {rows.num_rows} rows",
                    todo="Fill the column, or leave these rows out: Hudi 0.15 rejects them as well.",
                )


def _gathered(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            held_bytes += batch.nbytes
        if held_bytes >= size:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)
