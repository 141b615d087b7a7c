"""Entries of the metadata table: read from HFiles and log blocks as dicts, combined, and encoded (pure).

Every entry is an Avro `HoodieMetadataRecord`; its `type` says which of its fields holds the content:

    1, 2   filesystemMetadata     file (or partition) name -> {size, isDeleted}
    3, 6   ColumnStatsMetadata    of a file; of a partition
    4, 5   BloomFilterMetadata, recordIndexMetadata
    7      SecondaryIndexMetadata

A union value of several record types (a column's bounds) is a pair: (name of the record, the record). In HFiles the
record's own `key` is empty: the entry's key is used. Source: HoodieMetadata.avsc, HoodieHFileDataBlock of Hudi 0.15.0
and 1.2.0.

Hudi combines entries of one key in two steps: first the entries of a slice's log blocks with each other, then the base
file's entry with the result. The order matters: a file that is only deleted in the logs remains there as deleted until
the result is combined with the base file's entry. Source: HoodieMetadataPayload and HoodieTableMetadataUtil.

`record_0x.avsc` is the schema in the commits of Hudi 0.15's metadata tables (version 6), `record_1x.avsc` that of Hudi
1.2's (versions 8 and 9), without descriptions: for a metadata table that has no commit yet.

A record of `record_index` says which file group holds the row of its key. A file id that is a UUID followed by a
number, as those of Spark's writers, is stored as two integers and the number; any other as text. A key that is deleted
has no record: its older ones are deleted by a delete block. (HoodieRecordIndexInfo, as 0.15.0 and 1.2.0 write it.)"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeAlias

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ... import errors
from ...codec.avro_container import parsed_schema
from ...codec.avro_schema import META_COLUMNS
from ...errors import MalformedError, PhantombaseError, UnsupportedError, reason_of
from ...format.layout import Layout
from ...format.log_block import BlockKind, HeaderKey, LogBlock
from ...format.log_decode import avro_values, content_of
from ...format.log_deletes import decode_deletes
from ...format.record_key import java_hashes
from .hfile import HFile, encode_hfile, open_hfile
from .keys import MetadataRecord, RowIndex

RECORD_INDEX_TYPE = 5
"""Field `type` of a record."""

_UUID = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?:-(0|[1-9][0-9]{0,8}))?")
_AS_UUID, _AS_TEXT = 0, 1
_NONE = -1


def location(partition: str, file_id: str, milliseconds: int) -> MetadataRecord:
    """The record of every key that a file group has received. `milliseconds`: the time of the write's instant."""
    split = _UUID.fullmatch(file_id)
    if split is None:
        high, low, index, text, encoding = _NONE, _NONE, _NONE, file_id, _AS_TEXT
    else:
        digits = bytes.fromhex(split[1].replace("-", ""))
        high, low = (int.from_bytes(part, "big", signed=True) for part in (digits[:8], digits[8:]))
        index, text, encoding = int(split[2] or _NONE), "", _AS_UUID
    place = {
        "partitionName": partition,
        "fileIdHighBits": high,
        "fileIdLowBits": low,
        "fileIndex": index,
        "fileId": text,
        "instantTime": milliseconds,
        "fileIdEncoding": encoding,
        "position": None,
    }
    return {"type": RECORD_INDEX_TYPE, "recordIndexMetadata": place}


_SECONDARY_TYPE = 7
_SPECIAL, _NULL = r"[\\$\x00]", "\0"
_UP_TO_KEY = r"(?s)^((?:[^\\$]|\\.)*\$).*$"


def entry_keys(index: RowIndex, keys: pa.StringArray, values: pa.Array) -> pa.StringArray:
    """The keys of the entries of rows in a secondary index. `values`: of its column, of a type that `cannot_index`
    accepts."""
    text = values if pa.types.is_string(values.type) else _number(values).cast(pa.string())
    value, key = (pc.replace_substring_regex(part, _SPECIAL, r"\\\0") for part in (text, keys.cast(pa.string())))
    return pc.binary_join_element_wise(pc.fill_null(value, _NULL), key, "$")


