"""Rows that we wrote are Hudi's to find, merge, compact, clean and archive; and Hudi's rows are ours to change."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phantombase.timeline.merge.rule import IS_DELETED
from tests.hudi.cases.rows import Rows, keys, same
from tests.hudi.cases.shared_table import (
    BUCKET,
    COMMIT_TIME,
    EVENT_TIME,
    PARQUET_LOGS,
    SharedTable,
    check_rows,
)
from tests.hudi.judge.client import Judge
from tests.support.selection import deep, versions

pytestmark = pytest.mark.interop
both_timelines = pytest.mark.parametrize("version", [9, 6], indirect=True, ids="v{}".format)

_WRITE = "hoodie.datasource.write."
_TIMES = "hoodie.keygen.timebased."
CASES: Mapping[str, tuple[str | None, dict[str, object]]] = {
    "simple-hive style": (
        "p",
        EVENT_TIME
        | {
            "hoodie.index.type": "SIMPLE",
            f"{_WRITE}hive_style_partitioning": "true",
            f"{_WRITE}partitionpath.urlencode": "true",
        },
    ),
    "bloom-complex": (
        "p",
        COMMIT_TIME | PARQUET_LOGS | {"hoodie.index.type": "BLOOM", f"{_WRITE}recordkey.field": "id,p"},
    ),
    "bucket": ("p", EVENT_TIME | PARQUET_LOGS | BUCKET),
    "no partitions": (None, COMMIT_TIME | {"hoodie.index.type": "SIMPLE"}),
    "timestamp-bloom": (
        "moment",
        EVENT_TIME
        | {
            "hoodie.index.type": "BLOOM",
            f"{_WRITE}keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
            f"{_TIMES}timestamp.type": "DATE_STRING",
            f"{_TIMES}input.dateformat": "yyyy-MM-dd",
            f"{_TIMES}output.dateformat": "yyyy-MM",
            f"{_TIMES}timezone": "UTC",
        },
    ),
}
"""Partition field and options."""


@pytest.mark.parametrize(
    ("version", "case"),
    [
        deep(9, "simple-hive style"),
        (9, "bucket"),
        (6, "bloom-complex"),
        *(deep(9, "no partitions"), deep(6, "timestamp-bloom"), deep(6, "bucket")),
    ],
    indirect=["version"],
    ids=lambda value: f"v{value}" if isinstance(value, int) else value,
)
def test_hudi_finds_the_rows_that_we_wrote(judge: Judge, version: int, case: str, tmp_path: Path) -> None:
    """In base files of every operation, rewritten ones, logs; then it compacts, cleans and archives."""
    partition_field, options = CASES[case]
    table = SharedTable(
        judge=judge, path=tmp_path / "table", version=version, options=options, partition_field=partition_field
    )
    path, source = str(table.path), Rows(seed=version)

    def rows(numbers: range, ts: int, deleted: bool = False) -> pa.Table:
        made = source(numbers, ts).append_column(IS_DELETED, pa.array([deleted] * len(numbers)))
        return made.append_column("moment", pa.array([f"2024-0{1 + n % 3}-11" for n in numbers]))

    first = rows(range(60), 1)
    table.creator(first).bulk_insert(path)
    check_rows(table.agree(), first)
    writes = [
        table.creator(rows(range(60, 90), 1)).insert(path),
        table.creator(rows(range(50, 100), 2)).upsert(path),  # inserts go to small files
        table.creator(rows(range(30), 2)).upsert(path),
        table.creator(rows(range(10), 3, deleted=True)).upsert(path),
        table.creator(rows(range(10, 20), 0).drop_columns(["ts"])).delete(path),
    ]
    snapshot = table.agree()
    assert set(snapshot["id"].to_pylist()) == keys(range(20, 100))
    seen = judge.read(
        table.path, query="incremental", options={"hoodie.datasource.read.begin.instanttime": writes[0].instant}
    )
    assert set(seen["id"].to_pylist()) == keys([*range(20, 30), *range(50, 100)])
    latest = rows(range(5, 110, 3), 4)
    table.upsert(latest)
    table.delete(rows(range(30, 40), 5))
    expected = (set(range(20, 100)) | set(range(5, 110, 3))) - set(range(30, 40))
    after = table.agree()
    assert sorted(after["id"].to_pylist()) == sorted(keys(expected))
    table.hudi_schedules()
    again = rows(range(40, 60), 6)
    table.creator(again).upsert(path)
    before = table.agree()
    check_rows(before, again)
    table.hudi_compacts()
    same(table.agree(), before)
    if "timestamp" not in case:  # whose column reads as the name of its folder there
        table.agree_on_base_files()
    judge.clean(table.path)
    judge.archive(table.path)
    same(table.agree(), before)
    table.creator(again).upsert(path)
    table.agree()


@pytest.mark.parametrize("version", [6], indirect=True, ids="v{}".format)
def test_our_logs_beside_a_plan_carry_its_instant(judge: Judge, version: int, tmp_path: Path) -> None:
    """Whoever planned it, and whoever executes it."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=EVENT_TIME)
    path, rows = str(table.path), Rows(seed=3)
    table.create(rows(range(60), 1))
    everything = set(range(60))
    for turn, (we_plan, we_execute) in enumerate([(False, False), (True, False), (False, True)]):
        ts, gone = 10 * turn + 2, range(turn * 10, turn * 10 + 5)
        table.writer(rows(everything - set(gone), ts)).upsert(path)
        plan = table.we_schedule() if we_plan else table.hudi_schedules()
        updated = rows(everything - set(gone), ts + 1)
        written = table.writer(updated).upsert(path)
        table.upsert(rows(range(50, 55), ts + 2))
        table.writer(rows(gone, 0).select(["id", "p"])).delete(path)
        everything -= set(gone)
        stats = table.open().commit_metadata(table.open().load_timeline().completed_writes[written.instant])
        files = [str(stat.path) for of in stats.partition_to_write_stats.values() for stat in of]
        assert {f"_{plan}.log." in file for file in files} == {True}
        before = table.agree()
        ours = pa.array([k not in keys(range(50, 55)) for k in updated["id"].to_pylist()])
        check_rows(before, updated.filter(ours), gone)
        if we_execute:
            assert table.we_compact() == [plan]
        else:
            table.hudi_compacts(plan)
        same(table.agree(), before)


