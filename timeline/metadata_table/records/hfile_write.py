"""HFiles to bytes (see `hfile` for the format), uncompressed and with one level of index (pure).

Hudi 0.15 reads them with HBase, 1.x with its own code. So keys are complete HBase keys, in the index too, and every
block has HBase's CRC32 checksums."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...codec.avro_binary import encode_varint
from .hfile import (
    DATA_MAGIC,
    FILE_INFO_MAGIC,
    HEADER,
    INFO_MAGIC,
    LENGTHS,
    ROOT_INDEX_MAGIC,
    TRAILER_BYTES,
    TRAILER_MAGIC,
)

_BLOCK_BYTES = 64 << 10
"""Size at which a data block ends. Hudi 1.2's reader subtracts the size of a block's checksums from its content. At
this size the checksums are shorter than any last entry; otherwise that reader would skip the last entry."""
_CRC32, _CHECKSUM_STEP = 1, 16 << 10
_NO_BLOCK = -1
_NO_COMPRESSION = 2
_PUT = struct.pack(">bqb", 0, 2**63 - 1, 4)
"""Follows a row: no column family, HBase's latest timestamp, a put."""
_HEAD = np.dtype([("key", ">i4"), ("value", ">i4"), ("row", ">i2")])
"""The bytes before a row: sizes of the key, the value and the row."""
_KEY_ADDS = 2 + len(_PUT)
"""Bytes of a key besides its row."""
_COMPARATOR = b"org.apache.hudi.io.storage.HoodieHBaseKVComparator"
_VERSION = b"\x03\x00\x00\x03"  # 3, minor 3: blocks have checksums
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
        out += _block(DATA_MAGIC, content, before)
        key = _cell_key(start_key)
        index += struct.pack(">qi", end, len(out) - end) + _vint(len(key)) + key
        number += 1
    on_open = len(out)
    out += _block(ROOT_INDEX_MAGIC, bytes(index), _NO_BLOCK)
    out += _block(ROOT_INDEX_MAGIC, b"", _NO_BLOCK)  # the index of meta blocks; there are none
    info_at = len(out)
    out += _block(FILE_INFO_MAGIC, _file_info(count, sizes, last, info), _NO_BLOCK)
    numbers = {1: info_at, 2: on_open, 3: len(index), 4: on_open, 5: number, 6: 0, 7: count, 8: 1, 9: first, 10: end}
    message = b"".join(encode_varint(number << 3) + encode_varint(value) for number, value in numbers.items())
    message += _bytes_field(11, _COMPARATOR) + encode_varint(12 << 3) + encode_varint(_NO_COMPRESSION)
    trailer = TRAILER_MAGIC + encode_varint(len(message)) + message
    return bytes(out) + trailer.ljust(TRAILER_BYTES - len(_VERSION), b"\0") + _VERSION


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
    start, size = 0, 0
    for place, (key, value) in enumerate(entries):
        size += len(key) + len(value)
        if size >= bytes_max:
            yield entries[start : place + 1]
            start, size = place + 1, 0
    if start < len(entries):
        yield entries[start:]


def _cell_key(row: bytes) -> bytes:
    return struct.pack(">h", len(row)) + row + _PUT


def _entry(entry: tuple[bytes, bytes]) -> bytes:
    key, value = _cell_key(entry[0]), entry[1]
    return LENGTHS.pack(len(key), len(value)) + key + value + b"\0"


def _block(magic: bytes, content: bytes, before: int) -> bytes:
    """A block with its checksums; `before`: offset of the previous data block."""
    kept = HEADER.size + len(content)
    checksums = 4 * -(-kept // _CHECKSUM_STEP)
    head = HEADER.pack(magic, len(content) + checksums, len(content), before, _CRC32, _CHECKSUM_STEP, kept)
    block = head + content
    steps = range(0, kept, _CHECKSUM_STEP)
    return block + b"".join(zlib.crc32(block[i : i + _CHECKSUM_STEP]).to_bytes(4, "big") for i in steps)


def _file_info(count: int, sizes: tuple[int, int], last: bytes | None, info: Mapping[str, bytes]) -> bytes:
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
