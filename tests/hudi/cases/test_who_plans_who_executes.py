"""A plan of ours is a plan to Hudi, and one of Hudi's a plan to us, whoever else's is pending beside it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.hudi.cases.rows import PARTITIONS, Rows, same
from tests.hudi.cases.shared_table import EVENT_TIME, SharedTable, check_rows
from tests.hudi.judge.client import Judge
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop


@pytest.fixture
def table(judge: Judge, version: int, tmp_path: Path) -> SharedTable:
    """A table with base files in all partitions and nothing else."""
    made = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=EVENT_TIME)
    made.create(Rows(seed=1)(range(90), 2))
    return made


def of_partition(rows: pa.Table, name: str) -> pa.Table:
    """The rows of one partition."""
    return rows.filter(pc.equal(rows["p"], name))


@versions(9, deep=(6,))
def test_hudi_executes_our_plan(table: SharedTable) -> None:
    """Nothing is planned twice, the snapshot stays, and the base files hold what was planned."""
    rows = Rows(seed=2)
    table.upsert(rows(range(0, 100, 3), (1, 2, 3)))
    table.delete(rows(range(0, 90, 10), 0))
    planned = table.agree()
    instant = table.we_schedule()
    assert table.judge.schedule_compaction(table.path, table.options) is None, "all file groups are planned"
    latest = rows(range(0, 90, 4), 9)
    table.upsert(latest)
    before = table.agree()
    table.hudi_compacts(instant)
    same(table.agree(), before)
    same(table.agree_on_base_files().drop_columns(["_hoodie_file_name"]), planned.drop_columns(["_hoodie_file_name"]))
    check_rows(before, latest)


@pytest.mark.parametrize(
    ("version", "hudi_plans_first", "hudi_executes_its_own"),
    [(9, True, False), deep(6, False, True), deep(9, False, True), deep(6, True, False)],
    indirect=["version"],
    ids=["v9-hudis-first-crossed", "v6-ours-first-own", "v9-ours-first-own", "v6-hudis-first-crossed"],
)
def test_two_plans_two_executors(table: SharedTable, hudi_plans_first: bool, hudi_executes_its_own: bool) -> None:
    """Two plans on different file groups; each is executed once, in the order of the later plan first."""
    rows, (first, second, third) = Rows(seed=3), PARTITIONS
    table.upsert(of_partition(rows(range(0, 90, 2), (1, 2, 3)), first))
    earlier = table.hudi_schedules() if hudi_plans_first else table.we_schedule()
    table.upsert(of_partition(rows(range(90), (1, 2, 3)), second))
    table.delete(of_partition(rows(range(0, 90, 3), 0), second))
    later = table.we_schedule() if hudi_plans_first else table.hudi_schedules()
    assert table.pending() == [earlier, later]
    table.upsert(rows(range(0, 90, 5), (1, 2, 3)))
    before = table.agree()
    hudis, ours = (earlier, later) if hudi_plans_first is hudi_executes_its_own else (later, earlier)
    if hudis == later:
        table.hudi_compacts(hudis)
        same(table.agree(), before)
        assert table.we_compact(ours) == [ours]
    else:
        assert table.we_compact(ours) == [ours]
        same(table.agree(), before)
        table.hudi_compacts(hudis)
    same(table.agree(), before)
    assert table.pending() == []
    untouched = table.agree_on_base_files()
    assert of_partition(untouched, third).num_rows > 0
    latest = rows(range(0, 120, 7), 9)
    table.upsert(latest)
    assert table.we_schedule() in table.we_compact()
    check_rows(table.agree(), latest)
