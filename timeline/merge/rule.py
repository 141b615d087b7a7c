"""How a table merges, and a batch of rows with what merging needs of them (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.arrays import Flags, Hashes, Indices
from ..arrow.columns import flat
from ..arrow.ordering import Ordering
from ..format.table_config import MergeMode

IS_DELETED = "_hoodie_is_deleted"
HUDI_0X = frozenset({MergeMode.OVERWRITE_WITH_LATEST_0X, MergeMode.EVENT_TIME_0X})


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

    @staticmethod
    def of(rows: pa.Table, keys: pa.Array, ordering_fields: Sequence[str], kept: Sequence[str]) -> Keyed:
        """A batch with the keys of its rows. `kept`: the columns that stay, as far as it has them."""
        deleted = None
        if IS_DELETED in rows.schema.names:
            deleted = np.asarray(pc.fill_null(rows.column(IS_DELETED), False).to_numpy(), np.bool_)
        return Keyed(
            rows=rows.select([name for name in kept if name in rows.column_names]),
            keys=keys,
            ordering=tuple(flat(rows.column(name)) for name in ordering_fields),
            deleted=deleted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What the log does to one batch of the base file.

    `replaced`, `deleted`: row numbers in the batch. `values`, `row`: what comes in the place of the replaced ones, as
    numbers of rows in a table. `hashes`: identity of those rows, empty where nobody keeps books of it.
    """

    replaced: Indices
    deleted: Indices
    values: pa.Table
    row: Indices
    hashes: Hashes

    def apply(self, rows: pa.Table) -> pa.Table:
        """The batch after the changes, in its order."""
        if not len(self.replaced) and not len(self.deleted):
            return rows
        source = np.arange(rows.num_rows, dtype=np.int64)
        source[self.replaced] = rows.num_rows + self.row
        alive = np.ones(rows.num_rows, np.bool_)
        alive[self.deleted] = False
        # Taken from both tables as they lie: every value is moved once.
        return pa.concat_tables([rows, self.values]).take(pa.array(source[alive]))


NO_HASHES: Hashes = np.zeros(0, np.uint64)
"""Where nobody keeps books of identity."""

NO_CHANGES = Changes(
    replaced=np.zeros(0, np.int64),
    deleted=np.zeros(0, np.int64),
    values=pa.table({}),
    row=np.zeros(0, np.int64),
    hashes=NO_HASHES,
)
"""A batch that stays as it is."""
