"""Every type of a column, at any depth, in every kind of file: its values, or one line that refuses it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from phantombase import UnsupportedError, UsageError, read, writer
from phantombase.timeline.read.export import write_file

_FAR = 1 << 62
VALUES: tuple[tuple[pa.DataType, Any, Any], ...] = (
    (pa.bool_(), True, True),
    (pa.int64(), 7, 7),
    (pa.float32(), 0.1, 0.1),
    (pa.float64(), float("nan"), None),
    (pa.string(), "<value out of range: 1>", "<value out of range: 1>"),
    (pa.decimal128(38, 2), Decimal("1.50"), "1.50"),
    (pa.decimal256(50, 0), Decimal(10**49), "1" + "0" * 49),
    (pa.date32(), 20_000, "2024-10-04"),
    (pa.date32(), 1 << 30, str(1 << 30)),
    (pa.timestamp("us"), 1, "1970-01-01T00:00:00.000001"),
    (pa.timestamp("ms", "UTC"), -1, "1969-12-31T23:59:59.999Z"),
    (pa.timestamp("us"), 300_000_000_000_000_000, "11476-08-15T05:20:00.000000"),
    (pa.timestamp("us", "UTC"), _FAR, str(_FAR)),
    (pa.timestamp("ms", "UTC"), -_FAR, str(-_FAR)),
    (pa.time64("us"), 1, "00:00:00.000001"),
    (pa.time32("ms"), 86_400_000, "86400000"),
    (pa.binary(), b"x", UsageError),
    (pa.binary(2), b"xy", UsageError),
)
"""A type, a value of it (of times the number), and what JSON has for it."""

_Deep = Callable[[pa.Array], pa.Array]
DEPTHS: tuple[tuple[_Deep, Callable[[Any], Any]], ...] = (
    (lambda one: one, lambda value: value),
    (lambda one: pa.ListArray.from_arrays([0, 1, 3, 3], one.take([2, 0, 1])).slice(1), lambda value: [value, None]),
    (lambda one: pa.StructArray.from_arrays([one], ["f"]), lambda value: {"f": value}),
    (lambda one: pa.MapArray.from_arrays([0, 1, 2], ["k", "l"], one), lambda value: {"k": value}),
    (
        lambda one: pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 2], one)], ["f"]),
        lambda value: {"f": [value]},
    ),
)


def test_each_type_in_each_kind_of_file(tmp_path: Path) -> None:
    """A value and a null, and a list that begins amid its values."""
    for kind, value, wanted in VALUES:
        plain = pa.int32() if _is_time(kind) and kind.bit_width == 32 else pa.int64()
        leaf = (
            pa.array([value, None, None], plain).cast(kind) if _is_time(kind) else pa.array([value, None, None], kind)
        )
        for depth, (deep, shown) in enumerate(DEPTHS):
            column = deep(leaf if depth == 1 else leaf.slice(0, 2))
            table = pa.table({"c": column})
            for end in ("parquet", "arrow", "json", "csv"):
                file = tmp_path / f"out.{end}"
                refused = (end == "csv" and depth) or (end in ("csv", "json") and wanted is UsageError)
                if refused:
                    with pytest.raises(UsageError, match="cannot hold"):
                        write_file([table], table.schema, file)
                    continue
                write_file([table], table.schema, file)
                if end == "json":
                    lines = [json.loads(line) for line in file.read_text().splitlines()]
                    assert lines[0]["c"] == shown(wanted), (kind, depth)
                elif end == "csv":
                    _, first, second = csv.reader(file.open())
                    assert (first, second) == ([_in_csv(kind, wanted)], []), kind
                else:
                    found = pq.read_table(file) if end == "parquet" else pa.ipc.open_file(file).read_all()
                    same = found.column(0).cast(column.type).equals(table.column(0))
                    assert same or wanted is None, (kind, depth)  # a float without a number is unlike itself


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind))


def _in_csv(kind: pa.DataType, wanted: Any) -> str:
    if wanted is None:
        return "nan"
    return str(wanted).replace("T", " ") if pa.types.is_timestamp(kind) else str(wanted).lower()


def test_what_python_has_no_object_for(tmp_path: Path) -> None:
    """A time after the year 9999 ends a loop in one line; Arrow has it."""
    far = pa.array([_FAR]).cast(pa.timestamp("us", "UTC"))
    path = tmp_path / "t"
    writer(pa.table({"id": ["a"], "at": far})).table("t").key("id").upsert(path)
    rows = read(path, ["at"])
    assert rows.to_arrow().column(0).cast(pa.int64()).to_pylist() == [_FAR]
    with pytest.raises(UnsupportedError, match=f"no object for a value of the table; at {path}.*to_arrow"):
        list(rows)
