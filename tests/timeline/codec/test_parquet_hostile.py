"""Parquet files that no writer makes: `phantombase-native` gives the rows that pyarrow reads, or leaves them to it.

The files are put together page by page: pages that are missing, twice, in another order, of other encodings and counts;
levels and numbers of a dictionary at random; a footer that says something else."""

from __future__ import annotations

import gzip
import io
import random as randoms
import struct
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from phantombase.timeline.codec import avro_decode, parquet_read
from phantombase.timeline.codec.parquet_read import open_parquet, parquet_batches
from phantombase.timeline.errors import PhantombaseError
from tests.support.decoded_rows import native_rows, pyarrow_rows, same
from tests.support.selection import deep

pytestmark = pytest.mark.skipif(
    not hasattr(avro_decode.native, "RowGroup"), reason="phantombase-native is not built: deploy/setup.sh does so"
)

_DATA, _INDEX, _DICTIONARY, _DATA_2 = 0, 1, 2, 3
_PLAIN, _RLE, _BIT_PACKED, _DELTA, _RLE_DICTIONARY = 0, 3, 4, 5, 8
_BOOLEAN, _INT32, _INT64, _INT96, _BYTE_ARRAY, _FIXED = 0, 1, 2, 3, 6, 7
_NONE, _GZIP = 0, 2


class Long(int):
    """A number of 64 bits."""


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def thrift(value: Any) -> tuple[int, bytes]:
    """The wire type and the bytes: dictionaries are structures, by the numbers of their fields."""
    match value:
        case bool():
            return (1 if value else 2), b""
        case int():
            return 6 if isinstance(value, Long) else 5, varint((value << 1 ^ value >> 63) & (1 << 64) - 1)
        case bytes():
            return 8, varint(len(value)) + value
        case list():
            items = [thrift(item) for item in value]
            kind = items[0][0] if items else 5
            head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + varint(len(items))
            return 9, head + b"".join(data for _, data in items)
        case _:
            out, before = b"", 0
            for number, field in value.items():
                if field is None:
                    continue
                kind, data = thrift(field)
                near = number - before < 16
                out += bytes([number - before << 4 | kind]) if near else bytes([kind]) + varint(number << 1)
                out, before = out + data, number
            return 12, out + b"\0"


def page(kind: int, body: bytes, levels: bytes, packed: bool, fields: dict[int, Any], **header: Any) -> bytes:
    """A page; `fields`: of the structure of its kind. `header`: what its own sizes say instead."""
    stored = gzip.compress(body, 1, mtime=0) if packed else body
    plain, size = len(levels) + len(body), len(levels) + len(stored)
    number = {_DATA: 5, _INDEX: 6, _DICTIONARY: 7, _DATA_2: 8}.get(kind, 5)
    head = {1: kind, 2: header.get("plain", plain), 3: header.get("stored", size), 4: header.get("crc"), number: fields}
    return thrift(head)[1] + levels + stored


def parquet(
    kind: int, length: int, nullable: bool, codec: int, rows: int, pages: Sequence[bytes], **said: Any
) -> bytes:
    """A file of one column `v`."""
    chunk = b"".join(pages)
    meta = {
        1: kind,
        2: said.get("encodings", [_PLAIN, _RLE, _RLE_DICTIONARY]),
        3: [b"v"],
        4: codec,
        5: Long(said.get("values", rows)),
        6: Long(len(chunk) + 100),
        7: Long(said.get("size", len(chunk))),
        9: Long(4),
        11: Long(said["dictionary"]) if "dictionary" in said else None,
    }
    column = {1: kind, 2: length or None, 3: int(nullable), 4: b"v", **said["logical"]}
    footer = {
        1: 2,
        2: [{4: b"schema", 5: 1}, column],
        3: Long(rows),
        4: [{1: [{2: Long(4), 3: meta}], 2: Long(len(chunk) + 100), 3: Long(rows)}],
        6: b"parquet-mr version 1.15.2",
    }
    data = thrift(footer)[1]
    return b"PAR1" + chunk + data + struct.pack("<I", len(data)) + b"PAR1"


