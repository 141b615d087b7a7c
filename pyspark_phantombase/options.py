"""The options of the source: names of its own, and Hudi's names for the same things."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from phantombase.timeline.codec.output_options import parse_bytes
from phantombase.timeline.errors import UsageError
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.option import whole_number
from phantombase.timeline.read.pins import PinOptions
from phantombase.timeline.read.table_read import Fallback, Query, ReadOptions
from phantombase.timeline.storage.object_url import hadoop_name
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.table.table import Table

_NAMES = {
    "path": "path",
    "query": "query",
    "hoodie.datasource.query.type": "query",
    "as_of": "as_of",
    "as.of.instant": "as_of",
    "begin": "begin",
    "hoodie.datasource.read.begin.instanttime": "begin",
    "hoodie.datasource.streaming.startoffset": "begin",
    "end": "end",
    "hoodie.datasource.read.end.instanttime": "end",
    "full_scan": "full_scan",
    "hoodie.datasource.read.incr.fallback.fulltablescan.enable": "full_scan",
    "columns": "columns",
    "filter": "filter",
    "partition": "partition",
    "maxfilespertrigger": "max_files",
    "maxbytespertrigger": "max_bytes",
    "maxrowspertrigger": "max_rows",
    "meta_columns": "meta_columns",
    "task_bytes": "task_bytes",
    "data_skipping": "data_skipping",
    "hoodie.enable.data.skipping": "data_skipping",
    "timezone": "timezone",
    "memory_limit": "memory_limit",
    "hoodie.memory.merge.max.size": "memory_limit",
    "spill_dir": "spill_dir",
    "hoodie.memory.spillable.map.path": "spill_dir",
    "failondataloss": "fail_on_data_loss",
    "pin": "pin",
    "pin_for": "pin_for",
}
"""The name of each option, and its meaning. Spark gives the names in lower case."""
_QUERIES = {
    "snapshot": Query.SNAPSHOT,
    "read_optimized": Query.READ_OPTIMIZED,
    "read-optimized": Query.READ_OPTIMIZED,
    "incremental": Query.INCREMENTAL,
}
_STORAGE = "storage."
"""The prefix of the name of an object store's option; Hadoop's names are taken as they are."""
_OF_STREAMS = ("max_files", "max_bytes", "max_rows")
_NOT_OF_STREAMS = ("as_of", "end", "query")
EARLIEST = "earliest"
TASK_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """One use of the source. `meta_columns`: with the columns `_hoodie_...`. `task_bytes`: stored bytes of one task.
    `timezone`: of the table's instants. Of a stream: `read.begin` is where it starts without a checkpoint; `max_files`,
    `max_bytes`, `max_rows`: what writes may have written that one batch takes, 0 for no limit. `pin`: of a query, whose
    tasks renew it, and which then expires; of a stream, which renews it."""

    path: str
    read: ReadOptions
    storage: StorageOptions = StorageOptions()
    meta_columns: bool = True
    task_bytes: int = TASK_BYTES
    max_files: int = 0
    max_bytes: int = 0
    max_rows: int = 0
    timezone: str = ClockOptions().timezone
    pin: PinOptions | None = None

    def open(self) -> Table:
        return Table.open(self.path, self.storage, reading=True).with_clock(ClockOptions(timezone=self.timezone))

    def of_table(self) -> SourceOptions:
        """The same for the complete table: its columns are those of every window."""
        read = replace(self.read, query=Query.SNAPSHOT, begin=None, end=None, fallback=Fallback.NONE)
        return replace(self, read=read)

    def of_window(self, begin: str, end: str, *, part: bool = False) -> SourceOptions:
        """The same for one batch of a stream. `part`: other batches have the rest of the window's file groups, so all
        must be of the state at its end, whatever the fallback for cleaned files."""
        read = replace(
            self.read, query=Query.INCREMENTAL, begin=begin or EARLIEST, end=end, whole_window=True, newest_columns=True
        )
        if part:
            read = replace(read, fallback=Fallback.NONE)
        return replace(self, read=read)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """One write by the source. `conf`: under Hudi's names. `timezone`: of the table's instants, if it is not this
    process's. `take_over`: see `Writer.foreach_batch`."""

    path: str
    conf: Mapping[str, str]
    storage: StorageOptions = StorageOptions()
    timezone: str | None = None
    take_over: str | None = None


@cache
def _cased() -> Mapping[str, str]:
    """Hudi's names that have capitals, by how Spark hands them over."""
    from phantombase.compactor_daemon.hudi_names import hudi_names

    return {name.lower(): name for name in hudi_names() if name != name.lower()}


_OF_SPARK = ("checkpointlocation", "queryname")
"""What Spark itself takes from the options of a stream that is written."""


def sink_options(given: Mapping[str, str], *, streams: bool = False) -> SinkOptions:
    """The options of a write as Spark hands them over, which gives names in lower case. UsageError: no path."""
    own = {"path", "timezone", *(["take_over"] if streams else [])}
    found: dict[str, str] = {}
    storage: dict[str, str] = {}
    conf: dict[str, str] = {}
    for name, value in given.items():
        if name.startswith(_STORAGE) or hadoop_name(name):
            storage[name.removeprefix(_STORAGE)] = value
        elif name.lower() in own:
            found[name.lower()] = value
        elif name.lower() == "meta_columns":  # of a view that takes rows: its columns are matched by name anyway
            _flag(name, value)
        elif not (streams and name.lower() in _OF_SPARK):
            conf[_cased().get(name, name)] = value
    if "path" not in found:
        raise UsageError("no table", expected='df.write.format("phantombase").mode("append").save(PATH)', todo=_VIEW)
    return SinkOptions(
        path=found["path"],
        conf=conf,
        storage=StorageOptions.of(storage),
        timezone=found.get("timezone"),
        take_over=found.get("take_over"),
    )


