"""Log compactions of ours in real tables: Hudi reads them, goes on, compacts them, and executes our plans of them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pyarrow.compute as pc
import pytest

from phantombase.timeline.audit.group_ledger import LEDGER
from phantombase.timeline.avro.schema import COMMIT_SEQNO
from phantombase.timeline.avro.schema import COMMIT_TIME as COMMIT_TIME_COLUMN
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import COMMIT_TIME, EVENT_TIME, PARQUET_LOGS, SharedTable, hudi_rs_reads
from tests.hudi.judge.client import Judge
from tests.hudi.judge.fixtures import Judges
from tests.support.change_feeds import Choose, at, longest, request
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop
newest = pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)

CASES: dict[str, tuple[dict[str, object], Choose]] = {
    "event time, all": (EVENT_TIME, longest),
    "event time, youngest": (EVENT_TIME, at(2)),
    "commit time, in the middle": (COMMIT_TIME, at(1, 4)),
    "event time, Parquet, oldest": ({**EVENT_TIME, **PARQUET_LOGS}, at(0, 3)),
}

EXECUTES = {"hoodie.log.compaction.inline": "true", "hoodie.log.compaction.blocks.threshold": 1000}
"""Of a write of Hudi's: it executes pending log compactions first and plans none."""


def written(judge: Judge, version: int, path: Path, options: dict[str, object]) -> tuple[SharedTable, Rows]:
    """Six delta commits in file groups with logs: late and early rows, deletes with and without ordering values."""
    table = SharedTable(judge=judge, path=path, version=version, options=options)
    rows = Rows(seed=version)
    table.create(rows(range(60), 5))
    for start in range(2):
        table.upsert(rows(range(start, 60, 2), (4, 5, 6)))
    table.delete(rows(range(0, 60, 5), 6))
    table.writer(rows(range(0, 60, 3), (3, 7))).upsert(str(path))
    table.writer(rows(range(0, 60, 7), (3, 9)).select(["id", "p", "ts"])).delete(str(path))
    table.upsert(rows(range(0, 60, 4), (2, 8)))
    return table, rows


@pytest.mark.parametrize(
    ("version", "case"),
    [
        (9, "commit time, in the middle"),
        deep(8, "event time, all"),
        *(deep(9, case) for case in ("event time, Parquet, oldest", "event time, all", "event time, youngest")),
    ],
    indirect=["version"],
    ids=lambda value: f"v{value}" if isinstance(value, int) else value,
)
def test_hudi_reads_it_and_goes_on(judge: Judge, version: int, case: str, tmp_path: Path) -> None:
    """Before and after the same rows; then a write of Hudi's, another log compaction, a compaction by Hudi."""
    options, choose = CASES[case]
    table, rows = written(judge, version, tmp_path / "table", options)
    before = table.agree()
    request(table.open(), choose)
    same(table.agree(), before)
    table.we_compact()
    same(table.agree(), before)
    table.upsert(rows(range(0, 60, 6), (1, 6, 8)))
    before = table.agree()
    request(table.open(), longest)
    table.we_compact()
    same(table.agree(), before)
    table.delete(rows(range(0, 60, 8), 9))
    table.audited()
    table.hudi_schedules()
    table.compact_beside_hudi()
    table.audited()


@newest
def test_hudi_executes_our_plan(judge: Judge, version: int, tmp_path: Path) -> None:
    """Of log files that Hudi and we wrote, one of them a log compaction. Hudi gives the rows its own commit time."""
    table, rows = written(judge, version, tmp_path / "table", COMMIT_TIME)
    request(table.open(), at(0, 3))
    table.we_compact()
    before = table.agree()
    instant = request(table.open(), longest)
    table.upsert(rows(range(60, 70), 9), EXECUTES)
    done = table.open().files.completed_commits(instant)
    assert [i.action for i in done] == ["deltacommit"]
    assert LEDGER not in table.open().commit_metadata(done[0]).extra_metadata
    after = table.agree()
    columns = [name for name in before.schema.names if name not in (COMMIT_TIME_COLUMN, COMMIT_SEQNO)]
    same(after.filter(pc.field("id").isin(before["id"])).select(columns), before.select(columns))


@newest
def test_hudi_plans_beside_it(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi plans file groups in pending log compactions: what completes behind the plan is older than its base file."""
    table, rows = written(judge, version, tmp_path / "table", COMMIT_TIME)
    instant = request(table.open(), at(0, 2))
    compaction = table.hudi_schedules()
    table.we_compact(instant)
    before = table.agree()
    table.hudi_compacts(compaction)
    same(table.agree(), before)
    for ts in (9, 4):
        table.upsert(rows(range(0, 60, 2), ts))
    table.agree()
    assert request(table.open(), longest)
    table.we_compact()
    table.we_schedule()
    table.compact_beside_hudi()


@newest
@pytest.mark.parametrize("options", [deep(COMMIT_TIME), EVENT_TIME], ids=["commit time", "event time"])
def test_hudi_rs_reads_it(judge: Judge, version: int, options: dict[str, object], tmp_path: Path) -> None:
    """Whether the youngest files were merged or the oldest, with later writes to the same keys on top."""
    table, _ = written(judge, version, tmp_path / "table", options)
    before, lower = table.agree(), table.copy()
    same(hudi_rs_reads(table.path), before)
    for merged, choose in ((table, at(3)), (lower, at(0, 3))):
        request(merged.open(), choose)
        merged.we_compact()
        same(hudi_rs_reads(merged.path), before)


V6_CASES: dict[str, tuple[dict[str, object], Choose, bool]] = {
    "event time, all": (EVENT_TIME, longest, True),
    "commit time, oldest": (COMMIT_TIME, at(0, 3), False),
}
"""Options, what is merged, and whether Hudi 0.15 reads the same after it."""


@pytest.mark.parametrize("case", [deep("event time, all"), "commit time, oldest"])
@pytest.mark.parametrize("version", [6], indirect=True, ids="v{}".format)
def test_version_6(judge: Judge, judges: Judges, version: int, case: str, tmp_path: Path) -> None:
    """Hudi 1.x reads the same before and after, and so do we. 0.15 takes the new file for the newest write."""
    options, choose, kept = V6_CASES[case]
    table, _ = written(judge, version, tmp_path / "table", options)
    before = table.agree()
    with_1x = judges("1.2.0").read(table.path)
    request(table.open(), choose)
    table.we_compact()
    same(judges("1.2.0").read(table.path), with_1x)
    same(table.we_read(), before)
    table.audited()
    with nullcontext() if kept else pytest.raises(AssertionError, match="only theirs"):
        same(judges("0.15.0").read(table.path), before)


@pytest.mark.deep
@versions(9, deep=(6,))
def test_hudi_cleans_and_archives_it(judge: Judge, version: int, tmp_path: Path) -> None:
    """It has no inflight file and completes under another name: Hudi takes it as it takes its own."""
    table, rows = written(judge, version, tmp_path / "table", EVENT_TIME)
    instant = request(table.open(), longest)
    table.we_compact()
    table.we_schedule()
    table.we_compact()
    for start in range(3):
        table.upsert(rows(range(start, 60, 3), 20 + start))
    table.we_schedule()
    table.we_compact()
    before = table.agree()
    judge.clean(table.path)
    judge.archive(table.path)
    assert not table.open().files.completed_commits(instant)
    same(table.agree(), before)
    table.upsert(rows(range(0, 60, 4), 30))
    table.agree()
    table.audited()
