"""HFiles, version 3: the metadata table's base files, and the content of its HFile log blocks, read and written (pure).

    data blocks, between them index leaves and Bloom chunks | meta blocks | indexes, file info | trailer, 4096 bytes

    block      magic 8, bytes on disk after this header int32, uncompressed content bytes int32, previous block int64,
               checksum type int8, bytes under one checksum int32, bytes of header and content int32,
               content (compressed), checksums int32 each
    entry      key bytes int32, value bytes int32, key {row bytes int16, row, HBase's own rest}, value, memstore time 0
    file info  'PBUF', protobuf {1: repeated {1: name, 2: value}}
    trailer    magic, protobuf message, padding, version int32 (its lower three bytes); the message's fields are below

Integers are big-endian. Both protobuf messages are preceded by their length. Data blocks follow each other, so the
index need not be read; the trailer's count of entries verifies that none is missing. Source: Hudi's HFile.proto and
format document, HBase's format, and files of Hudi 0.15.0 (written with HBase) and 1.2.0.

CRC32 checksums are verified. CRC32C checksums are not, as in Hudi's own reader. Hudi 1.x writes no checksums: content
compressed with gzip, Hudi's default, contains a CRC-32 of its own, which is verified. Written files are uncompressed,
with one level of index: Hudi 0.15 reads them with HBase, 1.x with its own code, so keys are complete HBase keys, in the
index too, and every block has HBase's CRC32 checksums."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...codec.avro_container import decode_varint, encode_varint
from ...errors import MalformedError, UnsupportedError, decoding

ENTRIES = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)])
"""The schema of every batch."""

TRAILER_BYTES = 4096
_VERSION = 3
TRAILER_MAGIC = b'TRABLK"$'
DATA_MAGIC = b"DATABLK*"
FILE_INFO_MAGIC = b"FILEINF2"
ROOT_INDEX_MAGIC = b"IDXROOT2"
_BETWEEN_DATA = frozenset({b"IDXLEAF2", b"IDXINTE2", b"BLMFBLK2"})
INFO_MAGIC = b"PBUF"

# Numbers of the trailer's fields.
_INFO_OFFSET, _ENTRY_COUNT, _FIRST_DATA, _LAST_DATA, _CODEC = 1, 7, 9, 10, 12

HEADER = struct.Struct(">8siiqbii")
LENGTHS = struct.Struct(">ii")
_ROW_LENGTH = struct.Struct(">h")
_CRC32 = 1
_CHECKSUM_TYPES = 3  # none, CRC32, CRC32C

_GZIP, _NONE = 1, 2
_CODECS = ("lzo", "gz", "none", "snappy", "lz4", "bz2", "zstd")
_NO_CODEC_SAID = 2
_DEFLATE_RATIO_MAX = 1032
"""One deflated byte can expand to this many bytes at most."""


@dataclass(frozen=True, slots=True)
class HFile:
    """An HFile's bytes (`where` names them), the fields of its trailer, and its file info by name.
    Base files of Hudi hold the Avro schema of the values under `schema`; log blocks have it in their header."""

    data: pa.Buffer
    where: str
    entry_count: int
    info: Mapping[str, bytes]
    _first_data: int
    _last_data: int
    _codec: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All entries in the file's order, which is the order of their keys, one data block at a time; see `ENTRIES`.
        MalformedError: damaged bytes, or a number of entries that differs from the trailer's."""
        count = 0
        for content in self._data_blocks():
            with _decoding(self.where):
                batch = _entries(content)
            count += batch.num_rows
            yield batch
        if count != self.entry_count:
            what = "number of entries in an HFile differs from its trailer"
            raise MalformedError(what, path=self.where, expected=str(self.entry_count), found=str(count))

    def _data_blocks(self) -> Iterator[bytes]:
        position = self._first_data if self.entry_count else self._last_data + 1
        while position <= self._last_data:
            with _decoding(self.where):
                magic, content, behind = _block(self.data, position, self._codec)
                if magic != DATA_MAGIC and magic not in _BETWEEN_DATA:
                    raise MalformedError("not a data block", found=f"{magic!r} at byte {position}")
            if magic == DATA_MAGIC:
                yield content
            position = behind


