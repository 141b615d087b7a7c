"""HFiles written by hand, by the format's description and with none of the product's code."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

GZ, NONE = 1, 2
NO_CHECKSUM, CRC32, CRC32C = 0, 1, 2
_STEP = 16 * 1024
_LATEST = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a file is written. `block_entries`: of a data block; `leaves`: index leaves between data blocks."""

    codec: int = GZ
    checksum: int = NO_CHECKSUM
    block_entries: int = 3
    leaves: bool = False
    version: int = 3
    info: Mapping[str, bytes] | None = None


def varint(value: int) -> bytes:
    """Protobuf's."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def integer_field(number: int, value: int) -> bytes:
    """A protobuf integer with its tag."""
    return varint(number << 3) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Protobuf bytes with their tag."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(key: bytes, value: bytes) -> bytes:
    """One entry of a data block."""
    whole_key = struct.pack(">h", len(key)) + key + b"\x00" + struct.pack(">q", _LATEST) + b"\x04"
    return struct.pack(">ii", len(whole_key), len(value)) + whole_key + value + b"\x00"


def hblock(magic: bytes, content: bytes, style: Style) -> bytes:
    """One block."""
    stored = gzip.compress(content, mtime=0) if style.codec == GZ else content
    kept = 33 + len(stored)
    count = -(-kept // _STEP)
    header = struct.pack(">8siiqbii", magic, len(stored) + 4 * count, len(content), -1, style.checksum, _STEP, kept)
    data = header + stored
    sums = (zlib.crc32(data[i : i + _STEP]) if style.checksum == CRC32 else 0 for i in range(0, kept, _STEP))
    return data + b"".join(struct.pack(">I", s) for s in sums)


def trailer(fields: Mapping[int, int], version: int = 3) -> bytes:
    """The 4096 bytes at the end."""
    message = b"".join(integer_field(number, value) for number, value in fields.items())
    message += bytes_field(11, b"org.apache.hudi.io.storage.HoodieHBaseKVComparator")
    front = b'TRABLK"$' + varint(len(message)) + message
    return front + bytes(4096 - 4 - len(front)) + struct.pack(">i", version)


def hfile(entries: Iterable[tuple[bytes, bytes]], style: Style | None = None) -> bytes:
    """A whole file; entries are taken in the order given."""
    style = style or Style()
    listed: Sequence[tuple[bytes, bytes]] = list(entries)
    data, first, last = b"", 0, 0
    for start in range(0, len(listed), style.block_entries):
        last = len(data)
        data += hblock(b"DATABLK*", b"".join(entry(*e) for e in listed[start : start + style.block_entries]), style)
        if style.leaves and start + style.block_entries < len(listed):
            data += hblock(b"IDXLEAF2", b"an index", style) + hblock(b"BLMFBLK2", bytes(100), style)
    root = len(data)
    data += hblock(b"IDXROOT2", b"", style) + hblock(b"IDXROOT2", b"", style)
    info = len(data)
    pairs = (bytes_field(1, bytes_field(1, k.encode()) + bytes_field(2, v)) for k, v in (style.info or {}).items())
    message = b"".join(pairs)
    data += hblock(b"FILEINF2", b"PBUF" + varint(len(message)) + message, style)
    fields = {1: info, 2: root, 7: len(listed), 8: 1, 9: first, 10: last, 12: style.codec}
    return data + trailer(fields, style.version)
