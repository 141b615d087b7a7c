"""Commit metadata: what a completed (or inflight) write records about its files (pure).

Version 6 writes JSON, versions 8 and 9 an Avro container file of one `HoodieCommitMetadata`, or
`HoodieReplaceCommitMetadata` for a `replacecommit`. The names on disk are the names used here, in camel case. Counts
are records, sizes bytes, times milliseconds, all of one write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec

from ..codec.avro_container import (
    MAGIC,
    STRING,
    Schema,
    array_of,
    map_of,
    optional,
    read_record,
    record_of,
    root_record,
    write_record,
)
from ..codec.avro_schema import defaults_of, with_meta_columns, without_meta_columns
from ..codec.stored_names import StoredNames
from ..errors import MalformedError, reason_of
from .layout import MetadataEncoding

if TYPE_CHECKING:  # not needed by `show` to start
    import pyarrow as pa

LOG_COMPACT = "LOG_COMPACT"
"""Operation type of a completed log compaction, which otherwise looks like a delta commit."""
CLUSTER = "CLUSTER"
"""Operation type of a clustering, which otherwise looks like an insert overwrite."""

SERVICE_OPERATIONS = frozenset({"COMPACT", LOG_COMPACT, CLUSTER, "INDEX"})
"""Operation types of table services: they rearrange what writes have written, and change no row."""

LATEST_SCHEMA = "latest_schema"
"""Key in extraMetadata of Hudi's record of the columns, where they evolve on read."""

LEDGER = "phantombase.ledger"
"""Our key in extraMetadata; its value: {"total": counts, "file_groups": {partition/file id: counts}}."""

STREAM_CHECKPOINT = "_hudi_streaming_sink_checkpoint"
"""Key of the extra metadata in which Hudi's own sink keeps `{"<writer identifier>": "<batch id>"}`."""
STREAM_PART = "phantombase.stream"
"""Our key with the query and the part: `{"query": q, "operation": o, "run": r, "rows": h}`."""
STREAMER_CHECKPOINTS = (
    *("deltastreamer.checkpoint.key", "deltastreamer.checkpoint.reset_key"),
    *("streamer.checkpoint.key.v2", "streamer.checkpoint.reset.key.v2"),
)
"""Keys of Hudi Streamer, any of which makes the newest write with it the one that it starts from (1.2.0)."""


