"""The merge of one file slice: a base file's rows and what its log files say about them (pure, vectorised).

`LogFold` takes log entries in order and settles per key who wins among them; `SliceMerge` then streams the base
through: rows keep their order, replaced ones get the log's values, deleted ones fall out, and winners whose key
the base does not hold come last.

    winner against base row        OVERWRITE_0X, COMMIT_TIME   always the log
                                   EVENT_TIME (1.x)            natural delete, or ordering value >= the base row's
                                   EVENT_TIME_0X               delete block, or ordering value >= the base row's
                                   (a null ordering value in the base always loses)

Rows with a duplicate key in one base file: Hudi 1.x and every 0.15 reader change the first only, a 0.15
compaction changes them all (`every_duplicate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timeline import ordering
from timeline.delete_block import Deletes
from timeline.errors import MalformedError
from timeline.fold import EntryKind, winners
from timeline.key_lookup import KeyLookup
from timeline.ledger import Ledger
from timeline.ordering import Ordering, at_least, ranks, same_class
from timeline.table_config import MergeMode

T = TypeVar("T", bound=np.generic)

IS_DELETED = "_hoodie_is_deleted"
HUDI_0X = frozenset({MergeMode.OVERWRITE_WITH_LATEST_0X, MergeMode.EVENT_TIME_0X})

Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRule:
    """How a table merges. `ordering_types`: the types of the ordering columns, none for commit time."""

    mode: MergeMode
    ordering_types: tuple[pa.DataType, ...]
    every_duplicate: bool = False

    def comparable(self, values: pa.Array) -> pa.Array:
        """Hudi 1.x takes a missing ordering value for Integer 0, which only an int column can be compared with."""
        if self.mode is MergeMode.EVENT_TIME and values.type == pa.int32() and values.null_count:
            return pc.fill_null(values, 0)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """A batch of rows with what merging needs of them: keys, ordering values, rows marked deleted."""

    rows: pa.Table
    keys: pa.Array
    ordering: Ordering
    deleted: Flags | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Winners:
    """The winning log entry of each of K distinct keys, in order of the keys' first appearance.

    `row`: index into `rows`, -1 for deletes. `entries`: R, all entries folded.
    """

    keys: pa.Array
    kinds: npt.NDArray[np.uint8]
    natural: Flags
    ordering: Ordering
    row: npt.NDArray[np.int64]
    rows: pa.Table
    entries: int

    @property
    def is_update(self) -> Flags:
        """Keys whose winner is a row that lives."""
        return np.asarray(self.kinds == EntryKind.ROW)


class LogFold:
    """Collects a slice's log entries, oldest first."""

    def __init__(self, rule: MergeRule, schema: pa.Schema) -> None:
        self._rule = rule
        self._schema = schema
        self._keys: list[pa.Array] = []
        self._kinds: list[npt.NDArray[np.uint8]] = []
        self._natural: list[Flags] = []
        self._ordering: list[Ordering] = []
        self._row: list[npt.NDArray[np.int64]] = []
        self._rows: list[pa.Table] = []
        self._row_count = 0

    def add_rows(self, batch: Keyed) -> None:
        """The rows of one data block."""
        count = batch.rows.num_rows
        kinds = np.full(count, EntryKind.ROW, np.uint8)
        natural = np.zeros(count, np.bool_)
        values = tuple(self._rule.comparable(a) for a in batch.ordering)
        if batch.deleted is not None and batch.deleted.any():
            kinds[batch.deleted] = EntryKind.DELETED_ROW
            natural = batch.deleted & self._is_integer_zero(values, count)
        self._add(batch.keys, kinds, natural, values, np.arange(self._row_count, self._row_count + count))
        self._rows.append(batch.rows)
        self._row_count += count

    def add_deletes(self, deletes: Deletes) -> None:
        """The entries of one delete block."""
        count = len(deletes.keys)
        natural = np.asarray(deletes.natural.to_numpy(zero_copy_only=False), np.bool_)
        types = self._rule.ordering_types
        if len(deletes.ordering) == len(types) and all(
            same_class(a.type, t, hudi_0x=self._rule.mode in HUDI_0X)
            for a, t in zip(deletes.ordering, types, strict=True)
        ):
            values = tuple(_cast(a, t) for a, t in zip(deletes.ordering, types, strict=True))
        else:
            # None given, or not comparable with the column: such a delete is taken whatever came before.
            natural = np.ones(count, np.bool_)
            values = tuple(pa.nulls(count, t) for t in types)
        kinds = np.full(count, EntryKind.DELETE, np.uint8)
        self._add(deletes.keys, kinds, natural, values, np.full(count, -1, np.int64))

    def _add(
        self,
        keys: pa.Array,
        kinds: npt.NDArray[np.uint8],
        natural: Flags,
        values: Ordering,
        row: npt.NDArray[np.int64],
    ) -> None:
        if keys.null_count:
            raise MalformedError("log entries without a record key", found=f"{keys.null_count} of {len(keys)}")
        self._keys.append(keys)
        self._kinds.append(kinds)
        self._natural.append(natural)
        self._ordering.append(values)
        self._row.append(row)

    def _is_integer_zero(self, values: Ordering, count: int) -> Flags:
        """Rows whose ordering value is Java's Integer 0: an int column's 0 or null, or no ordering at all."""
        types = self._rule.ordering_types
        if not types:
            return np.ones(count, np.bool_)
        if len(types) > 1:
            return np.zeros(count, np.bool_)
        zero = pc.equal(values[0], 0) if types[0] == pa.int32() else values[0].is_null()
        return np.asarray(pc.fill_null(zero, False).to_numpy(zero_copy_only=False), np.bool_)

    def finish(self) -> Winners:
        """Settles every key."""
        encoded = pa.chunked_array(self._keys, pa.string()).dictionary_encode()
        keys = encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], pa.string())
        codes = _concat([np.asarray(c.indices).astype(np.int64) for c in encoded.chunks], np.int64)
        kinds, natural = _concat(self._kinds, np.uint8), _concat(self._natural, np.bool_)
        values = tuple(
            ordering.concat([o[i] for o in self._ordering], kind) for i, kind in enumerate(self._rule.ordering_types)
        )
        mode = self._rule.mode
        order = ranks(values, len(codes), hudi_0x=mode in HUDI_0X) if mode is not MergeMode.COMMIT_TIME else codes
        best = winners(mode, codes, kinds, natural, order, len(keys))
        rows = pa.concat_tables(self._rows) if self._rows else self._schema.empty_table()
        row = _concat(self._row, np.int64)[best]
        won_kinds = kinds[best]
        row[won_kinds != EntryKind.ROW] = -1
        # Only winning rows stay in memory.
        live = row >= 0
        rows = rows.take(pa.array(row[live]))
        row[live] = np.arange(int(live.sum()))
        return Winners(
            keys=keys,
            kinds=won_kinds,
            natural=natural[best],
            ordering=tuple(v.take(pa.array(best)) for v in values),
            row=row,
            rows=rows,
            entries=len(codes),
        )


