"""`phantombase-native` decodes what the decoders in Python decode, to the same tables; all else it leaves to them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock
from zipfile import ZipFile

import pyarrow as pa
import pytest

from phantombase.timeline.codec import avro_decode
from phantombase.timeline.codec.arrow_schema import arrow_schema
from phantombase.timeline.codec.avro_container import encode_long
from phantombase.timeline.codec.avro_decode import NativeColumns, load_module, native_columns
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format import log_decode
from phantombase.timeline.format.log_block import BlockKind, HeaderKey, scan_blocks
from phantombase.timeline.format.log_decode import decode_rows
from tests.support.builders import AVRO, SCHEMA, avro_block, avro_content, avro_schema, block, blocks_of
from tests.support.golden_tables import GOLDEN
from tests.support.places import GOLDEN_FOLDER
from tests.support.selection import deep, for_each

native = pytest.mark.skipif(
    avro_decode.native is None, reason="phantombase-native is not built: deploy/setup.sh does so where cargo is"
)

KEYS = avro_schema(("k", "string"), ("v", ["null", "long"]))
ROWS = [{"k": f"key {i}", "v": i if i % 2 else None} for i in range(20)]


def columns_of(text: str) -> NativeColumns:
    """All columns of a schema that the module decodes."""
    found = native_columns(text, tuple(arrow_schema(text).names))
    assert found is not None
    return found


def without_native(content: bytes, text: str, schema: pa.Schema) -> pa.Table:
    """What the decoders in Python make of a block's content."""
    data = block(AVRO, {SCHEMA: text}, content)
    with mock.patch.object(log_decode, "native_columns", return_value=None):
        return decoded(data, schema)


def decoded(data: bytes, schema: pa.Schema) -> pa.Table:
    """The rows of a log of one block."""
    (only,) = blocks_of(data)
    (rows,) = decode_rows(only, pa.BufferReader(data), schema, partial=True)
    return rows


def head(content: bytes) -> int:
    """The number of records that a block claims."""
    return int.from_bytes(content[4:8], "big", signed=True)


@cache
def golden_contents() -> dict[bytes, str]:
    """The content of each Avro block of the golden tables, and its schema."""

    def found() -> Iterator[tuple[bytes, str]]:
        for name in GOLDEN:
            with ZipFile(GOLDEN_FOLDER / f"{name}.zip", metadata_encoding="utf-8") as archive:
                logs = [m for m in archive.namelist() if ".log." in m and not m.endswith(".crc")]
                for data in map(archive.read, logs):
                    for one in scan_blocks(pa.BufferReader(data), name):
                        if one.kind is BlockKind.AVRO_DATA:
                            end = one.content_offset + one.content_bytes
                            yield data[one.content_offset : end], one.header(HeaderKey.SCHEMA)

    return dict(found())


@native
def test_blocks_of_golden_tables() -> None:
    """The module decodes each one, of data and of the metadata table, and the tables are equal."""
    assert len(golden_contents()) > 200
    for content, text in golden_contents().items():
        schema = arrow_schema(text)
        if not head(content):
            continue
        rows = columns_of(text).decode(pa.py_buffer(content[8:]), head(content))
        rows.validate(full=True)
        assert rows.schema == schema
        assert rows.equals(without_native(content, text, schema))


