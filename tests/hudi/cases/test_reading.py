"""Tables of every shape as real Hudi reads them: without base files or rows, gzip, copy on write, past states.

Version 8 has its golden tables, and is version 9 to Hudi and us but for hoodie.properties."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from phantombase import UnsupportedError, compact, read, schedule
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.codec.parquet_pages import AVAILABLE
from phantombase.timeline.errors import ClockError, UsageError
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.table.table import Table
from tests.hudi.cases.indexed_table import HUDI
from tests.hudi.cases.rows import DECIMAL, SCHEMA, Rows, partition, same
from tests.hudi.cases.shared_table import BUCKET, EVENT_TIME, SharedTable, check_rows, hudi_rs_reads
from tests.hudi.judge.client import BRIEF, METADATA_TABLE, Judge
from tests.support.change_feeds import State, check_window, key, moments_of, plain
from tests.support.golden_tables import unzip_golden
from tests.support.selection import versions

pytestmark = pytest.mark.interop
WITHOUT_DECIMAL = [name for name in SCHEMA.names if name != DECIMAL]


@pytest.fixture
def table(judge: Judge, version: int, tmp_path: Path) -> SharedTable:
    """A partitioned table, not made yet."""
    return SharedTable(judge=judge, path=tmp_path / "table", version=version, options=EVENT_TIME)


@pytest.fixture
def bucket_table(judge: Judge, version: int, tmp_path: Path) -> SharedTable:
    """A table with a bucket index and no partitions, not made yet."""
    return SharedTable(
        judge=judge, path=tmp_path / "bucket", version=version, options=BUCKET | EVENT_TIME, partition_field=None
    )


def base_file_rows(table: SharedTable, instant: str | None = None) -> list[int]:
    """The numbers of rows of the base files, of one instant or of all."""
    paths = [path for path in table.path.rglob(f"*_{instant or '*'}.parquet") if ".hoodie" not in path.parts]
    return sorted(pq.read_metadata(path).num_rows for path in paths)


@versions(9, deep=(6,))
def test_log_only_file_groups(table: SharedTable) -> None:
    """An index that knows logs inserts into them: compaction makes the first base files, also of no rows."""
    table = replace(table, options=EVENT_TIME | {"hoodie.index.type": "INMEMORY"})
    rows, known = Rows(seed=1), table.version * 1000  # that index is one for the whole JVM
    south = [number for number in range(known, known + 60) if partition(number) == "south"]
    table.create(rows(range(known, known + 60), 2))
    assert base_file_rows(table) == []
    assert table.agree_on_base_files().num_rows == 0
    table.delete(rows(sorted({*south, *range(known, known + 60, 4)}), 0))
    instant = table.hudi_schedules()
    table.upsert(rows(range(known + 1, known + 70, 4), (2, 3)))
    table.compact_beside_hudi()
    assert min(base_file_rows(table, instant)) == 0
    latest = rows(range(known, known + 60, 3), 9)
    table.upsert(latest)
    assert table.we_schedule() in table.we_compact()
    check_rows(table.agree(), latest)


@versions(6, deep=[9])
def test_empty_base_file(bucket_table: SharedTable) -> None:
    """All rows deleted, compacted to base files of no rows: Hudi reads them, upserts onto them and compacts them."""
    table, rows = bucket_table, Rows(seed=2)
    created = rows(range(40), 2)
    table.create(created)
    table.delete(created)
    instant = table.hudi_schedules()
    assert table.compact_beside_hudi().num_rows == 0
    assert base_file_rows(table, instant) == [0, 0, 0]
    assert hudi_rs_reads(table.path).num_rows == 0
    again = rows(range(0, 50, 2), 3)
    table.upsert(again)
    check_rows(table.agree(), again)
    table.delete(again)
    assert table.we_schedule() in table.we_compact()
    assert table.agree().num_rows == 0
    table.upsert(again)
    check_rows(table.agree(), again)


@versions(9, deep=(6,))  # Hudi 1.2.0 cannot roll back on version 8
def test_rolled_back_commit(table: SharedTable) -> None:
    """A commit that was rolled back leaves no trace, before and after compaction."""
    rows = Rows(seed=3)
    table.create(rows(range(80), 2))
    table.upsert(rows(range(0, 80, 3), 3))
    before = table.agree()
    table.upsert(rows(range(0, 90, 2), 8))
    table.judge.rollback(table.path, max(table.open().load_timeline().completed_writes))
    same(table.agree(), before)
    latest = rows(range(0, 80, 5), 4)
    table.upsert(latest)
    table.hudi_schedules()
    table.delete(rows(range(0, 80, 20), 0))
    check_rows(table.compact_beside_hudi(), rows([], 0), absent=range(0, 80, 20))


@versions(9, deep=[6])
def test_replaced_while_planned(table: SharedTable) -> None:
    """insert_overwrite and delete_partition of other partitions while a plan is pending; then of all."""
    rows = Rows(seed=4)
    created = rows(range(90), 2)
    table.create(created)
    table.upsert(created.filter(pc.equal(created["p"], "south")))
    table.hudi_schedules()
    new = rows(range(120), 5)
    table.judge.insert_overwrite(table.path, new.filter(pc.equal(new["p"], "north")), table.options)
    table.judge.delete_partition(table.path, "süd-west", options=table.options)
    table.upsert(created.filter(pc.equal(created["p"], "south")))
    north = table.compact_beside_hudi()
    assert set(north["p"].to_pylist()) == {"north", "south"}
    table.upsert(rows(range(0, 90, 4), 9))
    table.we_schedule()
    table.upsert(rows(range(0, 90, 6), 9))
    table.compact_beside_hudi()


@pytest.mark.deep
@versions(9, deep=[6])
def test_clustered_while_planned(table: SharedTable) -> None:
    """Hudi clusters what is not planned; the plan is executed after it, and then one on clustered files."""
    rows = Rows(seed=5, columns=WITHOUT_DECIMAL)
    created = rows(range(90), 2)
    table.create(created)
    table.upsert(created.filter(pc.equal(created["p"], "south")))
    table.hudi_schedules()
    table.judge.cluster(table.path, {**table.options, "hoodie.clustering.plan.strategy.small.file.limit": 10**9})
    table.upsert(rows(range(0, 100, 3), 3))
    table.compact_beside_hudi()
    table.we_schedule()
    table.delete(rows(range(0, 90, 8), 0))
    table.compact_beside_hudi()


@versions(6, deep=[9, 8])
def test_schema_changes_between_base_and_log(table: SharedTable) -> None:
    """A column added, int widened to bigint and float to double: values as in Hudi's own compaction."""
    rows, narrow = Rows(seed=6), [name for name in SCHEMA.names if name != "text"]
    table.create(Rows(seed=6, columns=narrow)(range(60), 2))
    table.upsert(Rows(seed=7, columns=narrow)(range(0, 60, 4), 2))
    wide = pa.schema(
        [
            field.with_type({"number": pa.int64(), "weight": pa.float64()}.get(field.name, field.type))
            for field in [*(SCHEMA.field(name) for name in narrow), SCHEMA.field("text")]
        ]
    )
    table.upsert(rows(range(0, 70, 3), 3).select(wide.names).cast(wide))
    assert table.agree().schema.field("number").type == pa.int64()
    table.hudi_schedules()
    table.upsert(rows(range(0, 60, 7), 4).select(wide.names).cast(wide))
    table.compact_beside_hudi()