def file_groups_of(index: RowIndex, keys: pa.StringArray, count: int) -> npt.NDArray[np.int64]:
    """Which of the index's `count` file groups holds each key: by Java's hash, as `file_group_index`."""
    hashed = java_hashes(pc.replace_substring_regex(keys, _UP_TO_KEY, r"\1") if index.by_value else keys)
    return np.abs(hashed.astype(np.uint32).view(np.int32).astype(np.int64)) % count


def secondary_record() -> MetadataRecord:
    """The record of each entry of a secondary index. An entry that is deleted has none, as in the record index."""
    return {"type": _SECONDARY_TYPE, "SecondaryIndexMetadata": {"isDeleted": False}}


def _number(values: pa.Array) -> pa.Array:
    """As Spark holds it: days of dates, microseconds of timestamps."""
    if pa.types.is_integer(values.type):
        return values
    return values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())


def cannot_index_column(schema: pa.Schema, column: str) -> str:
    """Why a secondary index of a column cannot be kept; empty: it can."""
    found = [field.type for field in schema if field.name == column and column not in META_COLUMNS]
    return cannot_index(found[0]) if found else "the table has no such column"


def cannot_index(type_: pa.DataType) -> str:
    """The same of a column of this type."""
    of = pa.types
    if of.is_string(type_) or of.is_integer(type_) or of.is_date32(type_):
        return ""
    if of.is_timestamp(type_) and type_.unit == "us":
        return ""
    if of.is_floating(type_):
        return f"the text of a {type_} depends on the version of Java"
    return f"Hudi has none of a {type_}"


def new_schema(layout: Layout) -> str:
    """The schema for a new metadata table, without meta columns."""
    name = "record_1x.avsc" if layout.has_completion_times else "record_0x.avsc"
    return files(__package__).joinpath(name).read_text().strip()


def usable_schema(text: str, where: str) -> str:
    """The schema, if records can be encoded with it. MalformedError: they cannot; `where` names the file it is from."""
    with errors.decoding("unreadable schema of the metadata table", where, Exception):
        fastavro.parse_schema(json.loads(text))
    return text


def encoder(schema_text: str) -> Callable[[tuple[str, MetadataRecord]], tuple[str, bytes]]:
    """Returns a function from (key, record) to the key and the record in Avro. HFiles store the key separately."""
    schema = fastavro.parse_schema(json.loads(schema_text))

    def encoded(keyed: tuple[str, MetadataRecord]) -> tuple[str, bytes]:
        key, record = keyed
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {**record, "key": ""})
        return key, out.getvalue()

    return encoded


MetadataEntry: TypeAlias = tuple[str, MetadataRecord | None]
"""(key, record); None deletes earlier entries of the key."""

Keys: TypeAlias = Collection[str] | None
"""Keys of the wanted entries; other HFile entries are skipped without decoding."""

_SCHEMA = "schema"


def base_entries(data: pa.Buffer, where: str, keys: Keys = None) -> Iterator[tuple[str, MetadataRecord]]:
    """The entries of a base file, by key. MalformedError, UnsupportedError: see `open_hfile`; undecodable records."""
    file = open_hfile(data, where)
    schema = file.info.get(_SCHEMA)
    if schema is None:
        raise MalformedError("base file of the metadata table without its schema", path=where)
    return _hfile_entries(file, schema.decode(errors="replace"), keys)


def block_entries(block: LogBlock, source: pa.NativeFile, keys: Keys = None) -> Iterator[MetadataEntry]:
    """The entries of a log block in order. UnsupportedError: a kind of block that metadata tables never have."""
    match block.kind:
        case BlockKind.HFILE_DATA:
            yield from _hfile_entries(
                open_hfile(content_of(block, source), block.path), block.header(HeaderKey.SCHEMA), keys
            )
        case BlockKind.AVRO_DATA:
            for value in avro_values(block, source):
                record = _decoded(value, block.header(HeaderKey.SCHEMA), block.path)
                yield str(record.get("key", "")), record
        case BlockKind.DELETE:
            for part in decode_deletes(block, source):
                yield from ((key, None) for key in part.keys.to_pylist())
        case _:
            what = f"{block.kind.name} log blocks are not supported in metadata tables"
            raise UnsupportedError(what, path=block.path, found=f"at byte {block.offset}")


