"""The log side of a merge: the entries of all blocks, and which of them wins for each key (pure, vectorised)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..codec import ordering
from ..codec.columns import Flags, Indices, rows_at
from ..codec.ordering import Ordering, ranks, same_class
from ..errors import MalformedError
from ..format.log_deletes import Deletes
from ..format.table_config import MergeMode
from .gaps import Gaps, Lacking, Trace, filled, trace
from .rule import HUDI_0X, Keyed, MergeRule
from .winner import EntryKind, after_effective, after_natural, winners

T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Log entries in order. `rows`: the rows of the entries of kind ROW, in this order."""

    keys: pa.Array
    kinds: npt.NDArray[np.uint8]
    natural: Flags
    ordering: Ordering
    rows: pa.Table

    @property
    def nbytes(self) -> int:
        arrays = self.keys.nbytes + sum(a.nbytes for a in self.ordering)
        return int(arrays + self.kinds.nbytes + self.natural.nbytes + self.rows.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """For each key, in order of first appearance (`first`, an index into the entries), the winning entry (`best`).
    `trace`: which entries give columns to the merged rows, if rows may lack some."""

    keys: pa.Array
    kinds: npt.NDArray[np.uint8]
    natural: Flags
    ordering: Ordering
    first: Indices
    best: Indices
    trace: Trace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Winners:
    """The winning log entry of each distinct key, in order of the keys' first appearance.
    `row`: index into `rows`, -1 for deletes. `entries`: number of all entries folded. `lacking`: the columns that rows
    lack, if the logs hold partial updates."""

    keys: pa.Array
    kinds: npt.NDArray[np.uint8]
    natural: Flags
    ordering: Ordering
    row: Indices
    rows: pa.Table
    entries: int
    lacking: Lacking | None = None

    @property
    def is_update(self) -> Flags:
        """Keys whose winner is a row that is not deleted."""
        return np.asarray(self.kinds == EntryKind.ROW)


class LogFold:
    """Collects a slice's log entries, oldest first, and holds them in memory until `drain` or `finish`.
    `gaps`: the columns that rows may lack, by default those of the rule."""

    def __init__(self, rule: MergeRule, schema: pa.Schema, gaps: Gaps | None = None) -> None:
        self._rule = rule
        self._gaps = gaps = gaps or rule.gaps
        self._out = schema
        self._schema = schema if gaps is None else gaps.held(schema)
        self._parts: list[Entries] = []
        self.nbytes = 0

    def add_rows(self, batch: Keyed) -> None:
        self._add(entries_of_rows(self._rule, batch))

    def add_deletes(self, deletes: Deletes) -> None:
        """Adds the entries of one delete block."""
        self._add(entries_of_deletes(self._rule, deletes, self._schema))

    def _add(self, entries: Entries) -> None:
        if entries.keys.null_count:
            found = f"{entries.keys.null_count} of {len(entries.keys)}"
            raise MalformedError("log entries without a record key", found=found)
        self._parts.append(entries)
        self.nbytes += entries.nbytes

    def drain(self) -> list[Entries]:
        """Returns what was collected since the last drain, and releases it."""
        parts, self._parts, self.nbytes = self._parts, [], 0
        return parts

    def finish(self) -> Winners:
        """Finds the winner of every key."""
        parts = self.drain()
        settled = settle(self._rule, parts, self._gaps)
        kinds = _concat([p.kinds for p in parts], np.uint8)
        rows = pa.concat_tables([p.rows for p in parts if p.rows.num_rows] or [self._schema.empty_table()])
        if self._gaps is not None:
            return won_partly(self._rule, self._gaps, settled, kinds, rows, self._out)
        wanted = row_numbers(kinds)[settled.best]
        live = settled.kinds == EntryKind.ROW
        row = _row_numbers_of(live)
        return won(self._rule, settled, row, _rows_at(rows, wanted[live]), len(kinds))


def _rows_at(rows: pa.Table, numbers: Indices) -> pa.Table:
    """The rows with these numbers, in one chunk: a later `take` would copy several chunks together first."""
    if len(numbers) == rows.num_rows and (numbers == np.arange(len(numbers))).all():
        return rows.combine_chunks()  # each key has one entry: no copy if the rows are of one block
    return rows_at(rows, numbers)  # only the winning rows are kept in memory


def won(rule: MergeRule, settled: Settled, row: Indices, rows: pa.Table, entries: int) -> Winners:
    """The winners with their rows."""
    return Winners(
        keys=settled.keys,
        kinds=settled.kinds,
        natural=settled.natural,
        ordering=settled.ordering,
        row=row,
        rows=rows,
        entries=entries,
        lacking=None if rule.unset is None else rule.unset.lacking(rows),
    )


def won_partly(
    rule: MergeRule, gaps: Gaps, settled: Settled, kinds: npt.NDArray[np.uint8], rows: pa.Table, out: pa.Schema
) -> Winners:
    """The winners where rows may lack columns. `rows`: the rows of all entries."""
    assert settled.trace is not None, "settled with gaps"
    live = settled.kinds == EntryKind.ROW
    row = _row_numbers_of(live)
    merged, lacking = filled(gaps, out, rows, row_numbers(kinds), settled.trace, settled.best, np.flatnonzero(live))
    return replace(won(rule, settled, row, merged, len(kinds)), lacking=lacking)


def _row_numbers_of(live: Flags) -> Indices:
    """The number of each key's row among the winners, -1 for deletes."""
    row = np.where(live, np.cumsum(live) - 1, -1)
    return np.asarray(row, np.int64)


def row_numbers(kinds: npt.NDArray[np.uint8]) -> Indices:
    """For each entry of kind ROW its number among those entries."""
    return np.asarray(np.cumsum(kinds == EntryKind.ROW) - 1, np.int64)


def entries_of_rows(rule: MergeRule, batch: Keyed) -> Entries:
    """The rows of a data block as log entries; rows marked deleted are dropped, their entries are kept."""
    count = batch.rows.num_rows
    kinds = np.full(count, EntryKind.ROW, np.uint8)
    natural = np.zeros(count, np.bool_)
    rows = batch.rows
    values = tuple(rule.comparable(a) for a in batch.ordering)
    if batch.deleted is not None and batch.deleted.any():
        kinds[batch.deleted] = EntryKind.DELETED_ROW
        natural = batch.deleted & _is_integer_zero(rule, values, count)
        rows = rows.filter(pa.array(~batch.deleted))
    return Entries(keys=batch.keys, kinds=kinds, natural=natural, ordering=values, rows=rows)


def entries_of_deletes(rule: MergeRule, deletes: Deletes, schema: pa.Schema) -> Entries:
    """A delete block as log entries."""
    count = len(deletes.keys)
    natural = np.asarray(deletes.natural.to_numpy(zero_copy_only=False), np.bool_)
    types = rule.ordering_types
    comparable = len(deletes.ordering) == len(types) and not rule.deletes_win
    if comparable and all(
        same_class(a.type, t, hudi_0x=rule.mode in HUDI_0X) for a, t in zip(deletes.ordering, types, strict=True)
    ):
        values = tuple(a.cast(t) for a, t in zip(deletes.ordering, types, strict=True))
    else:
        # No value, or not comparable with the column: such a delete wins over every earlier row.
        natural = np.ones(count, np.bool_)
        values = tuple(pa.nulls(count, t) for t in types)
    kinds = np.full(count, EntryKind.DELETE, np.uint8)
    return Entries(keys=deletes.keys, kinds=kinds, natural=natural, ordering=values, rows=schema.empty_table())


def _is_integer_zero(rule: MergeRule, values: Ordering, count: int) -> Flags:
    """Rows whose ordering value is Java's Integer 0: an int column's 0 or null, or no ordering column at all."""
    types = rule.ordering_types
    if not types:
        return np.ones(count, np.bool_)
    if len(types) > 1:
        return np.zeros(count, np.bool_)
    zero = pc.equal(values[0], 0) if types[0] == pa.int32() else values[0].is_null()
    return np.asarray(pc.fill_null(zero, False).to_numpy(zero_copy_only=False), np.bool_)


def settle(rule: MergeRule, parts: Sequence[Entries], gaps: Gaps | None = None) -> Settled:
    """The winner of each key among the entries of all parts, in order. Does not read the rows."""
    encoded = pa.chunked_array([p.keys for p in parts], pa.string()).dictionary_encode()
    keys = encoded.chunk(0).dictionary if encoded.num_chunks else pa.array([], pa.string())
    codes = _concat([np.asarray(c.indices).astype(np.int64) for c in encoded.chunks], np.int64)
    kinds, natural = _concat([p.kinds for p in parts], np.uint8), _concat([p.natural for p in parts], np.bool_)
    values = tuple(ordering.concat([p.ordering[i] for p in parts], kind) for i, kind in enumerate(rule.ordering_types))
    mode = rule.mode
    order = ranks(values, len(codes), hudi_0x=mode in HUDI_0X) if mode is not MergeMode.COMMIT_TIME else codes
    best = winners(mode, codes, kinds, natural, order, len(keys))
    first = np.zeros(len(keys), np.int64)
    first[codes[::-1]] = np.arange(len(codes), dtype=np.int64)[::-1]
    return Settled(
        keys=keys,
        kinds=kinds[best],
        natural=natural[best],
        ordering=tuple(v.take(pa.array(best)) for v in values),
        first=first,
        best=best,
        trace=None if gaps is None else _trace(mode, codes, kinds, natural, order, len(keys)),
    )


def _trace(
    mode: MergeMode, codes: Indices, kinds: npt.NDArray[np.uint8], natural: Flags, order: Indices, keys: int
) -> Trace:
    is_row = np.asarray(kinds == EntryKind.ROW)
    if mode is MergeMode.COMMIT_TIME:
        return trace(codes, is_row, np.ones(len(codes), np.bool_), np.zeros(len(codes), np.int64), keys)
    if mode in HUDI_0X:
        return trace(codes, is_row, after_effective(codes, kinds, natural, order, keys)[0], order, keys)
    return trace(codes, is_row, after_natural(codes, kinds, natural, keys)[0], order, keys)


def _concat(parts: Sequence[npt.NDArray[T]], kind: type[T]) -> npt.NDArray[T]:
    return np.concatenate(parts) if parts else np.zeros(0, kind)
