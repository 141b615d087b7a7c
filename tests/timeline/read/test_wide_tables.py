"""Tables of very many columns: what they cost grows with their number, not with its square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import ExecuteOptions, Executor, compact, read, schedule, writer
from tests.support.selection import deep

FEW, MANY = 300, 4 * 300
MOST = 5
"""Four times the columns may take five times the steps; the square takes sixteen."""


def batch(columns: int, rows: int, ts: int) -> pa.Table:
    kinds = [pa.float64(), pa.int64(), pa.string(), pa.bool_()]
    values = {f"c{n}": pa.array([n % 2] * rows, pa.int64()).cast(kinds[n % 4]) for n in range(columns)}
    return pa.table({"id": [f"k{n}" for n in range(rows)], "ts": [ts] * rows} | values)


def steps(do: Callable[[], object]) -> int:
    """How many calls and lines of this thread it takes: the same number each time, on a busy machine too."""
    found = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal found
        found += event.endswith("call")

    def traced(_frame: object, event: str, _argument: object) -> object:
        nonlocal found
        found += event == "line"
        return traced

    before = sys.gettrace()
    sys.setprofile(called)
    sys.settrace(traced)  # type: ignore[arg-type]
    try:
        do()
    finally:
        sys.settrace(before)
        sys.setprofile(None)
    return found


def costs(columns: int, version: int, log: str, path: str) -> dict[str, int]:
    """What each path costs on a table of so many columns."""
    described = writer(batch(columns, 20, 1)).table("t", version=version).key("id").ordering("ts")
    newer = writer(batch(columns, 5, 2)).conf({"hoodie.logfile.data.block.format": log})
    found = {
        "bulk_insert": steps(lambda: described.bulk_insert(path)),
        "upsert": steps(lambda: newer.upsert(path)),
        "read": steps(lambda: read(path).to_arrow()),
        "filter": steps(lambda: read(path, filter="ts = 2").to_arrow()),
        "increment": steps(lambda: read(path, query="incremental", begin="earliest").to_arrow()),
        "schedule": steps(lambda: schedule(path, sole_writer=True)),
        "compact": steps(lambda: compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))),
        "read again": steps(lambda: read(path).to_arrow()),
    }
    assert read(path, ["ts"]).to_arrow()["ts"].to_pylist().count(2) == 5
    return found


@pytest.mark.parametrize(("version", "log"), [(9, "parquet"), deep(9, "avro"), deep(6, "avro")])
def test_what_each_path_costs(version: int, log: str, tmp_path: Path) -> None:
    """Loops below a call, too."""
    costs(8, version, log, str(tmp_path / "t"))  # loads what is needed
    few, many = (costs(columns, version, log, str(tmp_path / f"t{columns}")) for columns in (FEW, MANY))
    assert {what: many[what] / few[what] for what in many if many[what] > MOST * few[what]} == {}, (few, many)
