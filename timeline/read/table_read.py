"""Reads of a table to Arrow: snapshot, read-optimized, both also as of an instant, and incremental.

A read selects file slices (`scan_slices`), then streams each. Only requested columns are read, and only partitions at
or under the requested path are listed.

`skip` leaves out file slices by the column statistics of the metadata table, before any of their files is opened. Each
value of a merged row comes from one file of its slice; after partial updates a row has values of several files. So a
slice has no matching row if some condition of the filter holds in no file. A file without statistics may hold any row.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import pyarrow as pa

from ..codec.arrow_schema import project
from ..codec.avro_schema import COMMIT_SEQNO, COMMIT_TIME, FILE_NAME
from ..codec.output_options import OutputOptions
from ..codec.parquet_read import Share
from ..errors import MalformedError, MissingFileError, UnsupportedError, UsageError
from ..event_log import get_logger
from ..filter.possible import UNKNOWN, Bounds, BoundsOf, may_match_together
from ..filter.tree import Filter
from ..instants.timeline import Timeline
from ..merge.rule import SliceRules, Where
from ..merge.slice_stream import SliceStream
from ..merge.table_rules import slice_rules
from ..metadata_table.column_range import stats_bounds
from ..metadata_table.read import named_files_of, read_entries
from ..metadata_table.records.keys import COLUMN_STATS, column_stats_key
from ..option import check_least, least_of, option, same_option, spelled_class
from ..prefetch import at_once
from ..table.schema_finder import WasVisible
from ..table.table import Snapshot, Table, TableSchema, from_one_snapshot
from ..view.view import BaseFile, FileSlice, GroupKey, LogFile, TableView, latest_base_slice
from .incremental import MARKS, Origin, Origins, find_origins, plan_increment
from .pruning import prune, where_of
from .windows import Window, check_as_of, check_as_of_still

LEAST_FILES = 32
"""With fewer files, reading their footers costs less than the index."""

_NOT_STORED = {COMMIT_TIME, COMMIT_SEQNO, FILE_NAME}
"""Compactions rewrite these columns, so a file's statistics may differ from the rows that a reader gets."""

_log = get_logger()


def skip(table: Table, slices: Sequence[FileSlice], where: Where | None) -> tuple[FileSlice, ...]:
    """The slices that may have a matching row. An unreadable index is not used, and a warning is logged.
    The view of the slices must have been loaded before: then each of its files has complete statistics, or none."""
    if where is None or COLUMN_STATS not in table.config.built_metadata_partitions:
        return tuple(slices)
    files = [file for slice_ in slices for file in slice_.files]
    if len(files) < LEAST_FILES:
        return tuple(slices)
    try:
        known = _bounds(table, files, where.schema, sorted(where.columns - _NOT_STORED))
    except (MalformedError, UnsupportedError, MissingFileError) as error:
        _log.warning("column_statistics_not_used", path=table.storage.base_path, reason=str(error))
        return tuple(slices)

    def bounds(file: BaseFile | LogFile) -> BoundsOf:
        return lambda column: known.get((file.path, column), UNKNOWN)

    return tuple(s for s in slices if may_match_together(where.filter, [bounds(file) for file in s.files]))


def _bounds(
    table: Table, files: Sequence[BaseFile | LogFile], schema: pa.Schema, columns: Sequence[str]
) -> Mapping[tuple[str, str], Bounds]:
    keys = {
        column_stats_key(column, file.partition, str(file.name)): (file.path, column)
        for file in files
        for column in columns
    }
    entries = read_entries(table, COLUMN_STATS, keys.keys())
    return {keys[key]: stats_bounds(record, schema.field(keys[key][1]).type) for key, record in entries if key in keys}


class Query(Enum):
    """The rows that a reader gets."""

    SNAPSHOT = "snapshot"
    READ_OPTIMIZED = "read-optimized"
    INCREMENTAL = "incremental"
    CHANGES = "changes"


class Fallback(Enum):
    """The action of an incremental read if a clean has removed files of the state at the end of its window."""

    NONE = "none"
    FULL_SCAN = "full-scan"


