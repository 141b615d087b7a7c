"""Our triggers and strategies plan exactly when, and what, real Hudi plans."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import date
from functools import cache
from pathlib import Path

import pytest

from phantombase.timeline.errors import UsageError
from phantombase.timeline.instants.triggers import TriggerStrategy, triggered
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.limits import io_mb
from phantombase.timeline.planning.operation import operation
from phantombase.timeline.planning.options import PLAN_NOW, ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.planning.strategies import Strategy, StrategyOptions, keep_partitions, keep_slices
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileSlice, GroupKey
from tests.hudi.cases.day_table import (
    UNBOUNDED,
    day_paths,
    hudi_conf,
    hudi_plan,
    keys,
    latest,
    random_table,
    rows,
    writes,
)
from tests.hudi.cases.rows import Rows
from tests.hudi.cases.shared_table import EVENT_TIME, SharedTable
from tests.hudi.judge.client import Judge, JudgeError
from tests.support.places import SEED
from tests.support.selection import ALL, deep, versions
from tests.support.written_tables import seed_note

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


@pytest.mark.interop
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


@pytest.mark.interop
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


@pytest.mark.interop
@versions(6, deep=(9,))
def test_while_a_compaction_pends(table: SharedTable) -> None:
    """One strategy counts from the request, the others all; file groups outside the plan could be planned."""
    small = replace(PLAN_NOW, target_io_bytes=1)
    assert schedule_compaction(table.open(), ProcessLock("x"), small).instant is not None
    for _ in range(2):
        table.upsert(ROWS(range(20), 3))
    cases = [*around(5, S.NUM_COMMITS), *around(2, S.NUM_COMMITS_AFTER_LAST_REQUEST)]
    assert agree_on(table, *cases) == [True, False, True, False]


@pytest.mark.interop
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


# Our strategies choose what real Hudi 1.2.0 chooses: on random tables the same operations, order, missing partitions.
#
# The order in which Hudi lists file groups, and with it how ties fall, is taken from its own unbounded plan.


STRATEGIES_S = Strategy


def compare(judge: Judge, path: Path, listed: Sequence[GroupKey], options: StrategyOptions, today: date) -> int:
    """Hudi's plan is ours: file groups, order, missing partitions, and each operation with its metrics; its length."""
    view = Table.open(str(path)).load_view()
    by_key = {s.key: s for s in latest(path)}
    paths = dict.fromkeys([*(partition for partition, _ in listed), *(g.partition for g in view.groups)])
    partitions = keep_partitions(tuple(paths), options, today)
    slices = [by_key[key] for p in partitions.kept for key in listed if key[0] == p]
    chosen = keep_slices(slices, options, today)
    if options.strategy_io_mb == StrategyOptions.strategy_io_mb:  # no target that could cut through a tie
        # We refuse to merge the slice that lost its base file.
        assert planned(path, options) == {s.key for s in chosen.kept if not s.flaws}
    if STRATEGIES_S.BOUNDED_PARTITION_AWARE in options.strategies and partitions.kept:
        with pytest.raises(JudgeError, match="NotSerializable"):
            hudi_plan(judge, path, hudi_conf(options))
        return len(chosen.kept)
    theirs = hudi_plan(judge, path, hudi_conf(options))
    if not chosen.kept:
        assert theirs is None
        return 0
    assert theirs is not None
    assert theirs.operations == tuple(map(operation, chosen.kept))
    assert set(theirs.missing_schedule_partitions or ()) == {s.partition for s, _ in chosen.left}
    return len(chosen.kept)


def planned(path: Path, options: StrategyOptions) -> set[GroupKey]:
    """What our whole planner takes."""
    said = {field.name: getattr(options, field.name) for field in fields(StrategyOptions)}
    table = Table.open(str(path))
    done = schedule_compaction(table, ProcessLock(str(path)), options=replace(PLAN_NOW, **said), dry_run=True)
    return set(keys(done.plan.operations)) if done.plan else set()


