"""Dates and times of files in which Spark counted them in the old calendar: Julian before 1582-10-15.

A footer determines the calendar, as Spark reads it (`DataSourceUtils.datetimeRebaseSpec`): a writer's version before
3.0.0 (3.1.0 for times of 96 bits), or the key `org.apache.spark.legacyDateTime` (`legacyINT96`), is the old one, and
another version the new one. A footer without a version does not specify one; Hudi's own Avro writer, which omits it,
counts in the new one. Spark refuses old dates of such files, so files written here record a version.

Values are moved so that they show the same date and time of day. Before 1900 Java's old classes give a zone its offset
of today, and the new classes the local mean time of its location."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..clocks import utc_now
from ..errors import UnsupportedError
from .columns import leaf_types, leaves_changed

_VERSION = "org.apache.spark.version"
NEW_CALENDAR: Mapping[str, str] = {_VERSION: "3.5.0"}
"""The pair for footers of files whose dates and times all count in the new calendar."""

_ZONE, _OLD_TIMES = b"org.apache.spark.timeZone", "INT96"
_Days = npt.NDArray[np.int64]

_GREGORIAN = -141_427
"""1582-10-15, the first day that both calendars number alike, in days since 1970."""
_MARCH_0 = -719_470
"""March 1 of the year 0, Julian."""
_DAY, _SECOND = 86_400_000_000, 1_000_000
_MODERN = -2_208_988_800 * _SECOND
"""1900 in microseconds: from here on no zone's time differs between Java's classes."""
_LAST_CHANGE = _MODERN + _DAY
"""From here on, times are the same in both calendars in every zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldCalendar:
    """The values of a file that count in the old calendar: dates and times, or times of 96 bits.
    `zone`: in which they were written; None: not in the footer. `leaves`: the physical types of each column."""

    dates: bool
    old_times: bool
    zone: str | None
    leaves: Mapping[str, tuple[str, ...]]

    def moved(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the new calendar. UnsupportedError: it has times before 1900 of a zone that is not known."""
        columns = [
            self._moved(column, iter(self.leaves[field.name])) if _has_dates(field) else column
            for field, column in zip(batch.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def holds(self, schema: pa.Schema) -> bool:
        """Whether the file has columns, or parts of them, in the old calendar."""
        return any(_has_dates(field) for field in schema)

    def _moved(self, array: Any, leaves: Iterator[str]) -> Any:
        return leaves_changed(array, lambda leaf: self._leaf(leaf, next(leaves)))

    def _leaf(self, array: Any, physical: str) -> Any:
        kind = array.type
        if pa.types.is_date32(kind):
            return _moved_days(array) if self.dates else array
        if pa.types.is_timestamp(kind) and (physical == _OLD_TIMES or kind.tz is not None):
            return self._moved_times(array) if (self.old_times if physical == _OLD_TIMES else self.dates) else array
        return array

    def _moved_times(self, array: Any) -> Any:
        micros = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
        least = pc.min(micros).as_py()
        if least is None or least >= _LAST_CHANGE:
            return array
        values = np.asarray(pc.fill_null(micros, _LAST_CHANGE))
        old = values < _LAST_CHANGE
        changed = values.copy()
        changed[old] = _in_zone(values[old], _zone(self.zone))
        found = pa.array(changed, mask=np.asarray(array.is_null()) if array.null_count else None)
        return found.cast(pa.timestamp("us", array.type.tz)).cast(array.type)


def old_calendar(file: pq.ParquetFile) -> OldCalendar | None:
    """The values of a file that count in the old calendar; None: none."""
    said = file.metadata.metadata or {}
    version = said.get(_VERSION.encode(), b"").decode(errors="replace")
    dates = b"org.apache.spark.legacyDateTime" in said or "" < version < "3.0.0"
    old_times = b"org.apache.spark.legacyINT96" in said or "" < version < "3.1.0"
    if not (dates or old_times):
        return None
    leaves: dict[str, tuple[str, ...]] = {}
    names = frozenset(file.schema_arrow.names)
    for column in (file.schema.column(i) for i in range(len(file.schema))):
        name = column.path.partition(".")[0] if column.path not in names else column.path
        leaves[name] = (*leaves.get(name, ()), column.physical_type)
    zone = said.get(_ZONE)
    found = OldCalendar(
        dates=dates, old_times=old_times, zone=None if zone is None else zone.decode(errors="replace"), leaves=leaves
    )
    return found if found.holds(file.schema_arrow) else None


def first_alike(kind: pa.DataType) -> int:
    """The first value of a type of dates or times that is the same in both calendars, in every zone."""
    if pa.types.is_date32(kind):
        return _GREGORIAN
    return _LAST_CHANGE // 1000 if kind.unit == "ms" else _LAST_CHANGE


def _has_dates(field: pa.Field) -> bool:
    return any(pa.types.is_date32(kind) or pa.types.is_timestamp(kind) for _, kind in leaf_types(field))


def _moved_days(array: pa.Array) -> pa.Array:
    days = array.cast(pa.int32())
    least = pc.min(days).as_py()
    if least is None or least >= _GREGORIAN:
        return array
    values = _gregorian(np.asarray(pc.fill_null(days, 0)).astype(np.int64)).astype(np.int32)
    return pa.array(values, mask=np.asarray(array.is_null()) if array.null_count else None).cast(pa.date32())


def _gregorian(days: _Days) -> _Days:
    """The days since 1970 of the same dates. February 29 of a year that has none becomes March 1, as in Spark."""
    year = (4 * (days - _MARCH_0) + 3) // 1461  # years begin with March, so that a leap day is their last
    return np.where(days < _GREGORIAN, days - (year // 100 - year // 400 - 2), days)


def _in_zone(micros: _Days, zone: ZoneInfo) -> _Days:
    """The times that show the same date and time of day as these do in the zone by the old classes."""
    modern = _offsets(micros, zone)
    local = micros + np.where(micros < _MODERN, _standard(zone), modern)
    shown = _gregorian(local // _DAY) * _DAY + local % _DAY
    wanted = pa.array(shown).cast(pa.timestamp("us"))
    found = pc.assume_timezone(wanted, zone.key, ambiguous="earliest", nonexistent="latest").cast(pa.int64())
    return np.asarray(found)


def _offsets(micros: _Days, zone: ZoneInfo) -> _Days:
    moments = pa.array(micros).cast(pa.timestamp("us", zone.key))
    return np.asarray(pc.local_timestamp(moments).cast(pa.int64())) - micros


def _standard(zone: ZoneInfo) -> int:
    """The zone's offset of today without summer time, in microseconds: the smaller one of a year."""
    now = utc_now()
    offsets = [(now + timedelta(days=91 * quarter)).astimezone(zone).utcoffset() for quarter in range(4)]
    return min(offset // timedelta(microseconds=1) for offset in offsets if offset is not None)


def _zone(name: str | None) -> ZoneInfo:
    try:
        return ZoneInfo(name or "")
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        what = "times before 1900 in Spark's legacy calendar, of a time zone that is not known"
        expected = "org.apache.spark.timeZone in the footer: the name of a zone"
        todo = "Rewrite the file with Spark, with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED."
        raise UnsupportedError(what, expected=expected, found=name or "none", todo=todo) from error
