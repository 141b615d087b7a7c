"""Expression indexes: of the values of a Spark function of one column, with bounds that hold for each reader.

The records are those of column statistics. The definition says the function, its options, and the version of the values
(`record_index`). Bounds hold whatever the time zone of the session that computes the function, or asks: a day is added
to both sides of a time, more than any zone is away, and as much as one has left out (2011-12-30 in Samoa: texts of that
date are of the next). Texts are in the same order by UTF-8 and UTF-16 without characters above U+FFFF; with one the
bounds are unknown. Only ASCII letters have the same case in each Java. Times in years with another calendar, or with
other than four digits, have the widest bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..table.table import Table, TableSchema
from .index_definitions import definitions_in, stored_definitions
from .indexed_columns import IndexedColumn, IndexVersion, Kind, Value, ValueType
from .records.keys import BLOOM_FILTERS, COLUMN_STATS, EXPRESSION_INDEX

_TEXTS = ("lower", "upper", "trim", "ltrim", "rtrim")
_PARTS = ("year", "month", "day", "hour")
_TIME_FORMAT = re.compile("yyyy(?:[-/ ._]?MM(?:[-/ ._]?dd(?:[-/ ._]?HH(?:[-/:._]?mm(?:[-/:._]?ss)?)?)?)?)?")
"""Formats whose texts are in the order of their times."""
_OPTIONS = {"date_format": "format", "from_unixtime": "format", "date_add": "days", "date_sub": "days"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression(IndexedColumn):
    """What an expression index says: a `function` of a `column`, with its one option besides (a format, or days).
    `name`: another one for another expression, so that no values of an index that was dropped are taken for its own;
    `type`: of the function's values. `partition`: of the metadata table; `source`: the column's kind; `version`: how
    the values are stored."""

    partition: str
    column: str
    source: Kind
    function: str
    option: str
    version: IndexVersion

    @property
    def path(self) -> str:
        return self.column

    @property
    def is_exact(self) -> bool:
        """Whether bounds are as tight as those that Hudi computes, whatever its time zone, but for letters beyond
        ASCII."""
        is_of_zone = self.source >= Kind.TIME_MILLIS or self.function == "from_unixtime"
        return not is_of_zone and self.function not in ("month", "day", "hour", "date_format")


def expressions_in(
    definitions: Mapping[str, Any], names: Collection[str], schema: TableSchema
) -> dict[str, Expression | None]:
    """The expression indexes among these partitions that stay exact after a change by phantombase, by partition: those
    with bounds that can be computed; None: one of bloom filters, of which a new file needs none. `schema`: of the rows;
    a column with a default has values in rows of files that lack it."""
    found: dict[str, Expression | None] = {}
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
            if (of_column := ValueType.of(source)) and (type_ := _result(function, source, option)):
                found[name] = Expression(
                    name=f"{name}={function}({column},{option})",
                    type=type_,
                    partition=name,
                    column=column,
                    source=of_column.kind,
                    function=function,
                    option=option,
                    version=IndexVersion[version],
                )
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
    is_time = of.is_date32(column) or (of.is_timestamp(column) and ValueType.of(column) is not None)
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


_TRIMS: Mapping[str, Callable[..., pa.Array]] = {"trim": pc.utf8_trim, "ltrim": pc.utf8_ltrim, "rtrim": pc.utf8_rtrim}
_LETTERS: Mapping[str, Callable[..., pa.Array]] = {"lower": pc.ascii_lower, "upper": pc.ascii_upper}
LAST_TEXT, _BEYOND = "\uffff", r"[\x{FFFF}-\x{10FFFF}]"
"""The widest upper bound of texts; characters with which bounds are unknown."""
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_EPOCH, _DAY_S = datetime(1970, 1, 1), 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_ZONES_S = _DAY_S
_FIRST_S, _LAST_S = (int((datetime(year, 1, 1) - _EPOCH).total_seconds()) for year in (1583, 9999))
_WIDEST: Mapping[str, tuple[Value, Value]] = {
    "year": (_INT_MIN, _INT_MAX),
    "month": (1, 12),
    "day": (1, 31),
    **dict.fromkeys(("date_format", "from_unixtime"), ("", LAST_TEXT)),
}
_FORMATS = {"yyyy": "{:%Y}", "MM": "{:%m}", "dd": "{:%d}", "HH": "{:%H}", "mm": "{:%M}", "ss": "{:%S}"}


def bounds_of(said: Expression, array: pa.Array) -> tuple[Value, Value] | None:
    """Bounds of the function's values, of an array with a value; None: unknown."""
    of, type_ = pa.types, array.type
    is_text = of.is_string(type_) or of.is_large_string(type_)
    if said.source is Kind.STRING:
        return _of_texts(said.function, array.cast(pa.string())) if is_text else None
    is_alike = {Kind.DATE: of.is_date32, Kind.INT: of.is_integer, Kind.LONG: of.is_integer}
    if not is_alike.get(said.source, of.is_timestamp)(type_):
        return None  # of a file from before the column's type was changed
    bounds = pc.min_max(array.cast(pa.int32() if pa.types.is_date32(array.type) else pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if said.function == "identity":
        return low, high
    if said.function in ("date_add", "date_sub"):
        days = int(said.option) * (1 if said.function == "date_add" else -1)
        low, high = low + days, high + days
        return (low, high) if low >= _INT_MIN and high <= _INT_MAX else None
    if pa.types.is_date32(array.type):
        if said.function == "to_date":
            return low, high
        days = 2 if said.function == "date_format" else 1
        low, high = low * _DAY_S, (high + days) * _DAY_S - 1
    else:
        unit = _PER_SECOND[array.type.unit] if pa.types.is_timestamp(array.type) else 1
        low, high = low // unit - _ZONES_S, high // unit + _ZONES_S
    is_usual = low >= _FIRST_S and high < _LAST_S
    return _of_times(said, *(_EPOCH + timedelta(seconds=s) if is_usual else None for s in (low, high)))


def _of_texts(function: str, texts: pa.Array) -> tuple[Value, Value] | None:
    if function == "length":
        values = pc.utf8_length(texts)
    elif pc.any(pc.match_substring_regex(texts, _BEYOND)).as_py():
        return None
    elif function in _LETTERS:
        if not pc.all(pc.string_is_ascii(texts)).as_py():
            return "", LAST_TEXT
        values = _LETTERS[function](texts)
    else:
        values = _TRIMS[function](texts, characters=" ") if function in _TRIMS else texts
    ends = pc.min_max(values)
    return ends["min"].as_py(), ends["max"].as_py()


def _of_times(said: Expression, first: datetime | None, last: datetime | None) -> tuple[Value, Value] | None:
    """Of all times between the two; None: in unusual years."""
    if said.function == "hour":
        return 0, 23
    if first is None or last is None:
        return _WIDEST.get(said.function)
    if said.function == "month":
        return (first.month, last.month) if first.year == last.year else (1, 12)
    if said.function == "day":
        return (first.day, last.day) if (first.year, first.month) == (last.year, last.month) else (1, 31)
    if said.function == "year":
        return first.year, last.year
    if said.function == "to_date":
        return (first - _EPOCH).days, (last - _EPOCH).days
    text = said.option or "yyyy-MM-dd HH:mm:ss"
    for part, format_ in _FORMATS.items():
        text = text.replace(part, format_)
    return tuple(text.format(*[one] * len(_FORMATS)) for one in (first, last))  # type: ignore[return-value]
