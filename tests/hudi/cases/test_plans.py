"""Compaction plans of either kind: where Hudi looks for logs, who executes them, what is pending or published late.

`hoodie.table.services.incremental.enabled`, on by default, whatever the table version."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phantombase.compactor_daemon.attempt.finish import finish_completed
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.undo.replan import replan
from phantombase.timeline.errors import BarrierError, UnsupportedError
from phantombase.timeline.format.compaction_plan import decode_plan, encode_plan
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.valid_instants import compacted_after
from phantombase.timeline.planning.options import PLAN_NAMED, PLAN_NOW
from phantombase.timeline.planning.schedule import choose_plans, schedule_compaction
from phantombase.timeline.planning.strategies import Strategy, StrategyOptions
from phantombase.timeline.storage.folders import METADATA_FOLDER
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.hudi.cases.day_table import UNBOUNDED, hudi_conf, hudi_plan, rows, writes
from tests.hudi.cases.indexed_table import IndexedTable
from tests.hudi.cases.rows import PARTITIONS, Rows, same
from tests.hudi.cases.shared_table import EVENT_TIME, OPTIMISTIC, Completes, SharedTable, check_rows
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.hudi.judge.environment import JudgeError
from tests.support.compaction_steps import open_table, run_one
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.faults import died_or_ended
from tests.support.selection import deep, versions

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


@pytest.mark.interop
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
@pytest.mark.parametrize("table_version", [9, deep(6)])
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


@pytest.mark.interop
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
@pytest.mark.parametrize("table_version", [9, deep(6)])
def test_hudi_forgets_a_plan_that_was_taken_back(table: Days) -> None:
    """When a later one was completed: its partitions were not written since, and are nobody's missing ones."""
    taken_back = table.schedules()
    table.update([P[5]])
    table.compacts(table.schedules())
    for file in table.path.glob(f".hoodie/**/*{taken_back}.compaction*"):
        file.unlink()
    assert table.planned() == []
    assert table.planned(NOT_INCREMENTAL) == P[:5]


@pytest.mark.interop
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
@pytest.mark.parametrize("table_version", [9, deep(6)])
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


# Hudi 0.15 with optimistic concurrency plans beside a pending write below the plan, which then completes.


@pytest.mark.interop
@pytest.mark.parametrize("version", [6], indirect=True, ids="v{}".format)
def test_a_write_below_hudi_s_plan_is_read_whenever_it_completes(judge: Judge, version: int, tmp_path: Path) -> None:
    """At each snapshot of ours at the timeline, when every file slice was staged by an attempt before."""
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version), Rows(seed=version)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(10), 2))
    table.upsert(rows(range(5), 3))
    expected = table.agree()
    opened = table.open()
    timeline = opened.load_timeline()
    done = opened.instant_path(timeline.completed_writes[timeline.latest_completed])
    content = opened.storage.read(done)
    opened.storage.delete(done)
    instant = judge.schedule_compaction(table.path, OPTIMISTIC)
    assert instant is not None
    with pytest.raises(BarrierError):
        table.we_compact(attempt=AttemptOptions(barrier_s=0.3))

    for number in count(1):
        left = replace(table, path=tmp_path / f"look{number}")
        shutil.copytree(table.path, left.path)
        completes = Completes(left, done, content, number)
        storage = HookedStorage(LocalStorage(str(left.path)), completes.hook)
        try:
            run_one(open_table(left.path, storage), instant)
        except BarrierError:
            break
        assert completes.looks >= number
        same(left.agree(), expected)
    assert number > 3, "the write was never completed between two looks"


# A plan of ours is a plan to Hudi, and one of Hudi's a plan to us, whoever else's is pending beside it.


@pytest.fixture
def who_plans_who_executes_table(judge: Judge, version: int, tmp_path: Path) -> SharedTable:
    """A table with base files in all partitions and nothing else."""
    made = SharedTable(judge=judge, path=tmp_path / "who_plans_who_executes_table", version=version, options=EVENT_TIME)
    made.create(Rows(seed=1)(range(90), 2))
    return made


def of_partition(rows: pa.Table, name: str) -> pa.Table:
    """The rows of one partition."""
    return rows.filter(pc.equal(rows["p"], name))


