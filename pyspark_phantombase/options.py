"""The options of the source: names of its own, and Hudi's names for the same things (pure)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from phantombase.timeline.errors import UsageError
from phantombase.timeline.read.table_read import Fallback, Query, ReadOptions

_NAMES = {
    "path": "path",
    "query": "query",
    "hoodie.datasource.query.type": "query",
    "as_of": "as_of",
    "as.of.instant": "as_of",
    "begin": "begin",
    "hoodie.datasource.read.begin.instanttime": "begin",
    "end": "end",
    "hoodie.datasource.read.end.instanttime": "end",
    "full_scan": "full_scan",
    "hoodie.datasource.read.incr.fallback.fulltablescan.enable": "full_scan",
    "columns": "columns",
    "partition": "partition",
    "meta_columns": "meta_columns",
    "task_bytes": "task_bytes",
}
"""What an option is called, and what it means. Spark hands the names over in lower case."""

_QUERIES = {
    "snapshot": Query.SNAPSHOT,
    "read_optimized": Query.READ_OPTIMIZED,
    "read-optimized": Query.READ_OPTIMIZED,
    "incremental": Query.INCREMENTAL,
}
TASK_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """One use of the source. `meta_columns`: with the columns `_hoodie_...`. `task_bytes`: stored bytes of one task."""

    path: str
    read: ReadOptions
    meta_columns: bool = True
    task_bytes: int = TASK_BYTES


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """The options as Spark hands them over; UsageError: an unknown name, a bad value, or one thing given twice."""
    found: dict[str, str] = {}
    for name, value in given.items():
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
            raise UsageError("an option is given twice, with different values", found=f"{meaning}: {value!r}")
    if "path" not in found:
        raise UsageError("no table", expected='spark.read.format("phantombase").load(PATH)')
    return SourceOptions(
        path=found["path"],
        read=ReadOptions(
            query=_query(found.get("query", "snapshot")),
            as_of=found.get("as_of"),
            begin=found.get("begin"),
            end=found.get("end"),
            fallback=Fallback.FULL_SCAN if _flag("full_scan", found.get("full_scan", "false")) else Fallback.NONE,
            columns=_list(found.get("columns")),
            partition=found.get("partition"),
        ),
        meta_columns=_flag("meta_columns", found.get("meta_columns", "true")),
        task_bytes=_bytes("task_bytes", found.get("task_bytes", str(TASK_BYTES))),
    )


def _query(text: str) -> Query:
    query = _QUERIES.get(text.lower())
    if query is None:
        raise UsageError("unknown query type", expected=", ".join(_QUERIES), found=text)
    return query


def _list(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name for name in (n.strip() for n in text.split(",")) if name)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError("an option is neither true nor false", found=f"{name}={text}", expected="true or false")
    return text.lower() == "true"


def _bytes(name: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise UsageError("an option is no number of bytes", found=f"{name}={text}", expected="a number above 0")
    return int(text)
