"""HFiles to bytes (see `hfile` for the format), uncompressed and with one level of index (pure).

Hudi 0.15 reads them with HBase, 1.x with its own code. So keys are complete HBase keys, in the index too, and every
block has HBase's CRC32 checksums.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence

from ...varint import encode_varint
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
"""Size at which a data block ends. Hudi 1.2's reader subtracts the size of a block's checksums from its content. With
blocks of this size the checksums are shorter than any last entry, which the reader would skip otherwise."""
_CRC32, _CHECKSUM_STEP = 1, 16 << 10
_NO_BLOCK = -1
_NO_COMPRESSION = 2
_PUT = struct.pack(">bqb", 0, 2**63 - 1, 4)
"""Follows a row: no column family, HBase's latest timestamp, a put."""
_COMPARATOR = b"org.apache.hudi.io.storage.HoodieHBaseKVComparator"
_VERSION = b"\x03\x00\x00\x03"  # 3, minor 3: blocks have checksums
_SINGLE_BYTE_VINT = 127


def encode_hfile(entries: Sequence[tuple[bytes, bytes]], info: Mapping[str, bytes]) -> bytes:
    """An HFile of (key, value) pairs in ascending order of their distinct keys, with its file info."""
    out = bytearray()
    index = bytearray()
    blocks, first, last = 0, 0, 0
    for group in grouped(entries, _BLOCK_BYTES):
        before, last = (last if blocks else _NO_BLOCK), len(out)
        out += _block(DATA_MAGIC, b"".join(map(_entry, group)), before)
        key = _cell_key(group[0][0])
        index += struct.pack(">qi", last, len(out) - last) + _vint(len(key)) + key
        blocks += 1
    on_open = len(out)
    out += _block(ROOT_INDEX_MAGIC, bytes(index), _NO_BLOCK)
    out += _block(ROOT_INDEX_MAGIC, b"", _NO_BLOCK)  # the index of meta blocks; there are none
    info_at = len(out)
    out += _block(FILE_INFO_MAGIC, _file_info(entries, info), _NO_BLOCK)
    numbers = {
        1: info_at,
        2: on_open,
        3: len(index),
        4: on_open,
        5: blocks,
        6: 0,
        7: len(entries),
        8: 1,
        9: first,
        10: last,
    }
    message = b"".join(encode_varint(number << 3) + encode_varint(value) for number, value in numbers.items())
    message += _bytes_field(11, _COMPARATOR) + encode_varint(12 << 3) + encode_varint(_NO_COMPRESSION)
    trailer = TRAILER_MAGIC + encode_varint(len(message)) + message
    return bytes(out) + trailer.ljust(TRAILER_BYTES - len(_VERSION), b"\0") + _VERSION


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


def _file_info(entries: Sequence[tuple[bytes, bytes]], info: Mapping[str, bytes]) -> bytes:
    count = max(len(entries), 1)
    fields = {
        "KEY_VALUE_VERSION": struct.pack(">i", 1),
        "MAX_MEMSTORE_TS_KEY": bytes(8),
        "hfile.AVG_KEY_LEN": struct.pack(">i", sum(len(k) for k, _ in entries) // count),
        "hfile.AVG_VALUE_LEN": struct.pack(">i", sum(len(v) for _, v in entries) // count),
        "hfile.CREATE_TIME_TS": bytes(8),
        "hfile.LASTKEY": _cell_key(entries[-1][0]) if entries else b"",
        **info,
    }
    pairs = (_bytes_field(1, name.encode()) + _bytes_field(2, value) for name, value in sorted(fields.items()))
    message = b"".join(_bytes_field(1, pair) for pair in pairs)
    return INFO_MAGIC + encode_varint(len(message)) + message


def _bytes_field(number: int, value: bytes) -> bytes:
    """A field of a protobuf message."""
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


def _vint(value: int) -> bytes:
    """A positive integer in the format of Hadoop's WritableUtils: one byte, or (-112 - n) followed by n bytes."""
    if value <= _SINGLE_BYTE_VINT:
        return bytes([value])
    digits = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([256 - 112 - len(digits)]) + digits
