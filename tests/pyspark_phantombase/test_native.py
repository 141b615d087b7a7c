"""What is left to Spark's own reader, and what never is."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.view.view import DataFile, FileSlice
from pyspark_phantombase.frame import only_base, read_alike

UTC = pa.timestamp("us", "UTC")


def file_of(fields: list[pa.Field], **options: Any) -> pq.ParquetFile:
    out = io.BytesIO()
    pq.write_table(pa.schema(fields).empty_table(), out, **options)
    return pq.ParquetFile(out)


ID, FARE = pa.field("id", pa.string(), nullable=False), pa.field("fare", pa.float64())


@pytest.mark.parametrize(
    ("of_file", "of_table", "alike"),
    [
        ([ID, FARE], [ID, FARE], True),
        ([ID, FARE], [FARE], True),  # other columns do not matter
        ([ID], [ID, FARE], True),  # null
        ([FARE], [ID, FARE], False),  # required, and not there
        ([ID.with_nullable(True)], [ID], False),  # a null would be an error
        ([ID], [ID.with_nullable(True)], True),
        ([pa.field("fare", pa.float32())], [FARE], False),  # widened through its decimal text
        ([pa.field("fare", pa.int32())], [pa.field("fare", pa.int64())], False),
        ([pa.field("id", pa.binary())], [ID.with_nullable(True)], False),
        ([pa.field("Fare", pa.float64())], [FARE], False),  # Spark takes it for the column
        ([FARE, pa.field("FARE", pa.float64())], [FARE], False),
        ([FARE], [FARE, pa.field("FARE", pa.float64())], False),
        ([pa.field("at", UTC)], [pa.field("at", UTC)], True),
        ([pa.field("at", pa.timestamp("us"))], [pa.field("at", pa.timestamp("us"))], False),
        ([pa.field("at", pa.timestamp("ms", "UTC"))], [pa.field("at", UTC)], False),
        ([pa.field("n", pa.decimal128(10, 2))], [pa.field("n", pa.decimal128(10, 2))], True),
        ([pa.field("n", pa.decimal128(10, 2))], [pa.field("n", pa.decimal128(12, 2))], False),
        ([pa.field("n", pa.list_(pa.int64()))], [pa.field("n", pa.list_(pa.int64()))], False),
        ([pa.field("n", pa.list_(pa.int64())), FARE], [FARE], True),
        ([ID], [pa.field("n", pa.list_(pa.int64()))], False),
        ([ID, pa.field("_hoodie_operation", pa.string())], [ID], False),  # the reader refuses such a table
    ],
)
def test_columns_that_need_no_change(of_file: list[pa.Field], of_table: list[pa.Field], alike: bool) -> None:
    assert read_alike(file_of(of_file), pa.schema(of_table)) is alike


def test_a_file_whose_columns_have_other_names_by_now() -> None:
    """Dropped and added anew, or exchanged, they are there under the same names."""
    assert not read_alike(file_of([FARE]), pa.schema([FARE]), {"fare": None})
    assert not read_alike(file_of([FARE]), pa.schema([pa.field("price", pa.float64())]), {"price": "fare"})


def test_old_moments_are_not_left_to_spark() -> None:
    """It moves them between zones; pyarrow gives them no zone, so that even their types differ."""
    old = file_of([pa.field("at", pa.timestamp("us", "UTC"))], use_deprecated_int96_timestamps=True)
    assert not read_alike(old, pa.schema([pa.field("at", UTC)]))


def slice_of(partition: str, logs: int = 0) -> FileSlice:
    name = BaseFileName(file_id="f-0", token="1-0-1", instant="20260101000000000")
    base = DataFile(partition=partition, name=name, size=10)
    log = LogFileName(file_id="f-0", instant="20260101000000001", version=1, token="1-0-1")
    files = tuple(DataFile(partition=partition, name=log, size=10) for _ in range(logs))
    return FileSlice(partition=partition, file_id="f-0", base_instant=name.instant, base=base, logs=files)


@pytest.mark.parametrize("partition", ["", "p", "day=2026-01-01", "a b/c", "x%3Ay", "a_b", "a.b"])
def test_a_base_file_alone(partition: str) -> None:
    assert only_base(slice_of(partition))
    assert not only_base(slice_of(partition, logs=1))


@pytest.mark.parametrize("partition", ["*", "a[b]", "{a,b}", "a?", "a\\b", "_a", "a/.b"])
def test_names_that_spark_does_not_take_as_they_are(partition: str) -> None:
    assert not only_base(slice_of(partition))
