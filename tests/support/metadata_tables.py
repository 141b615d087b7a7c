"""Golden tables with a metadata table, and commits added to it by hand."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import MetadataServed, serve_metadata
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format.commit_metadata import CommitMetadata, encode
from phantombase.timeline.format.log_block import BlockKind, HeaderKey, scan_blocks
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.commit import commit_records, newest_schema
from phantombase.timeline.metadata_table.read import load_metadata_view, read_entries
from phantombase.timeline.metadata_table.records.entries import encoder
from phantombase.timeline.metadata_table.records.keys import files_records
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.snapshot import GuardedStorage
from phantombase.timeline.table.table import Table, open_metadata_table
from phantombase.writer_hooks.schema.new_table import NewTable
from tests.support.builders import HFILE, INSTANT_TIME, SCHEMA, avro_block, block
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, Failure, HookedStorage, ProcessDied, die_at
from tests.support.golden_tables import template, unzip_golden
from tests.support.selection import deep

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


# The metadata table's services on tables of real Hudi.


AT_ONCE = MetadataOptions(max_delta_commits=1)


def rows(ids: range, ts: int) -> pa.Table:
    """Some of the table's columns."""
    return pa.table({"id": [f"k{i:03d}" for i in ids], "p": ["north"] * len(ids), "ts": [ts] * len(ids)})


@pytest.fixture(params=["v9", deep("v8"), deep("v6")])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A golden table with the metadata table on, and no compaction pending: on version 6 it would have to wait."""
    found = unzip_golden(f"{request.param}_with_metadata_table", tmp_path)
    run_all(open_table(found))
    return found


def serve(table: Table, options: MetadataOptions = AT_ONCE, *, dry_run: bool = False) -> MetadataServed:
    return serve_metadata(table, options, ProcessLock("x"), dry_run=dry_run)


def entries(table: Table) -> dict[str, list[str]]:
    """Everything that the metadata table says."""
    return {p: sorted(map(repr, read_entries(table, p))) for p in table.config.built_metadata_partitions}


def files_of(path: Path) -> set[str]:
    """Without the history of its work, which grows with each."""
    return {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file() and "history" not in f.parts[-3:]}


CASE = "with_metadata_table"
EVERY_3 = MetadataOptions(max_delta_commits=3)


def written(path: Path, count: int) -> None:
    """`count` more delta commits, with the services behind each."""
    for number in range(count):
        writer(rows(range(6), 10**6 + number)).upsert(str(path))
        serve(open_table(path), EVERY_3)


def slices(path: Path) -> set[int]:
    """How many slices file groups of the metadata table have."""
    table = open_table(path)
    view = load_metadata_view(open_metadata_table(table), table.config.built_metadata_partitions)
    return {len(group.slices) for group in view.groups}


def made(version: str, into: Path) -> Path:
    path = unzip_golden(f"{version}_{CASE}", into)
    run_all(open_table(path))
    return path


def to_clean(version: str, into: Path) -> Path:
    """A table whose file groups of the metadata table have three slices, and a clean of them is due."""

    def make(folder: Path) -> None:
        path = made(version, folder)
        serve(open_table(path))
        written(path, 3)
        for number in range(3):
            writer(rows(range(6), 10 + number)).upsert(str(path))
        assert slices(path) == {3}

    return template(("to clean", version), into / "with", make) / CASE


def finished_behind_deaths(path: Path, tmp_path: Path, *, least: int, step: int) -> Iterator[Path]:
    """Copies of a table whose services died at a storage call, of which there are so many at least, and ran again. One
    at once, one behind a write. Readers see the same all the time."""
    before, options = entries(open_table(path)), MetadataOptions(max_delta_commits=100)
    calls = HookedStorage(LocalStorage(str(shutil.copytree(path, tmp_path / "whole"))), lambda call: call.do())
    serve(open_table(tmp_path / "whole", calls), options)
    changing = [n for n, name in enumerate(calls.calls) if Failure.AFTER.can_hit(name) or name == "delete_all"]
    assert len(changing) >= least
    for number in changing[::step] + changing[-1:]:
        copied = shutil.copytree(path, tmp_path / "died")
        with pytest.raises(ProcessDied):
            serve(open_table(copied, HookedStorage(LocalStorage(str(copied)), die_at(number))), options)
        assert entries(open_table(copied)) == before, calls.calls[number]
        between = shutil.copytree(copied, tmp_path / "between")
        serve(open_table(copied), options)
        assert entries(open_table(copied)) == before
        writer(rows(range(6), 10**7)).upsert(str(between))
        serve(open_table(between), options)
        for one in (copied, between):
            assert validate(open_table(one)).differences == ()
            yield one
            shutil.rmtree(one)


FEW = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)


def left_behind(path: Path, puts: int, instant: str = "") -> str:
    """A process that lost the lock has put the first files of an instant, one that the table does not know."""
    table = open_table(path)
    instant = instant or table.snapshot().next_time(open_metadata_table(table).load_timeline().used_times())
    held = True

    def hook(call: Call) -> object:
        nonlocal held, puts
        if call.name == "put_if_absent":
            puts -= 1
            held = puts > 0
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
    schema = newest_schema(open_metadata_table(table))
    records = {"files": [encoder(schema)(one) for one in files_records({"north": {"never.parquet": 1}})]}
    section = Section(purpose="write", lock="lost", is_held=lambda: held)
    with suppress(PhantombaseError):
        commit_records(replace(table, storage=GuardedStorage(table.storage, section.check)), instant, records, schema)
    return instant


def written_and_archived(path: Path, count: int, *, archived: bool = True) -> None:
    """`count` more writes; the metadata table is compacted and cleaned, and the table is archived."""
    for number in range(count):
        writer(rows(range(6), 10**6 + number)).upsert(str(path))
        serve(open_table(path), EVERY_3)
        if archived:
            archive_table(open_table(path), FEW, ProcessLock("x"))
