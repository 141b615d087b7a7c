"""Random histories of tables whose columns evolve on read: after every step Hudi and phantombase read the same.

Hudi's SQL adds, renames, drops and widens columns; both update, insert and delete rows; both plan and compact; both
clean and archive. A filter finds the rows that the whole read has.

`PHANTOMBASE_HISTORIES=50 pytest tests/hudi/cases/test_evolving_history.py` tries 50 seeds a table version, and
`-k "v6 and seed7"` one of them again."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.codec.avro_schema import META_COLUMNS
from phantombase.timeline.format.commit_metadata import LATEST_SCHEMA
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.read.table_read import ReadOptions, read_table
from tests.hudi.cases.random_history import SEEDS, RandomSteps
from tests.hudi.cases.rows import same
from tests.hudi.cases.shared_table import EvolvingTable
from tests.hudi.judge.client import Judge, JudgeError
from tests.hudi.stock.cases import ON_READ
from tests.support.selection import ALL, versions

pytestmark = pytest.mark.interop
KEYS = 40
STEPS = 12 if ALL else 6
MOST_COLUMNS = 6
VALUES = {
    "string": "concat('{mark}-', id)",
    "int": "cast(substr(id, 2) as int) * {number}",
    "bigint": "cast(substr(id, 2) as bigint) * 5000000000 + {number}",
    "double": "cast(substr(id, 2) as double) / 4 + {number}",
}
"""What a row gets in a column, by the column's type."""
WIDER = {"int": ("bigint", "string"), "bigint": ("string",)}
"""Changes of type that are followed."""
_TRIES = 3
"""Histories of a seed, each another one, until Hudi can read to its end what it has written."""
UNREADABLE = "cannot be cast to class org.apache.spark.sql.catalyst.expressions.Mutable"
"""Hudi's error for a base file of its own, where a dropped column of another type stood before the ones it reads."""
FEW = ArchiveOptions(min_instants=3, max_instants=4, commits_retained=1, compaction_commits=1)


