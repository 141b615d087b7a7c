"""Keeps keys unique over all partitions where the table has Hudi's global record index: refuses rows that move a key.

Hudi with that index and its defaults updates such a row where the key lies, whatever partition the row is for. A write
here would put the key into a second partition: a doubled row, and an index that Hudi cannot build any more.

The look-up is made before the write begins, so that a refused one leaves no trace; once more after it has begun where
something was completed in between; and what is completed later than that is a conflict (`Footprint.everywhere`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.metadata_table.record_index import keys_are_global
from phantombase.timeline.read.table_read import slice_rules
from phantombase.timeline.table.table import Table, TableSchema, consistent
from phantombase.timeline.view.view import TableView, is_replaced, latest_slice

from ..engine.engine import Pieces
from ..options import Operation, Write
from .lookup_step import bins_of
from .misplaced_keys_step import KeysToAllBins, Misplaced, MisplacedStep


@dataclass(frozen=True, kw_only=True)
class GlobalKeys:
    """The look-up of one write. `rows`: as `prepare_rows` gives them, computed already."""

    rows: Pieces
    slots: int
    schema: TableSchema
    write: Write

    def check(self, table: Table, seen: frozenset[str] | None = None) -> frozenset[str] | None:
        """The completed writes that the keys were looked up under; None: this table's keys need not be looked up.

        `seen`: what an earlier check returned; nothing is done where nothing was completed since.
        UnsupportedError: keys lie in other partitions than their rows, or the batch has one key in two partitions.
        """
        if not self.write.looks_keys_up or not keys_are_global(table):
            return None
        if seen is not None and seen >= table.load_timeline().completed_writes.keys():
            return seen
        return consistent(lambda: self._looked_up(table.reload()))

    def _looked_up(self, table: Table) -> frozenset[str]:
        view = table.load_view()
        done = frozenset(view.timeline.completed_writes)
        if not done and self.write.deletes:
            return done
        found = [Misplaced(**json.loads(data)) for data in self._misplaced(table, view)]
        if found:
            raise _refusal(table, found)
        return done

    def _misplaced(self, table: Table, view: TableView) -> list[bytes]:
        output = self.write.options.output
        rules = slice_rules(table, view.timeline, self.schema)
        rules = replace(rules, memory_bytes=output.memory_limit, spill_folder=output.spill_dir)
        slices = (latest_slice(g) for g in view.groups if not is_replaced(g, view.facts))
        bins = bins_of(((s,) for s in slices if s is not None), self.slots) or [[]]
        buckets, upserts = self.write.options.buckets is not None, self.write.operation is Operation.UPSERT
        step = MisplacedStep(table.storage, bins, rules, keys_in_logs=buckets, once=upserts)
        return self.rows.map(KeysToAllBins(len(bins))).regroup(step).collect()


def _refusal(table: Table, found: Iterable[Misplaced]) -> UnsupportedError:
    """Of all that was found; keys in the table first."""
    ordered = sorted(found, key=lambda one: (one.in_batch, one.key))
    first, count = ordered[0], sum(one.count for one in ordered)
    lies = "other rows of the batch have it in" if first.in_batch else "it lies in"
    return UnsupportedError(
        "rows that move keys to another partition are not supported on a table with a global record index",
        path=table.storage.base_path,
        expected="each key in one partition only",
        found=f"{count} of them, such as {first.key!r} in partition {first.partition!r}: {lies} {first.other!r}",
        todo="Nothing was written. Give these rows the partition their keys lie in; or delete the keys there, in a "
        "write of its own, and then write the rows; or write them with Hudi.",
    )
