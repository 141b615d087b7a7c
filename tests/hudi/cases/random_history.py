"""A random history of a table, Hudi and phantombase in turns."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc

from phantombase import Writer
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.merge.rule import IS_DELETED
from tests.hudi.cases.indexed_table import CONDITIONS, IndexedTable
from tests.hudi.cases.model import Write, check_write
from tests.hudi.cases.rows import DECIMAL, PARTITIONS, SCHEMA, Rows, key, same
from tests.hudi.cases.shared_table import BUCKET, COMMIT_TIME, EVENT_TIME, PARQUET_LOGS, SharedTable, hudi_rs_reads
from tests.hudi.judge.client import Judge
from tests.support.faults import kill_newest, leave_dead_write
from tests.support.selection import ALL
from tests.support.watched_service import FollowedTable

SEEDS = range(int(os.environ.get("PHANTOMBASE_HISTORIES", "1")))
STEPS = 8 if ALL else 5
_KEYGEN = "hoodie.datasource.write.keygenerator.class"
KEYS_OF: dict[str, dict[str, object]] = {
    "simple": {},
    "complex": {"hoodie.datasource.write.recordkey.field": "id,p"},
    "custom": {_KEYGEN: "org.apache.hudi.keygen.CustomKeyGenerator"},
    "hive style": {
        "hoodie.datasource.write.hive_style_partitioning": "true",
        "hoodie.datasource.write.partitionpath.urlencode": "true",
    },
    "virtual": {"hoodie.populate.meta.fields": "false"},
}
"""Key generators and what they write: more key fields, other partition paths, no meta columns."""
KEYS = 120


class RandomSteps:
    """`said` tells what has happened to the table. A step says whether it could be taken."""

    random: Random
    table: SharedTable
    said: list[str]

    def steps(self) -> Mapping[Callable[[], bool], int]:
        """What may happen next, and how often."""
        raise NotImplementedError

    def look(self, _step: str) -> None:
        """Asks both for all rows behind a step."""
        raise NotImplementedError

    def step(self) -> None:
        """Takes one step that can be taken, then looks."""
        steps = self.steps()
        while True:
            (step,) = self.random.choices(list(steps), list(steps.values()))
            self.said.append(step.__name__)
            if step():
                break
            self.said.pop()
        self.look(step.__name__)

    def we_schedule(self) -> bool:
        return self.table.we_may_schedule() is not None

    def hudi_compacts(self) -> bool:
        pending = self.table.pending()
        if pending:
            self.table.hudi_compacts(self.random.choice(pending))
        return bool(pending)


class History(RandomSteps):
    """One table and what may happen to it next. `merges`: log compactions may, too. `indexes`: options of Hudi's
    writers that make it keep the metadata table; so many `conditions` are asked for a snapshot. `clock`: see
    `SharedTable`."""

    def __init__(
        self,
        judge: Judge,
        version: int,
        seed: int,
        path: Path,
        *,
        merges: bool = False,
        indexes: Mapping[str, object] | None = None,
        conditions: int = CONDITIONS,
        clock: ClockOptions | None = None,
    ) -> None:
        self.merges = merges
        self.indexed = indexes is not None
        self.random = random.Random(seed * 31 + version)
        self.bucket = self.random.random() < 0.4
        self.commit_time = self.random.random() < 0.4
        # Where Hudi 0.15's answer to late updates would depend on when compaction ran there are none.
        self.late = self.random.random() < 0.6 and not (self.commit_time and version == 6)
        parquet_logs = self.random.random() < 0.4
        self.keys = self.random.choice(sorted(KEYS_OF) if self.bucket else sorted(KEYS_OF.keys() - {"virtual"}))
        self.marks = self.random.random() < 0.5
        # Hudi's clustering notes key ranges in the order of bytes and its BLOOM index compares UTF-16: it doubles keys.
        bloom = self.random.random() < 0.5 and not merges
        # No table stores which partitions are meant by CUSTOM keys in version 6.
        self.we_write = self.keys != "custom" or version > 6 or self.bucket
        made_by_us = self.we_write and (self.keys != "custom" or version > 6) and self.random.random() < 0.5
        self.said = [
            f"version {version}, bucket {self.bucket}, commit time {self.commit_time}, late {self.late}, "
            f"keys {self.keys}, Parquet logs {parquet_logs}, marks {self.marks}, bloom {bloom}, made by us {made_by_us}"
        ]
        # What clustering and bulk insert write as INT64 decimals, Hudi 0.15's compaction multiplies by 100.
        columns = [name for name in SCHEMA.names if version > 6 or self.bucket or name != DECIMAL]
        self.source = Rows(seed, columns)
        kind = SharedTable if indexes is None else partial(IndexedTable, random=self.random, conditions=conditions)
        self.table = kind(
            judge=judge,
            path=path,
            version=version,
            partition_field=self.partition_field(),
            clock=clock or ClockOptions(),
            options=(COMMIT_TIME if self.commit_time else EVENT_TIME)
            | (BUCKET if self.bucket else {"hoodie.index.type": "BLOOM" if bloom else "SIMPLE"})
            | (PARQUET_LOGS if parquet_logs else {})
            | KEYS_OF[self.keys]
            | dict(indexes or {}),
        )
        self.clock = 10
        self.fresh = 1000
        first = self.rows(range(KEYS), self.clock)
        if made_by_us:
            self.random.choice((Writer.upsert, Writer.insert, Writer.bulk_insert))(self.table.creator(first), str(path))
            if self.indexed:
                self.table.upsert(self.rows(self.some(), self.times()))
        else:
            self.table.create(first)
        self.snapshot = self.table.agree()
        self.followed = FollowedTable(path)
        self.deleted: set[str] = set()
        self.write: Write | None = None

    def rows(self, numbers: Iterable[int], times: int | Sequence[int], mark: bool = False) -> pa.Table:
        """Rows of the table; `mark`: those that ask for their own deletion."""
        rows = self.source(numbers, times)
        return rows.append_column(IS_DELETED, pa.array([mark] * rows.num_rows, pa.bool_())) if self.marks else rows

    def partition_field(self) -> str | None:
        """The field as its key generator wants it."""
        if self.bucket:
            return "" if self.keys == "custom" else None
        return "p:SIMPLE" if self.keys == "custom" else "p"

    def some(self) -> list[int]:
        """Some numbers, a few of them new."""
        return sorted(self.random.sample(range(KEYS + 20), self.random.randint(1, 40)))

    def times(self) -> tuple[int, ...]:
        """Ordering values to pick from."""
        self.clock += 1
        return tuple(range(self.clock - 3 if self.late else self.clock, self.clock + 1))

    # Steps: each says whether it could be taken.

    def upsert(self) -> bool:
        numbers = self.some()
        if not self.bucket and self.table.pending():
            # Hudi puts keys that the plan deletes on top of it: behind the compaction its next upsert doubles them.
            numbers = [n for n in numbers if key(n) not in self.deleted]
        if numbers:
            self.table.upsert(self.rows(numbers, self.times()))
        return bool(numbers)

    def delete(self) -> bool:
        self.table.delete(self.forgotten(self.rows(self.some(), self.times())))
        return True

    def delete_marked(self) -> bool:
        if self.marks:
            self.table.upsert(self.forgotten(self.rows(self.some(), self.times(), mark=True)))
        return self.marks

    def forgotten(self, rows: pa.Table) -> pa.Table:
        """Those rows, whose ordering values are unknown from now on."""
        self.deleted |= set(rows["id"].to_pylist())
        return rows

    def insert(self) -> bool:
        self.fresh += 10
        self.table.judge.insert(self.table.path, self.rows(range(self.fresh, self.fresh + 7), self.times()))
        return True

    def bulk_insert(self) -> bool:
        if self.bucket:
            return False
        self.fresh += 10
        self.table.judge.bulk_insert(self.table.path, self.rows(range(self.fresh, self.fresh + 7), self.times()))
        return True

    def ours(self, rows: pa.Table, write: Callable[[Writer, str], object]) -> bool:
        """A write of ours, with options that must not matter."""
        if not self.we_write:
            return False
        options = {
            "log_format": self.random.choice(list(LogFormat)),
            "small_file_bytes": self.random.choice((0, 100 << 20)),
            "file_bytes": self.random.choice((20_000, 120 << 20)),
            "slots": self.random.choice((1, 2, 5)),
            "output": replace(OutputOptions(), batch_rows=self.random.choice((7, 65_536))),
        }
        self.said.append(str(options))
        write(self.table.writer(rows, **options), str(self.table.path))
        self.write = Write(rows=rows, deletes=write is Writer.delete)
        return True

    def we_upsert(self) -> bool:
        numbers = self.some()
        doubled = [*numbers, *self.random.choices(numbers, k=self.random.choice((0, 3)))]
        return self.ours(self.rows(doubled, self.times()), Writer.upsert)

    def we_delete(self) -> bool:
        rows = self.rows(self.some(), 0).select(["id", "p"])
        return self.ours(rows, Writer.delete)

    def we_delete_marked(self) -> bool:
        return self.marks and self.ours(self.rows(self.some(), self.times(), mark=True), Writer.upsert)

    def we_insert(self) -> bool:
        self.fresh += 10
        return self.ours(self.rows(range(self.fresh, self.fresh + 7), self.times()), Writer.insert)

    def we_bulk_insert(self) -> bool:
        self.fresh += 10
        return self.ours(self.rows(range(self.fresh, self.fresh + 7), self.times()), Writer.bulk_insert)

    def we_insert_overwrite(self) -> bool:
        rows = self.rows(sorted(self.random.sample(range(KEYS), 30)), self.times())
        if not self.bucket:
            rows = rows.filter(pc.equal(rows["p"], self.random.choice(PARTITIONS)))
        return self.replacing(rows, Writer.insert_overwrite)

    def we_overwrite_the_table(self) -> bool:
        return self.replacing(self.rows(self.some(), self.times()), Writer.insert_overwrite_table)

    def we_delete_partition(self) -> bool:
        if self.bucket or self.table.pending():
            return False
        names = [self.random.choice(self.table.open().partitions() or ["never"])]
        return self.replacing(self.rows([], 0), lambda write, path: write.delete_partition(path, names))

    def replacing(self, rows: pa.Table, write: Callable[[Writer, str], object]) -> bool:
        """A write of ours that leaves nothing of its partitions: only Hudi's reader judges it."""
        done = self.ours(rows, write)
        self.write = None
        return done

    def upsert_and_roll_back(self) -> bool:
        if self.table.version == 8:  # Hudi 1.2.0 cannot
            return False
        ours = self.random.random() < 0.5 and self.we_upsert()
        if not ours and not self.upsert():
            return False
        self.write = None
        self.table.judge.rollback(self.table.path, max(self.table.open().load_timeline().completed_writes))
        return True

    def insert_overwrite(self) -> bool:
        if self.bucket:
            return False
        rows = self.rows(range(KEYS), self.times())
        name = self.random.choice(PARTITIONS)
        rows = rows.filter(pc.equal(rows["p"], name))
        self.table.judge.insert_overwrite(self.table.path, rows, self.table.options)
        return True

    def delete_partition(self) -> bool:
        if self.bucket or self.table.pending():  # Hudi refuses beside pending table services
            return False
        self.table.judge.delete_partition(self.table.path, self.random.choice(self.table.open().partitions()))
        return True

    def cluster(self) -> bool:
        if self.bucket:
            return False
        self.table.judge.cluster(self.table.path)
        return True

    def hudi_schedules(self) -> bool:
        return self.table.judge.schedule_compaction(self.table.path) is not None

    def we_compact(self) -> bool:
        pending = self.table.pending()
        output = replace(OutputOptions(), batch_rows=self.random.choice((7, 65_536)))
        return bool(pending and self.table.we_compact(self.random.choice(pending), output))

    def we_merge_logs(self) -> bool:
        return self.table.we_merge_logs()

    def clean(self) -> bool:
        self.table.judge.clean(self.table.path)
        return True

    def archive(self) -> bool:
        self.table.judge.archive(self.table.path)
        return True

    def savepoint(self) -> bool:
        self.table.judge.savepoint(self.table.path)
        return True

    def our_writer_dies(self) -> bool:
        """And is rolled back, by the next write of Hudi's or by us."""
        leave_dead_write(self.table.path)
        # Hudi 0.15 hides what its own writer wrote behind its rollback.
        hudis = self.table.version > 6 and self.random.random() < 0.5 and self.upsert()
        if not hudis:
            self.roll_back()
        return True

    def hudis_writer_dies(self) -> bool:
        """After it has told the metadata table."""
        if not self.upsert():
            return False
        kill_newest(self.table.open())
        self.roll_back()
        return True

    def roll_back(self) -> None:
        lock = ProcessLock(str(self.table.path))
        assert roll_back_dead_writers(self.table.open(), lock, lazy=False, now_ms=lambda: 0, expiry_s=120.0)

    def hudi_rs_can_read(self) -> bool:
        """Where it is a judge: `p:SIMPLE` it takes for the name of a column; of version 6 it knows neither the logs of
        a pending compaction nor that a late delete takes effect there."""
        return self.keys != "custom" and (self.table.version > 6 or not (self.late or self.table.pending()))

    def ends(self) -> None:
        """What is to be done before the last compaction."""

    def steps(self) -> dict[Callable[[], bool], int]:
        """What may happen next, and how often."""
        steps: dict[Callable[[], bool], int] = {
            self.upsert: 6,
            self.delete: 2,
            self.delete_marked: 1,
            self.we_upsert: 6,
            self.we_delete: 2,
            self.we_delete_marked: 3,
            self.we_insert: 2,
            self.we_bulk_insert: 2,
            self.we_insert_overwrite: 2,
            self.we_overwrite_the_table: 1,
            self.we_delete_partition: 1,
            self.insert: 1,
            self.bulk_insert: 1,
            self.upsert_and_roll_back: 1,
            self.insert_overwrite: 1,
            self.delete_partition: 1,
            self.cluster: 1,
            self.hudi_schedules: 3,
            self.we_schedule: 3,
            self.hudi_compacts: 2,
            self.we_compact: 3,
            self.clean: 1,
            self.archive: 1,
            self.savepoint: 1,
        }
        if self.merges:
            steps |= {self.we_merge_logs: 25, self.we_upsert: 15}
        if self.indexed:
            steps |= {self.our_writer_dies: 3, self.hudis_writer_dies: 3}
        return steps

    def look(self, _step: str) -> None:
        """Asks both for all rows."""
        before, self.snapshot = self.snapshot, self.table.agree()
        self.followed.look()
        if self.hudi_rs_can_read():
            same(hudi_rs_reads(self.table.path), self.snapshot)
        if self.write is not None:
            late_deletes = self.deleted if self.late else set[str]()
            check_write(self.write, before, self.snapshot, self.table.open().config.merge_mode, late_deletes)
            if self.write.deletes or self.write.marked:
                self.forgotten(self.write.rows)
            self.write = None


def tell(history: History, seed: int, steps: int = STEPS) -> None:
    """Takes the steps, and compares after each."""
    try:
        for _ in range(steps):
            history.step()
        history.ends()
        history.said.append("compaction by both")
        history.table.we_may_schedule()
        # Under event time a late update after a delete in the plan takes effect only with the compaction.
        snapshot = history.table.compact_beside_hudi(snapshot_kept=history.commit_time or not history.late)
        if history.keys != "custom":  # hudi-rs takes `p:SIMPLE` for the name of a column
            history.said.append("hudi-rs")
            same(hudi_rs_reads(history.table.path), snapshot)
        history.said.append("audit")
        history.table.audited()
    except Exception as error:
        error.add_note(f"seed {seed}: " + "; ".join(history.said))
        raise


# Random steps of a table that Hudi and phantombase work on: one is chosen, taken if it can be, and looked at.
