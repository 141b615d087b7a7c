"""Tables with consistent-hashing buckets: Hudi writes them and resizes buckets, we read, compact, clean, archive."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import UnsupportedError
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from tests.hudi.cases.rows import same
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import Judge
from tests.support.selection import versions

pytestmark = pytest.mark.interop

_CLUSTERING, LOCK = "org.apache.hudi.client.clustering", ProcessLock("buckets")
OPTIONS: dict[str, object] = {
    "hoodie.index.type": "BUCKET",
    "hoodie.index.bucket.engine": "CONSISTENT_HASHING",
    "hoodie.bucket.index.num.buckets": 2,
    "hoodie.bucket.index.min.num.buckets": 1,
    "hoodie.bucket.index.max.num.buckets": 8,
    "hoodie.bucket.index.hash.field": "id",
    "hoodie.parquet.max.file.size": 1000,
    "hoodie.bucket.index.split.threshold": 1.1,
    "hoodie.bucket.index.merge.threshold": 0.01,
    "hoodie.clustering.plan.strategy.class": f"{_CLUSTERING}.plan.strategy.SparkConsistentBucketClusteringPlanStrategy",
    "hoodie.clustering.execution.strategy.class": (
        f"{_CLUSTERING}.run.strategy.SparkConsistentBucketClusteringExecutionStrategy"
    ),
    "hoodie.clustering.updates.strategy": (
        f"{_CLUSTERING}.update.strategy.SparkConsistentBucketDuplicateUpdateStrategy"
    ),
}
"""Each bucket is too large as soon as it has a row, so that a resize splits all of them."""


def made(judge: Judge, path: Path, version: int) -> SharedTable:
    """By Hudi, with logs in each bucket."""
    table = SharedTable(judge=judge, path=path, version=version, options=OPTIONS)
    table.create(rows_of(range(60), "first", 1))
    table.upsert(rows_of(range(0, 60, 3), "second", 2))
    table.agree()
    return table


def being_resized(judge: Judge, path: Path, version: int) -> SharedTable:
    """The same with a pending resize, and rows that were written into both buckets."""
    table = made(judge, path, version)
    judge.plan_clustering(table.path, OPTIONS)
    table.upsert(rows_of(range(0, 70, 4), "twice", 3))
    return table


@versions(9, deep=(8, 6))
def test_in_turns(judge: Judge, version: int, tmp_path: Path) -> None:
    """Upserts under our plan, a resize, upserts while it is pending, and all services of ours behind it."""
    table = made(judge, tmp_path / "table", version)
    table.we_schedule()
    table.upsert(rows_of(range(0, 65, 4), "under plan", 3))
    table.compact_beside_hudi()
    table.upsert(rows_of(range(0, 65, 5), "fourth", 4))
    judge.plan_clustering(table.path, OPTIONS)
    table.agree()
    files = files_of(table.path)
    table.upsert(rows_of(range(0, 70, 4), "twice", 5))
    table.delete(rows_of([1, 2], "", 6))
    assert {file_id(name) for name in files_of(table.path) - files} - {file_id(name) for name in files}
    before = table.agree()
    assert table.we_may_schedule() is None  # the buckets that go, and those that come
    if version > 6:  # there windows end before the first write that is pending
        window = read_table(table.open(), ReadOptions(query=Query.INCREMENTAL, begin="earliest"))
        assert by_key(window) == by_key(before)
    judge.execute_clustering(table.path, OPTIONS)
    after = table.agree()
    assert by_key(after) == by_key(before)
    table.we_schedule()
    table.upsert(rows_of(range(0, 70, 5), "behind it", 7))
    table.compact_beside_hudi()
    table.audited()
    table.upsert(rows_of(range(0, 70, 6), "last", 8))
    cleaned = clean_table(table.open(), CleanOptions(retain=1, floor_s=0), LOCK)
    assert {one.why for one in cleaned.gone} == {"old", "replaced"}
    table.agree()
    table.upsert(rows_of([3], "very last", 9))
    archived = archive_table(table.open(), ArchiveOptions(min_instants=2, max_instants=3, compaction_commits=1), LOCK)
    assert all("note that resize" not in one.why for one in archived.kept)
    table.agree()
    table.upsert(rows_of(range(0, 75, 7), "behind the archive", 10))
    table.agree()


@versions(6, deep=(9, 8))
def test_a_resize_that_hudi_rolled_back(judge: Judge, version: int, tmp_path: Path) -> None:
    """Its log files stay; we do not archive past it, for then they would count."""
    table = being_resized(judge, tmp_path / "table", version)
    before = table.agree()
    (resize,) = (i for i in table.open().load_timeline().instants if i.family == "replacecommit")
    judge.rollback(table.path, resize.requested_time, OPTIONS)
    same(table.agree(), before)
    for number in range(5):
        table.upsert(rows_of([number], "later", 4 + number))
    table.we_schedule()
    table.we_compact()
    result = archive_table(table.open(), ArchiveOptions(min_instants=2, max_instants=3, compaction_commits=1), LOCK)
    assert all(one.instant < resize.requested_time for one in result.archived)
    assert any("has files" in one.why for one in result.kept)
    table.agree()


@versions(9, deep=(8, 6))
def test_what_is_refused(judge: Judge, version: int, tmp_path: Path) -> None:
    """What we refuse is refused before anything is changed."""
    table = being_resized(judge, tmp_path / "table", version)
    rows = rows_of([1], "ours", 9)
    before = files_of(table.path)
    steps: tuple[Callable[[], object], ...] = (
        lambda: table.writer(rows).upsert(str(table.path)),
        lambda: table.writer(rows).delete(str(table.path)),
        lambda: cluster_table(table.open(), ClusterOptions(), LOCK, output=OutputOptions()),
        lambda: restore_table(table.open(), LOCK, "20200101000000000"),
    )
    for refused in steps:
        with pytest.raises(UnsupportedError, match="consistent-hashing"):
            refused()
    assert files_of(table.path) == before
    assert not (table.path / ".hoodie" / ".phantombase" / "writes").exists()


def by_key(rows: pa.Table) -> dict[str, dict[str, Any]]:
    """A snapshot by record key: the table's own columns."""
    return {row["id"]: {k: v for k, v in row.items() if not k.startswith("_hoodie")} for row in rows.to_pylist()}


def rows_of(numbers: Iterable[int], mark: str, ts: int) -> pa.Table:
    """Rows whose values say where they come from."""
    return pa.Table.from_pylist(
        [{"id": f"k{n:03d}", "p": "north" if n % 2 else "south", "name": f"{mark}-{n}", "ts": ts} for n in numbers]
    )


def files_of(path: Path) -> set[str]:
    """Data files and files of the timeline."""
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and ".crc" not in file.name}


def file_id(name: str) -> str:
    """Of a data file."""
    return name.rpartition("/")[2].removeprefix(".").partition("_")[0]
