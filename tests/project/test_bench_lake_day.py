"""`bench.lake_day`: a short day of a small lake keeps the rules, and the docs show the recorded one."""

from __future__ import annotations

import json

import pytest

from bench.day_page import LAKE, LAKE_MARK, LAKE_PICTURE, LAKE_RECORD, lake_picture, lake_table
from bench.lake_day import play
from bench.report import with_part


@pytest.mark.deep
def test_two_hours_of_six_tables() -> None:
    """No row is lost or doubled (`Lake.verify`); lags are within the goals, and shown as they are; the sick table is
    named, and no other one; what the lost daemon had begun is completed by others."""
    lake, history = play(6, 2.0)
    assert lake.counts["verified"] == 6
    assert max(lag / table.goal_s for _, table, lag in lake.lags if table is not lake.sick) <= 1
    assert lake.wrong_lag_s < 1
    assert lake.found_s == 0
    assert [one.partition(":")[0] for one in lake.sick_findings] == ["cannot-be-merged"]
    assert {name for name, _ in lake.unwell} <= {lake.sick.name}
    assert lake.taken_over
    assert all(at is not None and at - lake.lost_s < 1200 for at in lake.taken_over.values())
    assert history.num_rows == sum(lake.by.values())
    assert set(history["kind"].to_pylist()) == {"compaction"}


def test_the_page_shows_the_record() -> None:
    """`python -m bench.lake_day --record` writes all three."""
    document = json.loads(LAKE_RECORD.read_text())
    assert with_part(LAKE.read_text(), LAKE_MARK, lake_table(document)) == LAKE.read_text()
    assert lake_picture(document) == LAKE_PICTURE.read_text()
