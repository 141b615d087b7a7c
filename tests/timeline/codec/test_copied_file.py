"""Row groups that are copied as bytes hold what they held, for every reader; what cannot be copied is named."""

from __future__ import annotations

import io
from collections.abc import Sequence
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

from phantombase.timeline.codec.avro_schema import FILE_NAME
from phantombase.timeline.codec.copy_rules import CopiedFile, check_copied, why_not_copied
from phantombase.timeline.codec.parquet_footer import (
    I32,
    I64,
    STRUCT,
    Field,
    Footer,
    read_footer,
    read_struct,
    value_of,
    write_struct,
)
from phantombase.timeline.codec.parquet_write import open_parquet_writer
from phantombase.timeline.errors import LedgerError, PhantombaseError
from phantombase.timeline.ranges import RangedFile, Span, open_ranges
from tests.support.builders import tables
from tests.support.golden_tables import unzip_golden
from tests.support.selection import ALL, deep
from tests.world.fuzz.parquet import mutate_parquet

NEW = "new_0_1.parquet"
PAIRS = {"parquet.avro.schema": "{}", "org.apache.hudi.bloomfilter": "äöü"}
PLACES = {"data_page_offset", "dictionary_page_offset", "file_offset", "bloom_filter_offset", "bloom_filter_length"}


def footer_of(data: bytes, path: str = "old") -> Footer:
    return read_footer(pa.BufferReader(data), path)


def copied(files: Sequence[bytes], codec: str = "zstd") -> bytes:
    """One file of all row groups, checked."""
    out = io.BytesIO()
    new = CopiedFile(out, footer_of(files[0]), name=NEW, codec=codec)
    for data in files:
        new.add(pa.BufferReader(data), footer_of(data))
    new.finish(PAIRS)
    check_copied(pa.BufferReader(out.getvalue()), "new", new)
    return out.getvalue()


def descriptions(data: bytes) -> list[dict[str, Any]]:
    """What the footer says of each column chunk with rows, but for its place, and for the file names."""
    metadata = pq.read_metadata(io.BytesIO(data))
    found = []
    for group in (metadata.row_group(n) for n in range(metadata.num_row_groups)):
        chunks = [group.column(n).to_dict() for n in range(group.num_columns if group.num_rows else 0)]
        found += [{k: v for k, v in c.items() if k not in PLACES} for c in chunks if c["path_in_schema"] != FILE_NAME]
    return found


def rows_of(*files: bytes) -> pa.Table:
    return pa.concat_tables([pq.read_table(io.BytesIO(data)) for data in files])


def check_same(files: Sequence[bytes], new: bytes) -> None:
    """Rows, their order, and statistics; pyarrow, DuckDB and Polars agree."""
    before, after = rows_of(*files), rows_of(new)
    if FILE_NAME in before.column_names:
        assert set(after[FILE_NAME].to_pylist()) <= {NEW}
        before, after = before.drop_columns([FILE_NAME]), after.drop_columns([FILE_NAME])
    assert after.replace_schema_metadata() == before.replace_schema_metadata()
    assert descriptions(new) == [one for data in files for one in descriptions(data)]
    metadata = pq.read_metadata(io.BytesIO(new))
    assert metadata.created_by == pq.read_metadata(io.BytesIO(files[0])).created_by
    found = {k.decode(): v.decode() for k, v in metadata.metadata.items() if k != b"ARROW:schema"}
    assert found == PAIRS


def hudi_files(path: Path) -> list[bytes]:
    """The base files of a table that have as many columns as the widest."""
    found = [p.read_bytes() for p in sorted(path.rglob("*.parquet")) if ".hoodie" not in p.parts]
    widths = [len(footer_of(data).arrow) for data in found]
    return [data for data, width in zip(found, widths, strict=True) if width == max(widths)]


@pytest.mark.parametrize(
    "name",
    ["v6_types", "v9_types", "v6_plain", "v9_virtual_keys", *map(deep, ("v8_types", "v9_plain", "v6_complex_key"))],
)
def test_base_files_of_hudi(name: str, tmp_path: Path) -> None:
    files = hudi_files(unzip_golden(name, tmp_path))
    schema = footer_of(files[0]).arrow
    assert why_not_copied(map(footer_of, files), schema) is None
    files = files[:3]
    new = copied(files, "gzip")
    check_same(files, new)
    (tmp_path / NEW).write_bytes(new)
    count = rows_of(*files).num_rows
    assert len(duckdb.read_parquet(str(tmp_path / NEW)).fetchall()) == count
    assert pl.read_parquet(tmp_path / NEW).height == count