def _hfile_entries(file: HFile, schema: str, keys: Keys) -> Iterator[tuple[str, MetadataRecord]]:
    """The first entry is decoded in any case: no checksum covers a log block's schema, so it shows whether that is
    damaged, also to a validation, which wants no entry. All entries of a secondary index have the same value: one that
    is as the one before is not decoded again."""
    is_first, before = True, b""
    record: MetadataRecord = {}
    for batch in file.batches():
        for key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            text = key.decode(errors="replace")
            if (is_wanted := keys is None or text in keys) or is_first:
                if is_first or value != before:
                    before, record = value, _decoded(value, schema, file.where)
                if is_wanted:
                    yield text, {**record, "key": text}
            is_first = False


def _decoded(value: bytes, schema: str, where: str) -> MetadataRecord:
    stream = io.BytesIO(value)
    try:
        record: Any = fastavro.schemaless_reader(
            stream, parsed_schema(schema), None, return_record_name=True, return_record_name_override=True
        )
        rest = len(value) - stream.tell()
        if rest or not isinstance(record["type"], int):
            raise MalformedError("not a record of the metadata table", found=f"{record!r}, {rest} bytes after it")
    except PhantombaseError as error:
        raise error.at(where) from error
    except Exception as error:  # a decoder may raise anything when it reads arbitrary bytes
        raise MalformedError("unreadable record of the metadata table", path=where, found=reason_of(error)) from error
    return {name: field for name, field in record.items() if name not in META_COLUMNS}


PARTITIONS, FILES, COLUMN_STATS, PARTITION_STATS = 1, 2, 3, 6
"""Values of `type` whose entries are combined; for all others the later entry wins."""

_FILES_FIELD, _STATS_FIELD = "filesystemMetadata", "ColumnStatsMetadata"
_DECIMAL = 10
"""`typeOrdinal` of decimals in index version 2: their bounds are bytes of a signed number, big-endian."""
_SUMS = ("valueCount", "nullCount", "totalSize", "totalUncompressedSize")


def fold(entries: Iterable[MetadataEntry]) -> dict[str, MetadataRecord | None]:
    """The entries of log blocks, given in order, one for each key; None if the last entry deletes the key."""
    folded: dict[str, MetadataRecord | None] = {}
    for key, newer in entries:
        older = folded.get(key)
        folded[key] = newer if newer is None or older is None else combine(older, newer)
    return folded


def merge(
    base: Iterable[tuple[str, MetadataRecord]], logs: dict[str, MetadataRecord | None]
) -> Iterator[tuple[str, MetadataRecord]]:
    """A slice's entries: those of its base file combined with those of its logs, then those only in logs."""
    rest = dict(logs)
    for key, older in base:
        newer = rest.pop(key, older)
        if newer is not None:
            yield key, older if newer is older else combine(older, newer)
    yield from ((key, record) for key, record in rest.items() if record is not None)


def combine(older: MetadataRecord, newer: MetadataRecord) -> MetadataRecord:
    """The combination of two entries of one key. MalformedError: they have different types, or an impossible size."""
    kind = newer["type"]
    if older["type"] != kind:
        what = "two entries of one key in the metadata table are of different types"
        raise MalformedError(what, path=str(newer.get("key")), expected=str(older["type"]), found=str(kind))
    with _shaped(newer):
        if kind in (PARTITIONS, FILES):
            return {**newer, _FILES_FIELD: _files(older, newer)}
        if kind in (COLUMN_STATS, PARTITION_STATS) and older.get(_STATS_FIELD) and newer.get(_STATS_FIELD):
            return {**newer, _STATS_FIELD: _stats(older[_STATS_FIELD], newer[_STATS_FIELD])}
    return newer


def present_files(record: MetadataRecord) -> dict[str, int]:
    """Names and sizes of the files (of `__all_partitions__`: partitions) that an entry does not mark as deleted."""
    with _shaped(record):
        listed = record.get(_FILES_FIELD) or {}
        return {name: int(file["size"]) for name, file in listed.items() if not file["isDeleted"]}


