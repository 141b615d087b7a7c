"""Bounds of the columns of a row group, from the footer of its Parquet file (pure).

A footer's statistics are not exact bounds of every column. Parquet writers leave NaN out of those of floats, so floats
have no upper bound. A column whose type changed since has no bounds. Nor have dates and times of the old calendar, old
timestamps of 96 bits, and decimals of variable length, which a writer may have shortened.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..arrow.stored_names import SAME_NAMES, Names
from ..filter.possible import UNKNOWN, Bounds, BoundsOf
from .calendar import old_calendar

_EXACT = Context(prec=100)


def group_bounds(file: pq.ParquetFile, group: int, schema: pa.Schema, names: Names = SAME_NAMES) -> BoundsOf:
    """The bounds of the columns of one row group; `schema`: the table's; `names`: of the columns in the file."""
    metadata = file.metadata
    places = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    stored = file.schema_arrow
    moved = old_calendar(file) is not None

    def bounds(column: str) -> Bounds:
        there, kind = names.get(column, column), schema.field(column).type
        at = None if there is None else places.get(there)
        if at is None or stored.get_field_index(there) < 0 or stored.field(there).type != kind:
            return UNKNOWN
        if moved and pa.types.is_temporal(kind):
            return UNKNOWN
        return _chunk_bounds(metadata.row_group(group).column(at), kind)

    return bounds


def _chunk_bounds(chunk: pq.ColumnChunkMetaData, kind: pa.DataType) -> Bounds:
    found = chunk.statistics
    if found is None:
        return UNKNOWN
    nulls = not found.has_null_count or found.null_count > 0
    if found.has_null_count and found.null_count == chunk.num_values:
        return Bounds(values=False)
    low, high = _ends(found, kind, chunk.physical_type) if found.has_min_max else (None, None)
    return Bounds(low=low, high=high, nulls=nulls)


def _ends(found: pq.Statistics, kind: pa.DataType, physical: str) -> tuple[Any, Any]:
    """The least and the greatest value as `comparable` gives them, None for one that is not known."""
    low, high = found.min_raw, found.max_raw
    if pa.types.is_floating(kind):
        return (None if math.isnan(low) else low), None
    if pa.types.is_decimal(kind):
        if physical == "BYTE_ARRAY":
            return None, None
        return _decimal(low, kind), _decimal(high, kind)
    if pa.types.is_string(kind):
        return _text(low), _text(high)
    return (None, None) if physical == "INT96" else (low, high)


def _decimal(raw: int | bytes, kind: pa.DataType) -> Decimal:
    unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
    return Decimal(unscaled).scaleb(-kind.scale, _EXACT)


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None  # shortened in the middle of a character