def open_hfile(data: pa.Buffer, where: str) -> HFile:
    """Reads trailer and file info. `where` names the bytes in errors.
    MalformedError: not an HFile, or damaged. UnsupportedError: a compression other than gzip, encryption."""
    with _decoding(where):
        trailer = _trailer(data)
        codec = trailer.get(_CODEC, _NO_CODEC_SAID)
        if codec not in (_GZIP, _NONE):
            name = _CODECS[codec] if codec < len(_CODECS) else str(codec)
            what = "HFile of this compression is not supported"
            todo = "Let Hudi write the metadata table with its default, gz."
            raise UnsupportedError(what, expected="gz or none", found=name, todo=todo)
        return HFile(
            data,
            where,
            trailer.get(_ENTRY_COUNT, 0),
            _file_info(data, trailer.get(_INFO_OFFSET, 0), codec),
            trailer.get(_FIRST_DATA, 0),
            trailer.get(_LAST_DATA, 0),
            codec,
        )


def _trailer(data: pa.Buffer) -> dict[int, int]:
    if data.size < TRAILER_BYTES:
        raise MalformedError("too short for an HFile", expected=f"{TRAILER_BYTES} bytes", found=str(data.size))
    trailer = data[data.size - TRAILER_BYTES :].to_pybytes()
    version = int.from_bytes(trailer[-3:], "big")
    if trailer[:8] != TRAILER_MAGIC or version != _VERSION:
        raise MalformedError("not an HFile of version 3", found=f"{trailer[:8]!r}, version {version}")
    return {number: value for number, value in _fields(_delimited(trailer, 8)) if isinstance(value, int)}


def _file_info(data: pa.Buffer, offset: int, codec: int) -> dict[str, bytes]:
    magic, content, _ = _block(data, offset, codec)
    if magic != FILE_INFO_MAGIC or content[:4] != INFO_MAGIC:
        raise MalformedError("no file info at the offset in the trailer", found=f"{magic!r} at byte {offset}")
    info = {}
    for _, pair in _fields(_delimited(content, 4)):
        parts = dict(_fields(_bytes(pair)))
        info[_bytes(parts[1]).decode()] = _bytes(parts[2])
    return info


def _block(data: pa.Buffer, start: int, codec: int) -> tuple[bytes, bytes, int]:
    """(magic, uncompressed content, offset after it) of the block at an offset."""
    room = data.size - TRAILER_BYTES - start - HEADER.size
    if start < 0 or room < 0:
        raise MalformedError("HFile block outside the file", found=f"byte {start}")
    header = data[start : start + HEADER.size].to_pybytes()
    magic, disk_bytes, content_bytes, _, checksum, step, kept = HEADER.unpack(header)
    if not HEADER.size <= kept <= HEADER.size + disk_bytes <= HEADER.size + room or content_bytes < 0:
        raise MalformedError("impossible sizes of an HFile block", found=f"{header!r} at byte {start}")
    behind = start + HEADER.size + disk_bytes
    block = data[start : start + kept].to_pybytes()
    if not 0 <= checksum < _CHECKSUM_TYPES:
        raise MalformedError("unknown checksum of an HFile block", found=f"type {checksum} at byte {start}")
    if checksum == _CRC32:
        _verify(block, data[start + kept : behind].to_pybytes(), step)
    return magic, _content(block[HEADER.size :], content_bytes, codec), behind


def _verify(block: bytes, checksums: bytes, step: int) -> None:
    if step <= 0:
        raise MalformedError("impossible sizes of an HFile block", found=f"a checksum for {step} bytes")
    found = b"".join(zlib.crc32(block[i : i + step]).to_bytes(4, "big") for i in range(0, len(block), step))
    if found != checksums:
        raise MalformedError("wrong checksum of an HFile block", expected=checksums.hex(), found=found.hex())


def _content(stored: bytes, size: int, codec: int) -> bytes:
    """A block's content, which must have the size in its header; the size is checked before memory is allocated."""
    content = stored
    if codec == _GZIP:
        if size > _DEFLATE_RATIO_MAX * len(stored):
            raise MalformedError("HFile block claims more than fits into it", found=f"{size} in {len(stored)} bytes")
        gzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
        content = gzip.decompress(stored, size + 1)
        if not gzip.eof:
            raise MalformedError("HFile block is truncated", expected=f"{size} bytes", found=str(len(content)))
    if len(content) != size:
        raise MalformedError(
            "size of an HFile block differs from its header", expected=str(size), found=str(len(content))
        )
    return content


