"""Tables with Hudi's change data capture: read, compacted, cleaned and written; Hudi's CDC query stays exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from phantombase import UnsupportedError
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.format.file_name import LogFileName, parse_data_file
from phantombase.timeline.locks.table_lock import ProcessLock
from tests.interop.change_queries import CAPTURED, by_key, changes_of, differences, rows_of
from tests.interop.shared_table import SharedTable
from tests.judge.client import Judge
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop

SIMPLE: dict[str, object] = {**CAPTURED, "hoodie.index.type": "SIMPLE"}
BUCKETS: dict[str, object] = {**CAPTURED, "hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": 2}


def change_files(path: Path) -> list[str]:
    """Names of the files of change data capture."""
    return sorted(file.name for file in path.glob("*/.*.cdc"))


def made(judge: Judge, path: Path, version: int, options: dict[str, object]) -> SharedTable:
    """By Hudi: with a base file written anew, which has a `.cdc` file, and log files."""
    table = SharedTable(judge=judge, path=path, version=version, options=options)
    table.create(rows_of(range(12), "first", 1))
    table.upsert(rows_of(range(0, 20, 2), "second", 2))
    table.delete(rows_of([1, 6], "gone", 3))
    table.upsert(rows_of([0, 3, 21], "fourth", 4))
    return table


@versions(9, 6, deep=(8,))
def test_the_changes_stay_through_our_services(judge: Judge, version: int, tmp_path: Path) -> None:
    """Compaction and log compaction; a clean removes the files of changes with the base files that they belong to."""
    table = made(judge, tmp_path / "table", version, SIMPLE)
    files = change_files(table.path)
    names = [parse_data_file(name) for name in files]
    assert names
    assert all(isinstance(name, LogFileName) and name.is_cdc for name in names)
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
    clean_table(table.open(), CleanOptions(retain=1, floor_s=0), ProcessLock("clean"))
    assert change_files(table.path) == change_files(hudis.path)
    table.agree()


def newest(table: SharedTable) -> str:
    """The instant of the newest write."""
    return table.open().load_timeline().latest_completed


@versions(9, 6, deep=(8,))
@pytest.mark.parametrize("options", [SIMPLE, deep(BUCKETS)], ids=["key index", "bucket index"])
def test_our_writes_are_told(judge: Judge, version: int, options: dict[str, object], tmp_path: Path) -> None:
    """Under a pending plan, too, where Hudi's own query fails on what Hudi itself writes. New keys go into new base
    files, not into small ones with rows of others."""
    table = made(judge, tmp_path / "table", version, options)
    path, state = str(table.path), by_key(table.agree())
    files, told = change_files(table.path), changes_of(judge, table.path)

    def write(step: Callable[[], object]) -> None:
        nonlocal state, told
        step()
        after, instant = by_key(table.agree()), newest(table)
        told[instant] = differences(state, after)
        assert told[instant]
        assert changes_of(judge, table.path) == told
        state = after

    write(lambda: table.writer(rows_of([0, 2, 3, 40, 41], "ours", 5)).upsert(path))
    write(lambda: table.writer(rows_of([4, 41], "", 6)).delete(path))
    write(lambda: table.writer(rows_of([50, 51], "inserted", 7)).insert(path))
    table.we_schedule()
    write(lambda: table.writer(rows_of([0, 3, 50, 60], "under plan", 8)).upsert(path))
    table.we_compact()
    assert changes_of(judge, table.path) == told
    write(lambda: table.writer(rows_of([0, 3, 50, 62], "behind it", 10)).upsert(path))
    write(lambda: table.upsert(rows_of([0, 5, 61], "of Hudi", 11)))
    assert len(change_files(table.path)) >= len(files)


@versions(9, 6, deep=(8,))
def test_our_overwrites_are_told(judge: Judge, version: int, tmp_path: Path) -> None:
    """Each row of the replaced file groups as deleted, each new one as inserted, as Hudi tells its own."""
    table = made(judge, tmp_path / "table", version, SIMPLE)
    path, told = str(table.path), changes_of(judge, table.path)
    steps: tuple[Callable[[], object], ...] = (
        lambda: table.writer(rows_of([3, 71], "over", 5)).insert_overwrite(path),
        lambda: table.writer(rows_of([1], "", 6)).delete_partition(path, ["south"]),
    )
    for number, step in enumerate(steps):
        before = {k: row for k, row in by_key(table.agree()).items() if row["p"] == ("north", "south")[number]}
        step()
        after = {k: row for k, row in by_key(table.agree()).items() if row["p"] == ("north", "south")[number]}
        told[newest(table)] = sorted(differences(before, {}) + differences({}, after), key=str)
        assert changes_of(judge, table.path) == told


@versions(9)
def test_what_is_refused(judge: Judge, version: int, tmp_path: Path) -> None:
    """Before anything is begun."""
    table = made(judge, tmp_path / "table", version, SIMPLE)
    path, rows = str(table.path), rows_of([1, 2], "ours", 9)
    before = sorted(file for file in table.path.rglob("*") if file.is_file())
    steps: tuple[Callable[[], object], ...] = (
        lambda: table.writer(rows).merge_into(path, update=["name"]),
        lambda: table.writer(rows).global_keys().upsert(path),
    )
    for refused in steps:
        with pytest.raises(UnsupportedError, match="change data capture"):
            refused()
    assert sorted(file for file in table.path.rglob("*") if file.is_file()) == before
