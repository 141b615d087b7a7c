"""COPY_ON_WRITE tables: we read what Hudi reads, also as of each write, and refuse to change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase import UnsupportedError, read
from phantombase.timeline.table.table import Table
from tests.interop.rows import DECIMAL, SCHEMA, Rows, same
from tests.interop.shared_table import SharedTable
from tests.judge.client import METADATA_TABLE, Judge
from tests.support.selection import versions

pytestmark = pytest.mark.interop

OPTIONS = {"hoodie.datasource.write.table.type": "COPY_ON_WRITE", **METADATA_TABLE}


@versions(9, 6, deep=(8,))
def test_we_read_what_hudi_reads(judge: Judge, version: int, tmp_path: Path) -> None:
    """Upserts, deletes, an insert overwrite, a clustering and a clean."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=OPTIONS)
    # 0.15 cannot update decimals that its clustering has written.
    columns = [name for name in SCHEMA.names if version > 6 or name != DECIMAL]
    path, rows = str(table.path), Rows(version, columns)

    def agree() -> None:
        hudis = table.hudi_reads()
        same(read(path).to_arrow(), hudis)
        same(read(path, query="read-optimized").to_arrow(), hudis)

    table.create(rows(range(60), 5))
    agree()
    table.upsert(rows(range(0, 90, 2), 6))
    table.delete(rows(range(20), 9))
    agree()
    judge.insert_overwrite(table.path, rows(range(3, 30, 7), 7), OPTIONS)
    agree()
    judge.cluster(table.path, OPTIONS)
    table.upsert(rows(range(5, 40), 8))
    agree()
    opened = Table.open(path, reading=True)
    for instant in opened.load_timeline().completed_writes:
        same(read(path, as_of=instant).to_arrow(), judge.read(table.path, as_of=instant))
    judge.clean(table.path, 1, OPTIONS)
    agree()
    for refused in (Table.open, lambda p: table.writer(rows(range(3), 9)).upsert(p)):
        with pytest.raises(UnsupportedError, match="nothing to compact"):
            refused(path)
    for query in ("incremental", "changes"):
        with pytest.raises(UnsupportedError, match="incremental reads of COPY_ON_WRITE"):
            read(path, query=query, begin="earliest").to_arrow()
