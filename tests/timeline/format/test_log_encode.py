"""Log blocks as we write them: read back by the reader, and compared with bytes that use none of the product's code."""

from __future__ import annotations

import io
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase.timeline.codec.arrow_schema import arrow_schema
from phantombase.timeline.codec.columns import Ordering
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.format import log_encode as log_write
from phantombase.timeline.format.log_block import BlockKind, HeaderKey, scan_blocks
from phantombase.timeline.format.log_decode import decode_rows
from phantombase.timeline.format.log_deletes import decode_deletes
from phantombase.timeline.format.log_encode import (
    LogFormat,
    Parts,
    data_block,
    delete_block,
    rollback_block,
    split_rows,
)
from tests.support.builders import (
    COLUMN,
    INSTANT_TIME,
    NO_ORDERING,
    SCHEMA,
    avro_block,
    avro_schema,
    blocks_of,
    delete_content,
)
from tests.support.builders import delete_block as delete_block_by_hand
from tests.support.builders import rollback_block as rollback_block_by_hand
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep, for_each

ONE = avro_schema(
    ("k", "string"),
    ("v", ["null", "long"]),
    ("a", {"type": "array", "items": ["null", {"type": "map", "values": "int"}]}),
)
ROWS: list[dict[str, Any]] = [
    {"k": "a", "v": 1, "a": [[("x", 1)], None]},
    {"k": "bb", "v": None, "a": []},
    {"k": "", "v": -(2**63), "a": [[]]},
]
TABLE = pa.Table.from_pylist(ROWS, arrow_schema(ONE))


def whole(parts: Parts) -> bytes:
    """The block as a file holds it."""
    file = io.BytesIO()
    file.writelines(parts)
    return file.getvalue()


def deletes(keys: Sequence[str], ordering: Ordering, *, hudi_0x: bool = False) -> bytes:
    """A delete block of partition d=0 by instant 7."""
    paths = pa.array(["d=0"] * len(keys))
    return whole(delete_block(pa.array(keys), paths, ordering, instant="7", schema_text="{}", hudi_0x=hudi_0x))


@pytest.mark.parametrize("log_format", LogFormat)
def test_data_blocks_read_back(log_format: LogFormat) -> None:
    """Two blocks behind each other hold what was written, under their headers."""
    data = b"".join(whole(data_block(TABLE, instant=t, schema_text=ONE, log_format=log_format)) for t in ("1", "2"))
    blocks = blocks_of(data)
    assert [b.instant for b in blocks] == ["1", "2"]
    for block in blocks:
        assert block.headers[SCHEMA] == ONE  # type: ignore[index]
        (rows,) = decode_rows(block, pa.BufferReader(data), TABLE.schema)
        assert rows.to_pylist() == ROWS


def test_avro_block_by_hand() -> None:
    """Byte for byte."""
    rows = [{**row, "a": [m if m is None else dict(m) for m in row["a"]]} for row in ROWS]
    found = whole(data_block(TABLE, instant="1", schema_text=ONE, log_format=LogFormat.AVRO))
    assert found == avro_block("1", ONE, rows)


@pytest.mark.parametrize("codec", ["zstd", "gzip", "none"])
def test_parquet_content(codec: str) -> None:
    """A complete file with Hudi's two footer entries and the calendar, no second schema, required columns required."""
    data = whole(data_block(TABLE, instant="1", schema_text=ONE, log_format=LogFormat.PARQUET, codec=codec))
    (block,) = blocks_of(data)
    file = pq.ParquetFile(pa.BufferReader(data[block.content_offset : block.content_offset + block.content_bytes]))
    said = {"parquet.avro.schema": ONE, "writer.model.name": "avro", "org.apache.spark.version": "3.5.0"}
    assert file.metadata.metadata == {key.encode(): value.encode() for key, value in said.items()}
    assert file.metadata.row_group(0).column(0).compression == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
    assert [(c.max_definition_level) for c in (file.schema.column(0), file.schema.column(1))] == [0, 1]


@pytest.mark.parametrize("log_format", LogFormat)
def test_both_formats_refuse_the_same_rows(log_format: LogFormat) -> None:
    """No rows, and nulls where none may be."""
    with pytest.raises(UsageError, match="without rows"):
        data_block(TABLE.slice(0, 0), instant="1", schema_text=ONE, log_format=log_format)
    nulls = TABLE.set_column(0, "k", pa.array(["a", None, "b"]))
    with pytest.raises(UsageError, match="column k must not hold nulls"):
        data_block(nulls, instant="1", schema_text=ONE, log_format=log_format)


