"""The log side of a merge: the entries of all blocks, and which of them wins for each key (pure, vectorised).

Entries come in log order. An entry is a row, a row marked deleted (`_hoodie_is_deleted`), or an entry of a delete
block. A *natural* delete carries the Integer 0 that stands for "no ordering value".

    COMMIT_TIME     the last entry
    EVENT_TIME      (Hudi 1.x) a natural delete beats all earlier entries and loses to any later row; a delete-block
                    entry right after it changes nothing; otherwise the greatest ordering value, ties to the later
    *_0X            (Hudi 0.15, both payloads) a delete-block entry takes effect if it is natural, or if no row
                    since the last effective delete has a greater ordering value; any row after an effective
                    delete beats it; among rows the greatest ordering value wins, ties to the later

Sources: Hudi 1.2.0 EventTimeRecordMerger / deltaMergeDeleteRecord; Hudi 0.15.0 HoodieMergedLogRecordScanner and
preCombine of both payload classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.columns import Flags, Indices, Ordering, concat, first_of, last_of, ranks, rows_at, same_class
from ..errors import MalformedError
from ..format.log_deletes import Deletes
from ..format.table_config import MergeMode
from .gaps import Gaps, Lacking, Trace, filled, trace
from .rule import HUDI_0X, Keyed, MergeRule

Ints: TypeAlias = npt.NDArray[np.int64]


class EntryKind(IntEnum):
    ROW = 0
    DELETED_ROW = 1
    DELETE = 2


def winners(mode: MergeMode, codes: Ints, kinds: npt.NDArray[np.uint8], natural: Flags, order: Ints, keys: int) -> Ints:
    """For each key 0..keys-1 the index of its winning entry.
    codes: key of each entry; order: rank of its ordering value (see `columns.ranks`). Every key has an entry."""
    positions = np.arange(len(codes), dtype=np.int64)
    if mode is MergeMode.COMMIT_TIME:
        return last_of(codes, positions, keys)
    resets = natural if mode is MergeMode.EVENT_TIME else kinds == EntryKind.DELETE
    if not resets.any():
        return _greatest(codes, order, positions, keys)
    if mode is MergeMode.EVENT_TIME:
        alive, reset = after_natural(codes, kinds, natural, keys)
    else:
        alive, reset = after_effective(codes, kinds, natural, order, keys)
    found = _greatest(codes[alive], order[alive], positions[alive], keys)
    return np.where(found >= 0, found, reset)


def _greatest(codes: Ints, order: Ints, positions: Ints, keys: int) -> Ints:
    """For each key the last of its positions with the greatest order, -1 if it has none."""
    top = np.full(keys, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(top, codes, order)
    best = order == top[codes]
    return last_of(codes[best], positions[best], keys)


def after_natural(codes: Ints, kinds: npt.NDArray[np.uint8], natural: Flags, keys: int) -> tuple[Flags, Ints]:
    """Which entries follow the last natural delete of their key, by the rule of EVENT_TIME; and that delete, or -1."""
    positions = np.arange(len(codes), dtype=np.int64)
    reset = last_of(codes[natural], positions[natural], keys)
    alive = positions > reset[codes]
    # After a natural delete, a delete-block entry counts only if there is a row in between.
    rows = alive & (kinds != EntryKind.DELETE)
    first_row = first_of(codes[rows], positions[rows], keys, none=len(codes))
    alive &= (reset[codes] < 0) | (positions >= first_row[codes])
    return alive, reset


def after_effective(
    codes: Ints, kinds: npt.NDArray[np.uint8], natural: Flags, order: Ints, keys: int
) -> tuple[Flags, Ints]:
    """Which entries are rows after the last effective delete of their key, by Hudi 0.15's rule; that delete, or -1."""
    positions = np.arange(len(codes), dtype=np.int64)
    is_delete = kinds == EntryKind.DELETE
    effective = is_delete & natural
    typed = is_delete & ~natural
    if typed.any():
        concerned = np.zeros(keys, np.bool_)
        concerned[codes[typed]] = True
        subset = positions[concerned[codes]]
        effective[subset] = _effective_deletes(codes[subset], is_delete[subset], effective[subset], order[subset])
    reset = last_of(codes[effective], positions[effective], keys)
    return (positions > reset[codes]) & ~is_delete, reset


def _effective_deletes(codes: Ints, is_delete: Flags, effective: Flags, order: Ints) -> Flags:
    """Which delete-block entries take effect. An entry's effect depends on the rows since the last effective delete, so
    the result is a least fixed point: it starts from the natural deletes, and each round can only add some. The number
    of rounds is the nesting depth of effective deletes in one key."""
    by_key = np.argsort(codes, kind="stable")
    code, delete, marked = codes[by_key], is_delete[by_key], effective[by_key].copy()
    rank = np.unique(order[by_key], return_inverse=True)[1].astype(np.int64) + 1
    span = int(rank.max()) + 1
    new_key = np.concatenate([[True], code[1:] != code[:-1]])
    while True:
        starts = new_key | np.concatenate([[False], marked[:-1]])
        segment = np.cumsum(starts)
        running = np.maximum.accumulate(segment * span + np.where(delete, 0, rank))
        before = np.concatenate([[0], running[:-1]]) - segment * span
        greatest_row = np.where(starts, 0, np.maximum(before, 0))  # 0: no row yet in this segment
        grown = marked | (delete & (rank >= greatest_row))
        if (grown == marked).all():
            result = np.empty_like(marked)
            result[by_key] = marked
            return result
        marked = grown


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
    values = tuple(concat([p.ordering[i] for p in parts], kind) for i, kind in enumerate(rule.ordering_types))
    mode = rule.mode
    in_logs_0x = mode in HUDI_0X and not rule.of_batch
    order = ranks(values, len(codes), hudi_0x=in_logs_0x) if mode is not MergeMode.COMMIT_TIME else codes
    best = winners(mode, codes, kinds, natural, order, len(keys))
    return Settled(
        keys=keys,
        kinds=kinds[best],
        natural=natural[best],
        ordering=tuple(v.take(pa.array(best)) for v in values),
        first=first_of(codes, np.arange(len(codes), dtype=np.int64), len(keys), none=len(codes)),
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
