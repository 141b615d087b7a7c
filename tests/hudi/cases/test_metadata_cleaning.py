"""Real Hudi behind our cleans of the metadata table: the same slices, nothing to clean, and it finishes ours."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from phantombase.timeline.metadata_table.location import METADATA_FOLDER, open_metadata_table
from phantombase.timeline.metadata_table.services.options import MetadataOptions
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.local import LocalStorage
from tests.hudi.cases.indexed_table import ALL_INDEXES, IndexedTable
from tests.hudi.cases.metadata_of_hudi import compact, slices_of_hudi
from tests.hudi.cases.rows import Rows
from tests.hudi.cases.shared_table import HUDI, check_rows
from tests.hudi.judge.client import Judge
from tests.hudi.judge.java_client import run_java
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at_nth
from tests.support.metadata_tables import serve, slices, to_clean
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop
ROWS = Rows(seed=23)
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
    table.create(ROWS(range(40), 1))
    cleaned = 0
    for number in range(2, 6):
        for step in range(3):
            table.writer(ROWS(range(0, 40, 2), 10 * number + step)).upsert(str(table.path))
        cleaned += len(serve(table.open(), NO_COMPACTION).cleans)
        compact(table)
    assert cleaned > 0
    table.agree()
    last = ROWS(range(20, 60), 100)
    table.upsert(last)
    check_rows(table.agree(), last)
    assert validate(table.open()).differences == ()
