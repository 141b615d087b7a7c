"""Real Hudi on tables whose metadata table we made: it reads, lists and skips by it, and goes on with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.timeline.metadata_table.create import make_metadata_table
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.local import LocalStorage
from tests.hudi.cases.indexed_table import IndexedTable
from tests.hudi.cases.rows import Rows
from tests.hudi.cases.shared_table import check_rows, hudi_rs_reads
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.compare_rows import assert_same_rows
from tests.support.metadata_tables import AT_ONCE, serve, spec
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop

ROWS = Rows(seed=37)


@versions(9, deep=[8, 6])
def test_hudi_goes_on_with_it(judge: Judge, version: int, tmp_path: Path) -> None:
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=METADATA_TABLE)
    table.creator(ROWS(range(40), 1)).table("shared", metadata_table=True).upsert(str(table.path))
    assert table.open().config.built_metadata_partitions == ("files",)
    table.agree()
    if version > 6:
        assert_same_rows(hudi_rs_reads(table.path), table.we_read())
    table.upsert(ROWS(range(20, 50), 2))
    table.agree()
    for step in range(3):
        table.writer(ROWS(range(0, 60, 2), 10 + step)).upsert(str(table.path))
    assert serve(table.open(), AT_ONCE).compactions
    table.agree()
    last = ROWS(range(10, 70), 100)
    table.upsert(last)
    check_rows(table.agree(), last)
    assert validate(table.open()).differences == ()


@pytest.mark.parametrize("version", [deep(6), deep(8), deep(9)])
def test_hudi_builds_it_anew_where_its_maker_died(judge: Judge, version: int, tmp_path: Path) -> None:
    """Another process of ours then made the table without it; Hudi's writer finds the remains."""
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=METADATA_TABLE)
    make_metadata_table(LocalStorage(str(table.path)), spec(version).config())
    table.creator(ROWS(range(40), 1)).upsert(str(table.path))
    assert table.open().config.metadata_partitions == ()
    table.upsert(ROWS(range(20, 50), 2))
    assert "files" in table.open().config.built_metadata_partitions
    table.agree()
    table.writer(ROWS(range(20, 50), 3)).upsert(str(table.path))
    table.agree()
    assert validate(table.open()).differences == ()