def _entries(content: bytes) -> pa.RecordBatch:
    """A data block's entries; each entry gives the offset of the next one."""
    keys, values, position = [], [], 0
    while position < len(content):
        key_bytes, value_bytes = LENGTHS.unpack_from(content, position)
        key = position + LENGTHS.size
        (row_bytes,) = _ROW_LENGTH.unpack_from(content, key)
        row, value = key + _ROW_LENGTH.size, key + key_bytes
        position = value + value_bytes + 1
        if row_bytes < 0 or value_bytes < 0 or row + row_bytes > value or content[position - 1]:
            raise MalformedError("impossible entry of an HFile", found=f"at byte {key - LENGTHS.size} of a block")
        keys.append(content[row : row + row_bytes])
        values.append(content[value : position - 1])
    return pa.record_batch([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=ENTRIES)


# --- protobuf ----------------------------------------------------------------------------------------------------


def _delimited(data: bytes, position: int) -> bytes:
    """A message that is preceded by its length."""
    size, start = decode_varint(data, position)
    if start + size > len(data):
        raise MalformedError("protobuf message is truncated", expected=f"{size} bytes", found=str(len(data) - start))
    return data[start : start + size]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of a message's fields; the wire types that HFiles use: integers (0), bytes (2)."""
    position = 0
    while position < len(message):
        tag, position = decode_varint(message, position)
        if tag & 7 == 0:
            number, position = decode_varint(message, position)
            yield tag >> 3, number
        elif tag & 7 == 2:
            value = _delimited(message, position)
            position = decode_varint(message, position)[1] + len(value)
            yield tag >> 3, value
        else:
            raise MalformedError("unknown protobuf wire type", found=str(tag & 7))


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise MalformedError("unexpected protobuf integer", found=str(value))
    return value


def _decoding(where: str) -> AbstractContextManager[None]:
    return decoding("unreadable HFile", where, IndexError, KeyError, ValueError, struct.error, zlib.error)


_BLOCK_BYTES = 64 << 10
"""Size at which a data block ends. Hudi 1.2's reader subtracts the size of a block's checksums from its content. At
this size the checksums are shorter than any last entry; otherwise that reader would skip the last entry."""
_CHECKSUM_STEP = 16 << 10
_NO_BLOCK = -1
_NO_COMPRESSION = 2
_PUT = struct.pack(">bqb", 0, 2**63 - 1, 4)
"""Follows a row: no column family, HBase's latest timestamp, a put."""
_HEAD = np.dtype([("key", ">i4"), ("value", ">i4"), ("row", ">i2")])
"""The bytes before a row: sizes of the key, the value and the row."""
_KEY_ADDS = 2 + len(_PUT)
"""Bytes of a key besides its row."""
_COMPARATOR = b"org.apache.hudi.io.storage.HoodieHBaseKVComparator"
_TRAILER_VERSION = b"\x03\x00\x00\x03"  # 3, minor 3: blocks have checksums
_SINGLE_BYTE_VINT = 127


def encode_hfile(entries: Sequence[tuple[bytes, bytes]], info: Mapping[str, bytes]) -> bytes:
    """An HFile of (key, value) pairs in ascending order of their distinct keys, with its file info."""
    count = len(entries)
    blocks = ((group[0][0], b"".join(map(_entry, group))) for group in grouped(entries, _BLOCK_BYTES))
    sizes = sum(len(k) for k, _ in entries), sum(len(v) for _, v in entries)
    return _file(blocks, count, sizes, entries[-1][0] if entries else None, info)


def encode_columns(keys: pa.BinaryArray, values: pa.BinaryArray, info: Mapping[str, bytes]) -> bytes:
    """The same file from columns of keys and values; every step handles all entries at once."""
    count, key_bytes, value_bytes = len(keys), _lengths(keys), _lengths(values)
    heads = np.empty(count, _HEAD)
    heads["key"], heads["value"], heads["row"] = key_bytes + _KEY_ADDS, value_bytes, key_bytes
    cells = pc.binary_join_element_wise(_fixed(heads), keys, _scalar(_PUT), values, _scalar(b"\0"), _scalar(b""))
    _, offsets_buffer, data = cells.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[cells.offset : cells.offset + count + 1]

    def blocks() -> Iterator[tuple[bytes, bytes]]:
        for start, stop in _groups(key_bytes + value_bytes, _BLOCK_BYTES):
            yield keys[start].as_py(), data[int(offsets[start]) : int(offsets[stop])].to_pybytes()

    sizes = int(key_bytes.sum()), int(value_bytes.sum())
    return _file(blocks(), count, sizes, keys[-1].as_py() if count else None, info)


def _file(
    blocks: Iterable[tuple[bytes, bytes]],
    count: int,
    sizes: tuple[int, int],
    last: bytes | None,
    info: Mapping[str, bytes],
) -> bytes:
    """A file of data blocks, each with its first key. `sizes`: bytes of all keys, and of all values."""
    out = bytearray()
    index = bytearray()
    number, first, end = 0, 0, 0
    for start_key, content in blocks:
        before, end = (end if number else _NO_BLOCK), len(out)
        out += _written_block(DATA_MAGIC, content, before)
        key = _cell_key(start_key)
        index += struct.pack(">qi", end, len(out) - end) + _vint(len(key)) + key
        number += 1
    on_open = len(out)
    out += _written_block(ROOT_INDEX_MAGIC, bytes(index), _NO_BLOCK)
    out += _written_block(ROOT_INDEX_MAGIC, b"", _NO_BLOCK)  # the index of meta blocks; there are none
    info_at = len(out)
    out += _written_block(FILE_INFO_MAGIC, _written_info(count, sizes, last, info), _NO_BLOCK)
    numbers = {1: info_at, 2: on_open, 3: len(index), 4: on_open, 5: number, 6: 0, 7: count, 8: 1, 9: first, 10: end}
    message = b"".join(encode_varint(number << 3) + encode_varint(value) for number, value in numbers.items())
    message += _bytes_field(11, _COMPARATOR) + encode_varint(12 << 3) + encode_varint(_NO_COMPRESSION)
    trailer = TRAILER_MAGIC + encode_varint(len(message)) + message
    out += trailer.ljust(TRAILER_BYTES - len(_TRAILER_VERSION), b"\0") + _TRAILER_VERSION
    return bytes(out)  # one copy, not two: a file of the record index is large


def _lengths(values: pa.BinaryArray) -> npt.NDArray[np.int64]:
    return np.asarray(pc.binary_length(values)).astype(np.int64)


def _fixed(heads: npt.NDArray[np.void]) -> pa.BinaryArray:
    offsets = np.arange(len(heads) + 1, dtype=np.int32) * np.int32(_HEAD.itemsize)
    return pa.Array.from_buffers(pa.binary(), len(heads), [None, pa.py_buffer(offsets), pa.py_buffer(heads.tobytes())])


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.binary())


