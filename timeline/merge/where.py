"""The filter of a read, and the rows that it excludes before rows are merged (pure).

    row groups      of a slice without log entries: only those that can hold a matching row are read
    keys            a matching row must have one of these record keys: log entries and base rows of other keys are not
                    merged at all, which is safe since keys are merged independently of each other
    base file       with log entries, not read if none of its rows can match and no winner of the logs matches

All other rows must be merged: a base row that does not match may still be newer than a log entry that matches, and the
first of two base rows of one key shields the second from the logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..codec.avro_schema import RECORD_KEY
from ..codec.stored_names import Names
from ..filter.possible import group_bounds, matching, may_match
from ..filter.tree import Filter, In, columns_of
from ..format.log_deletes import Deletes
from .rule import Keyed


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A filter bound to the table's `schema`. `keys`: the record keys that matching rows have, None if unknown."""

    filter: Filter
    schema: pa.Schema
    keys: tuple[str, ...] | None = None

    @property
    def columns(self) -> frozenset[str]:
        return columns_of(self.filter)

    def rows(self, rows: pa.Table) -> pa.Table:
        return matching(self.filter, rows)

    def row_groups(self, file: pq.ParquetFile, names: Names) -> list[int]:
        """The row groups of a base file that can hold a matching row. `names`: of the columns in the file."""
        return self._groups(file, self.filter, names)

    def merged_row_groups(self, file: pq.ParquetFile, names: Names) -> list[int] | None:
        """The row groups that a merge with log entries needs, None for all."""
        if self.keys is None or RECORD_KEY not in self.schema.names:
            return None
        return self._groups(file, In(RECORD_KEY, tuple(pa.scalar(key) for key in self.keys)), names)

    def _groups(self, file: pq.ParquetFile, wanted: Filter, names: Names) -> list[int]:
        groups = range(file.metadata.num_row_groups)
        return [group for group in groups if may_match(wanted, group_bounds(file, group, self.schema, names))]

    def keyed(self, batch: Keyed) -> Keyed:
        """The rows of the wanted keys."""
        if self.keys is None:
            return batch
        at = self._at(batch.keys)
        return Keyed(
            rows=batch.rows.take(at),
            keys=batch.keys.take(at),
            ordering=tuple(values.take(at) for values in batch.ordering),
            deleted=None if batch.deleted is None else batch.deleted[np.asarray(at)],
        )

    def deletes(self, deletes: Deletes) -> Deletes:
        """The entries of the wanted keys."""
        if self.keys is None:
            return deletes
        at = self._at(deletes.keys)
        return replace(
            deletes,
            keys=deletes.keys.take(at),
            ordering=tuple(values.take(at) for values in deletes.ordering),
            natural=deletes.natural.take(at),
        )

    def _at(self, keys: pa.Array) -> pa.Array:
        wanted: Sequence[str] = self.keys or ()
        return pa.array(np.flatnonzero(pc.is_in(keys, value_set=pa.array(wanted, keys.type))))
