"""One table that real Hudi and we work on, and what both read from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from hudi import HudiTableBuilder

from phantombase import Writer, writer
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.compactor_daemon.undo.unschedule import unschedule
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks.table_lock import ProcessLock, TableLock, table_lock
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import Query, ReadOptions, read_table
from phantombase.timeline.table.table import Table
from tests.hudi.cases.rows import keys, same
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.hudi.judge.table_files import TablePath
from tests.hudi.stock.cases import ON_READ
from tests.support.change_feeds import MERGE_LOGS
from tests.support.failing_storage import Call
from tests.support.servers.zookeeper_server import ZooKeeper

_PAYLOAD = "org.apache.hudi.common.model."
EVENT_TIME: dict[str, object] = {"hoodie.datasource.write.payload.class": f"{_PAYLOAD}DefaultHoodieRecordPayload"}
COMMIT_TIME: dict[str, object] = {"hoodie.datasource.write.payload.class": f"{_PAYLOAD}OverwriteWithLatestAvroPayload"}
BUCKET: dict[str, object] = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": 3}
PARQUET_LOGS: dict[str, object] = {"hoodie.logfile.data.block.format": "parquet"}
_OF_HUDI_S_SERVICES = tuple(
    f"hoodie.{service}." for service in ("metadata", "clean", "cleaner", "archive", "keep", "write.lock")
)
DELETE_COLUMNS = ["id", "p", "ts"]


@dataclass(frozen=True, kw_only=True)
class SharedAnywhere:
    """A table at `place`; `options` go with each of Hudi's writes, `partition_field` None is a table without. `clock`:
    what we are given of the zone of Hudi's writers. `lock`: ours, where one process is not all."""

    judge: Judge
    version: int
    options: Mapping[str, object] = field(default_factory=dict)
    partition_field: str | None = "p"
    clock: ClockOptions = ClockOptions()
    lock: str | None = None

    @property
    def place(self) -> TablePath:
        """Where it lies."""
        raise NotImplementedError

    def copy(self) -> Self:
        """A copy of the table beside it."""
        raise NotImplementedError

    # Hudi's side.

    def create(self, rows: pa.Table, operation: str = "upsert") -> None:
        """Hudi makes the table."""
        self.judge.create(
            self.place,
            "shared",
            rows,
            version=self.version if self.version > 6 else None,
            partition_field=self.partition_field,
            operation=operation,
            options=self.options,
        )

    def upsert(self, rows: pa.Table, options: Mapping[str, object] | None = None) -> None:
        """Hudi upserts."""
        self.judge.upsert(self.place, rows, {**self.options, **(options or {})})

    def delete(self, rows: pa.Table) -> None:
        """Hudi deletes by key."""
        columns = {*DELETE_COLUMNS, self.partition_field or "id"} & set(rows.schema.names)
        self.judge.delete(self.place, rows.select(sorted(columns)), self.options)

    def hudi_schedules(self) -> str:
        """Hudi requests a compaction."""
        instant = self.judge.schedule_compaction(self.place, self.options)
        assert instant is not None, "Hudi found nothing to compact"
        return instant

    def hudi_compacts(self, *instants: str) -> None:
        """Hudi executes these pending compactions, by default all."""
        expected = list(instants) or self.pending()
        for instant in expected:
            assert self.judge.run_compaction(self.place, instant, self.options) == [instant]

    def hudi_reads(self, query: str = "snapshot") -> pa.Table:
        """What Hudi reads."""
        return self.judge.read(self.place, query=query)

    # Our side.

    def writer(self, rows: pa.Table, **options: object) -> Writer:
        """A write of ours with what Hudi's writers of this table have to say too; `options`: of `WriteOptions`."""
        buckets = self.options.get("hoodie.bucket.index.num.buckets")
        log_format = LogFormat(str(self.options.get("hoodie.logfile.data.block.format", "avro")))
        mine = writer(rows).option(**{"log_format": log_format, "clock": self.clock, "lock": self.lock, **options})
        return mine if buckets is None else mine.buckets(int(str(buckets)))

    def creator(self, rows: pa.Table) -> Writer:
        """A write of ours that makes the table, as `create` does; Hudi's later writes know its options. Only its
        writers clean and archive, and make the metadata table."""
        conf: dict[str, object] = {
            "hoodie.table.name": "shared",
            "hoodie.write.table.version": self.version,
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.precombine.field": "ts",
            "hoodie.datasource.write.partitionpath.field": self.partition_field or "",
            **self.options,
        }
        self.judge.adopt(self.place, self.options)
        mine = {name: str(value) for name, value in conf.items() if not name.startswith(_OF_HUDI_S_SERVICES)}
        return writer(rows).option(clock=self.clock, lock=self.lock).conf(mine)

    def open(self) -> Table:
        """The table as we see it now."""
        return Table.open(str(self.place)).with_clock(self.clock)

    def pending(self) -> list[str]:
        """Pending compactions."""
        return [instant.requested_time for instant in self.open().load_timeline().pending_compactions]

    def we_schedule(self) -> str:
        """We request a compaction."""
        instant = self.we_may_schedule()
        assert instant is not None, "we found nothing to compact"
        return instant

    def we_may_schedule(self) -> str | None:
        """We request a compaction, if there is anything to compact."""
        return schedule_compaction(self.open(), self._lock()).instant

    def we_compact(
        self, instant: str | None = None, output: OutputOptions | None = None, attempt: AttemptOptions | None = None
    ) -> list[str]:
        """We execute one pending compaction or all; the instants. On version 6 in Hudi's own codec, gzip."""
        codec = Codec.GZIP if self.version == 6 else Codec.ZSTD
        results = run_compactions(
            str(self.place),
            instant=instant,
            lock=self.lock,
            output=output or OutputOptions(codec=codec),
            execute=ExecuteOptions(executor=Executor.LOCAL, threads=2),
            attempt=attempt or AttemptOptions(),
            clock=self.clock,
        )
        return [result.instant for result in results.done]

    def we_merge_logs(self) -> bool:
        """We pick what to compact: log compactions are executed at once, compactions pend. Whether there was any."""
        requested = schedule_compaction(self.open(), self._lock(), MERGE_LOGS).requested
        for one in requested:
            if one.plan.action == "logcompaction":
                assert self.we_compact(one.instant) == [one.instant]
        return bool(requested)

    def audited(self) -> None:
        """Every compaction of ours can still be proved, as far as its files exist."""
        table = self.open()
        for instant in audited_instants(table):
            found = audit(table, instant)
            assert found.good, found

    def we_read(self, query: Query = Query.SNAPSHOT) -> pa.Table:
        """What we read."""
        return read_table(self.open(), ReadOptions(query=query))

    # Both.

    def agree(self) -> pa.Table:
        """Our snapshot equals Hudi's: that snapshot."""
        hudis = self.hudi_reads()
        same(self.we_read(), hudis)
        return hudis

    def agree_on_base_files(self) -> pa.Table:
        """Our read-optimized rows equal Hudi's: those rows."""
        hudis = self.hudi_reads("read_optimized")
        same(self.we_read(Query.READ_OPTIMIZED), hudis)
        return hudis

    def compact_beside_hudi(self, *, snapshot_kept: bool = True) -> pa.Table:
        """We compact the table and Hudi a copy of it; all four reads of each agree. The snapshot. `snapshot_kept`: it
        also is the one from before."""
        before, hudis = self.agree(), self.copy()
        pending = self.pending()
        hudis.hudi_compacts()
        assert self.we_compact() == pending
        snapshot, base_files = self.agree(), self.agree_on_base_files()
        same(snapshot, hudis.hudi_reads())
        same(base_files, hudis.hudi_reads("read_optimized"))
        if snapshot_kept:
            same(snapshot, before)
        return snapshot

    def _lock(self) -> TableLock:
        return table_lock(self.open().storage, self.lock) if self.lock else ProcessLock(str(self.place))


