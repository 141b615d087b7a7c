"""How two entries of one key are combined in the metadata table (pure).

Hudi combines in two steps: first the entries of a slice's log blocks with each other, then the base file's entry with
the result. The order matters: a file that is only deleted in the logs remains there as deleted until the result is
combined with the base file's entry. Source: HoodieMetadataPayload and HoodieTableMetadataUtil of Hudi 0.15.0 and 1.2.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import MalformedError
from .decode import MetadataEntry
from .keys import MetadataRecord

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
    """A slice's entries: those of its base file combined with the result of `merge.winner`, then those only in logs."""
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
        raise MalformedError(
            "two entries of one key in the metadata table are of different types",
            path=str(newer.get("key")),
            expected=str(older["type"]),
            found=str(kind),
        )
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


@contextmanager
def _shaped(record: MetadataRecord) -> Iterator[None]:
    """MalformedError if a record lacks expected fields: each block has its own schema, which may differ."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise MalformedError(
            "entry of the metadata table of another shape",
            path=str(record.get("key")),
            found=f"{type(error).__name__}: {error}",
        ) from error


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
        raise MalformedError(
            "column statistics of two types cannot be combined",
            path=str(newer.get("columnName")),
            expected=str(older.get("valueType")),
            found=str(newer.get("valueType")),
            todo="Turn the metadata table off with --drop-metadata-table: the next Hudi writer builds it anew.",
        )
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
