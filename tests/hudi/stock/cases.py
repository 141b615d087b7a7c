"""How stock tables are made: nothing is set but what the case is about, so that Hudi's defaults hold.

These are on by default: the metadata table (on 1.2.0 with column and partition statistics), cleaning, archiving, and
compaction inline every five delta commits. A case stops below five, so that log files are left."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.hudi.judge.client import METADATA_TABLE, Judge

MODEL = "org.apache.hudi.common.model."
KEYGEN = "org.apache.hudi.keygen."
ZONES = ("north", "south", "süd west")

Options = Mapping[str, object]
Row = dict[str, Any]


def payload(name: str, ordering: str = "ts") -> Options:
    """A payload class, as a writer names it."""
    return {
        "hoodie.datasource.write.payload.class": f"{MODEL}{name}",
        "hoodie.datasource.write.precombine.field": ordering,
    }


@dataclass(frozen=True, kw_only=True)
class Stock:
    """A table that a DataFrame writer makes by one write and then changes. `options`: what its writers say, besides
    key, ordering and partition fields, which are defaults here. `shape`: makes a row into one of this table. `steps`:
    operations after the first upsert; `sql`: statements instead of writes, with `{t}` for the table and `{path}` for
    its place; `top`: the one behind our compaction, by default the last of them. `versions`: table versions that have
    such tables."""

    options: Options = field(default_factory=dict)
    shape: Callable[[Row, random.Random], Row] = lambda row, _: row
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    steps: Sequence[str] = ("upsert", "upsert", "delete")
    sql: Sequence[str] = ()
    top: str = ""
    versions: Sequence[int] = (9, 8, 6)

    def writer(self, version: int) -> Options:
        """The options of each write."""
        base = {
            "hoodie.table.name": "stock",
            "hoodie.datasource.write.table.type": "MERGE_ON_READ",
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.precombine.field": "ts",
            "hoodie.datasource.write.partitionpath.field": "zone",
        }
        given = {name: value for name, value in {**base, **self.options}.items() if value is not None}
        return {**given, **_older(version)}

    def reading(self) -> Options:
        """The options of each read."""
        return {**METADATA_TABLE, **{name: value for name, value in self.options.items() if name in ON_READ}}

    def _session(self, version: int) -> Options:
        """The settings of statements."""
        return {**_older(version), **self.options}

    def rows(self, rng: random.Random, numbers: Sequence[int], mark: str) -> pa.Table:
        """Rows whose values say where they come from."""
        made = [self.shape(_row(rng, n, mark), rng) for n in numbers]
        names = list(dict.fromkeys(itertools.chain.from_iterable(made)))
        kinds = {**_TYPES, **self.types}
        return pa.Table.from_pylist(made, pa.schema([(name, kinds.get(name, pa.string())) for name in names]))

    def make(self, judge: Judge, path: Path, version: int) -> None:
        """Hudi makes the table."""
        rng = random.Random(str(path.name))
        if self.sql:
            for statement in self.sql:
                judge.sql(statement.format(t=f"stock_{path.name}", path=path), self._session(version))
            return
        writer = self.writer(version)
        judge.write(path, self.rows(rng, range(40), "first"), {**writer, _OPERATION: "upsert"}, "overwrite")
        for number, step in enumerate(self.steps):
            numbers = rng.sample(range(60), 15)
            operation, _, more = step.partition(" ")
            extra = dict(pair.split("=", 1) for pair in more.split() if pair)
            rows = None if operation == "delete_partition" else self.rows(rng, numbers, f"{step[:6]}{number}")
            judge.write(path, rows, {**writer, _OPERATION: operation, **extra})

    def on_top(self, judge: Judge, path: Path, version: int) -> None:
        """Hudi goes on behind our compaction, with all its services on."""
        if self.sql:
            judge.sql((self.top or self.sql[-1]).format(t=f"stock_{path.name}", path=path), self._session(version))
            return
        rng = random.Random(f"{path.name} on top")
        rows = self.rows(rng, rng.sample(range(80), 25), "top")
        operation = "insert" if _KEY in self.options and self.options[_KEY] is None else "upsert"
        judge.write(path, rows, {**self.writer(version), _OPERATION: operation})


_OPERATION = "hoodie.datasource.write.operation"
_KEY = "hoodie.datasource.write.recordkey.field"
_PARTITION = "hoodie.datasource.write.partitionpath.field"
_ORDER = "hoodie.datasource.write.precombine.field"
_TYPES = {"n": pa.int32(), "ts": pa.int64(), "fare": pa.float64()}


def _older(version: int) -> Options:
    """1.2 makes version 9 unless another one is wished, and its writers upgrade the table."""
    return {"hoodie.write.table.version": version, "hoodie.write.auto.upgrade": "false"} if version == 8 else {}


def _row(rng: random.Random, number: int, mark: str) -> Row:
    return {
        "id": f"k{number:03d}",
        "zone": ZONES[number % 3],
        "city": f"{mark}-{number}",
        "n": rng.randrange(1000),
        "fare": rng.randrange(1000) / 4,
        "ts": rng.randrange(9),
    }


def _with_gaps(row: Row, rng: random.Random) -> Row:
    return {k: None if k in ("city", "n", "fare") and rng.random() < 0.5 else v for k, v in row.items()}


def _dms(row: Row, rng: random.Random) -> Row:
    return {**row, "Op": rng.choice(("I", "U", "D"))}


def _debezium(row: Row, rng: random.Random) -> Row:
    return {**row, "_change_operation_type": rng.choice("cud"), "_event_lsn": row["ts"]}


def _toasted(row: Row, rng: random.Random) -> Row:
    city = "__debezium_unavailable_value" if rng.random() < 0.4 else row["city"]
    return {**_debezium(row, rng), "city": city}


def _mysql(row: Row, rng: random.Random) -> Row:
    return {**_debezium(row, rng), "_event_bin_file": f"bin.{row['ts'] % 2}", "_event_pos": row["ts"]}


def _deleting(row: Row, rng: random.Random) -> Row:
    return {**row, "_hoodie_is_deleted": rng.random() < 0.3}


def _nested(row: Row, rng: random.Random) -> Row:
    place = {"x": rng.randrange(9), "label": rng.choice((None, "a", "b"))}
    return {
        **row,
        "place": place,
        "stops": [place, place],
        "tags": [f"t{rng.randrange(3)}"],
        "sizes": [("a", rng.randrange(9))],
        "price": Decimal(rng.randrange(10**6)).scaleb(-2),
        "big": Decimal(rng.randrange(10**20)).scaleb(-4),
    }


_PLACE = pa.struct([("x", pa.int32()), ("label", pa.string())])
_NESTED = {
    "place": _PLACE,
    "stops": pa.list_(_PLACE),
    "tags": pa.list_(pa.string()),
    "sizes": pa.map_(pa.string(), pa.int64()),
    "price": pa.decimal128(12, 2),
    "big": pa.decimal128(24, 4),
}


def _wide(row: Row, rng: random.Random) -> Row:
    return {
        **row,
        "day": rng.randrange(20_000),
        "seen": rng.randrange(10**15),
        "raw": rng.randbytes(4),
        "open": rng.random() < 0.5,
        "weight": rng.randrange(100) / 8,
        "long": rng.randrange(10**12),
    }


_WIDE = {
    "day": pa.date32(),
    "seen": pa.timestamp("us", tz="UTC"),
    "raw": pa.binary(),
    "open": pa.bool_(),
    "weight": pa.float32(),
    "long": pa.int64(),
}


def _two_parts(row: Row, _: random.Random) -> Row:
    return {**row, "month": f"2026-{int(row['id'][1:]) % 2 + 1:02d}"}


NOT_PARTITIONED: Options = {_PARTITION: None}
HIVE: Options = {"hoodie.datasource.write.hive_style_partitioning": "true"}
ENCODED: Options = {"hoodie.datasource.write.partitionpath.urlencode": "true"}
PARQUET: Options = {"hoodie.logfile.data.block.format": "parquet"}
BUCKET: Options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": 4}
KEYLESS: Options = {_KEY: None, _ORDER: None}

_PAYLOADS: dict[str, Stock] = {
    "default": Stock(),
    "event_time": Stock(options=payload("DefaultHoodieRecordPayload")),
    "overwrite": Stock(options=payload("OverwriteWithLatestAvroPayload")),
    "flink_default": Stock(options=payload("EventTimeAvroPayload")),
    "partial": Stock(options=payload("PartialUpdateAvroPayload"), shape=_with_gaps),
    "non_defaults": Stock(options=payload("OverwriteNonDefaultsWithLatestAvroPayload"), shape=_with_gaps),
    "dms": Stock(options=payload("AWSDmsAvroPayload"), shape=_dms),
    "postgres": Stock(
        options=payload("debezium.PostgresDebeziumAvroPayload", "_event_lsn"),
        shape=_toasted,
        types={"_event_lsn": pa.int64()},
    ),
    "mysql": Stock(
        options=payload("debezium.MySqlDebeziumAvroPayload", "_event_bin_file,_event_pos"),
        shape=_mysql,
        types={"_event_lsn": pa.int64(), "_event_pos": pa.int64()},
        versions=(9,),
    ),
}
_LAYOUTS: dict[str, Options] = {
    "": {},
    "not_partitioned": NOT_PARTITIONED,
    "bucket": BUCKET,
    "parquet_logs": PARQUET,
    "hive": {**HIVE, **ENCODED},
}


def _in_layout(stock: Stock, more: Options) -> Stock:
    return Stock(
        options={**stock.options, **more},
        shape=stock.shape,
        types=stock.types,
        steps=stock.steps,
        versions=stock.versions,
    )


_CREATE = "create table {t} (id string, zone string, city string, n int, ts bigint) using hudi "
_PROPERTIES = "tblproperties (type='mor', primaryKey='id', preCombineField='ts') "
_PLACED = "partitioned by (zone) location '{path}'"
_INSERT = "insert into {t} (id, city, n, ts, zone) values " + ", ".join(
    f"('k{n:03d}', 'city-{n}', {n}, {n % 5}, '{'north' if n % 2 else 'south'}')" for n in range(30)
)
_SOURCE = (
    "(select concat('k', lpad(cast(id as string), 3, '0')) as id, if(id % 2 = 1, 'north', 'south') as zone, "
    "concat('merged-', id) as city, cast(id as int) as n, 9L as ts from range(20, 40)) as src"
)
_MERGE_ALL = (
    "merge into {t} as t using " + _SOURCE + " on t.id = src.id when matched then update set * "
    "when not matched then insert *"
)
_MERGE_SOME = (
    "merge into {t} as t using " + _SOURCE + " on t.id = src.id when matched then update set t.city = src.city, "
    "t.ts = src.ts when not matched then insert *"
)
ON_READ: Options = {
    "hoodie.schema.on.read.enable": "true",
    "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true",  # else 1.2 refuses to drop and rename
}
_ALTERED = (
    _CREATE + _PROPERTIES + _PLACED,
    _INSERT,
    "update {t} set city = 'moved' where n % 3 = 0",
    "alter table {t} add columns (fare double, note string)",
    "update {t} set fare = 1.5, note = 'new' where n % 4 = 0",
    "alter table {t} alter column n type bigint",
    "update {t} set n = n + 5000000000 where n % 5 = 0",
    "alter table {t} drop column city",
    "delete from {t} where n % 7 = 3",
)
"""Columns are added, dropped and widened; each name means the same column all the time."""
_RENAMED = (
    *_ALTERED[:3],
    "alter table {t} rename column city to town",
    "update {t} set town = 'renamed' where n % 4 = 0",
    "alter table {t} add columns (city string, note string)",
    "update {t} set city = 'another', note = 'new' where n % 5 = 0",
    "alter table {t} rename column note to remark",
    "delete from {t} where n % 7 = 3",
    "update {t} set remark = 'again' where n % 6 = 0",
)
_TOP = "update {t} set fare = 2.5, note = 'top' where n < 9"
_UPDATE, _DELETE = "update {t} set n = n + 1 where n < 10", "delete from {t} where n % 7 = 3"

OTHERS: dict[str, Stock] = {
    "no_ordering": Stock(options={_ORDER: None}),
    "is_deleted": Stock(shape=_deleting, types={"_hoodie_is_deleted": pa.bool_()}),
    "is_deleted_event_time": Stock(
        options=payload("DefaultHoodieRecordPayload"), shape=_deleting, types={"_hoodie_is_deleted": pa.bool_()}
    ),
    "nested": Stock(shape=_nested, types=_NESTED),
    "all_types": Stock(shape=_wide, types=_WIDE),
    "complex_key": Stock(options={_KEY: "id,zone"}),
    "two_partition_fields": Stock(options={_PARTITION: "zone,month"}, shape=_two_parts),
    "keyless": Stock(options=KEYLESS, steps=("insert", "insert")),
    "bloom": Stock(options={"hoodie.index.type": "BLOOM"}),
    "simple": Stock(options={"hoodie.index.type": "SIMPLE"}),
    "global_simple": Stock(options={"hoodie.index.type": "GLOBAL_SIMPLE"}),
    "global_bloom": Stock(options={"hoodie.index.type": "GLOBAL_BLOOM"}),
    "record_index": Stock(options={"hoodie.index.type": "RECORD_INDEX", "hoodie.metadata.record.index.enable": "true"}),
    "no_metadata_table": Stock(options={"hoodie.metadata.enable": "false"}),
    "column_stats": Stock(options={"hoodie.metadata.index.column.stats.enable": "true"}),
    "bloom_filters": Stock(options={"hoodie.metadata.index.bloom.filter.enable": "true"}),
    "inserts": Stock(steps=("insert", "upsert", "insert")),
    "bulk_insert": Stock(steps=("bulk_insert", "upsert")),
    "insert_overwrite": Stock(steps=("upsert", "insert_overwrite", "upsert")),
    "insert_overwrite_table": Stock(steps=("upsert", "insert_overwrite_table", "upsert")),
    "delete_partition": Stock(
        steps=("upsert", "delete_partition hoodie.datasource.write.partitions.to.delete=north", "upsert")
    ),
    "clustered": Stock(
        steps=("upsert hoodie.clustering.inline=true hoodie.clustering.inline.max.commits=1", "upsert", "upsert")
    ),
    "compacted_often": Stock(
        options={
            "hoodie.compact.inline.max.delta.commits": 2,
            "hoodie.clean.commits.retained": 1,
            "hoodie.keep.min.commits": 2,
            "hoodie.keep.max.commits": 3,
        },
        steps=("upsert",) * 7,
    ),
    "plan_pends": Stock(
        options={"hoodie.compact.inline": "false"},
        steps=(
            "upsert hoodie.compact.schedule.inline=true hoodie.compact.inline.max.delta.commits=1",
            "upsert",
            "upsert",
        ),
    ),
    "consistent_buckets": Stock(options={**BUCKET, "hoodie.index.bucket.engine": "CONSISTENT_HASHING"}),
    "cdc": Stock(options={"hoodie.table.cdc.enabled": "true"}),
    "schema_on_read": Stock(options={"hoodie.schema.on.read.enable": "true"}),
    "virtual_keys": Stock(options={"hoodie.populate.meta.fields": "false", "hoodie.index.type": "SIMPLE"}),
    "copy_on_write": Stock(options={"hoodie.datasource.write.table.type": "COPY_ON_WRITE"}),
    "sql_whole_rows": Stock(sql=[_CREATE + _PROPERTIES + _PLACED, _INSERT, _UPDATE, _DELETE, _MERGE_ALL]),
    "sql_some_columns": Stock(sql=[_CREATE + _PROPERTIES + _PLACED, _INSERT, _UPDATE, _DELETE, _MERGE_SOME]),
    "sql_some_columns_no_ordering": Stock(
        sql=[_CREATE + _PROPERTIES.replace(", preCombineField='ts'", "") + _PLACED, _INSERT, _UPDATE, _MERGE_SOME]
    ),
    "altered": Stock(options=ON_READ, sql=_ALTERED, top=_TOP),
    "altered_parquet_logs": Stock(
        options={**ON_READ, "hoodie.logfile.data.block.format": "parquet"}, sql=_ALTERED, top=_TOP
    ),
    "renamed": Stock(options=ON_READ, sql=_RENAMED, top="update {t} set remark = 'top', city = null where n < 9"),
    "renamed_parquet_logs": Stock(
        options={**ON_READ, "hoodie.logfile.data.block.format": "parquet"},
        sql=_RENAMED,
        top="update {t} set remark = 'top', city = null where n < 9",
    ),
    "sql_keyless": Stock(sql=[_CREATE + "tblproperties (type='mor') " + _PLACED, _INSERT, _UPDATE, _DELETE]),
}
CASES: dict[str, Stock] = {
    **{
        "_".join(filter(None, (name, layout))): _in_layout(stock, more)
        for name, stock in _PAYLOADS.items()
        for layout, more in _LAYOUTS.items()
    },
    **OTHERS,
}
"""All of them, by name: each payload class in each layout, and what else users choose."""
