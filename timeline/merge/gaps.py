"""Rows that lack some of the table's columns (pure, vectorised).

    blocks of partial updates    the *shape* of a row says which columns it has: 0 for all of them, else the number of
                                 a set of columns; while log entries are folded, a column of their rows holds it
    values that mean "not given" (`Unset`) null, or a text; a base row lacks columns too: if it is newer than the logs,
                                 their merged row gives these

A key's log entries are merged in log order, each with the result of the entries before it:

    row, not older than that result           its columns replace those of the result
    row, older                                it gives only the columns that the result lacks
    delete that takes effect                  discards the result

So a column of the merged row comes from the last leading entry that has it; if none has it, from the first other one.
*Leading*: not older than any entry before it. *Counted*: after the last delete that took effect. Columns that no log
entry has are the base row's. Source: Hudi 1.2.0, partialMerge of DefaultSparkRecordMerger and
OverwriteWithLatestSparkRecordMerger, SparkRecordMergingUtils.mergePartialRecords; CommitTimePartialRecordMerger,
EventTimePartialRecordMerger and PartialUpdateHandler for values that mean "not given"; verified by runs of all. Its
readers fail where a key has no base row, and by commit time where the row follows a delete; there these rules hold too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.avro_schema import META_COLUMNS
from ..codec.columns import Flags, Indices, first_of, last_of, rows_at
from ..errors import MalformedError
from ..format.merge_settings import NotGiven

_NO_ENTRY = np.iinfo(np.int64).max
SHAPE = "shape of the row"
"""The column of a row's shape, int32."""


