"""A table of version 6 that Hudi upgraded while a compaction was pending, with log files written since its request.

`tests/golden/more/v9_upgraded_with_plan.zip`: 0.15.0 wrote keys a to h twice, requested a compaction, wrote a, d, h and
b, c onto it; 1.2.0 upgraded the table with an upsert of a, then upserted d, g, h, and deleted q. The log files on the
plan are named after it. 1.2.0 reads the rows in them only after the compaction; 0.15.0 read them before."""

from __future__ import annotations

from pathlib import Path

from phantombase import ExecuteOptions, Executor, compact, read
from tests.support.golden_tables import unzip_golden

ROWS = ["a up", "b 4", "c 4", "d None", "e 1", "g up2", "h None", "z 2"]


def test_no_row_on_the_plan_is_lost(tmp_path: Path) -> None:
    path = str(tmp_path / unzip_golden("more/v9_upgraded_with_plan", tmp_path).name)
    before = read(path).to_arrow()
    compact(path, execute=ExecuteOptions(executor=Executor.LOCAL))
    after = read(path).to_arrow()
    assert list(tmp_path.glob("*/x/*_20261130111231513.parquet"))
    for rows in (before, after):
        assert sorted(f"{row['id']} {row['v']}" for row in rows.to_pylist()) == ROWS
