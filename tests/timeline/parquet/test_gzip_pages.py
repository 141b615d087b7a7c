"""Files whose pages ISA-L has compressed hold the same as those that pyarrow writes, for every reader."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.parquet import write
from phantombase.timeline.parquet.gzip_pages import AVAILABLE, GzipPages, GzipWriter
from phantombase.timeline.parquet.write import open_parquet_writer
from tests.support.builders import tables

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="isal is not installed: gzip is zlib's")
KEPT = {"total_compressed_size", "data_page_offset", "dictionary_page_offset", "file_offset", "compression"}
SIZE = "total_uncompressed_size"


def written(rows: pa.Table, group_rows: int, **how: Any) -> bytes:
    file = io.BytesIO()
    writer = GzipWriter(file, rows.schema, store_schema=False, **how)
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


@given(tables(), st.integers(1, 70), st.sampled_from([None, 20, 1000]), st.booleans())
def test_any_rows(rows: pa.Table, group_rows: int, page_bytes: int | None, dictionary: bool) -> None:
    """Of all types, with pages and row groups of all sizes."""
    how: dict[str, Any] = {"data_page_size": page_bytes, "use_dictionary": dictionary}
    assert_same_file(written(rows, group_rows, **how), by_pyarrow(rows, group_rows, **how))


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


def test_other_readers(tmp_path: Path) -> None:
    rows = pa.table(
        {"n": list(range(5000)), "t": [f"text {i % 70}" for i in range(5000)], "x": [i / 3 for i in range(5000)]}
    )
    path = tmp_path / "f.parquet"
    path.write_bytes(written(rows, 1500, data_page_size=2000))
    assert pl.read_parquet(path).to_arrow().cast(rows.schema).equals(rows)
    assert duckdb.read_parquet(str(path)).to_arrow_table().cast(rows.schema).equals(rows)
    assert duckdb.read_parquet(str(path)).filter("n >= 4000").count("n").fetchall() == [(1000,)]


def test_no_rows() -> None:
    """Of a column without a dictionary too: a row group without rows then has no page at all."""
    rows = pa.table({"a": pa.array([], pa.string())})
    for each in (rows, pa.table({"a": ["x"]}).slice(0, 0), pa.table({"a": [True]}).slice(0, 0)):
        assert pq.read_table(io.BytesIO(written(each, 10))).num_rows == 0


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"data_page_version": "2.0"}, "another version"),
        ({"write_page_index": True}, "a page index"),
    ],
)
def test_what_cannot_be_compressed_is_refused(how: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        written(pa.table({"a": [1, 2, 3]}), 10, **how)


def test_a_file_that_is_compressed_already_is_refused() -> None:
    with pytest.raises(ValueError, match="compressed already"):
        GzipPages(io.BytesIO()).write(by_pyarrow(pa.table({"a": ["x" * 50] * 90}), 90, "gzip"))


def test_without_isal_zlib_compresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the file is as good."""
    monkeypatch.setattr(write, "AVAILABLE", False)
    file, rows = io.BytesIO(), pa.table({"a": ["x"] * 90})
    writer = open_parquet_writer(file, rows.schema, "gzip", rows)
    assert isinstance(writer, pq.ParquetWriter)
    writer.write(rows)
    writer.close()
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "GZIP"
