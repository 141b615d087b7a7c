"""Requesting a compaction of a real table: the trigger, the size of a plan, and the gate of version 6."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.clock.now import clock_ms
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.locks.writer_gate import WANTED, read_wanted
from phantombase.timeline.planning.options import PLAN_NOW, ScheduleOptions
from phantombase.timeline.planning.schedule import Scheduled, schedule_compaction
from phantombase.timeline.planning.triggers import TriggerStrategy
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import check_no_strays, open_table, run_all
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.tables import one_of

DUE = ScheduleOptions(strategy=TriggerStrategy.NUM_COMMITS, max_delta_commits=1)
LATER = "20270101000000000"


def schedule(table: Table, options: ScheduleOptions) -> Scheduled:
    """Under a lock of this process."""
    return schedule_compaction(table, ProcessLock(table.storage.base_path), options)


def begin_write(table: Table) -> str:
    """A delta commit pends; the path of its file."""
    path = table.instant_path(Instant(requested_time=LATER, action="deltacommit", state=State.INFLIGHT))
    table.storage.put_if_absent(path, b"")
    return path


@one_of("name", "v9_plain", "v6_plain")
def test_a_plan_that_is_not_due_is_not_made_and_says_why(name: str, tmp_path: Path) -> None:
    """And leaves nothing behind."""
    table = open_table(unzip_golden(name, tmp_path))
    before = sorted(tmp_path.rglob("*"))
    found = schedule(table, replace(DUE, max_delta_commits=99))
    assert found.instant is None
    assert "of 99 delta commits since" in found.why
    assert sorted(tmp_path.rglob("*")) == before
    assert schedule(table, DUE).instant is not None


def test_pending_plans_are_limited(tmp_path: Path) -> None:
    """While one pends no second one is made, whatever could be planned."""
    table = open_table(unzip_golden("v9_pending", tmp_path))
    assert "the limit is 1" in schedule(table, replace(PLAN_NOW, max_pending=1)).why


@one_of("name", "v6_plain", "v9_plain")
def test_a_plan_closes_when_it_reaches_its_target(name: str, tmp_path: Path) -> None:
    """The first file group is always in it; the rest is planned next, and Hudi 1.2 is told where it lies."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    before = read_table(table)
    everything = schedule(open_table(unzip_golden(name, tmp_path / "other")), PLAN_NOW)
    assert everything.plan is not None
    left = {(o.partition_path, o.file_id): o for o in everything.plan.operations}
    assert len(left) > 1
    small = replace(PLAN_NOW, target_io_bytes=1)
    while left:
        plan = schedule(table, small).plan
        assert plan is not None
        (operation,) = plan.operations
        assert left.pop((operation.partition_path, operation.file_id)) == operation
        assert {partition for partition, _ in left} <= set(plan.missing_schedule_partitions or ())
    assert schedule(table, small).instant is None
    run_all(table)
    assert_same_rows(read_table(open_table(path)), before)
    check_no_strays(path)


def test_a_target_beyond_all_is_no_limit(tmp_path: Path) -> None:
    """The sum of what is read and written decides."""
    table = open_table(unzip_golden("v9_plain", tmp_path))
    plan = schedule(table, replace(PLAN_NOW, target_io_bytes=1 << 40)).plan
    assert plan is not None
    assert plan.missing_schedule_partitions == ()


def test_a_due_plan_in_whose_way_a_write_is_asks_writers_to_wait(tmp_path: Path) -> None:
    """Until the plan is made; then the record is gone."""
    table = open_table(unzip_golden("v6_plain", tmp_path))
    write = begin_write(table)
    found = schedule(table, DUE)
    assert found.instant is None
    assert LATER in found.why
    wanted = read_wanted(table.storage, clock_ms())
    assert wanted is not None
    assert wanted.holds(clock_ms())
    assert wanted.length_ms == 30_000
    table.storage.delete(write)
    assert schedule(table, DUE).instant is not None
    assert table.storage.find(WANTED) is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("v6_plain", PLAN_NOW),  # who asks once does not come back
        ("v6_plain", replace(DUE, gate_s=0)),
        ("v6_plain", replace(DUE, max_delta_commits=99)),
        ("v6_fresh_compacted", DUE),  # nothing to plan
        ("v9_plain", DUE),
    ],
)
def test_nobody_is_asked_to_wait_without_need(name: str, options: ScheduleOptions, tmp_path: Path) -> None:
    """Only a plan that is due, has something in it, and cannot be made."""
    path = unzip_golden("v6_plain" if name == "v6_fresh_compacted" else name, tmp_path)
    table = open_table(path)
    if name == "v6_fresh_compacted":
        schedule(table, PLAN_NOW)
        run_all(table)
        options = replace(options, strategy=TriggerStrategy.TIME_ELAPSED, max_delta_seconds=0)
    begin_write(table)
    schedule(table, options)
    assert table.storage.find(WANTED) is None


def test_options_of_the_command(tmp_path: Path) -> None:
    """`--trigger` asks first; without it the plan is made now."""
    path = str(unzip_golden("v9_plain", tmp_path))

    def said(*options: str) -> str:
        done = CliRunner().invoke(app, ["schedule", path, "--sole-writer", *options])
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    assert "of 99 delta commits" in said("--trigger", "num-commits", "--max-delta-commits", "99")
    assert "requested compaction" in said("--trigger", "num-commits", "--max-delta-commits", "1", "--target-io", "1k")
    assert "the limit is 1" in said("--max-pending", "1")
    assert "requested compaction" in said()
