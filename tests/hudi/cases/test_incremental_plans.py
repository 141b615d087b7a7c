"""Where real Hudi 1.2.0 looks for logs after a compaction; our plans tell it (docs/internals/hudi-format.md 9).

`hoodie.table.services.incremental.enabled`, on by default, whatever the table version.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from phantombase.timeline.format.compaction_plan import decode_plan
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.planning.strategies import Strategy, StrategyOptions
from phantombase.timeline.table.table import Table
from tests.hudi.cases.day_table import UNBOUNDED, hudi_conf, hudi_plan, rows, writes
from tests.hudi.judge.client import Judge
from tests.support.selection import deep

# The real Hudi of version 9 judges both versions here, so that one JVM does.
pytestmark = [
    pytest.mark.interop,
    pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format),
    pytest.mark.parametrize("table_version", [9, deep(6)]),
]
S = Strategy
P = [f"2026/11/{day:02d}" for day in range(1, 7)]
EVERYTHING = {**hudi_conf(UNBOUNDED), "hoodie.compact.inline.max.delta.commits": 0}
"""Whatever the trigger says, and the strategy leaves nothing out."""
NOT_INCREMENTAL = {**EVERYTHING, "hoodie.table.services.incremental.enabled": False}


class Days:
    """A table with base files in P; its latest writes are updates."""

    def __init__(self, judge: Judge, path: Path, version: int) -> None:
        self.judge, self.path, self.version = judge, path, version
        self._rng = random.Random(1)
        self.update(P)

    def update(self, partitions: Sequence[str], size: int = 1000) -> None:
        """One commit: rows of that size for every file group of the partitions."""
        writes(rows(self._rng, partitions, range(8), size), self.version).upsert(str(self.path))

    def schedules(self, options: StrategyOptions = UNBOUNDED) -> str:
        """Hudi requests a compaction."""
        instant = self.judge.schedule_compaction(self.path, {**EVERYTHING, **hudi_conf(options)})
        assert instant is not None
        return instant

    def missing(self, instant: str) -> list[str]:
        """What the plan says of partitions it has left out."""
        (requested,) = self.path.glob(f".hoodie/**/{instant}.compaction.requested")
        return sorted(decode_plan(requested.read_bytes(), str(requested)).missing_schedule_partitions or ())

    def compacts(self, instant: str | None) -> None:
        """Hudi executes it."""
        assert self.judge.run_compaction(self.path, instant) == [instant]

    def planned(self, conf: Mapping[str, object] = EVERYTHING) -> list[str]:
        """Partitions of the plan Hudi would make now."""
        plan = hudi_plan(self.judge, self.path, conf)
        return sorted({o.partition_path for o in plan.operations}) if plan is not None else []


@pytest.fixture
def table(judge: Judge, tmp_path: Path, table_version: int) -> Days:
    """P[0] to P[4] have logs, those of P[4] are small."""
    made = Days(judge, tmp_path / "table", table_version)
    made.update(P[:4])
    made.update(P[4:5], 1)
    return made


def test_what_hudi_looks_at(table: Days) -> None:
    """Partitions written since the last completed compaction was requested, and those its plan calls missing."""
    assert table.planned() == P[:5], "no compaction yet: all partitions"
    threshold = StrategyOptions(
        strategies=(S.PARTITION_REGEX, S.LOG_FILE_SIZE), partition_regex="[2-9]$", log_size_threshold=5000
    )
    first = table.schedules(threshold)
    assert table.missing(first) == [P[4]], "left out by the threshold; not P[0], which the expression left out"
    assert table.planned() == [P[0], P[4]], "still no completed compaction"
    table.update([P[1]])
    table.compacts(first)
    assert table.planned() == [P[1], P[4]], "P[0] is forgotten"
    assert table.planned(NOT_INCREMENTAL) == [P[0], P[1], P[4]]
    newest = table.schedules(StrategyOptions(strategies=(S.DAY_BASED,), target_partitions=1))
    assert table.missing(newest) == [], "left out by its day, so not missing"
    assert table.planned() == [P[1]], "a pending plan changes nothing"
    table.compacts(newest)
    assert table.planned() == [], "P[1] is forgotten too"
    assert table.planned(NOT_INCREMENTAL) == [P[0], P[1]]
    table.update([P[0]])
    assert table.planned() == [P[0]], "until it is written again"


def test_hudi_forgets_a_plan_that_was_taken_back(table: Days) -> None:
    """When a later one was completed: its partitions were not written since, and are nobody's missing ones."""
    taken_back = table.schedules()
    table.update([P[5]])
    table.compacts(table.schedules())
    for file in table.path.glob(f".hoodie/**/*{taken_back}.compaction*"):
        file.unlink()
    assert table.planned() == []
    assert table.planned(NOT_INCREMENTAL) == P[:5]


def test_hudi_looks_where_our_plans_left_something_out(table: Days) -> None:
    """On version 6 too: Hudi 1.x plans incrementally there as well, and 0.15 ignores the field."""
    done = schedule_compaction(
        Table.open(str(table.path)),
        ProcessLock("x"),
        options=replace(PLAN_NOW, strategies=(S.LOG_FILE_SIZE,), strategy_io_mb=120, log_size_threshold=5000),
    )
    assert done.plan is not None
    table.compacts(done.instant)
    assert table.planned() == table.planned(NOT_INCREMENTAL) == [P[4]]