class SliceMerge:
    """Streams a base file through the winners and keeps the ledger's counts."""

    def __init__(self, rule: MergeRule, won: Winners) -> None:
        self._rule = rule
        self._won = won
        self._lookup = KeyLookup(won.keys)
        self._seen = np.zeros(len(won.keys), np.bool_)
        self._applied = np.zeros(len(won.keys), np.bool_)
        self._counts = dict.fromkeys(("base_rows", "untouched", "kept", "replaced", "deleted", "duplicate_hits"), 0)

    def untouched(self, rows: pa.Table) -> pa.Table:
        """One batch of the base file where there are no log entries at all."""
        self._count(rows.num_rows, 0, 0, 0)
        return rows

    def batch(self, base: Keyed) -> pa.Table:
        """One batch of the base file after the merge, in base order."""
        rows = base.rows.num_rows
        at = self._lookup.find(base.keys)
        hit = np.flatnonzero(at >= 0)
        hit = self._without_later_duplicates(hit, at)
        key = at[hit]
        self._seen[key] = True
        applied = self._log_wins(base, hit, key)
        hit, key = hit[applied], key[applied]
        updates = self._won.is_update[key]
        self._count(rows, int(applied.size), int(updates.sum()), int((~updates).sum()))
        return self._assemble(base.rows, hit, key, updates)

    def _without_later_duplicates(self, hit: npt.NDArray[np.int64], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Hits on a key met before in this base file are dropped, unless every duplicate is to be changed."""
        key = at[hit]
        first = np.zeros(len(hit), np.bool_)
        first[np.unique(key, return_index=True)[1]] = True
        first &= ~self._seen[key]
        if self._rule.every_duplicate:
            self._counts["duplicate_hits"] += int((~first).sum())
            return hit
        return hit[first]

    def _log_wins(self, base: Keyed, hit: npt.NDArray[np.int64], key: npt.NDArray[np.int64]) -> Flags:
        won, mode = self._won, self._rule.mode
        if mode in (MergeMode.COMMIT_TIME, MergeMode.OVERWRITE_WITH_LATEST_0X) or not won.ordering:
            return np.ones(len(hit), np.bool_)
        is_delete = won.kinds[key] == EntryKind.DELETE
        always = won.natural[key] if mode is MergeMode.EVENT_TIME else is_delete
        rows = pa.array(hit)
        right = tuple(self._rule.comparable(a.take(rows)) for a in base.ordering)
        left = tuple(a.take(pa.array(key)) for a in won.ordering)
        return always | at_least(left, right, len(hit))

    def _assemble(
        self, rows: pa.Table, hit: npt.NDArray[np.int64], key: npt.NDArray[np.int64], updates: Flags
    ) -> pa.Table:
        if not len(hit):
            return rows
        source = np.arange(rows.num_rows, dtype=np.int64)
        replaced = hit[updates]
        source[replaced] = rows.num_rows + np.arange(len(replaced))
        alive = np.ones(rows.num_rows, np.bool_)
        alive[hit[~updates]] = False
        if len(replaced):
            values = self._won.rows.take(pa.array(self._won.row[key[updates]]))
            rows = pa.concat_tables([rows, values]).combine_chunks()
        return rows.take(pa.array(source[alive]))

    def _count(self, rows: int, hits: int, replaced: int, deleted: int) -> None:
        counts = self._counts
        applied = replaced + deleted
        counts["base_rows"] += rows
        counts["replaced"] += replaced
        counts["deleted"] += deleted
        counts["kept"] += hits - applied
        counts["untouched"] += rows - hits

    def inserts(self) -> pa.Table:
        """The winning rows whose key no base row had, in order of first appearance. Call after the last batch."""
        missing = self._won.is_update & ~self._seen
        return self._won.rows.take(pa.array(self._won.row[missing]))

    def ledger(self, rows_out: int) -> Ledger:
        """The books of this merge (protocol: counts are rows, unless they say keys or entries)."""
        won, seen = self._won, self._seen
        update = won.is_update
        return Ledger(
            **self._counts,
            log_entries=won.entries,
            log_keys=len(won.keys),
            update_keys=int(update.sum()),
            update_keys_in_base=int((update & seen).sum()),
            delete_keys_in_base=int((~update & seen).sum()),
            inserts=int((update & ~seen).sum()),
            deletes_of_absent=int((~update & ~seen).sum()),
            rows_out=rows_out,
        )


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _concat(parts: Sequence[npt.NDArray[T]], kind: type[T]) -> npt.NDArray[T]:
    return np.concatenate(parts) if parts else np.zeros(0, kind)
