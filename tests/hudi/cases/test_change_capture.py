"""Tables with Hudi's change data capture: read, compacted and cleaned; Hudi's CDC query stays exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from phantombase import UnsupportedError
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.restoring.restore import restore_table
from phantombase.compactor_daemon.restoring.rollback import roll_back_newest
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.clustering.options import ClusterOptions
from phantombase.timeline.format.file_name import LogFileName, parse_data_file
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.parquet.output_options import OutputOptions
from tests.hudi.cases.change_queries import SIMPLE, changes_of, made, rows_of
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import Judge
from tests.support.selection import versions

pytestmark = pytest.mark.interop
LOCK = ProcessLock("change data capture")


def change_files(path: Path) -> list[str]:
    """Names of the files of change data capture."""
    return sorted(file.name for file in path.glob("*/.*.cdc"))


def named_changes(table: SharedTable) -> set[str]:
    """Paths of them that completed writes name."""
    ours = table.open()
    return {path for write in ours.load_timeline().completed for path in ours.commit_metadata(write).change_files}


@versions(9, deep=(8, 6))
def test_the_changes_stay_through_our_services(judge: Judge, version: int, tmp_path: Path) -> None:
    """Compaction and log compaction; a clean removes the files of changes with the base files that they belong to."""
    table = made(judge, tmp_path / "table", version, SIMPLE)
    files = change_files(table.path)
    names = [parse_data_file(name) for name in files]
    assert names
    assert all(isinstance(name, LogFileName) and name.is_cdc for name in names)
    assert named_changes(table) == {f"{file.parent.name}/{file.name}" for file in table.path.glob("*/.*.cdc")}
    told = changes_of(judge, table.path)
    assert table.we_merge_logs()
    assert changes_of(judge, table.path) == told
    table.we_may_schedule()
    assert changes_of(judge, table.path) == told
    table.compact_beside_hudi()
    assert changes_of(judge, table.path) == told
    assert change_files(table.path) == files
    table.upsert(rows_of([2, 5, 30], "fifth", 5))
    table.agree()
    table.we_schedule()
    table.we_compact()
    table.upsert(rows_of([7], "sixth", 6))
    hudis = table.copy()
    judge.clean(hudis.path, 1, SIMPLE)
    clean_table(table.open(), CleanOptions(retain=1, floor_s=0), LOCK)
    assert change_files(table.path) == change_files(hudis.path)
    table.agree()


@versions(9)
def test_what_is_refused(judge: Judge, version: int, tmp_path: Path) -> None:
    """Before anything is begun."""
    table = made(judge, tmp_path / "table", version, SIMPLE)
    path, rows = str(table.path), rows_of([1, 2], "ours", 9)
    before = sorted(file for file in table.path.rglob("*") if file.is_file())
    steps: tuple[Callable[[], object], ...] = (
        lambda: table.writer(rows).merge_into(path, update=["name", "ts"]),
        lambda: cluster_table(table.open(), ClusterOptions(), LOCK, output=OutputOptions(), threads=1),
        lambda: restore_table(table.open(), LOCK, "20200101000000000"),
        lambda: roll_back_newest(table.open(), LOCK, table.open().load_timeline().latest_completed),
    )
    for refused in steps:
        with pytest.raises(UnsupportedError, match="change data capture"):
            refused()
    assert sorted(file for file in table.path.rglob("*") if file.is_file()) == before
