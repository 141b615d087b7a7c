"""Files whose pages ISA-L has compressed hold the same as those that pyarrow writes, for every reader."""

from __future__ import annotations

import io
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.codec import parquet_write
from phantombase.timeline.codec.calendar import NEW_CALENDAR, old_calendar
from phantombase.timeline.codec.parquet_pages import AVAILABLE, GzipPages
from phantombase.timeline.codec.parquet_read import open_parquet, parquet_batches
from phantombase.timeline.codec.parquet_write import PagesWriter, open_parquet_writer
from phantombase.timeline.errors import UnsupportedError
from tests.support.builders import tables
from tests.support.selection import ALL

KEPT = {"total_compressed_size", "data_page_offset", "dictionary_page_offset", "file_offset", "compression"}
SIZE = "total_uncompressed_size"


def written(rows: pa.Table, group_rows: int, **how: Any) -> bytes:
    file = io.BytesIO()
    writer = PagesWriter(GzipPages(file), rows.schema, store_schema=False, **how)
    writer.write(rows, row_group_size=group_rows)
    writer.add_key_value_metadata({"some": "thing" * 100})
    writer.close()
    return file.getvalue()


def by_pyarrow(rows: pa.Table, group_rows: int, compression: str = "none", **how: Any) -> bytes:
    file = io.BytesIO()
    with pq.ParquetWriter(file, rows.schema, store_schema=False, compression=compression, **how) as writer:
        writer.write(rows, row_group_size=group_rows)
        writer.add_key_value_metadata({"some": "thing" * 100})
    return file.getvalue()


def assert_same_file(ours: bytes, judged: bytes) -> None:
    """The same rows, schema, key/values, statistics and encodings."""
    ours_file, judged_file = pq.ParquetFile(io.BytesIO(ours)), pq.ParquetFile(io.BytesIO(judged))
    assert ours_file.read().equals(judged_file.read())
    found, expected = ours_file.metadata, judged_file.metadata
    assert found.schema.equals(expected.schema)
    assert found.metadata == expected.metadata
    assert found.num_row_groups == expected.num_row_groups
    for group in range(found.num_row_groups):
        assert found.row_group(group).num_rows == expected.row_group(group).num_rows
        for column in range(found.num_columns):
            one, other = (m.row_group(group).column(column).to_dict() for m in (found, expected))
            assert one["compression"] == "GZIP"
            assert {k: v for k, v in one.items() if k not in KEPT | {SIZE}} == {
                k: v for k, v in other.items() if k not in KEPT | {SIZE}
            }
            assert abs(one[SIZE] - other[SIZE]) <= 0.1 * other[SIZE] + 8  # page headers only


@pytest.mark.skipif(not AVAILABLE, reason="isal is not installed: gzip is zlib's")
@settings(max_examples=100 if ALL else 20)
@given(tables(), st.integers(1, 70), st.sampled_from([None, 20, 1000]), st.booleans())
def test_any_rows(rows: pa.Table, group_rows: int, page_bytes: int | None, dictionary: bool) -> None:
    """Of all types, with pages and row groups of all sizes."""
    how: dict[str, Any] = {"data_page_size": page_bytes, "use_dictionary": dictionary}
    assert_same_file(written(rows, group_rows, **how), by_pyarrow(rows, group_rows, **how))


@pytest.mark.skipif(not AVAILABLE, reason="isal is not installed: gzip is zlib's")
@settings(max_examples=100 if ALL else 25)
@given(st.integers(0, 2**32), st.integers(1, 300))
def test_bytes_come_in_any_pieces(seed: int, most: int) -> None:
    """A writer may hand its file over as it likes."""
    random = Random(seed)
    rows = pa.table({"a": [random.choice("abc") for _ in range(90)], "b": [random.random() for _ in range(90)]})
    plain = by_pyarrow(rows, 40)
    file = io.BytesIO()
    pages = GzipPages(file)
    end = len(plain) - 8 - int.from_bytes(plain[-8:-4], "little")
    for piece in _pieces(plain[:end], random, most):
        pages.write(piece)
    pages.begin_footer()
    for piece in _pieces(plain[end:], random, most):
        pages.write(piece)
    pages.finish()
    assert_same_file(file.getvalue(), plain)


def _pieces(data: bytes, random: Random, most: int) -> Iterable[bytes]:
    at = 0
    while at < len(data):
        size = random.randint(1, most)
        yield data[at : at + size]
        at += size


@pytest.mark.skipif(not AVAILABLE, reason="isal is not installed: gzip is zlib's")
def test_other_readers(tmp_path: Path) -> None:
    rows = pa.table(
        {"n": list(range(5000)), "t": [f"text {i % 70}" for i in range(5000)], "x": [i / 3 for i in range(5000)]}
    )
    path = tmp_path / "f.parquet"
    path.write_bytes(written(rows, 1500, data_page_size=2000))
    assert pl.read_parquet(path).to_arrow().cast(rows.schema).equals(rows)
    assert duckdb.read_parquet(str(path)).to_arrow_table().cast(rows.schema).equals(rows)
    assert duckdb.read_parquet(str(path)).filter("n >= 4000").count("n").fetchall() == [(1000,)]


@pytest.mark.skipif(not AVAILABLE, reason="isal is not installed: gzip is zlib's")
def test_no_rows() -> None:
    """Of a column without a dictionary too: a row group without rows then has no page at all."""
    rows = pa.table({"a": pa.array([], pa.string())})
    for each in (rows, pa.table({"a": ["x"]}).slice(0, 0), pa.table({"a": [True]}).slice(0, 0)):
        assert pq.read_table(io.BytesIO(written(each, 10))).num_rows == 0


@pytest.mark.skipif(not AVAILABLE, reason="isal is not installed: gzip is zlib's")
@pytest.mark.parametrize(
    ("how", "why"), [({"data_page_version": "2.0"}, "another version"), ({"write_page_index": True}, "a page index")]
)
def test_what_cannot_be_compressed_is_refused(how: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        written(pa.table({"a": [1, 2, 3]}), 10, **how)


@pytest.mark.skipif(not AVAILABLE, reason="isal is not installed: gzip is zlib's")
def test_a_file_that_is_compressed_already_is_refused() -> None:
    with pytest.raises(ValueError, match="compressed already"):
        GzipPages(io.BytesIO()).write(by_pyarrow(pa.table({"a": ["x" * 50] * 90}), 90, "gzip"))


@pytest.mark.skipif(not AVAILABLE, reason="isal is not installed: gzip is zlib's")
def test_without_isal_zlib_compresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the file is as good."""
    monkeypatch.setattr(parquet_write, "AVAILABLE", False)
    file, rows = io.BytesIO(), pa.table({"a": ["x"] * 90})
    writer = open_parquet_writer(file, rows.schema, "gzip", rows)
    writer.write(rows)
    writer.close()
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "GZIP"


# Dates and times of Spark's legacy mode, and what our own files say of theirs.


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


def calendar_written(table: pa.Table, said: dict[str, str], **options: Any) -> pa.BufferReader:
    """A file whose footer says so."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, store_schema=False, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(said)
    return pa.BufferReader(sink.getvalue())


def read(table: pa.Table, said: dict[str, str], **options: Any) -> pa.Table:
    """The table as it comes out of a file whose footer says so."""
    source = calendar_written(table, said, **options)
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
    assert old_calendar(open_parquet(calendar_written(pa.table({"n": [1]}), LEGACY))) is None
