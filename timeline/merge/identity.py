"""Sums of row hashes over the input and output rows of a compaction, for the ledger's `Identity` (pure)."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from ..codec.avro_schema import COMMIT_SEQNO, COMMIT_TIME, RECORD_KEY
from ..codec.columns import Hashes
from ..codec.row_hash import hash_sum, row_hashes
from ..format.ledger import MASK, Identity
from .rule import Changes


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
        """Adds new rows."""
        self._added += hash_sum(hashes)

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
