"""Rows of any library that gives them in Arrow's form: pandas, Polars, DuckDB, record batches, readers.

The interface `__arrow_c_stream__` or `__arrow_c_array__` decides; no library is named here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa

from phantombase.timeline.codec.row_hash import hash_sum, row_hashes
from phantombase.timeline.errors import UnsupportedError, UsageError

from .engine import StagedRows
from .spark import run, to_arrow

_EXPECTED = "a Spark DataFrame, or rows of pyarrow, pandas, Polars, DuckDB or another library with __arrow_c_stream__"
_INDEX = re.compile(r"__index_level_\d+__")
"""An index of pandas that has no name; one with a name is a column."""
NO_ROWS = "0"
"""The mark of an empty table."""


def with_columns(rows: Any, columns: Mapping[str, str]) -> Any:
    """Rows with these columns only, from those that `columns` names. `rows`: from `in_arrow`."""
    if isinstance(rows, pa.Table):
        return pa.table({name: rows.column(source) for name, source in columns.items()})
    return rows.select(*(rows[f"`{source}`"].alias(name) for name, source in columns.items()))


def in_arrow(rows: Any) -> Any:
    """Rows as a pyarrow Table; a Spark DataFrame, staged rows and None are returned unchanged. Rows are read here:
    a stream can be read only once. UsageError: no rows, or values that Arrow has no type for."""
    if (
        rows is None or isinstance(rows, (pa.Table, StagedRows)) or hasattr(rows, "mapInArrow")
    ):  # Spark's have a stream too
        return rows
    kind = f"{type(rows).__module__.partition('.')[0]} {type(rows).__name__}"
    if not (hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__")):
        todo = "Collect it first: rows.collect()." if hasattr(rows, "collect") else None
        raise UsageError("not rows", expected=_EXPECTED, found=kind, todo=todo)
    try:
        table = pa.table(rows)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(
            "rows that cannot be read as Arrow", found=f"{kind}: {error}", todo="Make a pyarrow.Table of them first."
        ) from error
    return table.drop_columns([name for name in table.column_names if _INDEX.fullmatch(name)]).replace_schema_metadata()


def rows_mark(rows: Any, query: str) -> str:
    """A mark that distinguishes rows from others, whatever their order; "" if there is none. `rows`: from `in_arrow`.
    For a DataFrame of a query it is the hash of the plan, which is the same within one run of the query only. A
    DataFrame without a known query, as in a thread of a `foreachBatch` function, is computed. Staged rows have none.
    SparkError: see `run`."""
    if isinstance(rows, pa.Table):
        marks = marked(rows.to_batches())
    elif isinstance(rows, StagedRows):
        return ""
    elif query:
        return str(rows.semanticHash())
    else:
        marks = run(partial(to_arrow, rows.mapInArrow(marked, _MARKS))).to_batches()
    done = pa.Table.from_batches(marks, _MARK_SCHEMA)
    if done["hash"].null_count:
        return ""
    count, total = sum(done["rows"].to_pylist()), sum(done["hash"].to_pylist())
    return f"{count}:{total % (1 << 64):016x}" if count else NO_ROWS


_MARK_SCHEMA = pa.schema([("rows", pa.int64()), ("hash", pa.int64())])
_MARKS = "rows long, hash long"


def marked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of each batch the number of rows and the sum of hashes mod 2^64, signed; null: a column's type has no rule."""
    for batch in batches:
        order = sorted(range(batch.num_columns), key=batch.schema.names.__getitem__)
        total: int | None = None
        with suppress(UnsupportedError):
            total = hash_sum(row_hashes([batch.column(at) for at in order], batch.num_rows))
            total -= (total >> 63) << 64
        yield pa.record_batch([pa.array([batch.num_rows], pa.int64()), pa.array([total], pa.int64())], _MARK_SCHEMA)
