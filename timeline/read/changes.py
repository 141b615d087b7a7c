"""The change feed: which rows the writes of a window inserted, updated and deleted, each with its row before and after.

The feed needs no support by the table's writers. The feed of one write is the difference between the states before and
after it; the feed of a window is computed write by write, or, `net`, from its begin to its end in one step.

Rows that only moved between files are not changes: they keep their commit times, or get them back (`origins`). The
commit time alone does not show every change: under event time, a stale row may replace a delete and lose against the
base file, whose old row is visible again; and a stale row may give columns to a row that keeps its commit time
(`Sides.compared`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.arrow_schema import project
from ..codec.avro_schema import COMMIT_TIME, META_COLUMNS, RECORD_KEY
from ..codec.columns import flat
from ..codec.row_hash import KeyLookup, row_hashes
from ..errors import UsageError
from ..format.record_key import looks_like_bucket
from ..format.table_config import MergeMode
from ..merge.rule import SliceRules
from ..merge.slice_stream import SliceStream
from ..record_fields import gathered
from ..table.table import Snapshot, Table, TableSchema
from ..view.log_blocks import slice_blocks
from ..view.view import FileSlice, GroupKey
from .incremental import MARKS, Origin, Origins, WindowWrites, find_origins, find_window_writes, load_window
from .table_read import Fallback, Query, ReadOptions, Scan, check_columns, limited, plan_read, rules_of_read, visible_in
from .windows import EARLIEST, Window, WindowState, check_still_whole, completed_writes, earliest_whole, load_state

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
    `before`: the earlier rows. `gone`: earlier rows that were deleted together, whatever replaced them. `marks`: keys,
    commit times and compared columns of the later rows; `after`: the later rows with all columns. `compared`: columns
    that also show a change, where rows of one commit time may differ."""

    before: Callable[[], Iterable[pa.RecordBatch]]
    gone: Callable[[], Iterable[pa.RecordBatch]]
    marks: Callable[[], Iterable[pa.RecordBatch]]
    after: Callable[[], Iterable[pa.RecordBatch]]
    compared: tuple[str, ...] = ()


