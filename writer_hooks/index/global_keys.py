"""Keeps keys unique over all partitions if the table has Hudi's global record index: refuses rows that move a key.

With that index and its defaults, Hudi updates such a row in the partition that has the key, whatever the row's own
partition is. A write of phantombase would put the key into a second partition: the row would be doubled, and Hudi could
not build the index any more.

The look-up runs before the write begins, so that a refused write leaves nothing behind. It runs again after the write
has begun, if another write completed in between, or one that was pending has ended: Hudi archives a slow write as soon
as it has completed. A write that completes later is a conflict (`WriteSet.everywhere`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.metadata_table.record_index import keys_are_global
from phantombase.timeline.read.table_rules import slice_rules
from phantombase.timeline.table.table import Table, TableSchema, from_one_snapshot
from phantombase.timeline.view.view import TableView, is_replaced, latest_slice

from ..engine.engine import Pieces
from ..options import Operation, Write
from .lookup_step import bins_of
from .misplaced_keys_step import KeysToAllBins, Misplaced, MisplacedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look-up has read: `done` were completed then, `pending` not. By requested time."""

    done: frozenset[str]
    pending: frozenset[str]

    def is_all_of(self, timeline: Timeline) -> bool:
        """Whether no write has ended since."""
        return self.done >= timeline.completed_writes.keys() and self.pending <= timeline.pending_writes.keys()


@dataclass(frozen=True, kw_only=True)
class GlobalKeys:
    """The look-up of one write. `rows`: from `prepare_rows`, computed already."""

    rows: Pieces
    slots: int
    schema: TableSchema
    write: Write

    def check(self, table: Table, seen: Seen | None = None) -> Seen | None:
        """The writes that the look-up has read; None: this table's keys need no look-up.

        `seen`: the result of an earlier check; if no write has ended since, it is returned at once.
        UnsupportedError: keys are in other partitions than their rows, or the batch has one key in two partitions.
        """
        if self.write.moved_keys is not None or not looks_everywhere(self.write, table):
            return None
        if seen is not None and seen.is_all_of(table.load_timeline()):
            return seen
        return from_one_snapshot(lambda: self._looked_up(table.reload()))

    def _looked_up(self, table: Table) -> Seen:
        view = table.load_view()
        seen = Seen(done=frozenset(view.timeline.completed_writes), pending=frozenset(view.timeline.pending_writes))
        if not seen.done and self.write.deletes:
            return seen
        found = [Misplaced(**json.loads(data)) for data in self._misplaced(table, view)]
        if found:
            raise _refusal(table, found)
        return seen

    def _misplaced(self, table: Table, view: TableView) -> list[bytes]:
        output = self.write.options.output
        rules = slice_rules(table, view.timeline, self.schema)
        rules = replace(rules, memory_bytes=output.memory_limit, spill_folder=output.spill_dir)
        slices = (latest_slice(g) for g in view.groups if not is_replaced(g, view.facts))
        bins = bins_of(((s,) for s in slices if s is not None), self.slots) or [[]]
        buckets, upserts = self.write.options.buckets is not None, self.write.operation is Operation.UPSERT
        step = MisplacedStep(table.storage, bins, rules, keys_in_logs=buckets, once=upserts)
        return self.rows.map(KeysToAllBins(len(bins))).regroup(step).collect()


def looks_everywhere(write: Write, table: Table) -> bool:
    """Whether a write looks its keys up in the whole table."""
    return write.looks_keys_up and (write.moved_keys is not None or keys_are_global(table))


def _refusal(table: Table, found: Iterable[Misplaced]) -> UnsupportedError:
    """The error for all misplaced keys; its example is a key in the table, if there is one."""
    ordered = sorted(found, key=lambda one: (one.in_batch, one.key))
    first, count = ordered[0], sum(one.count for one in ordered)
    place = "other rows of the batch have it in" if first.in_batch else "the table has it in"
    return UnsupportedError(
        "rows that move keys to another partition are not supported on a table with a global record index",
        path=table.storage.base_path,
        expected="each key in one partition only",
        found=f"{count} of them, such as {first.key!r} in partition {first.partition!r}: {place} {first.other!r}",
        todo="Nothing was written. Give these rows the partition that has their keys; or delete the keys there, in a "
        "separate write, and then write the rows; or write them with Hudi.",
    )
