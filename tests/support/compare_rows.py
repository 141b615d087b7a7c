"""Compares what two readers read from a table: the same rows, in any order, in every column."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pyarrow as pa

_FILE_NAME = "_hoodie_file_name"


def assert_same_rows(ours: pa.Table, theirs: pa.Table) -> None:
    """Fails with the first rows that only one side has. `_hoodie_file_name` is compared by its file id: a row from a
    log carries the bare id, one from a base file the file's name. Timestamps are compared as instants of time: Spark
    writes them without a zone."""
    assert sorted(ours.schema.names) == sorted(theirs.schema.names), "other columns"
    left, right = _rows(ours), _rows(theirs)
    only_left, only_right = left - right, right - left
    if only_left or only_right:
        raise AssertionError(
            f"{ours.num_rows} rows against {theirs.num_rows}\n"
            f"only ours ({only_left.total()}): {_first(only_left)}\n"
            f"only theirs ({only_right.total()}): {_first(only_right)}"
        )


def _first(rows: Counter[str]) -> str:
    return min(rows, default="-")[:2000]


def _rows(table: pa.Table) -> Counter[str]:
    names = sorted(table.schema.names)
    return Counter(repr([(n, _plain(n, row[n])) for n in names]) for row in table.select(names).to_pylist())


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        # Where pandas is installed, pyarrow gives its kind of datetime for nanoseconds.
        return getattr(value, "to_pydatetime", lambda: value)().replace(tzinfo=None)
    if isinstance(value, dict):
        return {k: _plain("", v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain("", v) for v in value]
    if name == _FILE_NAME and isinstance(value, str):
        return value.partition("_")[0]
    return value
