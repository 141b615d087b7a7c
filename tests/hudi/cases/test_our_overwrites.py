"""Overwrites and deleted partitions of ours beside the same ones of real Hudi, which reads ours and goes on."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phantombase import writer
from phantombase.timeline.parquet.output_options import Bloom, OutputOptions
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.hudi.cases.indexed_table import ALL_INDEXES, CONDITIONS, IndexedTable
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import BUCKET, EVENT_TIME, SharedTable, check_rows
from tests.hudi.judge.client import Judge
from tests.support.failing_storage import died_copies
from tests.support.selection import ALL, deep, versions

pytestmark = pytest.mark.interop

INDEX = pytest.mark.parametrize("index", [{}, deep(BUCKET)], ids=["keys", "buckets"])
OVERWRITE_TABLE = {"hoodie.datasource.write.operation": "insert_overwrite_table"}


@INDEX
@versions(9, deep=[6, 8])
def test_overwrites(judge: Judge, version: int, tmp_path: Path, index: dict[str, object]) -> None:
    """After each one, Hudi reads of our table the rows of its own; in between it upserts, compacts and cleans ours."""
    options = {**EVENT_TIME, **ALL_INDEXES, **index}
    table = IndexedTable(
        judge=judge,
        version=version,
        path=tmp_path / "table",
        options=options,
        random=random.Random(version),
        conditions=CONDITIONS if ALL else 0,
    )
    rows = Rows(seed=version)
    table.create(rows(range(60), 2))
    table.upsert(rows(range(0, 60, 3), 3))
    hudis = table.copy()
    judge.adopt(hudis.path, options)

    news = rows([*range(100, 120), 101], 5).filter(pc.equal(rows(range(100, 121), 5)["p"], "north"))
    news = pa.concat_tables([news, news.slice(0, 1)])
    timeline = table.open().load_timeline()
    begin = timeline.moment_of(timeline.completed[-1])
    judge.insert_overwrite(hudis.path, news)
    assert table.writer(news).insert_overwrite(str(table.path)).replaced
    equal(table, hudis)
    since = {"hoodie.datasource.read.begin.instanttime": begin}
    ours, theirs = (judge.read(one.path, query="incremental", options=since) for one in (table, hudis))
    assert sorted(ours["id"].to_pylist()) == sorted(theirs["id"].to_pylist()) == sorted(news["id"].to_pylist())

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


@pytest.mark.parametrize("version", [deep(9), deep(6)], indirect=True, ids="v{}".format)
@pytest.mark.parametrize("operation", [Operation.INSERT_OVERWRITE, Operation.DELETE_PARTITION], ids=lambda o: o.value)
def test_hudi_rolls_a_dead_one_back(judge: Judge, version: int, tmp_path: Path, operation: Operation) -> None:
    """Its next write does so; nothing is replaced, and nothing of the new rows is left."""
    table = IndexedTable(judge=judge, version=version, path=tmp_path / "table", options={**EVENT_TIME, **ALL_INDEXES})
    rows = Rows(seed=version)
    table.create(rows(range(40), 2))
    before, news = table.agree(), rows(range(100, 110), 5)
    what = Write(operation=operation, options=WriteOptions(slots=1, output=OutputOptions(bloom=Bloom.OFF)))

    def overwrites(storage: Storage) -> None:
        write(Table.on(storage), LocalEngine(news, slots=1), what)

    places = {*news["p"].to_pylist()}
    kept = {row["id"] for row in before.select(["id", "p"]).to_pylist() if row["p"] not in places}
    added = {*news["id"].to_pylist()} if operation is Operation.INSERT_OVERWRITE else set[str]()
    for number, path in died_copies(table.path, overwrites, 25):
        one = replace(table, path=path)
        judge.adopt(path, one.options)
        latest = rows(range(5), 9)
        one.upsert(latest)
        ids = one.agree()["id"].to_pylist()
        assert len(set(ids)) == len(ids)
        new = {*latest["id"].to_pylist()}
        assert set(ids) in ({*before["id"].to_pylist()} | new, kept | added | new), number


def equal(table: SharedTable, hudis: SharedTable) -> None:
    """Both tables hold the same rows; each reader reads the same of ours."""
    names = [name for name in table.agree().schema.names if not name.startswith("_hoodie")]
    same(table.hudi_reads().select(names), hudis.hudi_reads().select(names))
