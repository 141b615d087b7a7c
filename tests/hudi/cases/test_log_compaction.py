"""Log compactions of ours in real tables: Hudi reads them, goes on, compacts them, and executes our plans of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phantombase.timeline.codec.avro_schema import COMMIT_SEQNO
from phantombase.timeline.codec.avro_schema import COMMIT_TIME as COMMIT_TIME_COLUMN
from phantombase.timeline.format.commit_metadata import LEDGER
from phantombase.timeline.format.log_block import BlockKind, HeaderKey, scan_blocks
from phantombase.timeline.format.log_deletes import decode_deletes
from phantombase.timeline.format.log_encode import LogFormat, Parts, data_block, delete_block
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import TableSchema
from phantombase.timeline.view.view import FileSlice
from tests.hudi.cases.hand_written import commit, with_meta
from tests.hudi.cases.rows import Rows, key, keys, partition, same
from tests.hudi.cases.shared_table import COMMIT_TIME, EVENT_TIME, PARQUET_LOGS, SharedTable, check_rows, hudi_rs_reads
from tests.hudi.judge.client import Judge, JudgeError
from tests.hudi.judge.fixtures import Judges
from tests.support.change_feeds import COMMIT_TIME as LOG_COMPACTION_WINDOWS_COMMIT_TIME
from tests.support.change_feeds import Choose, at, check, longest, request, services_of
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden
from tests.support.selection import deep, versions

newest = pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)
CASES: dict[str, tuple[dict[str, object], Choose]] = {
    "event time, all": (EVENT_TIME, longest),
    "event time, youngest": (EVENT_TIME, at(2)),
    "commit time, in the middle": (COMMIT_TIME, at(1, 4)),
    "event time, Parquet, oldest": ({**EVENT_TIME, **PARQUET_LOGS}, at(0, 3)),
}
EXECUTES = {"hoodie.log.compaction.inline": "true", "hoodie.log.compaction.blocks.threshold": 1000}
"""Of a write of Hudi's: it executes pending log compactions first and plans none."""


def written(judge: Judge, version: int, path: Path, options: dict[str, object]) -> tuple[SharedTable, Rows]:
    """Six delta commits in file groups with logs: late and early rows, deletes with and without ordering values."""
    table = SharedTable(judge=judge, path=path, version=version, options=options)
    rows = Rows(seed=version)
    table.create(rows(range(60), 5))
    for start in range(2):
        table.upsert(rows(range(start, 60, 2), (4, 5, 6)))
    table.delete(rows(range(0, 60, 5), 6))
    table.writer(rows(range(0, 60, 3), (3, 7))).upsert(str(path))
    table.writer(rows(range(0, 60, 7), (3, 9)).select(["id", "p", "ts"])).delete(str(path))
    table.upsert(rows(range(0, 60, 4), (2, 8)))
    return table, rows


@pytest.mark.interop
@pytest.mark.parametrize(
    ("version", "case"),
    [
        (9, "commit time, in the middle"),
        deep(8, "event time, all"),
        *(deep(9, case) for case in ("event time, Parquet, oldest", "event time, all", "event time, youngest")),
    ],
    indirect=["version"],
    ids=lambda value: f"v{value}" if isinstance(value, int) else value,
)
def test_hudi_reads_it_and_goes_on(judge: Judge, version: int, case: str, tmp_path: Path) -> None:
    """Before and after the same rows; then a write of Hudi's, another log compaction, a compaction by Hudi."""
    options, choose = CASES[case]
    table, rows = written(judge, version, tmp_path / "table", options)
    before = table.agree()
    request(table.open(), choose)
    same(table.agree(), before)
    table.we_compact()
    same(table.agree(), before)
    table.upsert(rows(range(0, 60, 6), (1, 6, 8)))
    before = table.agree()
    request(table.open(), longest)
    table.we_compact()
    same(table.agree(), before)
    table.delete(rows(range(0, 60, 8), 9))
    table.audited()
    table.hudi_schedules()
    table.compact_beside_hudi()
    table.audited()


