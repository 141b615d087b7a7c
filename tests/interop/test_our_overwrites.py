"""Overwrites and deleted partitions of ours beside the same ones of real Hudi, which reads ours and goes on."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phantombase import writer
from tests.interop.indexed_table import ALL_INDEXES, IndexedTable
from tests.interop.rows import Rows, same
from tests.interop.shared_table import BUCKET, EVENT_TIME, SharedTable, check_rows
from tests.judge.client import Judge
from tests.support.selection import deep

pytestmark = pytest.mark.interop

INDEX = pytest.mark.parametrize("index", [{}, deep(BUCKET)], ids=["keys", "buckets"])
OVERWRITE_TABLE = {"hoodie.datasource.write.operation": "insert_overwrite_table"}


@INDEX
def test_overwrites(judge: Judge, version: int, tmp_path: Path, index: dict[str, object]) -> None:
    """After each one, Hudi reads of our table the rows of its own; in between it upserts, compacts and cleans ours."""
    options = {**EVENT_TIME, **ALL_INDEXES, **index}
    table = IndexedTable(
        judge=judge, version=version, path=tmp_path / "table", options=options, random=random.Random(version)
    )
    rows = Rows(seed=version)
    table.create(rows(range(60), 2))
    table.upsert(rows(range(0, 60, 3), 3))
    hudis = table.copy()
    judge.adopt(hudis.path, options)

    news = rows([*range(100, 120), 101], 5).filter(pc.equal(rows(range(100, 121), 5)["p"], "north"))
    news = pa.concat_tables([news, news.slice(0, 1)])
    judge.insert_overwrite(hudis.path, news)
    assert table.writer(news).insert_overwrite(str(table.path)).replaced
    equal(table, hudis)

    latest = rows(range(0, 120, 4), 9)
    for one in (table, hudis):
        one.upsert(latest)
    equal(table, hudis)
    table.hudi_schedules()
    assert table.we_compact()
    table.agree()

    judge.delete_partition(hudis.path, "south")
    writer().delete_partition(str(table.path), ["sou*"])
    equal(table, hudis)
    judge.clean_by_versions(table.path)
    equal(table, hudis)

    judge.write(hudis.path, news, {**judge._writer_options(hudis.path), **options, **OVERWRITE_TABLE})
    table.writer(news).insert_overwrite_table(str(table.path))
    equal(table, hudis)
    none = news.slice(0, 0)
    judge.write(hudis.path, none, {**judge._writer_options(hudis.path), **options, **OVERWRITE_TABLE})
    table.writer(none).insert_overwrite_table(str(table.path))
    assert hudis.hudi_reads().num_rows == 0
    assert table.agree().num_rows == 0
    table.upsert(latest)
    table.upsert(latest.slice(0, 9))
    assert table.hudi_schedules()
    table.hudi_compacts()
    check_rows(table.agree(), latest)


def equal(table: SharedTable, hudis: SharedTable) -> None:
    """Both tables hold the same rows; each reader reads the same of ours."""
    names = [name for name in table.agree().schema.names if not name.startswith("_hoodie")]
    same(table.hudi_reads().select(names), hudis.hudi_reads().select(names))
