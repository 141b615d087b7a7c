"""What Hudi's CDC query says of each write of a table."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import Judge
from tests.hudi.judge.table_files import TablePath

Row: TypeAlias = dict[str, Any]
Change: TypeAlias = tuple[str, str, str | None, str | None]
"""What was done, the record key, and the row before and after as JSON."""
CAPTURED: dict[str, object] = {"hoodie.table.cdc.enabled": "true"}


def changes_of(judge: Judge, path: TablePath, begin: str = "0") -> dict[str, list[Change]]:
    """By instant, all that Hudi tells of the active timeline behind `begin`."""
    options = {"hoodie.datasource.query.incremental.format": "cdc", "hoodie.datasource.read.begin.instanttime": begin}
    found = defaultdict[str, list[Change]](list)
    for row in judge.read(path, query="incremental", options=options).to_pylist():
        before, after = (json.loads(row[side]) if row[side] else None for side in ("before", "after"))
        key = str({**(after or {}), **(before or {})}["id"])
        found[row["ts_ms"]].append((row["op"], key, _plain(before), _plain(after)))
    return {instant: sorted(changes, key=str) for instant, changes in found.items()}


def rows_of(numbers: Iterable[int], mark: str, ts: int) -> pa.Table:
    """Rows whose values say where they come from."""
    rows = [
        {"id": f"k{n:03d}", "p": "north" if n % 2 else "south", "name": f"{mark}-{n}", "n": n * ts, "ts": ts}
        for n in numbers
    ]
    return pa.Table.from_pylist(rows)


def _plain(row: Row | None) -> str | None:
    if row is None:
        return None
    return json.dumps({k: v for k, v in row.items() if not k.startswith("_hoodie")}, sort_keys=True)


def differences(before: Mapping[Any, Row], after: Mapping[Any, Row]) -> list[Change]:
    """What leads from one state to the next; their rows by anything that has one row each."""
    found: list[Change] = []
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old != new:
            operation = "i" if old is None else "d" if new is None else "u"
            found.append((operation, (old or new or {})["id"], _plain(old), _plain(new)))
    return sorted(found, key=str)


SIMPLE: dict[str, object] = {**CAPTURED, "hoodie.index.type": "SIMPLE"}


def made(judge: Judge, path: Path, version: int, options: dict[str, object]) -> SharedTable:
    """By Hudi: with a base file written anew, which has a `.cdc` file, and log files."""
    table = SharedTable(judge=judge, path=path, version=version, options=options)
    table.create(rows_of(range(12), "first", 1))
    table.upsert(rows_of(range(0, 20, 2), "second", 2))
    table.delete(rows_of([1, 6], "gone", 3))
    table.upsert(rows_of([0, 3, 21], "fourth", 4))
    return table
