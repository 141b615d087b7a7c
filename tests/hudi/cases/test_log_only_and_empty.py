"""Tables with a shape of their own: no base file, no row, rolled back, replaced, changed schema, virtual keys.

Version 8 has its golden tables, and is version 9 to Hudi and us but for hoodie.properties.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.hudi.cases.rows import DECIMAL, SCHEMA, Rows, partition, same
from tests.hudi.cases.shared_table import BUCKET, EVENT_TIME, SharedTable, check_rows, hudi_rs_reads
from tests.hudi.judge.client import Judge
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
