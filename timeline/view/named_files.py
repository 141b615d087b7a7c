"""The files that a completed write names: of its commit metadata only what tells whether they are there (pure).

Every step looks at all completed writes of the active timeline, so this costs a small part of
`commit_metadata.decode`: no field is checked that is not needed, Avro's schema is parsed once for each writer, and each
content once.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fastavro

from ..avro.container import MAGIC
from ..avro.schema import parse_avro
from ..errors import MalformedError, PhantombaseError
from ..format.commit_metadata import CommitMetadata
from ..storage.folders import join

_HEADER = fastavro.parse_schema({"type": "map", "values": "bytes"})
_LONG = fastavro.parse_schema({"type": "long"})
_MARKER_BYTES = 16
_KEPT, _KEPT_EACH_BYTES = 1024, 32 << 10
"""Steps of one process look at the same completed files again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """One file of a write. `path`: relative to the table.

    `size`: of the whole file in bytes when the write had ended, 0 if it is not recorded. `offset`: where the write
    began in a log file; its blocks lie from there up to `size`. `rows`: that it wrote, of a base file all; 0 if that is
    not recorded. `is_below`: the base file on which a log file of the write lies, which another write may have made.
    """

    path: str
    size: int
    offset: int = 0
    rows: int = 0
    is_below: bool = False


def named_files(data: bytes, where: str) -> list[NamedFile]:
    """The files in the write statistics of a commit, delta commit or replace commit file of any version.

    MalformedError: empty, truncated or broken bytes.
    """
    try:
        return [*(_kept(data) if len(data) <= _KEPT_EACH_BYTES else _decoded(data))]
    except PhantombaseError as error:
        raise MalformedError(error.what, path=where, found=error.found) from error
    except Exception as error:  # a decoder may raise anything when it reads arbitrary bytes
        raise MalformedError(
            "unreadable commit metadata", path=where, found=f"{len(data)} bytes, {type(error).__name__}: {error}"
        ) from error


def _decoded(data: bytes) -> tuple[NamedFile, ...]:
    record = _avro_record(data) if data.startswith(MAGIC) else json.loads(data)
    stats: Mapping[str, Iterable[Mapping[str, Any]]] = record["partitionToWriteStats"] or {}
    return tuple(_named(stats))


_kept = lru_cache(maxsize=_KEPT)(_decoded)


def files_of(metadata: CommitMetadata) -> list[NamedFile]:
    """The same of metadata that is decoded."""
    stats = [stat for of in metadata.partition_to_write_stats.values() for stat in of if stat.path]
    own = [
        NamedFile(path=str(s.path), size=s.file_size_in_bytes, offset=s.log_offset or 0, rows=s.num_writes)
        for s in stats
    ]
    return own + [_below(str(s.path), s.base_file) for s in stats if s.base_file]


def _below(path: str, base: str) -> NamedFile:
    return NamedFile(path=join(path.rpartition("/")[0], base), size=0, is_below=True)


def _named(stats: Mapping[str, Iterable[Mapping[str, Any]]]) -> Iterator[NamedFile]:
    for of in stats.values():
        for stat in of:
            if path := stat.get("path"):
                size, offset = stat.get("fileSizeInBytes") or 0, stat.get("logOffset") or 0
                rows = stat.get("numWrites") or 0
                yield NamedFile(path=str(path), size=int(size), offset=int(offset), rows=int(rows))
                if base := stat.get("baseFile"):
                    yield _below(str(path), str(base))


def _avro_record(data: bytes) -> dict[str, Any]:
    """The record of a container file of one record, see `avro.container`."""
    file = io.BytesIO(data)
    file.seek(len(MAGIC))
    header: Any = fastavro.schemaless_reader(file, _HEADER, None)
    if header.get("avro.codec", b"null") != b"null":
        raise MalformedError("compressed Avro container files are not supported", found=str(header["avro.codec"]))
    schema = _parsed(header["avro.schema"])
    file.seek(_MARKER_BYTES, io.SEEK_CUR)
    count: Any = fastavro.schemaless_reader(file, _LONG, None)
    size: Any = fastavro.schemaless_reader(file, _LONG, None)
    if count != 1 or file.tell() + size + _MARKER_BYTES > len(data):
        raise MalformedError("not one whole Avro record", found=f"{count} records of {size} bytes")
    record: Any = fastavro.schemaless_reader(file, schema, None)
    return dict(record)


@lru_cache(maxsize=64)
def _parsed(schema: bytes) -> Any:
    text = schema.decode()
    parse_avro(text)
    return fastavro.parse_schema(json.loads(text))