class EvolvingHistory(RandomSteps):
    """One table, its columns with their types, and what may happen next."""

    def __init__(self, judge: Judge, version: int, seed: int, path: Path) -> None:
        self.random = random.Random(seed * 37 + version)
        self.name = f"evolving_{version}_{seed}"
        logs = self.random.choice(("avro", "parquet"))
        older = {"hoodie.write.table.version": version, "hoodie.write.auto.upgrade": "false"} if version == 8 else {}
        self.session = {**ON_READ, **older, "hoodie.logfile.data.block.format": logs}
        self.table = EvolvingTable(
            judge=judge, path=path, version=version, options=self.session, partition_field="zone"
        )
        self.columns = {"city": "string", "n": "int"}
        self.past: list[str] = []
        self.clock = 0
        self.said = [f"version {version}, {logs} logs"]
        self.sql(
            "create table {t} (id string, zone string, city string, n int, ts bigint) using hudi tblproperties "
            "(type='mor', primaryKey='id', preCombineField='ts') partitioned by (zone) location '{path}'"
        )
        self.insert(range(KEYS))

    def sql(self, statement: str) -> None:
        text = statement.format(t=self.name, path=self.table.path)
        self.said.append(text[:160])
        self.table.judge.sql(text, self.session)

    def value(self, column: str) -> str:
        self.clock += 1
        return VALUES[self.columns[column]].format(mark=f"{column}{self.clock}", number=self.clock)

    def some(self) -> str:
        """A condition that about a third of the rows meet."""
        return f"cast(substr(id, 2) as int) % 3 = {self.random.randrange(3)}"

    def fresh(self) -> str:
        """The name of a new column; often one that another column had before."""
        past = [name for name in self.past if name not in self.columns]
        if past and self.random.random() < 0.6:
            return self.random.choice(past)
        self.clock += 1
        return f"c{self.clock}"

    # Steps: each says whether it could be taken.

    def insert(self, numbers: range | None = None) -> bool:
        numbers = range(KEYS, KEYS + 5) if numbers is None else numbers
        keys = " union all ".join(
            f"select 'k{n:03d}' as id, '{'north' if n % 2 else 'south'}' as zone" for n in numbers
        )
        values = ", ".join(f"{self.value(name)} as {name}" for name in self.columns)
        names = ", ".join(self.columns)
        self.clock += 1
        self.sql(
            f"insert into {{t}} (id, {names}, ts, zone) select id, {values}, {self.clock}L as ts, zone from ({keys})"
        )
        return True

    def update(self) -> bool:
        column = self.random.choice(sorted(self.columns))
        self.sql(f"update {{t}} set {column} = {self.value(column)}, ts = {self.clock} where {self.some()}")
        return True

    def delete(self) -> bool:
        self.sql(f"delete from {{t}} where cast(substr(id, 2) as int) % 7 = {self.random.randrange(7)}")
        return True

    def we_update(self) -> bool:
        """Rows get values of other rows, in the columns of now."""
        rows = self.own_rows()
        chosen = rows.filter(pa.array([self.random.random() < 0.4 for _ in range(rows.num_rows)]))
        if not chosen.num_rows:
            return False
        self.clock += 1
        other = self.random.sample(range(chosen.num_rows), chosen.num_rows)
        for name in self.columns:
            at = chosen.schema.get_field_index(name)
            chosen = chosen.set_column(at, chosen.schema.field(name), chosen.column(name).take(pa.array(other)))
        return self.ours(chosen, "upsert")

    def we_insert(self) -> bool:
        """Rows of new keys, and some of keys that were there before."""
        rows = self.own_rows().slice(0, 4)
        ids = [f"k{self.random.randrange(KEYS, KEYS * 2):03d}" for _ in range(rows.num_rows)]
        self.clock += 1
        return bool(rows.num_rows) and self.ours(
            rows.set_column(rows.schema.get_field_index("id"), "id", pa.array(ids, pa.string())), "upsert"
        )

    def we_delete(self) -> bool:
        rows = self.own_rows()
        chosen = rows.filter(pa.array([self.random.random() < 0.1 for _ in range(rows.num_rows)]))
        return bool(chosen.num_rows) and self.ours(chosen, "delete")

    def own_rows(self) -> pa.Table:
        """The rows of now without Hudi's columns."""
        rows = self.table.we_read()
        return rows.drop_columns([name for name in rows.column_names if name.startswith("_hoodie")])

    def ours(self, rows: pa.Table, operation: str) -> bool:
        """A write of phantombase."""
        at = rows.schema.get_field_index("ts")
        stamped = rows.set_column(at, "ts", pa.array([self.clock] * rows.num_rows, pa.int64()))
        getattr(self.table.writer(stamped), operation)(str(self.table.path))
        return True

    def add(self) -> bool:
        if len(self.columns) == MOST_COLUMNS:
            return False
        name, kind = self.fresh(), self.random.choice(sorted(VALUES))
        self.sql(f"alter table {{t}} add columns ({name} {kind})")
        self.columns[name] = kind
        return True

    def rename(self) -> bool:
        old, new = self.random.choice(sorted(self.columns)), self.fresh()
        self.sql(f"alter table {{t}} rename column {old} to {new}")
        self.columns = {new if name == old else name: kind for name, kind in self.columns.items()}
        self.past.append(old)
        return True

    def drop(self) -> bool:
        if len(self.columns) == 1:
            return False
        name = self.random.choice(sorted(self.columns))
        self.sql(f"alter table {{t}} drop column {name}")
        del self.columns[name]
        self.past.append(name)
        return True

    def widen(self) -> bool:
        name = self.random.choice(sorted(self.columns))
        if self.columns[name] not in WIDER:
            return False
        kind = self.random.choice(WIDER[self.columns[name]])
        self.sql(f"alter table {{t}} alter column {name} type {kind}")
        self.columns[name] = kind
        return True

    def hudi_schedules(self) -> bool:
        return self.table.judge.schedule_compaction(self.table.path, self.session) is not None

    def we_compact(self) -> bool:
        pending = self.table.pending()
        return bool(pending and self.table.we_compact(self.random.choice(pending)))

    def we_merge_logs(self) -> bool:
        return self.table.version > 6 and self.table.we_merge_logs()

    def hudi_cleans(self) -> bool:
        self.table.judge.clean(self.table.path, options=self.session)
        return True

    def we_clean(self) -> bool:
        lock = ProcessLock(str(self.table.path))
        return bool(clean_table(self.table.open(), CleanOptions(retain=1, floor_s=0), lock).files)

    def we_archive(self) -> bool:
        return bool(archive_table(self.table.open(), FEW, ProcessLock(str(self.table.path))).archived)

    def steps(self) -> dict[Callable[[], bool], int]:
        """What may happen next, and how often."""
        return {
            self.update: 8,
            self.insert: 1,
            self.delete: 2,
            self.we_update: 6,
            self.we_insert: 2,
            self.we_delete: 2,
            self.add: 3,
            self.rename: 3,
            self.drop: 2,
            self.widen: 2,
            self.hudi_schedules: 2,
            self.we_schedule: 3,
            self.hudi_compacts: 2,
            self.we_compact: 4,
            self.we_merge_logs: 2,
            self.hudi_cleans: 1,
            self.we_clean: 2,
            self.we_archive: 2,
        }

    def look(self, _step: str) -> None:
        """Both read the same, and a filter by the values of a column finds its rows."""
        rows = self.table.agree()
        self.table.agree_on_base_files()
        column = self.random.choice(sorted(self.columns))
        value = self.random.choice(rows[column].to_pylist() or [None])
        if value is not None:
            text = f"{column} = '{value}'" if isinstance(value, str) else f"{column} = {value}"
            found = read_table(self.table.open(), ReadOptions(filter=text))
            same(found, read_table(self.table.open()).filter(pc.field(column) == value))


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
@versions(9, deep=[8, 6])
def test_both_read_the_same_after_every_step(judge: Judge, version: int, seed: int, tmp_path: Path) -> None:
    """And at the end our compaction equals Hudi's, in the snapshot and in the base files."""
    unreadable = []
    for again in range(_TRIES):
        history = EvolvingHistory(judge, version, seed + again * 10**6, tmp_path / f"table{again}")
        try:
            for _ in range(STEPS):
                history.step()
            history.said.append("compaction by both")
            history.table.we_may_schedule()
            history.table.compact_beside_hudi()
            history.table.audited()
            return
        except Exception as error:
            error.add_note(f"seed {seed}: " + "; ".join(history.said))
            if not (isinstance(error, JudgeError) and UNREADABLE in str(error)):
                raise
            unreadable.append("; ".join(history.said))
    pytest.fail(f"Hudi cannot read what it has written in any of {_TRIES} histories: {unreadable}")


# Writes of phantombase to a table whose columns real Hudi has renamed, dropped, added and widened.


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