@pytest.mark.interop
@versions(9, deep=(6,))
def test_hudi_executes_our_plan(who_plans_who_executes_table: SharedTable) -> None:
    """Nothing is planned twice, the snapshot stays, and the base files hold what was planned."""
    rows = Rows(seed=2)
    who_plans_who_executes_table.upsert(rows(range(0, 100, 3), (1, 2, 3)))
    who_plans_who_executes_table.delete(rows(range(0, 90, 10), 0))
    planned = who_plans_who_executes_table.agree()
    instant = who_plans_who_executes_table.we_schedule()
    assert (
        who_plans_who_executes_table.judge.schedule_compaction(
            who_plans_who_executes_table.path, who_plans_who_executes_table.options
        )
        is None
    ), "all file groups are planned"
    latest = rows(range(0, 90, 4), 9)
    who_plans_who_executes_table.upsert(latest)
    before = who_plans_who_executes_table.agree()
    who_plans_who_executes_table.hudi_compacts(instant)
    same(who_plans_who_executes_table.agree(), before)
    same(
        who_plans_who_executes_table.agree_on_base_files().drop_columns(["_hoodie_file_name"]),
        planned.drop_columns(["_hoodie_file_name"]),
    )
    check_rows(before, latest)


@pytest.mark.interop
@pytest.mark.parametrize(
    ("version", "hudi_plans_first", "hudi_executes_its_own"),
    [(9, True, False), deep(6, False, True), deep(9, False, True), deep(6, True, False)],
    indirect=["version"],
    ids=["v9-hudis-first-crossed", "v6-ours-first-own", "v9-ours-first-own", "v6-hudis-first-crossed"],
)
def test_two_plans_two_executors(
    who_plans_who_executes_table: SharedTable, hudi_plans_first: bool, hudi_executes_its_own: bool
) -> None:
    """Two plans on different file groups; each is executed once, in the order of the later plan first."""
    rows, (first, second, third) = Rows(seed=3), PARTITIONS
    who_plans_who_executes_table.upsert(of_partition(rows(range(0, 90, 2), (1, 2, 3)), first))
    earlier = (
        who_plans_who_executes_table.hudi_schedules()
        if hudi_plans_first
        else who_plans_who_executes_table.we_schedule()
    )
    who_plans_who_executes_table.upsert(of_partition(rows(range(90), (1, 2, 3)), second))
    who_plans_who_executes_table.delete(of_partition(rows(range(0, 90, 3), 0), second))
    later = (
        who_plans_who_executes_table.we_schedule()
        if hudi_plans_first
        else who_plans_who_executes_table.hudi_schedules()
    )
    assert who_plans_who_executes_table.pending() == [earlier, later]
    who_plans_who_executes_table.upsert(rows(range(0, 90, 5), (1, 2, 3)))
    before = who_plans_who_executes_table.agree()
    hudis, ours = (earlier, later) if hudi_plans_first is hudi_executes_its_own else (later, earlier)
    if hudis == later:
        who_plans_who_executes_table.hudi_compacts(hudis)
        same(who_plans_who_executes_table.agree(), before)
        assert who_plans_who_executes_table.we_compact(ours) == [ours]
    else:
        assert who_plans_who_executes_table.we_compact(ours) == [ours]
        same(who_plans_who_executes_table.agree(), before)
        who_plans_who_executes_table.hudi_compacts(hudis)
    same(who_plans_who_executes_table.agree(), before)
    assert who_plans_who_executes_table.pending() == []
    untouched = who_plans_who_executes_table.agree_on_base_files()
    assert of_partition(untouched, third).num_rows > 0
    latest = rows(range(0, 120, 7), 9)
    who_plans_who_executes_table.upsert(latest)
    assert who_plans_who_executes_table.we_schedule() in who_plans_who_executes_table.we_compact()
    check_rows(who_plans_who_executes_table.agree(), latest)


# A compaction that is published long after it was decided, beside a Hudi writer that goes on with all its services.


