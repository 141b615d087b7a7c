"""Random histories of tables with pairs of features: payload classes and merge modes, columns that evolve by writes,
key generators, indexes, kinds of logs, Hudi's metadata table, and what table services do to them.

After each step Hudi and phantombase read the same: snapshot, base files, a window, a past state, filters. What
phantombase does to the rows, Hudi does to a copy of the table: all columns but Hudi's own are equal then.
`python -m tests.hudi.cases.mixed_history VERSION FIRST COUNT [merge=M] [index=I] [keys=K] [keep=DIR] [also=odd,...]`
prints what many seeds find; it goes on behind a step that either refuses. `also`: see `ALSO`."""

from __future__ import annotations

import math
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from phantombase import Writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.compactor_daemon.undo.savepoint import create_savepoint
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.filter.possible import bound, matching
from phantombase.timeline.filter.tree import Compare, Filter, IsNull, Not, Op
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.read import table_read
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from tests.hudi.cases.random_history import RandomSteps
from tests.hudi.cases.rows import same
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import BRIEF, INTERPRETED, METADATA_TABLE, QUIET, Judge, JudgeError

MODEL = "org.apache.hudi.common.model."
KEYGEN = "org.apache.hudi.keygen."
_W = "hoodie.datasource.write."
KEYS = 30
PARTITIONS = ("north", "a b", "süd")
FEW = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)


@dataclass(frozen=True, kw_only=True)
class Merge:
    """How rows of a key are merged. `ordering`: fields with their types. `marker`: column, value that deletes, others.
    `absent`: chance that a value is not given, as `text`."""

    payload: str | None
    ordering: tuple[tuple[str, pa.DataType], ...] = (("ts", pa.int64()),)
    marker: tuple[str, str, tuple[str | None, ...]] | None = None
    absent: float = 0.0
    text: str | None = None
    more: tuple[tuple[str, object], ...] = ()
    marks: bool = True


