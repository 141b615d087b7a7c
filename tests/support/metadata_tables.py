"""Golden tables with a metadata table, and commits added to it by hand."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
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
from tests.support.hfiles import hfile

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
