"""Real Hudi on a table with a metadata table that phantombase cleans: it lists, reads, writes and cleans on."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cleaning.would_clean import CleanResult
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.validate import validate
from tests.hudi.cases.rows import Rows
from tests.hudi.cases.shared_table import EVENT_TIME, SharedTable
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.selection import deep

pytestmark = pytest.mark.interop


def clean(table: SharedTable) -> CleanResult:
    return clean_table(table.open(), CleanOptions(retain=1, floor_s=0), ProcessLock("cleaning"))


def files(path: Path) -> set[str]:
    found = (p for p in path.rglob("*") if p.is_file() and ".hoodie" not in p.parts)
    return {str(p.relative_to(path)) for p in found if not p.name.endswith(".crc") and "partition_meta" not in p.name}


@pytest.mark.parametrize("version", [deep(6), deep(8), 9], indirect=True)
def test_hudi_goes_on_behind_a_clean(version: int, judge: Judge, tmp_path: Path) -> None:
    options = {**EVENT_TIME, **METADATA_TABLE}
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=options)
    rows = Rows(seed=11)
    table.create(rows(range(20), 1))
    for ts in (2, 3):
        table.upsert(rows(range(15), ts))
        table.we_compact(table.we_schedule())
    table.upsert(rows(range(5), 4))
    before = table.agree()
    done = clean(table)
    assert done.files > 0
    assert set(judge.listed_files(table.path)) == files(table.path)
    assert validate(table.open()).differences == ()
    assert table.agree().num_rows == before.num_rows
    table.upsert(rows(range(10, 30), 5))
    assert table.agree().num_rows == 30
    table.we_compact(table.we_schedule())
    table.upsert(rows(range(3), 6))
    judge.clean(table.path, options=METADATA_TABLE)
    assert clean(table).instant is None
    assert validate(table.open()).differences == ()
    assert table.agree().num_rows == 30
