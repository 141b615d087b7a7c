"""HFiles, version 3, to bytes: the content of log blocks that Hudi's readers look single keys up in (pure).

Hudi 1.x finds column statistics, and partitions where it keeps no reader open, by key in the blocks of a log file, and
can do so in HFile blocks only: of an Avro data block it says "Point lookups are not supported".

    data blocks of at most 64 KiB before compression, if not of one entry
    root index: {offset int64, bytes on disk int32, key with its length in front as Hadoop's VInt} a data block
    meta index, empty; file info; trailer

The parts are described in `hfile`. A key is what HBase has: {row bytes int16, row, family bytes 0, timestamp int64 max,
type "put" 4}; rows are in the order of their bytes. Source: Hudi's HFile.proto, and files of Hudi 0.15.0 and 1.2.0,
which both read what is written here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from timeline.errors import UsageError

Entry: TypeAlias = tuple[bytes, bytes]
"""Key and value."""

_BLOCK_BYTES = 64 << 10
_TRAILER_BYTES = 4096
_TRAILER_MAGIC = b'TRABLK"$'
_DATA, _ROOT_INDEX, _FILE_INFO = b"DATABLK*", b"IDXROOT2", b"FILEINF2"
_VERSION = 3
_COMPARATOR = b"org.apache.hudi.io.storage.HoodieHBaseKVComparator"
_GZIP = 1
_HEADER = struct.Struct(">8siiqbii")
_CHECKSUM_STEP = 16 << 10
_NO_CHECKSUM = 0
_NOWHERE = -1
_ENTRY_TAIL = struct.pack(">bqb", 0, 2**63 - 1, 4)
_ROW_BYTES_MAX = 2**15 - 1


def hfile_content(entries: Sequence[Entry], schema_text: str) -> bytes:
    """An HFile with these entries, compressed with gzip. `schema_text`: of the values' Avro.

    UsageError: no entries, keys that are not in order, not distinct, or longer than 32 KiB.
    """
    _check(entries)
    out, index, before = bytearray(), list[bytes](), _NOWHERE
    for some in _blocks(entries):
        start = len(out)
        out += _block(_DATA, b"".join(_encoded(key, value) for key, value in some), before)
        first = _full_key(some[0][0])
        index.append(struct.pack(">qi", start, len(out) - start) + _hadoop_int(len(first)) + first)
        before = start
    on_open = len(out)
    out += _block(_ROOT_INDEX, b"".join(index))
    out += _block(_ROOT_INDEX, b"")
    info = len(out)
    out += _block(_FILE_INFO, _file_info(entries, schema_text))
    fields: dict[int, int | bytes] = {
        1: info,
        2: on_open,
        3: sum(map(len, index)),
        5: len(index),
        6: 0,
        7: len(entries),
        8: 1,
        9: 0,
        10: before,
        11: _COMPARATOR,
        12: _GZIP,
    }
    message = _delimited(b"".join(_field(number, value) for number, value in fields.items()))
    trailer = (_TRAILER_MAGIC + message).ljust(_TRAILER_BYTES - 4, b"\0") + _VERSION.to_bytes(4, "big")
    return bytes(out + trailer)


def _check(entries: Sequence[Entry]) -> None:
    if not entries:
        raise UsageError("an HFile of no entries", todo="Write no block.")
    for (one, _), (other, _) in pairwise(entries):
        if one >= other:
            raise UsageError("keys of an HFile in order, each once", found=f"{one!r} before {other!r}")
    longest = max(len(key) for key, _ in entries)
    if longest > _ROW_BYTES_MAX:
        raise UsageError("key too long for an HFile", expected=f"{_ROW_BYTES_MAX} bytes", found=str(longest))


def _blocks(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    start = size = 0
    for position, (key, value) in enumerate(entries):
        bytes_ = len(_encoded(key, value))
        if position > start and size + bytes_ > _BLOCK_BYTES:
            yield entries[start:position]
            start, size = position, 0
        size += bytes_
    yield entries[start:]


def _full_key(row: bytes) -> bytes:
    return struct.pack(">h", len(row)) + row + _ENTRY_TAIL


def _encoded(row: bytes, value: bytes) -> bytes:
    key = _full_key(row)
    return struct.pack(">ii", len(key), len(value)) + key + value + b"\0"


def _file_info(entries: Sequence[Entry], schema_text: str) -> bytes:
    info = {
        b"KEY_VALUE_VERSION": struct.pack(">i", 1),
        b"MAX_MEMSTORE_TS_KEY": struct.pack(">q", 0),
        b"hfile.AVG_KEY_LEN": struct.pack(">i", sum(len(_full_key(key)) for key, _ in entries) // len(entries)),
        b"hfile.AVG_VALUE_LEN": struct.pack(">i", sum(len(value) for _, value in entries) // len(entries)),
        b"hfile.CREATE_TIME_TS": struct.pack(">q", 0),
        b"hfile.LASTKEY": _full_key(entries[-1][0]),
        b"schema": schema_text.encode(),
    }
    pairs = (_field(1, _field(1, name) + _field(2, value)) for name, value in info.items())
    return b"PBUF" + _delimited(b"".join(pairs))


def _block(magic: bytes, content: bytes, before: int = _NOWHERE) -> bytes:
    """A block, with room for the checksums that nobody computes. `before`: offset of the last one of its kind."""
    gzip = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    stored = gzip.compress(content) + gzip.flush()
    kept = _HEADER.size + len(stored)
    checksums = bytes(4 * -(-kept // _CHECKSUM_STEP))
    header = _HEADER.pack(magic, len(stored) + len(checksums), len(content), before, _NO_CHECKSUM, _CHECKSUM_STEP, kept)
    return header + stored + checksums


# --- integers and messages -----------------------------------------------------------------------------------------


def _hadoop_int(value: int) -> bytes:
    """Hadoop's VInt of a number that is not negative."""
    if value < 128:
        return bytes([value])
    size = (value.bit_length() + 7) // 8
    return struct.pack("b", -112 - size) + value.to_bytes(size, "big")


def _field(number: int, value: int | bytes) -> bytes:
    """A protobuf field: integer or bytes."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _delimited(value)


def _delimited(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
