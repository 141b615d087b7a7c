"""The rows of a table with one call, and how calls open a table. See `services`, `reports` and `writer`, too."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from phantombase.timeline.filter.possible import bound
from phantombase.timeline.filter.tree import Filter, parse_filter

from .compactor_daemon.jvm_archive import require_pyspark
from .timeline.errors import UsageError
from .timeline.filter.possible import matching
from .timeline.format.table_config import load_table_config
from .timeline.locks.pause import refuse_paused
from .timeline.locks.table_lock import ProcessLock, TableLock, check_writers_known, table_lock
from .timeline.option import path_text, spelled
from .timeline.read.export import Rows, read_any
from .timeline.read.pins import PinOptions
from .timeline.read.table_read import Query, ReadOptions
from .timeline.table.history import history_rows, history_table, read_history
from .timeline.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


AnyTable: TypeAlias = Table | str | os.PathLike[str]
Given: TypeAlias = Mapping[str, str] | None


def opened(table: AnyTable, storage_options: Given, *, reading: bool = False) -> Table:
    """The table of a call. Errors as in `Table.open`: a table that is open may have been removed since."""
    if isinstance(table, Table):
        load_table_config(table.storage)
        return table
    return Table.open(path_text(table), storage_options, reading=reading)


def locked(
    table: AnyTable,
    storage_options: Given,
    lock: str | None,
    sole_writer: bool,
    dry_run: bool,
    who: str,
    risk: str,
    *,
    service: bool = False,
) -> tuple[Table, TableLock]:
    """The table and the lock of a call that changes it. `who` needs the lock, else there is this `risk`. A dry run
    takes no lock, so none need be known; one that is named is checked. `service`: a pause of the table holds the call
    (PausedError)."""
    if not dry_run or (lock is not None and sole_writer):
        check_writers_known(lock, sole_writer, who, risk, names="lock= and sole_writer=True")
    found = opened(table, storage_options)
    if service and not dry_run:
        refuse_paused(found.storage, who)
    asked = None if dry_run and lock is None else table_lock(found.storage, lock, sole_writer=sole_writer)
    return found, ProcessLock(found.storage.location) if dry_run or asked is None else asked


@spelled
def read(
    table: AnyTable,
    columns: Sequence[str] | None = None,
    *,
    filter: Filter | str | None = None,
    limit: int | None = None,
    as_of: str | None = None,
    query: Query | str | None = None,
    begin: str | None = None,
    end: str | None = None,
    partition: str | None = None,
    options: ReadOptions | None = None,
    storage_options: Given = None,
    pin: str | None = None,
    pin_for: str | None = None,
) -> Rows:
    """The rows of a table, given as its path, URL or `Table`, for Arrow, DuckDB, Polars and pandas.

    `columns`: only these, in the table's order. `filter`: only rows for which it is true, as in SQL's WHERE:
    `"fare > 10 and zone in ('a', 'b')"`. `limit`: the most rows. `as_of`: as of an instant, or a time like
    `2026-11-21 09:00:00` in the zone of the table's instants. `partition`: only partitions at or under this path.
    `query`: `snapshot`, the default, `read-optimized`, or with a window (after `begin`, up to and with `end`:
    completion times, on version 6 requested times) `incremental`: rows that its writes wrote, or `changes`: what they
    did. `options`: everything else. `storage_options`: of an object store, under obstore's, the environment's or
    Hadoop's names. `pin`: while rows are read, a pin of this name tells phantombase's cleaners to keep them; `pin_for`
    is how long it outlives a process that was killed, `2h` by default. Hudi's own cleaner knows no pins.
    `phantombase:history:PATH` as the table is the history of the work on one, see `history`.
    """
    given: dict[str, Any] = {
        "query": query,
        "columns": columns,
        "filter": filter,
        "limit": limit,
        "as_of": as_of,
        "begin": begin,
        "end": end,
        "partition": partition,
    }
    if isinstance(table, str) and table.startswith(_OWN):
        if begin or end or partition or as_of or query or pin or pin_for or options is not None:
            raise UsageError(
                f"the table {HISTORY} is read with columns, filter and limit only",
                found=table,
                todo="Leave the rest out.",
            )
        return _history_of(table, columns, filter, limit, storage_options)
    chosen = replace(options or ReadOptions(), **{name: value for name, value in given.items() if value is not None})
    return Rows.of(opened(table, storage_options, reading=True), chosen, PinOptions.asked(pin, pin_for))


_OWN, HISTORY = "phantombase:", "phantombase:history"
"""What is read under a name instead of a path, and the history of a table: this name, a colon and its path."""


@dataclass(frozen=True, repr=False)
class _HistoryRows(Rows):
    """The history of a table, as the rows of a table."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.to_arrow().to_batches()

    def to_arrow(self) -> pa.Table:
        rows, chosen = history_table(history_rows(read_history(self.table.storage))), self.options
        if chosen.filter is not None:
            given = parse_filter(chosen.filter) if isinstance(chosen.filter, str) else chosen.filter
            rows = matching(bound(given, rows.schema), rows)
        if chosen.columns is not None:
            rows = rows.select([name for name in rows.column_names if name in chosen.columns])
        return rows if chosen.limit is None else rows.slice(0, min(chosen.limit, rows.num_rows))


def _history_of(
    name: str, columns: Sequence[str] | None, filter_: Filter | str | None, limit: int | None, storage_options: Given
) -> Rows:
    path = name.removeprefix(f"{HISTORY}:")
    if path in (name, ""):
        raise UsageError("no such table", found=name, expected=f"{HISTORY}:PATH, or a path or URL")
    options = ReadOptions(columns=None if columns is None else tuple(columns), filter=filter_, limit=limit)
    every = history_table(()).schema
    if unknown := [one for one in columns or () if one not in every.names]:
        raise UsageError("no such columns", path=name, expected=", ".join(every.names), found=", ".join(unknown))
    found = _HistoryRows(opened(path, storage_options, reading=True), options, every)
    return replace(found, schema=pa.schema([one for one in every if columns is None or one.name in columns]))


@spelled
def read_table(table: AnyTable, options: ReadOptions | None = None, *, storage_options: Given = None) -> pa.Table:
    """All rows of a table, given as its path, URL or `Table`, as an Arrow table: `read` with `ReadOptions`.

    The default is a snapshot read: base files merged with log files, also while compactions are pending.
    `storage_options`: see `read`.
    """
    return read_any(opened(table, storage_options, reading=True), options or ReadOptions())


@spelled
def spark_read(spark: SparkSession, path: str | os.PathLike[str], **options: str) -> DataFrame:
    """The rows of a table as of now, as a DataFrame of PySpark, from 4.0 on. Every column may be null.

    Base files without logs are read by Spark itself, where that gives the same rows: columns and filters of a query
    then reach the Parquet reader. The rest is merged by phantombase. `options`: those of the data source `phantombase`.
    UsageError: PySpark is not installed. SparkError: the session was stopped.
    """
    require_pyspark("spark_read")
    if not hasattr(spark, "sparkContext"):
        raise UsageError("not a session of Spark", expected="a SparkSession", found=repr(spark))
    from pyspark_phantombase.batch_reader import spark_read as read_by_both  # imported here: needs PySpark

    from .compactor_daemon.execution.spark_session import living

    living(spark.sparkContext)
    return read_by_both(spark, path_text(path), **options)
