"""The merge of one file slice: the rows of its base file and the changes from its log files (pure, vectorised).

`LogFold` collects log entries in order and finds the winner of each key. `SliceMerge` then streams the base file: rows
keep their order, replaced rows get the log's values, deleted rows are dropped, and winners whose key is not in the base
file come last.

    winner against base row        OVERWRITE_0X, COMMIT_TIME   always the log
                                   EVENT_TIME (1.x)            natural delete, or ordering value >= the base row's
                                   EVENT_TIME_AVRO_0X          any delete, or ordering value >= the base row's
                                   EVENT_TIME_0X               delete block, or ordering value >= the base row's
                                   (a null ordering value in the base always loses)

Duplicate keys in one base file: a 0.15 compaction changes all their rows, and so does Hudi 1.x where all log blocks
name rows of the base file by position: each write found every row (`every_duplicate`). Else only the first row changes.

`IdentityTally` sums the hashes of the input and output rows of a compaction, for the ledger's `Identity`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ..codec.avro_schema import COMMIT_SEQNO, COMMIT_TIME, RECORD_KEY
from ..codec.columns import Flags, Hashes, Indices, at_least, rows_at
from ..codec.row_hash import KeyLookup, hash_sum, row_hashes
from ..format.ledger import MASK, Identity, Ledger
from ..format.table_config import MergeMode
from .log_fold import EntryKind, Winners
from .rule import NO_HASHES, Changes, Keyed, MergeRule


class IdentityTally:
    """Sums the hashes of a merge in progress."""

    def __init__(self) -> None:
        self._base = self._removed = self._added = 0

    def merged(self, rows: pa.Table, changes: Changes) -> None:
        """Adds a batch of the base file and its changes."""
        hashes = identity_hashes(rows)
        self._base += hash_sum(hashes)
        self._removed += hash_sum(hashes[changes.replaced]) + hash_sum(hashes[changes.deleted])
        self._added += hash_sum(changes.hashes)

    def inserted(self, hashes: Hashes) -> None:
        self._added += hash_sum(hashes)

    def left_out(self, rows: pa.Table) -> None:
        """Merged rows that are not written."""
        self._removed += hash_sum(identity_hashes(rows))

    def finish(self, out: int) -> Identity:
        """The sums; `out`: the sum over the file, read back."""
        return Identity(base=self._base & MASK, removed=self._removed & MASK, added=self._added & MASK, out=out)


def identity_columns(schema: pa.Schema) -> list[str]:
    """The columns that identify a row."""
    meta = [RECORD_KEY, COMMIT_TIME, COMMIT_SEQNO]
    return meta if set(meta) <= set(schema.names) else list(schema.names)


def identity_hashes(rows: pa.Table, keys: pa.Array | None = None) -> Hashes:
    """One hash for each row; `keys`: used in place of the rows' own key column, if the table has one."""
    columns = {name: rows.column(name) for name in identity_columns(rows.schema)}
    if keys is not None and RECORD_KEY in columns:
        columns[RECORD_KEY] = keys
    return row_hashes(columns.values(), rows.num_rows)


def identity_sum(tables: Iterable[pa.Table]) -> int:
    """The sum over all rows of some tables."""
    return sum(hash_sum(identity_hashes(t)) for t in tables) & MASK


