"""A compaction whose executor died is finished by the other kind; torn plans and replacements too."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.attempt.hudi_executors import inflight_path
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.undo.repair import write_anew
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.commit_metadata import CommitMetadata
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.storage.local import LocalStorage
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import MULTI_WRITER, SharedTable
from tests.hudi.judge.client import METADATA_TABLE, Judge, JudgeError
from tests.support.compaction_steps import check_no_strays, open_table, run_all
from tests.support.failing_storage import Hook, HookedStorage, ProcessDied, die_at_nth
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop
KILLED: Mapping[str, Callable[[], Hook]] = {
    "before go": lambda: die_at_nth(1, "put_if_absent", "/outcome"),
    "one file placed": lambda: die_at_nth(2, "place", ".parquet"),
    "all files placed": lambda: die_at_nth(1, "put_if_absent", "commit"),
}
"""Where our process is killed."""


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Judge, int], Path]:
    """By table version, a table with a plan of Hudi's and newer logs on top; made once."""

    @cache
    def make(judge: Judge, version: int) -> Path:
        made = SharedTable(judge=judge, path=tmp_path_factory.mktemp("origin") / "table", version=version)
        rows = Rows(seed=version)
        made.create(rows(range(40), 1))
        made.upsert(rows(range(0, 40, 2), 2))
        made.hudi_schedules()
        made.upsert(rows(range(0, 40, 3), 3))
        return made.path

    return make


@pytest.fixture
def table(judge: Judge, version: int, origins: Callable[[Judge, int], Path], tmp_path: Path) -> SharedTable:
    """A copy of it."""
    shutil.copytree(origins(judge, version), tmp_path / "table")
    return SharedTable(judge=judge, path=tmp_path / "table", version=version)


@versions(9, deep=(6,))
def test_hudi_finishes_what_we_left(table: SharedTable) -> None:
    """It asks nobody and runs the plan; what is ours lies beside its files until our next run, which removes it."""
    before, (instant,) = table.agree(), table.pending()
    for killed in KILLED:
        left = killed_copy(table, killed)
        left.hudi_compacts(instant)
        same(left.agree(), before)
        assert left.we_compact() == []
        check_no_strays(left.path)
    finish_beside_hudi(left, before)


@versions(8, deep=[9])
def test_hudi_in_a_multi_writer_mode_finishes_what_we_left_once_our_heartbeat_is_stale(table: SharedTable) -> None:
    """Until then it refuses."""
    before, (instant,) = table.agree(), table.pending()
    left = killed_copy(table, "one file placed")
    with pytest.raises(JudgeError, match="heartbeat"):
        table.judge.run_compaction(left.path, instant, MULTI_WRITER)
    long_ago = time.time() - 3600
    os.utime(left.path / heartbeat_path(instant), (long_ago, long_ago))
    assert table.judge.run_compaction(left.path, instant, MULTI_WRITER) == [instant]
    assert left.we_compact() == []
    finish_beside_hudi(left, before)


@versions(6, deep=(9,))
def test_we_finish_what_hudi_left(table: SharedTable) -> None:
    """Inflight, markers and a base file stop us until they are old; then ours counts and its base file goes."""
    before, (instant,) = table.agree(), table.pending()
    done = table.copy()
    done.hudi_compacts(instant)
    shutil.copy(done.path / inflight_path(done.open(), instant), table.path / inflight_path(table.open(), instant))
    stray = next(done.path.glob(f"*/*_{instant}.parquet")).relative_to(done.path)
    shutil.copy(done.path / stray, table.path / stray)
    marker = table.path / ".hoodie" / ".temp" / instant / f"{stray}.marker.CREATE"
    marker.parent.mkdir(parents=True)
    marker.touch()
    with pytest.raises(ConflictError, match="at work"):
        table.we_compact()
    assert table.we_compact(attempt=AttemptOptions(foreign_grace_s=0)) == [instant]
    assert not (table.path / stray).exists()
    finish_beside_hudi(table, before)


def killed_copy(table: SharedTable, killed: str) -> SharedTable:
    """A copy of the table where our process was killed at work."""
    left = replace(table, path=table.path.with_name(killed.replace(" ", "-")))  # Spark takes no blanks
    shutil.copytree(table.path, left.path)
    with pytest.raises(ProcessDied):
        run_all(open_table(left.path, HookedStorage(LocalStorage(str(left.path)), KILLED[killed]())))
    assert left.pending() == table.pending()
    return left


def finish_beside_hudi(table: SharedTable, before: pa.Table) -> None:
    """The table is whole, and Hudi goes on with it: reads, upserts, compacts, cleans."""
    same(table.agree(), before)
    check_no_strays(table.path)
    rows = Rows(seed=7)(range(0, 60, 5), 9)
    table.upsert(rows)
    written = table.agree()
    table.hudi_compacts(table.we_schedule())
    table.judge.clean(table.path)
    same(table.agree(), written)


# A compaction of Hudi whose completed file is torn: Hudi takes it for completed, and so it is written anew.


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


# An overwrite or clustering of Hudi whose completed file is torn: a restore takes it back, and Hudi goes on.


TORN_REPLACEMENT_LOCK = ProcessLock("interop torn replacement")


@pytest.mark.parametrize("by", ["overwrite", deep("clustering")])
@pytest.mark.parametrize("metadata_table", [deep(False), True])
def test_what_it_replaced_is_back(judge: Judge, version: int, metadata_table: bool, by: str, tmp_path: Path) -> None:
    options = METADATA_TABLE if metadata_table else {}
    table, rows = (
        SharedTable(judge=judge, path=tmp_path / "table", version=version, options=options),
        Rows(seed=version),
    )
    table.create(rows(range(40), 1))
    table.upsert(rows(range(0, 40, 2), 2))
    table.hudi_schedules()
    table.hudi_compacts()
    before, target = table.agree(), open_table(table.path).load_timeline().latest_completed
    if by == "overwrite":
        judge.insert_overwrite(table.path, rows(range(3), 5), options)
    else:
        judge.cluster(table.path)
    opened = open_table(table.path)
    (done,) = (i for i in opened.load_timeline().completed if i.family == "replacecommit")
    file = table.path / opened.instant_path(done)
    file.write_bytes(b"")
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    restore_table(open_table(table.path), TORN_REPLACEMENT_LOCK, target)
    same(table.agree(), before)
    table.upsert(rows(range(0, 50, 5), 9))
    table.hudi_schedules()
    later = table.agree()
    table.hudi_compacts()
    judge.clean(table.path)
    same(table.agree(), later)
