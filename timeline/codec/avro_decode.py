"""Decodes data blocks of Avro records to Arrow, many records at once (pure).

Hudi stores Avro data as bare binary records, each behind its length:

    n x {big-endian int32 length, Avro record}

`phantombase-native`, an optional module in Rust (see `native/README.md`), fills the Arrow buffers of the types that
`arrow_schema` gives to a schema. Whether it knows a schema is decided once for a block.

Without it numpy reads one field of all records of a window after the other: `at` is where each record has got to, and a
value moves each by its own number of bytes. What follows a union with null is read of the records that have a value,
and the items of arrays and maps in turns: all first items, all second items, ...

Both accept only what is exactly as the schema says; numpy refuses other bytes. What it does not decode, fastavro does
(`avro_container`): decimals of more than 38 digits, records without fields, several runs of items, long lists."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import MalformedError, PhantombaseError, reason_of
from ..event_log import get_logger
from .arrow_schema import arrow_type, avro_field
from .avro_container import decode_records
from .avro_schema import FIXED_BYTES_MAX, parse_avro
from .columns import byte_blocks

_Integers: TypeAlias = npt.NDArray[np.int64]
_Found: TypeAlias = tuple[pa.Array, _Integers]

_PREFIX = 4


def record_starts(data: pa.Buffer, count: int, where: str) -> _Integers:
    """The offset of each of `count` records behind their lengths, and of the end. Each length leads to the next one: a
    loop, which is as fast as a search for all that may be lengths. MalformedError: they do not lead to the end."""
    content, read, at = memoryview(data), struct.Struct(">i").unpack_from, 0
    starts = array("q", (0,))
    for _ in range(count):
        length = read(content, at)[0] if at + _PREFIX <= data.size else -1
        if length < 0:
            break
        at += _PREFIX + length
        starts.append(at)
    if len(starts) <= count or at != data.size:
        what = "record lengths of an Avro block do not add up"
        expected = f"{count} records in {data.size} bytes"
        raise MalformedError(what, path=where, expected=expected, found=f"{len(starts) - 1} in {at} bytes")
    return np.frombuffer(starts, np.int64)


def decode_framed(
    data: pa.Buffer, starts: _Integers, schema: dict[str, Any], where: str, columns: Sequence[str]
) -> pa.Table:
    """The named columns of the records that begin at `starts` (see `record_starts`). MalformedError names `where`."""
    if len(starts) == 1 or not columns:
        return pa.table({})  # without columns there is no row count; callers know it
    try:
        return decode_columns(data, starts, schema["fields"], columns)
    except MalformedError as error:
        raise error.at(where) from error
    except REFUSALS as error:
        _log.debug("avro_decoder", decoder="fastavro", path=where, reason=reason_of(error))
    return decode_records(data, len(starts) - 1, schema, where, starts=starts.tolist(), columns=columns)


_VERSION = "0.2."
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

REFUSALS = (ValueError, TypeError, LookupError, AttributeError, pa.ArrowException, PhantombaseError)
"""What decoders raise, or the conversion of their rows, where other decoders must be asked."""

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
        return pa.Table.from_batches([pa.record_batch(NativeArray(self.schema, array))])


@dataclass(frozen=True, slots=True)
class NativeArray:
    """An array of the module with its schema, as pyarrow takes them over."""

    schema: pa.Schema
    array: Any

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self.schema.__arrow_c_schema__(), self.array


@lru_cache(maxsize=64)
def native_columns(text: str, names: tuple[str, ...]) -> NativeColumns | None:
    """The named columns, in this order, of blocks with the Avro schema `text`. None: the module does not decode them,
    or there is no module."""
    if native is None:
        _log.debug("avro_decoder", decoder="numpy", reason=_why_not)
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
    except REFUSALS as error:
        _log.debug("avro_decoder", decoder="numpy", reason=str(error))
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


# --- numpy: one field of all records after the other ---------------------------------------------------------------

_WINDOW = 1 << 15
"""Records that are decoded at once: few enough for the processor's cache."""
_STEPS, _BYTES_A_STEP = 500, 256
"""Steps that a window may take: each type of all first items is one. fastavro decodes long lists of few records."""
_PAD = 16
"""Bytes that a value of fixed length may be read beyond the end, before it is refused."""


