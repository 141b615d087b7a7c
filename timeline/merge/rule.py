"""How a table merges: its rule, all settings of a slice's merge, and batches with the values that it needs; the filter
of a read (`Where`), and the rows that it excludes before rows are merged (pure).

    row groups      of a slice without log entries: only those that can hold a matching row are read
    keys            a matching row must have one of these record keys: log entries and base rows of other keys are not
                    merged at all, which is safe since keys are merged independently of each other
    base file       with log entries, not read if none of its rows can match and no winner of the logs matches

All other rows must be merged: a base row that does not match may still be newer than a log entry that matches, and the
first of two base rows of one key shields the second from the logs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..codec.avro_schema import RECORD_KEY
from ..codec.columns import MANY_BYTES, Flags, Hashes, Indices, Ordering, cuts, flat, row_bytes, rows_at
from ..codec.conform import NO_DEFAULTS, Defaults
from ..codec.stored_names import Names, StoredNames
from ..filter.possible import group_bounds, matching, may_match
from ..filter.tree import Filter, In, columns_of
from ..format.ledger import Expiry
from ..format.log_block import Visibility
from ..format.log_deletes import Deletes
from ..format.merge_settings import DeleteMarker, MergeMode
from ..format.record_key import KeySource
from .gaps import Unset

IS_DELETED = "_hoodie_is_deleted"
_FEW_TIMES, _FEW_BYTES = 4, 64 << 20
"""Limits for using all new values without a copy: values for each replaced row, and bytes."""
_RARE = 2_000
"""A batch with at least this number of rows for each change is copied in runs between the changes: this takes less than
half the time of a `take`, which visits each row."""
HUDI_0X = frozenset({MergeMode.OVERWRITE_WITH_LATEST_0X, MergeMode.EVENT_TIME_0X, MergeMode.EVENT_TIME_AVRO_0X})


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRule:
    """How a table merges. `ordering_types`: the types of the ordering columns, empty for commit time.
    `unset`: the values that mean "not given". `deletes_win`: see `MergeSettings`. `marker`: marks rows that delete, in
    addition to `_hoodie_is_deleted`. `of_batch`: the entries are rows that are written, not entries of log files."""

    mode: MergeMode
    ordering_types: tuple[pa.DataType, ...]
    of_batch: bool = False
    every_duplicate: bool = False
    deletes_win: bool = False
    unset: Unset | None = None
    marker: DeleteMarker | None = None

    @property
    def gaps(self) -> Unset | None:
        """The rule for columns that log rows lack; None: they give each other none."""
        return None if self.unset is None else self.unset.among_logs

    @property
    def deleting_columns(self) -> tuple[str, ...]:
        """The columns that mark rows that delete; the table may lack them."""
        return (IS_DELETED,) if self.marker is None else (IS_DELETED, self.marker.field)

    @property
    def orders_by_text(self) -> bool:
        """Whether an ordering column is text. Then log blocks must be Avro.
        In a Parquet log block Hudi 1.2.0 compares each row by the text of the block's last row, when it reads and when
        it compacts, also in blocks of its own. (Seen: `tests/hudi/effects`, `ordering-of-text`.)"""
        return any(map(pa.types.is_string, self.ordering_types))

    def deleted(self, rows: pa.Table) -> Flags | None:
        """The rows that delete, None if they have no column that marks them."""
        found = None
        if IS_DELETED in rows.schema.names:
            found = np.asarray(pc.fill_null(rows.column(IS_DELETED), False).to_numpy(), np.bool_)
        if self.marker is not None and self.marker.field in rows.schema.names:
            values, text = rows.column(self.marker.field), self.marker.value
            if self.marker.any_case:
                values, text = pc.utf8_lower(values), text.lower()
            marked = pc.fill_null(pc.equal(values, text), False)
            found = np.asarray(marked.to_numpy(), np.bool_) | (False if found is None else found)
        return found

    def comparable(self, values: pa.Array) -> pa.Array:
        """Hudi 1.x treats a missing ordering value as Integer 0, which is comparable only with an int column."""
        if self.mode is MergeMode.EVENT_TIME and values.type == pa.int32() and values.null_count:
            return pc.fill_null(values, 0)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """A batch of rows with the values that a merge needs: keys, ordering values, rows marked deleted."""

    rows: pa.Table
    keys: pa.Array
    ordering: Ordering
    deleted: Flags | None = None

    @staticmethod
    def of(
        rows: pa.Table, keys: pa.Array, ordering_fields: Sequence[str], kept: Sequence[str], rule: MergeRule
    ) -> Keyed:
        """A batch with the keys of its rows. `kept`: the columns to keep, as far as the batch has them."""
        there = frozenset(rows.column_names)  # a property that builds a list at each call
        return Keyed(
            rows=rows.select([name for name in kept if name in there]),
            keys=keys,
            ordering=tuple(flat(rows.column(name)) for name in ordering_fields),
            deleted=rule.deleted(rows),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the log changes in one batch of the base file.
    `replaced`, `deleted`: row numbers in the batch. `row`: for each replaced row, the number of its new row in
    `values`. `hashes`: identity of the new rows, empty if the merge keeps no identity."""

    replaced: Indices
    deleted: Indices
    values: pa.Table
    row: Indices
    hashes: Hashes

    def apply(self, rows: pa.Table) -> pa.Table:
        """The batch after the changes, in the same order."""
        return pa.concat_tables(self.pieces(rows))

    def pieces(self, rows: pa.Table) -> Iterator[pa.Table]:
        """The batch after the changes, in several parts if its new rows are too large for one table."""
        if not len(self.row) or self.values.nbytes * len(self.row) < MANY_BYTES * self.values.num_rows:
            yield self._applied(rows)
            return
        order = np.argsort(self.replaced)
        replaced, row, start = self.replaced[order], self.row[order], 0
        for last in (*cuts(row_bytes(self.values)[row]).tolist(), len(replaced)):
            end = int(replaced[last]) if last < len(replaced) else rows.num_rows
            low, high = np.searchsorted(replaced, [start, end])
            part = replace(
                self,
                replaced=replaced[low:high] - start,
                deleted=self.deleted[(self.deleted >= start) & (self.deleted < end)] - start,
                values=rows_at(self.values, row[low:high]),
                row=np.arange(high - low, dtype=np.int64),
            )
            yield part._applied(rows.slice(start, end - start))
            start = end

    def _applied(self, rows: pa.Table) -> pa.Table:
        if not len(self.replaced) and not len(self.deleted):
            return rows
        new, row = self._new_rows()
        if (len(self.replaced) + len(self.deleted)) * _RARE <= rows.num_rows:
            return self._in_runs(rows, new, row)
        source = np.arange(rows.num_rows, dtype=np.int64)
        source[self.replaced] = rows.num_rows + row
        alive = np.ones(rows.num_rows, np.bool_)
        alive[self.deleted] = False
        return pa.concat_tables([rows, new]).take(pa.array(source[alive]))

    def _in_runs(self, rows: pa.Table, new: pa.Table, row: Indices) -> pa.Table:
        """The batch after the changes, concatenated from slices: the loop is over the changes."""
        at = np.append(self.replaced, self.deleted)
        parts, start = [], 0
        for change in np.argsort(at).tolist():
            place = int(at[change])
            parts.append(rows.slice(start, place - start))
            if change < len(self.replaced):
                parts.append(new.slice(int(row[change]), 1))
            start = place + 1
        return pa.concat_tables([*parts, rows.slice(start)]).combine_chunks()

    def _new_rows(self) -> tuple[pa.Table, Indices]:
        """A table with the new rows of this batch, and the number of each row in it.
        A `take` from several tables copies all of them first. So the table has all values only if that is cheaper than
        selecting the rows of this batch first."""
        values = self.values
        if values.num_rows <= _FEW_TIMES * len(self.row) and values.nbytes <= _FEW_BYTES:
            return values, self.row
        return values.take(pa.array(self.row)), np.arange(len(self.row), dtype=np.int64)