@pytest.mark.interop
@newest
def test_hudi_executes_our_plan(judge: Judge, version: int, tmp_path: Path) -> None:
    """Of log files that Hudi and we wrote, one of them a log compaction. Hudi gives the rows its own commit time."""
    table, rows = written(judge, version, tmp_path / "table", COMMIT_TIME)
    request(table.open(), at(0, 3))
    table.we_compact()
    before = table.agree()
    instant = request(table.open(), longest)
    table.upsert(rows(range(60, 70), 9), EXECUTES)
    done = table.open().files.completed_commits(instant)
    assert [i.action for i in done] == ["deltacommit"]
    assert LEDGER not in table.open().commit_metadata(done[0]).extra_metadata
    after = table.agree()
    columns = [name for name in before.schema.names if name not in (COMMIT_TIME_COLUMN, COMMIT_SEQNO)]
    same(after.filter(pc.field("id").isin(before["id"])).select(columns), before.select(columns))


@pytest.mark.interop
@newest
def test_hudi_plans_beside_it(judge: Judge, version: int, tmp_path: Path) -> None:
    """Hudi plans file groups in pending log compactions: what completes behind the plan is older than its base file."""
    table, rows = written(judge, version, tmp_path / "table", COMMIT_TIME)
    instant = request(table.open(), at(0, 2))
    compaction = table.hudi_schedules()
    table.we_compact(instant)
    before = table.agree()
    table.hudi_compacts(compaction)
    same(table.agree(), before)
    for ts in (9, 4):
        table.upsert(rows(range(0, 60, 2), ts))
    table.agree()
    assert request(table.open(), longest)
    table.we_compact()
    table.we_schedule()
    table.compact_beside_hudi()


@pytest.mark.interop
@newest
@pytest.mark.parametrize("options", [deep(COMMIT_TIME), EVENT_TIME], ids=["commit time", "event time"])
def test_hudi_rs_reads_it(judge: Judge, version: int, options: dict[str, object], tmp_path: Path) -> None:
    """Whether the youngest files were merged or the oldest, with later writes to the same keys on top."""
    table, _ = written(judge, version, tmp_path / "table", options)
    before, lower = table.agree(), table.copy()
    same(hudi_rs_reads(table.path), before)
    for merged, choose in ((table, at(3)), (lower, at(0, 3))):
        request(merged.open(), choose)
        merged.we_compact()
        same(hudi_rs_reads(merged.path), before)


V6_CASES: dict[str, tuple[dict[str, object], Choose, bool]] = {
    "event time, all": (EVENT_TIME, longest, True),
    "commit time, oldest": (COMMIT_TIME, at(0, 3), False),
}
"""Options, what is merged, and whether Hudi 0.15 reads the same after it."""


@pytest.mark.interop
@pytest.mark.parametrize("case", [deep("event time, all"), "commit time, oldest"])
@pytest.mark.parametrize("version", [6], indirect=True, ids="v{}".format)
def test_version_6(judge: Judge, judges: Judges, version: int, case: str, tmp_path: Path) -> None:
    """Hudi 1.x reads the same before and after, and so do we. 0.15 takes the new file for the newest write."""
    options, choose, kept = V6_CASES[case]
    table, _ = written(judge, version, tmp_path / "table", options)
    before = table.agree()
    with_1x = judges("1.2.0").read(table.path)
    request(table.open(), choose)
    table.we_compact()
    same(judges("1.2.0").read(table.path), with_1x)
    same(table.we_read(), before)
    table.audited()
    with nullcontext() if kept else pytest.raises(AssertionError, match="only theirs"):
        same(judges("0.15.0").read(table.path), before)