def with_names(rows: pa.Table, name: str = "old.parquet") -> pa.Table:
    return rows.append_column(FILE_NAME, pa.array([name] * rows.num_rows, pa.string()))


def ours(rows: pa.Table, codec: str, group_rows: int = 1 << 20) -> bytes:
    out = io.BytesIO()
    with open_parquet_writer(out, rows.schema, codec, rows) as writer:
        writer.write(rows, row_group_size=group_rows)
    return out.getvalue()


@settings(max_examples=50 if ALL else 12)
@given(tables(), st.sampled_from(["zstd", "gzip", "snappy"]), st.integers(1, 70), st.integers(1, 4))
def test_our_files_of_any_types(rows: pa.Table, codec: str, group_rows: int, count: int) -> None:
    one = ours(with_names(rows), codec, group_rows)
    files = [one, *[ours(with_names(rows.slice(n)), codec, group_rows) for n in range(1, count)]]
    assert why_not_copied(map(footer_of, files), footer_of(one).arrow) is None
    check_same(files, copied(files))


@settings(max_examples=40 if ALL else 10)
@given(tables(), st.booleans(), st.booleans(), st.sampled_from(["1.0", "2.0"]), st.integers(1, 70))
def test_files_of_other_writers(rows: pa.Table, index: bool, coded: bool, pages: str, group_rows: int) -> None:
    """Page indexes and filters of columns are left behind, checksums and both kinds of pages are kept."""
    out = io.BytesIO()
    pq.write_table(
        with_names(rows),
        out,
        row_group_size=group_rows,
        write_page_index=index,
        use_dictionary=coded,
        data_page_version=pages,
        write_page_checksum=True,
        store_schema=False,
    )
    files = [out.getvalue()] * 2
    assert why_not_copied(map(footer_of, files), footer_of(files[0]).arrow) is None
    new = copied(files)
    check_same(files, new)
    metadata = pq.read_metadata(io.BytesIO(new))
    assert not any(metadata.row_group(0).column(n).has_column_index for n in range(metadata.num_columns))
    assert pq.ParquetFile(io.BytesIO(new), page_checksum_verification=True).read().num_rows == 2 * rows.num_rows


def test_a_required_column_of_names_and_a_file_without_rows() -> None:
    schema = pa.schema([pa.field(FILE_NAME, pa.string(), nullable=False), pa.field("x", pa.int32())])
    files = [ours(pa.table([["a"] * n, [7] * n], schema=schema), "zstd") for n in (3, 0, 5)]
    new = copied(files)
    check_same(files, new)
    metadata = pq.read_metadata(io.BytesIO(new))
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [3, 5]
    check_same(files[1:2], copied(files[1:2]))


def test_a_row_group_is_fetched_at_once() -> None:
    """Of an object store; copying and the check afterwards ask once for each row group, beside the footers."""
    data = ours(with_names(pa.table({f"c{n}": Random(n).choices(range(1 << 40), k=200_000) for n in range(6)})), "none")
    asked: list[Sequence[Span]] = []

    def fetch(spans: Sequence[Span]) -> list[bytes]:
        asked.append(spans)
        return [data[at : at + count] for at, count in spans]

    def opened() -> RangedFile:
        return open_ranges(fetch, len(data), data[-70_000:])

    out = io.BytesIO()
    footer = read_footer(opened(), "old")
    asked.clear()
    new = CopiedFile(out, footer, name=NEW, codec="none")
    new.add(opened(), footer)
    new.finish(PAIRS)
    assert [len(spans) for spans in asked] == [6]
    data = out.getvalue()
    check_copied(opened(), "new", new)
    assert [len(spans) for spans in asked] == [6, 6]


ROWS = with_names(pa.table({"x": pa.array(range(500), pa.int64()), "y": ["text"] * 500}))


def obstacle(*files: bytes, schema: pa.Schema = ROWS.schema, least: int = 0) -> tuple[str, str, str]:
    found = why_not_copied((footer_of(data, str(n)) for n, data in enumerate(files)), schema, least)
    assert found is not None
    return found.why, found.path, found.found