@dataclass(frozen=True, kw_only=True)
class SharedTable(SharedAnywhere):
    """A table on this machine's disk."""

    path: Path

    @property
    def place(self) -> TablePath:
        return self.path

    def copy(self) -> Self:
        path = self.path.with_name(f"{self.path.name}-copy")
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.path, path)
        return replace(self, path=path)


def hudi_rs_reads(path: Path) -> pa.Table:
    """What hudi-rs reads; not for version 6 tables with a pending compaction (it drops their phantom logs)."""
    batches = HudiTableBuilder.from_base_uri(str(path)).build().read()
    return pa.Table.from_batches([pa.record_batch(batch) for batch in batches])


def check_rows(snapshot: pa.Table, present: pa.Table, absent: Iterable[int] = ()) -> None:
    """Each row of `present` stands in the snapshot exactly once, and no key of `absent` at all."""
    ids = present["id"].to_pylist()
    found = [row["id"] in set(ids) for row in snapshot.select(["id"]).to_pylist()]
    same(snapshot.filter(pa.array(found)).select(present.schema.names), present)
    gone = keys(absent) & set(snapshot["id"].to_pylist())
    assert not gone, f"deleted keys are there: {sorted(gone)[:5]}"


def multi_writer(zookeeper: ZooKeeper, key: str) -> dict[str, object]:
    """Hudi's options for the lock `/hudi_locks/<key>`."""
    lock = "hoodie.write.lock"
    return {
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        "hoodie.clean.failed.writes.policy": "LAZY",
        f"{lock}.provider": "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider",
        f"{lock}.zookeeper.url": zookeeper.hosts,
        f"{lock}.zookeeper.port": zookeeper.hosts.partition(":")[2],
        f"{lock}.zookeeper.base_path": "/hudi_locks",
        f"{lock}.zookeeper.lock_key": key,
    }


MULTI_WRITER = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
}


def is_ours(client: Any, key: str, node: str) -> bool:
    """Whether a contender's node says it is ours."""
    return bool(client.get(f"/hudi_locks/{key}/{node}")[0].startswith(b"phantombase"))


OPTIMISTIC: dict[str, object] = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
}


class Completes:
    """Completes a write just before the n-th listing of the timeline (from 1)."""

    def __init__(self, table: SharedTable, path: str, content: bytes, number: int) -> None:
        self._table, self._path, self._content, self._number = table, path, content, number
        self.looks = 0

    def hook(self, call: Call) -> Any:
        if call.name == "list" and call.path == self._path.rpartition("/")[0]:
            self.looks += 1
            if self.looks == self._number:
                self._table.open().storage.put_if_absent(self._path, self._content)
        return call.do()


# No compaction stays pending for ever: each can be executed, or taken back.


__all__ = ["end_pending"]


def end_pending(table: SharedTable) -> None:
    """Runs `compact`, and takes back what it leaves; fails where that is refused, too."""
    refused: PhantombaseError | None = None
    try:
        table.we_compact()
    except PhantombaseError as error:
        refused = error
    for instant in table.pending():
        try:
            unschedule(table.open(), instant, ProcessLock(str(table.path)))
        except PhantombaseError as error:
            error.add_note(f"and compacting: {refused}")
            raise
    assert table.we_compact() == []


# A table of real Hudi whose columns evolve.


class EvolvingTable(SharedTable):
    """Hudi reads it by the history of its columns, and lists its files by the metadata table."""

    def hudi_reads(self, query: str = "snapshot") -> pa.Table:
        return self.judge.read(self.place, query=query, options={**ON_READ, **METADATA_TABLE})
