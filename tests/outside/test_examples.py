"""The examples of deploy/examples run as they stand, and leave a table that reads right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.support.places import ROOT
from tests.support.selection import deep

EXAMPLES = ROOT / "deploy/examples"
NAMES = sorted(p.stem for p in EXAMPLES.glob("*.py") if p.stem != "rides")
USUAL = ("async_in_job", "streaming")
"""A job of batches and a query; each of the others has a part of the first."""
COMPACTS = {"inline", "async_in_job", "streaming"}


@pytest.mark.spark
@pytest.mark.parametrize("name", [name if name in USUAL else deep(name) for name in NAMES])
def test_example(name: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "rides"), *([str(tmp_path / "checkpoint")] if name == "streaming" else [])]
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    table = Table.open(arguments[0])
    rows = read_table(table)
    last = {"write_only": 4, "schedule_only": 5, "inline": 5, "async_in_job": 8}.get(name)
    if last is not None:
        assert rows.num_rows == 1000 + last * 10
        assert max(rows["ts"].to_pylist()) == last
    else:
        assert rows.num_rows == 100
    timeline = table.load_timeline()
    assert bool([i for i in timeline.instants if i.action == "commit"]) is (name in COMPACTS)
    # What is requested at the very end is left to the next compactor; so is what a query was at when it was stopped.
    if name not in ("async_in_job", "streaming"):
        assert bool(timeline.pending_compactions) is (name == "schedule_only")