@versions(9, deep=(6,))
def test_we_update_what_hudi_brought_back_under_a_plan(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi puts a key whose deletion waits in a plan on top of it, by the base file. Elsewhere it would be doubled."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=COMMIT_TIME)
    path, rows = str(table.path), Rows(seed=4)
    table.create(rows(range(30), 1))
    table.delete(rows(range(10), 2))
    table.hudi_schedules()
    table.upsert(rows(range(5), 3))
    latest = rows(range(15), 4)
    table.writer(latest).upsert(path)
    snapshot = table.agree()
    assert sorted(snapshot["id"].to_pylist()) == sorted(keys(range(30)))
    check_rows(snapshot, latest)
    table.hudi_compacts()
    same(table.agree(), snapshot)


@versions(9, deep=[6])
def test_either_widens_the_schema_of_the_other(judge: Judge, version: int, tmp_path: Path) -> None:
    """New columns, int to long, float to double; rows from before and after, in base files and logs."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=EVENT_TIME, partition_field=None)
    path = str(table.path)

    def rows(start: int, ts: int, count: int = 8, **columns: pa.DataType) -> pa.Table:
        numbers = range(start, start + count)
        made = {name: pa.array([ts * 100 + n for n in numbers]).cast(kind) for name, kind in columns.items()}
        return pa.table({"id": [str(n) for n in numbers], "ts": [ts] * count, **made})

    narrow = {"n": pa.int32(), "f": pa.float32(), "m": pa.int32()}
    wide = {"n": pa.int64(), "f": pa.float64(), "m": pa.int32(), "extra": pa.string()}
    widest = {"n": pa.int64(), "f": pa.float64(), "m": pa.int64(), "extra": pa.string(), "more": pa.float64()}
    table.create(rows(0, 1, count=24, **narrow))
    table.upsert(rows(2, 2, **narrow))
    table.writer(rows(4, 3, **wide)).upsert(path)
    table.agree()
    table.upsert(rows(12, 4, **wide))
    table.agree()
    table.hudi_schedules()
    table.hudi_compacts()
    table.agree()
    table.upsert(rows(6, 5, **widest))
    table.writer(rows(8, 6, **wide)).upsert(path)
    table.writer(rows(30, 6, **widest)).bulk_insert(path)
    table.upsert(rows(24, 7, **widest))
    assert table.agree().schema.field("m").type == pa.int64()
    table.we_schedule()
    table.compact_beside_hudi()
    table.writer(rows(20, 8, count=16, **widest)).upsert(path)
    table.agree()


def doubled() -> pa.Table:
    """A batch with every kind of two rows of one key, for a table with rows `a` to `j` at 10."""
    given = [
        *[("a", 11, 1, False), ("a", 12, 2, False), ("b", 12, 1, False), ("b", 11, 2, False)],
        *[("c", 11, 1, False), ("c", 11, 2, False), ("d", 11, 1, False), ("d", 12, 2, True)],
        *[("e", 12, 1, False), ("e", 11, 2, True), ("f", 12, 1, True), ("f", 11, 2, False)],
        *[("g", 11, 1, True), ("g", 12, 2, False), ("h", 11, 1, True), ("h", 11, 2, False)],
        *[("i", 11, 1, False), ("i", 11, 2, True), ("j", 8, 1, False), ("j", 9, 2, False)],
        *[("k", 1, 1, False), ("k", 1, 2, False), ("l", 2, 1, False), ("l", 1, 2, False)],
        *[("m", 1, 1, True), ("m", 2, 2, False), ("n", 2, 1, True), ("n", 1, 2, False)],
        *[("o", 1, 1, False), ("o", 1, 2, True), ("q", 1, 1, True), ("q", 1, 2, False), ("r", 1, 1, True)],
    ]
    names = ["id", "ts", "n", IS_DELETED]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in given])


_UPSERTS, _INSERTS, _DELETES = (f"hoodie.combine.before.{operation}" for operation in ("upsert", "insert", "delete"))
TWINS: Mapping[str, tuple[str, dict[str, object]]] = {
    "upsert": ("upsert", {}),
    "upsert-uncombined": ("upsert", {_UPSERTS: "false"}),
    "upsert-spelled": ("upsert", {_UPSERTS: True, _INSERTS: False, _DELETES: True}),
    "upsert-of-inserts": ("upsert", {_INSERTS: "false"}),
    "insert": ("insert", {}),
    "insert-combined": ("insert", {_INSERTS: "true"}),
    "insert-of-upserts": ("insert", {_INSERTS: "false", _UPSERTS: "true"}),
    "bulk": ("bulk_insert", {_UPSERTS: "true"}),
    "bulk-combined": ("bulk_insert", {_INSERTS: "true", _UPSERTS: "false"}),
}
"""Operation, and the dictionary that both are given."""


@pytest.mark.parametrize(
    ("version", "merge"),
    [(9, EVENT_TIME), (9, COMMIT_TIME), deep(6, EVENT_TIME)],
    indirect=["version"],
    ids=["v9-event", "v9-commit", "v6-event"],
)
def test_one_batch_by_hudi_and_by_us(judge: Judge, version: int, merge: dict[str, object], tmp_path: Path) -> None:
    """With several rows of a key, late ones, equal ones and deletes among them: the same rows come of it.

    Which row of a key a bulk_insert keeps is up to Hudi's row writer: that of the greatest ordering value, of equal
    ones the first it meets, whatever the table's merge mode is.
    """
    origin = SharedTable(judge=judge, path=tmp_path / "t", version=version, options=merge, partition_field=None)
    batch = doubled()
    first = pa.table({"id": list("abcdefghij"), "ts": [10] * 10, "n": [0] * 10, IS_DELETED: [False] * 10})
    origin.create(first)
    for name, (operation, said) in TWINS.items():
        if name == "upsert-uncombined" and version == 6:
            continue  # 0.15 takes the last row, or that of the greatest time, or the delete: as the row lies
        hudis, ours = (replace(origin, path=tmp_path / f"{name}-{who}") for who in ("hudi", "us"))
        for twin in (hudis, ours):
            shutil.copytree(origin.path, twin.path)
        given = batch if operation != "bulk_insert" else batch.filter(pc.invert(batch[IS_DELETED]))
        getattr(judge, operation)(hudis.path, given, {key: str(value).lower() for key, value in said.items()})
        getattr(ours.writer(given).conf(said), operation)(str(ours.path))
        compared = ["id"] if name == "bulk-combined" else batch.schema.names
        same(ours.agree().select(compared), hudis.agree().select(compared))
