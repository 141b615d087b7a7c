"""Batches of bounded size from Parquet files that stand for far more than their bytes."""

from __future__ import annotations

import io
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.codec import parquet_footer, parquet_read
from phantombase.timeline.codec import parquet_read as parquet_input
from phantombase.timeline.codec.parquet_footer import Field, Sequence, field_of, read_struct, value_of, write_struct
from phantombase.timeline.codec.parquet_read import (
    Share,
    column_spans,
    fetched_at_once,
    open_parquet,
    parquet_batches,
    read_parquet,
    readable,
)
from phantombase.timeline.codec.parquet_write import java_ends, open_parquet_writer
from phantombase.timeline.errors import MalformedError, UnsupportedError
from phantombase.timeline.ranges import Span, open_ranges
from tests.support.selection import for_each
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


def test_a_dictionary_beside_pages_of_differences(tmp_path: Path) -> None:
    """One row group has a dictionary of long values, the other none. pyarrow cannot read both as dictionaries."""
    path, long = str(tmp_path / "v2.parquet"), "x" * 40_000
    rows = f"SELECT CASE WHEN i < 2048 THEN '{long}' ELSE 'some text ' || i END AS t FROM range(4096) AS r(i)"
    duckdb.sql(f"COPY ({rows}) TO '{path}' (PARQUET_VERSION v2, ROW_GROUP_SIZE 2048)")
    source = pa.OSFile(path)
    encodings = [open_parquet(source).metadata.row_group(at).column(0).encodings for at in (0, 1)]
    assert encodings == [("RLE_DICTIONARY",), ("DELTA_LENGTH_BYTE_ARRAY",)]
    batches = list(parquet_batches(source, open_parquet(source), ["t"], 65_536))
    assert max(batch.nbytes for batch in batches) <= 2 * BATCH
    texts = pa.Table.from_batches(batches)["t"]
    assert texts[:2048].unique().to_pylist() == [long]
    assert texts[2048:].to_pylist() == [f"some text {i}" for i in range(2048, 4096)]


def _coded(batch: pa.RecordBatch) -> bool:
    return any(pa.types.is_dictionary(c.type) for c in batch.columns)


def test_fixed_values_of_any_width() -> None:
    """pyarrow makes room for a whole batch of them first."""
    assert read_parquet(written(pa.table({"f": pa.array([b"x" * 4096], pa.binary(4096))})), ["f"]).num_rows == 1
    with pytest.raises(UnsupportedError, match="wide fixed values"):
        open_parquet(written(pa.table({"f": pa.array([b"x" * 4097], pa.binary(4097))})))


@for_each([-1, 0, 11, 1 << 40])
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


@for_each([None, [0], [2, 1], []])
def test_all_rows_are_there_whatever_is_read(groups: list[int] | None) -> None:
    source = written(pa.table({"k": pa.array(range(25)), "t": [str(i) for i in range(25)]}), row_group_size=10)
    file = open_parquet(source)
    rows = 25 if groups is None else sum((10, 10, 5)[g] for g in groups)
    for names in (["k", "t"], ["t"], []):
        assert sum(batch.num_rows for batch in parquet_batches(source, file, names, 7, groups)) == rows


# Key ranges of base files are in Java's order.


# U+10FFFF is no character; surrogates cannot stand alone in UTF-8.
KEYS = st.lists(st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x10FFFE), max_size=6), min_size=1)


@given(KEYS, st.integers(0, 5))
def test_ends_are_those_of_java_strings(keys: list[str], cut: int) -> None:
    """As `String.compareTo` orders them: by UTF-16 code units, in one chunk or several, sliced or not."""
    ordered = sorted(keys, key=lambda key: key.encode("utf-16-be"))
    chunks = pa.chunked_array([keys[:cut], keys[cut:]], pa.string())
    assert java_ends(chunks) == (ordered[0], ordered[-1])


@pytest.mark.parametrize("keys", [["\U0001f6001", "\ufdfa1"], ["\ufdfa1", "\U0001f6001", "z"]])
def test_the_case_that_doubled_rows(keys: list[str]) -> None:
    """A BLOOM upsert took keys like U+FDFA for absent where an emoji was recorded as the greatest key."""
    assert java_ends(pa.chunked_array([keys]))[1] == "\ufdfa1"


