"""COPY_ON_WRITE tables: we read what Hudi reads, also as of each write, and refuse to change them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import UnsupportedError, read
from phantombase.timeline.table.table import Table
from tests.hudi.cases.rows import DECIMAL, SCHEMA, Rows, same
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.change_feeds import State, check_window, key, moments_of, plain
from tests.support.selection import versions

pytestmark = pytest.mark.interop

OPTIONS = {"hoodie.datasource.write.table.type": "COPY_ON_WRITE", **METADATA_TABLE}


@versions(9, deep=(8, 6))
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


@pytest.mark.deep
@versions(9, deep=(6, 8))
def test_windows(judge: Judge, version: int, tmp_path: Path) -> None:
    """Of incremental reads: as Hudi's; of change feeds: the states that Hudi reads follow from them."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=OPTIONS)
    path, rows = str(table.path), Rows(version, [name for name in SCHEMA.names if version > 6 or name != DECIMAL])
    states: dict[str, State] = {"": {}}

    def written() -> None:
        timeline = Table.open(path, reading=True).load_timeline()
        states[timeline.moment_of(timeline.completed[-1])] = state_of(table.hudi_reads())

    table.create(rows(range(60), 5))
    written()
    table.upsert(rows(range(0, 90, 2), 6))
    written()
    table.delete(rows(range(20), 9))
    written()
    judge.insert_overwrite(table.path, rows(range(3, 30, 7), 7), OPTIONS)
    written()
    judge.cluster(table.path, OPTIONS)
    written()
    table.upsert(rows(range(5, 40), 8))
    written()
    opened = Table.open(path, reading=True)
    assert moments_of(opened) == list(states)
    for begin, end in [*pairwise(states), ("", max(states))]:
        ours = read(path, query="incremental", begin=begin or "earliest", end=end).to_arrow()
        same(ours, judge.read(table.path, query="incremental", options=window(begin, end)))
        assert end != max(states) or begin or state_of(ours) == states[end]
        check_window(opened, begin, end, states)


def window(begin: str, end: str) -> dict[str, object]:
    """A window under Hudi's names."""
    name = "hoodie.datasource.read.{}.instanttime"
    return {name.format("begin"): begin or "000", name.format("end"): end}


def state_of(rows: pa.Table) -> State:
    """The rows as change feeds know them."""
    return {key(row): plain(row) for row in rows.to_pylist()}
