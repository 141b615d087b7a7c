"""Tables of very many columns: what they cost grows with their number, not with its square."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import ExecuteOptions, Executor, compact, read, schedule, writer
from tests.support.selection import deep

FEW, MANY = 300, 4 * 300
MOST, TIMES = 5, 9
"""Four times the columns may take five times the calls, nine times the time; the square takes sixteen."""


def batch(columns: int, rows: int, ts: int) -> pa.Table:
    kinds = [pa.float64(), pa.int64(), pa.string(), pa.bool_()]
    values = {f"c{n}": pa.array([n % 2] * rows, pa.int64()).cast(kinds[n % 4]) for n in range(columns)}
    return pa.table({"id": [f"k{n}" for n in range(rows)], "ts": [ts] * rows} | values)


def calls(do: Callable[[], object]) -> float:
    """How many calls of this thread it takes: the same number each time, on a busy machine too."""
    found = 0

    def seen(_frame: object, event: str, _argument: object) -> None:
        nonlocal found
        found += event.endswith("call")

    sys.setprofile(seen)
    try:
        do()
    finally:
        sys.setprofile(None)
    return found


def seconds(do: Callable[[], object]) -> float:
    start = time.process_time()
    do()
    return max(0.05, time.process_time() - start)  # below it a time says nothing


def costs(
    columns: int, version: int, log: str, path: str, cost: Callable[[Callable[[], object]], float]
) -> dict[str, float]:
    """What each path costs on a table of so many columns."""
    described = writer(batch(columns, 20, 1)).table("t", version=version).key("id").ordering("ts")
    newer = writer(batch(columns, 5, 2)).conf({"hoodie.logfile.data.block.format": log})
    took = {
        "bulk_insert": cost(lambda: described.bulk_insert(path)),
        "upsert": cost(lambda: newer.upsert(path)),
        "read": cost(lambda: read(path).to_arrow()),
        "filter": cost(lambda: read(path, filter="ts = 2").to_arrow()),
        "increment": cost(lambda: read(path, query="incremental", begin="earliest").to_arrow()),
        "schedule": cost(lambda: schedule(path)),
        "compact": cost(lambda: compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))),
        "read again": cost(lambda: read(path).to_arrow()),
    }
    assert read(path, ["ts"]).to_arrow()["ts"].to_pylist().count(2) == 5
    return took


def above(most: int, few: dict[str, float], many: dict[str, float]) -> dict[str, float]:
    return {what: many[what] / few[what] for what in many if many[what] > most * few[what]}


@pytest.mark.parametrize(("version", "log"), [(9, "parquet"), deep(9, "avro"), deep(6, "avro")])
def test_what_each_path_calls(version: int, log: str, tmp_path: Path) -> None:
    costs(8, version, log, str(tmp_path / "t"), seconds)  # loads what is needed
    few, many = (costs(columns, version, log, str(tmp_path / f"t{columns}"), calls) for columns in (FEW, MANY))
    assert not above(MOST, few, many), (few, many)


@pytest.mark.deep
@pytest.mark.parametrize(("version", "log"), [(9, "parquet"), (9, "avro"), (6, "avro")])
def test_what_each_path_costs(version: int, log: str, tmp_path: Path) -> None:
    """Loops below a call, too. Other work only makes a time longer: the least of some tries counts."""
    few: dict[str, float] = {}
    many: dict[str, float] = {}
    for turn in range(5):
        for columns, least in ((FEW, few), (MANY, many)):
            for what, cost in costs(columns, version, log, str(tmp_path / f"t{columns}-{turn}"), seconds).items():
                least[what] = min(cost, least.get(what, cost))
        if turn and not above(TIMES, few, many):
            return
    assert not above(TIMES, few, many), (few, many)
