"""Blocks of framed Avro records to Arrow by `phantombase-native`, an optional module in Rust (see `native/README.md`).

It fills the Arrow buffers of the types that `arrow_schema` gives to a schema, five times as fast as the decoders of
`avro_decode`. Whether it knows a schema is decided once for a block. It accepts less than they do: whatever it does not
accept, they decode or refuse, so errors are theirs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ..errors import PhantombaseError
from ..event_log import get_logger
from .arrow_schema import avro_field
from .avro_schema import FIXED_BYTES_MAX, parse_avro

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
