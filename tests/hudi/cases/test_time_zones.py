"""Real Hudi writes in New York, phantombase runs in UTC: refused until it is given the zone; then no write is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.compactor_daemon.run.pending import run_compactions
from phantombase.timeline.clock.options import ClockOptions
from phantombase.timeline.errors import ClockError
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import HUDI, SharedTable
from tests.hudi.judge.client import BRIEF, Judge
from tests.support.selection import versions

pytestmark = pytest.mark.interop

NEW_YORK = "America/New_York"
THERE = ClockOptions(timezone=NEW_YORK)


@pytest.fixture
def there(version: int, local_zone: Callable[[str], None]) -> Iterator[Judge]:
    """Real Hudi in New York, in a JVM of its own; this process is in UTC."""
    local_zone(NEW_YORK)
    judge = Judge(HUDI[version], java_options=BRIEF)
    local_zone("UTC")
    yield judge
    judge.close()


@versions(9, deep=[6])
def test_hudi_in_another_zone(there: Judge, version: int, tmp_path: Path) -> None:
    """Every upsert of Hudi after our compaction is read by both."""
    table, rows = SharedTable(judge=there, path=tmp_path / "table", version=version), Rows(seed=7)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(10), 2))
    before = table.open().load_timeline()
    with pytest.raises(ClockError, match=r"[45] h 00 min behind"):
        table.we_schedule()
    assert table.open().load_timeline() == before
    for step in (3, 5):
        opened = table.open().with_clock(THERE)
        assert schedule_compaction(opened, ProcessLock(str(table.path))).instant is not None
        if step == 5:
            table.upsert(rows(range(5, 15), step - 1))  # while the plan pends
        compacted = run_compactions(
            str(table.path),
            output=OutputOptions(),
            execute=ExecuteOptions(executor=Executor.LOCAL),
            attempt=AttemptOptions(),
            clock=THERE,
        )
        assert len(compacted.done) == 1
        newest = rows(range(step, step + 4), step)
        table.upsert(newest)
        seen = {row["id"]: row["ts"] for row in table.agree().to_pylist()}
        assert {key: seen[key] for key in newest.column("id").to_pylist()} == {
            row["id"]: row["ts"] for row in newest.to_pylist()
        }
    table.writer(rows(range(3), 9)).timezone(NEW_YORK).upsert(str(table.path))
    same(table.agree(), table.hudi_reads())
    assert os.environ["TZ"] == "UTC"
