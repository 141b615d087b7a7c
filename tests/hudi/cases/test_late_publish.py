"""A compaction that is published long after it was decided, beside a Hudi writer that goes on with all its services."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phantombase.timeline.metadata_table.compactions import compacted_after
from phantombase.timeline.metadata_table.location import METADATA_FOLDER
from phantombase.timeline.storage.local import LocalStorage
from tests.hudi.cases.indexed_table import IndexedTable
from tests.hudi.cases.rows import Rows
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.compaction_steps import open_table, run_one
from tests.support.failing_storage import Call, HookedStorage, ProcessDied

pytestmark = pytest.mark.interop

SERVICES: dict[str, object] = {
    **METADATA_TABLE,
    "hoodie.clean.automatic": "true",
    "hoodie.archive.automatic": "true",
    "hoodie.cleaner.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}
COMPACT_AFTER = "hoodie.metadata.compact.max.delta.commits"
OFTEN, SELDOM = {COMPACT_AFTER: "4"}, {COMPACT_AFTER: "20"}
"""How many of its delta commits make Hudi compact the metadata table."""
ENOUGH = 6
"""Writes behind a compaction that let Hudi archive it."""


def dies_before_it_tells(call: Call) -> Any:
    """The compaction is decided, and the metadata table does not know of it yet."""
    if call.name == "put_if_absent" and call.path.startswith(METADATA_FOLDER):
        raise ProcessDied(call.path)
    return call.do()


@pytest.mark.deep
@pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
def test_its_files_stay_visible_when_it_is_archived(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi compacts the metadata table between the two, and archives the compaction before it does so again."""
    table = IndexedTable(judge=judge, path=tmp_path / "table", version=version, options=SERVICES)
    rows, ts = Rows(seed=11), iter(range(2, 100))
    table.create(rows(range(40), 1))
    table.upsert(rows(range(0, 40, 3), next(ts)))
    instant = table.we_schedule()
    with pytest.raises(ProcessDied):
        run_one(open_table(table.path, HookedStorage(LocalStorage(str(table.path)), dies_before_it_tells)), instant)
    writes = 0
    while writes < ENOUGH or not compacted_after(table.open(), instant):
        table.upsert(rows(range(0, 40, 3), next(ts)), OFTEN)
        writes += 1
    assert table.we_compact(instant) == [instant]
    for _ in range(3):
        table.upsert(rows(range(0, 40, 3), next(ts)), SELDOM)
        table.check_listing()
    table.agree()
