"""Random filters over the columns of a table: texts whose values are mostly values of the table, or beside them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

_OPS = ("=", "!=", "<>", "<", "<=", ">", ">=")
_DEPTH_MAX = 3


def random_filter(random: Random, rows: pa.Table, depth: int = 0) -> str:
    """A condition as `parse_filter` takes it, and as DuckDB does if `X'00'` becomes `from_hex('00')`."""
    kind = random.random()
    if depth < _DEPTH_MAX and kind < 0.25:
        parts = [random_filter(random, rows, depth + 1) for _ in range(random.randint(2, 3))]
        return f"({random.choice((' and ', ' or ')).join(parts)})"
    if depth < _DEPTH_MAX and kind < 0.35:
        return f"not ({random_filter(random, rows, depth + 1)})"
    name = random.choice([f.name for f in rows.schema if not pa.types.is_nested(f.type)])
    return _condition(random, f'"{name}"', rows.column(name))


def _condition(random: Random, name: str, column: pa.ChunkedArray) -> str:
    kind = random.random()
    if kind < 0.1:
        return f"{name} is {random.choice(('', 'not '))}null"
    if pa.types.is_string(column.type) and kind < 0.25:
        return f"{name} {random.choice(('', 'not '))}like {_pattern(random, _value(random, column))}"
    if kind < 0.35:
        values = ", ".join(_literal(_value(random, column), column.type) for _ in range(random.randint(1, 4)))
        return f"{name} {random.choice(('', 'not '))}in ({values})"
    if kind < 0.45:
        ends = [_literal(_value(random, column), column.type) for _ in range(2)]
        return f"{name} {random.choice(('', 'not '))}between {ends[0]} and {ends[1]}"
    return f"{name} {random.choice(_OPS)} {_literal(_value(random, column), column.type)}"


def _value(random: Random, column: pa.ChunkedArray) -> Any:
    """A value of the column, at times the next one, or the type's zero if the column has none."""
    value = column[random.randrange(len(column))].as_py() if len(column) else None
    if value is None or (isinstance(value, float) and value != value):
        return _ZERO[_family(column.type)]
    if isinstance(value, str) and random.random() < 0.2:
        return value + "a"
    if isinstance(value, int | Decimal) and not isinstance(value, bool) and -(2**30) < value < 2**30:
        return value + random.choice((-1, 0, 0, 0, 0, 1))
    return value


_ZERO: dict[str, Any] = {
    "text": "",
    "bytes": b"",
    "bool": True,
    "number": 0,
    "date": date(2024, 1, 1),
    "moment": datetime(2024, 1, 1),
}


def _family(kind: pa.DataType) -> str:
    if pa.types.is_string(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytes"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "moment"
    return "bool" if pa.types.is_boolean(kind) else "number"


def _literal(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{Decimal(value):f}"
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return f"'{moment.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"date '{value.isoformat()}'"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _pattern(random: Random, value: str) -> str:
    at = random.randint(0, len(value))
    text = random.choice((value[:at] + "%", "%" + value[at:], value[:at] + "_" + value[at + 1 :], value))
    return _literal(text.replace("\\", ""), pa.string())