def changes(sides: Sides, rows: pa.Schema, instant: str | None) -> Iterator[pa.RecordBatch]:
    """The changes; deletes first. `rows`: the columns of a row. `instant`: of the write, None: that of each later row.
    A row has changed if its commit time or a compared column has. Memory holds keys and commit times of the later rows,
    and the earlier rows of those that were updated."""
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
    """Distinct keys with the version and row number of their first row, and the earlier rows found for them so far."""

    def __init__(
        self, keys: pa.Array, versions: pa.Array, first: npt.NDArray[np.int64], compared: Sequence[str]
    ) -> None:
        self._lookup = KeyLookup(keys)
        self._versions = versions
        self._compared = compared
        self.first = first
        self.met = np.zeros(len(keys) + 1, np.bool_)
        """Whether there is an earlier row of the key. The last position stands for no key."""
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
        """The positions of the rows' keys, -1 for unknown keys."""
        return self._lookup.find(batch.column(RECORD_KEY))

    def meet(self, earlier: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Records earlier rows and returns the positions of their keys."""
        places = self.places(earlier)
        here = np.flatnonzero(places >= 0)
        there = places[here]
        same = pc.equal(_versions(earlier, self._compared).take(pa.array(here)), self._versions.take(pa.array(there)))
        self.met[there] = True
        self.updated[there] = ~np.asarray(pc.fill_null(same, False))
        return places


def _versions(batch: pa.RecordBatch, compared: Sequence[str]) -> pa.Array:
    """The version of each row: it differs between two rows of a key if one has replaced or changed the other."""
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


@dataclass(frozen=True)
class ChangePart:
    """File groups between which keys may have moved, before and after: one group, or what replaced several.
    `gone`: slices that other data replaced completely. `instant`: the write, None where there may be several.
    `origins`: the inputs of the table services between the two."""

    before: tuple[FileSlice, ...]
    gone: tuple[FileSlice, ...]
    after: tuple[FileSlice, ...]
    old_rules: SliceRules
    new_rules: SliceRules
    instant: str | None
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True)
class ChangeScan:
    """The plan of one read of a change feed, with the interface of `Scan`. `slices`: its parts."""

    table: Table
    options: ReadOptions
    rows: pa.Schema
    window: Window
    slices: tuple[ChangePart, ...]

    @property
    def schema(self) -> pa.Schema:
        return change_schema(self.rows)

    def slice_batches(self, part: ChangePart) -> Iterator[pa.RecordBatch]:
        whole = (*self.rows.names, *MARKS)
        compared = self._compared(part)
        origins = Origins(origins=part.origins, read=lambda one: self._read(one.slices, part.new_rules, MARKS))
        sides = Sides(
            before=lambda: self._read(part.before, part.old_rules, whole),
            gone=lambda: self._read(part.gone, part.old_rules, whole),
            marks=lambda: origins.restored(self._read(part.after, part.new_rules, (*MARKS, *compared))),
            after=lambda: origins.restored(self._read(part.after, part.new_rules, whole)),
            compared=compared,
        )
        for batch in changes(sides, self.rows, part.instant):
            for start in range(0, batch.num_rows, self.options.batch_rows):
                yield batch.slice(start, self.options.batch_rows)

    def _compared(self, part: ChangePart) -> tuple[str, ...]:
        """All data columns, if a stale row may have given some to a row that keeps its commit time; reads log headers.
        That row then lacked them: it is in an earlier block of partial updates, or null may mean "not given"."""
        rule, storage = part.old_rules.merge, self.table.storage
        if rule.mode is not MergeMode.EVENT_TIME:
            return ()
        if rule.unset is not None:
            late = not rule.unset.stamped
        else:
            late = any(block.is_partial for one in part.before for block in slice_blocks(storage, one))
        return tuple(name for name in self.rows.names if name not in META_COLUMNS) if late else ()

    def parts(self) -> Iterator[Iterator[pa.RecordBatch]]:
        return (self.slice_batches(part) for part in self.slices)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All changes, write after write. MissingFileError: a file was cleaned during the read."""
        return limited((batch for part in self.parts() for batch in part), self.options.limit)

    def to_table(self) -> pa.Table:
        return pa.Table.from_batches(list(self.batches()), schema=self.schema)

    def _read(self, slices: Iterable[FileSlice], rules: SliceRules, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for one in slices:
            yield from SliceStream(self.table.storage, one, rules, tuple(dict.fromkeys(columns))).batches()


def plan(table: Table, options: ReadOptions) -> Scan | ChangeScan:
    """The plan of a read of any query type."""
    return plan_changes(table, options) if options.query is Query.CHANGES else plan_read(table, options)


def plan_changes(table: Table, options: ReadOptions) -> ChangeScan:
    """The parts of a change feed; reads no data files.
    UsageError: an impossible window, or one whose begin is cleaned; the error names the earliest that works."""
    if options.filter is not None or options.as_of is not None:
        raise UsageError(
            "a change feed takes neither a filter nor an as-of point", todo="Leave them out, and filter what is read."
        )
    if options.fallback is not Fallback.NONE:
        raise UsageError("a fallback belongs to an incremental read", found=options.query.value, todo="Leave it out.")
    seen, window = load_window(table, options.begin, options.end, whole=options.whole_window)
    earliest = earliest_whole(seen)
    if window.begin < earliest:
        what = "files of the table at the begin of the window have been cleaned"
        expected = f"a begin from {earliest} on"
        raise UsageError(what, path=table.storage.base_path, expected=expected, found=window.begin or "earliest")
    schema = seen.newest_schema(then=visible_in(options, window, seen.timeline))
    check_columns(schema, options.columns)
    feed = _Feed(table=seen, schema=schema, options=options)
    rows = schema.arrow if options.columns is None else project(schema.arrow, options.columns)
    parts = tuple(feed.parts(window))
    check_still_whole(seen, window.begin)
    return ChangeScan(table, options, rows, window, parts)


@dataclass(frozen=True, kw_only=True)
class _Feed:
    table: Snapshot
    schema: TableSchema
    options: ReadOptions

    def parts(self, window: Window) -> Iterator[ChangePart]:
        """The parts of each step of the window, earliest first."""
        before = None if window.begin == EARLIEST else self._state(window.begin)
        for step in self._steps(window):
            found = find_window_writes(self.table, step)
            after = self._state(step.end)
            if self.options.net or found.writes or found.unlisted:
                yield from self._between(before, after, found)
            before = after

    def _steps(self, window: Window) -> list[Window]:
        """The window itself, or one for each of its writes, and for each compaction that left out rows past their
        time: the next write has not deleted these."""
        if self.options.net:
            return [window] if window.begin < window.end else []
        found = find_window_writes(self.table, window)
        writes = (w for w in completed_writes(self.table.timeline) if w.requested_time in found.writes)
        moments = sorted({self.table.timeline.moment_of(w) for w in writes})
        left_out = {moment for moment in found.left_out if window.begin < moment}
        if found.unlisted and not moments and window.begin < window.end:  # all its writes are archived
            moments = [window.end]
        return [Window(begin=b, end=e) for b, e in pairwise([window.begin, *sorted({*moments, *left_out})])]

    def _state(self, moment: str) -> WindowState:
        return load_state(self.table, moment, self.options.partition)

    def _between(self, before: WindowState | None, after: WindowState, found: WindowWrites) -> Iterator[ChangePart]:
        old = {} if before is None else {g.key: s for g, s in before.slices()}
        new = {g.key: s for g, s in after.slices()}
        left = old.keys() - new.keys()
        there = old.keys() | new.keys()
        touched = there if found.groups is None else there & (found.groups | left)
        several = self.options.net or found.unlisted or len(found.writes) != 1
        instant = None if several else min(found.writes)
        gone = frozenset() if self.options.net else found.replaced & left
        moved = {partition for partition, _ in left} | (_exchanging(touched) if several else set())
        groups = gathered(((key[0], "") if key[0] in moved else key, key) for key in sorted(touched))
        origins = find_origins(after, [new[k] for k in touched if k in new], found)
        old_rules = self._rules(after if before is None else before, frozenset())
        new_rules = self._rules(after, found.log_compactions)
        for keys in groups.values():
            yield ChangePart(
                before=tuple(old[k] for k in keys if k in old and k not in gone),
                gone=tuple(old[k] for k in keys if k in gone),
                after=tuple(new[k] for k in keys if k in new),
                old_rules=old_rules,
                new_rules=new_rules,
                instant=instant,
                origins=tuple(dict.fromkeys(one for k in keys for one in origins.get(k, ()))),
            )

    def _rules(self, state: WindowState, also_hidden: frozenset[str]) -> SliceRules:
        """`also_hidden`: log compactions whose originals are read instead, since the originals keep commit times."""
        timeline, hidden = state.view.timeline, state.hidden | also_hidden
        return rules_of_read(self.table.with_timeline(timeline), self.schema, self.options, state.as_of, hidden)


def _exchanging(touched: Iterable[GroupKey]) -> set[str]:
    """Partitions in which several writes may have deleted a key in one file group and put it into another (pure).
    Under a bucket index the file group of a key never changes."""
    count = Counter(partition for partition, file_id in touched if not looks_like_bucket(file_id))
    return {partition for partition, groups in count.items() if groups > 1}
