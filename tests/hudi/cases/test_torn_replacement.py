"""An overwrite or clustering of Hudi whose completed file is torn: a restore takes it back, and Hudi goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.compactor_daemon.restoring.restore import restore_table
from phantombase.timeline.locks.table_lock import ProcessLock
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.compaction_steps import open_table
from tests.support.selection import deep

pytestmark = pytest.mark.interop

LOCK = ProcessLock("interop torn replacement")


@pytest.mark.parametrize("by", ["overwrite", deep("clustering")])
@pytest.mark.parametrize("metadata_table", [deep(False), True])
def test_what_it_replaced_is_back(judge: Judge, version: int, metadata_table: bool, by: str, tmp_path: Path) -> None:
    options = METADATA_TABLE if metadata_table else {}
    table, rows = (
        SharedTable(judge=judge, path=tmp_path / "table", version=version, options=options),
        Rows(seed=version),
    )
    table.create(rows(range(40), 1))
    table.upsert(rows(range(0, 40, 2), 2))
    table.hudi_schedules()
    table.hudi_compacts()
    before, target = table.agree(), open_table(table.path).load_timeline().latest_completed
    if by == "overwrite":
        judge.insert_overwrite(table.path, rows(range(3), 5), options)
    else:
        judge.cluster(table.path)
    opened = open_table(table.path)
    (done,) = (i for i in opened.load_timeline().completed if i.family == "replacecommit")
    file = table.path / opened.instant_path(done)
    file.write_bytes(b"")
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    restore_table(open_table(table.path), LOCK, target)
    same(table.agree(), before)
    table.upsert(rows(range(0, 50, 5), 9))
    table.hudi_schedules()
    later = table.agree()
    table.hudi_compacts()
    judge.clean(table.path)
    same(table.agree(), later)
