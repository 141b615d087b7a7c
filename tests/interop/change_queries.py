"""What Hudi's CDC query says of each write of a table."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeAlias

import pyarrow as pa

from tests.judge.client import Judge
from tests.judge.table_files import TablePath

Row: TypeAlias = dict[str, Any]
Change: TypeAlias = tuple[str, str, str | None, str | None]
"""What was done, the record key, and the row before and after as JSON."""

CAPTURED: dict[str, object] = {"hoodie.table.cdc.enabled": "true"}
_CDC = {"hoodie.datasource.query.incremental.format": "cdc", "hoodie.datasource.read.begin.instanttime": "0"}


def changes_of(judge: Judge, path: TablePath) -> dict[str, list[Change]]:
    """By instant, all that Hudi tells from the beginning of the active timeline on."""
    found = defaultdict[str, list[Change]](list)
    for row in judge.read(path, query="incremental", options=_CDC).to_pylist():
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