NO_HASHES: Hashes = np.zeros(0, np.uint64)
"""For merges that keep no identity."""

NO_CHANGES = Changes(
    replaced=np.zeros(0, np.int64),
    deleted=np.zeros(0, np.int64),
    values=pa.table({}),
    row=np.zeros(0, np.int64),
    hashes=NO_HASHES,
)
"""No change to a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRules:
    """All settings of the table and the reader that the merge of a slice depends on. Picklable. `schema`: the table's,
    meta columns included. `batch_rows`: rows of a base batch. `memory_bytes`: memory for merging one slice; None: all
    entries are held in memory. `spill_folder`: for the other entries; None: the system's folder for temporary files.
    `identity`: keep the identity sums too. `names`: of the columns in older files. `defaults`: of columns that files
    lack. `expiry`: which merged rows a compaction leaves out."""

    schema: pa.Schema
    keys: KeySource
    ordering_fields: tuple[str, ...]
    merge: MergeRule
    visibility: Visibility
    float_text_in_logs: bool
    batch_rows: int = 65_536
    memory_bytes: int | None = None
    spill_folder: str | None = None
    identity: bool = False
    names: StoredNames = StoredNames()
    defaults: Defaults = NO_DEFAULTS
    expiry: Expiry | None = None

    @property
    def fold_bytes(self) -> float:
        """Bytes of log entries in memory: finding winners needs as much again, and rows are kept for the base file."""
        return math.inf if self.memory_bytes is None else self.memory_bytes / 4

    @property
    def part_bytes(self) -> int | None:
        """Encoded bytes of a log block to decode at a time."""
        return None if self.memory_bytes is None else max(1, self.memory_bytes // 16)

    def keyed(self, rows: pa.Table, names: Sequence[str], where: str) -> Keyed:
        """A batch of rows with the values that a merge needs; only the named columns are kept."""
        return Keyed.of(rows, self.keys.keys(rows, where), self.ordering_fields, names, self.merge)


_DAY_MS = 86_400_000
_ANYWHERE_MS = _DAY_MS // 2
"""How much later a date, or a time without a zone, is in the last zone than in UTC."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def can_expire(kind: pa.DataType) -> bool:
    """Whether values of a type say how old a row is."""
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def expired(rows: pa.Table, expiry: Expiry) -> pa.ChunkedArray:
    """Which rows are past their time: a moment before the bound; a date, or a time without a zone, that is over in all
    zones. Null never is."""
    column = rows.column(expiry.column)
    if pa.types.is_date32(column.type):
        numbers, bound = column.cast(pa.int32()).cast(pa.int64()), (expiry.before_ms - _ANYWHERE_MS) // _DAY_MS
    else:
        before_ms = expiry.before_ms - (0 if column.type.tz else _ANYWHERE_MS)
        numbers, bound = column.cast(pa.int64()), -(-before_ms * _PER_SECOND[column.type.unit] // 1000)
    return pc.fill_null(pc.less(numbers, pa.scalar(max(-(1 << 63), min(bound, (1 << 63) - 1)), pa.int64())), False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A filter bound to the table's `schema`. `keys`: the record keys that matching rows have, None if unknown."""

    filter: Filter
    schema: pa.Schema
    keys: tuple[str, ...] | None = None

    @property
    def columns(self) -> frozenset[str]:
        return columns_of(self.filter)

    def rows(self, rows: pa.Table) -> pa.Table:
        return matching(self.filter, rows)

    def row_groups(self, file: pq.ParquetFile, names: Names) -> list[int]:
        """The row groups of a base file that can hold a matching row. `names`: of the columns in the file."""
        return self._groups(file, self.filter, names)

    def merged_row_groups(self, file: pq.ParquetFile, names: Names) -> list[int] | None:
        """The row groups that a merge with log entries needs, None for all."""
        if self.keys is None or RECORD_KEY not in self.schema.names:
            return None
        return self._groups(file, In(RECORD_KEY, tuple(pa.scalar(key) for key in self.keys)), names)

    def _groups(self, file: pq.ParquetFile, wanted: Filter, names: Names) -> list[int]:
        groups = range(file.metadata.num_row_groups)
        return [group for group in groups if may_match(wanted, group_bounds(file, group, self.schema, names))]

    def keyed(self, batch: Keyed) -> Keyed:
        """The rows of the wanted keys."""
        if self.keys is None:
            return batch
        at = self._at(batch.keys)
        return Keyed(
            rows=batch.rows.take(at),
            keys=batch.keys.take(at),
            ordering=tuple(values.take(at) for values in batch.ordering),
            deleted=None if batch.deleted is None else batch.deleted[np.asarray(at)],
        )

    def deletes(self, deletes: Deletes) -> Deletes:
        """The entries of the wanted keys."""
        if self.keys is None:
            return deletes
        at = self._at(deletes.keys)
        return replace(
            deletes,
            keys=deletes.keys.take(at),
            ordering=tuple(values.take(at) for values in deletes.ordering),
            natural=deletes.natural.take(at),
        )

    def _at(self, keys: pa.Array) -> pa.Array:
        wanted: Sequence[str] = self.keys or ()
        return pa.array(np.flatnonzero(pc.is_in(keys, value_set=pa.array(wanted, keys.type))))
