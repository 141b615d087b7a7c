"""Change data capture, read, written, compacted and cleaned: Hudi's CDC query stays exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

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
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.format.file_name import LogFileName, parse_data_file
from phantombase.timeline.locks.table_lock import ProcessLock
from tests.hudi.cases.change_queries import SIMPLE, Change, Row, changes_of, differences, made, rows_of
from tests.hudi.cases.shared_table import EVENT_TIME, SharedTable
from tests.hudi.judge.client import Judge
from tests.support.selection import deep, versions

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
        lambda: cluster_table(table.open(), ClusterOptions(), LOCK, output=OutputOptions()),
        lambda: restore_table(table.open(), LOCK, "20200101000000000"),
        lambda: roll_back_newest(table.open(), LOCK, table.open().load_timeline().latest_completed),
    )
    for refused in steps:
        with pytest.raises(UnsupportedError, match="change data capture"):
            refused()
    assert sorted(file for file in table.path.rglob("*") if file.is_file()) == before


# Writes of phantombase into tables with change data capture: Hudi's CDC query shows exactly what they changed.


_PAYLOAD = "org.apache.hudi.common.model."
KEYS: dict[str, object] = {**SIMPLE, **EVENT_TIME}
BUCKETS: dict[str, object] = {**KEYS, "hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": 2}
FLINK: dict[str, object] = {**KEYS, "hoodie.datasource.write.payload.class": f"{_PAYLOAD}EventTimeAvroPayload"}
OPERATIONS: dict[str, object] = {**KEYS, "hoodie.table.cdc.supplemental.logging.mode": "OP_KEY_ONLY"}
CASES = {
    "9 keys": (9, KEYS),
    "6 keys": deep(6, KEYS),
    "8 keys": deep(8, KEYS),
    "9 buckets": deep(9, BUCKETS),
    "6 buckets": deep(6, BUCKETS),
    "6 event time": deep(6, FLINK),
    "9 operations": deep(9, OPERATIONS),
    "6 operations": deep(6, OPERATIONS),
}
FEW = ArchiveOptions(min_instants=4, max_instants=5, commits_retained=1, compaction_commits=1)
State = Mapping[tuple[str, str], Row]
"""Rows by partition and key."""


def state_of(rows: pa.Table) -> State:
    """Of a snapshot, without Hudi's columns."""
    own = rows.select([name for name in rows.schema.names if not name.startswith("_hoodie")])
    return {(row["p"], row["id"]): row for row in own.to_pylist()}


def moved(rows: pa.Table) -> pa.Table:
    """Each row in the other partition."""
    other = {"north": "south", "south": "north"}
    return pa.Table.from_pylist([{**row, "p": other[row["p"]]} for row in rows.to_pylist()])


@pytest.mark.parametrize(("version", "options"), CASES.values(), ids=CASES, indirect=["version"])
def test_the_query_shows_what_we_changed(
    judge: Judge, version: int, options: dict[str, object], tmp_path: Path
) -> None:
    """Also what was written under a pending plan, where it cannot read what Hudi writes; and what Hudi writes behind.

    A row that moves to another partition is deleted and inserted. Behind an archiving of phantombase a query of 1.2.0
    must begin on the active timeline."""
    table = made(judge, tmp_path / "table", version, options)
    path, state, shown = str(table.path), state_of(table.agree()), changes_of(judge, table.path)

    def write(step: Callable[[], object], *, replaced: str | None = None) -> None:
        """`replaced`: a partition, of whose rows each one is deleted, and inserted if it is there again."""
        nonlocal state
        step()
        after = state_of(table.we_read())
        kept = {key: row for key, row in state.items() if key[0] != replaced}
        gone = differences(state, kept)
        changes: list[Change] = sorted(gone + differences(kept, after), key=str)
        shown[table.open().load_timeline().latest_completed] = changes
        assert changes
        state = after

    def check() -> None:
        assert changes_of(judge, table.path) == shown
        table.agree()

    write(lambda: table.writer(rows_of([0, 2, 3, 40, 41], "ours", 5)).upsert(path))
    write(lambda: table.writer(rows_of([4, 41, 99], "", 6)).delete(path))
    write(lambda: table.writer(rows_of([50, 51], "inserted", 7)).insert(path))
    write(lambda: table.writer(rows_of([0, 2, 3, 52], "late", 1)).upsert(path))
    write(lambda: table.writer(rows_of([4, 41], "again", 6)).upsert(path))
    table.we_schedule()
    write(lambda: table.writer(rows_of([0, 3, 50, 60], "under the plan", 8)).upsert(path))
    write(lambda: table.writer(rows_of([3, 8], "", 9)).delete(path))
    check()
    table.we_compact()
    write(lambda: table.writer(rows_of([0, 3, 50, 62], "behind it", 10)).upsert(path))
    write(lambda: table.upsert(rows_of([0, 5, 61], "of Hudi", 11)))
    write(lambda: table.writer(moved(rows_of([0, 5, 90], "moved", 12))).global_keys().upsert(path))
    check()
    if version > 6:
        write(lambda: table.writer(rows_of([7, 71], "over", 13)).insert_overwrite(path), replaced="north")
        write(lambda: table.writer(rows_of([2], "", 14)).delete_partition(path, ["south"]), replaced="south")
        check()
    archive_table(table.open(), FEW, ProcessLock("changes"))
    first, *later = sorted(table.open().load_timeline().completed_writes.keys() & shown.keys())
    assert later
    assert first > min(shown)
    assert changes_of(judge, table.path, begin=first) == {instant: shown[instant] for instant in later}
