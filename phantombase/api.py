"""Schedule, compact or read with one call; writing begins with `phantombase.writer`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .compactor_daemon.attempt.compact_or_resume import Limit
from .compactor_daemon.execution.run_compactions import Compactions, run_compactions
from .compactor_daemon.jvm_archive import require_pyspark
from .compactor_daemon.options import AttemptOptions, ExecuteOptions
from .timeline.codec.output_options import OutputOptions
from .timeline.errors import UsageError
from .timeline.filter.tree import Filter
from .timeline.locks.table_lock import table_lock
from .timeline.option import path_text, spelled
from .timeline.planning.options import PLAN_NOW, ScheduleOptions
from .timeline.planning.schedule import Scheduled, schedule_compaction
from .timeline.read.export import Rows, read_any
from .timeline.read.pins import PinOptions
from .timeline.read.table_read import Query, ReadOptions
from .timeline.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .compactor_daemon.services.maintain import MaintainStep


@spelled
def read(
    table: Table | str | os.PathLike[str],
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
    storage_options: Mapping[str, str] | None = None,
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
    chosen = replace(options or ReadOptions(), **{name: value for name, value in given.items() if value is not None})
    return Rows.of(_opened(table, storage_options), chosen, PinOptions.asked(pin, pin_for))


@spelled
def read_table(
    table: Table | str | os.PathLike[str],
    options: ReadOptions | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> pa.Table:
    """All rows of a table, given as its path, URL or `Table`, as an Arrow table: `read` with `ReadOptions`.

    The default is a snapshot read: base files merged with log files, also while compactions are pending.
    `storage_options`: see `read`.
    """
    return read_any(_opened(table, storage_options), options or ReadOptions())


def spark_read(spark: SparkSession, path: str, **options: str) -> DataFrame:
    """The rows of a table as of now, as a DataFrame of PySpark, from 4.0 on. Every column may be null.

    Base files without logs are read by Spark itself, where that gives the same rows: columns and filters of a query
    then reach the Parquet reader. The rest is merged by phantombase. `options`: those of the data source `phantombase`.
    UsageError: PySpark is not installed.
    """
    require_pyspark("spark_read")
    from pyspark_phantombase.frame import spark_read as read_by_both  # imported here: needs PySpark

    return read_by_both(spark, path, **options)


@spelled
def schedule(
    table: Table | str | os.PathLike[str],
    options: ScheduleOptions | None = None,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Scheduled:
    """Requests a compaction of a table; by default of every file group with log files, at once.

    `lock`: the table lock that all writers share, `file:PATH` or `zookeeper:HOSTS/BASE/PATH/KEY`; by default that of
    the table's storage: a file in the table, which only phantombase's own writers know, and on an object store the
    lock that Hudi's StorageBasedLockProvider holds. `sole_writer`: no other process writes concurrently;
    without it and without a lock there is a UserWarning, where the command `schedule` refuses. `compact` executes the
    request. `storage_options`: see `read`. UsageError: both are given.
    """
    if lock is not None and sole_writer:
        raise UsageError("give one of lock and sole_writer", found="both")
    if lock is None and not sole_writer:
        warnings.warn(
            "schedule needs to know which other processes write to the table: give lock=, the lock that they share, or "
            "sole_writer=True. A plan made while an unknown write is running would lose that write's rows.",
            stacklevel=2,
        )
    opened = _opened(table, storage_options, reading=False)
    return schedule_compaction(opened, table_lock(opened.storage, lock), options or PLAN_NOW)


@spelled
def compact(
    table: str | os.PathLike[str],
    instant: str | None = None,
    *,
    lock: str | None = None,
    limit_s: float | None = None,
    execute: ExecuteOptions | None = None,
    output: OutputOptions | None = None,
    attempt: AttemptOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Compactions:
    """Executes the pending compactions of a table, earliest first, or only the named `instant`.

    `limit_s`: after this many seconds no instant begins; the next call continues. `lock`: see `schedule`.
    `storage_options`: see `read`.
    """
    return run_compactions(
        path_text(table),
        instant=instant,
        lock=lock,
        output=output or OutputOptions(),
        execute=execute or ExecuteOptions(),
        attempt=attempt or AttemptOptions(),
        limit=Limit(limit_s),
        storage_options=storage_options,
    )


@spelled
def maintain(
    table: str | os.PathLike[str],
    *,
    services: str | None = None,
    schedule: ScheduleOptions | None = None,
    lock: str | None = None,
    sole_writer: bool = False,
    dry_run: bool = False,
    execute: ExecuteOptions | None = None,
    output: OutputOptions | None = None,
    attempt: AttemptOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> tuple[MaintainStep, ...]:
    """Does all that is due on a table, as `compactor-daemon maintain`: requests a compaction by the trigger of
    `schedule`, executes pending ones, then runs `services` (such as `clean,archive`; by default all but orphan files
    and syncs). A step that fails has the error in its answer, and holds no other one back. `lock`, `sole_writer`: see
    `schedule`; one of them is needed. `dry_run`: nothing is changed. `storage_options`: see `read`."""
    from .compactor_daemon.execution.runners import open_runner  # late: services import much that a read does not need
    from .compactor_daemon.services.maintain import Maintenance, maintain_table
    from .compactor_daemon.services.options import ServiceOptions, parse_services, usual_services

    if not dry_run and (lock is None) == (not sole_writer):
        raise UsageError(
            "maintain needs to know which other processes write to the table",
            expected="one of lock and sole_writer",
            found="both" if sole_writer else "neither",
        )
    chosen = usual_services() if services is None else parse_services(services)
    how = Maintenance(
        services=ServiceOptions(chosen={one: one.kind() for one in chosen}),
        requests=schedule or ScheduleOptions(),
        output=output or OutputOptions(),
        attempt=attempt or AttemptOptions(),
        lock=lock,
        sole_writer=sole_writer,
        dry_run=dry_run,
    )
    with open_runner(execute or ExecuteOptions()) as runner:
        return tuple(maintain_table(_opened(path_text(table), storage_options, reading=False), how, runner))


def _opened(
    table: Table | str | os.PathLike[str], storage_options: Mapping[str, str] | None, *, reading: bool = True
) -> Table:
    return table if isinstance(table, Table) else Table.open(path_text(table), storage_options, reading=reading)
