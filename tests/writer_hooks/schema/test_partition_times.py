"""The TIMESTAMP key generator against plain Python, and against what real Hudi wrote."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.writer_hooks.schema.partition_times import PREFIX, PartitionTimes
from tests.support.selection import for_each


def times(writer: dict[str, str] | None = None, /, **options: str) -> PartitionTimes:
    """`timestamp_type="..."` is `hoodie.keygen.timebased.timestamp.type`."""
    named = {PREFIX + name.replace("_", "."): value for name, value in options.items()}
    return PartitionTimes.of(named, writer or {})


_US = datetime(2024, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)
REAL: list[tuple[dict[str, str], Any, list[str]]] = [
    (
        {"timestamp_type": "UNIX_TIMESTAMP", "output_dateformat": "yyyy/MM/dd", "timezone": "UTC"},
        pa.array([1704164645, -1, None]),
        ["2024/01/02", "1969/12/31", "1970/01/01"],
    ),
    (
        {"timestamp_type": "EPOCHMILLISECONDS", "output_dateformat": "yyyy-MM-dd'T'HH", "timezone": "GMT+8:00"},
        pa.array([1704164645123, -1, None]),
        ["2024-01-02T11", "1970-01-01T07", "1970-01-01T08"],
    ),
    (
        {
            "timestamp_type": "EPOCHMICROSECONDS",
            "output_dateformat": "yyyyMMddHHmmss",
            "output_timezone": "America/New_York",
        },
        pa.array([1704164645123456, -1, None]),
        ["20240101220405", "19691231190000", "19691231190000"],
    ),
    (
        {
            "timestamp_type": "DATE_STRING",
            "output_dateformat": "yyyy/MM/dd HH",
            "input_dateformat": "yyyy-MM-dd HH:mm:ss",
        },
        pa.array(["2024-01-02 03:04:05", None]),
        ["2024/01/02 03", "1970/01/01 00"],
    ),
    (
        {
            "timestamp_type": "SCALAR",
            "output_dateformat": "yyyyMMdd",
            "timestamp_scalar_time_unit": "days",
            "timezone": "UTC",
        },
        pa.array([date(2024, 1, 2), date(1969, 12, 31), None]),
        ["20240102", "19691231", "19700102"],
    ),
    (
        {"timestamp_type": "EPOCHMICROSECONDS", "output_dateformat": "yyyy/MM/dd HH", "timezone": "UTC"},
        pa.array([_US, datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1), None], pa.timestamp("us", "UTC")),
        ["2024/01/02 03", "1970/01/01 00", "1970/01/01 00"],
    ),
]


@for_each(REAL)
def test_what_real_hudi_wrote(options: dict[str, str], values: pa.Array, expected: list[str]) -> None:
    """Paths that 0.15.0 and 1.2.0 made of these values (in a JVM whose zone is UTC)."""
    assert times(**options).format(values, "x").to_pylist() == expected


_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")


@given(st.lists(st.integers(-2_145_916_800, 2_145_916_799)), st.sampled_from(_ZONES))
def test_numbers(seconds: list[int], zone: str) -> None:
    """Any second in any zone."""
    pattern = times(timestamp_type="UNIX_TIMESTAMP", output_dateformat="yy-MM-dd''HH:mm.ss%", timezone=zone)
    expected = [datetime.fromtimestamp(s, ZoneInfo(zone)).strftime("%y-%m-%d'%H:%M.%S%%") for s in seconds]
    assert pattern.format(pa.array(seconds, pa.int64()), "x").to_pylist() == expected


@given(st.lists(st.datetimes(datetime(1902, 1, 2), datetime(2037, 12, 30))), st.sampled_from(_ZONES))
def test_text(moments: list[datetime], zone: str) -> None:
    """Text read in UTC, in one of two patterns, and shown in any zone."""
    pattern = times(
        timestamp_type="DATE_STRING",
        input_dateformat="yyyy-MM-dd'T'HH:mm:ss, yyyyMMddHHmmss",
        input_timezone="UTC",
        output_timezone=zone,
        output_dateformat="yyyyMMddHHmmss",
    )
    texts = [m.strftime("%Y-%m-%dT%H:%M:%S" if i % 2 else "%Y%m%d%H%M%S") for i, m in enumerate(moments)]
    shown = [m.replace(tzinfo=UTC).astimezone(ZoneInfo(zone)).strftime("%Y%m%d%H%M%S") for m in moments]
    assert pattern.format(pa.array(texts, pa.string()), "x").to_pylist() == shown


def test_decimals_lose_their_fraction() -> None:
    """As Java's longValue."""
    pattern = times(timestamp_type="UNIX_TIMESTAMP", output_dateformat="ss", timezone="UTC")
    values = pa.array([Decimal("1.9"), Decimal("-1.9")])
    assert pattern.format(values, "x").to_pylist() == ["01", "59"]


def test_the_writer_says_what_the_table_does_not() -> None:
    """Version 6 does not store the type; a contradiction is an error."""
    table = {"output_dateformat": "yyyy", "timezone": "UTC"}
    with pytest.raises(UsageError, match=r"timestamp\.type"):
        times(**table)
    said = {f"{PREFIX}timestamp.type": "UNIX_TIMESTAMP"}
    assert times(said, **table) == times(**table, timestamp_type="UNIX_TIMESTAMP")
    with pytest.raises(UsageError, match="contradicts"):
        times({f"{PREFIX}timezone": "GMT"}, **table)