SHOWN_ROWS = 20
"""Rows that a terminal shows unless a limit is given."""


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """One read. `partition`: at or under this path; `threads`: slices to read in parallel. `as_of`: a point in time,
    see `Table.point_in_time`. `begin`, `end`: the window of an incremental read, after begin, up to and including end:
    completion times on versions 8 and 9, requested times on version 6; `earliest` begins before all. `net`: for a
    change feed, one change for each key, from the begin to the end of the window. `filter`: only rows for which it is
    true, a text as in `parse_filter` or a tree. `newest_columns`: a window that ends in the past has the columns of the
    newest write, as each batch of a stream, not those of its end. `whole_window`: the window must reach `end`.
    Otherwise, on version 6, it ends before a pending write below `end`. UsageError, here or by the read: an option that
    means nothing in a read of this kind."""

    query: Query = option(Query.SNAPSHOT, "What to read, see above")
    as_of: str | None = option(None, "Read as of an instant, 'yyyy-MM-dd HH:mm:ss.SSS' or 'yyyy-MM-dd'.", metavar="I")
    begin: str | None = option(None, "Incremental, changes: writes after this time, or `earliest`.", metavar="I")
    end: str | None = option(None, "Incremental, changes: writes up to this time; default: the newest.", metavar="I")
    fallback: Fallback = option(
        Fallback.NONE, "Incremental, if files of the window were cleaned: refuse, or read what is left."
    )
    whole_window: bool = False
    newest_columns: bool = False
    net: bool = option(False, "Changes: one for each key, from begin to end.")
    columns: tuple[str, ...] | None = None
    filter: Filter | str | None = None
    limit: int | None = option(
        None, f"At most N rows; default: {SHOWN_ROWS} without --output, else all.", metavar="N", least=0
    )
    partition: str | None = option(None, "Only partitions at or under this path, e.g. year=2026.", metavar="P")
    data_skipping: bool = option(True, "Filters use the metadata table's column statistics, if it has them.")
    threads: int = 2
    batch_rows: int = 65_536
    memory_limit: int = same_option(OutputOptions, "memory_limit")
    spill_dir: str | None = same_option(OutputOptions, "spill_dir")

    def __post_init__(self) -> None:
        check_least(self, {**least_of(ReadOptions), "threads": 1, "batch_rows": 1})
        if self.columns == ():
            raise UsageError("no column is asked for", expected="columns, or None for all of them", found="none")
        if self.whole_window and self.end is None:
            raise UsageError("whole_window needs the end that the window must reach", expected="end", found="none")

    @property
    def first_state(self) -> str | None:
        """The earliest state of the table that a window needs: a change feed also compares with that of its begin."""
        return self.begin if self.query is Query.CHANGES else self.end


@dataclass(frozen=True)
class Scan:
    """The plan of one read: slices of one view, under one schema. `window`: of an incremental read; its fixed end is
    the begin of the next read. `share`: the part of the base files that this scan reads, while other scans read the
    rest; then no slice has logs. `origins`: by slice, the inputs of the table services whose time its rows may have.
    `exact`: filter of the rows after the times of writes are restored."""

    table: Table
    slices: tuple[FileSlice, ...]
    rules: SliceRules
    options: ReadOptions
    where: Where | None = None
    window: Window | None = None
    share: Share | None = None
    origins: Mapping[GroupKey, tuple[Origin, ...]] = field(default_factory=dict)
    exact: Where | None = None

    @property
    def schema(self) -> pa.Schema:
        columns = self.options.columns
        return self.rules.schema if columns is None else project(self.rules.schema, columns)

    def slice_batches(self, slice_: FileSlice) -> Iterator[pa.RecordBatch]:
        if slice_.key in self.origins:
            return self._batches_of_writes(slice_)
        stream = self._stream(slice_, self.options.columns)
        return stream.base_batches() if self.options.query is Query.READ_OPTIMIZED else stream.batches()

    def _stream(self, slice_: FileSlice, columns: Iterable[str] | None) -> SliceStream:
        wanted = None if columns is None else tuple(dict.fromkeys(columns))
        return SliceStream(self.table.storage, slice_, self.rules, wanted, self.where, self.share)

    def _batches_of_writes(self, slice_: FileSlice) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, each with the time of its write."""
        assert self.exact is not None

        def marks(origin: Origin) -> Iterator[pa.RecordBatch]:
            try:
                for one in origin.slices:
                    yield from SliceStream(self.table.storage, one, self.rules, MARKS).batches()
            except MissingFileError as error:  # rows without a known origin are included, as after the clean
                _log.warning("cleaned_before_a_table_service", table=self.table.storage.base_path, path=error.path)

        origins = Origins(origins=self.origins[slice_.key], read=marks)
        stream = self._stream(slice_, [*self.schema.names, *MARKS, *self.exact.columns])
        for batch in origins.restored(stream.batches()):
            rows = self.exact.rows(pa.Table.from_batches([batch])).select(self.schema.names)
            yield from rows.combine_chunks().to_batches()

    def parts(self) -> Iterator[Iterator[pa.RecordBatch]]:
        return (self.slice_batches(slice_) for slice_ in self.slices)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, one slice after the other. MissingFileError: a file was cleaned during the read."""
        return limited((batch for slice_ in self.slices for batch in self.slice_batches(slice_)), self.options.limit)

    def to_table(self) -> pa.Table:
        """All rows, slices read in parallel; with a limit one after the other, until it is reached."""
        if self.options.limit is not None:
            return pa.Table.from_batches(self.batches(), schema=self.schema)
        parts = at_once(self.slices, lambda s: list(self.slice_batches(s)), self.options.threads)
        return pa.Table.from_batches([batch for part in parts for batch in part], schema=self.schema)


def limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows; reads only the batches that these need."""
    left = limit
    while left is None or left > 0:
        batch = next(batches, None)
        if batch is None:
            return
        yield batch if left is None else batch.slice(0, min(left, batch.num_rows))
        left = None if left is None else left - batch.num_rows


def plan_read(table: Table, options: ReadOptions) -> Scan:
    """Loads a view, by the current settings, and selects the slices.
    UsageError: unknown columns, or an impossible point or window."""
    _check_query(options)
    if options.query is Query.INCREMENTAL:
        return _plan_window(table.snapshot(cached=False), options)
    seen = table.snapshot(records=False)
    table = replace(table, config=seen.config)
    as_of = None if options.as_of is None else table.point_in_time(options.as_of)
    brief = as_of is None and options.query is Query.SNAPSHOT
    view = seen.load_view(options.partition, as_of=as_of, brief=brief, named=named_files_of(seen))
    if as_of is not None:
        check_as_of(table.with_timeline(view.timeline), as_of)
        check_as_of_still(table.with_timeline(view.timeline), as_of)
        options = replace(options, as_of=as_of)
    seen = seen.with_timeline(view.timeline)
    schema = _schema(seen, options, requested_by(options.as_of))
    rules = rules_of_read(seen, schema, options, options.as_of)
    return _scan(table, scan_slices(view, options), rules, options)


def _plan_window(table: Table, options: ReadOptions) -> Scan:
    full_scan = options.fallback is Fallback.FULL_SCAN
    found = plan_increment(
        table, options.begin, options.end, options.partition, full_scan=full_scan, whole=options.whole_window
    )
    state, visible = found.state, visible_in(options, found.window, found.timeline)
    schema = _schema(table.with_timeline(found.timeline), options, visible)
    hidden = state.hidden if found.rows is None else state.hidden | found.services.log_compactions
    rules = rules_of_read(table.with_timeline(state.view.timeline), schema, options, state.as_of, hidden)
    scan = _scan(table, found.slices, rules, options, found.rows)
    origins = {} if found.rows is None else find_origins(state, found.slices, found.services)
    if origins:
        scan = _of_writes(scan, found.slices, origins, found.rows)
    return replace(scan, window=found.window)


def rules_of_read(
    table: Snapshot, schema: TableSchema, options: ReadOptions, as_of: str | None, hidden: frozenset[str] | None = None
) -> SliceRules:
    """The rules for merging the slices of a read; `hidden`: the log blocks that its window hides."""
    merging = table.config.has_logs and options.query is not Query.READ_OPTIMIZED
    rules = slice_rules(table, schema, as_of=as_of, merging=merging, batch_rows=options.batch_rows)
    rules = replace(rules, memory_bytes=options.memory_limit, spill_folder=options.spill_dir)
    return rules if hidden is None else replace(rules, visibility=replace(rules.visibility, hidden=hidden))


def _of_writes(
    scan: Scan, slices: Sequence[FileSlice], origins: Mapping[GroupKey, tuple[Origin, ...]], rows: Filter | None
) -> Scan:
    """The scan whose rows get back the times of their writes; `rows`: those of the window, by times or stamps."""
    own = where_of([f for f in (scan.options.filter,) if f is not None], scan.table.config, scan.rules.schema)
    first = scan
    if own is not None and COMMIT_TIME in own.columns:  # the filter needs the times of writes, which files lack
        first = _scan(scan.table, slices, scan.rules, replace(scan.options, filter=None), rows)
    return replace(first, options=scan.options, origins=origins, exact=scan.where)


def _scan(
    table: Table, slices: Sequence[FileSlice], rules: SliceRules, options: ReadOptions, also: Filter | None = None
) -> Scan:
    """`also`: a filter besides that of the options."""
    if not table.config.has_logs and (log := next((log for s in slices for log in s.logs), None)) is not None:
        raise MalformedError("a log file in a COPY_ON_WRITE table", path=f"{table.storage.base_path}/{log.path}")
    where = where_of([f for f in (options.filter, also) if f is not None], table.config, rules.schema)
    kept, where = prune(table, slices, where, rules)
    # Statistics have the column names of their time, and count a column that a file lacks as nulls.
    defaulted = {path[0] for path in rules.defaults.values}
    skips = options.data_skipping and not rules.names and (where is None or not defaulted & where.columns)
    read = skip(table, kept, where) if skips else kept
    for slice_ in read:
        slice_.check_whole(table.storage.base_path)
    return Scan(table, read, rules, options, where)


def _check_query(options: ReadOptions) -> None:
    """UsageError: an option that means nothing in such a read."""
    incremental = options.query is Query.INCREMENTAL
    if options.query is Query.CHANGES:
        raise UsageError("a change feed is not read as rows of the table", todo="Use `phantombase.read`.")
    if not incremental and (options.begin is not None or options.end is not None):
        raise UsageError(
            "begin and end belong to an incremental read",
            found=options.query.value,
            todo="Leave them out, or read with the query incremental.",
        )
    if incremental and options.as_of is not None:
        raise UsageError(
            "an incremental read has an end, no as-of point", found=options.as_of, todo="Give an end instead."
        )
    if not incremental and options.fallback is not Fallback.NONE:
        raise UsageError("a fallback belongs to an incremental read", found=options.query.value, todo="Leave it out.")
    if not incremental and (options.whole_window or options.newest_columns):
        name = "whole_window" if options.whole_window else "newest_columns"
        raise UsageError(f"{name} belongs to a read with a window", expected="begin", found=options.query.value)
    if options.net:
        raise UsageError("net changes belong to a change feed", expected="query changes", found=options.query.value)


def requested_by(as_of: str | None) -> WasVisible | None:
    """Which writes are in the state as of a time; None: all."""
    return None if as_of is None else lambda write: write.requested_time <= as_of


def visible_in(options: ReadOptions, window: Window, timeline: Timeline) -> WasVisible | None:
    """Which writes are in the state at a window's end, whose columns the window has; None: all."""
    if options.end is None or options.newest_columns:
        return None
    return lambda write: timeline.moment_of(write) <= window.end


