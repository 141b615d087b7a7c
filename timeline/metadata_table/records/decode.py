"""Entries of the metadata table as dicts, from HFiles and from log blocks (pure).

Every entry is an Avro `HoodieMetadataRecord`; its `type` says which of its fields holds the content:

    1, 2   filesystemMetadata     file (or partition) name -> {size, isDeleted}
    3, 6   ColumnStatsMetadata    of a file; of a partition
    4, 5   BloomFilterMetadata, recordIndexMetadata
    7      SecondaryIndexMetadata

A union value of several record types (a column's bounds) is a pair: (name of the record, the record). In HFiles the
record's own `key` is empty: the entry's key is used. Source: HoodieMetadata.avsc, HoodieHFileDataBlock of Hudi
0.15.0 and 1.2.0.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

import fastavro
import pyarrow as pa

from ...avro.schema import META_COLUMNS, parse_avro
from ...errors import MalformedError, PhantombaseError, UnsupportedError
from ...log.block import BlockKind, HeaderKey, LogBlock
from ...log.decode import content_of, content_version, decoding
from ...log.delete_block import decode_deletes
from .hfile import HFile, open_hfile
from .keys import MetadataRecord

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
            for value in _avro_values(block, source):
                record = _decoded(value, block.header(HeaderKey.SCHEMA), block.path)
                yield str(record.get("key", "")), record
        case BlockKind.DELETE:
            for part in decode_deletes(block, source):
                yield from ((key, None) for key in part.keys.to_pylist())
        case _:
            raise UnsupportedError(
                f"{block.kind.name} log blocks are not supported in metadata tables",
                path=block.path,
                found=f"at byte {block.offset}",
            )


def _hfile_entries(file: HFile, schema: str, keys: Keys) -> Iterator[tuple[str, MetadataRecord]]:
    for batch in file.batches():
        for key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            text = key.decode(errors="replace")
            if keys is None or text in keys:
                yield text, {**_decoded(value, schema, file.where), "key": text}


def _avro_values(block: LogBlock, source: pa.NativeFile) -> Iterator[bytes]:
    """The records of an Avro block; each follows its length, see `log.decode`."""
    with decoding(block):
        content = memoryview(content_of(block, source))
        count, position = content_version(bytes(content[:8]), block), 8
        for _ in range(count):
            (length,) = struct.unpack_from(">i", content, position)
            start, position = position + 4, position + 4 + length
            if length < 0 or position > len(content):
                raise MalformedError("record of an Avro block outside it", found=f"{length} bytes at byte {start}")
            yield bytes(content[start:position])
        if position != len(content):
            raise MalformedError("record lengths of an Avro block do not add up", found=f"{position} bytes")


def _decoded(value: bytes, schema: str, where: str) -> MetadataRecord:
    stream = io.BytesIO(value)
    try:
        record: Any = fastavro.schemaless_reader(
            stream, _parsed(schema), None, return_record_name=True, return_record_name_override=True
        )
        rest = len(value) - stream.tell()
        if rest or not isinstance(record["type"], int):
            raise MalformedError("not a record of the metadata table", found=f"{record!r}, {rest} bytes after it")
    except PhantombaseError as error:
        raise type(error)(error.what, path=where, expected=error.expected, found=error.found) from error
    except Exception as error:  # a decoder may raise anything when it reads arbitrary bytes
        raise MalformedError(
            "unreadable record of the metadata table", path=where, found=f"{type(error).__name__}: {error}"
        ) from error
    return {name: field for name, field in record.items() if name not in META_COLUMNS}


@lru_cache(maxsize=16)
def _parsed(schema: str) -> Any:
    """The schema in fastavro's form; `parse_avro` refuses schemas that expand to too much."""
    parse_avro(schema)
    return fastavro.parse_schema(json.loads(schema))