def _shaped(record: MetadataRecord) -> AbstractContextManager[None]:
    """MalformedError if a record lacks expected fields: each block has its own schema, which may differ."""
    what, causes = "entry of the metadata table of another shape", (LookupError, TypeError, AttributeError, ValueError)
    return errors.decoding(what, str(record.get("key")), *causes)


def _files(older: MetadataRecord, newer: MetadataRecord) -> dict[str, dict[str, Any]]:
    """Sizes only grow. Deleting an existing file removes both entries; otherwise the deletion is kept."""
    files = dict(older.get(_FILES_FIELD) or {})
    for name, file in (newer.get(_FILES_FIELD) or {}).items():
        before = files.get(name)
        if newer["type"] == FILES and not file["isDeleted"] and file["size"] <= 0:
            raise MalformedError("file without bytes in the metadata table", path=f"{newer['key']}/{name}")
        if before is None:
            files[name] = file
        elif not file["isDeleted"]:
            files[name] = {"size": max(before["size"], file["size"]), "isDeleted": False}
        elif before["isDeleted"]:
            files[name] = file
        else:
            del files[name]
    return files


def _stats(older: MetadataRecord, newer: MetadataRecord) -> MetadataRecord:
    """A tight or deleted entry replaces the older one, and so does an entry after a deleted one; others widen it."""
    if newer["isDeleted"] or older["isDeleted"] or newer.get("isTightBound"):
        return newer
    lows = [v for v in (older["minValue"], newer["minValue"]) if v is not None]
    highs = [v for v in (older["maxValue"], newer["maxValue"]) if v is not None]
    order = _unscaled if _is_decimal(older, newer) else _java_order
    return {
        **newer,
        "minValue": min(lows, key=order, default=None),
        "maxValue": max(highs, key=order, default=None),
        **{name: (older[name] or 0) + (newer[name] or 0) for name in _SUMS},
    }


def _is_decimal(older: MetadataRecord, newer: MetadataRecord) -> bool:
    """Whether bounds are unscaled decimals. MalformedError: only of one entry, or of another scale."""
    scales = {
        str(of.get("additionalInfo")).rpartition(",")[2] if of.get("typeOrdinal") == _DECIMAL else None
        for of in (stats.get("valueType") or {} for stats in (older, newer) if stats["minValue"] is not None)
    }
    if len(scales) > 1:
        what = "column statistics of two types cannot be combined"
        expected = str(older.get("valueType"))
        found = str(newer.get("valueType"))
        todo = "Turn the metadata table off with --drop-metadata-table: the next Hudi writer builds it again."
        raise MalformedError(what, path=str(newer.get("columnName")), expected=expected, found=found, todo=todo)
    return bool(scales - {None})


def _unscaled(bound: tuple[str, MetadataRecord]) -> int:
    return int.from_bytes(bound[1]["value"], "big", signed=True)


def _java_order(bound: tuple[str, MetadataRecord]) -> Any:
    """A bound's sort key in Java's natural order: text by UTF-16 units, bytes as signed, NaN last, -0.0 before 0.0."""
    value = bound[1].get("value")
    match value:
        case str():
            return value.encode("utf-16-be", "surrogatepass")
        case bytes():
            return bytes(b ^ 0x80 for b in value)
        case float():
            return math.isnan(value), value, math.copysign(1.0, value)
    return value


@dataclass(frozen=True, slots=True)
class EncodedBase:
    """A base file: its bytes and its number of entries."""

    data: bytes
    count: int


def encode_base(entries: Iterable[tuple[str, bytes]], schema_text: str) -> EncodedBase:
    """A base file of a metadata table, of records with distinct keys in any order."""
    ordered = sorted((key.encode(), value) for key, value in entries)
    keys = {"minRecordKey": ordered[0][0], "maxRecordKey": ordered[-1][0]} if ordered else {}
    return EncodedBase(encode_hfile(ordered, {"schema": schema_text.encode(), **keys}), len(ordered))