def _groups(sizes: npt.NDArray[np.int64], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Where the groups of `grouped` begin and end."""
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        reached = int(ends[start - 1]) + bytes_max if start else bytes_max
        stop = min(int(np.searchsorted(ends, reached)) + 1, len(sizes))
        yield start, stop
        start = stop


def grouped(entries: Sequence[tuple[bytes, bytes]], bytes_max: int) -> Iterable[Sequence[tuple[bytes, bytes]]]:
    """The entries in order, in groups that end with the entry that reaches `bytes_max`; no group is empty."""
    sizes = np.array([len(key) + len(value) for key, value in entries], np.int64)
    return (entries[start:stop] for start, stop in _groups(sizes, bytes_max))


def _cell_key(row: bytes) -> bytes:
    return struct.pack(">h", len(row)) + row + _PUT


def _entry(entry: tuple[bytes, bytes]) -> bytes:
    key, value = _cell_key(entry[0]), entry[1]
    return LENGTHS.pack(len(key), len(value)) + key + value + b"\0"


def _written_block(magic: bytes, content: bytes, before: int) -> bytes:
    """A block with its checksums; `before`: offset of the previous data block."""
    kept = HEADER.size + len(content)
    checksums = 4 * -(-kept // _CHECKSUM_STEP)
    head = HEADER.pack(magic, len(content) + checksums, len(content), before, _CRC32, _CHECKSUM_STEP, kept)
    block = head + content
    steps = range(0, kept, _CHECKSUM_STEP)
    return block + b"".join(zlib.crc32(block[i : i + _CHECKSUM_STEP]).to_bytes(4, "big") for i in steps)


def _written_info(count: int, sizes: tuple[int, int], last: bytes | None, info: Mapping[str, bytes]) -> bytes:
    keys, values = (size // max(count, 1) for size in sizes)
    fields = {
        "KEY_VALUE_VERSION": struct.pack(">i", 1),
        "MAX_MEMSTORE_TS_KEY": bytes(8),
        "hfile.AVG_KEY_LEN": struct.pack(">i", keys),
        "hfile.AVG_VALUE_LEN": struct.pack(">i", values),
        "hfile.CREATE_TIME_TS": bytes(8),
        "hfile.LASTKEY": b"" if last is None else _cell_key(last),
        **info,
    }
    pairs = (_bytes_field(1, name.encode()) + _bytes_field(2, value) for name, value in sorted(fields.items()))
    message = b"".join(_bytes_field(1, pair) for pair in pairs)
    return INFO_MAGIC + encode_varint(len(message)) + message


def _bytes_field(number: int, value: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


def _vint(value: int) -> bytes:
    """A positive integer in the format of Hadoop's WritableUtils: one byte, or (-112 - n) followed by n bytes."""
    if value <= _SINGLE_BYTE_VINT:
        return bytes([value])
    digits = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([256 - 112 - len(digits)]) + digits