def _schema(table: Snapshot, options: ReadOptions, then: WasVisible | None) -> TableSchema:
    """The schema of a past state, None for the newest one, checked as `check_columns` does."""
    schema = table.newest_schema(then=then)
    check_columns(schema, options.columns)
    return schema


def check_columns(schema: TableSchema, columns: Sequence[str] | None) -> None:
    """UsageError: requested columns that the schema lacks."""
    unknown = set(columns or ()) - set(schema.arrow.names)
    if unknown:
        near = difflib.get_close_matches(min(unknown), schema.arrow.names, n=1)
        raise UsageError(
            "no such column",
            expected=", ".join(schema.arrow.names),
            found=", ".join(sorted(unknown)),
            todo=f"Did you mean {near[0]}?" if near else "",
        )


def scan_slices(view: TableView, options: ReadOptions) -> tuple[FileSlice, ...]:
    """The slices that a reader merges; for read-optimized, the base files as slices without logs (pure)."""
    if options.query is Query.SNAPSHOT:
        return tuple(view.slices(options.as_of))
    found = (latest_base_slice(g, options.as_of) for g in view.living(options.as_of))
    return tuple(s for s in found if s is not None)


def read_table(table: Table, options: ReadOptions | None = None) -> pa.Table:
    """All rows of a read as an Arrow table; reads everything again if a file was removed during the read."""
    chosen = options or ReadOptions()
    return from_one_snapshot(lambda: plan_read(table, chosen).to_table())
