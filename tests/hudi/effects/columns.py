"""Tables of real Hudi whose columns evolve as in production, and what it reads: `python -m tests.hudi.effects.columns`.

One JVM a table version makes all of them, or those of the given names, and reads each: as it is, behind a compaction of
ours, and as of a time. A column that a later batch names in other letters is not among them: Hudi 0.15.0 and 1.2.0 both
refuse that write, as a missing column, or with nulls for missing ones since the new one "already exists"."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pyarrow as pa

from phantombase import ExecuteOptions, Executor, compact, schedule
from tests.hudi.judge.client import BRIEF, Judge, JudgeError
from tests.hudi.stock.cases import ON_READ

HUDI = {9: "1.2.0", 6: "0.15.0"}
TABLES = Path(__file__).with_name("evolved_columns.zip")
ANSWERS = Path(__file__).with_name("evolved_columns.json")
_MODES = ("spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite")
Rows = list[dict[str, Any]]


def plain(rows: pa.Table) -> Rows:
    """Rows by key, in values of JSON, without meta columns and other columns of folders."""
    names = [name for name in rows.column_names if not name.startswith("_hoodie_")]
    found = [{name: _value(row[name]) for name in sorted(names)} for row in rows.select(names).to_pylist()]
    return sorted(found, key=lambda row: str(row["id"]))


def _value(value: Any) -> Any:
    if isinstance(value, datetime):  # Spark gives them the zone of its session, which is UTC
        return str(value.replace(tzinfo=None))
    return str(value) if isinstance(value, date | Decimal) else value


def compacted(path: Path | str) -> bool:
    """Whether all that was due could be compacted, by phantombase."""
    if not schedule(str(path), sole_writer=True).requested:
        return False
    compact(str(path), execute=ExecuteOptions(executor=Executor.LOCAL))
    return True


@dataclass
class Making:
    """One table while it is made. `past`: instants as of which it is read, by what was then."""

    judge: Judge
    path: Path
    version: int
    past: dict[str, str] = field(default_factory=dict)

    def create(self, columns: str) -> None:
        self.sql(
            f"create table {{t}} (id string, ts bigint, {columns}, p string) using hudi tblproperties (type='mor', "
            f"primaryKey='id', preCombineField='ts') partitioned by (p) location '{self.path}'"
        )

    def sql(self, statement: str, options: Mapping[str, object] | None = None) -> None:
        name = f"columns_{self.version}_{self.path.name}"
        quiet = {"hoodie.metadata.enable": "false", "hoodie.clean.automatic": "false", "hoodie.compact.inline": "false"}
        self.judge.sql(statement.format(t=name), {**ON_READ, **quiet, **(options or {})})

    def remember(self, what: str) -> None:
        folder = self.path / ".hoodie" / ("timeline" if self.version > 6 else "")
        self.past[what] = max(f.name[:17] for f in folder.glob("2*.deltacommit"))

    def read(self, as_of: str | None = None) -> Rows:
        return plain(self.judge.read(self.path, as_of=as_of, options=ON_READ))


def widened(table: Making) -> None:
    """int to long, float to double, int and long to string; base files of before, logs of before and of after."""
    table.create("a int, b float, c int, d bigint, e int")
    table.sql("insert into {t} values ('k1', 1, 1, 1.1, 10, 100, 7, 'x'), ('k2', 1, 2, 2.5, 20, 200, 7, 'x')")
    table.sql("update {t} set a = 11, b = 0.3, c = 11, d = 5000000000, ts = 2 where id = 'k2'")
    for column, kind in (("a", "bigint"), ("b", "double"), ("c", "string"), ("d", "string")):
        table.sql(f"alter table {{t}} alter column {column} type {kind}")
    table.remember("widened")
    table.sql("insert into {t} values ('k3', 3, 5000000000, 0.1, 'z', 'y', 8, 'x')")
    table.sql("update {t} set a = 6000000000, b = 1e300, c = 'w', ts = 4 where id = 'k1'")


def dropped(table: Making) -> None:
    """Columns dropped, renamed and added again under an old name; read as of before."""
    table.create("a int, b string, c double")
    table.sql("insert into {t} values ('k1', 1, 1, 'one', 1.5, 'x'), ('k2', 1, 2, 'two', 2.5, 'x')")
    table.sql("update {t} set b = 'TWO', ts = 2 where id = 'k2'")
    table.remember("all")
    table.sql("alter table {t} drop column a")
    table.sql("update {t} set c = 9.5, ts = 3 where id = 'k1'")
    table.remember("dropped")
    table.sql("alter table {t} rename column b to name")
    table.sql("alter table {t} add columns (a string)")
    table.sql("update {t} set a = 'again', name = 'ONE', ts = 4 where id = 'k1'")


def added(table: Making) -> None:
    """Columns added in the middle, at the end, and inside a record."""
    table.create("r struct<x: int, y: string>")
    table.sql("insert into {t} values ('k1', 1, struct(1, 'a'), 'x'), ('k2', 1, struct(2, 'b'), 'x')")
    table.sql("update {t} set r = struct(3, 'c'), ts = 2 where id = 'k2'")
    table.sql("alter table {t} add columns (n bigint comment 'later')")
    table.sql("alter table {t} add columns (r.z double)")
    table.sql("update {t} set n = 5, r = struct(4, 'd', 0.5), ts = 3 where id = 'k1'")


def ancient(table: Making) -> None:
    """Dates before 1582 and times before 1900 in base files of Spark's legacy mode, and in logs."""
    table.create("d date, at timestamp")
    legacy = dict.fromkeys(_MODES, "LEGACY")
    old = "'k1', 1, date '1000-01-01', timestamp '1850-06-01 12:00:00'", "'k2', 1, date '1582-10-04', null"
    values = ", ".join(f"({one}, 'x')" for one in (*old, "'k3', 1, date '2020-02-29', timestamp '1500-01-01 00:00:00'"))
    table.sql(f"insert into {{t}} values {values}", {**legacy, "hoodie.spark.sql.insert.into.operation": "bulk_insert"})
    table.sql("update {t} set d = date '1200-05-05', ts = 2 where id = 'k1'")