@pytest.mark.interop
@pytest.mark.deep
@versions(9, deep=(6,))
def test_hudi_cleans_and_archives_it(judge: Judge, version: int, tmp_path: Path) -> None:
    """It has no inflight file and completes under another name: Hudi takes it as it takes its own."""
    table, rows = written(judge, version, tmp_path / "table", EVENT_TIME)
    instant = request(table.open(), longest)
    table.we_compact()
    table.we_schedule()
    table.we_compact()
    for start in range(3):
        table.upsert(rows(range(start, 60, 3), 20 + start))
    table.we_schedule()
    table.we_compact()
    before = table.agree()
    judge.clean(table.path)
    judge.archive(table.path)
    assert not table.open().files.completed_commits(instant)
    same(table.agree(), before)
    table.upsert(rows(range(0, 60, 4), 30))
    table.agree()
    table.audited()


# Real Hudi 1.2.0 compacts what its log compactions have restamped: incremental reads still know the writes.


@pytest.mark.interop
@pytest.mark.deep
@pytest.mark.parametrize("name", ["v9_log_compacted", deep("v8_log_compacted")])
def test_hudis_compaction_of_its_log_compactions(name: str, judges: Judges, tmp_path: Path) -> None:
    """The plan is Hudi's too; its base files have the stamps."""
    path, judge = unzip_golden(name, tmp_path), judges("1.2.0")
    (instant,) = (i.requested_time for i in open_table(path).load_timeline().pending("compaction"))
    assert judge.run_compaction(path, instant) == [instant]
    table = open_table(path)
    base_files = read_table(table, ReadOptions(query=Query.READ_OPTIMIZED))
    assert set(base_files.column(LOG_COMPACTION_WINDOWS_COMMIT_TIME).to_pylist()) & services_of(table)
    check(table)


# Log blocks of ours in real tables: Hudi merges them as we do, and writes the same deletes.


@pytest.mark.interop
@pytest.mark.parametrize("version", [9, 6], indirect=True, ids="v{}".format)
def test_hudi_merges_our_blocks(judge: Judge, version: int, tmp_path: Path) -> None:
    """Both formats, typed and natural deletes, late and in time, in one delta commit; then Hudi goes on."""
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=EVENT_TIME)
    rows = Rows(seed=version)
    first = rows(range(100), 5)
    table.create(first)
    avro, parquet = rows([*range(0, 40, 2), 100, 101], 6), rows(range(1, 40, 2), 7)
    late = rows(range(40, 50), 4)
    gone, kept, natural = range(50, 60), range(60, 70), [0, 1, *range(70, 80)]

    def blocks(slice_: FileSlice, time: str, schema: TableSchema) -> Iterator[Parts]:
        for log_format, written in ((LogFormat.AVRO, avro), (LogFormat.PARQUET, parquet), (LogFormat.AVRO, late)):
            mine = with_meta(written, slice_, time, schema)
            yield data_block(mine, instant=time, schema_text=schema.file_text, log_format=log_format)
        for numbers, ts in ((gone, 6), (kept, 4), (natural, None)):
            here = pa.array([key(n) for n in numbers if partition(n) == slice_.partition])
            ordering = () if ts is None else (pa.array([ts] * len(here), pa.int64()),)
            paths = pa.array([slice_.partition] * len(here))
            yield delete_block(here, paths, ordering, instant=time, schema_text=schema.file_text, hudi_0x=version == 6)

    commit(table, blocks)
    snapshot = table.agree()
    for written in (avro, parquet):
        check_rows(snapshot, without(written, natural), natural)
    check_rows(snapshot, first.slice(40, 10))
    # 0.15 takes every delete that is left at the end of the log.
    check_rows(snapshot, first.slice(60, 10 if version > 6 else 0), gone if version > 6 else [*gone, *kept])
    table.upsert(rows(range(0, 110, 3), 8))
    table.hudi_schedules()
    before = table.agree()
    table.hudi_compacts()
    assert table.agree().num_rows == before.num_rows


