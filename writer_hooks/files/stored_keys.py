"""The record keys of stored rows, and the changes of keys that a staged file reports to the record index.

The keys come from the meta column or, with virtual keys, from the key fields. A file reports the keys that its file
group gets, and those that it loses:

    new base file                   all keys are new
    rewritten base file             keys that the old file lacks are new; base rows that are deleted are lost
    log file of keys to delete      all are lost
    replaced file group             all keys that are alive in it are lost (`index.lookup_step.replaced_keys`)
    log file of rows                none, unless the logs below delete: then all keys are reported, since any may
                                    exist again. So it is where a log may hold new keys (bucket index), and where keys
                                    move: a key that two partitions hold may leave the one that the index names

Reporting a key that is kept in its file group changes nothing. A key that moves is reported for its new file group, not
for its old one. The result of a row that is merged with a delete by ordering values is unknown without reading the
slice: then the write is marked `unknown`, and drops the index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from phantombase.timeline.codec.arrow_schema import project
from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.columns import Flags, Indices, flat
from phantombase.timeline.codec.conform import conform
from phantombase.timeline.codec.parquet_read import open_parquet, parquet_batches, readable
from phantombase.timeline.codec.row_hash import KeyLookup
from phantombase.timeline.codec.stored_names import SAME_NAMES, stored
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.merge.rule import MergeRule, SliceRules
from phantombase.timeline.merge.slice_log import may_delete, may_delete_by_value
from phantombase.timeline.merge.slice_stream import SliceStream
from phantombase.timeline.metadata_table.index_logs import cannot_hold
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.view.view import BaseFile, FileSlice

NOT_NOTED = "there was no index over all partitions when the write began"
"""Hudi may have built an index since then, without this write, which was pending."""


class KeyNotes:
    """The notes of one file. `unknown`: why they are not complete; empty: they are."""

    def __init__(self) -> None:
        self.added: list[pa.Array] = []
        self.deleted: list[pa.Array] = []
        self.unknown = ""

    def __bool__(self) -> bool:
        return bool(self.added or self.deleted)

    def check(self) -> None:
        """Marks the notes as not complete if they have a key that the index cannot hold."""
        for keys in (*self.added, *self.deleted):
            self.unknown = cannot_hold(keys) or self.unknown


def compares(rule: MergeRule) -> bool:
    """Whether a delete may win or lose by its ordering value."""
    return rule.mode is not MergeMode.COMMIT_TIME and bool(rule.ordering_types)


class LogNotes:
    """Notes for a log file, part by part. `slice_`: what a reader merges with it. `every`: all rows are recorded."""

    def __init__(
        self, notes: KeyNotes, storage: Storage, rule: MergeRule, slice_: FileSlice | None, *, every: bool
    ) -> None:
        self._notes, self._rule = notes, rule
        self._revives = every or slice_ is None or may_delete(storage, rule.marker, slice_)
        if (
            slice_ is not None
            and self._revives
            and compares(rule)
            and may_delete_by_value(storage, rule.marker, slice_)
        ):
            self._vague = "rows are merged by their ordering values with deletes"
        else:
            self._vague = ""

    def rows(self, keys: pa.Array) -> None:
        if self._revives and len(keys):
            self._notes.unknown = self._notes.unknown or self._vague
            self._notes.added.append(keys)

    def deletes(self, keys: pa.Array, *, by_value: bool) -> None:
        """These keys are deleted. `by_value`: by an ordering value, so that a row may win against it."""
        if len(keys):
            if by_value and compares(self._rule):
                self._notes.unknown = "rows that are marked deleted are merged by their ordering values"
            self._notes.deleted.append(keys)


KEY_FIELD = pa.field(RECORD_KEY, pa.string())
"""The column of keys in tables that are passed between steps, also where the table has no such column."""


def base_keys(
    source: pa.NativeFile, file: pq.ParquetFile, path: str, rules: SliceRules, batch_rows: int | None = None
) -> Iterator[pa.Array]:
    """The keys of an opened base file, by batches. MalformedError: the file lacks a column of the keys."""
    names = rules.keys.fields
    there = stored(names, SAME_NAMES, file.schema_arrow.names)
    if len(there) < len(names):
        expected, found = ", ".join(names), ", ".join(there) or "none of them"
        raise MalformedError("base file without record keys", path=path, expected=expected, found=found)
    schema = project(rules.schema, names)
    for batch in parquet_batches(source, file, there, batch_rows or rules.batch_rows):
        yield rules.keys.keys(conform(pa.Table.from_batches([batch]), schema, path), path)


def rows_of_keys(storage: Storage, file: BaseFile, rules: SliceRules, keys: pa.Array) -> tuple[Indices, Indices]:
    """The rows of a base file that have one of these keys: the number of the key, and of the row, ascending."""
    lookup, start = KeyLookup(keys), 0
    numbers, rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    with storage.open_input(file.path, whole=False) as source, readable("base file", file.path):
        for held in base_keys(source, open_parquet(source), file.path, rules):
            at = lookup.find(held)
            hit = np.flatnonzero(at >= 0)
            numbers.append(at[hit])
            rows.append(hit + start)
            start += len(at)
    return np.concatenate(numbers), np.concatenate(rows)


def living_in(storage: Storage, slice_: FileSlice, rules: SliceRules, keys: pa.Array) -> Flags:
    """Which of the keys a snapshot reader finds in a slice."""
    alive, lookup = np.zeros(len(keys), np.bool_), KeyLookup(keys)
    for at in positions_in(storage, slice_, rules, lookup):
        alive[at[at >= 0]] = True
    return alive


def positions_in(
    storage: Storage, slice_: FileSlice, rules: SliceRules, lookup: KeyLookup
) -> Iterator[npt.NDArray[np.int64]]:
    """The positions in `lookup` of the keys that a snapshot reader finds in a slice; -1 for others."""
    for held in slice_keys(storage, slice_, rules):
        yield lookup.find(flat(held.column(RECORD_KEY)))


def slice_keys(
    storage: Storage, slice_: FileSlice, rules: SliceRules, columns: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """The keys that a snapshot reader finds in a slice, in a column `KEY_FIELD`, with `columns` after it."""
    for batch in SliceStream(storage, slice_, rules, (*rules.keys.fields, *columns)).batches():
        rows = pa.Table.from_batches([batch])
        keys = rules.keys.keys(rows, f"{slice_.partition}/{slice_.file_id}")
        yield rows.select(list(columns)).add_column(0, KEY_FIELD, keys)
