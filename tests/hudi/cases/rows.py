"""Seeded random rows in columns of every type, for tables that both we and real Hudi work on."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.support.compare_rows import assert_same_rows

__all__ = ["DECIMAL", "PARTITIONS", "SCHEMA", "Rows", "key", "keys", "partition", "same", "without_files"]

PARTITIONS = ("north", "south", "süd-west")
DECIMAL = "price"
"""Hudi 0.15's own compaction spoils it where clustering or bulk insert had written it (hudi-format.md 13)."""

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("ts", pa.int64()),
        ("number", pa.int32()),
        ("ratio", pa.float64()),
        ("weight", pa.float32()),
        (DECIMAL, pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("seen", pa.timestamp("us", tz="UTC")),
        ("raw", pa.binary()),
        ("open", pa.bool_()),
        ("text", pa.string()),
        ("place", pa.struct([("x", pa.int32()), ("label", pa.string())])),
        ("tags", pa.list_(pa.string())),
        ("sizes", pa.map_(pa.string(), pa.int64())),
    ]
)
_KEY_STARTS = ("", "ключ-", "\U0001f600", "ﷺ", "a b/")
_TEXTS = ("", "a", "long " * 30, "Grüße", "数据", "\U0001f600", 'quote " and \\', "new\nline", "a,b=c/d")
_DOUBLES = (0.0, 1.5, -2.25, 1e300, -5e-324, math.inf, -math.inf, math.nan)
_FLOATS = (0.0, 0.1, -2.25, 1e30, math.inf, math.nan)


def key(number: int) -> str:
    """The record key of a number; some are outside ASCII, and UTF-16 orders those otherwise than UTF-8."""
    return f"{_KEY_STARTS[number % len(_KEY_STARTS)]}{number:05d}"


def keys(numbers: Iterable[int]) -> set[str]:
    """Their record keys."""
    return {key(number) for number in numbers}


def partition(number: int) -> str:
    """The partition a key lies in for ever."""
    return PARTITIONS[number % 7 % len(PARTITIONS)]


def same(ours: pa.Table, hudis: pa.Table) -> None:
    """Fails with the first difference. The entries of a map have no order: Hudi's writers change it."""
    assert_same_rows(_with_sorted_maps(ours), _with_sorted_maps(hudis))


def without_files(rows: pa.Table) -> pa.Table:
    """Rows without the name of the file they lie in, where they have it."""
    return rows.select([name for name in rows.schema.names if name != "_hoodie_file_name"])


def _with_sorted_maps(table: pa.Table) -> pa.Table:
    for index, column in enumerate(table.schema):
        if pa.types.is_map(column.type):
            maps = [value and sorted(value) for value in table.column(index).to_pylist()]
            table = table.set_column(index, column.name, pa.array(maps, column.type))
    return table


class Rows:
    """A source of rows: equal seeds give equal rows in equal calls. `columns`: all by default."""

    def __init__(self, seed: int, columns: Sequence[str] | None = None) -> None:
        self.random = random.Random(seed)
        self.columns = tuple(columns or SCHEMA.names)

    def __call__(self, numbers: Iterable[int], ts: int | Sequence[int]) -> pa.Table:
        """One row for each number. `ts`: of all rows, or to pick from for each."""
        rows = [self._row(number, ts if isinstance(ts, int) else self.random.choice(ts)) for number in numbers]
        return pa.Table.from_pylist(rows, SCHEMA).select(list(self.columns))

    def _row(self, number: int, ts: int) -> dict[str, Any]:
        pick = self.random
        row: dict[str, Any] = {
            "number": pick.randint(-(2**31), 2**31 - 1),
            "ratio": pick.choice((*_DOUBLES, pick.random())),
            "weight": pick.choice(_FLOATS),
            DECIMAL: Decimal(pick.randint(-(10**12) + 1, 10**12 - 1)).scaleb(-2),
            "day": date(1970, 1, 1) + timedelta(days=pick.randint(-20_000, 40_000)),
            "seen": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=pick.randint(-(10**15), 4 * 10**15)),
            "raw": pick.randbytes(pick.randint(0, 9)),
            "open": pick.random() < 0.5,
            "text": pick.choice(_TEXTS),
            "place": {"x": pick.choice((None, pick.randint(-9, 9))), "label": pick.choice((None, *_TEXTS))},
            # Not null inside: real writers fail on null elements of lists.
            "tags": [pick.choice(_TEXTS) for _ in range(pick.randint(0, 3))],
            "sizes": {
                name: pick.choice((None, pick.getrandbits(40))) for name in pick.sample("xyzé", pick.randint(0, 3))
            },
        }
        row = {name: None if pick.random() < 0.1 else value for name, value in row.items()}
        sizes = row["sizes"]
        return {**row, "id": key(number), "p": partition(number), "ts": ts, "sizes": sizes and list(sizes.items())}
