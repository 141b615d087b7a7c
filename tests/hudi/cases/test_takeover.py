"""A compaction that its executor left half-way is finished by the other kind: ours by Hudi, Hudi's by ours."""

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

from phantombase.compactor_daemon.decisions.hudi_executors import inflight_path
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.storage.local import LocalStorage
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import MULTI_WRITER, SharedTable
from tests.hudi.judge.client import Judge, JudgeError
from tests.support.compaction_steps import check_no_strays, open_table, run_all
from tests.support.failing_storage import Hook, HookedStorage, ProcessDied, die_at_nth
from tests.support.selection import versions

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
