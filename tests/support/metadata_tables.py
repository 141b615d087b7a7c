"""Golden tables with a metadata table, and commits added to it by hand."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from phantombase.timeline.format.commit_metadata import CommitMetadata, encode
from phantombase.timeline.log.block import BlockKind, HeaderKey, scan_blocks
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.new_table.spec import NewTable
from tests.support.builders import HFILE, INSTANT_TIME, SCHEMA, avro_block, block
from tests.support.golden_tables import unzip_golden

VERSIONS = ("v6", "v8", "v9")
ADDED = "20261201000000000"
"""A time later than everything in the golden tables."""
Files = Mapping[str, int | None]
"""File names and sizes; None: deleted."""


def entry(key: str, files: Files) -> dict[str, Any]:
    """An entry of the `files` partition."""
    listed = {name: {"size": size or 0, "isDeleted": size is None} for name, size in files.items()}
    return {"key": key, "type": 1 if key == "__all_partitions__" else 2, "filesystemMetadata": listed}


@dataclass(frozen=True)
class Indexed:
    """A table at `path` with a metadata table."""

    path: Path

    @staticmethod
    def golden(version: str, into: Path) -> Indexed:
        """That of real Hudi: partitions north and south, in each a base file and two log files."""
        return Indexed(unzip_golden(f"{version}_with_metadata_table", into / version))

    def open(self) -> Table:
        """As it is now."""
        return Table.open(str(self.path))

    @property
    def folder(self) -> Path:
        """The metadata table's base path."""
        return self.path / ".hoodie/metadata"

    @property
    def schema(self) -> str:
        """Of Hudi's own log blocks."""
        logs = (p for p in sorted((self.folder / "files").glob(".files*")) if p.suffix != ".crc")
        blocks = (b for p in logs for b in scan_blocks(pa.BufferReader(p.read_bytes()), str(p)))
        return next(b.headers[HeaderKey.SCHEMA] for b in blocks if b.kind is BlockKind.HFILE_DATA)

    def avro(self, entries: Iterable[Mapping[str, Any]], instant: str = ADDED) -> bytes:
        """An Avro data block."""
        return avro_block(instant, self.schema, entries)

    def hfile(self, entries: Iterable[Mapping[str, Any]], instant: str = ADDED) -> bytes:
        """An HFile data block: keys stand outside the records."""
        content = hfile((e["key"].encode(), self.value({**e, "key": ""})) for e in entries)
        return block(HFILE, {INSTANT_TIME: instant, SCHEMA: self.schema}, content)

    def value(self, record: Mapping[str, Any]) -> bytes:
        """A record in Avro."""
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(self.schema)), dict(record))
        return stream.getvalue()

    def commit(self, content: bytes, instant: str = ADDED, *, metadata: bool = True, data: bool = True) -> None:
        """A log file of the `files` partition, and the completed delta commits that make it count."""
        layout = self.open().layout
        base = instant if layout.has_completion_times else "00000000000000010"
        number = len(list((self.folder / "files").glob(f".files-0000-0_{base}.log.*"))) + 1
        (self.folder / f"files/.files-0000-0_{base}.log.{number}_9-9-9").write_bytes(content)
        for done, home in ((metadata, self.folder), (data, self.path)):
            if done:
                timeline = home / ".hoodie" / layout.default_timeline_folder
                completion = f"_{int(instant) + 1}" if layout.has_completion_times else ""
                written = encode(CommitMetadata(operation_type="UPSERT"), layout.encoding)
                (timeline / f"{instant}{completion}.deltacommit").write_bytes(written)


def spec(version: int) -> NewTable:
    return NewTable(
        name="t", version=version, key_fields=("id",), partition_fields=("p",), ordering_fields=("ts",),
        metadata_table=True,
    )  # fmt: skip


# HFiles written by hand, by the format's description and with none of the product's code.


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


def hfiles_entry(key: bytes, value: bytes) -> bytes:
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
        data += hblock(
            b"DATABLK*", b"".join(hfiles_entry(*e) for e in listed[start : start + style.block_entries]), style
        )
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