@for_each(
    [
        ({"timestamp_type": "UNIX_TIMESTAMP", "output_dateformat": "yyyy"}, UsageError),  # zone unknown
        ({"timestamp_type": "UNIX_TIMESTAMP", "output_dateformat": "yyyy", "input_timezone": "UTC"}, UsageError),
        (
            {"timestamp_type": "DATE_STRING", "input_dateformat": "yyyy", "output_dateformat": "yyyy"}
            | {"output_timezone": "UTC"},
            UsageError,
        ),
        ({"timestamp_type": "UNIX_TIMESTAMP", "output_dateformat": "yyyy EEE", "timezone": "UTC"}, UnsupportedError),
        ({"timestamp_type": "UNIX_TIMESTAMP", "output_dateformat": "yyyy-MMM", "timezone": "UTC"}, UnsupportedError),
        ({"timestamp_type": "UNIX_TIMESTAMP", "output_dateformat": "yyyy'x", "timezone": "UTC"}, UnsupportedError),
        ({"timestamp_type": "UNIX_TIMESTAMP", "output_dateformat": "yyyy", "timezone": "Nowhere"}, UnsupportedError),
        ({"timestamp_type": "EPOCHDAYS", "output_dateformat": "yyyy", "timezone": "UTC"}, UnsupportedError),
        ({"timestamp_type": "DATE_STRING", "output_dateformat": "yyyy", "timezone": "UTC"}, UnsupportedError),
    ]
)
def test_refused_options(options: dict[str, str], error: type[Exception]) -> None:
    """By name, before any row."""
    with pytest.raises(error):
        times(**options)


@for_each(
    [
        ("DATE_STRING", ["2024-01-02", "02.01.2024"]),
        ("DATE_STRING", ["2024-01-02", "2024-1-2"]),
        ("DATE_STRING", ["2024-01-02", ""]),
        ("DATE_STRING", ["2024-01-02", "2024-13-02"]),
        ("DATE_STRING", [1, 2]),
        ("UNIX_TIMESTAMP", ["1", "2"]),
        ("UNIX_TIMESTAMP", [1, 2**62]),
        ("UNIX_TIMESTAMP", [1, 2**40]),
        ("UNIX_TIMESTAMP", [1, 2_145_916_800]),
    ]
)
def test_refused_values(kind: str, values: list[Any]) -> None:
    """The first one is good, or the column is of the wrong type."""
    pattern = times(
        timestamp_type=kind, input_dateformat="yyyy-MM-dd", output_dateformat="yyyy", timezone="Europe/Berlin"
    )
    with pytest.raises(UsageError, match="day"):
        pattern.format(pa.array(values), "day")


def test_text_is_shown_in_the_zone_it_was_read_in() -> None:
    """Where no other is said: the digits stay; a null is the beginning of 1970 in that zone."""
    pattern = {"timestamp_type": "DATE_STRING", "input_dateformat": "yyyyMMddHH", "output_dateformat": "yyyy/MM/dd HH"}
    texts = pa.array(["2024010203", None])
    for zone, start in (({}, "00"), ({"input_timezone": "Asia/Kolkata"}, "05")):
        shown = times(**pattern, **zone).format(texts, "x").to_pylist()
        assert shown == ["2024/01/02 03", f"1970/01/01 {start}"]


def test_an_hour_that_the_zone_leaves_out() -> None:
    """The clocks jump; Hudi fails too."""
    pattern = times(
        timestamp_type="DATE_STRING", input_dateformat="yyyyMMddHH", output_dateformat="yyyy", timezone="Europe/Berlin"
    )
    with pytest.raises(UsageError, match="does not exist in the zone"):
        pattern.format(pa.array(["2024033102"]), "x")


_ANSWERS = Path(__file__).with_name("date_formats.tsv")
"""The partition paths of Hudi's TimestampBasedAvroKeyGenerator, 1.2.0 and 0.15.0 alike, in UTC: type, input
format and zone, output format and zone, value, path; `!` and an exception where it fails."""


def test_date_formats_are_those_of_hudi() -> None:
    """Each letter by itself, offsets, fractions, half days, quoted text. What is not known here is refused by name."""
    refused = set()
    for line in _ANSWERS.read_text().splitlines():
        kind, read, read_zone, shown, shown_zone, value, answer = line.split("\t")
        names = ("timestamp.type", "input.dateformat", "input.timezone", "output.dateformat", "output.timezone")
        settings = zip(names, (kind, read, read_zone, shown, shown_zone), strict=True)
        given = {PREFIX + name: text for name, text in settings if text}
        try:
            times = PartitionTimes.of(given, {})
        except UnsupportedError:
            refused.add(shown)
            continue
        values = pa.array([value if kind == "DATE_STRING" else int(value)])
        if answer.startswith("!") or value == "2024-3-1":
            with pytest.raises(UsageError, match="do not fit the table's date formats"):
                times.format(values, "p")
        else:
            assert times.format(values, "p").to_pylist() == [answer], line
    assert refused == {"MMM", "MMMM", "ddd", "z", "w", "ww", "e", "E", "EEEE", "x", "xxxx", "G", "C"}
