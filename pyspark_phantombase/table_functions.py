"""Functions of Spark SQL that show a table, its pending compactions, and compact it: `register(spark)` names them.

    SELECT * FROM phantombase_show('/data/rides')
    SELECT * FROM phantombase_plan('/data/rides')
    SELECT * FROM phantombase_compact('/data/rides', schedule => true, sole_writer => true)

Spark evaluates a function in one task, when rows are asked for. The columns have the names that the commands print with
`--json`; what their output has once, such as the table, is left out. An error of phantombase ends the query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.option import check_kinds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOW = {
    "instant": "string", "action": "string", "state": "string", "completion_time": "string", "archived": "boolean",
}  # fmt: skip
_PLAN = {
    "instant": "string", "state": "string", "recommended_executors": "int", "partition": "string", "file_id": "string",
    "base_instant": "string", "base_file": "string", "base_bytes": "bigint",
    "logs": "array<struct<name: string, bytes: bigint>>", "log_bytes": "bigint", "bytes": "bigint",
}  # fmt: skip
_COMPACT = {
    "instant": "string", "attempt": "int", "file_groups": "int", "rows": "bigint", "bytes_written": "bigint",
    "rows_read": "bigint", "bytes_read": "bigint", "seconds": "double", "resumed": "boolean",
}  # fmt: skip
"""The columns of each function's rows, and their types."""
_Options = Mapping[str, str] | None
"""Options of the object store, by name: `map('region', 'eu-west-1')`."""


@dataclass(frozen=True, kw_only=True)
class _Given:
    """The arguments of a call, checked: Spark passes values of any type, and the text `false` would count as true."""

    path: str
    instant: str | None = None
    lock: str | None = None
    archived: bool = False
    schedule: bool = False
    sole_writer: bool = False
    storage_options: _Options = None

    def __post_init__(self) -> None:
        check_kinds(self)
        options = self.storage_options
        if options is not None and not (isinstance(options, dict) and all(isinstance(n, str) for n in options)):
            raise UsageError("storage-options is of another type", expected="map('name', 'value')", found=repr(options))


class Show:
    """The instants of the active timeline; with `archived` those of the archive, too: `timeline show`."""

    def eval(self, path: str, archived: bool = False, storage_options: _Options = None) -> Iterator[tuple[Any, ...]]:
        _Given(path=path, archived=archived, storage_options=storage_options)
        from phantombase.timeline.dashboard.overview import as_json, overview
        from phantombase.timeline.table.table import Table, from_one_snapshot

        def seen() -> Any:
            return as_json(overview(Table.open(path, storage_options, reading=True), archived=archived))

        yield from _rows(_SHOW, from_one_snapshot(seen)["instants"])


class Plan:
    """The operations of the pending compactions, or of the compaction of one `instant`: `timeline plan`."""

    def eval(
        self, path: str, instant: str | None = None, storage_options: _Options = None
    ) -> Iterator[tuple[Any, ...]]:
        _Given(path=path, instant=instant, storage_options=storage_options)
        from phantombase.timeline.dashboard.compactions import plan_facts
        from phantombase.timeline.table.table import Table, from_one_snapshot

        def seen() -> list[dict[str, Any]]:
            table = Table.open(path, storage_options, reading=True)
            pending = [i.requested_time for i in table.load_timeline().pending_compactions]
            return [plan_facts(table, time) for time in (pending if instant is None else [instant])]

        for plan in from_one_snapshot(seen):
            yield from _rows(_PLAN, [{**plan, **operation} for operation in plan["operations"]])


class Compact:
    """Executes the pending compactions in the task, or that of one `instant`: `compactor-daemon compact`. `schedule`:
    first requests one of every file group that has log files; then `lock`, the lock that all writers share, or
    `sole_writer` must be given. UsageError: neither is. MalformedError: file groups were left out that cannot be
    merged; the others are compacted."""

    def eval(
        self,
        path: str,
        schedule: bool = False,
        lock: str | None = None,
        sole_writer: bool = False,
        instant: str | None = None,
        storage_options: _Options = None,
    ) -> Iterator[tuple[Any, ...]]:
        _Given(
            path=path,
            schedule=schedule,
            lock=lock,
            sole_writer=sole_writer,
            instant=instant,
            storage_options=storage_options,
        )
        from phantombase.compactor_daemon.cli.schedule import left_out_line, unmergeable
        from phantombase.compactor_daemon.execution.run_compactions import run_compactions
        from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
        from phantombase.timeline.codec.output_options import OutputOptions
        from phantombase.timeline.dashboard.overview import as_json
        from phantombase.timeline.errors import MalformedError
        from phantombase.timeline.locks.table_lock import check_writers_known, table_lock
        from phantombase.timeline.planning.options import PLAN_NOW
        from phantombase.timeline.planning.schedule import schedule_compaction
        from phantombase.timeline.table.table import Table

        requested = None
        if schedule:
            if instant is not None:
                raise UsageError(
                    "schedule requests a new instant", found=f"instant {instant}", todo="Give one of them."
                )
            check_writers_known(
                lock,
                sole_writer,
                "schedule => true",
                "A plan made while an unknown write is running would lose that write's rows: give lock => '...', or "
                "sole_writer => true.",
            )
            table = Table.open(path, storage_options)
            requested = schedule_compaction(table, table_lock(table.storage, lock, sole_writer=sole_writer), PLAN_NOW)
        ran = run_compactions(
            path,
            instant=instant,
            lock=lock,
            sole_writer=sole_writer,
            execute=ExecuteOptions(executor=Executor.LOCAL),
            output=OutputOptions(),
            attempt=AttemptOptions(),
            storage_options=storage_options,
        )
        if left := unmergeable(requested):
            raise MalformedError(left_out_line(left), path=path, todo="The other file groups are compacted.")
        yield from _rows(_COMPACT, as_json(ran.done))


def _rows(columns: Mapping[str, str], found: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for row in found:
        yield tuple(row[name] for name in columns)


FUNCTIONS: dict[str, tuple[type[Any], Mapping[str, str]]] = {
    "phantombase_show": (Show, _SHOW),
    "phantombase_plan": (Plan, _PLAN),
    "phantombase_compact": (Compact, _COMPACT),
}
"""The name of each function, its class, and its columns."""


def register(spark: SparkSession) -> None:
    """Names the functions in a session. UnsupportedError: a PySpark without table functions in Python."""
    import pyspark

    if not hasattr(spark, "udtf"):
        raise UnsupportedError(
            "table functions in Python", expected="PySpark 3.5 or newer", found=f"PySpark {pyspark.__version__}"
        )
    from pyspark.sql import functions

    for name, (function, columns) in FUNCTIONS.items():
        types = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        made: Any = functions.udtf(function, returnType=types)
        spark.udtf.register(name, made)
