"""Trips: rows, writers of them, and a model in plain Python of what a table must read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from phantombase import Writer, writer
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.support.written_tables import Rows

SCHEMA = pa.schema(
    [("id", pa.string()), ("day", pa.string()), ("ts", pa.int64()), ("fare", pa.float64()), ("gone", pa.bool_())]
).set(4, pa.field("_hoodie_is_deleted", pa.bool_()))
DAYS = ("mon", "tue", "wed")


def rows(*given: tuple[int, int, float], deleted: bool | None = None) -> pa.Table:
    """(number, ts, fare) as rows; a number's day never changes."""
    made = [(f"k{n:04d}", DAYS[n % 3], ts, fare, deleted) for n, ts, fare in given]
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in made], SCHEMA)


def read(path: Path) -> dict[str, float]:
    """Key to fare; a key twice is an error."""
    table = read_table(Table.open(str(path)))
    keys = table.column("id").to_pylist()
    assert len(set(keys)) == len(keys), "doubled rows"
    assert table.column("_hoodie_record_key").to_pylist() == keys
    return dict(zip(keys, table.column("fare").to_pylist(), strict=True))


def trips(table: pa.Table, version: int, buckets: int | None = None) -> Writer:
    """A write of a table with event time."""
    described = writer(table).table("trips", version=version).key("id").partition("day").ordering("ts")
    return described.buckets(buckets) if buckets else described


@dataclass
class Model:
    """What the table must read: number -> (ts, fare); a delete by key forgets its time, one by mark keeps it."""

    live: dict[str, tuple[int, float]] = field(default_factory=dict)

    def upsert(self, table: pa.Table) -> None:
        best: dict[str, dict[str, Any]] = {}
        for row in table.to_pylist():
            if row["id"] not in best or row["ts"] >= best[row["id"]]["ts"]:
                best[row["id"]] = row
        for key, row in best.items():
            if key in self.live and row["ts"] < self.live[key][0]:
                continue
            if row["_hoodie_is_deleted"]:
                self.live.pop(key, None)
            else:
                self.live[key] = (row["ts"], row["fare"])

    def delete(self, table: pa.Table) -> None:
        for key in table.column("id").to_pylist():
            self.live.pop(key, None)

    def fares(self) -> dict[str, float]:
        return {key: fare for key, (_, fare) in self.live.items()}


BEFORE: Rows = {f"k{n:04d}": (10, 1.0) for n in (0, 3, 1, 4)} | {"k0003": (11, 2.0)}
NEXT = rows(*((n, 30, 4.0) for n in (0, 1, 2, 8)))
AFTER: Rows = {f"k{n:04d}": (30, 4.0) for n in (0, 1, 2, 8)}
