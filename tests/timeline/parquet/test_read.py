"""Batches of bounded size from Parquet files that stand for far more than their bytes."""

from __future__ import annotations

import io
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase.timeline.errors import MalformedError, UnsupportedError
from phantombase.timeline.parquet import read as parquet_input
from phantombase.timeline.parquet.read import open_parquet, parquet_batches, read_parquet, readable
from tests.world.fuzz.parquet import dump, join, split

BATCH = 32 << 20


def written(table: pa.Table, **options: Any) -> pa.BufferReader:
    """The table as a Parquet file."""
    stream = io.BytesIO()
    pq.write_table(table, stream, store_schema=False, **options)
    return pa.BufferReader(stream.getvalue())


def repeated(value: str, rows: int) -> pa.Array:
    """One value in every row."""
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([value]))


@pytest.mark.parametrize(("rows", "width"), [(60_000, 4000), (1000, 200_000), (40, 5_000_000)])
def test_batches_of_a_dictionary_bomb(rows: int, width: int) -> None:
    """A file of some kilobytes, hundreds of megabytes decoded: never more than one value above the limit at once."""
    source = written(
        pa.table({"n": pa.repeat(7, rows), "t": repeated("x" * width, rows)}), dictionary_pagesize_limit=1 << 30
    )
    seen = 0
    for batch in parquet_batches(source, open_parquet(source), ["n", "t"], 65_536):
        assert batch.nbytes <= BATCH + width + 16 * batch.num_rows
        assert batch.schema.field("t").type == pa.string()
        assert batch.column("t")[0].as_py() == "x" * width
        seen += batch.num_rows
    assert seen == rows


def test_timestamps_of_96_bits() -> None:
    """As Spark's row writer can be told to write them; 9999-12-31 is beyond 64 bits of nanoseconds."""
    times = pa.array([datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)], pa.timestamp("us"))
    source = written(pa.table({"t": times}), use_deprecated_int96_timestamps=True)
    (batch,) = parquet_batches(source, open_parquet(source), ["t"], 65_536)
    assert batch.column("t").equals(times)


def test_batches_over_row_groups() -> None:
    """No row group is too large, all of them in one batch are."""
    table = pa.table({"t": repeated("x" * 3_000_000, 60)})
    source = written(table, dictionary_pagesize_limit=1 << 30, row_group_size=5)
    batches = list(parquet_batches(source, open_parquet(source), ["t"], 65_536))
    assert max(b.nbytes for b in batches) < BATCH + 4_000_000
    assert sum(b.num_rows for b in batches) == 60


def test_batches_of_wide_rows() -> None:
    """Without a dictionary the footer tells how many rows fit."""
    source = written(pa.table({"t": [f"{i:04d}" * 50_000 for i in range(400)]}), use_dictionary=False)
    batches = list(parquet_batches(source, open_parquet(source), ["t"], 65_536))
    assert max(b.nbytes for b in batches) < 2 * BATCH
    assert sum(b.num_rows for b in batches) == 400


@pytest.mark.parametrize("rows", [0, 1, 9_999])
def test_values_and_nulls_come_through(rows: int) -> None:
    """The same rows as pyarrow reads, dictionaries or not, in any order of columns."""
    table = pa.table({
        "coded": pa.array([None if i % 7 == 0 else f"{i % 5}" * 2000 for i in range(rows)], pa.string()),
        "plain": pa.array([f"row {i}" for i in range(rows)], pa.string()),
        "number": pa.array(range(rows), pa.int64()),
    })  # fmt: skip
    source = written(table, use_dictionary=["coded"], row_group_size=4000)
    assert read_parquet(source, ["number", "coded", "absent"]).equals(table.select(["number", "coded"]))


def test_decoding_a_bomb_as_a_whole_is_refused() -> None:
    """It stops after the limit, not behind the end."""
    source = written(pa.table({"t": repeated("x" * 200_000, 3000)}), dictionary_pagesize_limit=1 << 30)
    before = pa.total_allocated_bytes()
    with pytest.raises(UnsupportedError, match="far more than its bytes"):
        read_parquet(source, ["t"])
    assert pa.total_allocated_bytes() - before < 8 * BATCH


def test_an_overflowed_dictionary_is_not_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times slower for nothing: such a column holds its values."""
    source = written(pa.table({"k": [f"key-{i:012d}" for i in range(400_000)]}))
    assert open_parquet(source).metadata.row_group(0).column(0).has_dictionary_page
    monkeypatch.setattr(parquet_input, "_pieces", lambda batch: pytest.fail("as a dictionary") if _coded(batch) else ())
    assert list(parquet_batches(source, open_parquet(source), ["k"], 65_536)) == []


def _coded(batch: pa.RecordBatch) -> bool:
    return any(pa.types.is_dictionary(c.type) for c in batch.columns)


def test_fixed_values_of_any_width() -> None:
    """pyarrow makes room for a whole batch of them first."""
    assert read_parquet(written(pa.table({"f": pa.array([b"x" * 4096], pa.binary(4096))})), ["f"]).num_rows == 1
    with pytest.raises(UnsupportedError, match="wide fixed values"):
        open_parquet(written(pa.table({"f": pa.array([b"x" * 4097], pa.binary(4097))})))


@pytest.mark.parametrize("rows", [-1, 0, 11, 1 << 40])
def test_row_groups_that_do_not_add_up(rows: int) -> None:
    """The ledger takes the footer's rows for true."""
    source = written(pa.table({"n": range(10)}))
    front, footer = split(source.getvalue() if hasattr(source, "getvalue") else source.read())
    next(v for n, v in footer.data if n == 3).data = rows
    with pytest.raises(MalformedError, match="do not add up; at f; expected"), readable("base file", "f"):
        open_parquet(pa.BufferReader(join(front, dump(footer))))


def test_a_file_in_which_rows_are_missing_is_an_error() -> None:
    """pyarrow ends all columns where one has too few values; its own writer makes such a page of a null list."""
    source = written(pa.table({"k": ["a"], "l": pa.array([None], pa.list_(pa.int64()))}), data_page_size=1)
    file = open_parquet(source)
    assert sum(batch.num_rows for batch in file.iter_batches()) == 0
    with pytest.raises(MalformedError, match=r"rows are missing.*expected 1 rows, by its footer.*found 0 rows"):
        list(parquet_batches(source, file, ["k", "l"], 100))
    assert sum(batch.num_rows for batch in parquet_batches(source, file, ["k"], 100)) == 1


@pytest.mark.parametrize("groups", [None, [0], [2, 1], []])
def test_all_rows_are_there_whatever_is_read(groups: list[int] | None) -> None:
    source = written(pa.table({"k": pa.array(range(25)), "t": [str(i) for i in range(25)]}), row_group_size=10)
    file = open_parquet(source)
    rows = 25 if groups is None else sum((10, 10, 5)[g] for g in groups)
    for names in (["k", "t"], ["t"], []):
        assert sum(batch.num_rows for batch in parquet_batches(source, file, names, 7, groups)) == rows