def decode_columns(data: pa.Buffer, starts: _Integers, fields: Sequence[Any], names: Sequence[str]) -> pa.Table:
    """The named columns, in this order, of the records that begin at `starts`, whose last value is the end. `fields`:
    of the record schema, see `parse_avro`. MalformedError: the bytes are not. Other errors: another decoder decides."""
    schema = pa.schema([avro_field(one["name"], one["type"]) for one in fields if one["name"] in names])
    parts = []
    for low in range(0, len(starts) - 1, _WINDOW):
        window = starts[low : low + _WINDOW + 1]
        first, end = int(window[0]), int(window[-1])
        walk, ends = _Walk(data.slice(first, end - first), first), window[1:] - first
        at, found = window[:-1] - first + _PREFIX, {}
        for one in fields:
            found[one["name"]], at = walk.read(one["type"], at, ends, one["name"] in names)
        walk.refuse(at != ends, at, "a record is not as long as its length says")
        parts.append(pa.record_batch([found[name] for name in schema.names], schema=schema))
    table = pa.Table.from_batches(parts, schema)
    return table.select(list(names))


class _Walk:
    """The bytes of one window of records."""

    def __init__(self, data: pa.Buffer, first: int) -> None:
        self._data, self._first = data, first
        self._steps = _STEPS + data.size // _BYTES_A_STEP
        self._raw = np.concatenate([np.frombuffer(data, np.uint8), np.zeros(_PAD, np.uint8)])

    def refuse(self, wrong: npt.NDArray[np.bool_], at: _Integers, why: str) -> None:
        if wrong.any():
            found = f"{why}, at byte {self._first + int(at[wrong.argmax()])} of the records"
            raise MalformedError("Avro records cannot be decoded", found=found)

    def read(self, node: Any, at: _Integers, ends: _Integers, wanted: bool = True) -> _Found:
        """The values of a type that begin at `at`, and where they end. Values that are not `wanted` may be anything."""
        self._steps -= 1
        if isinstance(node, list):
            return self._nullable(node, at, ends, wanted)
        kind = node if isinstance(node, str) else node["type"]
        if kind in ("int", "long"):
            return self._integers(node, kind, at, ends)
        if kind in ("string", "bytes", "fixed"):
            return self._bytes(node, kind, at, ends, wanted)
        if kind in _WIDTHS:
            return self._plain(kind, at, ends)
        if kind == "enum":
            symbols = pa.array(node["symbols"], pa.string())
            numbers, after = self._numbers(at, ends)
            self.refuse((numbers < 0) | (numbers >= len(symbols)), at, "no symbol of the enum")
            return symbols.take(pa.array(numbers)), after
        if kind == "record":
            parts = []
            _places(node["fields"])  # refuses none: an Arrow array of such has no length
            for field in node["fields"]:
                found, at = self.read(field["type"], at, ends, wanted)
                parts.append(found)
            fields = [avro_field(one["name"], one["type"]) for one in node["fields"]]
            return pa.StructArray.from_arrays(parts, fields=fields) if wanted else pa.nulls(len(at)), at
        if kind in ("array", "map"):
            return self._lists(node, kind, at, ends, wanted)
        raise ValueError(f"a type: {str(node)[:80]}")

    def _moved(self, at: _Integers, by: Any, ends: _Integers) -> _Integers:
        moved = np.asarray(at + by)
        self.refuse((moved > ends) | (moved < at), at, "a value beyond its record")
        return moved

    def _numbers(self, at: _Integers, ends: _Integers) -> tuple[_Integers, _Integers]:
        """Integers of seven bits a byte, the lowest first, whose lowest bit is the sign."""
        byte = self._raw[at]
        at = self._moved(at, 1, ends)
        value = byte.astype(np.uint64)
        open_ = np.flatnonzero(byte >= 0x80)
        if len(open_):
            value &= np.uint64(0x7F)
            at = at.copy()
        shift = 7
        while len(open_):
            byte = self._raw[at[open_]]
            if shift == 63:
                self.refuse(byte > 1, at[open_], "a number of more than 64 bits")
            value[open_] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(shift)
            at[open_] = self._moved(at[open_], 1, ends[open_])
            open_, shift = open_[byte >= 0x80], shift + 7
        return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), at

    def _nullable(self, node: list[Any], at: _Integers, ends: _Integers, wanted: bool) -> _Found:
        if len(node) != 2 or node.count("null") != 1:
            raise ValueError(f"a union: {str(node)[:80]}")
        place = node.index("null")
        branch, at = self._numbers(at, ends)
        self.refuse((branch != 0) & (branch != 1), at - 1, "no branch of the union")
        has = branch != place
        if has.all():
            return self.read(node[1 - place], at, ends, wanted)
        rows = np.flatnonzero(has)
        values, after = self.read(node[1 - place], at[rows], ends[rows], wanted)
        at[rows] = after
        if not wanted:
            return values, at
        return values.take(pa.array(np.cumsum(has) - 1, mask=~has)), at

    def _integers(self, node: Any, kind: str, at: _Integers, ends: _Integers) -> _Found:
        values, after = self._numbers(at, ends)
        small = values.astype(np.int32 if kind == "int" else np.int64)
        self.refuse(small != values, at, "a number of more than 32 bits")
        found = pa.Array.from_buffers(arrow_type(node), len(at), [None, pa.py_buffer(small)])
        if pa.types.is_time(found.type):
            found.validate(full=True)
        return found, after

    def _plain(self, kind: str, at: _Integers, ends: _Integers) -> _Found:
        width, form = _WIDTHS[kind]
        after = self._moved(at, width, ends)
        values = np.ndarray((len(self._raw) - width + 1,), form, self._raw, 0, (1,))[at]
        if kind != "boolean":
            return pa.array(values), after
        self.refuse(values > 1, at, "another byte than those of true and false")
        return pa.array(values == 1), after

    def _bytes(self, node: Any, kind: str, at: _Integers, ends: _Integers, wanted: bool) -> _Found:
        if kind == "fixed":
            size: Any = node["size"]
        else:
            size, at = self._numbers(at, ends)
        after = self._moved(at, size, ends)
        if not wanted or not len(at):
            return pa.nulls(len(at), arrow_type(node) if wanted else pa.null()), after
        # One array of values and of what lies between them, in turns; its values are taken.
        offsets = np.stack([at, after], axis=1).reshape(-1)
        form = pa.large_string() if kind == "string" else pa.large_binary()
        all_ = pa.Array.from_buffers(form, len(offsets) - 1, [None, pa.py_buffer(offsets), self._data])
        found = all_.take(pa.array(np.arange(0, len(offsets), 2)))
        if kind == "string":
            found.validate(full=True)
        kind_ = arrow_type(node)
        return _decimals(found, kind_) if pa.types.is_decimal(kind_) else found.cast(kind_), after

    def _lists(self, node: Any, kind: str, at: _Integers, ends: _Integers, wanted: bool) -> _Found:
        counts, at = self._numbers(at, ends)
        most, at = int(counts.max(initial=0)), at.copy()
        if (counts < 0).any():
            raise ValueError("a run of items with its length in bytes")
        inner = ["string", node["values"]] if kind == "map" else [node["items"]]
        owners, pieces = [], [list[pa.Array]() for _ in inner]
        for number in range(most):
            if self._steps < 0:
                raise ValueError("long lists of few records")
            rows = np.flatnonzero(counts > number)
            for one, piece in zip(inner, pieces, strict=True):
                values, at[rows] = self.read(one, at[rows], ends[rows], wanted)
                piece.append(values)
            owners.append(rows)
        full = np.flatnonzero(counts)
        last, at[full] = self._numbers(at[full], ends[full])
        if last.any():
            raise ValueError("several runs of items")
        kind_ = arrow_type(node)
        if not wanted or not most:
            return pa.array([[]] * len(at), kind_), at
        order = pa.array(np.argsort(np.concatenate(owners), kind="stable"))
        parts = [pa.concat_arrays(piece).take(order) for piece in pieces]
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        if kind == "map":
            return pa.MapArray.from_arrays(offsets, *parts, type=kind_), at
        return pa.ListArray.from_arrays(offsets, *parts, type=kind_), at


_WIDTHS: dict[str, tuple[int, Any]] = {"boolean": (1, np.uint8), "float": (4, "<f4"), "double": (8, "<f8")}


def _decimals(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decimals from their big-endian bytes."""
    if not pa.types.is_decimal128(kind):
        raise ValueError("a decimal of more than 38 digits")
    found = np.zeros((len(values), 16), np.uint8)
    for block in byte_blocks(values):
        size = block.data.shape[1]
        if not 0 < size <= 16:
            raise ValueError("a decimal of more than 16 bytes, or of none")
        whole = np.where(block.data[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0)).repeat(16, axis=1)
        whole[:, :size] = block.data[:, ::-1]
        found[block.ordinals] = whole
    made = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(found)])
    made.validate(full=True)
    return made