@versions(9, deep=[6])
def test_virtual_keys(judge: Judge, version: int, tmp_path: Path) -> None:
    """A table without meta columns: keys are computed from the key column."""
    options = EVENT_TIME | {
        "hoodie.populate.meta.fields": False,
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.SimpleKeyGenerator",
        "hoodie.index.type": "SIMPLE",
    }
    table, rows = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=options), Rows(seed=8)
    table.create(rows(range(60), 2))
    table.upsert(rows(range(0, 70, 3), (1, 2, 3)))
    table.delete(rows(range(3, 60, 10), 0))  # not written again: Hudi's index would not find them in the logs
    table.hudi_schedules()
    table.upsert(rows(range(0, 80, 5), (1, 2, 3)))
    snapshot = table.compact_beside_hudi()
    latest = rows(range(0, 90, 4), 9)
    assert "_hoodie_record_key" not in snapshot.schema.names or snapshot["_hoodie_record_key"].null_count
    table.upsert(latest)
    assert table.we_schedule() in table.we_compact()
    check_rows(table.agree(), latest)


# Reads as of an instant: ours equal real Hudi's at every point of a history.


@versions(9, deep=(8, 6))
def test_as_of_every_instant(version: int, judge: Judge, tmp_path: Path) -> None:
    """Upserts, a delete, a pending plan with writes on the phantom slices, a compaction of ours, more writes.

    Before the first instant the table is empty; with the compaction still pending and after it both agree."""
    table = SharedTable(judge=judge, path=tmp_path / "t", version=version, options=EVENT_TIME)
    rows = Rows(3)
    table.create(rows(range(60), 1))
    table.upsert(rows(range(20, 50), 2))
    table.hudi_schedules()
    table.upsert(rows(range(30, 70), 3))
    check_all(table)
    table.we_compact()
    table.delete(rows(range(5), 9))
    table.upsert(rows(range(40, 80), 4))
    check_all(table)


