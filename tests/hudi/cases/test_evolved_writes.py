"""Writes of phantombase to a table whose columns real Hudi has renamed, dropped, added and widened."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.timeline.avro.schema import META_COLUMNS
from phantombase.timeline.table.evolved_schema import LATEST_SCHEMA
from tests.hudi.cases.evolving_table import EvolvingTable
from tests.hudi.judge.client import Judge
from tests.hudi.stock.cases import ON_READ
from tests.support.selection import versions

pytestmark = pytest.mark.interop

ALTERED = (
    "alter table {t} rename column city to town",
    "alter table {t} add columns (city string, note string)",
    "alter table {t} alter column n type bigint",
    "alter table {t} alter column n type string",
    "alter table {t} drop column fare",
)


@versions(9, deep=[8, 6])
def test_hudi_reads_our_rows_and_goes_on(judge: Judge, version: int, tmp_path: Path) -> None:
    """Also once it has archived the changes of the columns: then it finds their history by our writes alone."""
    # Hudi archives no write that its metadata table, where there is one, has not compacted.
    alone = {**ON_READ, "hoodie.metadata.enable": "false"}
    older = {"hoodie.write.table.version": version, "hoodie.write.auto.upgrade": "false"} if version == 8 else {}
    table = EvolvingTable(
        judge=judge, path=tmp_path / "table", version=version, options={**alone, **older}, partition_field="zone"
    )

    def sql(text: str) -> None:
        judge.sql(text.format(t=f"evolved_{version}", path=table.path), table.options)

    sql(
        "create table {t} (id string, zone string, city string, n int, fare double, ts bigint) using hudi "
        "tblproperties (type='mor', primaryKey='id', preCombineField='ts') partitioned by (zone) location '{path}'"
    )
    sql("insert into {t} (id, city, n, fare, ts, zone) values ('a', 'A', 1, 1.5, 1, 'x'), ('b', 'B', -2, 2.5, 1, 'x')")
    sql("insert into {t} (id, city, n, fare, ts, zone) values ('c', 'C', 3, 3.5, 1, 'y'), ('h', 'H', 4, 4.5, 1, 'w')")
    sql("update {t} set n = 22 where id = 'b'")
    for text in ALTERED:
        sql(text)
    before = table.agree()
    assert before.select(["town", "n"]).sort_by("town").to_pylist() == [
        {"town": "A", "n": "1"},
        {"town": "B", "n": "22"},
        {"town": "C", "n": "3"},
        {"town": "H", "n": "4"},
    ]
    own = before.drop_columns(list(META_COLUMNS)).schema

    def given(*rows: tuple[str, str, str, int]) -> pa.Table:
        named = [
            {"id": key, "zone": zone, "town": town, "city": "ours", "n": str(ts), "ts": ts}
            for key, zone, town, ts in rows
        ]
        return pa.Table.from_pylist(named, own)

    table.writer(given(("b", "x", "log", 2))).upsert(str(table.path))
    table.writer(given(("d", "x", "small file", 2), ("e", "z", "new", 2))).upsert(str(table.path))
    table.writer(given(("c", "y", "", 3))).delete(str(table.path))
    table.writer(given(("f", "z", "behind", 2))).insert(str(table.path))
    found = table.agree()
    assert sorted(found["town"].to_pylist()) == ["A", "H", "behind", "log", "new", "small file"]
    table.we_schedule()
    table.we_compact()  # Hudi archives no write behind the last compaction
    for ts in range(4, 8):
        table.writer(given(("b", "x", "log", ts))).upsert(str(table.path))
    judge.clean(table.path, options=table.options)
    judge.archive(table.path, options=table.options)
    now = table.open()
    kept = {now.commit_metadata(i).operation_type for i in now.load_timeline().completed_writes.values()}
    assert "ALTER_SCHEMA" not in kept
    assert "H" in table.agree()["town"].to_pylist()  # of a base file that has it as `city`
    sql("update {t} set note = 'Hudi' where id = 'a'")
    table.agree()
    table.writer(given(("a", "x", "again", 9))).upsert(str(table.path))
    table.writer(given(("g", "z", "instead", 9))).insert_overwrite(str(table.path))
    table.agree()
    table.we_schedule()
    table.writer(given(("b", "x", "behind the plan", 10))).upsert(str(table.path))
    table.compact_beside_hudi()
    sql("alter table {t} rename column town to city_of_old")
    sql("update {t} set city_of_old = 'moved' where id = 'd'")
    found = table.agree()
    assert sorted(found["city_of_old"].to_pylist()) == ["H", "again", "behind the plan", "instead", "moved"]
    now = table.open()
    assert all(
        LATEST_SCHEMA in now.commit_metadata(instant).extra_metadata
        for instant in now.load_timeline().completed_writes.values()
    )