def promoted(table: Making) -> None:
    """Wider types by a later batch, without schema evolution on read."""
    kinds = {"a": pa.int32(), "b": pa.float32(), "c": pa.int32()}
    columns = {"id": ["k1", "k2"], "ts": [1, 1], "p": ["x"] * 2}
    low = {name: pa.array([1, 2], kind) for name, kind in kinds.items()}
    table.judge.create(table.path, "promoted", pa.table({**columns, **low}), version=table.version, partition_field="p")
    table.judge.upsert(table.path, pa.table({**columns, **low, "ts": [2, 2]}).slice(0, 1))
    high = {"a": pa.array([5_000_000_000]), "b": pa.array([0.1]), "c": pa.array([0.5])}
    table.judge.upsert(table.path, pa.table({"id": ["k2"], "ts": [3], "p": ["x"], **high}))


CASES: dict[str, Callable[[Making], None]] = {f.__name__: f for f in (widened, dropped, added, ancient, promoted)}


def _answer(table: Making, as_of: str | None = None) -> Rows | str:
    try:
        return table.read(as_of)
    except JudgeError as error:
        return f"error: {str(error).splitlines()[0][:200]}"


def main() -> None:
    """Records the cases of the given names, or all."""
    chosen = {name: CASES[name] for name in sys.argv[1:] or CASES}
    answers: dict[str, Any] = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        tables = Path(folder) / "tables"
        if TABLES.exists():
            with ZipFile(TABLES) as archive:
                archive.extractall(tables)
        for version, hudi in HUDI.items():
            with Judge(hudi, java_options=BRIEF, more=dict.fromkeys(_MODES, "CORRECTED")) as judge:
                for name, make in chosen.items():
                    table = Making(judge, tables / f"{name}_{version}", version)
                    table.path.parent.mkdir(exist_ok=True)
                    shutil.rmtree(table.path, ignore_errors=True)
                    answers.pop(table.path.name, None)
                    try:
                        make(table)
                    except JudgeError as error:
                        print(name, version, "not made:", str(error)[:1500], flush=True)
                        shutil.rmtree(table.path, ignore_errors=True)
                        continue
                    answer: dict[str, Any] = {"before": _answer(table)}
                    answer["as_of"] = {time: _answer(table, time) for time in table.past.values()}
                    copy = Making(judge, Path(folder) / "copies" / table.path.name, version)
                    shutil.copytree(table.path, copy.path)
                    try:
                        answer["compacted"] = compacted(copy.path)
                        answer["after"] = _answer(copy)
                        answer["as_of_after"] = {t: _answer(copy, t) for t in table.past.values()}
                    except Exception as error:  # recorded, to be looked into
                        answer["refused"] = f"{type(error).__name__}: {error}"
                    answers[table.path.name] = answer
                    print(name, version, json.dumps(answer)[:3000], flush=True)
        with ZipFile(TABLES, "w", ZIP_DEFLATED, compresslevel=9) as archive:
            for file in sorted(tables.rglob("*")):
                if file.is_file() and not file.name.endswith(".crc"):
                    archive.write(file, file.relative_to(tables))
        ANSWERS.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