def test_what_cannot_be_copied() -> None:
    one = ours(ROWS, "zstd")
    columns = "columns not as in the table"
    assert obstacle(one, ours(ROWS.drop_columns(["y"]), "zstd"))[:2] == (columns, "1")
    assert obstacle(one, schema=ROWS.schema.append(pa.field("z", pa.int8())))[2] == "without or with others: z"
    assert obstacle(one, schema=pa.schema(list(ROWS.schema)[::-1]))[2].startswith("another order: x")
    assert obstacle(one, schema=ROWS.schema.set(0, pa.field("x", pa.float64())))[0] == columns
    assert obstacle(one, schema=ROWS.schema.set(0, pa.field("x", pa.int64(), nullable=False)))[0] == columns
    small = pa.table({"x": pa.array([1], pa.int32())})
    assert obstacle(ours(small, "zstd"), schema=pa.schema([pa.field("x", pa.int64())]))[0] == columns
    required = ROWS.cast(ROWS.schema.set(0, pa.field("x", pa.int64(), nullable=False)))
    assert obstacle(one, ours(required, "zstd"))[:2] == ("another Parquet schema", "1")
    assert obstacle(one, least=len(one))[0] == "small row groups"
    assert why_not_copied([footer_of(one)], ROWS.schema, 100) is None


def test_old_times_are_not_copied() -> None:
    """Statistics of INT96 have no order, and encoded anew it is a time of 64 bits."""
    out = io.BytesIO()
    rows = pa.table({"t": pa.array([1, 2], pa.timestamp("us"))})
    pq.write_table(rows, out, use_deprecated_int96_timestamps=True, store_schema=False)
    assert obstacle(out.getvalue(), schema=rows.schema)[2] == "t: INT96"


def test_old_calendars_are_not_copied() -> None:
    """The new footer says that dates count in the new one."""
    rows = pa.table({FILE_NAME: ["a"], "d": pa.array([0], pa.int32()).cast(pa.date32())})
    for said, expected in (({}, None), ({"org.apache.spark.version": "2.4.8"}, "legacy calendar")):
        sink = io.BytesIO()
        with pq.ParquetWriter(sink, rows.schema, store_schema=False) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata(said)
        found = why_not_copied([footer_of(sink.getvalue())], rows.schema)
        assert found is None if expected is None else found is not None and expected in found.why


def changed(data: bytes, change: Any) -> bytes:
    """The file with another footer. `change`: takes its tree."""
    size = int.from_bytes(data[-8:-4], "little")
    tree, _ = read_struct(data[-8 - size : -8])
    change(tree)
    text = write_struct(tree)
    return data[: -8 - size] + text + len(text).to_bytes(4, "little") + b"PAR1"


def _chunk(tree: Any) -> Any:
    return value_of(value_of(tree, 4).items[0], 1).items[0]


def _set(struct: Any, number: int, value: object) -> None:
    next(f for f in struct if f.number == number).value = value


def test_footers_with_something_unknown_are_not_copied() -> None:
    one = ours(ROWS, "zstd")
    unknown = "a footer with parts that are not known here, or encrypted"
    algorithm = Field(8, STRUCT, [Field(1, STRUCT, [])])
    for change in (
        lambda t: t.append(Field(99, I32, 1)),
        lambda t: t.append(algorithm),
        lambda t: value_of(t, 4).items[0].append(Field(8, I64, 1)),
        lambda t: _chunk(t).append(Field(9, I64, 1)),
        lambda t: value_of(_chunk(t), 3).append(Field(18, I64, 1)),
    ):
        assert obstacle(one, changed(one, change))[:2] == (unknown, "1")
    other = obstacle(one, changed(one, lambda t: _set(t, 6, b"parquet-mr version 1.12.3")))
    assert (other[0], other[2]) == ("another writer", "parquet-mr version 1.12.3, format 2.6")
    assert obstacle(one, changed(one, lambda t: t.remove(t[-1])))[0] == "another writer"  # no orders of columns


