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
leads to, or that lead nowhere, are dropped until one chain is left from the first byte to the last.

`phantombase-native`, an optional module in Rust (see `native/README.md`), fills the Arrow buffers of the types that
`arrow_schema` gives to a schema, five times as fast as these decoders. Whether it knows a schema is decided once for a
block. It accepts less than they do: whatever it does not accept, they decode or refuse, so errors are theirs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import MalformedError, PhantombaseError, reason_of
from ..event_log import get_logger
from .arrow_schema import arrow_type, avro_field
from .avro_container import encode_long
from .avro_schema import FIXED_BYTES_MAX, parse_avro, smallest_bytes, without_null

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
    `schema` is a record schema without named references (see `parse_avro`). Text and bytes become `large_string` /
    `large_binary`, maps become lists of (key, value). MalformedError names `where`."""
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


_VERSION = "0.1."
"""How the version of the module begins whose numbers of types and arguments are those of this file."""
_SYMBOLS_MAX = 30_000
"""The most symbols of all enums: one enum may be the type of many columns, and each would have its own."""


def load_module() -> tuple[Any, str]:
    """The module; None and why, if it is not installed or of a version that could read a program as other types."""
    try:
        import phantombase_native
    except ImportError as error:
        return None, f"phantombase-native cannot be imported: {error}"
    version = str(getattr(phantombase_native, "__version__", "of no version"))
    if not version.startswith(_VERSION):
        return None, f"phantombase-native {version} is installed, {_VERSION}* is needed"
    return phantombase_native, ""


native, _why_not = load_module()

REFUSALS = (ValueError, TypeError, pa.ArrowException, PhantombaseError)
"""What `NativeColumns.decode`, or the conversion of its rows, raises where other decoders must be asked."""

_log = get_logger()

_NO_UNION = -1
_KINDS = {"boolean": 0, "int": 1, "long": 2, "float": 3, "double": 4, "string": 5, "bytes": 6}
_FIXED, _DECIMAL, _ENUM, _ARRAY, _MAP, _RECORD = 7, 8, 9, 12, 13, 14
_LOGICAL = {
    ("int", "date"): 1,
    ("int", "time-millis"): 10,
    ("long", "time-micros"): 11,
    ("long", "timestamp-millis"): 2,
    ("long", "timestamp-micros"): 2,
    ("long", "local-timestamp-millis"): 2,
    ("long", "local-timestamp-micros"): 2,
}
"""The numbers of `Program` in `native/src/column.rs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeColumns:
    """Columns of blocks of one schema: what the module must know to decode them."""

    schema: pa.Schema
    program: list[int]
    symbols: list[list[bytes]]
    wanted: list[int]

    def decode(self, data: pa.Buffer, count: int) -> pa.Table:
        """The columns of `count` records, each with its length in front. ValueError: ask another decoder."""
        array = native.decode(data, count, self.program, self.symbols, self.wanted, True)
        return pa.Table.from_batches([pa.record_batch(_Exported(self.schema, array))])


@dataclass(frozen=True, slots=True)
class _Exported:
    schema: pa.Schema
    array: Any

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self.schema.__arrow_c_schema__(), self.array


@lru_cache(maxsize=64)
def native_columns(text: str, names: tuple[str, ...]) -> NativeColumns | None:
    """The named columns, in this order, of blocks with the Avro schema `text`. None: the module does not decode them,
    or there is no module."""
    if native is None:
        _log.debug("avro_decoder", decoder="polars", reason=_why_not)
        return None
    fields = parse_avro(text)["fields"]
    try:
        places = _places(fields)
        wanted, enums = [places[name] for name in names], list[list[str]]()
        program = [number for field in fields for number in _program(field["type"], enums)]
        if sum(map(len, enums)) > _SYMBOLS_MAX:
            raise ValueError("too many symbols of enums")
        symbols = [[symbol.encode() for symbol in enum] for enum in enums]
        schema = pa.schema([avro_field(name, fields[place]["type"]) for name, place in zip(names, wanted, strict=True)])
    except (*REFUSALS, LookupError, AttributeError) as error:
        _log.debug("avro_decoder", decoder="polars", reason=str(error))
        return None
    _log.debug("avro_decoder", decoder=f"phantombase-native {native.__version__}")
    return NativeColumns(schema=schema, program=program, symbols=symbols, wanted=wanted)


def _places(fields: Iterable[Any]) -> dict[str, int]:
    """The places of fields by name."""
    names = [field["name"] for field in fields]
    if not names or len(set(names)) < len(names):
        raise ValueError("a record without fields, or with two of one name")
    return {name: place for place, name in enumerate(names)}


def _program(node: Any, symbols: list[list[str]]) -> list[int]:
    """The numbers that describe a type. `symbols`: takes those of enums. ValueError: not known."""
    if not isinstance(node, list):
        return [_NO_UNION, *_inner(node, symbols)]
    if len(node) != 2 or node.count("null") != 1:
        raise ValueError(f"a union: {str(node)[:80]}")
    place = node.index("null")
    return [place, *_inner(node[1 - place], symbols)]


def _inner(node: Any, symbols: list[list[str]]) -> list[int]:
    kind, logical = (node, None) if isinstance(node, str) else (node["type"], node.get("logicalType"))
    if kind == "array":
        return [_ARRAY, *_program(node["items"], symbols)]
    if kind == "map":
        return [_MAP, *_program("string", symbols), *_program(node["values"], symbols)]
    if kind == "record":
        _places(node["fields"])
        return [_RECORD, len(node["fields"]), *(n for f in node["fields"] for n in _program(f["type"], symbols))]
    if logical == "decimal" and kind in ("fixed", "bytes"):
        size = node["size"] if kind == "fixed" else 0
        if 0 <= node.get("scale", 0) <= node["precision"] <= 38 and (kind == "bytes" or 0 < size <= 16):
            return [_DECIMAL, size, node["precision"]]
    elif logical is not None:
        return [_LOGICAL[kind, logical]]
    elif kind == "fixed" and 0 < node["size"] <= FIXED_BYTES_MAX:
        return [_FIXED, node["size"]]
    elif kind == "enum":
        symbols.append(node["symbols"])
        return [_ENUM, len(symbols) - 1]
    elif kind in _KINDS:
        return [_KINDS[kind]]
    raise ValueError(f"a type: {str(node)[:80]}")
