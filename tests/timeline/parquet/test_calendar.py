"""Dates and times of Spark's legacy mode, and what our own files say of theirs."""

from __future__ import annotations

import io
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.parquet.calendar import NEW_CALENDAR, old_calendar
from phantombase.timeline.parquet.read import open_parquet, parquet_batches

EPOCH = date(1970, 1, 1)
DAY = 86_400_000_000
LEGACY = {"org.apache.spark.legacyDateTime": "", "org.apache.spark.version": "3.5.9"}
UTC = {"org.apache.spark.timeZone": "UTC"}


def julian(year: int, month: int, day: int) -> int:
    """The day of the Julian calendar since 1970, by the day number of astronomers."""
    shift = (14 - month) // 12
    since = year + 4800 - shift
    number = day + (153 * (month + 12 * shift - 3) + 2) // 5 + 365 * since + since // 4 - 32083
    return number - 2_440_588


def written(table: pa.Table, said: dict[str, str], **options: Any) -> pa.BufferReader:
    """A file whose footer says so."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, store_schema=False, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(said)
    return pa.BufferReader(sink.getvalue())


def read(table: pa.Table, said: dict[str, str], **options: Any) -> pa.Table:
    """The table as it comes out of a file whose footer says so."""
    source = written(table, said, **options)
    return pa.Table.from_batches(parquet_batches(source, open_parquet(source), table.column_names, 65_536))


def days(values: list[int | None]) -> pa.Array:
    """Dates."""
    return pa.array(values, pa.int32()).cast(pa.date32())


def test_every_day_of_the_old_calendar() -> None:
    """Each Gregorian date before the change is stored as the Julian day of that name, and comes out as itself."""
    first = (date(1, 1, 1) - EPOCH).days
    new = [*range(first, -141_437), -141_427, 0, None]
    named = [None if n is None else EPOCH + timedelta(n) for n in new]
    old = [
        n if d is None or n is None or n >= -141_427 else julian(d.year, d.month, d.day)
        for d, n in zip(named, new, strict=True)
    ]
    assert read(pa.table({"d": days(old)}), LEGACY).column("d").combine_chunks().equals(days(new))


def test_a_day_that_only_the_old_calendar_has() -> None:
    """February 29 of 1500 becomes March 1, as in Spark."""
    (found,) = read(pa.table({"d": days([julian(1500, 2, 29)])}), LEGACY).column("d").to_pylist()
    assert found == date(1500, 3, 1)


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_parts_of_columns(unit: str) -> None:
    """In records, lists and maps, with nulls and slices; local times stay."""
    old, new = julian(1, 1, 1), (date(1, 1, 1) - EPOCH).days
    moment, local = pa.timestamp(unit, "UTC"), pa.timestamp(unit)
    kind = pa.struct(
        [("d", pa.date32()), ("t", pa.list_(moment)), ("m", pa.map_(pa.string(), pa.date32())), ("l", local)]
    )

    def rows(day: int) -> pa.Array:
        per_day = DAY if unit == "us" else DAY // 1000
        one = {"d": day, "t": [day * per_day + 5, None], "m": [("k", day)], "l": old * per_day}
        plain = pa.struct(
            [("d", pa.int32()), ("t", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.int32())), ("l", pa.int64())]
        )
        return pa.array([None, one, {"d": None, "t": None, "m": None, "l": None}], plain).cast(kind)

    found = read(pa.table({"s": rows(old)}), LEGACY | UTC).column("s").combine_chunks()
    assert found.equals(rows(new))


@pytest.mark.parametrize(
    ("said", "is_old"),
    [
        ({}, False),
        (NEW_CALENDAR, False),
        ({"org.apache.spark.version": "2.4.8"}, True),
        ({"org.apache.spark.version": "3.0.0"}, False),
        (LEGACY, True),
    ],
)
def test_which_calendar(said: dict[str, str], *, is_old: bool) -> None:
    """By the version and the key; a footer without a version counts in the new one."""
    found = read(pa.table({"d": days([-719_164])}), dict(said)).column("d").cast(pa.int32()).to_pylist()
    assert found == [-719_162 if is_old else -719_164]


def test_old_times_of_96_bits() -> None:
    """They have a key of their own, and move until 3.1.0."""
    old = pa.table({"t": pa.array([-719_164 * DAY + 7, None], pa.timestamp("us"))})
    for said, day in (
        ({"org.apache.spark.version": "3.0.1"} | UTC, -719_162),
        ({"org.apache.spark.version": "3.1.0"} | UTC, -719_164),
        (LEGACY | UTC, -719_164),
        ({"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyINT96": ""} | UTC, -719_162),
    ):
        found = read(old, said, use_deprecated_int96_timestamps=True).column("t").cast(pa.int64()).to_pylist()
        assert found == [day * DAY + 7, None]


def test_zones() -> None:
    """Before 1900 the offset of today became the local mean time (Spark 3.5, see tests/pyspark_phantombase)."""
    noon = -719_164 * DAY + 8 * 3_600_000_000
    table = pa.table({"t": pa.array([noon], pa.int64()).cast(pa.timestamp("us", "UTC"))})
    found = read(table, LEGACY | {"org.apache.spark.timeZone": "America/Los_Angeles"}).column("t").cast(pa.int64())
    assert found.to_pylist() == [-719_162 * DAY + (7 * 3600 + 52 * 60 + 58) * 1_000_000]


def test_unknown_zone() -> None:
    """Times that no zone can change are read, older ones are refused by name."""

    def table(micros: int) -> pa.Table:
        return pa.table({"t": pa.array([micros], pa.int64()).cast(pa.timestamp("us", "UTC"))})

    assert read(table(0), LEGACY).column("t").cast(pa.int64()).to_pylist() == [0]
    with pytest.raises(UnsupportedError, match="time zone that is not known"):
        read(table(-719_164 * DAY), LEGACY)


def test_files_without_dates() -> None:
    """Nothing in them counts in a calendar."""
    assert old_calendar(open_parquet(written(pa.table({"n": [1]}), LEGACY))) is None
