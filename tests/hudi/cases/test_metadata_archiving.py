"""Real Hudi behind our archiving of the metadata table: its archive and slices, its writes, and its own archiving."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.metadata_services import retention
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.timeline.instants.archived_timeline import load_history
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.folders import METADATA_FOLDER
from phantombase.timeline.table.table import open_metadata_table
from tests.hudi.cases.indexed_table import ALL_INDEXES, HUDI, IndexedTable, slices_of_hudi
from tests.hudi.cases.rows import Rows
from tests.hudi.cases.shared_table import check_rows
from tests.hudi.judge.client import Judge
from tests.hudi.judge.java_client import archived_instants
from tests.support.compaction_steps import open_table
from tests.support.metadata_tables import EVERY_3, FEW, made, serve, written_and_archived
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop

METADATA_ARCHIVING_ROWS = Rows(seed=31)
HUDI_ARCHIVES = {
    "hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", "hoodie.archive.automatic": "true",
    "hoodie.clean.commits.retained": "1", "hoodie.cleaner.commits.retained": "1",
    "hoodie.metadata.compact.max.delta.commits": "2", "hoodie.archive.merge.enable": "false",
}  # fmt: skip


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few instants of the metadata table are archived."""
    monkeypatch.setattr(retention, "OPTIONS", FEW)


@pytest.mark.parametrize("version", [deep(6), deep(8), 9])
def test_hudi_sees_the_same_slices_and_our_archive(version: int, tmp_path: Path) -> None:
    path = made(f"v{version}", tmp_path)
    written_and_archived(path, 9)
    before = slices_of_hudi(version, path)
    metadata = open_metadata_table(open_table(path))
    assert len(metadata.load_timeline().instants) < 15
    mine = sorted((i.requested_time, i.action) for i in load_history(metadata.storage, metadata.config))
    assert len(mine) > 5
    assert sorted(archived_instants(HUDI[version], path / METADATA_FOLDER)) == mine
    serve(open_table(path), MetadataOptions(max_delta_commits=100))
    assert slices_of_hudi(version, path) == before


@versions(deep=[9, 8, 6])
def test_hudi_goes_on_behind_it_and_we_behind_hudi(judge: Judge, version: int, tmp_path: Path) -> None:
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=ALL_INDEXES)
    table.create(METADATA_ARCHIVING_ROWS(range(40), 1))
    archived = 0
    for number in range(2, 5):
        for step in range(4):
            table.writer(METADATA_ARCHIVING_ROWS(range(0, 40, 2), 10 * number + step)).upsert(str(table.path))
            done = serve(table.open(), EVERY_3)
            print(
                "DBG",
                number,
                step,
                done,
                len(open_metadata_table(table.open()).load_timeline().instants),
                table.open().load_timeline().instants[0].requested_time,
            )
            archived += len(done.archived.instants)
            archive_table(table.open(), FEW, ProcessLock("x"))
        for step in range(4, 7):
            table.upsert(METADATA_ARCHIVING_ROWS(range(0, 40, 3), 10 * number + step), HUDI_ARCHIVES)
        table.agree()
        assert validate(table.open()).differences == ()
    assert archived >= 4
    last = METADATA_ARCHIVING_ROWS(range(20, 60), 100)
    table.upsert(last)
    check_rows(table.agree(), last)
