"""Brings the rows of a group into an order, on disk what does not fit into memory: an external merge sort.

    collect   rows are held up to a share of the memory limit, then sorted, and written to disk as a run
    place     along a curve: rows are written unsorted; once all are known, each gets its place, and runs are made
    merge     the runs are read side by side; of equal rows, those of the earlier run come first

Reading, sorting and merging are one piece ahead of what uses the rows, in threads of their own.

The sort is stable: equal rows keep their order. It is the same whatever the memory limit is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.merge.spilled_merge import SpillFile, spill_folder
from phantombase.timeline.prefetch import Threads, computed_ahead, prefetched

from .options import SortOrder
from .order import CurveRanks

_SHARE = 10
"""Rows are held up to this part of the memory limit: combining and sorting them takes several times as much."""
_AT_ONCE = 2
"""Runs that are sorted and written at a time."""
_RUNS_MAX = 32
"""Runs that are merged at a time."""
_MERGE_SHARE = 6
"""The pieces of a merge, with their copies, take this part of the memory limit."""
_COPIES = 5
_ROUNDS_AHEAD = 4
"""Rounds of a merge that wait: its rows are encoded many at a time."""
_MEMORY_MOST = 16 << 30
"""More is not used: Arrow takes no rows of a table with more than 2 GiB of text in a column."""
_PLACE = "place on the curve"
"""No column of a table: a name in Avro has no spaces."""
_READ = pa.table({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorting:
    """`columns`: none keeps the order of the rows. `memory`: the limit in bytes; `folder`: for runs, None is the
    system's."""

    columns: tuple[str, ...]
    order: SortOrder
    memory: int
    folder: str | None
    batch_rows: int

    @property
    def by_curve(self) -> bool:
        return self.order is not SortOrder.ORDER and len(self.columns) > 1

    @property
    def held_bytes(self) -> int:
        return max(1, min(self.memory, _MEMORY_MOST) // _SHARE)

    @property
    def piece_bytes(self) -> int:
        """How much of a run is read at a time: a round of a merge has several copies of all of them."""
        return max(1, min(self.memory, _MEMORY_MOST) // (_MERGE_SHARE * _COPIES * _RUNS_MAX))


class OrderedRows:
    """Rows in order. `rows`: their number."""

    def __init__(self, rows: int, tables: Iterator[pa.Table]) -> None:
        self.rows = rows
        self._tables = tables
        self._rest: pa.Table | None = None

    def next_rows(self, number: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        while number > 0:
            table = self._rest if self._rest is not None else next(self._tables)
            head, self._rest = table.slice(0, number), None
            if head.num_rows < table.num_rows:
                self._rest = table.slice(number)
            number -= head.num_rows
            yield from head.to_batches(max_chunksize=batch_rows)


@contextmanager
def ordered(batches: Iterable[pa.RecordBatch], sorting: Sorting) -> Iterator[OrderedRows]:
    """All rows, read once, in order. StorageError: they cannot be written to disk."""
    with ExitStack() as stack:
        disk = _Disk(stack, sorting)
        keys = list(sorting.columns)
        batches = stack.enter_context(computed_ahead(batches))
        if sorting.by_curve:
            ranks = CurveRanks(sorting.columns, sorting.order)
            found, rows = _collected(_noted(batches, ranks), [], disk)
            pieces = (disk.placed(table, ranks) for run in found for table in run)
            found, _ = _collected((b for table in pieces for b in table.to_batches()), [_PLACE], disk)
            keys = [_PLACE]
        else:
            found, rows = _collected(batches, keys, disk)
        tables = _merged(found, keys, disk) if keys else (table for run in found for table in run)
        ready = stack.enter_context(computed_ahead(tables, _ROUNDS_AHEAD))
        yield OrderedRows(rows, (table.drop_columns(_PLACE) if sorting.by_curve else table for table in ready))


def _noted(batches: Iterable[pa.RecordBatch], ranks: CurveRanks) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        ranks.seen(pa.Table.from_batches([batch]))
        yield batch


class _Run:
    """Sorted rows, in memory or on disk; read once, in pieces. `rows`: those not read yet. `reader`: reads one piece
    ahead."""

    def __init__(self, schema: pa.Schema, tables: Iterator[pa.Table], rows: int, reader: Threads | None = None) -> None:
        self.schema, self._tables, self.rows, self._reader = schema, tables, rows, reader
        self._next: Future[pa.Table] | None = None

    def __iter__(self) -> Iterator[pa.Table]:
        while self.rows:
            yield self.read()

    def read(self) -> pa.Table:
        """The next piece."""
        table = next(self._tables) if self._next is None else self._next.result()
        self.rows -= table.num_rows
        if self._reader is not None:
            self._next = self._reader.submit(next, self._tables, _READ)  # behind the last piece the file is removed
        return table.cast(self.schema)  # a spill file forgets which columns are required


class _Disk:
    """The runs of one sort; the folder is made when it is needed."""

    def __init__(self, stack: ExitStack, sorting: Sorting) -> None:
        self._stack, self.sorting = stack, sorting
        self._numbers = count()
        self._first = Lock()
        self._folder: str | None = None
        self._reader = Threads(1)
        stack.callback(self._reader.shutdown, cancel_futures=True)

    def run(self, tables: Iterable[pa.Table], schema: pa.Schema) -> _Run:
        """Writes rows."""
        with self._first:
            if self._folder is None:
                self._folder = self._stack.enter_context(spill_folder(self.sorting.folder))
        file, rows = SpillFile(f"{self._folder}/{next(self._numbers)}.run", schema), 0
        for table in tables:
            for piece in self._pieces(table):
                file.append(piece)
            rows += table.num_rows
        file.end()
        return _Run(schema, file.read_once(), rows, self._reader)

    def piece_rows(self, table: pa.Table) -> int:
        """How many rows of a run are read at a time, if they are alike."""
        per_row: int = max(1, table.nbytes // max(1, table.num_rows))
        return max(1, self.sorting.piece_bytes // per_row)

    def _pieces(self, table: pa.Table) -> Iterator[pa.Table]:
        """The rows in pieces, also where large ones follow each other."""
        if table.num_rows < 2 or table.nbytes <= 2 * self.sorting.piece_bytes:
            yield table
            return
        half = table.num_rows // 2
        yield from self._pieces(table.slice(0, half))
        yield from self._pieces(table.slice(half))

    def placed(self, table: pa.Table, ranks: CurveRanks) -> pa.Table:
        return table.append_column(_PLACE, pa.array(ranks.places(table)))


def _collected(batches: Iterable[pa.RecordBatch], keys: Sequence[str], disk: _Disk) -> tuple[list[_Run], int]:
    """The rows as sorted runs, and their number. The last run stays in memory. While rows are read, the runs before
    are sorted and written."""
    with closing(prefetched(_shares(batches, disk.sorting.held_bytes), partial(_run_of, keys, disk), _AT_ONCE)) as made:
        runs = list(made)
    return runs, sum(run.rows for run in runs)


class _Share(NamedTuple):
    """Rows of one run. `is_last`: no others follow."""

    batches: list[pa.RecordBatch]
    is_last: bool


def _shares(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[_Share]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if held and size + batch.nbytes > most:
            yield _Share(held, False)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
    if held:
        yield _Share(held, True)


def _run_of(keys: Sequence[str], disk: _Disk, share: _Share) -> _Run:
    table = pa.Table.from_batches(share.batches)
    share.batches.clear()
    table = table.combine_chunks()
    step = disk.sorting.batch_rows if share.is_last else disk.piece_rows(table)
    pieces = _in_order(table, keys, step)
    return _Run(table.schema, pieces, table.num_rows) if share.is_last else disk.run(pieces, table.schema)


def _in_order(table: pa.Table, keys: Sequence[str], step: int) -> Iterator[pa.Table]:
    order = _sorted_indices(table, keys) if keys else None
    for start in range(0, table.num_rows, step):
        yield table.slice(start, step) if order is None else table.take(order.slice(start, step))


def _sorted_indices(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    return pc.sort_indices(table.select(keys), sort_keys=[(name, "ascending") for name in keys])


def _merged(runs: list[_Run], keys: Sequence[str], disk: _Disk) -> Iterator[pa.Table]:
    """All rows of some runs in order. Too many are first merged to longer ones, neighbours with neighbours."""
    while len(runs) > _RUNS_MAX:
        longer = []
        for start in range(0, len(runs), _RUNS_MAX):
            some = runs[start : start + _RUNS_MAX]
            longer.append(disk.run(_MergeOfRuns(some, keys, disk).tables(), some[0].schema))
        runs = longer
    return _MergeOfRuns(runs, keys, disk).tables()


class _MergeOfRuns:
    """Holds the next rows of each run. A round takes all rows up to the last one held of some run that goes on, the
    least of these: no row that is not held yet comes before it."""

    def __init__(self, runs: Sequence[_Run], keys: Sequence[str], disk: _Disk) -> None:
        self._runs, self._keys = runs, keys
        self._heads: list[pa.Table] = [run.schema.empty_table() for run in runs]
        self._least = disk.sorting.piece_bytes // 2

    def tables(self) -> Iterator[pa.Table]:
        if len(self._runs) == 1:
            yield from self._runs[0]
            return
        while True:
            for number, run in enumerate(self._runs):
                self._fill(number, run)
            if not any(head.num_rows for head in self._heads):
                return
            yield self._round()

    def _fill(self, number: int, run: _Run) -> None:
        """Holds half a piece of a run at least. Else a round would take few rows, and sort all that are held."""
        head = self._heads[number]
        while run.rows and (not head.num_rows or head.nbytes <= self._least):
            piece = run.read()
            head = pa.concat_tables([head, piece]) if head.num_rows else piece
        self._heads[number] = head

    def _round(self) -> pa.Table:
        ends = np.cumsum([0, *(head.num_rows for head in self._heads)])
        held = pa.concat_tables([head.select(self._keys) for head in self._heads]).combine_chunks()
        going_on = [n for n, run in enumerate(self._runs) if run.rows]
        last = None
        if going_on:
            lasts = held.take(pa.array([ends[n + 1] - 1 for n in going_on]))
            last = int(ends[going_on[_sorted_indices(lasts, self._keys)[0].as_py()] + 1]) - 1
            begins = self._that_begin_before(held, ends, last)
            order = self._sorted_part(held, ends, begins)
            order = order[: int(np.flatnonzero(order == last)[0]) + 1]
        else:
            order = np.asarray(_sorted_indices(held, self._keys)).astype(np.int64)
        return self._taken(order, ends)

    def _that_begin_before(self, held: pa.Table, ends: npt.NDArray[np.int64], last: int) -> list[int]:
        """The runs with a held row up to the last one taken."""
        there = [n for n, head in enumerate(self._heads) if head.num_rows]
        bound = held.take(pa.array([last]))
        firsts = pa.concat_tables([held.take(pa.array([ends[n] for n in there])), bound])
        order = np.asarray(_sorted_indices(firsts, self._keys))
        at = int(np.flatnonzero(order == len(there))[0])
        before = {there[i] for i in order[:at]}
        return [n for n in there if n in before]

    def _sorted_part(self, held: pa.Table, ends: npt.NDArray[np.int64], runs: Sequence[int]) -> npt.NDArray[np.int64]:
        """The rows of some runs in order, by their numbers among all rows that are held."""
        numbers = np.concatenate([np.arange(ends[n], ends[n + 1]) for n in runs])
        part = pa.concat_tables([held.slice(ends[n], ends[n + 1] - ends[n]) for n in runs])
        found: npt.NDArray[np.int64] = numbers[np.asarray(_sorted_indices(part, self._keys))]
        return found

    def _taken(self, order: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> pa.Table:
        """The rows of the given numbers; they leave the heads, of which they are the first ones."""
        of = np.searchsorted(ends, order, side="right") - 1
        counts = np.bincount(of, minlength=len(self._heads))
        gap = ends[:-1] - np.cumsum([0, *counts[:-1]])
        rows = pa.concat_tables([head.slice(0, n) for head, n in zip(self._heads, counts.tolist(), strict=True)])
        self._heads = [head.slice(n) for head, n in zip(self._heads, counts.tolist(), strict=True)]
        return rows.combine_chunks().take(pa.array(order - gap[of]))
