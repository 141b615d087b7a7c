"""The values of one column in one file: least, greatest, number of values, number of nulls (pure).

Order: numbers by value; strings and bytes by their (UTF-8) bytes, as in Spark; decimals by value. A float's low bound
of zero is always -0.0, and its high bound of zero always 0.0, since Java treats the two as different. NaN, in Spark
above all numbers, counts as infinity: Hudi's queries keep the index in Spark's cache, whose own bounds leave NaN out,
so that by a bound of NaN they skip files of any numbers (seen: 1.2.0). The low bound is finite then, for `x <> inf`.

A reader loses rows if a bound is too narrow. So bounds are read only for types with unambiguous stored values:
integers, dates, texts, and timestamps where the record names the unit (index version 2). There are no bounds for floats
(NaN; zeros of two signs), decimals, bytes, values of another type than the column has now, and dates and times so old
that Hudi may have read them in the old calendar from a footer. Hudi compares texts of log files by UTF-16 code units,
and texts of base files by UTF-8 bytes. The two orders agree on which texts lie between two bounds only if no unit of a
bound is a surrogate or above one."""

from __future__ import annotations

import base64
import decimal
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.calendar import first_alike
from ..codec.columns import flat
from ..filter.possible import UNKNOWN, Bounds
from .expression_index import Expression, bounds_of
from .indexed_columns import IndexedColumn, Kind, Value, ValueType
from .records.keys import MetadataRecord