SERVICES: dict[str, object] = {
    **METADATA_TABLE,
    "hoodie.clean.automatic": "true",
    "hoodie.archive.automatic": "true",
    "hoodie.cleaner.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}
COMPACT_AFTER = "hoodie.metadata.compact.max.delta.commits"
OFTEN, SELDOM = {COMPACT_AFTER: "4"}, {COMPACT_AFTER: "20"}
"""How many of its delta commits make Hudi compact the metadata table."""
ENOUGH = 6
"""Writes behind a compaction that let Hudi archive it."""


def dies_before_it_tells(call: Call) -> Any:
    """The compaction is decided, and the metadata table does not know of it yet."""
    if call.name == "put_if_absent" and call.path.startswith(METADATA_FOLDER):
        raise ProcessDied(call.path)
    return call.do()


@pytest.mark.interop
@pytest.mark.deep
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
def test_its_files_stay_visible_when_it_is_archived(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi compacts the metadata table between the two, and archives the compaction before it does so again."""
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=SERVICES)
    rows, ts = Rows(seed=11), iter(range(2, 100))
    table.create(rows(range(40), 1))
    table.upsert(rows(range(0, 40, 3), next(ts)))
    instant = table.we_schedule()
    with pytest.raises(ProcessDied):
        run_one(open_table(table.path, HookedStorage(LocalStorage(str(table.path)), dies_before_it_tells)), instant)
    writes = 0
    while writes < ENOUGH or not compacted_after(table.open(), instant):
        table.upsert(rows(range(0, 40, 3), next(ts)), OFTEN)
        writes += 1
    assert table.we_compact(instant) == [instant]
    for _ in range(3):
        table.upsert(rows(range(0, 40, 3), next(ts)), SELDOM)
        table.check_listing()
    table.agree()


# A stale plan is replaced by one that takes in the logs written since, of whichever kind plan and logs are.


@pytest.mark.interop
@pytest.mark.deep
@pytest.mark.parametrize("version", [9, 6], indirect=True, ids="v{}".format)
def test_hudi_beside_a_plan_that_is_replaced(judge: Judge, version: int, tmp_path: Path) -> None:
    """It reads the same rows wherever the command dies, writes on, and executes the new plan. On version 6 the command
    is refused, and its way out works."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=EVENT_TIME)
    rows = Rows(seed=version)
    table.create(rows(range(30), 1))
    table.upsert(rows(range(20), 2))
    stale = table.hudi_schedules()
    table.upsert(rows(range(10), 3))
    table.writer(rows(range(5), 4)).upsert(str(table.path))
    expected, lock = table.agree(), ProcessLock(str(table.path))
    if version == 6:
        with pytest.raises(UnsupportedError, match="compactor-daemon compact TABLE"):
            replan(table.open(), stale, lock)
        assert table.pending() == [stale]
        assert table.we_compact() == [stale]
        same(table.agree(), expected)
        table.hudi_compacts(table.we_schedule())
        same(table.agree_on_base_files(), expected)
        return
    for path in died_or_ended(table.path, lambda storage: replan(Table.on(storage), stale, ProcessLock("dies"))):
        same(replace(table, path=path).agree(), expected)
        if path_pending := replace(table, path=path).pending():
            assert len(path_pending) == 1
        else:
            left = replace(table, path=path).copy()
            left.upsert(rows(range(3), 5))
            finish_completed(left.open(), lock)
            assert len(left.pending()) == 1
            left.agree()
    done = replan(table.open(), stale, lock)
    assert table.pending() == [done.replaced_by]
    assert (done.log_files > 0, table.hudi_reads().num_rows) == (True, expected.num_rows)
    theirs = table.copy()
    theirs.hudi_compacts()
    same(theirs.agree_on_base_files(), expected)
    table.upsert(rows(range(8), 6))
    table.compact_beside_hudi()


@pytest.mark.interop
@pytest.mark.deep
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
def test_no_other_order_of_replacing_a_plan_is_right(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi does not read a file group in two plans, unless both are equal; then the later one loses the logs between
    them once it is executed. So says the protocol."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=EVENT_TIME)
    rows = Rows(seed=version)
    table.create(rows(range(30), 1))
    table.upsert(rows(range(20), 2))
    stale = table.hudi_schedules()
    table.upsert(rows(range(10), 3))
    expected, other = table.agree(), table.copy()
    (plan,) = table.path.glob(f".hoodie/**/{stale}.compaction.requested")
    by = table.open().snapshot().next_time()
    later = plan.with_name(f"{by}.compaction.requested")
    shutil.copy(plan, later)
    same(table.hudi_reads(), expected)
    plan.unlink()
    assert judge.run_compaction(table.path, by, table.options) == [by]
    with pytest.raises(AssertionError):
        same(table.hudi_reads(), expected)
    (plan,) = other.path.glob(f".hoodie/**/{stale}.compaction.requested")
    (new,) = choose_plans(other.open().snapshot(), PLAN_NAMED, without=stale).requested
    plan.with_name(f"{new.instant}.compaction.requested").write_bytes(encode_plan(new.plan))
    with pytest.raises(JudgeError, match="has more than 1 pending"):
        other.hudi_reads()