def test_pages_outside_of_the_file_are_not_copied() -> None:
    one = ours(ROWS, "zstd")
    for number, value in ((7, len(one)), (7, 0), (9, 2), (9, len(one) - 9)):
        lying = changed(one, lambda t, n=number, v=value: _set(value_of(_chunk(t), 3), n, v))
        assert obstacle(lying)[0] == "pages outside of their file"

    def again_and_again(tree: Any) -> None:
        value_of(tree, 4).items.extend(value_of(tree, 4).items * 40)
        _set(tree, 3, 41 * 500)

    assert obstacle(changed(one, again_and_again))[0] == "pages outside of their file"


def test_chunks_that_do_not_fit_their_columns_are_not_copied() -> None:
    """pyarrow ends the process when it decodes bounds of another width or type, or an unknown codec."""
    one = ours(ROWS, "zstd")

    def other_path(tree: Any) -> None:
        value_of(value_of(_chunk(tree), 3), 3).items[0] = b"y"

    def short_bounds(tree: Any) -> None:
        _set(value_of(value_of(_chunk(tree), 3), 12), 5, b"abc")

    for change in (
        other_path,
        short_bounds,
        lambda t: _set(value_of(_chunk(t), 3), 1, 6),
        lambda t: _set(value_of(_chunk(t), 3), 4, 2000),
        lambda t: value_of(value_of(_chunk(t), 3), 2).items.append(1),
        lambda t: value_of(value_of(t, 4).items[0], 1).items.pop(),
    ):
        assert obstacle(changed(one, change))[0] == "column chunks that do not fit their columns"


def test_filters_of_columns_are_left_behind() -> None:
    one = ours(ROWS, "zstd")
    with_filter = changed(one, lambda t: value_of(_chunk(t), 3).extend([Field(14, I64, 4), Field(15, I32, 8)]))
    assert pq.read_metadata(io.BytesIO(with_filter)).row_group(0).column(0).bloom_filter_offset == 4
    new = copied([with_filter])
    check_same([with_filter], new)
    assert pq.read_metadata(io.BytesIO(new)).row_group(0).column(0).bloom_filter_offset is None


def test_what_was_copied_is_proved() -> None:
    """A byte that changed, columns that were exchanged, and a row group too few."""
    files = [ours(ROWS, "none"), ours(ROWS, "none")]
    out = io.BytesIO()
    new = CopiedFile(out, footer_of(files[0]), name=NEW, codec="none")
    for data in files:
        new.add(pa.BufferReader(data), footer_of(data))
    new.finish(PAIRS)
    good = out.getvalue()
    check_copied(pa.BufferReader(good), "new", new)
    wrong = bytearray(good)
    wrong[good.index(b"text")] ^= 1

    def exchange(tree: Any) -> None:
        first, second = (value_of(g, 1).items for g in value_of(tree, 4).items)
        places = [[f.value for f in value_of(c[1], 3) if f.number in (9, 11)] for c in (first, second)]
        for chunk, (data_at, coded_at) in zip((second[1], first[1]), places, strict=True):
            _set(value_of(chunk, 3), 9, data_at + 1)
            _set(value_of(chunk, 3), 11, coded_at + 1)

    def cut(tree: Any) -> None:
        value_of(tree, 4).items.pop()
        _set(tree, 3, 500)

    for bad in (bytes(wrong), changed(good, exchange), changed(good, cut)):
        with pytest.raises(LedgerError, match="differs from what was copied"):
            check_copied(pa.BufferReader(bad), "new", new)


@pytest.mark.parametrize("name", ["v9_types"])
def test_hostile_footers(name: str, tmp_path: Path) -> None:
    """An obstacle, an error of the tree, or a copy that holds what pyarrow reads of the file."""
    origin = hudi_files(unzip_golden(name, tmp_path))[0]
    schema, seen = footer_of(origin).arrow, dict.fromkeys(("obstacle", "error", "copied"), 0)
    for seed in range(4000 if ALL else 60):
        data = mutate_parquet(Random(seed), origin)
        try:
            if why_not_copied([footer_of(data)], schema) is not None:
                seen["obstacle"] += 1
                continue
            if pq.read_metadata(io.BytesIO(data)).num_rows > 1_000_000:  # `RowsIn.keys_of` finds fewer
                continue
            copied([data])
            seen["copied"] += 1
        except PhantombaseError:
            seen["error"] += 1
    assert min(seen.values()) > 0, seen