FLOATS = (Kind.FLOAT, Kind.DOUBLE)
_EXACT = decimal.Context(prec=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRange:
    """Bounds of a column's values: `low` <= every value <= `high`; both None if all values are null, or `unknown`.
    Physical values (`indexed_columns`): dates in days, times and timestamps in their unit; decimals unscaled. `values`
    counts nulls too. `bytes_`, `uncompressed`: sizes of the column's Parquet chunks, 0 if there are none."""

    column: str
    type: ValueType
    low: Value | None
    high: Value | None
    nulls: int
    values: int
    bytes_: int = 0
    uncompressed: int = 0

    @property
    def unknown(self) -> bool:
        """Whether values of an expression have no bounds that hold for each reader."""
        return self.low is None and self.nulls < self.values

    def merged(self, other: ColumnRange) -> ColumnRange:
        """The range of both parts of a file, or of two files."""
        known = () if self.unknown or other.unknown else (self, other)
        lows = [r.low for r in known if r.low is not None]
        highs = [r.high for r in known if r.high is not None]
        return ColumnRange(
            column=self.column,
            type=self.type,
            low=min(lows, default=None),
            high=max(highs, default=None),
            nulls=self.nulls + other.nulls,
            values=self.values + other.values,
            bytes_=self.bytes_ + other.bytes_,
            uncompressed=self.uncompressed + other.uncompressed,
        )

    def to_json(self) -> dict[str, Any]:
        """The range as JSON values, without loss."""
        return {
            "column": self.column,
            "type": str(self.type),
            "low": _to_text(self.low),
            "high": _to_text(self.high),
            "counts": [self.nulls, self.values, self.bytes_, self.uncompressed],
        }

    @staticmethod
    def from_json(data: Any) -> ColumnRange:
        """Inverse of `to_json`; KeyError, TypeError or ValueError on other input."""
        kind = ValueType.parse(data["type"])
        nulls, values, bytes_, uncompressed, *_ = data["counts"]
        return ColumnRange(
            column=data["column"],
            type=kind,
            low=_from_text(data["low"], kind),
            high=_from_text(data["high"], kind),
            nulls=nulls,
            values=values,
            bytes_=bytes_,
            uncompressed=uncompressed,
        )


def ranges_to_json(ranges: Sequence[ColumnRange] | None) -> list[dict[str, Any]] | None:
    """The ranges of a file, None if no process measured it."""
    return None if ranges is None else [found.to_json() for found in ranges]


def ranges_from_json(data: Any) -> tuple[ColumnRange, ...] | None:
    """Inverse of `ranges_to_json`; errors as in `ColumnRange.from_json`."""
    return None if data is None else tuple(ColumnRange.from_json(one) for one in data)


def merged_ranges(parts: Iterable[Sequence[ColumnRange]]) -> tuple[ColumnRange, ...]:
    """One range for each column over all parts, in the order of the columns."""
    merged: dict[str, ColumnRange] = {}
    for part in parts:
        for found in part:
            known = merged.get(found.column)
            merged[found.column] = found if known is None else known.merged(found)
    return tuple(merged.values())


def ranges_of_rows(rows: pa.Table | pa.RecordBatch, columns: Sequence[IndexedColumn]) -> tuple[ColumnRange, ...]:
    """The range of each column over these rows; a missing column counts as a column of nulls."""
    there = frozenset(rows.schema.names)
    return tuple(_range(column, _column(rows, there, column.path), rows.num_rows) for column in columns)


def no_values(column: IndexedColumn, rows: int) -> ColumnRange:
    """The range of a column that is null in every row."""
    return ColumnRange(column=column.name, type=column.type, low=None, high=None, nulls=rows, values=rows)


def range_between(column: IndexedColumn, low: Value, high: Value, *, nulls: int, values: int) -> ColumnRange:
    """A range with these bounds; zero bounds of floats follow the rule of this module."""
    if column.type.kind in FLOATS:
        low, high = (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
    return ColumnRange(column=column.name, type=column.type, low=low, high=high, nulls=nulls, values=values)


def _column(rows: pa.Table | pa.RecordBatch, there: frozenset[str], path: str) -> pa.Array | None:
    name, *inner = path.split(".")
    if name not in there:
        return None
    array = rows.column(name)
    array = flat(array) if isinstance(array, pa.ChunkedArray) else array
    for step in inner:
        if not pa.types.is_struct(array.type) or array.type.get_field_index(step) < 0:
            return None
        array = pc.struct_field(array, step)
    return array


def _range(column: IndexedColumn, array: pa.Array | None, rows: int) -> ColumnRange:
    if array is None or array.null_count == len(array):
        return no_values(column, rows)
    nulls = array.null_count
    if pa.types.is_dictionary(array.type):
        array = array.unique().dictionary_decode()
    if isinstance(column, Expression):
        low, high = bounds_of(column, array) or (None, None)
        return ColumnRange(column=column.name, type=column.type, low=low, high=high, nulls=nulls, values=rows)
    if array.type != column.type.arrow:
        array = array.cast(column.type.arrow)
    low, high = _float_ends(array) if column.type.kind in FLOATS else _ends(array, column.type)
    return range_between(column, low, high, nulls=nulls, values=rows)


def _ends(array: pa.Array, kind: ValueType) -> tuple[Value, Value]:
    ends = pc.min_max(array)
    low, high = (_physical(ends[name], kind) for name in ("min", "max"))
    return low, high


def _physical(scalar: pa.Scalar, kind: ValueType) -> Value:
    if kind.kind is Kind.DECIMAL:
        return int(scalar.as_py().scaleb(kind.scale, _EXACT))
    if kind.kind in (Kind.BOOLEAN, Kind.STRING, Kind.BYTES, Kind.FIXED):
        value: Value = scalar.as_py()
        return value
    return int(scalar.value if hasattr(scalar, "value") else scalar.as_py())


def _float_ends(array: pa.Array) -> tuple[float, float]:
    """Bounds of values with NaN, too, which Arrow ignores unless all values are NaN."""
    ends = pc.min_max(array)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if not pc.any(pc.is_nan(array)).as_py():
        return low, high
    greatest = float(np.finfo(array.type.to_pandas_dtype()).max)
    return greatest if math.isnan(low) else min(low, greatest), math.inf


def _to_text(value: Value | None) -> Any:
    if isinstance(value, float):
        return value.hex()
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def _from_text(data: Any, kind: ValueType) -> Value | None:
    if data is None:
        return None
    if kind.kind in FLOATS:
        return float.fromhex(data)
    if kind.kind in (Kind.BYTES, Kind.FIXED):
        return base64.b64decode(data, validate=True)
    value: Value = data
    return value


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
"""Types whose values are stored as integers, so that the record must also name the type."""
_SURROGATES = "\ud800"


def stats_bounds(record: MetadataRecord | None, kind: pa.DataType) -> Bounds:
    """The known bounds of a column of this type (the table's) in the record's file; None: there is no record."""
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
    """A bound in the form of `filter.possible.comparable`; None if it is uncertain."""
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