def test_blocks_beyond_java_arrays_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their size; split rows fit."""
    block = data_block(TABLE, instant="1", schema_text=ONE, log_format=LogFormat.AVRO)
    content_bytes = blocks_of(whole(block))[0].content_bytes
    monkeypatch.setattr(log_write, "CONTENT_BYTES_MAX", content_bytes)
    assert data_block(TABLE, instant="1", schema_text=ONE, log_format=LogFormat.AVRO) == block
    monkeypatch.setattr(log_write, "CONTENT_BYTES_MAX", content_bytes - 1)
    with pytest.raises(UsageError, match="too large"):
        data_block(TABLE, instant="1", schema_text=ONE, log_format=LogFormat.AVRO)


def test_split_rows() -> None:
    """In order, within the bound but for single rows; nothing of nothing."""
    rows = pa.table({"t": ["x" * (n * 37 % 50) for n in range(100)] + ["y" * 1000]})
    parts = list(split_rows(rows, 200))
    assert pa.concat_tables(parts).equals(rows)
    assert all(p.num_rows == 1 or 0 < p.nbytes <= 200 for p in parts)
    assert len(parts) < 80
    assert list(split_rows(rows.slice(0, 0), 200)) == []


# --- deletes -------------------------------------------------------------------------------------------------------


def test_natural_deletes() -> None:
    """Integer 0 for all; the bytes real Hudi writes for one key (hudi-format.md 12)."""
    data = deletes(["k0000000052"], ())
    (block,) = blocks_of(data)
    content = data[block.content_offset : block.content_offset + block.content_bytes]
    assert content == bytes.fromhex("00000003 00000016 02 02 16 6b30303030303030303532 02 06 643d30 04 00 00")
    assert data == delete_block_by_hand("7", [("k0000000052", NO_ORDERING)])
    (part,) = decode_deletes(block, pa.BufferReader(data))
    assert part.ordering == ()
    assert part.natural.to_pylist() == [True]


@for_each([*COLUMN])
def test_typed_deletes(name: str) -> None:
    """The wrapper of the column's type, as Hudi writes it; read back with its values."""
    column = COLUMN[name]
    keys = [f"k{i}" for i in range(len(column.pool))]
    data = deletes(keys, (pa.array(column.pool, column.arrow),), hudi_0x=True)
    if name != "decimal":  # fastavro writes negative decimals a byte longer than Java
        by_hand = [(key, (column.wrapper, value)) for key, value in zip(keys, column.pool, strict=True)]
        assert data == delete_block_by_hand("7", by_hand)
    (block,) = blocks_of(data)
    (part,) = decode_deletes(block, pa.BufferReader(data))
    assert part.keys.to_pylist() == keys
    assert part.ordering[0].type == column.wrapper_arrow
    assert [repr(v) for v in part.ordering[0].cast(column.arrow).to_pylist()] == [
        repr(v) for v in pa.array(column.pool, column.arrow).to_pylist()
    ]


@for_each(
    [
        (pa.int16(), "IntWrapper"),
        (pa.time32("ms"), "IntWrapper"),
        (pa.time64("us"), "LongWrapper"),
        (pa.timestamp("ms", "UTC"), "LongWrapper"),
        (pa.timestamp("us"), "LongWrapper"),
    ]
)
def test_times_are_the_integers_avro_stores(kind: pa.DataType, wrapper: str) -> None:
    """In the column's own unit."""
    values = pa.array([0, 999], kind)
    assert deletes(["a", "b"], (values,)) == delete_block_by_hand("7", [("a", (wrapper, 0)), ("b", (wrapper, 999))])


def test_a_single_date() -> None:
    """Its day number; version 6 has the wrapper that 0.15 writes (see above)."""
    by_hand = delete_block_by_hand("7", [("a", ("IntWrapper", 20_000)), ("b", ("IntWrapper", -1))])
    assert deletes(["a", "b"], (pa.array([20_000, -1], pa.date32()),)) == by_hand