def test_no_keys() -> None:
    """An empty file has no range."""
    assert java_ends(pa.chunked_array([], pa.string())) == (None, None)


# Shares of a base file have each row group once.


@given(st.integers(0, 40), st.integers(1, 50), st.sets(st.integers(0, 39)))
def test_each_row_group_once(count: int, of: int, wanted: set[int]) -> None:
    shares = [Share(part, of) for part in range(of)]
    assert [group for share in shares for group in share.of_groups(count)] == list(range(count))
    chosen = sorted(group for group in wanted if group < count)
    assert [group for share in shares for group in share.of_groups(count, chosen)] == chosen


def test_shares_are_alike() -> None:
    sizes = [len(Share(part, 4).of_groups(10)) for part in range(4)]
    assert max(sizes) - min(sizes) <= 1


# What our Parquet files say of themselves in their footers.


NUMBERS = [1.0, math.nan, 2.0]


@for_each(["zstd", "gzip"])
def test_floats_with_nan_have_no_bounds(codec: str) -> None:
    """Arrow's would leave out the NaN: `x > 5`, true of NaN in Spark, would pass over the rows. Other floats have
    bounds: Hudi takes a column without statistics for one of nulls only."""
    rows = pa.table(
        {
            "id": [1, 2, 3],
            "x": NUMBERS,
            "y": pa.array(NUMBERS, pa.float32()),
            "z": [1.5, None, -2.5],
            "s": [{"x": x, "y": 1.0, "name": "n"} for x in NUMBERS],
            "l": [[x] for x in NUMBERS],
            "m": pa.array([[("k", x)] for x in NUMBERS], pa.map_(pa.string(), pa.float64())),
        }
    )
    sink = pa.BufferOutputStream()
    with open_parquet_writer(sink, rows.schema, codec, rows) as writer:
        writer.write(rows.slice(0, 1))
        writer.write(rows.slice(1))
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    assert file.read().slice(2).equals(rows.slice(2))
    group = file.metadata.row_group(0)
    found = {
        chunk.path_in_schema: chunk.statistics.has_min_max
        for chunk in (group.column(i) for i in range(group.num_columns))
        if chunk.statistics is not None
    }
    bounded = dict.fromkeys(("id", "z", "s.y", "s.name", "m.key_value.key"), True)
    assert found == {**bounded, "x": False, "y": False, "s.x": False}
    nulls = file.metadata.row_group(1).column(3).statistics
    assert (nulls.null_count, nulls.min, nulls.max) == (1, -2.5, -2.5)


# Which bytes of a Parquet file travel.


_MIB = 1 << 20
_END = 70_000


@for_each(
    [
        (0, 1, 20, True),  # its size is not known
        (8 * _MIB, 1, 20, True),
        (20 * _MIB, 1, 20, False),
        (20 * _MIB, 12, 20, True),  # what is not wanted is 8 MiB
        (32 * _MIB, 20, 20, True),
        (32 * _MIB, 25, 20, True),  # more than the file has
        (33 * _MIB, 20, 20, False),
    ]
)
def test_a_file_travels_whole_if_little_of_it_is_not_wanted(size: int, wanted: int, columns: int, whole: bool) -> None:
    assert fetched_at_once(size, wanted, columns) is whole