def damaged(random: Random, content: bytes) -> bytes:
    """One to three changes of bits, bytes or lengths, behind the version."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at = random.randrange(4, max(9, len(data)))
        match random.randrange(5):
            case 0:
                data[at : at + 1] = bytes([(data[at] if at < len(data) else 0) ^ 1 << random.randrange(8)])
            case 1:
                data[at : at + 1] = bytes([random.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF))])
            case 2:
                data[at : at + 1] = random.randbytes(1)
            case 3:
                del data[at : at + random.choice((1, 1, 2, 5))]
            case _:
                data[at:at] = random.choices((0, 1, 2, 0x80, 0xFF), k=random.choice((1, 2, 4)))
    return bytes(data)


@native
@pytest.mark.parametrize("samples", [1_000, *map(deep, range(200_000, 200_005))])
def test_damaged_blocks(samples: int) -> None:
    """What the module accepts is what the decoders in Python make of it; it neither panics nor takes much memory. Of
    many blocks one in ten is compared: this takes twenty times as long as the rest."""
    random, seen = Random(samples), Counter[str]()
    contents = [(c, t) for c, t in golden_contents().items() if head(c) and len(c) < 8000]
    for number in range(samples):
        whole, text = random.choice(contents)
        content, schema = damaged(random, whole), arrow_schema(text)
        if random.randrange(3) == 0:
            schema = pa.schema([schema.field(n) for n in random.sample(schema.names, random.randint(1, len(schema)))])
        columns = native_columns(text, tuple(schema.names))
        assert columns is not None
        if (count := head(content)) <= 0:
            continue
        try:
            rows = columns.decode(pa.py_buffer(content[8:]), count)
        except ValueError as error:
            seen[str(error).partition(": ")[2]] += 1
            continue
        rows.validate(full=True)
        assert rows.nbytes < 100 * len(content)
        seen["accepted"] += 1
        if samples < 10_000 or number % 10 == 0:
            theirs = without_native(content, text, schema)
            assert rows.equals(theirs) or str(rows.to_pylist()) == str(theirs.to_pylist()), content.hex()  # NaN
    assert len(seen) > 8
    assert seen["accepted"] > samples / 10
    assert "a panic" not in seen


@native
def test_records_by_number() -> None:
    """Only the records that are asked for are decoded; of the others only the lengths must be right."""
    content, columns = avro_content(KEYS, ROWS)[8:], columns_of(KEYS)

    def chosen(*numbers: int) -> pa.Table:
        args = columns.program, columns.symbols, columns.wanted
        array = avro_decode.native.decode(content, len(ROWS), *args, True, list(numbers))
        return pa.record_batch(avro_decode.NativeArray(columns.schema, array))

    for numbers in ([], [0], [19], [3, 4, 17], list(range(20))):
        assert chosen(*numbers).to_pylist() == [ROWS[i] for i in numbers]
    for wrong in ([20], [4, 3], [3, 3]):
        with pytest.raises(ValueError, match="numbers of records"):
            chosen(*wrong)


WIDE = {"type": "record", "name": "w", "fields": [{"name": f"f{i}", "type": "long"} for i in range(900)]}
FIXED = {"type": "fixed", "name": "f", "size": 4096}
REFUSED = [
    ("text that ends within a character", "string", [b"\x02\xc3", b"\x02\xa9"]),
    ("text that is not UTF-8", "string", [b"\x02\xff"]),
    ("beyond the end", "string", [b"\x7e"]),
    ("more than 64 bits", "long", [b"\xff" * 9 + b"\x02"]),
    ("more than 32 bits", "int", [encode_long(1 << 31)]),
    ("another byte", "boolean", [b"\x02"]),
    ("branch", ["null", "int"], [b"\x04"]),
    ("symbol", {"type": "enum", "name": "e", "symbols": ["A"]}, [b"\x02"]),
    ("more digits", {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, [b"\x02\x64"]),
    ("no day", {"type": "int", "logicalType": "time-millis"}, [encode_long(86_400_000)]),
    ("more values", {"type": "array", "items": "int"}, [b"\x7e\x00"]),
    ("negative", {"type": "array", "items": "int"}, [b"\x01\x02\x02\x00"]),
    ("shorter than its length", "int", [b"\x02\x02"]),
    ("more memory", ["null", WIDE], [b"\x00"] * 10_000),
    ("more memory", ["null", FIXED], [b"\x00"] * 10_000),
]


@native
@for_each(REFUSED)
def test_what_it_refuses(why: str, kind: Any, records: list[bytes]) -> None:
    """Bytes that are not what the schema says, or too little for the memory that they would take."""
    content = b"".join(len(record).to_bytes(4, "big") + record for record in records)
    with pytest.raises(ValueError, match=why):
        columns_of(avro_schema(("v", kind))).decode(pa.py_buffer(content), len(records))
    with pytest.raises(ValueError, match="more records than fit"):
        columns_of(KEYS).decode(pa.py_buffer(content[:100]), 1 << 40)


ENUM = {"type": "enum", "name": "e", "symbols": [f"S{i}" for i in range(200)]}
UNKNOWN = [
    ["string"],
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 1},
    {"type": "record", "name": "r", "fields": []},
    {"type": "record", "name": "r", "fields": [{"name": f"f{i}", "type": ENUM if i == 0 else "e"} for i in range(200)]},
]


@for_each(UNKNOWN)
def test_schemas_that_it_leaves_to_others(kind: Any) -> None:
    """Decided by the schema alone, or because there is no module."""
    assert native_columns(avro_schema(("k", "string"), ("v", kind)), ("k",)) is None


def test_without_the_module() -> None:
    """All is as before; with it, an error of a block is that of the decoders in Python, word for word."""
    text = json.dumps({**json.loads(KEYS), "doc": "not in the cache"})
    content = avro_content(text, ROWS)
    torn = content[:12] + b"\x7f" + content[13:]
    with mock.patch.object(avro_decode, "native", None):
        assert native_columns(text, ("k",)) is None
    for version, used in (("0.2.9", True), ("0.1.0", False)):  # another one could take our numbers for other types
        other = SimpleNamespace(__version__=version)
        with mock.patch.dict(sys.modules, {"phantombase_native": other}):
            assert (load_module()[0] is other, version in load_module()[1]) == (used, not used)
    data = block(AVRO, {SCHEMA: KEYS}, torn)
    with pytest.raises(PhantombaseError) as ours:
        decoded(data, arrow_schema(KEYS))
    with pytest.raises(PhantombaseError) as theirs:
        without_native(torn, KEYS, arrow_schema(KEYS))
    assert str(ours.value) == str(theirs.value)
    assert decoded(avro_block("1", KEYS, ROWS), arrow_schema(KEYS)).to_pylist() == ROWS
