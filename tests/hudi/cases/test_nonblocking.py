"""Beside Hudi writers with NON_BLOCKING_CONCURRENCY_CONTROL: two of them write one bucket at once, and none waits.

Both append to a file group whose id follows from the bucket alone; the slice of a log file is known by its completion.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import UnsupportedError, writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.metadata_services.build import build_metadata
from phantombase.compactor_daemon.metadata_services.chosen import BuildOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.validate import validate
from tests.hudi.cases.indexed_table import IndexedTable, compact
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import BUCKET, SharedTable, check_rows
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop
NONBLOCKING: Mapping[str, object] = {
    **BUCKET,
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
}
MODES: Mapping[str, Mapping[str, object]] = {
    mode: {"hoodie.write.record.merge.mode": f"{mode}_ORDERING"} for mode in ("EVENT_TIME", "COMMIT_TIME")
}
LOCK = ProcessLock("x")
BRIEFLY = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)


def history(table: SharedTable, rows: Rows) -> None:
    """Two pairs of writes of the same keys, each with the later request completed first."""
    table.create(rows(range(20), 1))
    for turn, (first, second) in enumerate(((5, 4), (6, 7))):
        keys = range(3 * turn, 30 + turn)
        table.judge.overlap(table.path, rows(keys, first), rows(keys, second), table.options)


def held_back(table: SharedTable) -> tuple[Path, bytes]:
    """The newest write as it was before it completed: its completed file and content."""
    timeline = table.path / ".hoodie/timeline"
    completed = max(timeline.glob("*_*.deltacommit"), key=lambda file: file.name.split("_")[0])
    content = completed.read_bytes()
    completed.unlink()
    (timeline / f".{completed.name}.crc").unlink(missing_ok=True)
    return completed, content


@versions(deep=[9, 8])
@pytest.mark.parametrize("mode", [deep(mode) for mode in MODES])
def test_two_writers_of_one_bucket(judge: Judge, version: int, mode: str, tmp_path: Path) -> None:
    """Read, compacted, cleaned and archived beside them; each reader sees the same rows as Hudi."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options={**NONBLOCKING, **MODES[mode]})
    rows = Rows(seed=version)
    history(table, rows)
    groups = {one.name[1:].split("_")[0] for one in table.path.rglob("*.log.*") if not one.name.endswith(".crc")}
    assert groups == {f"{bucket:08d}-0000-0000-0000-000000000000-0" for bucket in range(3)}
    table.agree()
    table.we_schedule()
    table.compact_beside_hudi()

    table.upsert(rows(range(15), 8))
    # a plan between the request of a write and its completion
    assert judge.upsert_around_plan(table.path, rows(range(10, 40), 9), table.options) is not None
    table.compact_beside_hudi()
    history_after = rows(range(0, 40, 2), 10), rows(range(0, 40, 3), 11)
    judge.overlap(table.path, *history_after, table.options)
    before = table.agree()
    assert clean_table(table.open(), CleanOptions(retain=1, floor_s=0), LOCK).files
    same(table.agree(), before)
    archive_table(table.open(), BRIEFLY, LOCK)
    same(table.agree(), before)
    table.upsert(rows(range(5), 12))
    table.we_schedule()
    table.compact_beside_hudi()


@versions(deep=[9])
def test_a_write_that_completes_while_our_compaction_waits(judge: Judge, version: int, tmp_path: Path) -> None:
    """It was requested before the plan, and its log file is in a file group of the plan: it counts above the result."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=NONBLOCKING)
    rows = Rows(seed=3)
    history(table, rows)
    late = rows(range(8, 33), 20)
    table.upsert(late)
    completed, content = held_back(table)
    table.we_schedule()

    def complete() -> None:
        times = (part for file in completed.parent.iterdir() for part in file.name.split(".")[0].split("_"))
        now = max(int(part) for part in times if part.isdigit() and len(part) == 17)
        (completed.parent / f"{completed.name.split('_')[0]}_{now + 1}.deltacommit").write_bytes(content)

    timer = threading.Timer(3.0, complete)
    timer.start()
    assert table.we_compact()
    timer.join()
    check_rows(table.agree(), late)
    clean_table(table.open(), CleanOptions(retain=1, floor_s=0), LOCK)
    table.we_schedule()
    table.compact_beside_hudi()
    check_rows(table.agree(), late)


@versions(deep=[9])
def test_with_a_metadata_table(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi's, kept by our services beside such writes; then built by us."""
    table = IndexedTable(
        judge=judge, path=tmp_path / "table", version=version, options={**NONBLOCKING, **METADATA_TABLE}
    )
    rows = Rows(seed=4)
    history(table, rows)
    table.agree()
    compact(table)
    table.we_schedule()
    table.we_compact()
    table.agree()
    judge.overlap(table.path, rows(range(12), 8), rows(range(6, 20), 9), table.options)
    table.agree()
    build_metadata(table.open(), BuildOptions(pending_wait_s=0), LOCK, again=True)
    table.agree()
    judge.overlap(table.path, rows(range(12), 10), rows(range(6, 20), 11), table.options)
    table.agree()
    assert validate(table.open()).differences == ()


@versions(deep=[9])
def test_our_writes_of_such_a_table(judge: Judge, version: int, tmp_path: Path) -> None:
    """They append to what is there; they open no bucket, since a writer of that mode may open it at the same time."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=NONBLOCKING)
    rows = Rows(seed=5)
    first = rows(range(40), 1)
    table.create(first)
    mine = rows(range(0, 40, 3), 2)
    table.writer(mine).upsert(str(table.path))
    check_rows(table.agree(), mine)
    table.upsert(rows(range(0, 40, 2), 3))
    table.agree()
    elsewhere = rows([0], 4).set_column(1, "p", pa.array(["elsewhere"]))
    with pytest.raises(UnsupportedError, match="opening a bucket"):
        table.writer(elsewhere).upsert(str(table.path))
    assert not (table.path / "elsewhere").exists()
    table.agree()
    with pytest.raises(UnsupportedError, match="NON_BLOCKING"):
        writer(mine).conf({name: str(value) for name, value in NONBLOCKING.items()})
