"""Log entries beyond the memory limit: split by key hash into partitions on disk; winners are found per partition.

All entries of a key are in one partition, in order, so the winner does not depend on the split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..arrow.columns import Indices, flat
from ..arrow.key_lookup import hash_keys
from ..arrow.rows_at import rows_at
from ..arrow.spill_file import POSITION, SpillFile
from .gaps import Gaps
from .log_fold import Entries, Winners, row_numbers, settle, won, won_partly
from .rule import MergeRule
from .winner import EntryKind

_KEY, _KIND, _NATURAL = "__key", "__kind", "__natural"
_HASH_SEED = 1001
"""Differs from the seeds of `key_lookup`, where the keys of one partition must still spread evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    entries: SpillFile
    rows: SpillFile


class LogSpill:
    """`partitions` pairs of files in `folder`: the entries without their rows, and the rows.

    `gaps`: as of the `LogFold` that the entries come from.
    """

    def __init__(
        self, folder: str, rule: MergeRule, schema: pa.Schema, partitions: int, gaps: Gaps | None = None
    ) -> None:
        self._rule = rule
        self.gaps = gaps = gaps or rule.gaps
        self._out = schema
        schema = schema if gaps is None else gaps.held(schema)
        self._schema = schema
        fields = [(_KEY, pa.string()), (_KIND, pa.uint8()), (_NATURAL, pa.bool_()), (POSITION, pa.int64())]
        entry = pa.schema([*fields, *((f"__{i}", kind) for i, kind in enumerate(rule.ordering_types))])
        self._partitions = [
            _Partition(entries=SpillFile(f"{folder}/{p}.entries", entry), rows=SpillFile(f"{folder}/{p}.rows", schema))
            for p in range(partitions)
        ]
        self._entry_schema = entry
        self.entries = 0

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, parts: Sequence[Entries]) -> None:
        """Adds the next entries."""
        for part in parts:
            self._add(part)

    def _add(self, part: Entries) -> None:
        count = len(part.keys)
        positions = np.arange(self.entries, self.entries + count, dtype=np.int64)
        self.entries += count
        home = (hash_keys(part.keys, _HASH_SEED) % np.uint64(len(self))).astype(np.int64)
        order = np.argsort(home, kind="stable")
        columns = [part.keys, pa.array(part.kinds), pa.array(part.natural), pa.array(positions), *part.ordering]
        entries = pa.Table.from_arrays(columns, schema=self._entry_schema).take(pa.array(order))
        is_row = (part.kinds == EntryKind.ROW)[order]
        rows = rows_at(part.rows, row_numbers(part.kinds)[order[is_row]])
        ends = np.searchsorted(home[order], np.arange(len(self) + 1))
        row_ends = np.concatenate([[0], np.cumsum(is_row)])[ends]
        for partition, start, end, row_start, row_end in zip(
            self._partitions, ends, ends[1:], row_ends, row_ends[1:], strict=False
        ):
            partition.entries.append(entries.slice(start, end - start))
            partition.rows.append(rows.slice(row_start, row_end - row_start))

    def winners(self, number: int) -> tuple[Winners, Indices]:
        """The winner of each key of one partition, and each key's first position among all entries."""
        partition = self._partitions[number]
        table = partition.entries.read_all().combine_chunks()
        kinds = np.asarray(table.column(_KIND))
        entries = Entries(
            keys=flat(table.column(_KEY)),
            kinds=kinds,
            natural=np.asarray(table.column(_NATURAL)),
            ordering=tuple(flat(table.column(f"__{i}")) for i in range(len(self._rule.ordering_types))),
            rows=self._schema.empty_table(),
        )
        settled = settle(self._rule, [entries], self.gaps)
        first = np.asarray(table.column(POSITION))[settled.first]
        if self.gaps is not None:
            # Any row may give columns, so all of the partition's rows are held: a share of the memory limit.
            return won_partly(self._rule, self.gaps, settled, kinds, partition.rows.read_all(), self._out), first
        live = settled.kinds == EntryKind.ROW
        wanted = row_numbers(kinds)[settled.best[live]]
        order = np.argsort(wanted)
        row = np.full(len(settled.keys), -1, np.int64)
        row[np.flatnonzero(live)[order]] = np.arange(len(order))
        rows = _pick(partition.rows, wanted[order], self._schema)
        return won(self._rule, settled, row, rows, len(kinds)), first


def _pick(file: SpillFile, wanted: Indices, schema: pa.Schema) -> pa.Table:
    """The rows with the given numbers (ascending), without holding the other rows in memory."""
    found, start = [schema.empty_table()], 0
    for table in file.read():
        low, high = np.searchsorted(wanted, [start, start + table.num_rows])
        found.append(rows_at(table, wanted[low:high] - start).cast(schema))
        start += table.num_rows
    return pa.concat_tables(found).combine_chunks()
