"""Real Hudi behind a clean of phantombase, without Spark: the same slices, nothing to clean, and it finishes ours."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.compute as pc
import pytest

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.cleaning.options import Policy
from phantombase.timeline.pins.hold import HeldPin
from phantombase.timeline.pins.pin import PinOptions
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.cleaning.test_clean import ONE, old_table
from tests.cleaning.test_golden import LOCK, clean, data_files, unzip
from tests.interop.shared_table import HUDI
from tests.judge.java_client import run_java
from tests.support.archived_tables import one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import died_copies
from tests.support.selection import deep
from tests.support.written_tables import read_rows

pytestmark = pytest.mark.interop

OPTIONS = ("hoodie.clean.policy=KEEP_LATEST_COMMITS", "hoodie.cleaner.policy=KEEP_LATEST_COMMITS",
           "hoodie.clean.commits.retained=1", "hoodie.cleaner.commits.retained=1")  # fmt: skip
WHOLE = ("hoodie.clean.incremental.enabled=false", "hoodie.cleaner.incremental.mode=false")


def slices(version: int, path: Path) -> list[str]:
    """In any order: Hudi's goes by its hash of a file id."""
    return sorted(run_java(HUDI[version], "slices", path, "a"))


@pytest.mark.parametrize("version", [6, 9])
def test_hudi_finds_nothing_left(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, version)
    of_hudi = shutil.copytree(path, tmp_path / "hudi")
    before = slices(version, path)
    clean(path)
    run_java(HUDI[version], "clean", of_hudi, *OPTIONS, *WHOLE)
    assert data_files(path) == data_files(of_hudi)
    assert slices(version, path) == before
    assert "nothing" in run_java(HUDI[version], "clean", path, *OPTIONS, *WHOLE)[-1]
    upsert(path, one_row("k1", 200))
    assert read_rows(path)["k1"] == (200, 200.0)


@pytest.mark.parametrize("version", [deep(6), deep(9)])
def test_hudi_finishes_a_clean_of_a_dead_process(version: int, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    rows = old_table(origin, version)
    ended = shutil.copytree(origin, tmp_path / "ended")
    clean(ended)
    for _, path in died_copies(origin, lambda s: clean_table(Table.on(s), ONE, LOCK), 5):
        run_java(HUDI[version], "clean", path, *OPTIONS, *WHOLE)
        assert not open_table(path).load_timeline().pending("clean")
        assert data_files(path) == data_files(ended)
        assert read_rows(path) == rows


@pytest.mark.deep
def test_hudi_archives_no_replace_commit_whose_files_a_pin_keeps(tmp_path: Path) -> None:
    """It goes by the border that a clean of file versions names; without one the replaced rows were back."""
    path = unzip("v6_0.15.0_replaced.before", tmp_path)
    rows = read_table(open_table(path))
    commits = open_table(path).load_timeline().completed
    second = max(i.requested_time for i in commits if i.action == "replacecommit")
    moment = max(i.requested_time for i in commits if i.requested_time < second)
    HeldPin(LocalStorage(str(path)), PinOptions(name="reader", for_s=600), moment)
    assert clean(path, Policy.VERSIONS).files > 0
    south = rows.filter(pc.equal(rows["_hoodie_partition_path"], "south"))
    for _ in range(6):
        upsert(path, south.select([name for name in rows.column_names if not name.startswith("_hoodie")]))
    run_java("0.15.0", "archive", path, "hoodie.keep.min.commits=2", "hoodie.keep.max.commits=3", *OPTIONS)
    assert len(open_table(path).load_timeline().completed) < len(commits) + 6
    assert read_table(open_table(path)).num_rows == rows.num_rows
