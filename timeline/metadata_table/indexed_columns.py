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
ValueMetadata, HoodieAvroWrapperUtils.

An expression index has the same records, of the values of a Spark function of one column (see `column_range`). Its
definition says the function, its options, and the version of the values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
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
from ..table.table import Table, TableSchema
from .record_index import INDEX_DEFINITIONS, definitions_in, stored_definitions
from .records.keys import BLOOM_FILTERS, COLUMN_STATS, EXPRESSION_INDEX

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """What an expression index says: a `function` of a `column`, with its one option besides (a format, or days).
    `partition`: of the metadata table; `source`: the column's kind; `version`: how the values are stored."""

    partition: str
    column: str
    source: Kind
    function: str
    option: str
    version: IndexVersion

    @property
    def name(self) -> str:
        """Another one for another expression, so that no values of an index that was dropped are taken for its own."""
        return f"{self.partition}={self.function}({self.column},{self.option})"

    @property
    def is_exact(self) -> bool:
        """Whether bounds are as tight as those that Hudi computes, whatever its time zone, but for letters beyond
        ASCII."""
        is_of_zone = self.source >= Kind.TIME_MILLIS or self.function == "from_unixtime"
        return not is_of_zone and self.function not in ("month", "day", "hour", "date_format")


@dataclass(frozen=True, slots=True)
class IndexedColumn:
    """A column with statistics: names joined by dots, as a path through structs. With an `expression` the values are
    those of a function, of this type."""

    name: str
    type: ValueType
    expression: Expression | None = None

    @property
    def path(self) -> str:
        """The column that is read."""
        return self.name if self.expression is None else self.expression.column


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


_TEXTS = ("lower", "upper", "trim", "ltrim", "rtrim")
_PARTS = ("year", "month", "day", "hour")
_TIME_FORMAT = re.compile("yyyy(?:[-/ ._]?MM(?:[-/ ._]?dd(?:[-/ ._]?HH(?:[-/:._]?mm(?:[-/:._]?ss)?)?)?)?)?")
"""Formats whose texts are in the order of their times."""
_OPTIONS = {"date_format": "format", "from_unixtime": "format", "date_add": "days", "date_sub": "days"}


def expressions_in(
    definitions: Mapping[str, Any], names: Collection[str], schema: TableSchema
) -> dict[str, IndexedColumn | None]:
    """The expression indexes among these partitions that stay exact after a change by phantombase, by partition: those
    with bounds that can be computed; None: one of bloom filters, of which a new file needs none. `schema`: of the rows;
    a column with a default has values in rows of files that lack it."""
    found: dict[str, IndexedColumn | None] = {}
    of_rows = schema.arrow
    there = frozenset(of_rows.names) - {path[0] for path, default in schema.defaults.items() if default is not None}
    for name in names:
        one, fields = definitions.get(name, {}), definitions.get(name, {}).get("sourceFields")
        if not name.startswith(EXPRESSION_INDEX) or not isinstance(fields, list) or len(fields) != 1:
            continue
        if one.get("indexType") == BLOOM_FILTERS:
            found[name] = None
        column, function, version = fields[0], one.get("indexFunction"), one.get("version", IndexVersion.V1.name)
        given = one.get("indexOptions") or {}
        if not isinstance(given, dict) or not all(isinstance(said, str) for said in (column, function, version)):
            continue
        options = {key: value for key, value in given.items() if key != "expr"}
        option = options.pop(_OPTIONS.get(function, ""), "")
        is_known = one.get("indexType") == COLUMN_STATS and version in IndexVersion.__members__ and not options
        if is_known and column in there and isinstance(option, str):
            source = of_rows.field(column).type
            if (type_ := _result(function, source, option)) is not None:
                said = Expression(
                    partition=name,
                    column=column,
                    source=_KINDS[source],
                    function=function,
                    option=option,
                    version=IndexVersion[version],
                )
                found[name] = IndexedColumn(said.name, type_, said)
    return found


def followed_expressions(table: Table, schema: TableSchema | None = None) -> tuple[str, ...]:
    """The expression indexes that stay exact after a change; `schema`: of its rows, None: the newest. MalformedError:
    damaged definitions."""
    names = [name for name in table.config.built_metadata_partitions if name.startswith(EXPRESSION_INDEX)]
    if names and schema is None:
        seen = table.with_timeline(table.load_timeline())
        schema = seen.newest_schema() if seen.timeline.completed_writes else None
    if not names or schema is None or schema.evolved is not None:
        return ()
    return tuple(expressions_in(definitions_in(stored_definitions(table.storage)), names, schema))


def _result(function: str, column: pa.DataType, option: str) -> ValueType | None:
    """The type of the values; None: a function whose bounds are not computed here."""
    of = pa.types
    is_time = of.is_date32(column) or (of.is_timestamp(column) and column in _KINDS)
    is_number = column in (pa.int32(), pa.int64())
    if function == "identity" and (is_number or of.is_string(column) or of.is_date32(column)):
        return ValueType.of(column)
    if function in _TEXTS and of.is_string(column):
        return ValueType(Kind.STRING)
    if (function == "length" and of.is_string(column)) or (function in _PARTS and is_time):
        return ValueType(Kind.INT)
    if function == "to_date" and is_time:
        return ValueType(Kind.DATE)
    if function in ("date_add", "date_sub") and of.is_date32(column) and re.fullmatch("-?[0-9]{1,6}", option):
        return ValueType(Kind.DATE)
    by_format = _TIME_FORMAT.fullmatch(option) is not None
    if (function == "date_format" and is_time and by_format) or (
        function == "from_unixtime" and is_number and (by_format or not option)
    ):
        return ValueType(Kind.STRING)
    return None


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
