"""The metadata table that real Hudi has written, filled and compacted, as we read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.timeline.metadata_table.compactions import commits_to_compact
from phantombase.timeline.metadata_table.listing import MetadataListing
from phantombase.timeline.metadata_table.location import open_metadata_table
from phantombase.timeline.metadata_table.read import read_entries, read_files
from phantombase.timeline.metadata_table.valid_instants import MADE_UP
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import latest_base
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import SharedTable, check_rows
from tests.hudi.judge.client import Judge

pytestmark = pytest.mark.interop

KEYS = 10_000
OPTIONS: Mapping[str, object] = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.compact.max.delta.commits": 2,
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": 1,
    "hoodie.metadata.record.index.max.filegroup.count": 1,
    "hoodie.index.bloom.num_entries": 1000,
}


def rows_of(numbers: Iterable[int], when: int) -> pa.Table:
    """Rows with keys in ASCII: Hudi 0.15 sorts others for its record index otherwise than HFiles must be sorted."""
    listed = list(numbers)
    return Rows(seed=when)(listed, when).set_column(0, "id", pa.array([f"{n:05d}" for n in listed]))


def base_instant(table: Table, partition: str) -> str:
    """The instant of the newest base file of a partition of the metadata table."""
    groups = open_metadata_table(table).load_view(exactly={partition}).groups
    return max(base.name.instant for group in groups if (base := latest_base(group)) is not None)


@pytest.mark.parametrize("version", [9, pytest.param(6, marks=pytest.mark.deep)], indirect=True, ids="v{}".format)
def test_reading_what_hudi_writes(judge: Judge, version: int, tmp_path: Path) -> None:
    """Base files of one entry and of many blocks, log blocks on them, and what compactions make of both."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=OPTIONS)
    table.create(rows_of(range(KEYS), 1))
    for number in range(2, 4):
        written = rows_of(range(0, 200 * number, number), number)
        table.upsert(written)
        opened = table.open()
        found = validate(opened)
        assert not found.differences
        assert found.files >= 2
        assert commits_to_compact(opened) <= 3
        index = [key for key, _ in read_entries(opened, "record_index")]
        assert len(index) == len(set(index)) == KEYS
        rows = read_table(Table(opened.storage, opened.config, MetadataListing()))
        check_rows(rows, written)
        same(rows, table.agree())
    for partition in ("files", "record_index"):
        assert not base_instant(opened, partition).startswith(MADE_UP), "the metadata table was not compacted"
    judge.clean(table.path)
    assert not validate(table.open()).differences
    assert set(read_files(table.open()).partitions) == set(table.open().partitions())
