"""Bounds of a column in one file from its record in `column_stats`, as a filter takes them (pure).

A reader that trusts a bound which is too narrow loses rows, so only types have bounds here whose stored values can be
nothing else: integers, dates, texts, and timestamps where the record names its unit (index version 2). Floats have
none (NaN; zeros of two signs), nor have decimals, bytes, or a value of another type than the column has now. Nor have
dates and times so old that Hudi may have taken them in the old calendar from a footer.

Hudi compares texts of log files by UTF-16 code units, and those of base files by UTF-8 bytes. The two orders agree on
which texts lie between two bounds only if no unit of a bound is a surrogate or above one.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...filter.possible import UNKNOWN, Bounds
from ...parquet.calendar import first_alike
from ..records.keys import MetadataRecord
from .value_type import Kind, ValueType

_WRAPPERS = {
    pa.int32(): ("IntWrapper",),
    pa.int64(): ("LongWrapper", "IntWrapper"),  # a column may have become a long
    pa.string(): ("StringWrapper",),
}
_NAMED = (
    Kind.DATE,
    Kind.TIMESTAMP_MILLIS,
    Kind.TIMESTAMP_MICROS,
    Kind.LOCAL_TIMESTAMP_MILLIS,
    Kind.LOCAL_TIMESTAMP_MICROS,
)
"""Their values are integers too, so the record must name its type besides."""
_SURROGATES = "\ud800"


def stats_bounds(record: MetadataRecord | None, kind: pa.DataType) -> Bounds:
    """What is known of a column of this type (the table's) in the file of the record; None: there is no record."""
    stats = (record or {}).get("ColumnStatsMetadata")
    if stats is None or stats.get("isDeleted"):
        return UNKNOWN
    rows, nulls = stats.get("valueCount"), stats.get("nullCount")
    if rows is None or nulls is None or rows < 0 or nulls < 0:
        return UNKNOWN
    low, high = (_value(stats.get(name), stats.get("valueType"), kind) for name in ("minValue", "maxValue"))
    if low is None or high is None:
        return UNKNOWN
    return Bounds(low=low, high=high, nulls=nulls > 0)


def _value(wrapped: Any, named: Any, kind: pa.DataType) -> int | str | None:
    """A bound as `filter.possible.comparable` gives values; None if it is not certain."""
    if not isinstance(wrapped, tuple):
        return None
    wrapper, value = wrapped[0].rpartition(".")[2], wrapped[1].get("value")
    found = ValueType.of(kind)
    if found is not None and found.kind in _NAMED:
        of_kind = isinstance(named, dict) and named.get("typeOrdinal") == found.kind
        certain = of_kind and wrapper in ("IntWrapper", "LongWrapper") and isinstance(value, int)
        return value if certain and value >= first_alike(kind) else None
    if wrapper not in _WRAPPERS.get(kind, ()):
        return None
    if isinstance(value, str):
        return value if all(unit < _SURROGATES for unit in value) else None
    return value if isinstance(value, int) else None