def stream_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a stream. UsageError: also one that a stream cannot follow."""
    for name, value in given.items():
        meaning = _NAMES.get(name.lower())
        if meaning in _NOT_OF_STREAMS and (meaning, value.lower()) != ("query", "incremental"):
            raise UsageError(
                "a stream has no such option: it is incremental, and runs until it is stopped",
                found=f"{name}={value}",
                expected="`begin`, where it starts without a checkpoint",
                todo="Leave it out, or read a window with spark.read.",
            )
    return source_options({name: value for name, value in given.items() if _NAMES.get(name.lower()) != "query"})


def batch_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a query that is no stream. UsageError: also one of streams."""
    if idle := [name for name in given if _NAMES.get(name.lower()) in _OF_STREAMS]:
        raise UsageError(
            "a query that is no stream reads all at once",
            found=", ".join(f"{name}={given[name]}" for name in idle),
            todo="Leave it out, or use spark.readStream.",
        )
    return source_options(given)


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """The options as Spark hands them over; UsageError: an unknown name, a bad value, or one thing given twice."""
    _refuse_catalog(given)
    found: dict[str, str] = {}
    storage: dict[str, str] = {}
    for name, value in given.items():
        if name.startswith(_STORAGE) or hadoop_name(name):
            storage[name.removeprefix(_STORAGE)] = value
            continue
        meaning = _NAMES.get(name.lower())
        if meaning is None:
            close = difflib.get_close_matches(name.lower(), _NAMES, 1)
            raise UsageError(
                "unknown option of the source phantombase",
                found=name,
                expected=", ".join(sorted(_NAMES)),
                todo=f"Did you mean {close[0]}?" if close else "",
            )
        if found.setdefault(meaning, value) != value:
            raise UsageError(
                "an option is given twice, with different values",
                found=f"{meaning}: {value!r}",
                todo="Give one of them.",
            )
    if "path" not in found:
        raise UsageError("no table", expected='spark.read.format("phantombase").load(PATH)', todo=_VIEW)
    return SourceOptions(
        path=found["path"],
        storage=StorageOptions.of(storage),
        read=ReadOptions(
            query=_query(found.get("query", "snapshot")),
            as_of=found.get("as_of"),
            begin=found.get("begin"),
            end=found.get("end"),
            fallback=_fallback(found),
            filter=found.get("filter"),
            columns=_list(found.get("columns")),
            partition=found.get("partition"),
            data_skipping=_flag("data_skipping", found.get("data_skipping", "true")),
            **_memory(found),
        ),
        timezone=found.get("timezone", ClockOptions().timezone),
        pin=PinOptions.asked(found.get("pin"), found.get("pin_for")),
        meta_columns=_flag("meta_columns", found.get("meta_columns", "true")),
        task_bytes=_number("task_bytes", found, TASK_BYTES),
        max_files=_number("max_files", found, 0),
        max_bytes=_number("max_bytes", found, 0),
        max_rows=_number("max_rows", found, 0),
    )


_VIEW = "In SQL: CREATE TEMPORARY VIEW name USING phantombase OPTIONS (path '...')."


def _refuse_catalog(given: Mapping[str, str]) -> None:
    """UsageError: `CREATE TABLE ... USING phantombase`. Spark would keep the table, and read it without its path."""
    if "provider" in given:
        raise UsageError(
            "Spark's catalog gives a source in Python no path when a table is read, so it can keep no table of it",
            found="CREATE TABLE ... USING phantombase",
            todo=_VIEW,
        )


def _query(text: str) -> Query:
    query = _QUERIES.get(text.lower())
    if query is None:
        raise UsageError("unknown query type", expected=", ".join(_QUERIES), found=text)
    return query


def _fallback(found: Mapping[str, str]) -> Fallback:
    """`failOnDataLoss=false` is what Spark's own streaming sources call the same."""
    lossy = not _flag("failOnDataLoss", found.get("fail_on_data_loss", "true"))
    full = _flag("full_scan", found.get("full_scan", str(lossy)))
    if full is not lossy and "fail_on_data_loss" in found:
        raise UsageError(
            "options that contradict each other",
            expected=f"failOnDataLoss={found['fail_on_data_loss']}",
            found=f"full_scan={found['full_scan']}",
            todo="Leave one of them out.",
        )
    return Fallback.FULL_SCAN if full else Fallback.NONE


def _memory(found: Mapping[str, str]) -> dict[str, Any]:
    """The bounds of a task's memory, as far as they are given."""
    limit = found.get("memory_limit")
    given = {"memory_limit": None if limit is None else parse_bytes(limit), "spill_dir": found.get("spill_dir")}
    return {name: value for name, value in given.items() if value is not None}


def _list(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name for name in (n.strip() for n in text.split(",")) if name)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError("an option is neither true nor false", found=f"{name}={text}", expected="true or false")
    return text.lower() == "true"


def _number(name: str, found: Mapping[str, str], default: int) -> int:
    text = found.get(name)
    if text is None:
        return default
    try:
        number = whole_number(text)
    except ValueError:
        number = 0
    if number < 1:
        raise UsageError("an option is no number above 0", found=f"{name}={text}", expected="a whole number above 0")
    return number
