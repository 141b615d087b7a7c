"""Tables of very many columns: what they cost grows with their number, not with its square."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import ExecuteOptions, Executor, compact, read, schedule, writer
from tests.support.selection import deep

FEW, MANY, MOST = 300, 4 * 300, 9
"""Four times the columns may take nine times as long, for the machine may be busy; the square is sixteen."""


def batch(columns: int, rows: int, ts: int) -> pa.Table:
    kinds = [pa.float64(), pa.int64(), pa.string(), pa.bool_()]
    values = {f"c{n}": pa.array([n % 2] * rows, pa.int64()).cast(kinds[n % 4]) for n in range(columns)}
    return pa.table({"id": [f"k{n}" for n in range(rows)], "ts": [ts] * rows} | values)


def cost(do: Callable[[], object]) -> float:
    start = time.process_time()
    do()
    return time.process_time() - start


@pytest.mark.parametrize(("version", "log"), [(9, "parquet"), deep(9, "avro"), deep(6, "avro")])
def test_what_each_path_costs(version: int, log: str, tmp_path: Path) -> None:
    took: dict[int, dict[str, float]] = {}
    for columns in (8, FEW, MANY):  # the first one only loads what is needed
        path = str(tmp_path / f"t{columns}")
        described = writer(batch(columns, 20, 1)).table("t", version=version).key("id").ordering("ts")
        newer = writer(batch(columns, 5, 2)).conf({"hoodie.logfile.data.block.format": log})
        took[columns] = {
            "bulk_insert": cost(lambda d=described, p=path: d.bulk_insert(p)),  # type: ignore[misc]
            "upsert": cost(lambda n=newer, p=path: n.upsert(p)),  # type: ignore[misc]
            "read": cost(lambda p=path: read(p).to_arrow()),  # type: ignore[misc]
            "filter": cost(lambda p=path: read(p, filter="ts = 2").to_arrow()),  # type: ignore[misc]
            "increment": cost(lambda p=path: read(p, query="incremental", begin="earliest").to_arrow()),  # type: ignore[misc]
            "schedule": cost(lambda p=path: schedule(p)),  # type: ignore[misc]
            "compact": cost(lambda p=path: compact(p, execute=ExecuteOptions(executor=Executor.LOCAL))),  # type: ignore[misc]
            "read again": cost(lambda p=path: read(p).to_arrow()),  # type: ignore[misc]
        }
        assert read(path, ["ts"]).to_arrow()["ts"].to_pylist().count(2) == 5
    least = 0.05  # below it a cost says nothing
    ratios = {what: took[MANY][what] / max(least, took[FEW][what]) for what in took[MANY]}
    assert not {what: ratio for what, ratio in ratios.items() if ratio > MOST}, took
