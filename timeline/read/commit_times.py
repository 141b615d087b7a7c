"""Which rows of a merged slice belong to a window, by their `_hoodie_commit_time` (pure)."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ..avro.schema import COMMIT_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTimes:
    """The commit times that a window wants.

    `wanted`: requested times of the window's instants. `known`: those of all completed writes. A row of an unknown
    write counts if its time is later than `after`.
    """

    wanted: frozenset[str]
    known: frozenset[str]
    after: str

    def filter(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the window."""
        times = rows.column(COMMIT_TIME)
        unknown = pc.and_(pc.greater(times, self.after), pc.invert(_in(times, self.known)))
        return rows.filter(pc.or_(_in(times, self.wanted), unknown))


def _in(times: pa.Array, found: frozenset[str]) -> pa.Array:
    return pc.is_in(times, value_set=pa.array(sorted(found), times.type))
