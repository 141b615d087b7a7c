"""Tables as real Hudi's services left them, with a long history or a metadata table that was archived."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from phantombase.timeline.archiving import levels
from phantombase.timeline.archiving.options import ArchiveOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.services.options import MetadataOptions
from phantombase.timeline.metadata_table.services.serve import serve_metadata
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.table_read import read_table
from tests.support.archived_tables import archive, archive_of, completed, unzipped
from tests.support.compaction_steps import open_table


def _unlocked() -> AbstractContextManager[Callable[[], None]]:
    return nullcontext(lambda: None)


def _named(manifest: Path) -> list[dict[str, object]]:
    files: list[dict[str, object]] = json.loads(manifest.read_text())["files"]
    return files


def test_a_level_is_merged_as_by_hudi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real Hudi merged four files, one of them of phantombase: the same files become one of the same name and rows."""
    theirs = unzipped("v9_1.2.0_lsm_compacted", tmp_path / "theirs")
    ours = shutil.copytree(theirs, tmp_path / "ours")
    before = completed(ours)
    history = Path(".hoodie/timeline/history")
    merged = next((theirs / history).glob("*_1.parquet"))
    (ours / history / "manifest_6").unlink()
    (ours / history / merged.name).unlink()
    (ours / history / "_version_").write_text("5")
    monkeypatch.setattr(levels, "next_merge", partial(levels.next_merge, count=4))
    table = open_table(ours)
    made = levels.compact_history(table.storage, table.config, _unlocked)
    assert made == (merged.name,)
    columns = pq.read_schema(ours / history / merged.name).names
    rows, expected = (pq.read_table(path / history / merged.name).select(columns) for path in (ours, theirs))
    assert rows.to_pylist() == expected.to_pylist()
    names = [[f["fileName"] for f in _named(path / history / "manifest_6")] for path in (ours, theirs)]
    assert names[0] == names[1]
    assert {p.name for p in (ours / history).glob("[0-9m]*")} == {p.name for p in (theirs / history).glob("[0-9m]*")}
    assert completed(ours) == completed(theirs) == before


@pytest.mark.parametrize("name", ["v6_0.15.0_mdt.early", "v6_0.15.0_mdt.late"])
def test_a_metadata_table_that_hudi_serves(name: str, tmp_path: Path) -> None:
    """Seven commits, or 27 and six compactions with twelve archive files: phantombase reads it and goes on serving."""
    path = unzipped(name, tmp_path)
    rows = read_table(open_table(path)).sort_by("_hoodie_record_key")
    assert rows.num_rows > 0
    assert validate(open_table(path)).differences == ()
    served = []
    for _ in range(2):
        served.append(serve_metadata(open_table(path), MetadataOptions(max_delta_commits=1), ProcessLock("x")))
        assert validate(open_table(path)).differences == ()
        assert read_table(open_table(path)).sort_by("_hoodie_record_key") == rows
    first, second = served
    assert (len(first.compactions), len(first.cleans)) == (1, 0 if name.endswith("early") else 1)
    assert (second.compactions, second.cleans) == ((), ())


def test_an_archive_of_five_files_goes_on(tmp_path: Path) -> None:
    """What Hudi archived in five runs is read as one history, and ours is put behind it."""
    path = unzipped("v6_0.15.0_archive.after2", tmp_path)
    rows = read_table(open_table(path)).sort_by("_hoodie_record_key")
    before, theirs = completed(path), archive_of(path)
    assert len(list((path / ".hoodie/archived").glob(".commits_.archive.*"))) == 5
    archive(path, ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1))
    ours = archive_of(path)
    assert ours[: len(theirs)] == theirs
    assert len(ours) > len(theirs)
    assert completed(path) == before
    assert read_table(open_table(path)).sort_by("_hoodie_record_key") == rows
