"""Windows in Spark, under this source's names and under Hudi's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from tests.support.compaction_steps import open_table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden

pytestmark = pytest.mark.spark


def test_a_window(spark: Any, tmp_path: Path) -> None:
    """The rows are those that a read without Spark gives."""
    path = unzip_golden("v9_event_time", tmp_path)
    timeline = open_table(path).load_timeline()
    begin, end = (timeline.moment_of(timeline.completed[i]) for i in (0, 2))
    expected = read_table(open_table(path), ReadOptions(query=Query.INCREMENTAL, begin=begin, end=end))
    assert expected.num_rows > 0
    hudi = {
        "hoodie.datasource.query.type": "incremental",
        "hoodie.datasource.read.begin.instanttime": begin,
        "hoodie.datasource.read.end.instanttime": end,
        "hoodie.datasource.read.incr.fallback.fulltablescan.enable": "false",
    }
    for options in (hudi, {"query": "incremental", "begin": begin, "end": end}):
        frame = spark.read.format("phantombase").options(**options).load(str(path))
        assert_same_rows(frame.toArrow(), expected)
        assert frame.select("id").count() == expected.num_rows