def without(rows: pa.Table, numbers: Any) -> pa.Table:
    """The rows of other keys."""
    return rows.filter(pa.array([k not in keys(numbers) for k in rows["id"].to_pylist()]))


ORDERINGS: Mapping[str, tuple[pa.DataType, tuple[Any, ...]]] = {
    "int": (pa.int32(), (1, -7, 300)),
    "string": (pa.string(), ("b", "é", "a")),
    "decimal": (pa.decimal128(12, 2), (Decimal("1.25"), Decimal("-1.28"), Decimal("0.00"))),
    "timestamp": (pa.timestamp("us", tz="UTC"), (1_767_323_045_000_006, -1, 0)),
    "date": (pa.date32(), (20_455, -3653, 0)),
}


@pytest.mark.interop
@pytest.mark.parametrize("version", [9, 6], indirect=True, ids="v{}".format)
@pytest.mark.parametrize("name", ORDERINGS)
def test_hudi_writes_the_same_delete_block(judge: Judge, version: int, name: str, tmp_path: Path) -> None:
    """Byte for byte, whatever the type of the ordering column."""
    kind, values = ORDERINGS[name]
    path, ids = tmp_path / "table", ["a", "b", "c"]
    rows = pa.table({"id": ids, "ts": pa.array(values, kind), "_hoodie_is_deleted": [False] * 3})
    judge.create(path, "t", rows, version=version if version > 6 else None, options=EVENT_TIME)
    deleted = rows.set_column(2, "_hoodie_is_deleted", pa.array([True] * 3))
    if name == "date" and version > 6:
        with pytest.raises(JudgeError, match="Not in union"):
            judge.upsert(path, deleted, EVENT_TIME)
        return
    judge.upsert(path, deleted, EVENT_TIME)
    (log,) = path.glob(".*.log.*[0-9]")
    source = pa.OSFile(str(log))
    (block,) = scan_blocks(source, log.name)
    assert block.kind is BlockKind.DELETE
    (part,) = decode_deletes(block, source)
    ordering = pa.array(values, kind).take(pa.array([ids.index(key) for key in part.keys.to_pylist()]))
    ours = delete_block(
        part.keys,
        pa.array([""] * 3),
        (ordering,),
        instant=block.instant,
        schema_text=block.header(HeaderKey.SCHEMA),
        hudi_0x=version == 6,
    )
    assert b"".join(bytes(p) for p in ours[1:-1]) == source.read_at(block.content_bytes, block.content_offset)


@pytest.mark.interop
@pytest.mark.parametrize("version", [9, 6], indirect=True, ids="v{}".format)
@pytest.mark.parametrize("fields", ["ts", "x,ts"])
def test_dates_order_our_deletes_in_hudi(judge: Judge, version: int, fields: str, tmp_path: Path) -> None:
    """Late ones lose where the table's Hudi can compare; in 0.15 they always win."""
    several = "," in fields
    if several and version == 6:
        pytest.skip("0.15 has one ordering field")
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=EVENT_TIME, partition_field=None)
    rows = pa.table({"id": ["a", "b", "c", "d"], "x": [1, 1, 1, 1], "ts": pa.array([20_000] * 4, pa.date32())})
    judge.create(table.path, "t", rows, version=version if version > 6 else None, ordering=fields, options=EVENT_TIME)
    table.upsert(rows.slice(2))
    days = pa.array([19_999, 20_001] * 2, pa.date32())
    ordering = (rows["x"].combine_chunks(), days) if several else (days,)

    def block(slice_: FileSlice, time: str, schema: TableSchema) -> Parts:
        return delete_block(
            rows["id"].combine_chunks(), pa.array([""] * 4), ordering,
            instant=time, schema_text=schema.file_text, hudi_0x=version == 6,
        )  # fmt: skip

    commit(table, lambda *given: [block(*given)])
    assert sorted(table.agree()["id"].to_pylist()) == ([] if version == 6 else ["a", "c"])
