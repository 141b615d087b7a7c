"""The merge of a slice with spilled log entries: the same rows in the same order, in bounded memory.

pass p     find the winners of partition p, look up the base file's keys, write the changes to sorted runs
at last    stream the base file once, together with the runs of all partitions
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ..arrow.columns import Hashes, Indices
from ..arrow.rows_at import rows_at
from ..arrow.spill_file import POSITION, SortedRun, SpillFile, by_position
from .ledger import Ledger, total
from .rule import NO_HASHES, Changes, Keyed, MergeRule
from .slice_merge import SliceMerge
from .spill import LogSpill

_HASH = "__hash"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """The changes from one partition, by row number of the base file; inserts by the position of their first entry."""

    replaced: SortedRun
    deleted: SortedRun
    inserted: SortedRun


class SpilledMerge:
    """Like `SliceMerge`, in two steps: `decide` reads the base file's keys once for each partition."""

    def __init__(self, rule: MergeRule, spill: LogSpill, schema: pa.Schema, folder: str, *, hashed: bool) -> None:
        self._rule = rule
        self._spill = spill
        self._schema = schema
        self._folder = folder
        self._hashed = hashed
        self._runs: list[_Runs] = []
        self._ledgers: list[Ledger] = []
        self._base_rows = 0

    def decide(self, base: Callable[[], Iterable[Keyed]], insert_rows: int) -> None:
        """All passes. `base` returns the base file's batches, keys and ordering values, from the start at each call;
        `insert_rows`: rows of inserts to write at a time."""
        for number in range(len(self._spill)):
            won, first = self._spill.winners(number)
            merge = SliceMerge(self._rule, won, hashed=self._hashed)
            replaced, deleted, inserted = (
                self._file(f"{number}.{kind}") for kind in ("replaced", "deleted", "inserted")
            )
            start = 0
            for batch in base():
                changes = merge.changes(batch)
                replaced.append(
                    self._run(changes.replaced + start, rows_at(changes.values, changes.row), changes.hashes)
                )
                deleted.append(self._run(changes.deleted + start, None, NO_HASHES))
                start += len(batch.keys)
            keys, rows, hashes = merge.inserts()
            run = self._run(first[keys], rows, hashes)
            for low in range(0, run.num_rows, insert_rows):
                inserted.append(run.slice(low, insert_rows))
            self._ledgers.append(merge.ledger(0))
            self._runs.append(
                _Runs(replaced=SortedRun(replaced), deleted=SortedRun(deleted), inserted=SortedRun(inserted))
            )

    def _file(self, name: str) -> SpillFile:
        extra = [pa.field(POSITION, pa.int64()), pa.field(_HASH, pa.uint64())]
        fields = extra if name.endswith("deleted") else [*extra, *self._schema]
        return SpillFile(f"{self._folder}/{name}", pa.schema(fields))

    def _run(self, positions: Indices, rows: pa.Table | None, hashes: Hashes) -> pa.Table:
        hash_column = pa.array(hashes) if len(hashes) else pa.nulls(len(positions), pa.uint64())
        extra = pa.table({POSITION: pa.array(positions, pa.int64()), _HASH: hash_column})
        if rows is None:
            return extra
        return pa.Table.from_arrays([*extra.columns, *rows.columns], names=[*extra.column_names, *rows.column_names])

    def changes(self, rows: int) -> Changes:
        """The changes to the next `rows` rows of the base file."""
        start, end = self._base_rows, self._base_rows + rows
        replaced = [t for r in self._runs for t in r.replaced.upto(end)]
        deleted = [t for r in self._runs for t in r.deleted.upto(end)]
        positions = _positions(replaced, start)
        gone = _positions(deleted, start)
        self._base_rows = end
        row = np.arange(len(positions), dtype=np.int64)
        return Changes(replaced=positions, deleted=gone, values=self._rows(replaced), row=row, hashes=_hashes(replaced))

    def inserts(self, window: int) -> Iterator[tuple[pa.Table, Hashes]]:
        """New rows and their hashes, in order of first appearance, from `window` log entries at a time."""
        for end in range(window, self._spill.entries + window, window):
            found = [t for r in self._runs for t in r.inserted.upto(end)]
            if found:
                table = by_position(found)
                yield self._rows([table]), _hashes([table])

    def _rows(self, tables: list[pa.Table]) -> pa.Table:
        parts = [t.select(self._schema.names).cast(self._schema) for t in tables]
        return pa.concat_tables([self._schema.empty_table(), *parts])

    def ledger(self, rows_out: int) -> Ledger:
        """The ledger of all passes together."""
        ledger = total(self._ledgers)
        # Every pass read all base rows, and counted rows that other partitions change as untouched.
        untouched = ledger.untouched - (len(self._ledgers) - 1) * self._base_rows
        return replace(ledger, base_rows=self._base_rows, untouched=untouched, rows_out=rows_out)


def _positions(tables: list[pa.Table], start: int) -> Indices:
    parts = [np.asarray(t.column(POSITION)) for t in tables]
    return np.concatenate(parts) - start if parts else np.zeros(0, np.int64)


def _hashes(tables: list[pa.Table]) -> Hashes:
    parts = [np.asarray(t.column(_HASH)) for t in tables if not t.column(_HASH).null_count]
    return np.concatenate(parts) if parts else NO_HASHES