class Drawn:
    """A file of pages that mostly agree with each other."""

    def __init__(self, random: randoms.Random) -> None:
        self.random = random
        self.kind, self.length, self.logical = random.choice(
            [
                (_BOOLEAN, 0, {}),
                (_INT32, 0, {}),
                (_INT64, 0, {}),
                (_INT96, 0, {}),
                (_BYTE_ARRAY, 0, {}),
                (_BYTE_ARRAY, 0, {6: 0}),
                (_INT32, 0, {6: 5, 7: 2, 8: 9}),
                (_INT64, 0, {6: 5, 7: 2, 8: 18}),
                *((_FIXED, size, {6: 5, 7: 2, 8: digits}) for size, digits in ((1, 2), (5, 11), (16, 38), (9, 18))),
                (_INT32, 0, {6: 6}),
                (_INT64, 0, {6: 9}),
                (_INT64, 0, {6: 10}),
            ]
        )
        self.nullable, self.codec = random.random() < 0.7, random.choice((_NONE, _GZIP))
        self.known = random.choice((0, 1, 2, 5, 300))

    def value(self) -> bytes:
        size = {_INT32: 4, _INT64: 8, _INT96: 12, _FIXED: self.length}.get(self.kind, 0)
        if self.kind != _BYTE_ARRAY:
            return self.random.randbytes(size)
        text = self.random.choice((b"", b"a", "ä".encode(), b"\xff\xfe", b"x" * self.random.randrange(60)))
        return struct.pack("<I", len(text)) + text

    def runs(self, numbers: list[int], width: int) -> bytes:
        """Run lengths and groups of eight, in turns."""
        out, at = b"", 0
        while at < len(numbers):
            same_until = next((i for i in range(at, len(numbers)) if numbers[i] != numbers[at]), len(numbers))
            if same_until - at > 7 or self.random.random() < 0.2:
                out += varint(same_until - at << 1) + numbers[at].to_bytes((width + 7) // 8, "little")
                at = same_until
                continue
            groups = min((len(numbers) - at + 7) // 8, self.random.randint(1, 3))
            some = numbers[at : at + 8 * groups]
            bits = sum(number << place * width for place, number in enumerate(some))
            out += varint(groups << 1 | 1) + bits.to_bytes(groups * width, "little")
            at += 8 * groups
        return out

    def dictionary(self) -> bytes:
        values = b"".join(self.value() for _ in range(self.known))
        said = self.wrong(self.known)
        return page(_DICTIONARY, values, b"", self.codec == _GZIP, {1: said, 2: self.random.choice((0, 0, 2))})

    def wrong(self, number: int) -> int:
        """Seldom another number."""
        if self.random.random() < 0.97:
            return number
        return self.random.choice((0, number + 1, max(0, number - 1), number + 8, 1 << 30, -1, 2**31 - 1, -(2**31)))

    def data(self, rows: int) -> bytes:
        random = self.random
        levels = [int(random.random() < random.choice((0.5, 1.0, 1.0))) if self.nullable else 1 for _ in range(rows)]
        if random.random() < 0.03:
            levels = levels[: -random.randint(1, 9)] if random.random() < 0.5 else levels + [1] * random.randint(1, 9)
        there = max(0, self.wrong(sum(levels)))
        there = min(there, sum(levels) + 8)
        coded = self.kind != _BOOLEAN and random.random() < 0.5
        if coded:
            top = max(1, self.known + (random.random() < 0.02))
            width = random.choice((max(1, (top - 1).bit_length()), 9, 17, 32)) if top > 1 else random.choice((0, 1))
            numbers = [random.randrange(top) for _ in range(there)]
            width = max(width, max(numbers, default=0).bit_length())
            body, encoding = bytes([width]) + self.runs(numbers, width), random.choice((2, _RLE_DICTIONARY))
        elif self.kind == _BOOLEAN:
            body, encoding = random.randbytes((there + 7) // 8), _PLAIN
        else:
            body, encoding = b"".join(self.value() for _ in range(there)), _PLAIN
        if random.random() < 0.02:
            body = body[: -random.randint(1, 5)] if random.random() < 0.5 else body + random.randbytes(3)
        if random.random() < 0.01:
            encoding = random.choice((_RLE, _BIT_PACKED, _DELTA, 6, 7, 9, 99))
        known_levels = self.runs(levels, 1) if self.nullable else b""
        statistics: Any = random.choice((None, None, {3: 1, 5: b"x", 6: b"y"}, {3: -1}))
        crc = random.choice((None, None, None, 1))
        if random.random() < 0.5:
            is_compressed = random.choice((None, True, False))
            packed = self.codec == _GZIP and is_compressed is not False
            fields: dict[int, Any] = {
                1: self.wrong(rows),
                2: self.wrong(rows - sum(levels)),
                3: self.wrong(rows),
                4: encoding,
            }
            fields |= {5: self.wrong(len(known_levels)), 6: self.wrong(0), 7: is_compressed, 8: statistics}
            return page(_DATA_2, body, known_levels, packed, fields, crc=crc)
        if self.nullable:
            body = struct.pack("<i", self.wrong(len(known_levels))) + known_levels + body
        level_kind = _RLE if random.random() < 0.98 else _BIT_PACKED
        fields = {1: self.wrong(rows), 2: encoding, 3: level_kind, 4: random.choice((_RLE, _BIT_PACKED)), 5: statistics}
        return page(_DATA, body, b"", self.codec == _GZIP, fields, crc=crc)

    def file(self) -> bytes:
        random = self.random
        counts = [random.choice((1, 7, 8, 9, 16, 60, 300)) for _ in range(random.randint(1, 5))]
        pages = [self.data(0 if random.random() < 0.02 else count) for count in counts]
        if random.random() < 0.9:
            pages.insert(0 if random.random() < 0.95 else random.randint(0, len(pages)), self.dictionary())
        if random.random() < 0.15:
            at = random.randrange(len(pages))
            pages[at : at + 1] = random.choice(
                ([], [pages[at]] * 2, [self.dictionary(), pages[at]], [page(_INDEX, b"abc", b"", False, {}), pages[at]])
            )
        if random.random() < 0.05:
            random.shuffle(pages)
        said: dict[str, Any] = {"logical": self.logical}
        rows = self.wrong(sum(counts)) if random.random() < 0.3 else sum(counts)
        rows = min(max(rows, 0), 100_000)
        if random.random() < 0.1:
            said["values"] = self.wrong(rows - 1)
        if random.random() < 0.05:
            said["size"] = max(1, sum(map(len, pages)) + random.choice((-9, -1, 1, 20, 40)))
        if random.random() < 0.05:
            said["dictionary"] = random.choice((0, 4, 10, -1))
        return parquet(self.kind, self.length, self.nullable, self.codec, rows, pages, **said)


@pytest.mark.parametrize("samples", [300, *map(deep, range(20_000, 20_005))])
def test_pages_that_do_not_agree(samples: int) -> None:
    random, seen = randoms.Random(samples), Counter[str]()
    for _ in range(samples):
        data = Drawn(random).file()
        try:
            found = native_rows(data, ["v"], random.choice((64, 1000)))
        except (ValueError, pa.ArrowException, OSError) as error:
            seen[str(error)] += 1
            continue
        seen["accepted"] += 1
        for batch in found:
            batch.validate()
        try:
            theirs = pyarrow_rows(data, ["v"])
        except Exception as error:
            seen[f"accepted alone: {error}"] += 1
            raise
        assert same(pa.Table.from_batches(found, theirs.schema), theirs)
    assert "a panic" not in seen
    assert seen["accepted"] > samples / 5


def answer(data: bytes) -> pa.Table | None:
    """The rows that a reader gets; None: an error."""
    source = pa.BufferReader(data)
    try:
        file = open_parquet(source)
        names = [name for name in file.schema_arrow.names if name in "abc"]
        return pa.Table.from_batches(parquet_batches(source, file, names, 8))
    except (ValueError, LookupError, pa.ArrowException, OSError, PhantombaseError):
        return None


@pytest.mark.parametrize("samples", [300, *map(deep, range(20_000, 20_003))])
def test_footers_that_are_damaged(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of pyarrow, whose call for the metadata of such a column would end the process."""
    monkeypatch.setattr(parquet_read, "_FEW_ROWS", 0)
    random, stream = randoms.Random(samples), io.BytesIO()
    table = pa.table({"a": pa.array([1, 2, None] * 7, pa.int32()), "b": [1.5] * 21, "c": range(21)})
    pq.write_table(table, stream, compression="zstd", row_group_size=10)
    plain, same_rows = stream.getvalue(), 0
    start = len(plain) - 8 - open_parquet(pa.BufferReader(plain)).metadata.serialized_size
    for _ in range(samples):
        data = bytearray(plain)
        for _ in range(random.choice((1, 1, 2))):
            at = random.randrange(start, len(data) - 8)
            data[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1 << random.randrange(8), data[at] + 1 & 0xFF))
        ours = answer(bytes(data))
        with monkeypatch.context() as without:
            without.setattr(parquet_read, "native", None)
            theirs = answer(bytes(data))
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert same(ours, theirs)
            same_rows += 1
    assert same_rows > samples / 10


def test_a_column_that_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other column is read, this one refused."""
    monkeypatch.setattr(parquet_read, "_FEW_ROWS", 0)

    class Kms(pe.KmsClient):  # type: ignore[misc]
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            return b64encode(key_bytes)

    factory = pe.CryptoFactory(lambda _: Kms())
    settings = pe.EncryptionConfiguration(footer_key="f", column_keys={"k": ["a"]}, plaintext_footer=True)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), settings)
    stream, table = io.BytesIO(), pa.table({"a": range(100), "b": range(100)})
    with pq.ParquetWriter(stream, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    source = pa.BufferReader(stream.getvalue())
    for names in (["a"], ["b"], ["b", "a"]):
        batches = parquet_batches(source, open_parquet(source), names, 10)
        if "a" in names:
            with pytest.raises(OSError, match="decrypt"):
                list(batches)
        else:
            assert pa.Table.from_batches(batches).equals(table.select(names))
