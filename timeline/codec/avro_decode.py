"""Decodes runs of Avro records to Arrow without a loop over rows, and finds where framed records begin (pure).

Hudi stores Avro data as bare binary records. With a container header put in front of them in memory they are an Avro
object container of one block, which polars decodes to Arrow at over a million records a second. What polars cannot
decode is described by another schema of the same bytes:
    map<V>              array of records (string key, V value): the same bytes, converted to a map afterwards
    record prefixes     separate fields in front (`prefix`): a 4-byte length is `fixed(4)`
    union index         an `int` field, since the index is stored like an int

fastavro decodes schemas that polars refuses, row by row.

Framed records; `record_starts` finds their offsets without decoding them, vectorised:

    n x {big-endian int32 length, Avro record}

Each prefix leads to the next, which would be a loop over records. But a record shorter than 64 KiB has a prefix of two
zero bytes and two others, and few other places look like that: these are the candidates. Those that no other candidate
leads to, or that lead nowhere, are dropped until one chain is left from the first byte to the last."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import MalformedError, reason_of
from .arrow_schema import arrow_type
from .avro_container import encode_long
from .avro_schema import smallest_bytes, without_null

_Integers: TypeAlias = npt.NDArray[np.int64]
_Bytes: TypeAlias = npt.NDArray[np.uint8]

_PREFIX = 4
_WINDOW_BYTES = 1 << 19
"""Bytes that are searched at a time: few enough for the processor's cache."""


def record_starts(raw: _Bytes, count: int) -> _Integers | None:
    """The offset of each of `count` records, and of the end; None if there is no such chain, as with long records."""
    if raw.size < _PREFIX:
        return None
    at = np.concatenate([_prefixes(raw, low) for low in range(0, raw.size - _PREFIX + 1, _WINDOW_BYTES)])
    while at.size and at[0] == 0:
        end = _ends(raw, at)
        if len(at) == count and end[-1] == raw.size and (end[:-1] == at[1:]).all():
            return np.append(at, raw.size)
        place = np.searchsorted(at, end)
        leads = at[np.minimum(place, at.size - 1)] == end
        reached = np.zeros(at.size, np.bool_)
        reached[0] = True
        reached[place[leads]] = True
        kept = reached & (leads | (end == raw.size))
        if kept.all():
            return None
        at = at[kept]
    return None


def _prefixes(raw: _Bytes, low: int) -> _Integers:
    """The candidates of one window: two zero bytes, from where the length leads to two more, or to the end."""
    zero = raw[low : min(low + _WINDOW_BYTES + 1, raw.size - 2)] == 0
    at = np.flatnonzero(zero[:-1] & zero[1:]) + low
    end = _ends(raw, at)
    inside = np.minimum(end, raw.size - 2)
    leads = (end == raw.size) | ((end == inside) & (raw[inside] == 0) & (raw[inside + 1] == 0))
    return np.asarray(at[leads], np.int64)


def _ends(raw: _Bytes, at: _Integers) -> _Integers:
    """Where the records end that begin with these prefixes of two zero bytes."""
    return np.asarray(at + _PREFIX + raw[at + 2].astype(np.int64) * 256 + raw[at + 3])


_SYNC = bytes(16)


def decode_records(
    data: pa.Buffer, count: int, schema: dict[str, Any], where: str, *, columns: Sequence[str] | None = None
) -> pa.Table:
    """The `count` consecutive records in `data`, as Arrow (only `columns`, if given).
    `schema` is a record schema without named references (see `schema.parse_avro`). Text and bytes become `large_string`
    / `large_binary`, maps become lists of (key, value). MalformedError names `where`."""
    if count == 0 or (columns is not None and not columns):
        # Nothing to decode. The table has no columns and so no row count; callers know the count.
        return pa.table({})
    if count * max(1, smallest_bytes(schema)) > data.size:
        # Decoders allocate memory for as many records as the block claims.
        found = f"{count} records in {data.size} bytes"
        raise MalformedError("Avro block claims more records than fit into its bytes", path=where, found=found)
    import polars as pl  # late: a fifth of a command's start, and the Spark driver never needs it

    readable = _maps_as_arrays(schema)
    header = _container_header(readable, count, data.size)
    stream = io.BytesIO(b"".join((header, data, _SYNC)))
    try:
        frame = pl.read_avro(stream, columns=list(columns) if columns is not None else None)
    except BaseException as error:
        # polars panics (a BaseException) on schemas that it cannot decode.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return _decode_by_row(stream, readable, where, columns, error)
    if frame.height != count:
        raise MalformedError(
            "Avro block holds another number of records", path=where, expected=str(count), found=str(frame.height)
        )
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def _container_header(schema: dict[str, Any], count: int, size: int) -> bytes:
    def text(value: bytes) -> bytes:
        return encode_long(len(value)) + value

    metadata = encode_long(2) + text(b"avro.schema") + text(json.dumps(schema).encode())
    metadata += text(b"avro.codec") + text(b"null") + encode_long(0)
    return b"Obj\x01" + metadata + _SYNC + encode_long(count) + encode_long(size)


def _maps_as_arrays(node: Any) -> Any:
    if isinstance(node, list):
        return [_maps_as_arrays(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    if node["type"] == "record":
        fields = [{"name": f["name"], "type": _maps_as_arrays(f["type"])} for f in node["fields"]]
        return {**node, "fields": fields}
    if node["type"] == "array":
        return {**node, "items": _maps_as_arrays(node["items"])}
    if node["type"] == "map":
        fields = [{"name": "key", "type": "string"}, {"name": "value", "type": _maps_as_arrays(node["values"])}]
        return {"type": "array", "items": {"type": "record", "name": f"kv{id(node)}", "fields": fields}}
    return node


def _decode_by_row(
    stream: io.BytesIO, schema: dict[str, Any], where: str, columns: Sequence[str] | None, cause: BaseException
) -> pa.Table:
    stream.seek(0)
    try:
        rows: list[Any] = list(fastavro.reader(stream))
        kinds = {f["name"]: arrow_type(without_null(f["type"])[0]) for f in schema["fields"]}
        names = [name for name in kinds if columns is None or name in columns]
        return pa.table({name: pa.array([row[name] for row in rows], type=kinds[name]) for name in names})
    except Exception as error:
        raise MalformedError(
            "Avro records cannot be decoded", path=where, found=f"{reason_of(error)} (and {cause})"
        ) from error
