"""The changes between two states of the same keys: which rows were inserted, updated and deleted (pure).

Rows that only moved between files are not changes: they keep their commit times, or get them back (`origins`). The
commit time alone does not tell a change by itself: under event time, a late row may take the place of a delete and lose
against the base file, whose old row is there again; and a late row may give columns to a row, which keeps its commit
time (`Sides.compared`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..arrow.columns import flat
from ..arrow.key_lookup import KeyLookup
from ..arrow.row_hash import row_hashes
from ..avro.schema import COMMIT_TIME, RECORD_KEY

INSERT, UPDATE, DELETE = "i", "u", "d"


def change_schema(rows: pa.Schema) -> pa.Schema:
    """`op`, `instant`, and the row `before` and `after` as structs; null where there is none."""
    row = pa.struct(list(rows))
    return pa.schema(
        [
            pa.field("op", pa.string(), nullable=False),
            pa.field("instant", pa.string()),
            pa.field("before", row),
            pa.field("after", row),
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Two states of the same keys as streams that can be opened again; rows with keys and commit times.

    `before`: the earlier rows. `gone`: earlier rows that were deleted together, whatever came in their place. `marks`:
    keys, commit times and compared columns of the later rows, which `after` gives whole. `compared`: columns that show
    a change, too, where rows of one commit time may differ.
    """

    before: Callable[[], Iterable[pa.RecordBatch]]
    gone: Callable[[], Iterable[pa.RecordBatch]]
    marks: Callable[[], Iterable[pa.RecordBatch]]
    after: Callable[[], Iterable[pa.RecordBatch]]
    compared: tuple[str, ...] = ()


def changes(sides: Sides, rows: pa.Schema, instant: str | None) -> Iterator[pa.RecordBatch]:
    """The changes; deletes first. `rows`: the columns of a row. `instant`: of the write, None: that of each later row.

    A row has changed if its commit time or a compared column has. Memory holds keys and commit times of the later rows,
    and the earlier rows of those that were updated.
    """
    for batch in sides.gone():
        yield _batch(DELETE, instant, rows, before=batch)
    marks = _Marks.of(sides.marks(), sides.compared)
    old: list[pa.RecordBatch] = []
    for batch in sides.before():
        places = marks.meet(batch)
        deleted = np.flatnonzero(places < 0)
        if len(deleted):
            yield _batch(DELETE, instant, rows, before=batch.take(pa.array(deleted)))
        old.append(batch.take(pa.array(np.flatnonzero(marks.updated[places] & (places >= 0)))))
    earlier = pa.Table.from_batches(old) if old else None
    versions = _Marks.of(old)
    for batch in sides.after():
        places = marks.places(batch)
        new = np.flatnonzero(~marks.met[places])
        if len(new):
            yield _batch(INSERT, instant, rows, after=batch.take(pa.array(new)))
        changed = np.flatnonzero(marks.updated[places])
        if len(changed):
            assert earlier is not None
            after = batch.take(pa.array(changed))
            before = _take(earlier, versions.first[versions.places(after)])
            yield _batch(UPDATE, instant, rows, before=before, after=after)


class _Marks:
    """Distinct keys with the version and the row number of their first row, and what they met so far."""

    def __init__(
        self, keys: pa.Array, versions: pa.Array, first: npt.NDArray[np.int64], compared: Sequence[str]
    ) -> None:
        self._lookup = KeyLookup(keys)
        self._versions = versions
        self._compared = compared
        self.first = first
        self.met = np.zeros(len(keys) + 1, np.bool_)
        """Whether there is an earlier row of the key. The last place stands for no key."""
        self.updated = np.zeros(len(keys) + 1, np.bool_)
        """Whether the earlier row has another version."""

    @staticmethod
    def of(batches: Iterable[pa.RecordBatch], compared: Sequence[str] = ()) -> _Marks:
        """The marks of rows with keys, commit times and the `compared` columns."""
        found = [(batch.column(RECORD_KEY), _versions(batch, compared)) for batch in batches]
        if not found:
            versions = pa.array([], pa.uint64() if compared else pa.string())
            return _Marks(pa.array([], pa.string()), versions, np.zeros(0, np.int64), compared)
        encoded = flat(pa.chunked_array([keys for keys, _ in found])).dictionary_encode()
        first = np.unique(np.asarray(encoded.indices), return_index=True)[1]
        versions = flat(pa.chunked_array([versions for _, versions in found]))
        return _Marks(encoded.dictionary, versions.take(pa.array(first)), first, compared)

    def places(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The places of the rows' keys, -1 for others."""
        return self._lookup.find(batch.column(RECORD_KEY))

    def meet(self, earlier: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The places of earlier rows, which are noted."""
        places = self.places(earlier)
        here = np.flatnonzero(places >= 0)
        there = places[here]
        same = pc.equal(_versions(earlier, self._compared).take(pa.array(here)), self._versions.take(pa.array(there)))
        self.met[there] = True
        self.updated[there] = ~np.asarray(pc.fill_null(same, False))
        return places


def _versions(batch: pa.RecordBatch, compared: Sequence[str]) -> pa.Array:
    """What differs between two rows of one key if one has replaced or changed the other: one value for each row."""
    if not compared:
        return batch.column(COMMIT_TIME)
    return pa.array(row_hashes([batch.column(name) for name in (COMMIT_TIME, *compared)], batch.num_rows))


def _take(rows: pa.Table, at: npt.NDArray[np.int64]) -> pa.RecordBatch:
    (batch,) = rows.take(pa.array(at)).combine_chunks().to_batches()
    return batch


def _batch(
    op: str,
    instant: str | None,
    rows: pa.Schema,
    *,
    before: pa.RecordBatch | None = None,
    after: pa.RecordBatch | None = None,
) -> pa.RecordBatch:
    count = max(side.num_rows for side in (before, after) if side is not None)
    known = pa.nulls(count, pa.string()) if after is None else after.column(COMMIT_TIME)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([op]).take(pa.array(np.zeros(count, np.int64))),
            known if instant is None else pa.array([instant]).take(pa.array(np.zeros(count, np.int64))),
            _struct(before, rows, count),
            _struct(after, rows, count),
        ],
        schema=change_schema(rows),
    )


def _struct(found: pa.RecordBatch | None, rows: pa.Schema, count: int) -> pa.Array:
    if found is None:
        return pa.nulls(count, pa.struct(list(rows)))
    return pa.StructArray.from_arrays([found.column(name) for name in rows.names], fields=list(rows))