def test_several_ordering_columns() -> None:
    """An array wrapper; a date is its day number, as 1.x can compare it, and a 0 there stands for itself."""
    ordering = (pa.array([5, 0]), pa.array([1, 0], pa.date32()), pa.array(["é", ""]))
    rows = [("a", 5, 1, "é"), ("b", 0, 0, "")]
    by_hand = [
        (key, ("ArrayWrapper", [("LongWrapper", n), ("IntWrapper", d), ("StringWrapper", t)])) for key, n, d, t in rows
    ]
    data = deletes(["a", "b"], ordering)
    assert data == delete_block_by_hand("7", by_hand)
    (part,) = decode_deletes(blocks_of(data)[0], pa.BufferReader(data))
    assert [a.to_pylist() for a in part.ordering] == [[5, 0], [1, 0], ["é", ""]]


@for_each(
    [
        ((pa.array([1]),), "value0 of deletes"),
        ((pa.array([1, 0], pa.date32()),), "1970-01-01"),
        ((pa.array([1, None]),), "value0 of deletes; .* found 2 values, 1 nulls"),
        ((pa.array([Decimal("1e-16"), Decimal(1)]),), "cannot hold"),
        ((pa.array([Decimal("1e16"), Decimal(1)], pa.decimal128(38, 0)),), "cannot hold"),
    ]
)
def test_ordering_values_that_cannot_be(ordering: Ordering, said: str) -> None:
    """Never a null, nor what would be rounded."""
    with pytest.raises(UsageError, match=said):
        deletes(["a", "b"], ordering)


def test_other_deletes_that_cannot_be() -> None:
    """No keys, null keys, types without an order in Hudi."""
    with pytest.raises(UsageError, match="without keys"):
        deletes([], ())
    with pytest.raises(UsageError, match="key of deletes"):
        delete_block(pa.array(["a", None]), pa.array(["", ""]), (), instant="7", schema_text="{}", hudi_0x=False)
    with pytest.raises(UnsupportedError, match="cannot order"):
        deletes(["a"], (pa.array([[1]]),))


@pytest.mark.parametrize("name", ["v6_log_only", "v9_bucket_nonpart", deep("v8_pending"), deep("v9_pending")])
def test_deletes_as_real_hudi_writes_them(name: str, tmp_path: Path) -> None:
    """Byte for byte: what its delete blocks of a golden table decode to, encoded again."""
    path, seen = unzip_golden(name, tmp_path), 0
    for log in path.rglob(".*.log.*[0-9]"):
        with pa.OSFile(str(log)) as source:
            for block in scan_blocks(source, log.name):
                if block.kind is not BlockKind.DELETE:
                    continue
                (found,) = decode_deletes(block, source)
                folder = str(log.parent.relative_to(path)).removeprefix(".")
                ours = delete_block(
                    found.keys,
                    pa.array([folder] * len(found.keys)),
                    found.ordering,
                    instant=block.instant,
                    schema_text=block.header(HeaderKey.SCHEMA),
                    hudi_0x=name.startswith("v6"),
                )
                assert b"".join(map(bytes, ours[1:-1])) == source.read_at(block.content_bytes, block.content_offset)
                seen += 1
    assert seen > 1


def test_many_deletes() -> None:
    """More than a step of the encoder, as one list."""
    keys = [f"k{i}" for i in range(40_000)]
    data = deletes(keys, (pa.array(range(40_000)),))
    content = delete_content([(key, ("LongWrapper", i)) for i, key in enumerate(keys)])
    assert content in data
    assert blocks_of(data)[0].kind is BlockKind.DELETE


# --- rollbacks -------------------------------------------------------------------------------------------------------


def test_rollback_block() -> None:
    """The 105 bytes of real Hudi 0.15 (hudi-format.md 12)."""
    instant, target = "20261121085427016", "20261121085406063"
    expected = (
        b"#HUDI#" + bytes.fromhex("000000000000005b 00000001 00000000 00000003 00000003 00000001") + b"0"
        + bytes.fromhex("00000000 00000011") + instant.encode() + bytes.fromhex("00000001 00000011") + target.encode()
        + bytes.fromhex("0000000000000000 00000000 0000000000000061")
    )  # fmt: skip
    assert len(expected) == 105
    assert rollback_block(instant, target) == expected == rollback_block_by_hand(instant, target)
    assert blocks_of(expected)[0].headers[INSTANT_TIME] == instant  # type: ignore[index]
