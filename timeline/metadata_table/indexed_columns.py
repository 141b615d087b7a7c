"""Which columns of a table have statistics in its metadata table, and how their values are stored (pure).

Hudi 1.x records the columns in `.hoodie/.index_defs/index.json`. At table version 6 there is no such file, and the
schema may have grown since it was written. So the columns are those in the file, plus those that Hudi would choose from
the schema by its defaults (Hudi HoodieTableMetadataUtil.getColumnsToIndex, isColumnTypeSupported):

    0.15        every column
    1.x         _hoodie_commit_time, _hoodie_partition_path, _hoodie_record_key, and the first 32 columns that can have
                statistics; all of them if the file records more than 32, since its writers then use a greater limit

A reader asks for the recorded columns, or for all columns of its schema. Extra statistics are harmless. Statistics of
only some columns of a file are not: Hudi treats a column without statistics as one without any value in the file.

A value is stored in a record of one field `value`, and the record's name gives its type. In index version 1 (table
versions 6 and 8) only that name gives the type; version 2 (table version 9) also names the type, and stores simpler
values:

    type                             value here      version 1           version 2
    boolean, int, long               bool, int       Boolean, Int, Long  the same
    float, double                    float           Float, Double       the same
    string; bytes, fixed             str; bytes      String; Bytes       the same
    date                             days, int       Date                Int
    time-millis; -micros             int             Int; Long           the same
    (local-)timestamp-millis, -micros   int          Long (see below)    the same
    decimal(p, s)                    unscaled, int   Decimal             Bytes

DecimalWrapper is decimal(30, 15): in version 1 Hudi 1.x keeps no statistics of other decimals, and 0.15 fails on a
value that does not fit. Bounds of milliseconds in version 1 are wide, see `_readings`. Source: Hudi ValueType,
ValueMetadata, HoodieAvroWrapperUtils."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pyarrow as pa

from ..codec.arrow_schema import arrow_type
from ..codec.avro_schema import (
    COMMIT_TIME,
    META_COLUMNS,
    OPERATION,
    PARTITION_PATH,
    RECORD_KEY,
    parse_avro,
    without_null,
)
from ..errors import MalformedError
from .index_definitions import INDEX_DEFINITIONS, definitions_in

Value = bool | int | float | str | bytes

Wrapped = tuple[str, dict[str, Value]]
"""(full name of the wrapper's record type, the record), the form in which fastavro takes a union value."""

_NAMESPACE = "org.apache.hudi.avro.model"
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_DECIMAL_PRECISION, _DECIMAL_SCALE = 30, 15


class IndexVersion(IntEnum):
    """How values are stored, in `column_stats` and `partition_stats` alike."""

    V1 = 1
    V2 = 2


class Kind(IntEnum):
    """The kind of a value; version 2 stores the number as `typeOrdinal`."""

    NULL = 1
    BOOLEAN = 2
    INT = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    STRING = 7
    BYTES = 8
    FIXED = 9
    DECIMAL = 10
    DATE = 12
    TIME_MILLIS = 13
    TIME_MICROS = 14
    TIMESTAMP_MILLIS = 15
    TIMESTAMP_MICROS = 16
    LOCAL_TIMESTAMP_MILLIS = 18
    LOCAL_TIMESTAMP_MICROS = 19


_KINDS = {
    pa.bool_(): Kind.BOOLEAN,
    pa.int32(): Kind.INT,
    pa.int64(): Kind.LONG,
    pa.float32(): Kind.FLOAT,
    pa.float64(): Kind.DOUBLE,
    pa.string(): Kind.STRING,
    pa.binary(): Kind.BYTES,
    pa.date32(): Kind.DATE,
    pa.time32("ms"): Kind.TIME_MILLIS,
    pa.time64("us"): Kind.TIME_MICROS,
    pa.timestamp("ms", tz="UTC"): Kind.TIMESTAMP_MILLIS,
    pa.timestamp("us", tz="UTC"): Kind.TIMESTAMP_MICROS,
    pa.timestamp("ms"): Kind.LOCAL_TIMESTAMP_MILLIS,
    pa.timestamp("us"): Kind.LOCAL_TIMESTAMP_MICROS,
}
_ARROW = {kind: arrow for arrow, kind in _KINDS.items()} | {Kind.FIXED: pa.binary()}
_INTS = (Kind.INT, Kind.DATE, Kind.TIME_MILLIS)


@dataclass(frozen=True, slots=True)
class ValueType:
    """A kind, with precision and scale for decimals (otherwise 0)."""

    kind: Kind
    precision: int = 0
    scale: int = 0

    @staticmethod
    def of(arrow: pa.DataType) -> ValueType | None:
        """The type of a column's values, None if it has no statistics (lists, maps, structs)."""
        if pa.types.is_decimal(arrow):
            return ValueType(Kind.DECIMAL, arrow.precision, arrow.scale)
        if pa.types.is_fixed_size_binary(arrow):
            return ValueType(Kind.FIXED)
        kind = _KINDS.get(arrow)
        return None if kind is None else ValueType(kind)

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type in which values are compared."""
        if self.kind is Kind.DECIMAL:
            return (pa.decimal128 if self.precision <= 38 else pa.decimal256)(self.precision, self.scale)
        return _ARROW[self.kind]

    @property
    def fits_version_1(self) -> bool:
        """Whether version 1 stores every value exactly; it does not for decimals beyond decimal(30, 15)."""
        return self.scale <= _DECIMAL_SCALE and self.precision - self.scale <= _DECIMAL_PRECISION - _DECIMAL_SCALE

    def low_bound(self, value: Value, version: IndexVersion) -> Wrapped | None:
        """A lower bound in stored form: the value or a lesser one, None if none can be stored."""
        return self._wrapped(min(self._readings(value, version)), version, towards=math.floor)

    def high_bound(self, value: Value, version: IndexVersion) -> Wrapped | None:
        """An upper bound in stored form: the value or a greater one, None if none can be stored."""
        return self._wrapped(max(self._readings(value, version)), version, towards=math.ceil)

    def _readings(self, value: Value, version: IndexVersion) -> tuple[Any, ...]:
        """The value, and the value a reader may misread: Hudi 0.15 compares every long of a timestamp as microseconds.
        Every reader finds the file if its bounds include both."""
        if version is IndexVersion.V2 or self.kind not in (Kind.TIMESTAMP_MILLIS, Kind.LOCAL_TIMESTAMP_MILLIS):
            return (value,)
        return value, max(_LONG_MIN, min(int(value) * 1000, _LONG_MAX))

    def _wrapped(self, value: Value, version: IndexVersion, towards: Callable[[Fraction], int]) -> Wrapped | None:
        if self.kind is not Kind.DECIMAL:
            return f"{_NAMESPACE}.{self._wrapper(version)}", {"value": value}
        if version is IndexVersion.V2:
            return f"{_NAMESPACE}.BytesWrapper", {"value": _java_bytes(int(value))}
        unscaled = towards(int(value) * Fraction(10) ** (_DECIMAL_SCALE - self.scale))
        if abs(unscaled) >= 10**_DECIMAL_PRECISION:
            return None  # Hudi 0.15 fails on such a record, even when it compacts the metadata table.
        return f"{_NAMESPACE}.DecimalWrapper", {"value": _java_bytes(unscaled)}

    def _wrapper(self, version: IndexVersion) -> str:
        if self.kind is Kind.DATE and version is IndexVersion.V1:
            return "DateWrapper"
        if self.kind in (Kind.BYTES, Kind.FIXED):
            return "BytesWrapper"
        if self.kind <= Kind.STRING:
            return f"{self.kind.name.title()}Wrapper"
        return "IntWrapper" if self.kind in _INTS else "LongWrapper"

    def type_info(self) -> dict[str, int | str | None]:
        """Field `valueType` of version 2."""
        info = f"{self.precision},{self.scale}" if self.kind is Kind.DECIMAL else None
        return {"typeOrdinal": int(self.kind), "additionalInfo": info}

    def __str__(self) -> str:
        return f"{self.kind.name}({self.precision},{self.scale})" if self.kind is Kind.DECIMAL else self.kind.name

    @staticmethod
    def parse(text: str) -> ValueType:
        """Inverse of `str`. MalformedError: no such type."""
        found = re.fullmatch(r"(\w+)(?:\((\d+),(-?\d+)\))?", text)
        if found is None or found[1] not in Kind.__members__:
            raise MalformedError("not a type of column statistics", found=text)
        return ValueType(Kind[found[1]], int(found[2] or 0), int(found[3] or 0))


def _java_bytes(number: int) -> bytes:
    """Two's complement, big-endian, as short as the sign allows (Java BigInteger.toByteArray)."""
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


_FIRST_COLUMNS = 32
_ALWAYS = (COMMIT_TIME, PARTITION_PATH, RECORD_KEY)


@dataclass(frozen=True, slots=True)
class IndexedColumn:
    """A column with statistics: names joined by dots, as a path through structs."""

    name: str
    type: ValueType

    @property
    def path(self) -> str:
        """The column that is read."""
        return self.name


def columns_to_index(schema_text: str, index_defs: bytes | None, table_version: int) -> tuple[IndexedColumn, ...]:
    """The columns of an Avro schema (with the meta columns, if the table has them) that get statistics.
    `index_defs`: content of INDEX_DEFINITIONS, None if there is no such file. MalformedError: damaged definitions."""
    version, record = index_version(index_defs, table_version), parse_avro(schema_text)
    written = definitions_in(index_defs).get("column_stats", {}).get("sourceFields", [])
    if not isinstance(written, list) or not all(isinstance(name, str) for name in written):
        raise MalformedError("damaged index definitions", path=INDEX_DEFINITIONS, found=f"sourceFields {written!r}")
    names = [*written, *_default_names(record, written, version, table_version)]
    columns = {name: _value_type(record, name) for name in names}
    return tuple(IndexedColumn(name, kind) for name, kind in columns.items() if kind is not None)


def index_version(index_defs: bytes | None, table_version: int) -> IndexVersion:
    """How values are stored in `column_stats` and `partition_stats`. MalformedError: damaged definitions."""
    definitions = definitions_in(index_defs)
    for name in ("column_stats", "partition_stats"):
        written = definitions.get(name, {}).get("version")
        if written is not None:
            if written not in IndexVersion.__members__:
                raise MalformedError("unknown version of an index", path=INDEX_DEFINITIONS, found=f"{name}: {written}")
            return IndexVersion[written]
    return IndexVersion.V2 if table_version >= 9 else IndexVersion.V1


def _default_names(
    record: dict[str, Any], written: Collection[str], version: IndexVersion, table_version: int
) -> Iterator[str]:
    names = [f["name"] for f in record["fields"]]
    if table_version < 8:
        yield from names
        return
    yield from (name for name in _ALWAYS if name in names)
    own = [name for name in names if name not in (*META_COLUMNS, OPERATION)]
    kinds = ((name, _value_type(record, name)) for name in own)
    taken = [n for n, kind in kinds if kind is not None and (version is IndexVersion.V2 or kind.fits_version_1)]
    yield from taken if len(set(written).intersection(own)) > _FIRST_COLUMNS else taken[:_FIRST_COLUMNS]


def _value_type(record: dict[str, Any], path: str) -> ValueType | None:
    """The type at a path; None if there is no such column, or if its type has no statistics."""
    node: Any = record
    for name in path.split("."):
        fields = node.get("fields", []) if isinstance(node, dict) else []
        found = next((f["type"] for f in fields if f["name"] == name), None)
        if found is None:
            return None
        node, _ = without_null(found)
    if isinstance(node, dict) and node["type"] == "enum":
        return None
    return ValueType.of(arrow_type(node))