def _file(rows: int = 30_000) -> tuple[pa.Table, bytes]:
    """Three row groups; a dictionary, plain numbers, and a column of records."""
    random = np.random.default_rng(1)
    table = pa.table(
        {
            "word": pa.array(["one", "two", "three"]).take(pa.array(random.integers(0, 3, rows))),
            "n": random.integers(0, 1 << 60, rows),
            "point": pa.array([{"x": x, "y": -x} for x in range(rows)]),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=10_000, compression="zstd")
    return table, sink.getvalue()


class Asked:
    """A file that is read by ranges, and what was asked for."""

    def __init__(self, data: bytes, end: int) -> None:
        self.data, self.spans = data, list[list[Span]]()
        self.file = open_ranges(self._fetch, len(data), data[-end:] if end else b"")

    def _fetch(self, spans: object) -> list[bytes]:
        assert isinstance(spans, list)
        self.spans.append(spans)
        return [self.data[at : at + count] for at, count in spans]


@pytest.mark.parametrize("names", [["n"], ["word", "point"], ["word", "n", "point"]])
@pytest.mark.parametrize("groups", [None, [], [1], [0, 2]])
def test_columns_are_fetched_row_group_by_row_group(names: list[str], groups: list[int] | None) -> None:
    """Each group's at the same time, and nothing else; the rows are those of the file."""
    table, data = _file()
    asked = Asked(data, _END)
    file = open_parquet(asked.file)
    read = pa.Table.from_batches(parquet_batches(asked.file, file, names, 700, groups), table.select(names).schema)
    chosen = range(3) if groups is None else groups
    assert read.equals(
        pa.concat_tables([table.slice(0, 0), *(table.slice(10_000 * g, 10_000) for g in chosen)]).select(names)
    )
    assert asked.spans == [
        [s for s in column_spans(file.metadata, g, names) if s[0] < len(data) - _END] for g in chosen
    ]


def test_what_takes_too_much_memory_is_not_fetched_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    table, data = _file()
    monkeypatch.setattr(parquet_read, "_AHEAD_BYTES_MAX", 1000)
    asked = Asked(data, 0)
    file = open_parquet(asked.file)
    assert column_spans(file.metadata, 0, ["n"]) == []
    assert pa.Table.from_batches(parquet_batches(asked.file, file, ["n"], 700)).equals(table.select(["n"]))


# Trees of Thrift's compact protocol.


LONGS = st.integers(-(2**63), 2**63 - 1)
LEAVES = st.one_of(
    st.tuples(st.sampled_from([parquet_footer.I16, parquet_footer.I32, parquet_footer.I64]), LONGS),
    st.tuples(st.just(parquet_footer.BINARY), st.binary(max_size=300)),
    st.tuples(st.just(parquet_footer.BYTE), st.binary(min_size=1, max_size=1)),
    st.tuples(st.just(parquet_footer.DOUBLE), st.binary(min_size=8, max_size=8)),
    st.tuples(st.sampled_from([parquet_footer.TRUE, parquet_footer.FALSE]), st.none()),
)


def _with_containers(values: st.SearchStrategy[tuple[int, object]]) -> st.SearchStrategy[tuple[int, object]]:
    structs = _structs(values).map(lambda fields: (parquet_footer.STRUCT, fields))
    of_one_type = st.one_of(
        st.lists(LONGS, max_size=40).map(lambda items: Sequence(parquet_footer.I64, list(items))),
        st.lists(st.binary(min_size=1, max_size=1), max_size=20).map(
            lambda items: Sequence(parquet_footer.TRUE, list(items))
        ),
        st.lists(_structs(values), max_size=3).map(lambda items: Sequence(parquet_footer.STRUCT, list(items))),
    )
    return structs | st.tuples(st.sampled_from([parquet_footer.LIST, parquet_footer.SET]), of_one_type)


def _structs(values: st.SearchStrategy[tuple[int, object]]) -> st.SearchStrategy[list[Field]]:
    return st.dictionaries(st.integers(1, 32_767), values, max_size=6).map(
        lambda found: [Field(number, *found[number]) for number in sorted(found)]
    )


@given(_structs(st.recursive(LEAVES, _with_containers, max_leaves=12)), st.binary(max_size=5))
def test_what_is_written_is_read(fields: list[Field], before: bytes) -> None:
    """Also from within other bytes; each shorter text ends too early."""
    text = write_struct(fields)
    assert read_struct(before + text + b"more", len(before)) == (fields, len(before + text))
    with pytest.raises(IndexError):
        read_struct(text[:-1])


def test_a_parquet_footer_is_written_as_it_was() -> None:
    file = io.BytesIO()
    rows = pa.table({"a": list(range(100)), "b": [[{"c": None}]] * 100, "d": [b"x"] * 100})
    pq.write_table(rows, file, row_group_size=7)
    data = file.getvalue()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    found, end = read_struct(footer)
    assert (write_struct(found), end) == (footer, len(footer))
    assert value_of(found, 3) == 100


def test_a_field_that_is_missing() -> None:
    assert field_of([], 3) is None
    with pytest.raises(KeyError, match="no field 3"):
        value_of([], 3)


def test_a_wire_type_that_no_footer_has() -> None:
    with pytest.raises(ValueError, match="wire type 11"):
        read_struct(bytes([0x1B, 0]))
