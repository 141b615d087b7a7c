"""Our trigger fires exactly when real Hudi schedules: `hoodie.compact.schedule.inline`, and its own procedure."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import PLAN_NOW, ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.planning.triggers import TriggerStrategy, triggered
from tests.hudi.cases.rows import Rows
from tests.hudi.cases.shared_table import EVENT_TIME, SharedTable
from tests.hudi.judge.client import Judge
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop
S = TriggerStrategy
ROWS = Rows(seed=11)
LONG_S = 3600
_INLINE = (S.NUM_COMMITS, S.NUM_COMMITS_AFTER_LAST_REQUEST, S.NUM_OR_TIME)


def hudi_options(options: ScheduleOptions) -> Mapping[str, object]:
    """Ours under Hudi's names."""
    return {
        "hoodie.compact.inline.trigger.strategy": options.strategy.name,
        "hoodie.compact.inline.max.delta.commits": options.max_delta_commits,
        "hoodie.compact.inline.max.delta.seconds": options.max_delta_seconds,
    }


def chosen(strategy: TriggerStrategy, commits: int, seconds: int = LONG_S) -> ScheduleOptions:
    """Options of a case."""
    return ScheduleOptions(strategy=strategy, max_delta_commits=commits, max_delta_seconds=seconds)


def fires(table: SharedTable, options: ScheduleOptions) -> bool:
    """What our trigger says."""
    opened = table.open()
    return triggered(opened.load_timeline(), opened.now(), options).fired


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Judge, int], SharedTable]:
    """By table version; made once."""

    @cache
    def make(judge: Judge, version: int) -> SharedTable:
        path = tmp_path_factory.mktemp("origin") / "table"
        made = SharedTable(judge=judge, path=path, version=version, options=EVENT_TIME)
        made.create(ROWS(range(20), 1))
        for _ in range(2):
            made.upsert(ROWS(range(20), 2))
        return made

    return make


@pytest.fixture
def table(judge: Judge, version: int, origins: Callable[[Judge, int], SharedTable], tmp_path: Path) -> SharedTable:
    """Three delta commits; nothing is compacted yet. A copy of its own."""
    made = origins(judge, version)
    shutil.copytree(made.path, tmp_path / "table")
    return replace(made, path=tmp_path / "table")


def agree_on(table: SharedTable, *cases: ScheduleOptions) -> list[bool]:
    """For each case: Hudi, asked to schedule on the table, does what our trigger says; its plan is taken back."""
    found = []
    for options in cases:
        expected = fires(table, options)
        copy = table.copy()
        scheduled = copy.judge.schedule_compaction(copy.path, {**copy.options, **hudi_options(options)})
        shutil.rmtree(copy.path)
        assert (scheduled is not None) is expected, options
        found.append(expected)
    return found


def around(count: int, strategy: TriggerStrategy) -> tuple[ScheduleOptions, ScheduleOptions]:
    """The number that just fires, and the next one."""
    return chosen(strategy, count), chosen(strategy, count + 1)


@versions(9, deep=(6,))
def test_no_compaction_yet(table: SharedTable) -> None:
    """All delta commits count, time runs from the first."""
    time.sleep(2)
    cases = [
        *around(3, S.NUM_COMMITS),
        *around(3, S.NUM_COMMITS_AFTER_LAST_REQUEST),
        *(chosen(S.TIME_ELAPSED, 99, seconds) for seconds in (1, LONG_S)),
        *(chosen(S.NUM_AND_TIME, n, seconds) for n, seconds in ((3, 1), (4, 1), (3, LONG_S))),
        *(chosen(S.NUM_OR_TIME, n, seconds) for n, seconds in ((3, LONG_S), (4, 1), (4, LONG_S))),
    ]
    expected = [True, False, True, False, True, False, True, False, False, True, True, False]
    assert agree_on(table, *cases) == expected


@versions(9, deep=(6,))
def test_after_a_completed_compaction(table: SharedTable) -> None:
    """Only what came after it counts."""
    table.hudi_schedules()
    table.hudi_compacts()
    table.upsert(ROWS(range(20), 3))
    time.sleep(2)
    cases = [
        *around(1, S.NUM_COMMITS),
        *around(1, S.NUM_COMMITS_AFTER_LAST_REQUEST),
        *(chosen(S.TIME_ELAPSED, 99, seconds) for seconds in (1, LONG_S)),
    ]
    assert agree_on(table, *cases) == [True, False, True, False, True, False]


@versions(6, deep=(9,))
def test_while_a_compaction_pends(table: SharedTable) -> None:
    """One strategy counts from the request, the others all; file groups outside the plan could be planned."""
    small = replace(PLAN_NOW, target_io_bytes=1)
    assert schedule_compaction(table.open(), ProcessLock("x"), small).instant is not None
    for _ in range(2):
        table.upsert(ROWS(range(20), 3))
    cases = [*around(5, S.NUM_COMMITS), *around(2, S.NUM_COMMITS_AFTER_LAST_REQUEST)]
    assert agree_on(table, *cases) == [True, False, True, False]


@pytest.mark.parametrize(
    ("version", "strategy"),
    [
        (9, S.NUM_COMMITS_AFTER_LAST_REQUEST),
        *(deep(9, S.NUM_COMMITS), deep(9, S.NUM_OR_TIME), *(deep(6, strategy) for strategy in _INLINE)),
    ],
    indirect=["version"],
    ids=lambda value: f"v{value}" if isinstance(value, int) else value.name,
)
def test_inline_scheduling(table: SharedTable, strategy: TriggerStrategy) -> None:
    """After each of its commits Hudi schedules when our trigger, of at most one pending plan, says so."""
    options = replace(chosen(strategy, 2), max_pending=1)
    inline = {"hoodie.compact.schedule.inline": True, **hudi_options(options)}
    seen = []
    for number in range(6):
        before = set(table.pending())
        table.upsert(ROWS(range(20), number + 3), inline)
        made = set(table.pending()) - before
        # The trigger as it was when Hudi asked: without the plan that came of it.
        timeline = table.open().load_timeline()
        asked = replace(timeline, instants=tuple(i for i in timeline.instants if i.requested_time not in made))
        assert triggered(asked, table.open().now(), options).fired is bool(made), number
        seen.append(bool(made))
        if number in (2, 4) and table.pending():
            table.hudi_compacts()
    assert True in seen
    assert False in seen
