"""A compaction of Hudi whose completed file is torn: Hudi takes it for completed, and so it is written anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phantombase.compactor_daemon.restoring.torn_compaction import write_anew
from phantombase.timeline.format.commit_metadata import CommitMetadata
from phantombase.timeline.locks.table_lock import ProcessLock
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.compaction_steps import open_table
from tests.support.selection import deep

pytestmark = pytest.mark.interop

LOCK = ProcessLock("interop torn compaction")


def _essence(metadata: CommitMetadata) -> object:
    """What readers, cleaners and archivers take from a compaction's file."""
    stats = metadata.partition_to_write_stats
    files = {
        partition: sorted((s.file_id, s.path, s.prev_commit, s.num_writes, s.file_size_in_bytes) for s in of)
        for partition, of in stats.items()
    }
    return files, metadata.operation_type, metadata.extra_metadata["schema"]


@pytest.mark.parametrize("size", [0, deep(300)])
@pytest.mark.parametrize("metadata_table", [deep(False), True])
def test_what_hudi_builds_upon_it_holds(
    judge: Judge, version: int, metadata_table: bool, size: int, tmp_path: Path
) -> None:
    """Hudi reads, writes and plans behind the torn file; written anew it says what Hudi's said."""
    options = METADATA_TABLE if metadata_table else {}
    table, rows = (
        SharedTable(judge=judge, path=tmp_path / "table", version=version, options=options),
        Rows(seed=version),
    )
    table.create(rows(range(60), 1))
    table.upsert(rows(range(0, 60, 2), 2))
    table.delete(rows(range(0, 60, 7), 3))
    table.hudi_schedules()
    table.upsert(rows(range(0, 60, 3), 4))
    table.hudi_compacts()
    whole = table.agree()
    opened = open_table(table.path)
    done = next(i for i in opened.load_timeline().completed if i.action == "commit")
    metadata, file = opened.commit_metadata(done), table.path / opened.instant_path(done)
    file.write_bytes(file.read_bytes()[:size])
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    os.utime(file, (file.stat().st_mtime - 1, file.stat().st_mtime - 1))
    same(table.hudi_reads(), whole)
    table.upsert(rows(range(0, 90, 5), 9))
    table.hudi_schedules()
    later = table.hudi_reads()
    before = file.stat().st_mtime_ns
    os.utime(file, ns=(before - 200 * 10**9, before - 200 * 10**9))
    write_anew(open_table(table.path), done.requested_time, LOCK)
    os.utime(file, ns=(before, before))
    assert _essence(open_table(table.path).commit_metadata(done)) == _essence(metadata)
    same(table.agree(), later)
    table.hudi_compacts()
    judge.clean(table.path)
    same(table.agree(), later)
