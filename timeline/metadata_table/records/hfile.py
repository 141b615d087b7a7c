"""HFiles, version 3: the metadata table's base files, and the content of its HFile log blocks (pure).

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
compressed with gzip, Hudi's default, contains a CRC-32 of its own, which is verified."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pyarrow as pa

from ...codec.avro_binary import decode_varint
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
