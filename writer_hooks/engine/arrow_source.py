"""Rows of any library that gives them in Arrow's form: pandas, Polars, DuckDB, record batches, readers.

What counts is the interface `__arrow_c_stream__` or `__arrow_c_array__`; no library is named here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from phantombase.timeline.codec.row_hash import hash_sum, row_hashes
from phantombase.timeline.errors import UnsupportedError, UsageError

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
    """Rows as a pyarrow Table; a Spark DataFrame stays what it is, and so does None.

    They are read now, since a stream can be read only once. UsageError: no rows, or values that Arrow has no type for.
    """
    if rows is None or isinstance(rows, pa.Table) or hasattr(rows, "mapInArrow"):  # Spark's have a stream too
        return rows
    kind = f"{type(rows).__module__.partition('.')[0]} {type(rows).__name__}"
    if not (hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__")):
        todo = "Collect it first: rows.collect()." if hasattr(rows, "collect") else None
        raise UsageError("not rows", expected=_EXPECTED, found=kind, todo=todo)
    try:
        table = pa.table(rows)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError("rows that cannot be read as Arrow", found=f"{kind}: {error}") from error
    return table.drop_columns([name for name in table.column_names if _INDEX.fullmatch(name)]).replace_schema_metadata()


def rows_mark(rows: Any) -> str:
    """What tells rows from others, whatever their order; "" where nothing does. `rows`: from `in_arrow`.

    Of a DataFrame it is its plan's hash, the same within a run of a query only.
    """
    if not isinstance(rows, pa.Table):
        return str(rows.semanticHash())
    order, total = sorted(range(rows.num_columns), key=rows.schema.names.__getitem__), 0
    try:
        for batch in rows.to_batches():
            total += hash_sum(row_hashes([batch.column(at) for at in order], batch.num_rows))
    except UnsupportedError:
        return ""
    return f"{rows.num_rows}:{total % (1 << 64):016x}" if rows.num_rows else NO_ROWS
