"""Columns of Arrow tables as arrays, rows by their numbers, and the names of a table's columns in its files (pure).

Arrow's own `take` first puts all chunks of a column into one array, and fails above 2 GiB of text; `rows_at` works
chunk by chunk there. Names in files differ from the table's where columns were renamed, or dropped and added again
(tables whose columns evolve on read, see `table/evolved_schema.py`), or written with other case (`names_in`)."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import UnsupportedError

Names: TypeAlias = Mapping[str, str | None]
"""The name in a file by the table's name, where it differs; None: the file does not have the column."""

SAME_NAMES: Names = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNames:
    """The names in the files of each instant. Picklable.
    `commits`: by the write's instant, as its commit records them. `changes`: the names from an instant on, ascending,
    for files whose commit is archived or does not exist yet. `unknown_before`: names in earlier files are unknown."""

    commits: Mapping[str, Names] = field(default_factory=dict)
    changes: tuple[tuple[int, Names], ...] = ()
    unknown_before: int = 0

    def __bool__(self) -> bool:
        """Whether names differ, or may differ, in any file."""
        return bool(self.changes)

    def at(self, instant: str) -> Names:
        """The names in a file, or a log block, that an instant wrote. UnsupportedError: they are not known."""
        if instant in self.commits:
            return self.commits[instant]
        if not self.changes:
            return SAME_NAMES
        time = int(instant)
        if time < self.unknown_before:
            what = "the columns of a file from before the table's first change of columns are not known"
            expected = "the commit before the change, active or archived"
            found = f"an archive without it; the change is {self.unknown_before}"
            todo = "Compact its file group with Hudi: then it has a newer base file."
            raise UnsupportedError(what, instant=instant, expected=expected, found=found, todo=todo)
        at = bisect_right(self.changes, time, key=itemgetter(0)) - 1
        return self.changes[max(at, 0)][1]


def names_in(columns: Collection[str], names: Names, there: Collection[str], where: str = "") -> Names:
    """The names of all the columns of a table, or the fields of a record, in a file with the names `there`. Hudi on
    Spark ignores case. So a column that a file does not have may exist there with other case, unless the columns evolve
    on read: then their numbers identify them. UnsupportedError: the file, named by `where`, has several."""
    if names or there == columns:
        return names
    present, known = frozenset(there), frozenset(columns)
    lacking = [name for name in columns if name not in present]
    if not lacking:
        return names
    by_case = defaultdict[str, list[str]](list)
    for name in there:
        if name not in known:
            by_case[name.lower()].append(name)
    found = dict[str, str | None]()
    for name in lacking:
        alike = by_case.get(name.lower(), [])
        if len(alike) > 1:
            what = "columns whose names differ by case only are not supported"
            raise UnsupportedError(what, path=where or None, expected=f"one column for {name}", found=", ".join(alike))
        if alike:
            found[name] = alike[0]
    return found


def stored(columns: Collection[str], names: Names, there: Collection[str]) -> list[str]:
    """The names of the columns in a file with the columns `there`, without those that it does not have."""
    names, present = names_in(columns, names, there), frozenset(there)
    found = (names.get(name, name) for name in columns)
    return list(dict.fromkeys(name for name in found if name is not None and name in present))


Flags: TypeAlias = npt.NDArray[np.bool_]
Indices: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]


def flags(array: Any) -> Flags:
    """Truth values without nulls as numpy."""
    return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are texts or bytes of any length, with offsets."""
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array, without a copy if it is one already."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def counted(rows: pa.RecordBatch | pa.Table, count: int | None = None) -> pa.Table:
    """The rows as a table. If they have no columns a null column keeps their number: Arrow tables without columns have
    no rows. `count`: of a table that has no columns."""
    if not rows.num_columns:
        return pa.table({"__none": pa.nulls(rows.num_rows if count is None else count)})
    return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])


def leaf_types(field: pa.Field, path: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Parquet paths of a field's leaf columns, in pyarrow's notation, and their types."""
    here, kind = f"{path}{field.name}", field.type
    if pa.types.is_struct(kind):
        for child in kind:
            yield from leaf_types(child, f"{here}.")
    elif pa.types.is_map(kind):
        yield from leaf_types(kind.key_field.with_name("key"), f"{here}.key_value.")
        yield from leaf_types(kind.item_field.with_name("value"), f"{here}.key_value.")
    elif pa.types.is_list(kind):
        yield from leaf_types(kind.value_field.with_name("element"), f"{here}.list.")
    else:
        yield here, kind


def list_parts(array: Any) -> tuple[pa.Array, pa.Array]:
    """(int32 offsets from 0, values) of a list-like array, sliced or not."""
    offsets = array.offsets
    start = offsets[0].as_py()
    values = array.values.slice(start, offsets[-1].as_py() - start)
    # Computed also when they begin with 0: Arrow cannot build a list from a slice of offsets together with a mask.
    return pc.subtract(offsets, offsets[0]).cast(pa.int32()), values


MANY_BYTES = 1 << 30
"""A column from this size on is not copied into one array."""
PIECE_BYTES = 128 << 20
"""Bytes of such a column that are put into one array at a time; a chunk may exceed them by one row."""


def rows_at(table: pa.Table, numbers: Indices) -> pa.Table:
    """The rows with these numbers, in their order; in several chunks where they would not fit into one."""
    if not numbers.size or table.nbytes * max(numbers.size, table.num_rows) < MANY_BYTES * table.num_rows:
        return table.take(pa.array(numbers))  # rows may repeat, but rarely the longest one alone
    sizes = row_bytes(table)
    pieces = [_picked(table, part) for part in np.split(numbers, cuts(sizes[numbers]))]
    return pa.concat_tables(pieces)


def row_bytes(table: pa.Table) -> npt.NDArray[np.int64]:
    """About how many bytes each row takes: exact for text; for other types the mean of the chunk."""
    total = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        start = 0
        for chunk in column.chunks:
            own = total[start : start + len(chunk)]
            start += len(chunk)
            if is_text(chunk.type):
                own += np.asarray(pc.fill_null(pc.binary_length(chunk), 0)).astype(np.int64)
            else:
                own += -(-chunk.nbytes // max(1, len(chunk)))
    return total


def cuts(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where values of these sizes, one after the other, are cut into chunks of about `PIECE_BYTES`."""
    piece = (np.cumsum(sizes) - sizes) // PIECE_BYTES
    return np.flatnonzero(np.diff(piece)) + 1


def _picked(table: pa.Table, numbers: Indices) -> pa.Table:
    """A `take` chunk by chunk: of each only the requested rows are copied."""
    batches = table.to_batches()
    ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
    order = np.argsort(numbers, kind="stable")
    places = np.searchsorted(numbers[order], ends)
    found, start = [], 0
    for batch, end, place in zip(batches, ends.tolist(), places.tolist(), strict=True):
        if place > start:
            found.append(batch.take(pa.array(numbers[order[start:place]] - (end - batch.num_rows))))
        start = place
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.Table.from_batches(found, table.schema).take(pa.array(back))
