"""The files that a completed write names: of its commit metadata only what tells whether they are there (pure).

Every step looks at all completed writes of the active timeline, so this costs a small part of
`commit_metadata.decode`: only the fields that are needed are made, Avro's schema is parsed once for each writer, and
each content once.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fastavro
import msgspec

from ..codec.avro_container import MAGIC
from ..codec.avro_schema import parse_avro
from ..errors import MalformedError, PhantombaseError
from ..format.commit_metadata import CommitMetadata, WriteStat
from ..format.compaction_plan import CompactionPlan
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


class NamedFiles(Mapping[str, tuple[NamedFile, ...]]):
    """The files that one write names, by partition; those of a partition are made when they are asked for.

    `stats`: the write statistics of each partition, of which `make` makes files.
    """

    __slots__ = ("_make", "_stats")

    def __init__(self, stats: Mapping[str, Sequence[Any]], make: Callable[[Any], Iterable[NamedFile]]) -> None:
        self._stats = {partition: of for partition, of in stats.items() if of}
        self._make = make

    def __getitem__(self, partition: str) -> tuple[NamedFile, ...]:
        return tuple(file for stat in self._stats[partition] for file in self._make(stat))

    def __iter__(self) -> Iterator[str]:
        return iter(self._stats)

    def __len__(self) -> int:
        return len(self._stats)


def named_files(data: bytes, where: str) -> NamedFiles:
    """The files in the write statistics of a commit, delta commit or replace commit file of any version.

    MalformedError: empty, truncated or broken bytes.
    """
    try:
        return _kept(data) if len(data) <= _KEPT_EACH_BYTES else _decoded(data)
    except PhantombaseError as error:
        raise MalformedError(error.what, path=where, found=error.found) from error
    except Exception as error:  # a decoder may raise anything when it reads arbitrary bytes
        raise MalformedError(
            "unreadable commit metadata", path=where, found=f"{len(data)} bytes, {type(error).__name__}: {error}"
        ) from error


class _Stat(msgspec.Struct, gc=False, rename="camel"):
    """What is asked of a write statistic in JSON; the decoder passes all else over."""

    path: str | None = None
    file_size_in_bytes: int | None = None
    log_offset: int | None = None
    num_writes: int | None = None
    base_file: str | None = None


class _Commit(msgspec.Struct, rename="camel"):
    partition_to_write_stats: dict[str, list[_Stat]] | None


_JSON = msgspec.json.Decoder(_Commit)


def _decoded(data: bytes) -> NamedFiles:
    if data.startswith(MAGIC):
        return NamedFiles(_avro_record(data)["partitionToWriteStats"] or {}, _of_record)
    return NamedFiles(_JSON.decode(data).partition_to_write_stats or {}, _of_stat)


def _of_record(stat: Mapping[str, Any]) -> Iterator[NamedFile]:
    size, offset, rows = (int(stat.get(name) or 0) for name in ("fileSizeInBytes", "logOffset", "numWrites"))
    return _files(stat.get("path"), size, offset, rows, stat.get("baseFile"))


def _of_stat(stat: _Stat) -> Iterator[NamedFile]:
    size, offset, rows = stat.file_size_in_bytes or 0, stat.log_offset or 0, stat.num_writes or 0
    return _files(stat.path, size, offset, rows, stat.base_file)


def _files(path: str | None, size: int, offset: int, rows: int, base: str | None) -> Iterator[NamedFile]:
    if path:
        yield NamedFile(path=path, size=size, offset=offset, rows=rows)
        if base:
            yield NamedFile(path=join(path.rpartition("/")[0], base), size=0, is_below=True)


_kept = lru_cache(maxsize=_KEPT)(_decoded)


def files_of(metadata: CommitMetadata) -> NamedFiles:
    """The same of metadata that is decoded."""
    return NamedFiles(metadata.partition_to_write_stats, _of_metadata)


def _of_metadata(stat: WriteStat) -> Iterator[NamedFile]:
    return _files(stat.path, stat.file_size_in_bytes, stat.log_offset or 0, stat.num_writes, stat.base_file)


def merged_by(plan: CompactionPlan) -> Mapping[str, list[NamedFile]]:
    """The base files that a plan merges, by partition."""
    found: dict[str, list[NamedFile]] = {}
    for operation in plan.operations:
        if operation.data_file_path:
            path = join(operation.partition_path, operation.data_file_path)
            found.setdefault(operation.partition_path, []).append(NamedFile(path=path, size=0, is_below=True))
    return found


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