_TYPES = {
    "long": pa.int64(),
    "int": pa.int32(),
    "text": pa.string(),
    "time": pa.timestamp("us", tz="UTC"),
    "day": pa.date32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(12, 2),
}
_DEBEZIUM = ("_change_operation_type", "d", ("c", "u"))
_DELETE_KEY = (("hoodie.payload.delete.field", "op"), ("hoodie.payload.delete.marker", "DEL"))
MERGES: dict[str, Merge] = {
    "commit": Merge(payload="OverwriteWithLatestAvroPayload"),
    "event": Merge(payload="DefaultHoodieRecordPayload"),
    **{
        f"event {name}": Merge(payload="DefaultHoodieRecordPayload", ordering=(("ts", kind),))
        for name, kind in _TYPES.items()
    },
    "event two": Merge(payload="DefaultHoodieRecordPayload", ordering=(("t1", pa.string()), ("ts", pa.int64()))),
    "flink": Merge(payload="EventTimeAvroPayload"),
    "partial": Merge(payload="PartialUpdateAvroPayload", absent=0.4, marks=False),
    "non defaults": Merge(payload="OverwriteNonDefaultsWithLatestAvroPayload", absent=0.4, marks=False),
    "dms": Merge(payload="AWSDmsAvroPayload", marker=("Op", "D", ("I", "U", None))),
    "postgres": Merge(
        payload="debezium.PostgresDebeziumAvroPayload",
        ordering=(("_event_lsn", pa.int64()),),
        marker=_DEBEZIUM,
        absent=0.4,
        text="__debezium_unavailable_value",
    ),
    "mysql": Merge(
        payload="debezium.MySqlDebeziumAvroPayload",
        ordering=(("_event_bin_file", pa.string()), ("_event_pos", pa.int64())),
        marker=_DEBEZIUM,
    ),
    "delete key": Merge(payload="DefaultHoodieRecordPayload", marker=("op", "DEL", ("x", None)), more=_DELETE_KEY),
}
_ONLY = {
    6: set(MERGES) - {"mysql", "event two", "delete key"},
    8: set(MERGES) - {"mysql", "postgres", "event two", "delete key"},
    9: set(MERGES),
}
INDEXES: dict[str, dict[str, object]] = {
    "simple": {"hoodie.index.type": "SIMPLE"},
    "bloom": {"hoodie.index.type": "BLOOM"},
    "bucket": {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": 2},
    "record": {
        "hoodie.index.type": "RECORD_INDEX",
        "hoodie.metadata.record.index.enable": "true",
        "hoodie.record.index.update.partition.path": "true",
        **METADATA_TABLE,
    },
    "global": {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "true"},
}
MORE_INDEXES: dict[str, dict[str, object]] = {
    "global bloom": {"hoodie.index.type": "GLOBAL_BLOOM", "hoodie.bloom.index.update.partition.path": "true"}
}
GLOBAL = frozenset({"global", "record", "global bloom"})
"""Indexes under which a row moves to another partition."""
GENERATORS: dict[str, dict[str, object]] = {
    "simple": {},
    "complex": {f"{_W}recordkey.field": "id,k2"},
    "custom": {f"{_W}keygenerator.class": f"{KEYGEN}CustomKeyGenerator"},
    "none": {f"{_W}keygenerator.class": f"{KEYGEN}NonpartitionedKeyGenerator"},
    "time": {
        f"{_W}keygenerator.class": f"{KEYGEN}TimestampBasedKeyGenerator",
        "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
        "hoodie.keygen.timebased.output.dateformat": "yyyy/MM",
        "hoodie.keygen.timebased.timezone": "UTC",
    },
}


ALSO = {
    "nan": "floats that are no numbers, infinite, or a negative zero",
    "keys": "keys of two texts, with nulls, empty ones, colons and commas",
    "types": "columns of bytes, maps and, on version 6 too, decimals",
    "stats": "Hudi's metadata table with statistics of columns and bloom filters",
    "marks": "rows marked as deleted, whatever the payload class",
    "null": "ordering values that are null",
}
_ODD_KEYS = (None, "", "a:b", "a,k2:b", "x", "__null__", "\U0001f600")


@dataclass
class Columns:
    """The data columns and their types as the table has them; `first`: as it was made."""

    kinds: dict[str, pa.DataType] = field(default_factory=dict)
    first: dict[str, pa.DataType] = field(default_factory=dict)


def first_columns(version: int, *, more: bool = False) -> dict[str, pa.DataType]:
    return {
        "a": pa.string(),
        "n": pa.int32(),
        "f": pa.float32(),
        "s": pa.struct([("x", pa.int32()), ("y", pa.string())]),
        "l": pa.list_(pa.string()),
        # Hudi 0.15's compaction may spoil decimals
        **({"d": pa.decimal128(10, 2)} if version > 6 or more else {}),
        **({"b": pa.binary(), "m": pa.map_(pa.string(), pa.int64())} if more else {}),
    }


_WIDER = {pa.int32(): (pa.int64(), pa.float64()), pa.int64(): (pa.float64(),), pa.float32(): (pa.float64(),)}


class MixedHistory(RandomSteps):
    """One table, its settings and what may happen to it."""

    def __init__(
        self,
        judge: Judge,
        version: int,
        seed: int,
        path: Path,
        *,
        merge: str | None = None,
        index: str | None = None,
        keys: str | None = None,
        also: frozenset[str] = frozenset(),
    ) -> None:
        self.random = pick = random.Random(f"{version} {seed}")
        self.also = also
        self.judge, self.version, self.seed = judge, version, seed
        allowed = sorted(_ONLY[version])
        self.merge_name = merge or allowed[seed % len(allowed)]
        self.merge = MERGES[self.merge_name]
        # Rows that lack values do not move between partitions: refused.
        self.index = pick.choice([n for n in INDEXES if not self.merge.absent or n not in GLOBAL])
        self.generator = pick.choice([n for n in GENERATORS if n != "time" or version > 6])
        self.index, self.generator = index or self.index, keys or ("complex" if "keys" in also else self.generator)
        if self.index == "bucket" and self.generator == "complex" and "keys" not in also:
            self.generator = "simple"
        self.parquet = pick.random() < 0.4 and not any(pa.types.is_string(k) for _, k in self.merge.ordering)
        self.metadata = pick.random() < 0.4 or self.index == "record" or "stats" in also
        self.hive, self.encode = pick.random() < 0.3, pick.random() < 0.3
        self.virtual = pick.random() < 0.12 and self.generator in ("simple", "none") and self.index != "record"
        self.cdc = pick.random() < 0.12
        self.small = pick.choice((0, 104857600))
        self.marks = (self.merge.marks and pick.random() < 0.35) or "marks" in also
        # Hudi 0.15 cannot build a record index over keys with such characters.
        self.high = "\U0001f600" if version > 6 or not self.metadata else "\uff5e"
        made_by_us = pick.random() < 0.4 and self.merge_name.startswith(("commit", "event")) and self.index != "record"
        fields = {"custom": "p:SIMPLE", "time": "at", "none": None}
        partition = fields.get(self.generator, "p")
        options: dict[str, object] = {
            f"{_W}payload.class": f"{MODEL}{self.merge.payload}",
            f"{_W}precombine.field": ",".join(name for name, _ in self.merge.ordering),
            f"{_W}partitionpath.field": partition or "",
            **dict(self.merge.more),
            **{**INDEXES, **MORE_INDEXES}[self.index],
            **GENERATORS[self.generator],
            f"{_W}hive_style_partitioning": str(self.hive).lower(),
            f"{_W}partitionpath.urlencode": str(self.encode).lower(),
            "hoodie.parquet.small.file.limit": self.small,
            "hoodie.write.set.null.for.missing.columns": "true",
        }
        if self.parquet:
            options["hoodie.logfile.data.block.format"] = "parquet"
        if self.metadata:
            options |= METADATA_TABLE
        if self.metadata and (pick.random() < 0.5 or "stats" in also):
            options["hoodie.metadata.index.column.stats.enable"] = "true"
        if "stats" in also:
            options["hoodie.metadata.index.bloom.filter.enable"] = "true"
        if self.virtual:
            options["hoodie.populate.meta.fields"] = "false"
        if self.cdc:
            options["hoodie.table.cdc.enabled"] = "true"
        self.said = [
            f"v{version} seed {seed} Hudi {judge.version}: merge {self.merge_name}, index {self.index}, "
            f"keys {self.generator}, parquet {self.parquet}, metadata {self.metadata}, hive {self.hive}, "
            f"encode {self.encode}, virtual {self.virtual}, cdc {self.cdc}, small {self.small}, marks {self.marks}, "
            f"made by us {made_by_us}, also {','.join(sorted(also))}"
        ]
        self.table = SharedTable(judge=judge, path=path, version=version, options=options, partition_field=partition)
        # With other indexes and small files Hudi's MERGE INTO writes rows without their other columns.
        self.sets = version > 6 and self.small == 0 and self.index in ("simple", "bloom") and not self.virtual
        # On tables with marks of deletion it loses the rows.
        self.sets = (
            self.sets
            and not self.marks
            and "keys" not in also
            and self.merge_name.startswith(("commit", "event"))
            and self.generator != "time"
        )
        self.lock = ProcessLock(str(path))
        first = first_columns(version, more="types" in also)
        self.columns = Columns(kinds=dict(first), first=first)
        self.clock, self.fresh, self.wrote = 10, 1000, 0
        self.savepoints: list[str] = []
        self.moments: list[str] = []
        self.doubled = self.restored = False
        self.refusals: list[str] = []
        self.deleted: set[int] = set()
        self.made_by_us = made_by_us
        self.snapshot = pa.table({})
        self.kept = (self.snapshot, dict(self.columns.kinds))

    def begin(self) -> None:
        """The table is made."""
        first = self.rows(range(KEYS), deletes=False)
        try:
            if self.made_by_us:
                made = self.table.creator(first).conf({"hoodie.metadata.enable": "true"} if self.metadata else {})
                made.upsert(str(self.table.path))
        except PhantombaseError as error:
            self.refusals.append(f"ours create: {type(error).__name__}: {str(error)[:1500]}")
            self.made_by_us = False
        if not self.made_by_us:
            self.table.create(first)
        self.look("create", all_=True)

    # Rows.

    def part(self, number: int) -> str:
        return PARTITIONS[number % 7 % len(PARTITIONS)]

    def value(self, kind: pa.DataType, mark: str, number: int) -> Any:
        pick = self.random
        if pa.types.is_string(kind):
            return f"{mark}.{number}" + pick.choice(("", "é", "\U0001f600"))
        if pa.types.is_floating(kind) and "nan" in self.also and pick.random() < 0.6:
            return pick.choice((float("nan"), float("inf"), float("-inf"), -0.0, 0.0))
        if pa.types.is_floating(kind):
            return float(pick.choice((0.5, -1.25, 3.0, 0.1 if kind == pa.float64() else 0.75)))
        if pa.types.is_integer(kind):
            return pick.randrange(-(2**31), 2**31) if kind == pa.int32() else pick.randrange(-(2**52), 2**52)
        if pa.types.is_struct(kind):
            return {f.name: None if pick.random() < 0.2 else self.value(f.type, mark, number) for f in kind}
        if pa.types.is_list(kind):
            return [self.value(kind.value_type, mark, number) for _ in range(pick.randint(0, 2))]
        if pa.types.is_decimal(kind):
            return Decimal(pick.randrange(-(10**8), 10**8)).scaleb(-2)
        if pa.types.is_boolean(kind):
            return pick.random() < 0.5
        if pa.types.is_binary(kind):
            return pick.randbytes(pick.randint(0, 4))
        if pa.types.is_map(kind):
            return [(key, pick.choice((None, pick.getrandbits(40)))) for key in pick.sample("xyé", pick.randint(0, 2))]
        if pa.types.is_date(kind):
            return date(2020, 1, 1) + timedelta(days=pick.randrange(1000))
        if pa.types.is_timestamp(kind):
            return datetime(2020, 1, 1, tzinfo=UTC) + timedelta(microseconds=pick.randrange(10**15))
        raise AssertionError(kind)

    def order(self, kind: pa.DataType, time: int) -> Any:
        if pa.types.is_string(kind):
            return f"{time // 3:05d}" + self.random.choice(("", "\uff5e", "\U0001f600"))
        if pa.types.is_timestamp(kind):
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=time)
        if pa.types.is_date(kind):
            return date(1970, 1, 1) + timedelta(days=time)
        if pa.types.is_decimal(kind):
            return Decimal(time - 12).scaleb(-2)
        if pa.types.is_floating(kind):
            return float(time) - 11.5
        return time

    def rows(
        self,
        numbers: Iterable[int],
        *,
        deletes: bool = True,
        kinds: dict[str, pa.DataType] | None = None,
        names: list[str] | None = None,
    ) -> pa.Table:
        """A row for each number, in the table's columns or those given."""
        pick, kinds = self.random, self.columns.kinds if kinds is None else kinds
        self.wrote += 1
        mark, made = f"w{self.wrote}", []
        self.clock += 1
        second = pa.string() if "keys" in self.also else pa.int32()
        schema: dict[str, pa.DataType] = {"id": pa.string(), "k2": second, "p": pa.string(), "at": pa.int64()}
        schema |= kinds | dict(self.merge.ordering)
        for number in numbers:
            moves = deletes and self.index in GLOBAL and pick.random() < 0.25
            place = pick.randrange(3) if moves else PARTITIONS.index(self.part(number))
            row: dict[str, Any] = {
                "id": f"k{number:03d}" + (self.high if number % 5 == 0 else "ü" if number % 5 == 1 else ""),
                "k2": _ODD_KEYS[number % len(_ODD_KEYS)] if "keys" in self.also else number % 4,
                "p": PARTITIONS[place],
                "at": 1_700_000_000_000 + place * 3_000_000_000,
            }
            for name, kind in kinds.items():
                row[name] = None if pick.random() < 0.1 else self.value(kind, mark, number)
                if pick.random() < self.merge.absent:
                    row[name] = self.merge.text if pa.types.is_string(kind) and pick.random() < 0.8 else None
            time = pick.choice((self.clock - 3, self.clock - 1, self.clock, self.clock))
            for name, kind in self.merge.ordering:
                row[name] = None if "null" in self.also and pick.random() < 0.2 else self.order(kind, time)
            if self.merge.marker is not None:
                name, value, others = self.merge.marker
                schema[name] = pa.string()
                row[name] = value if deletes and pick.random() < 0.25 else pick.choice(others)
            if self.marks:
                schema["_hoodie_is_deleted"] = pa.bool_()
                row["_hoodie_is_deleted"] = deletes and pick.random() < 0.25
            if deletes and (
                row.get("_hoodie_is_deleted")
                or (self.merge.marker and row[self.merge.marker[0]] == self.merge.marker[1])
            ):
                self.deleted.add(number)
            made.append(row)
        rows = pa.Table.from_pylist(made, pa.schema(list(schema.items())))
        return rows.select(names) if names else rows

    def batch(self, numbers: Iterable[int], *, deletes: bool = True) -> tuple[pa.Table, dict[str, pa.DataType]]:
        """Rows, perhaps in other columns, and the table's columns behind their write."""
        pick, now = self.random, dict(self.columns.kinds)
        kind = pick.choice(("same", "same", "add", "widen", "reorder", "nested", "narrow", "missing"))
        given = dict(now)
        if kind == "add" and len(now) < 10:
            type_ = pick.choice((pa.string(), pa.int64(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.bool_()))
            given[f"c{len(now)}"] = type_
            now = dict(given)
        elif kind == "widen" and self.version == 6 and self.parquet:
            kind = "same"  # Hudi 0.15 reads no Parquet blocks of before then
        elif kind == "widen":
            name = pick.choice(sorted(n for n, k in now.items() if k in _WIDER) or ["a"])
            if now[name] in _WIDER:
                given[name] = now[name] = pick.choice(_WIDER[now[name]])
        elif kind == "nested" and len(now["s"]) < 4:
            fields = [*now["s"], pa.field(f"z{len(now['s'])}", pick.choice((pa.string(), pa.float64())))]
            given["s"] = now["s"] = pa.struct(fields)
        elif kind == "narrow":
            given = {name: self.columns.first.get(name, k) for name, k in now.items()}
        elif kind == "missing":
            gone = pick.choice(sorted(now))
            given = {name: k for name, k in now.items() if name != gone}
        rows = self.rows(numbers, deletes=deletes, kinds=given)
        if kind == "reorder":
            names = list(rows.column_names)
            pick.shuffle(names)
            rows = rows.select(names)
        if kind in ("add", "widen", "nested", "missing", "narrow", "reorder"):
            changed = [f"{n} {k}" for n, k in given.items() if self.columns.kinds.get(n) != k]
            self.said.append(f"[{kind}: {', '.join(changed)}]")
        return rows, now

    def some(self) -> list[int]:
        return sorted(self.random.sample(range(KEYS + 8), self.random.randint(1, 14)))

    def new(self) -> list[int]:
        self.fresh += 10
        return list(range(self.fresh, self.fresh + self.random.randint(1, 5)))

    # Steps: a step of ours is done by Hudi to a copy.

    def steps(self) -> dict[Callable[[], bool], int]:
        return {
            self.hudi_upserts: 7,
            self.we_upsert: 9,
            self.hudi_deletes: 2,
            self.hudi_upserts_alone: 2 if self.metadata and self.index != "record" else 0,
            self.hudi_widens_the_ordering: 1 if self.merge_name == "event int" else 0,
            self.hudi_merges_into: 2 if self.sets else 0,
            self.we_merge_into: 3 if self.sets else 0,
            self.we_delete: 3,
            self.hudi_inserts: 1,
            self.we_insert: 2,
            self.insert_doubles: 1,
            self.hudi_overwrites: 1,
            self.we_overwrite: 1,
            self.we_overwrite_the_table: 1,
            self.hudi_deletes_a_partition: 1,
            self.we_delete_a_partition: 1,
            self.hudi_schedules: 3,
            self.we_schedule: 3,
            self.hudi_compacts: 2,
            self.we_compact: 4,
            self.we_merge_logs: 2,
            self.hudi_clusters: 1,
            self.we_cluster: 2,
            self.hudi_cleans: 1,
            self.we_clean: 1,
            self.hudi_archives: 1,
            self.we_archive: 1,
            self.savepoint: 1,
            self.restore: 2,
            self.roll_back: 2,
        }

    def hudis(self, do: Callable[[], object]) -> bool:
        """A step of Hudi; where it fails the table is as before."""
        kept = self.table.copy()
        try:
            do()
        except JudgeError as error:
            self.refusals.append(f"Hudi {self.said[-1]}: {str(error)[:1500]}")
            self.said.append("FAILED")
            shutil.rmtree(self.table.path)
            shutil.move(kept.path, self.table.path)
            return False
        return True

    def ours(self, do: Callable[[], object], twin: Callable[[SharedTable], object] | None) -> bool:
        """A step of ours, and by Hudi on a copy."""
        beside = self.table.copy()
        self.options_of(beside)
        try:
            do()
        except PhantombaseError as error:
            self.refusals.append(f"ours {self.said[-1]}: {type(error).__name__}: {str(error)[:1500]}")
            self.said.append("REFUSED")
            return False
        if twin is not None:
            try:
                twin(beside)
                theirs = beside.hudi_reads()
            except JudgeError as error:
                self.refusals.append(f"Hudi beside {self.said[-1]}: {str(error)[:1500]}")
                return True
            same(self.told(plain(self.table.we_read())), self.told(plain(theirs)))
        return True

    def told(self, rows: pa.Table) -> pa.Table:
        """Without the column that Hudi may read from the names of folders, in another type."""
        return rows.drop_columns(["at"]) if self.generator == "time" and "at" in rows.column_names else rows

    def options_of(self, table: SharedTable) -> None:
        self.judge.adopt(table.path, table.options)

    def writer(self, rows: pa.Table) -> Writer:
        """Ours, with random options that must not matter."""
        pick = self.random
        mine = self.table.writer(
            rows,
            null_for_missing=True,
            small_file_bytes=self.small,
            slots=pick.choice((1, 2)),
            log_format=LogFormat.PARQUET if self.parquet else LogFormat.AVRO,
        )
        if self.generator in ("time", "custom"):
            given = {k: str(v) for k, v in GENERATORS[self.generator].items()}
            mine = mine.conf({**given, f"{_W}partitionpath.field": str(self.table.partition_field)})
        return mine.global_keys() if self.index in GLOBAL else mine

    def followed(self, columns: dict[str, pa.DataType], done: bool) -> bool:
        if done:
            self.columns.kinds = columns
        return done

    def unplanned(self, numbers: list[int]) -> list[int]:
        """Hudi puts keys that a plan deletes on top of it: behind the compaction its next upsert doubles them, and
        before it they have values of before the delete."""
        if self.index == "bucket" or not self.table.pending():
            return numbers
        return [n for n in numbers if n not in self.deleted]

    def hudi_upserts(self) -> bool:
        numbers = self.unplanned(self.some())
        if not numbers:
            return False
        rows, columns = self.batch(numbers)
        return self.followed(columns, self.hudis(lambda: self.table.upsert(rows)))

    def we_upsert(self) -> bool:
        numbers = self.unplanned(self.some())
        if not numbers:
            return False
        if self.random.random() < 0.3:
            numbers = [*numbers, *self.random.choices(numbers, k=2)]
        rows, columns = self.batch(numbers)
        return self.followed(
            columns, self.ours(lambda: self.writer(rows).upsert(str(self.table.path)), lambda copy: copy.upsert(rows))
        )

    def deleting(self) -> pa.Table:
        numbers = self.some()
        self.deleted |= set(numbers)
        rows = self.rows(numbers)
        return rows.select([n for n in rows.column_names if n in {"id", "k2", "p", "at", *dict(self.merge.ordering)}])

    def hudi_deletes(self) -> bool:
        rows = self.deleting()
        return self.hudis(lambda: self.judge.delete(self.table.path, rows, self.table.options))

    def we_delete(self) -> bool:
        rows = self.deleting()
        return self.ours(
            lambda: self.writer(rows).delete(str(self.table.path)),
            lambda copy: self.judge.delete(copy.path, rows, copy.options),
        )

    def hudi_upserts_alone(self) -> bool:
        """Without the metadata table, which Hudi's next write builds."""
        rows, columns = self.batch(self.some(), deletes=False)
        alone = {"hoodie.metadata.enable": "false"}
        return self.followed(columns, self.hudis(lambda: self.table.upsert(rows, alone)))

    def hudi_widens_the_ordering(self) -> bool:
        (name, kind), *_ = self.merge.ordering
        if kind == pa.int64():
            return False
        self.merge = replace(self.merge, ordering=((name, pa.int64()),))
        rows = self.rows(self.some(), deletes=False)
        if self.hudis(lambda: self.table.upsert(rows)):
            return True
        self.merge = replace(self.merge, ordering=((name, kind),))
        return False

    def setting(self) -> tuple[pa.Table, list[str]]:
        """Rows and the columns that they set."""
        known = [n for n in self.some() if n < KEYS and n not in self.deleted] or [1]
        rows, order = self.rows(known, deletes=False), [name for name, _ in self.merge.ordering]
        columns = [*self.random.sample(sorted(set(self.columns.kinds) - {"l"}), 2), *order]
        return rows.select(["id", "k2", "p", "at", *columns]), columns

    def merge_into(self, table: SharedTable, rows: pa.Table, columns: list[str]) -> None:
        """By SQL of Hudi."""
        file = self.judge.session.scratch / f"set{self.wrote}.parquet"
        pq.write_table(rows, file)
        self.wrote += 1
        name = f"mixed_{self.version}_{self.seed}_{self.wrote}"
        self.judge.sql(f"create table {name} using hudi location '{table.path}'")
        keys = ["id", "k2"] if self.generator == "complex" else ["id"]
        on = " and ".join(f"t.{key} = s.{key}" for key in keys)
        sets = ", ".join(f"t.`{column}` = s.`{column}`" for column in columns)
        text = (
            f"merge into {name} t using (select * from parquet.`{file}`) s on {on} when matched then update set {sets}"
        )
        self.judge.sql(text, {**QUIET, **table.options})

    def hudi_merges_into(self) -> bool:
        rows, columns = self.setting()
        return self.hudis(lambda: self.merge_into(self.table, rows, columns))

    def we_merge_into(self) -> bool:
        rows, columns = self.setting()
        return self.ours(
            lambda: self.writer(rows).merge_into(str(self.table.path), update=columns),
            lambda copy: self.merge_into(copy, rows, columns),
        )

    def hudi_inserts(self) -> bool:
        bulk = self.random.random() < 0.5
        rows, columns = self.batch(self.new(), deletes=not bulk and self.random.random() < 0.5)
        operation = self.judge.bulk_insert if bulk else self.judge.insert
        return self.followed(columns, self.hudis(lambda: operation(self.table.path, rows)))

    def we_insert(self) -> bool:
        bulk = self.random.random() < 0.5  # Hudi stores rows that are marked deleted then
        rows, columns = self.batch(self.new(), deletes=not bulk and self.random.random() < 0.5)
        ours, theirs = (Writer.bulk_insert, Judge.bulk_insert) if bulk else (Writer.insert, Judge.insert)
        return self.followed(
            columns,
            self.ours(
                lambda: ours(self.writer(rows), str(self.table.path)), lambda copy: theirs(self.judge, copy.path, rows)
            ),
        )

    def insert_doubles(self) -> bool:
        """Keys that are there; from now on the table has some twice."""
        if (self.index == "bucket" or self.index in GLOBAL) or self.random.random() < 0.5:
            return False
        self.doubled = True
        rows, columns = self.batch(self.some(), deletes=False)
        if self.random.random() < 0.5:
            return self.followed(columns, self.hudis(lambda: self.judge.insert(self.table.path, rows)))
        return self.followed(
            columns,
            self.ours(
                lambda: self.writer(rows).insert(str(self.table.path)), lambda copy: self.judge.insert(copy.path, rows)
            ),
        )

    def hudi_overwrites(self) -> bool:
        if self.index in GLOBAL:
            return False
        rows, columns = self.batch(self.one_partition(), deletes=False)
        return self.followed(
            columns, self.hudis(lambda: self.judge.insert_overwrite(self.table.path, rows, self.table.options))
        )

    def one_partition(self) -> list[int]:
        name = self.random.choice(PARTITIONS)
        return [n for n in range(KEYS) if self.part(n) == name and self.random.random() < 0.6] or [0]

    def we_overwrite(self) -> bool:
        if self.index in GLOBAL:  # it may double keys that have moved
            return False
        rows, columns = self.batch(self.one_partition(), deletes=False)
        return self.followed(
            columns,
            self.ours(
                lambda: self.writer(rows).insert_overwrite(str(self.table.path)),
                lambda copy: self.judge.insert_overwrite(copy.path, rows, copy.options),
            ),
        )

    def we_overwrite_the_table(self) -> bool:
        rows, columns = self.batch(self.some(), deletes=False)
        done = self.ours(lambda: self.writer(rows).insert_overwrite_table(str(self.table.path)), None)
        return self.followed(columns, done)

    def a_partition(self) -> str | None:
        names = [name for name in self.table.open().partitions() if name]
        return self.random.choice(sorted(names)) if names else None

    def hudi_deletes_a_partition(self) -> bool:
        name = self.a_partition()
        return name is not None and self.hudis(lambda: self.judge.delete_partition(self.table.path, name))

    def we_delete_a_partition(self) -> bool:
        name = self.a_partition()
        return name is not None and self.ours(
            lambda: self.writer(self.rows([])).delete_partition(str(self.table.path), [name]),
            lambda copy: self.judge.delete_partition(copy.path, name),
        )

    def hudi_schedules(self) -> bool:
        return self.hudis(lambda: self.judge.schedule_compaction(self.table.path, self.table.options))

    def we_schedule(self) -> bool:
        return self.ours(self.table.we_may_schedule, None)

    def hudi_compacts(self) -> bool:
        return bool(self.table.pending()) and self.hudis(self.table.hudi_compacts)

    def we_compact(self) -> bool:
        if not self.table.pending():
            return False
        codec = Codec.GZIP if self.version == 6 else Codec.ZSTD
        output = replace(OutputOptions(), codec=codec, batch_rows=self.random.choice((3, 65_536)))
        return self.ours(lambda: self.table.we_compact(output=output), lambda copy: copy.hudi_compacts())

    def we_merge_logs(self) -> bool:
        return self.version > 6 and self.ours(self.table.we_merge_logs, None)

    def hudi_clusters(self) -> bool:
        return self.index != "bucket" and self.hudis(lambda: self.judge.cluster(self.table.path, self.table.options))

    def we_cluster(self) -> bool:
        options = ClusterOptions(min_files=2, wait_s=0, full=self.random.random() < 0.5)
        output = OutputOptions(codec=Codec.GZIP if self.version == 6 else Codec.ZSTD)
        before = plain(self.table.hudi_reads())
        done = self.ours(lambda: cluster_table(self.table.open(), options, self.lock, output=output), None)
        same(self.told(plain(self.table.we_read())), self.told(before))
        return done

    def hudi_cleans(self) -> bool:
        return self.hudis(lambda: self.judge.clean(self.table.path))

    def we_clean(self) -> bool:
        policy = self.random.choice([Policy.COMMITS, Policy.VERSIONS])
        options = CleanOptions(policy=policy, retain=self.random.randint(1, 2), floor_s=0)
        return self.ours(lambda: clean_table(self.table.open(), options, self.lock), None)

    def hudi_archives(self) -> bool:
        return self.hudis(lambda: self.judge.archive(self.table.path))

    def we_archive(self) -> bool:
        return self.ours(lambda: archive_table(self.table.open(), FEW, self.lock), None)

    def newest(self) -> str:
        return max(self.table.open().load_timeline().completed_writes)

    def savepoint(self) -> bool:
        newest = self.newest()
        if newest in self.savepoints:
            return False
        if self.random.random() < 0.5:
            done = self.hudis(lambda: self.judge.savepoint(self.table.path, newest))
        else:
            done = self.ours(lambda: create_savepoint(self.table.open(), self.lock, newest, user="", comment=""), None)
        if done:
            self.savepoints.append(newest)
            self.kept = (plain(self.snapshot), dict(self.columns.kinds))
        return done

    def restore(self) -> bool:
        if not self.savepoints:
            return False
        instant = self.savepoints[-1]
        if self.random.random() < 0.5 and not self.restored:
            done = self.hudis(lambda: self.judge.restore(self.table.path, instant))
        else:
            done = self.restored = self.ours(lambda: restore_table(self.table.open(), self.lock, instant), None)
        if done:
            self.columns.kinds = self.kept[1]
            same(self.told(plain(self.table.we_read())), self.kept[0])
        return done

    def roll_back(self) -> bool:
        """An upsert, by one, that the other takes back."""
        if self.version == 8:
            return False
        before, columns = plain(self.snapshot), dict(self.columns.kinds)
        if not self.random.choice((self.hudi_upserts, self.we_upsert))():
            return False
        newest = self.newest()
        if self.random.random() < 0.5:
            done = self.hudis(lambda: self.judge.rollback(self.table.path, newest))
        else:
            done = self.ours(lambda: roll_back_newest(self.table.open(), self.lock, newest), None)
        if done:
            self.columns.kinds = columns
            same(self.told(plain(self.table.we_read())), self.told(before))
        return True

    # Looks.

    def look(self, step: str, *, all_: bool = False) -> None:
        """Both read the same; a filter and columns of ours find what the whole read has."""
        hudis = self.told(self.table.hudi_reads())
        self.snapshot = self.told(self.table.we_read())
        same(self.snapshot, hudis)
        check_types(self.snapshot, hudis)
        if not self.doubled and not self.cdc:
            check_once(self.snapshot)
        if self.metadata:
            reads = self.judge.read(self.table.path, options={**METADATA_TABLE, "hoodie.enable.data.skipping": "true"})
            same(self.snapshot, self.told(reads))
        if all_ or self.random.random() < 0.4:
            theirs = self.told(self.table.hudi_reads("read_optimized"))
            same(self.told(self.table.we_read(Query.READ_OPTIMIZED)), theirs)
        self.filtered()
        timeline = self.table.open().load_timeline()
        moment = timeline.moment_of(timeline.completed[-1])
        if not self.moments or moment > self.moments[-1]:
            self.moments.append(moment)
        if self.random.random() < 0.35 and len(self.moments) > 1 and not self.virtual:
            self.window()

    def filtered(self) -> None:
        """A filter by values of a column, and some columns; Hudi with its data skipping."""
        pick, rows = self.random, self.snapshot
        columns = tuple(pick.sample(rows.column_names, pick.randint(1, 4)))
        same(read_table(self.table.open(), ReadOptions(columns=columns)), rows.select(list(columns)))
        scalar = [f.name for f in rows.schema if f.name != "at" and is_plain(f.type) and f.name[0] != "_"]
        for _ in range(2):
            name = pick.choice(sorted(scalar))
            values = [v for v in rows[name].to_pylist() if v is not None and v == v]
            if not values:
                continue
            value, kind = pick.choice(values), rows.schema.field(name).type
            op = pick.choice(SIGNS)
            sign = op.value
            text = (
                f"{name} {sign} '{value}'" if not isinstance(value, bool | int | float) else f"{name} {sign} {value!r}"
            )
            node: Filter = Compare(name, op, value)
            if pick.random() < 0.15:
                text = f"{name} is {pick.choice(('', 'not '))}null"
                node = Not(IsNull(name)) if "not" in text else IsNull(name)
            expected = matching(bound(node, rows.schema), rows)
            self.said.append(f"({text})")
            if not pa.types.is_decimal(kind):
                asked = node if isinstance(value, float) and math.isinf(value) else text
                same(self.told(read_table(self.table.open(), ReadOptions(filter=asked))), expected)
            skipping = {**METADATA_TABLE, "hoodie.enable.data.skipping": "true"}
            if self.version == 8 and self.merge.absent:
                self.said.pop()
                continue  # Hudi's query of some columns fails there, also of what it has written alone
            where = text if "null" in text else f"`{name}` {sign} {literal(value, kind)}"
            found = self.judge.select(self.table.path, ["id"], where=where, options=skipping if self.metadata else {})
            ids = sorted(row[0] for row in found.rows)
            assert ids == sorted(expected["id"].to_pylist()), f"Hudi where {where}: {ids}"
            self.said.pop()

    def window(self) -> None:
        """A window up to now and a past state."""
        self.past()
        if self.merge_name not in ("commit", "dms"):
            return  # Hudi looks at rows of the window alone: late ones are shown, and lack what older ones give them
        begin = self.random.choice(self.moments[:-1])
        end = self.moments[-1]
        name = "hoodie.datasource.read.{}.instanttime"
        try:
            theirs = self.judge.read(
                self.table.path, query="incremental", options={name.format("begin"): begin, name.format("end"): end}
            )
        except JudgeError as error:
            self.refusals.append(f"Hudi window: {str(error)[:1500]}")
        else:
            self.said.append(f"window {begin} {end}")
            try:
                ours = read_table(self.table.open(), ReadOptions(query=Query.INCREMENTAL, begin=begin, end=end))
            except PhantombaseError as error:
                self.refusals.append(f"ours window: {type(error).__name__}: {str(error)[:1500]}")
            else:
                same(self.told(ours), self.told(theirs))

    def past(self) -> None:
        """A past state."""
        past = self.random.choice(sorted(self.table.open().load_timeline().completed_writes))
        try:
            theirs = self.judge.read(self.table.path, as_of=past)
        except JudgeError as error:
            self.refusals.append(f"Hudi as of: {str(error)[:1500]}")
            return
        self.said.append(f"as of {past}")
        try:
            ours = read_table(self.table.open(), ReadOptions(as_of=past))
        except PhantombaseError as error:
            self.refusals.append(f"ours as of: {type(error).__name__}: {str(error)[:1500]}")
            return
        same(self.told(ours), self.told(theirs))

    def end(self) -> None:
        """Both compact what is left, Hudi a copy."""
        self.said.append("end")
        self.we_schedule()
        if self.table.pending():
            self.we_compact()
            self.look("end", all_=True)


SIGNS = (Op.EQ, Op.EQ, Op.LE, Op.GT)


def is_plain(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind) and not pa.types.is_binary(kind)


def literal(value: Any, kind: pa.DataType) -> str:
    """In Spark's SQL."""
    if pa.types.is_date(kind):
        return f"date '{value}'"
    if pa.types.is_timestamp(kind):
        return f"timestamp '{value.replace(tzinfo=None)} UTC'"
    if pa.types.is_decimal(kind):
        return f"cast('{value}' as decimal({kind.precision}, {kind.scale}))"
    if isinstance(value, float):
        return f"cast('{value!r}' as {'float' if kind == pa.float32() else 'double'})"
    return repr(value)


def plain(rows: pa.Table) -> pa.Table:
    """Without Hudi's columns."""
    return rows.select(
        [name for name in rows.column_names if not name.startswith("_hoodie_") or name == "_hoodie_is_deleted"]
    )


def check_once(rows: pa.Table) -> None:
    """No row is there twice."""
    ids = rows["id"].to_pylist()
    twice = [key for key, count in Counter(ids).items() if count > 1]
    assert not twice, f"doubled keys: {twice[:5]}"


def check_types(ours: pa.Table, hudis: pa.Table) -> None:
    """Each column has one type for both."""
    for name in ours.column_names:
        mine, theirs = str(shape(ours.schema.field(name).type)), str(shape(hudis.schema.field(name).type))
        assert mine == theirs, f"types of {name}: ours {mine}, Hudi's {theirs}"


def shape(kind: pa.DataType) -> Any:
    """A type without names of items, and without zones."""
    if pa.types.is_struct(kind):
        return [(f.name, shape(f.type)) for f in kind]
    if pa.types.is_list(kind):
        return ["list", shape(kind.value_type)]
    if pa.types.is_map(kind):
        return ["map", shape(kind.key_type), shape(kind.item_type)]
    return "timestamp" if pa.types.is_timestamp(kind) else kind


def tell(judge: Judge, version: int, seed: int, folder: Path, steps: int, **chosen: Any) -> MixedHistory:
    """One history; its error says what happened. `chosen`: see `MixedHistory`."""
    history = MixedHistory(judge, version, seed, folder / "table", **chosen)
    try:
        history.begin()
        for _ in range(steps):
            history.step()
        history.end()
    except Exception as error:
        error.add_note("; ".join(history.said))
        error.add_note("refused: " + " | ".join(history.refusals))
        raise
    return history


def main() -> None:
    version, first, count = (int(text) for text in sys.argv[1:4])
    hudi = "0.15.0" if version == 6 and "1x" not in sys.argv else "1.2.0"
    given: dict[str, Any] = dict(text.split("=", 1) for text in sys.argv[4:] if "=" in text)
    keep, also = given.pop("keep", None), frozenset(given.pop("also", "").split(",")) - {""}
    assert also <= set(ALSO), f"{sorted(also)} of {sorted(ALSO)}"
    table_read.LEAST_FILES = 1
    with Judge(hudi, java_options=BRIEF, more=INTERPRETED) as judge:
        for seed in range(first, first + count):
            with tempfile.TemporaryDirectory() as folder:
                where = Path(keep) / f"{version}-{seed}" if keep else Path(folder)
                shutil.rmtree(where, ignore_errors=True)
                where.mkdir(parents=True, exist_ok=True)
                try:
                    history = tell(judge, version, seed, where, 8, also=also, **given)
                except Exception as error:
                    print(f"=== FOUND {version} {seed}: {type(error).__name__}", flush=True)
                    print("\n".join(traceback.format_exception(error))[-5000:], flush=True)
                else:
                    print(f"--- fine {version} {seed}: " + "; ".join(history.said), flush=True)
                    for text in history.refusals:
                        print("      " + text.replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