class Gaps(Protocol):
    """The columns that the rows of a slice's logs lack. `stamped`: the last row gives these, even if it is older."""

    @property
    def stamped(self) -> frozenset[str]: ...

    def held(self, out: pa.Schema) -> pa.Schema:
        """The schema of the rows while they are folded."""

    def present(self, rows: pa.Table, name: str) -> Flags:
        """Which of the rows have a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unset:
    """Values that mean "not given"."""

    values: NotGiven

    @property
    def among_logs(self) -> Unset | None:
        """The rule among log rows; None: they give each other no columns."""
        return self if self.values.among_logs else None

    @property
    def stamped(self) -> frozenset[str]:
        return frozenset(META_COLUMNS) if self.values.stamps else frozenset()

    def held(self, out: pa.Schema) -> pa.Schema:
        return out

    def lacking(self, rows: pa.Table) -> Lacking:
        """The columns that winning rows lack, where log rows were not merged with each other."""
        columns = {name: ~self.present(rows, name) for name in rows.column_names}
        return Lacking(columns={name: lacks for name, lacks in columns.items() if lacks.any()}, schema=rows.schema)

    def present(self, rows: pa.Table, name: str) -> Flags:
        values, text = rows.column(name), self.values.text
        if text is None:
            has = values.is_valid()
        elif values.type == pa.string():
            has = pc.fill_null(pc.not_equal(values, text), True)
        elif values.type == pa.binary() and self.values.in_bytes:
            has = pc.fill_null(pc.not_equal(values, text.encode()), True)
        else:
            return np.ones(rows.num_rows, np.bool_)
        return np.asarray(has.to_numpy(), np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The shapes of the rows of one slice's logs; shape n has the columns `shapes[n - 1]`."""

    shapes: tuple[frozenset[str], ...]
    stamped = frozenset[str]()

    def held(self, out: pa.Schema) -> pa.Schema:
        return pa.schema([*(field.with_nullable(True) for field in out), pa.field(SHAPE, pa.int32())])

    def shape_of(self, columns: frozenset[str] | None) -> int:
        """The shape of the rows of a block; None: they have all columns."""
        return 0 if columns is None else 1 + self.shapes.index(columns)

    def present(self, rows: pa.Table, name: str) -> Flags:
        has = np.array([True, *(name in columns for columns in self.shapes)])
        return np.asarray(has[np.asarray(rows.column(SHAPE))], np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """For each entry: the number of its key, whether it is counted and whether it is leading (see the module)."""

    codes: Indices
    counted: Flags
    leading: Flags


def trace(codes: Indices, is_row: Flags, alive: Flags, order: Indices, keys: int) -> Trace:
    """Which entries may give columns to the merged row of their key.
    `alive`: not discarded by a delete without an ordering value. `order`: ranks of the ordering values."""
    by_key = np.flatnonzero(alive)
    by_key = by_key[np.argsort(codes[by_key], kind="stable")]
    code, row = codes[by_key], is_row[by_key]
    rank = np.unique(order[by_key], return_inverse=True)[1].astype(np.int64)
    place = code * (int(rank.max(initial=0)) + 1) + rank
    leads = place >= np.maximum.accumulate(place)
    at = np.arange(len(by_key), dtype=np.int64)
    deleted = last_of(code[leads & ~row], at[leads & ~row], keys)
    starts = leads & row & (at > deleted[code])
    start = first_of(code[starts], at[starts], keys, none=len(by_key))
    counted, leading = np.zeros(len(codes), np.bool_), np.zeros(len(codes), np.bool_)
    counted[by_key] = row & (at >= start[code])
    leading[by_key] = leads
    return Trace(codes=codes, counted=counted, leading=leading)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """Which columns winning rows lack after the merge of the logs: a flag for each row. `schema`: of complete rows."""

    columns: Mapping[str, Flags]
    schema: pa.Schema

    def completed(self, rows: pa.Table, row: Indices, base: pa.Table, hit: Indices) -> pa.Table:
        """The winners numbered `row`; the columns that they lack come from the base rows numbered `hit`."""
        # Only the rows of these numbers: a `take` from several arrays copies all of them first.
        won, below = rows_at(rows.select(base.column_names), row), rows_at(base, hit)
        own, columns = np.arange(len(row)), []
        for name in base.column_names:
            lacks = self.columns.get(name)
            columns.append(
                won.column(name)
                if lacks is None
                else _either(won.column(name), below.column(name), np.where(lacks[row], len(row) + own, own))
            )
        return _required(pa.Table.from_arrays(columns, schema=base.schema))

    def late(self, unset: Unset, rows: pa.Table, row: Indices, base: pa.Table, hit: Indices) -> tuple[pa.Table, Flags]:
        """The base rows numbered `hit`; the columns that they lack come from the older winners numbered `row`.
        The flags: the base rows that the winners changed."""
        own, columns, changed = np.arange(len(hit)), [], np.zeros(len(hit), np.bool_)
        base, won = rows_at(base, hit), rows_at(rows.select(base.column_names), row)
        for name in base.column_names:
            given = ~unset.present(base, name) | (name in unset.stamped)
            if name in self.columns:
                given &= ~self.columns[name][row]
            if given.any():
                columns.append(_either(base.column(name), won.column(name), np.where(given, len(hit) + own, own)))
                changed |= given
            else:
                columns.append(base.column(name))
        return pa.Table.from_arrays(columns, schema=base.schema), changed

    def inserted(self, rows: pa.Table) -> pa.Table:
        """Winners without a base row: columns they lack are null (Hudi fails). MalformedError: a required column."""
        return _required(pa.Table.from_arrays(rows.columns, schema=self.schema))


def _either(first: pa.ChunkedArray, second: pa.ChunkedArray, numbers: Indices) -> pa.ChunkedArray:
    """Values of both columns by number, those of `second` after those of `first`, in the type of `first`."""
    return _taken(pa.chunked_array([*first.chunks, *second.chunks], first.type), numbers)


def _taken(column: pa.ChunkedArray, numbers: Indices) -> pa.ChunkedArray:
    return rows_at(pa.table({"": column}), numbers).column(0)


def _required(rows: pa.Table) -> pa.Table:
    """The rows, checked: while rows may lack columns, no column is required."""
    for field in rows.schema:
        if not field.nullable and rows.column(field.name).null_count:
            what = "rows put together from partial updates lack a required column"
            found = f"{rows.column(field.name).null_count} rows without it"
            raise MalformedError(what, expected=str(field), found=found, todo="Compact the table with Hudi.")
    return rows


def filled(
    gaps: Gaps, out: pa.Schema, rows: pa.Table, numbers: Indices, found: Trace, best: Indices, wanted: Indices
) -> tuple[pa.Table, Lacking]:
    """The merged rows of the `wanted` keys, and the columns that they still lack.
    `numbers`: for each entry the number of its row in `rows`. `best`: for each key its winning entry."""
    entries, keys = np.flatnonzero(found.counted), len(best)
    code, leads = found.codes[entries], found.leading[entries]
    chosen = best[wanted]
    columns, lacking = [], {}
    for name in out.names:
        has = gaps.present(rows, name)[numbers[entries]]
        leading = leads | (name in gaps.stamped)
        first = first_of(code[has], entries[has], keys, none=_NO_ENTRY)
        last = last_of(code[has & leading], entries[has & leading], keys)
        source = np.where(last >= 0, last, first)
        lacks = source[wanted] == _NO_ENTRY
        columns.append(_taken(rows.column(name), numbers[np.where(lacks, chosen, source[wanted])]))
        if lacks.any():
            lacking[name] = lacks
    nullable = pa.schema([field.with_nullable(True) for field in out])
    return pa.Table.from_arrays(columns, schema=nullable), Lacking(columns=lacking, schema=out)
