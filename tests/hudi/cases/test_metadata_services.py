"""Services of the metadata table by phantombase: real Hudi reads it, writes after them, finishes them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.folders import METADATA_FOLDER
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import open_metadata_table
from tests.hudi.cases.indexed_table import ALL_INDEXES, AT_ONCE, HUDI, IndexedTable, compact, slices_of_hudi
from tests.hudi.cases.rows import Rows, same, without_files
from tests.hudi.cases.shared_table import check_rows
from tests.hudi.judge.client import Judge
from tests.hudi.judge.java_client import run_java
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at_nth
from tests.support.metadata_tables import left_behind, serve, slices, to_clean
from tests.support.selection import ALL, deep, versions

pytestmark = pytest.mark.interop
ROWS = Rows(seed=17)
INDEXES = {**ALL_INDEXES, "hoodie.metadata.record.index.enable": "true"}
"""Our write takes the record index out, and Hudi's next one builds it anew. Not of 0.15: its own fails on our keys."""


def dead_at(table: IndexedTable, ending: str) -> None:
    """The metadata table's compaction dies before it puts a file of that ending."""

    def hook(call: Call) -> object:
        if call.name == "put_if_absent" and METADATA_FOLDER in call.path and call.path.endswith(ending):
            raise ProcessDied(call.path)
        return call.do()

    with pytest.raises(ProcessDied):
        serve_metadata(
            open_table(table.path, HookedStorage(LocalStorage(str(table.path)), hook)), AT_ONCE, ProcessLock("x")
        )


def compactions(table: IndexedTable) -> list[str]:
    """Completed ones of the metadata table."""
    timeline = open_metadata_table(table.open()).load_timeline()
    assert not timeline.pending_compactions
    return [i.requested_time for i in timeline.completed if i.action == "commit"]


@versions(9, deep=[8, 6])
def test_hudi_reads_and_writes_after_our_compaction(judge: Judge, version: int, tmp_path: Path) -> None:
    """Logs of ours and of Hudi's below it, logs of both above it, then again with base files of ours below."""
    table = IndexedTable(
        judge=judge, path=tmp_path / "table", version=version, options=ALL_INDEXES if version == 6 else INDEXES
    )
    table.create(ROWS(range(40), 1))
    table.upsert(ROWS(range(0, 40, 2), 2))
    expected = compact(table)
    table.agree()
    third, last = ROWS(range(20, 60), 3), ROWS(range(0, 60, 5), 5)
    table.upsert(third)
    check_rows(table.agree(), third)
    if not ALL:
        return
    table.writer(ROWS(range(0, 60, 3), 4)).upsert(str(table.path))
    expected |= compact(table)
    table.agree()
    table.we_schedule()
    table.we_compact()
    table.upsert(last)
    expected |= compact(table)
    check_rows(table.agree(), last)
    assert expected <= set(compactions(table))
    assert validate(table.open()).differences == ()


def hudi_goes_on(table: IndexedTable, rows: pa.Table) -> None:
    table.upsert(rows)


def we_go_on(table: IndexedTable, rows: pa.Table) -> None:
    compact(table)
    table.upsert(rows)


def we_go_on_beside_a_write_of_hudi(table: IndexedTable, rows: pa.Table) -> None:
    table.writer(rows).upsert(str(table.path))
    compact(table)


@versions(deep=[9, 8, 6])
def test_a_compaction_that_died_is_finished(judge: Judge, version: int, tmp_path: Path) -> None:
    """At each of its files; by Hudi, and by phantombase with a write in between."""
    made = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=ALL_INDEXES)
    made.create(ROWS(range(40), 1))
    made.upsert(ROWS(range(0, 40, 2), 2))
    cases: list[tuple[str, Callable[[IndexedTable, pa.Table], None]]] = [
        (".compaction.inflight", hudi_goes_on),
        (".hfile", we_go_on),
        (".commit", hudi_goes_on),
        (".commit", we_go_on_beside_a_write_of_hudi),
    ]
    rows = ROWS(range(10, 50), 7)
    for ending, go_on in cases:
        table = made.copy()
        dead_at(table, ending)
        table.agree()
        go_on(table, rows)
        check_rows(table.agree(), rows)
        assert compactions(table), (ending, go_on.__name__)
        assert validate(table.open()).differences == ()
        shutil.rmtree(table.path)


@versions(deep=[9, 8, 6])
def test_a_write_that_a_pending_compaction_holds_is_rolled_back(judge: Judge, version: int, tmp_path: Path) -> None:
    """The metadata table goes with the plan. Hudi's next write makes it anew, and reads the same rows by it."""
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=ALL_INDEXES)
    table.create(ROWS(range(40), 1))
    table.upsert(ROWS(range(0, 40, 2), 2))
    before = table.agree()
    table.writer(ROWS(range(20, 50), 3)).upsert(str(table.path))
    dead_at(table, ".compaction.inflight")
    newest = max(table.open().load_timeline().completed_writes)
    assert roll_back_newest(table.open(), ProcessLock("x"), newest).metadata_dropped
    same(without_files(table.agree()), without_files(before))
    rows = ROWS(range(10, 50), 7)
    table.upsert(rows)
    assert table.open().config.metadata_partitions
    check_rows(table.agree(), rows)


