"""From end to end on the PySpark that is installed: Spark writes, Spark's executor compacts, Spark's source reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phantombase import ReadOptions, Table, read_table
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.read.table_read import Query
from tests.support.compare_rows import assert_same_rows
from tests.support.selection import deep
from tests.support.trips import rows, trips

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("version", [deep(9), deep(6)])
def test_written_compacted_and_read_by_spark(spark: Any, version: int, tmp_path: Path) -> None:
    path = str(tmp_path / "trips")
    ones = [(n, 1, n / 7) for n in range(300)]
    twos = [(n, 2, 2.0) for n in range(0, 400, 3)]
    trips(spark.createDataFrame(rows(*ones)), version, 2).upsert(path)
    update = trips(spark.createDataFrame(rows(*twos)), version, 2)
    assert update.schedule(strategy=TriggerStrategy.ALWAYS).upsert(path).after.scheduled
    wanted = read_table(path)

    command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "compact", path, "--executor", "spark"]
    options = ["--master", "local[2]", "--sole-writer", "--json"]
    compacted = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300, check=False)
    assert compacted.returncode == 0, compacted.stderr[-3000:]
    assert json.loads(compacted.stdout)
    assert not Table.open(path).load_timeline().pending_compactions

    read = spark.read.format("phantombase")
    assert_same_rows(read.load(path).toArrow(), wanted)
    base_files = read.option("hoodie.datasource.query.type", "read_optimized").load(path).toArrow()
    assert_same_rows(base_files, read_table(path, ReadOptions(query=Query.READ_OPTIMIZED)))
    assert_same_rows(base_files, wanted)