class SliceMerge:
    """Applies the winners to a streamed base file and counts for the ledger.
    `hashed`: also keep the identity sums (for compaction; readers do not need them)."""

    def __init__(self, rule: MergeRule, won: Winners, *, hashed: bool = False) -> None:
        self._rule = rule
        self._won = won
        self._seen = np.zeros(len(won.keys), np.bool_)
        self._row = np.empty(len(won.keys), np.int64)
        self._hashed = hashed
        self._counts = dict.fromkeys(("base_rows", "untouched", "kept", "replaced", "deleted", "duplicate_hits"), 0)

    @cached_property
    def _lookup(self) -> KeyLookup:
        return KeyLookup(self._won.keys)

    @cached_property
    def _hashes(self) -> Hashes | None:
        return _winner_hashes(self._won) if self._hashed else None

    def untouched(self, rows: int) -> None:
        """Counts base rows without any lookup, because there are no log entries at all."""
        self._count(rows, 0, 0, 0)

    def changes(self, base: Keyed) -> Changes:
        """The changes to one batch of the base file; reads only its keys and ordering values."""
        at = self._lookup.find(base.keys)
        hit = np.flatnonzero(at >= 0)
        hit = self._without_later_duplicates(hit, at)
        key = at[hit]
        self._seen[key] = True
        applied = self._log_wins(base, hit, key)
        if self._won.lacking is not None:
            return self._completed(base, hit, key, applied)
        hit, key = hit[applied], key[applied]
        updates = self._won.is_update[key]
        self._count(len(at), int(applied.size), int(updates.sum()), int((~updates).sum()))
        row = self._won.row[key[updates]]
        return Changes(
            replaced=hit[updates], deleted=hit[~updates], values=self._won.rows, row=row, hashes=self._of(row)
        )

    def _completed(self, base: Keyed, hit: Indices, key: Indices, applied: Flags) -> Changes:
        """The changes by winners that lack columns: each row of `values` is merged with its base row.
        A base row that is newer than its winner may lack columns that the winner has."""
        won, unset, update = self._won, self._rule.unset, self._won.is_update[key]
        assert won.lacking is not None, "winners that lack columns"
        replaced, of = hit[applied & update], key[applied & update]
        values = won.lacking.completed(won.rows, won.row[of], base.rows, replaced)
        if unset is not None and unset.values.to_newer:
            late, late_of = hit[~applied & update], key[~applied & update]
            rows, changed = won.lacking.late(unset, won.rows, won.row[late_of], base.rows, late)
            values = pa.concat_tables([values, rows.filter(pa.array(changed))])
            replaced, of = np.append(replaced, late[changed]), np.append(of, late_of[changed])
        order, gone = np.argsort(replaced), hit[applied & ~update]
        self._count(len(base.keys), len(hit), len(replaced), len(gone))
        hashes = NO_HASHES
        if self._hashed:
            hashes = identity_hashes(values, won.keys.take(pa.array(of)))[order]
        return Changes(replaced=replaced[order], deleted=gone, values=values, row=order, hashes=hashes)

    def _of(self, row: Indices) -> Hashes:
        return self._hashes[row] if self._hashes is not None else NO_HASHES

    def _without_later_duplicates(self, hit: Indices, at: Indices) -> Indices:
        """Drops hits on a key that already occurred in this base file, unless every duplicate must be changed."""
        key = at[hit]
        self._row[key] = len(at)
        np.minimum.at(self._row, key, hit)
        first: Flags = (self._row[key] == hit) & ~self._seen[key]
        if self._rule.every_duplicate:
            self._counts["duplicate_hits"] += int((~first).sum())
            return hit
        return hit[first]

    def _log_wins(self, base: Keyed, hit: Indices, key: Indices) -> Flags:
        won, mode = self._won, self._rule.mode
        if mode in (MergeMode.COMMIT_TIME, MergeMode.OVERWRITE_WITH_LATEST_0X) or not won.ordering:
            return np.ones(len(hit), np.bool_)
        is_delete = won.kinds[key] == EntryKind.DELETE
        if mode is MergeMode.EVENT_TIME_AVRO_0X:
            is_delete = won.kinds[key] != EntryKind.ROW
        always = won.natural[key] if mode is MergeMode.EVENT_TIME else is_delete
        rows = pa.array(hit)
        right = tuple(self._rule.comparable(a.take(rows)) for a in base.ordering)
        left = tuple(a.take(pa.array(key)) for a in won.ordering)
        return always | at_least(left, right, len(hit))

    def _count(self, rows: int, hits: int, replaced: int, deleted: int) -> None:
        """`hits`: base rows whose key has a winner."""
        counts = self._counts
        applied = replaced + deleted
        counts["base_rows"] += rows
        counts["replaced"] += replaced
        counts["deleted"] += deleted
        counts["kept"] += hits - applied
        counts["untouched"] += rows - hits

    def inserts(self) -> tuple[Indices, pa.Table, Hashes]:
        """The winners without a base row: number of the key, row, hash. Call after the last batch."""
        missing = np.flatnonzero(self._won.is_update & ~self._seen)
        row = self._won.row[missing]
        rows = rows_at(self._won.rows, row)
        if self._won.lacking is not None:
            rows = self._won.lacking.inserted(rows)  # the hashes have null for missing columns too
        return missing, rows, self._of(row)

    def ledger(self, rows_out: int) -> Ledger:
        """The ledger of this merge (counts are rows, except names with keys or entries)."""
        won, seen = self._won, self._seen
        update = won.is_update
        counts: dict[str, Any] = self._counts
        return Ledger(
            **counts,
            log_entries=won.entries,
            log_keys=len(won.keys),
            update_keys=int(update.sum()),
            update_keys_in_base=int((update & seen).sum()),
            delete_keys_in_base=int((~update & seen).sum()),
            inserts=int((update & ~seen).sum()),
            deletes_of_absent=int((~update & ~seen).sum()),
            rows_out=rows_out,
        )


def _winner_hashes(won: Winners) -> Hashes:
    live = np.flatnonzero(won.row >= 0)
    key = np.empty(won.rows.num_rows, np.int64)
    key[won.row[live]] = live
    return identity_hashes(won.rows, won.keys.take(pa.array(key)))