@versions(deep=[9, 8, 6])
def test_a_delta_commit_that_was_forgotten(judge: Judge, version: int, tmp_path: Path) -> None:
    """A process slept before it put a file of it, and lost its lock: its write was rolled back meanwhile."""
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=ALL_INDEXES)
    table.create(ROWS(range(40), 1))
    table.upsert(ROWS(range(0, 40, 2), 2))
    before = table.agree()
    instant = left_behind(table.path, 3)
    same(table.agree(), before)
    other = table.copy()
    assert serve_metadata(table.open(), AT_ONCE, ProcessLock("x")).forgotten == (instant,)
    rows = ROWS(range(10, 50), 7)
    for one in (table, other):  # Hudi ends it by itself
        same(one.agree(), before)
        one.upsert(rows)
        check_rows(one.agree(), rows)
        assert not [i for i in open_metadata_table(one.open()).load_timeline().instants if not i.completed]


# Real Hudi behind our cleans of the metadata table: the same slices, nothing to clean, and it finishes ours.


METADATA_CLEANING_ROWS = Rows(seed=23)
NO_COMPACTION = MetadataOptions(max_delta_commits=100)
OPTIONS = ("hoodie.clean.policy=KEEP_LATEST_FILE_VERSIONS", "hoodie.cleaner.policy=KEEP_LATEST_FILE_VERSIONS",
           "hoodie.clean.fileversions.retained=2", "hoodie.cleaner.fileversions.retained=2",
           "hoodie.clean.incremental.enabled=false", "hoodie.cleaner.incremental.mode=false")  # fmt: skip


def metadata_files(path: Path) -> set[str]:
    """Data files of the metadata table."""
    folder = path / METADATA_FOLDER
    found = (f.relative_to(folder) for f in folder.rglob("*") if f.is_file())
    return {str(f) for f in found if f.parts[0] != ".hoodie" and f.suffix != ".crc"}


@pytest.mark.parametrize("version", [deep(6), 9])
def test_hudi_finds_nothing_left(version: int, tmp_path: Path) -> None:
    path = to_clean(f"v{version}", tmp_path)
    of_hudi = shutil.copytree(path, tmp_path / "hudi")
    before = slices_of_hudi(version, path)
    assert serve(open_table(path), NO_COMPACTION).cleans
    run_java(HUDI[version], "clean", of_hudi / METADATA_FOLDER, *OPTIONS)
    assert metadata_files(path) == metadata_files(of_hudi)
    assert slices_of_hudi(version, path) == before
    assert "nothing" in run_java(HUDI[version], "clean", path / METADATA_FOLDER, *OPTIONS)[-1]


@pytest.mark.parametrize("version", [deep(6), deep(9)])
def test_hudi_finishes_a_clean_of_a_dead_process(version: int, tmp_path: Path) -> None:
    path = to_clean(f"v{version}", tmp_path)
    for call, ending in (("put_if_absent", ".inflight"), ("delete", ""), ("put_if_absent", ".clean")):
        died = shutil.copytree(path, tmp_path / f"{call}{ending}")
        storage = HookedStorage(LocalStorage(str(died)), die_at_nth(1, call, ending))
        with pytest.raises(ProcessDied):
            serve(open_table(died, storage), NO_COMPACTION)
        run_java(HUDI[version], "clean", died / METADATA_FOLDER, *OPTIONS)
        assert slices(died) == {2}
        assert all(i.completed for i in open_metadata_table(open_table(died)).load_timeline().instants)


@pytest.mark.parametrize("version", [deep(6), deep(9)])
def test_we_finish_a_clean_of_hudi(version: int, tmp_path: Path) -> None:
    """Its plan and inflight file, with the files still there."""
    path = to_clean(f"v{version}", tmp_path)
    whole = shutil.copytree(path, tmp_path / "whole")
    run_java(HUDI[version], "clean", path / METADATA_FOLDER, *OPTIONS)
    expected = metadata_files(path)
    for name in metadata_files(whole) - expected:
        shutil.copy(whole / METADATA_FOLDER / name, path / METADATA_FOLDER / name)
    (done,) = (path / METADATA_FOLDER / ".hoodie").rglob("*.clean")
    done.unlink()
    (clean,) = serve(open_table(path), NO_COMPACTION).cleans
    assert clean.finished
    assert metadata_files(path) == expected


@versions(deep=[9, 8, 6])
def test_hudi_reads_and_writes_behind_it(judge: Judge, version: int, tmp_path: Path) -> None:
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=ALL_INDEXES)
    table.create(METADATA_CLEANING_ROWS(range(40), 1))
    cleaned = 0
    for number in range(2, 6):
        for step in range(3):
            table.writer(METADATA_CLEANING_ROWS(range(0, 40, 2), 10 * number + step)).upsert(str(table.path))
        cleaned += len(serve(table.open(), NO_COMPACTION).cleans)
        compact(table)
    assert cleaned > 0
    table.agree()
    last = METADATA_CLEANING_ROWS(range(20, 60), 100)
    table.upsert(last)
    check_rows(table.agree(), last)
    assert validate(table.open()).differences == ()
