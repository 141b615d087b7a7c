"""Tables with consistent-hashing buckets: what would bring replaced file groups back, or move rows, is left to Hudi.

Of tables with change data capture the same is refused, but for writes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import writer
from phantombase.compactor_daemon.restoring.restore import restore_table
from phantombase.compactor_daemon.restoring.rollback import roll_back_newest
from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.table.left_to_hudi import merges_no_logs
from phantombase.timeline.view.bucket_resize import HASHING_METADATA
from tests.support.archived_tables import long_table
from tests.support.clustered_tables import small_files, stitch
from tests.support.compaction_steps import open_table, run_one
from tests.support.log_compactions import MERGE_LOGS, request
from tests.support.refused_tables import digest
from tests.support.restored_tables import capture_changes
from tests.support.tables import one_of

LOCK = ProcessLock("buckets")


def hash_buckets(path: Path) -> None:
    """Hudi's hashing metadata of one partition."""
    (path / HASHING_METADATA / "1").mkdir(parents=True)


def writes(path: Path) -> list[str]:
    return list(open_table(path).load_timeline().completed_writes)


@one_of("version", 9, 6)
@pytest.mark.parametrize(
    ("kind", "make"),
    [("the consistent-hashing bucket index", hash_buckets), ("change data capture", capture_changes)],
)
@pytest.mark.parametrize(
    ("what", "step"),
    [
        ("restoring", lambda path: restore_table(open_table(path), LOCK, min(writes(path)))),
        ("taking back writes of", lambda path: roll_back_newest(open_table(path), LOCK, max(writes(path)))),
        ("stitching", stitch),
    ],
)
def test_refused_before_anything_is_changed(
    what: str, step: Callable[[Path], object], kind: str, make: Callable[[Path], None], version: int, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    small_files(path, version)
    make(path)
    there = digest(path)
    with pytest.raises(UnsupportedError, match=f"{what} a table with {kind}"):
        step(path)
    assert digest(path) == there


@one_of("version", 6, 9)
def test_writes_are_refused(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_files(path, version)
    hash_buckets(path)
    there = digest(path)
    with pytest.raises(UnsupportedError, match="writing a table with the consistent-hashing bucket index"):
        writer(pa.table({"id": ["a"]})).upsert(str(path))
    assert digest(path) == there


@one_of("version", 9, 8)
def test_log_files_are_not_merged_with_each_other(version: int, tmp_path: Path) -> None:
    """Their names do not show which writes they hold."""
    path = tmp_path / "t"
    long_table(path, version, 8, compact_at=None)
    plain = schedule_compaction(open_table(path), LOCK, MERGE_LOGS, dry_run=True)
    assert any(one.plan.merges_logs for one in plain.requested)
    hash_buckets(path)
    assert merges_no_logs(open_table(path))
    hashed = schedule_compaction(open_table(path), LOCK, MERGE_LOGS, dry_run=True)
    assert not any(one.plan.merges_logs for one in hashed.requested)
    instant = request(open_table(path))
    with pytest.raises(UnsupportedError, match=f"unschedule TABLE {instant}"):
        run_one(open_table(path), instant)


def test_on_version_6_they_are(tmp_path: Path) -> None:
    """There they carry the base instant, in every table."""
    path = tmp_path / "t"
    long_table(path, 6)
    hash_buckets(path)
    assert not merges_no_logs(open_table(path))