def check_all(table: SharedTable) -> None:
    """Every completed write's instant, as both see it."""
    opened = table.open()
    for instant in opened.load_timeline().completed_writes:
        ours = read_table(opened, ReadOptions(as_of=instant))
        same(ours, table.judge.read(table.path, as_of=instant))
    assert read_table(opened, ReadOptions(as_of="20000101000000000")).num_rows == 0


@versions(6, deep=(9, 8))
def test_as_of_a_cleaned_point_is_refused(version: int, judge: Judge, tmp_path: Path) -> None:
    """Hudi refuses it too: files of that time are gone."""
    table = SharedTable(judge=judge, path=tmp_path / "t", version=version, options=EVENT_TIME)
    rows = Rows(4)
    table.create(rows(range(20), 1))
    first = next(iter(table.open().load_timeline().completed_writes))
    for ts in (2, 3):
        table.upsert(rows(range(20), ts))
        table.we_schedule()
        table.we_compact()
    judge.clean(table.path, retain_commits=1)
    assert any(i.action == "clean" for i in table.open().load_timeline().instants)
    with pytest.raises(UsageError, match="cleaned"):
        read_table(table.open(), ReadOptions(as_of=first))


# Real Hudi writes in New York, phantombase runs in UTC: refused until it is given the zone; then no write is lost.


NEW_YORK = "America/New_York"
THERE = ClockOptions(timezone=NEW_YORK)


@pytest.fixture
def there(version: int, local_zone: Callable[[str], None]) -> Iterator[Judge]:
    """Real Hudi in New York, in a JVM of its own; this process is in UTC."""
    local_zone(NEW_YORK)
    judge = Judge(HUDI[version], java_options=BRIEF)
    local_zone("UTC")
    yield judge
    judge.close()


@versions(9, deep=[6])
def test_hudi_in_another_zone(there: Judge, version: int, tmp_path: Path) -> None:
    """Every upsert of Hudi after our compaction is read by both."""
    table, rows = SharedTable(judge=there, path=tmp_path / "table", version=version), Rows(seed=7)
    table.create(rows(range(20), 1))
    table.upsert(rows(range(10), 2))
    before = table.open().load_timeline()
    with pytest.raises(ClockError, match=r"[45] h 00 min behind"):
        table.we_schedule()
    assert table.open().load_timeline() == before
    for step in (3, 5):
        opened = table.open().with_clock(THERE)
        assert schedule_compaction(opened, ProcessLock(str(table.path))).instant is not None
        if step == 5:
            table.upsert(rows(range(5, 15), step - 1))  # while the plan pends
        compacted = run_compactions(
            str(table.path),
            output=OutputOptions(),
            execute=ExecuteOptions(executor=Executor.LOCAL),
            attempt=AttemptOptions(),
            clock=THERE,
        )
        assert len(compacted.done) == 1
        newest = rows(range(step, step + 4), step)
        table.upsert(newest)
        seen = {row["id"]: row["ts"] for row in table.agree().to_pylist()}
        assert {key: seen[key] for key in newest.column("id").to_pylist()} == {
            row["id"]: row["ts"] for row in newest.to_pylist()
        }
    table.writer(rows(range(3), 9)).timezone(NEW_YORK).upsert(str(table.path))
    same(table.agree(), table.hudi_reads())
    assert os.environ["TZ"] == "UTC"


# Base files whose pages ISA-L has compressed are Hudi's own to Hudi: every type is read.


def test_every_type(judge: Judge, version: int, tmp_path: Path) -> None:
    """The rows stay, to Hudi and to us, also where only base files are read."""
    assert AVAILABLE
    path = unzip_golden(f"v{version}_types", tmp_path)
    before, ours = judge.read(path), read_table(Table.open(str(path)))
    gzip = OutputOptions(codec=Codec.GZIP, row_group_rows=7)
    local = ExecuteOptions(executor=Executor.LOCAL)
    first = compact(str(path), output=gzip, execute=local).done
    # What came after the plan of the golden table, too.
    assert schedule(str(path), ScheduleOptions(strategy=TriggerStrategy.ALWAYS), sole_writer=True).requested
    second = compact(str(path), output=gzip, execute=local).done
    instants = [each.instant for each in (*first, *second)]
    assert len(instants) == 2
    written = [pq.ParquetFile(file).metadata for i in instants for file in path.rglob(f"*_{i}.parquet")]
    assert {meta.row_group(0).column(0).compression for meta in written} == {"GZIP"}
    assert max(meta.num_row_groups for meta in written) > 1
    for query in ("snapshot", "read_optimized"):
        same(judge.read(path, query=query), before)
    same(read_table(Table.open(str(path))), ours)


# COPY_ON_WRITE tables: we read what Hudi reads, also as of each write, and refuse to change them.


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