def cases(rng: random.Random, slices: Sequence[FileSlice]) -> Iterator[StrategyOptions]:
    """Each strategy, with limits at, below and above what the table has."""
    sizes = sorted(s.log_bytes for s in slices)
    counts = sorted(len(s.logs) for s in slices)
    total = sum(map(io_mb, slices))
    for target in (0, 1, rng.randrange(2, 120), rng.randrange(120, total + 1), total + 1):
        yield StrategyOptions(strategies=(STRATEGIES_S.BOUNDED_IO,), strategy_io_mb=target)
    size, count = rng.choice(sizes), rng.choice(counts)
    for threshold, target in ((0, 5), (size, total), (size + 1, total), (sizes[1], 130), (sizes[-1] + 1, total)):
        yield StrategyOptions(
            strategies=(STRATEGIES_S.LOG_FILE_SIZE,), log_size_threshold=threshold, strategy_io_mb=target
        )
    for threshold, target in ((0, 5), (count, total), (count + 1, total), (counts[0] + 1, 130)):
        yield StrategyOptions(
            strategies=(STRATEGIES_S.LOG_FILE_NUM,), log_num_threshold=threshold, strategy_io_mb=target
        )
    for partitions, target in ((1, total), (3, 5), (3, total), (99, 130)):
        yield StrategyOptions(strategies=(STRATEGIES_S.DAY_BASED,), target_partitions=partitions, strategy_io_mb=target)
    for days in (0, 2, 3, 30, 10_000):
        yield StrategyOptions(strategies=(STRATEGIES_S.BOUNDED_PARTITION_AWARE,), target_partitions=days)
        yield StrategyOptions(strategies=(STRATEGIES_S.UNBOUNDED_PARTITION_AWARE,), target_partitions=days)
    for regex in (r"0[1-9]$", r"^\d{4}/", "2", "nothing"):
        yield StrategyOptions(strategies=(STRATEGIES_S.PARTITION_REGEX,), partition_regex=regex)
    yield StrategyOptions(
        strategies=(STRATEGIES_S.LOG_FILE_NUM, STRATEGIES_S.BOUNDED_IO),
        log_num_threshold=counts[0] + 1,
        strategy_io_mb=9,
    )
    yield StrategyOptions(
        strategies=(STRATEGIES_S.PARTITION_REGEX, STRATEGIES_S.LOG_FILE_SIZE),
        partition_regex="[13579]$",
        strategy_io_mb=7,
    )
    yield StrategyOptions(
        strategies=(STRATEGIES_S.DAY_BASED, STRATEGIES_S.BOUNDED_PARTITION_AWARE, STRATEGIES_S.LOG_FILE_NUM),
        target_partitions=3,
    )
    yield StrategyOptions(
        strategies=(STRATEGIES_S.LOG_FILE_SIZE, STRATEGIES_S.DAY_BASED), target_partitions=2, strategy_io_mb=6
    )


@pytest.mark.interop
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
@pytest.mark.parametrize("table_version", [9, deep(6)])
def test_same_choice_as_hudi(judge: Judge, tmp_path: Path, table_version: int) -> None:
    """Every strategy, several thresholds each, and lists of them; a third of it on version 6 and in a usual run."""
    today = date.today()
    try:
        _same_choice(judge, tmp_path / "table", table_version, today)
    except AssertionError:
        if date.today() == today:
            raise
        # Midnight has passed: both sides must mean the same day by today.
        _same_choice(judge, tmp_path / "again", table_version, date.today())


def _same_choice(judge: Judge, path: Path, table_version: int, today: date) -> None:
    with seed_note(SEED, table_version):
        rng = random.Random(f"{SEED}-{table_version}")
        hive_style = table_version == 6
        random_table(
            rng, path, table_version, day_paths(today, [0, 1, 2, 3, 30, *rng.sample(range(4, 29), 2)], hive_style)
        )
        listing = hudi_plan(judge, path, hudi_conf(UNBOUNDED))
        assert listing is not None
        listed = keys(listing.operations)
        found = list[int]()

        for options in tuple(cases(rng, latest(path)))[:: 3 if table_version == 6 or not ALL else 1]:
            with seed_note(SEED, options):
                found.append(compare(judge, path, listed, options, today))
        assert 0 in found
        assert len(set(found)) > 3


@pytest.mark.interop
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
@pytest.mark.parametrize(
    ("strategy", "partitions", "hudi"),
    [
        (STRATEGIES_S.DAY_BASED, ["2026-11-20", "2026-11-21"], "Invalid Partition Date Format"),
        (STRATEGIES_S.UNBOUNDED_PARTITION_AWARE, ["2025-11-20", "2025-11-21"], None),
    ],
)
def test_days_that_hudi_does_not_read(
    judge: Judge, tmp_path: Path, strategy: Strategy, partitions: list[str], hudi: str | None
) -> None:
    """Where it fails or silently plans nothing, we refuse."""
    for size in (10, 20):
        writes(rows(random.Random(1), partitions, range(8), size), 9).upsert(str(tmp_path))
    options = StrategyOptions(strategies=(strategy,))
    with pytest.raises(UsageError, match="yyyy/MM/dd"):
        keep_partitions(partitions, options, date.today())
    if hudi is None:
        assert hudi_plan(judge, tmp_path, hudi_conf(options)) is None
    else:
        with pytest.raises(JudgeError, match=hudi):
            hudi_plan(judge, tmp_path, hudi_conf(options))