@dataclass(frozen=True)
class TableSchema:
    """`commit_text`: as recorded in commits; `file_text`: as stored in data files (Avro JSON). `evolved`: Hudi's record
    of the columns, where they evolve on read. `names`: of the columns in older files."""

    commit_text: str
    file_text: str
    evolved: str | None = None
    names: StoredNames = StoredNames()

    @staticmethod
    def of(text: str, *, populate_meta_fields: bool) -> TableSchema:
        """The schema of a table whose commits record `text`: with meta columns in its files if it has them."""
        own = without_meta_columns(text)  # version 6 delete_partition commits record the meta columns too
        return TableSchema(commit_text=own, file_text=with_meta_columns(own) if populate_meta_fields else own)

    @cached_property
    def arrow(self) -> pa.Schema:
        from ..codec.arrow_schema import arrow_schema  # late: `show` does not need it to start

        return arrow_schema(self.file_text)

    @cached_property
    def defaults(self) -> Mapping[tuple[str, ...], Any]:
        return defaults_of(self.file_text)

    @property
    def recorded(self) -> dict[str, str]:
        """The entries in a commit's extra metadata."""
        return {"schema": self.commit_text, **({LATEST_SCHEMA: self.evolved} if self.evolved else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStats:
    """Milliseconds that a writer spent on one file."""

    total_scan_time: int = 0
    total_create_time: int = 0
    total_upsert_time: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStat:
    """One file that a write made (a base file or a log file), with its counts. `path` is relative to the table base,
    None while inflight. `file_id` is "" for planned inserts. `prev_commit` is the base instant of the slice that the
    file was written to, the text "null" for a new file group; v8+ delta commits put their own instant there.
    `log_version` to `log_files` are set only for log files, but not for all (Hudi's upgrade from version 6 drops them):
    recognise log files by their path. `num_writes` is 0 for a log file that holds only deletes."""

    file_id: str = ""
    path: str | None = None
    prev_commit: str | None = None
    num_writes: int = 0
    num_deletes: int = 0
    num_update_writes: int = 0
    total_write_bytes: int = 0
    total_write_errors: int = 0
    partition_path: str | None = None
    total_log_records: int = 0
    total_log_files: int | None = None
    total_updated_records_compacted: int = 0
    num_inserts: int = 0
    total_log_blocks: int = 0
    total_corrupt_log_block: int = 0
    total_rollback_blocks: int = 0
    file_size_in_bytes: int = 0
    log_version: int | None = None
    log_offset: int | None = None
    base_file: str | None = None
    log_files: tuple[str, ...] | None = None
    cdc_stats: Mapping[str, int] | None = None
    prev_base_file: str | None = None
    min_event_time: int | None = None
    max_event_time: int | None = None
    runtime_stats: RuntimeStats | None = None
    total_log_files_compacted: int = 0
    total_log_read_time_ms: int = 0
    total_log_size_compacted: int = 0
    temp_path: str | None = None
    num_updates: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """The content of a commit, delta commit or replace commit file.
    `compacted` is true for compactions and log compactions. `extra_metadata["schema"]`, if present and not empty, is
    the table's Avro schema. `partition_to_replace_file_ids` is None except for replace commits."""

    partition_to_write_stats: Mapping[str, tuple[WriteStat, ...]] = field(default_factory=dict)
    compacted: bool = False
    extra_metadata: Mapping[str, str] = field(default_factory=dict)
    operation_type: str | None = None
    partition_to_replace_file_ids: Mapping[str, tuple[str, ...]] | None = None

    @property
    def named_files(self) -> frozenset[str]:
        """Paths of the files in the write statistics."""
        return frozenset(s.path for stats in self.partition_to_write_stats.values() for s in stats if s.path)

    @property
    def change_files(self) -> frozenset[str]:
        """Paths of the files of Hudi's change data capture."""
        return frozenset(
            path for stats in self.partition_to_write_stats.values() for s in stats for path in s.cdc_stats or ()
        )

    @property
    def written_groups(self) -> frozenset[tuple[str, str]]:
        """(partition, file id) of each file group in the write statistics."""
        written = self.partition_to_write_stats.items()
        return frozenset((partition, s.file_id) for partition, stats in written for s in stats if s.file_id)

    @property
    def replaced_groups(self) -> frozenset[tuple[str, str]]:
        """(partition, file id) of each file group that a replace commit replaced."""
        replaced = (self.partition_to_replace_file_ids or {}).items()
        return frozenset((partition, file_id) for partition, file_ids in replaced for file_id in file_ids)


def decode(data: bytes, where: str) -> CommitMetadata:
    """The metadata in a commit file of any version; unknown fields are ignored.
    MalformedError: empty, truncated or broken; on a store without atomic writes the file may still be in progress."""
    return _decode(data, where) if len(data) > _SMALL_BYTES else _decode_small(data, where)


_SMALL_BYTES = 16 << 10


@lru_cache(maxsize=256)
def _decode_small(data: bytes, where: str) -> CommitMetadata:
    """Small commits are read again and again: each step of a service asks them."""
    return _decode(data, where)


def _decode(data: bytes, where: str) -> CommitMetadata:
    if data.startswith(MAGIC):
        name, record = read_record(data, where, COMMIT_SCHEMA, REPLACE_SCHEMA)
        return from_record(record, is_replace=name == REPLACE_SCHEMA["name"])
    record = _parse_json(data, where)
    return from_record(record, is_replace=record.get("partitionToReplaceFileIds") is not None)


class _Summary(msgspec.Struct, rename="camel"):
    extra_metadata: dict[str, str | None] | None = None
    operation_type: str | None = None


_SUMMARY = msgspec.json.Decoder(_Summary)


def decode_summary(data: bytes, where: str) -> CommitMetadata:
    """The metadata; from JSON without write statistics, which take most of the decoding time. Errors as in `decode`."""
    if not data.startswith(MAGIC):
        try:
            found = _SUMMARY.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return decode(data, where)  # its error names the cause
        extra = {key: value for key, value in (found.extra_metadata or {}).items() if value is not None}
        return CommitMetadata(partition_to_write_stats={}, extra_metadata=extra, operation_type=found.operation_type)
    return decode(data, where)


def encode(metadata: CommitMetadata, encoding: MetadataEncoding) -> bytes:
    """The bytes of a commit file, for commits, delta commits and replace commits alike."""
    record = as_record(metadata)
    if encoding is MetadataEncoding.AVRO:
        is_replace = metadata.partition_to_replace_file_ids is not None
        return write_record(record, REPLACE_SCHEMA if is_replace else COMMIT_SCHEMA)
    stats = record["partitionToWriteStats"]
    text = {
        "partitionToWriteStats": {p: [_json_stat(stat) for stat in group] for p, group in stats.items()},
        **{name: record[name] for name in ("compacted", "extraMetadata", "operationType")},
    }
    if metadata.partition_to_replace_file_ids is not None:
        text["partitionToReplaceFileIds"] = record["partitionToReplaceFileIds"]
    return json.dumps(text, indent=2, separators=(",", " : ")).encode()


def _parse_json(data: bytes, where: str) -> dict[str, Any]:
    try:
        record = _JSON.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        what = "unreadable commit metadata"
        expected = "a JSON object or an Avro container file of commit metadata"
        found = f"{len(data)} bytes, {reason_of(error)}"
        todo = "If its writer is still running, read again; otherwise the file is damaged."
        raise MalformedError(what, path=where, expected=expected, found=found, todo=todo) from error
    # Jackson lets values of a string map be null; such an entry is ignored.
    if (extra := record.get("extraMetadata")) is not None:
        record["extraMetadata"] = {key: value for key, value in extra.items() if value is not None}
    return record


def from_record(record: Mapping[str, Any], *, is_replace: bool) -> CommitMetadata:
    """The metadata in a record of Hudi's schemas; the archive of version 6 has such records too."""
    stats: dict[str, Any] = record.get("partitionToWriteStats") or {}
    replaced: dict[str, Any] = record.get("partitionToReplaceFileIds") or {}
    return CommitMetadata(
        partition_to_write_stats={p: tuple(_stat(stat) for stat in group) for p, group in stats.items()},
        compacted=bool(record.get("compacted")),
        extra_metadata=record.get("extraMetadata") or {},
        operation_type=record.get("operationType"),
        partition_to_replace_file_ids={p: tuple(ids) for p, ids in replaced.items()} if is_replace else None,
    )


def _stat(record: Mapping[str, Any]) -> WriteStat:
    """A null or missing field has its default: Java primitives are never null in memory."""
    values = {name: value for hudi, name in _STAT_FIELDS.items() if (value := record.get(hudi)) is not None}
    if (times := values.get("runtime_stats")) is not None:
        named = {name: times.get(hudi) for name, hudi in _RUNTIME_NAMES.items()}
        values["runtime_stats"] = RuntimeStats(**{k: v for k, v in named.items() if v is not None})
    if "log_files" in values:
        values["log_files"] = tuple(values["log_files"])
    return WriteStat(**values)


def as_record(metadata: CommitMetadata) -> dict[str, Any]:
    """The metadata as a record of Hudi's schemas."""
    return {
        "partitionToWriteStats": {
            partition: [_stat_record(stat) for stat in group]
            for partition, group in metadata.partition_to_write_stats.items()
        },
        "compacted": metadata.compacted,
        "extraMetadata": dict(metadata.extra_metadata),
        "version": None,  # default 1 in Hudi's schema, but Hudi writes null
        "operationType": metadata.operation_type,
        "partitionToReplaceFileIds": {
            p: list(ids) for p, ids in (metadata.partition_to_replace_file_ids or {}).items()
        },
    }


def _stat_record(stat: WriteStat) -> dict[str, Any]:
    record = {hudi: getattr(stat, name) for name, hudi in _STAT_NAMES.items()}
    if stat.runtime_stats is not None:
        record["runtimeStats"] = {h: getattr(stat.runtime_stats, name) for name, h in _RUNTIME_NAMES.items()}
    if stat.log_files is not None:
        record["logFiles"] = list(stat.log_files)
    return record


def _json_stat(record: Mapping[str, Any]) -> dict[str, Any]:
    """A write stat as Hudi 0.15 prints it: log-only fields appear only for log files."""
    if record["logVersion"] is None:
        return {name: record[name] for name in _JSON_NAMES}
    return {name: record[name] for name in (*_JSON_NAMES, *_JSON_LOG_NAMES)} | {"recordsStats": {"val": None}}


def _hudi_name(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match.group(1).upper(), name)


_STAT_NAMES = {f.name: _hudi_name(f.name) for f in fields(WriteStat)}
_STAT_FIELDS = {hudi: name for name, hudi in _STAT_NAMES.items()}
_RUNTIME_NAMES = {f.name: _hudi_name(f.name) for f in fields(RuntimeStats)}

_JSON_LOG_NAMES = ("logVersion", "logOffset", "baseFile", "logFiles")
_NOT_IN_JSON = frozenset({*_JSON_LOG_NAMES, "totalLogFiles", "prevBaseFile", "totalLogReadTimeMs", "numUpdates"})
_JSON_NAMES = tuple(name for name in _STAT_NAMES.values() if name not in _NOT_IN_JSON)

_KINDS: Mapping[str, Schema | str] = {
    **dict.fromkeys(("fileId", "path", "prevCommit", "partitionPath", "baseFile", "prevBaseFile"), STRING),
    "tempPath": STRING,
    "logVersion": "int",
    "logFiles": {**array_of(STRING), "default": None},
    "cdcStats": {**map_of("long"), "default": None},
    "runtimeStats": record_of("HoodieRuntimeStats", *(optional(n, "long") for n in _RUNTIME_NAMES.values())),
}
_STAT_SCHEMA = record_of(
    "HoodieWriteStat", *(optional(name, _KINDS.get(name, "long")) for name in _STAT_NAMES.values())
)


def _schema(name: str, extra_metadata: Schema, *more: Schema) -> Schema:
    return root_record(
        name,
        optional("partitionToWriteStats", map_of(array_of(_STAT_SCHEMA))),
        optional("compacted", "boolean"),
        optional("extraMetadata", extra_metadata),
        {"name": "version", "type": ["int", "null"], "default": 1},
        optional("operationType", STRING),
        *more,
    )


# The stray "default" inside types is in Hudi's own schema files.
COMMIT_SCHEMA = _schema("HoodieCommitMetadata", {**map_of(STRING), "default": None})
REPLACE_SCHEMA = _schema(
    "HoodieReplaceCommitMetadata", map_of(STRING), optional("partitionToReplaceFileIds", map_of(array_of(STRING)))
)

_LONG = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_INT = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
_PRIMITIVES: Mapping[str, Any] = {"long": _LONG, "int": _INT, "boolean": bool, "string": str}


def _json_type(schema: Any, **known: Any) -> Any:
    """The type of values of an Avro schema in JSON; fields that it does not name are ignored. `known`: types of fields
    that differ."""
    if isinstance(schema, list):
        (kind,) = (branch for branch in schema if branch != "null")
        return _json_type(kind) | None
    if isinstance(schema, str):
        return _PRIMITIVES[schema]
    if schema["type"] == "record":
        types = {one["name"]: _json_type(one["type"]) for one in schema["fields"]} | known
        return TypedDict(schema["name"], types, total=False)  # type: ignore[operator]
    if schema["type"] == "array":
        return list[_json_type(schema["items"])]  # type: ignore[misc]
    if schema["type"] == "map":
        return dict[str, _json_type(schema["values"])]  # type: ignore[misc]
    return _PRIMITIVES[schema["type"]]


_JSON: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(
    _json_type(REPLACE_SCHEMA, extraMetadata=dict[str, str | None] | None)
)
