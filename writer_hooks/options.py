"""Options of a write: each is defined once, with its unit, its default and Hudi's name for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum

from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.catalogs.options import SyncOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions
from phantombase.compactor_daemon.hudi_names import contradiction
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.services.options import Service, ServiceOptions
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks.heartbeat import BEAT_S, EXPIRY_S
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.option import (
    check_above_zero,
    check_below,
    check_finite,
    check_least,
    least_of,
    option,
    spelled_class,
)
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.shown import Shown
from phantombase.timeline.table.table import Snapshot
from phantombase.timeline.view.view import FileGroup

from .merge_into import MergeInto


class Mode(Enum):
    """What a writer does for compaction. WRITE_ONLY: nothing. SCHEDULE: it requests compactions when they are due;
    another compactor executes them. INLINE: it requests them, and executes pending ones before the write returns."""

    WRITE_ONLY = "write-only"
    SCHEDULE = "schedule"
    INLINE = "inline"


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    """What a write does for compaction after its commit. In brackets: Hudi's names. `schedule`: when and what to
    request; `schedule.target_io_bytes` limits the size of one plan. `notify`: called when a compaction was requested,
    to wake a thread of this process that executes it. `fleet`: the ZooKeeper of the daemons to wake."""

    mode: Mode = option(
        Mode.WRITE_ONLY,
        "after a write: nothing, request a compaction that is due (hoodie.compact.schedule.inline), or request and "
        "execute (hoodie.compact.inline)",
        flag="compaction",
    )
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    limit_s: float | None = option(
        None,
        "how long inline compaction may take, without limit by default; the next write continues",
        flag="compaction_limit",
        metavar="SECONDS",
        least=0,
    )
    notify: Callable[[], None] | None = None
    fleet: ZooKeeperOptions | None = None

    def __post_init__(self) -> None:
        check_finite(self, {"limit_s": 0})
        if self.notify is not None and not callable(self.notify):
            raise UsageError("not a value of notify", expected="a function without arguments", found=repr(self.notify))


class MovedKeys(Enum):
    """What a row does whose key another partition has, where keys are unique over all partitions. MOVE: the key leaves
    that partition. STAY: the row is written there, whatever its own partition is."""

    MOVE = "move"
    STAY = "stay"


class FullAction(Enum):
    """What a write does if a file group is full and it cannot compact it itself. GO_ON: no group counts as full."""

    WAIT = "wait"
    FAIL = "fail"
    GO_ON = "go-on"


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class BackPressure(Shown):
    """How long a file group's log may become. `wait_s`: the longest time in seconds that a write waits, over all its
    waits; an inline compaction that it begins meanwhile has its own limit. `stop_trigger`: as Paimon's
    `num-sorted-run.stop-trigger`, with the same default: three above the compaction trigger. `slow_trigger`: from this
    depth on a write returns later, by a growing part of `slow_s`; None: none does."""

    stop_trigger: int | None = option(None, "the most log files of one file group that a write may leave", least=1)
    slow_trigger: int | None = option(None, "the log files of one file group from which on writes slow down", least=1)
    slow_s: float = option(10.0, "the most seconds that one write is slowed down", flag="slow_wait", metavar="SECONDS")
    action: FullAction = option(
        FullAction.WAIT, "what a write does that would exceed it: wait, fail, or go on", flag="stop_action"
    )
    wait_s: float = option(
        600.0, "the most seconds that one write waits before it fails", flag="stop_wait", metavar="SECONDS"
    )

    def __post_init__(self) -> None:
        check_least(self, {"stop_trigger": 1, "slow_trigger": 1})
        check_finite(self, {"slow_s": 0})
        if not 0 < self.wait_s < math.inf:
            raise UsageError("wait-s is out of range", expected="more than 0 seconds", found=str(self.wait_s))
        self._check_slow(self.stop_trigger)
        if self.action is FullAction.GO_ON and self.stop_trigger is not None:
            raise UsageError(
                "stop-trigger has no effect with go-on", expected="wait or fail", found=str(self.stop_trigger)
            )

    def limit(self, compaction_trigger: int) -> int | None:
        """The number of log files at which a file group is full; None: never. UsageError: writes would never slow down
        before."""
        if self.action is FullAction.GO_ON:
            return None
        found = self.stop_trigger if self.stop_trigger is not None else compaction_trigger + _ABOVE_TRIGGER
        self._check_slow(found)
        return found

    def _check_slow(self, limit: int | None) -> None:
        if None not in (self.slow_trigger, limit) and self.slow_trigger >= limit:  # type: ignore[operator]
            raise UsageError(
                "writes slow down before they stop",
                expected=f"slow-trigger below {limit}",
                found=str(self.slow_trigger),
                todo="Lower slow-trigger, or raise stop-trigger.",
            )

    def slow_for(self, logs: int, limit: int | None) -> float:
        """How long a write is slowed down that finds a file group with this number of log files; `limit`: as above."""
        first = self.slow_trigger
        if first is None or logs < first:
            return 0.0
        steps = 1 if limit is None else max(1, limit - first)
        return self.slow_s * min(1.0, (logs - first + 1) / steps)


_ABOVE_TRIGGER = 3
NO_LIMIT = BackPressure(action=FullAction.GO_ON)
"""The default for writes other than batches of a stream."""


class Operation(Enum):
    """What a write does with its rows; the value is Hudi's name in the commit."""

    UPSERT = "UPSERT"
    INSERT = "INSERT"
    BULK_INSERT = "BULK_INSERT"
    DELETE = "DELETE"
    INSERT_OVERWRITE = "INSERT_OVERWRITE"
    INSERT_OVERWRITE_TABLE = "INSERT_OVERWRITE_TABLE"
    DELETE_PARTITION = "DELETE_PARTITION"

    @property
    def replaces(self) -> bool:
        """Whether the write replaces all file groups of partitions, as one replacecommit."""
        return self in (Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION)


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How a write works; sizes in bytes, times in seconds. In brackets: Hudi's names. `lock`: `file:PATH` or
    `zookeeper:HOST:PORT/BASE/KEY`, the same for all writers and schedulers of the table (`hoodie.write.lock.*`), or
    `storage`. None is `storage` too, for a sole writer: a file in the table, which real Hudi does not know, and on
    object stores the lock of Hudi's StorageBasedLockProvider. `drop_metadata_table`: first turn off the metadata table,
    as Hudi's writers do with `hoodie.metadata.enable=false`; otherwise the metadata table, if the table has one, is
    kept up to date. `metadata`: compact the metadata table after the commit, when that is due, as Hudi's writers do
    (`hoodie.metadata.compact.max.delta.commits` turns it on); None: it does not. `compaction`: what the write does for
    compaction after its commit. `clean`: remove the files that no reader needs after the commit
    (`hoodie.clean.automatic`); None: it does not. `archive`: archive old instants after the commit
    (`hoodie.archive.automatic`); None: it does not. `sync`: make a catalog show the table as it is after the commit
    (`hoodie.datasource.hive_sync.enable`); None: it does not. `cluster`: cluster small files after the commit
    (`hoodie.clustering.inline`); None: it does not. `back_pressure`: how long a file group's log may become; None:
    batches of a stream wait, other writes go on. `times`: the format of TIMESTAMP partition values, as far as the table
    does not store it, under Hudi's names (`hoodie.keygen.timebased.*`). `clock`: the zone of the table's instants, and
    how far this process's clock may be off."""

    output: OutputOptions = field(default_factory=OutputOptions)
    buckets: int | None = option(
        None,
        "the bucket index with this many buckets per partition (hoodie.bucket.index.num.buckets), the same for all "
        "writers; without it the key index, which reads the key columns of base files",
        least=1,
    )
    bucket_fields: tuple[str, ...] = option(
        (), "the key fields that are hashed, all by default (hoodie.bucket.index.hash.field)", metavar="COLUMN"
    )
    moved_keys: MovedKeys | None = option(
        None,
        "keys are unique over all partitions, as under a global index: a row whose key another partition has moves "
        "the key, or stays there (`Writer.global_keys`); by default they are unique in each partition",
    )
    combine: bool | None = option(
        None,
        "keep one row per key of the batch, whatever the operation is; by default as the next two say, which may not "
        "contradict it",
    )
    combine_upserts: bool | None = option(
        None, "an upsert keeps one row per key of the batch (hoodie.combine.before.upsert); by default it does"
    )
    combine_inserts: bool | None = option(
        None,
        "an insert, of any kind, keeps one row per key of the batch (hoodie.combine.before.insert); by default all",
    )
    null_for_missing: bool = option(
        True,
        "columns of the table that the rows lack become null; otherwise such rows are refused, as by Hudi "
        "(hoodie.write.set.null.for.missing.columns)",
    )
    allow_other_files: bool = option(
        False,
        "a new table is made also in a folder that has files (phantombase.write.allow.other.files); by default that is "
        "refused, but for hidden ones, whose names begin with . or _",
    )
    log_format: LogFormat | None = option(
        None,
        "of log blocks (hoodie.logfile.data.block.format), parquet by default; where text orders rows it is always "
        "avro, since Hudi 1.2 merges Parquet blocks wrongly there: with parquet that is a warning",
    )
    file_bytes: int = option(
        120 << 20, "the size at which a new base file ends (hoodie.parquet.max.file.size)", size=True, least=1
    )
    small_file_bytes: int = option(
        100 << 20, "smaller base files take inserts (hoodie.parquet.small.file.limit); 0: none does", size=True, least=0
    )
    slots: int | None = option(
        None, "tasks of a shuffle (hoodie.upsert.shuffle.parallelism); by default by the size of the input", least=1
    )
    batch_bytes: int = option(32 << 20, "input that a task gathers before it splits it", size=True, least=1)
    retries: int = option(
        0, "how often a write that conflicts with another one is tried again", flag="conflict_retries", least=0
    )
    clustering_wait_s: float = option(
        600.0,
        "seconds in which a write of file groups of a requested clustering is tried again, each time after the pending "
        "clusterings have ended; 0: it fails at once. It is requested when its files are made; Hudi's before that",
        least=0,
    )
    heartbeat_s: float = option(BEAT_S, "how often the heartbeat of the write is refreshed")
    heartbeat_expiry_s: float = option(EXPIRY_S, "seconds without a heartbeat after which a writer counts as dead")
    lazy_rollback: bool | None = option(
        None,
        "only writers whose heartbeat has expired count as dead (hoodie.cleaner.policy.failed.writes=LAZY); by default "
        "if a lock is given, since other processes write then",
    )
    lock: str | None = None
    drop_metadata_table: bool = False
    metadata: MetadataOptions | None = None
    compaction: CompactionOptions = field(default_factory=CompactionOptions)
    cluster: ClusterOptions | None = None
    clean: CleanOptions | None = None
    archive: ArchiveOptions | None = None
    sync: SyncOptions | None = None
    back_pressure: BackPressure | None = None
    times: tuple[tuple[str, str], ...] = ()
    clock: ClockOptions = field(default_factory=ClockOptions)

    def __post_init__(self) -> None:
        check_least(self, least_of(WriteOptions))
        check_above_zero(self, "heartbeat_s", "heartbeat_expiry_s")
        check_below(self, "heartbeat_s", "heartbeat_expiry_s")
        if self.bucket_fields and self.buckets is None:
            raise UsageError(
                "bucket-fields has no effect without buckets",
                found=", ".join(self.bucket_fields),
                todo="Give buckets too, or leave it out.",
            )
        for name in COMBINES:
            one = getattr(self, name)
            if None not in (self.combine, one) and one is not self.combine:
                raise contradiction("option combine", self.combine, f"option {name}", one)
        if self.moved_keys is not None and not self.one_row_per_upserted_key:
            found = "combine=False" if self.combine is False else "combine_upserts=False"
            raise UsageError(
                "keys that are unique over all partitions need one row per key",
                found=found,
                todo="Leave that option out.",
            )
        if self.heartbeat_s >= EXPIRY_S:
            raise UsageError(
                "heartbeat-s must be shorter than the time after which a write counts as dead for Hudi's writers",
                expected=f"less than {EXPIRY_S:g}",
                found=f"{self.heartbeat_s:g}",
            )

    def check_used(self) -> None:
        """UsageError: an option has no effect with the others."""
        if self.output.record_ttl is not None and self.compaction.mode is not Mode.INLINE:
            raise UsageError(
                "record-ttl has no effect on a write: compactions leave rows out",
                found=self.output.record_ttl,
                todo="Add compact_inline(), or leave it out and give it to the daemon or the table.",
            )

    @property
    def one_row_per_upserted_key(self) -> bool:
        return _first(self.combine, self.combine_upserts, True)

    @property
    def services(self) -> ServiceOptions:
        counted = self.compaction.schedule.max_delta_commits
        chosen = {service.value: getattr(self, service.value) for service in AFTER_A_WRITE}
        return ServiceOptions.of(counted, **chosen)


COMBINES = ("combine_upserts", "combine_inserts")
"""The options of which `combine` is both."""


def _first(*values: bool | None) -> bool:
    return next(value for value in values if value is not None)


AFTER_A_WRITE = tuple(service for service in Service if service.value in {one.name for one in fields(WriteOptions)})
"""The services that a writer can run: each has a field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write: its operation and options. `partitions`: of a delete_partition, partition paths, in which `*` matches
    any text; None: those of the rows. `deletes_if`: which of these are deleted; it gets the state from which the write
    begins, the partition, and its file groups. `lock`: the table's; None: that of the options. `into`: of an
    upsert that sets some columns; its rows have the columns of `MergeInto.source_columns`."""

    operation: Operation
    options: WriteOptions = field(default_factory=WriteOptions)
    partitions: tuple[str, ...] | None = None
    deletes_if: Callable[[Snapshot, str, Sequence[FileGroup]], bool] | None = None
    lock: TableLock | None = None
    into: MergeInto | None = None

    @property
    def deletes(self) -> bool:
        """Whether the rows are keys, or name partitions, to delete."""
        return self.operation in (Operation.DELETE, Operation.DELETE_PARTITION)

    @property
    def looks_keys_up(self) -> bool:
        """Whether the write must find the file groups of existing keys."""
        return self.operation in (Operation.UPSERT, Operation.DELETE)

    @property
    def moved_keys(self) -> MovedKeys | None:
        """What rows do whose keys other partitions have; None: such keys are not looked up."""
        return self.options.moved_keys if self.looks_keys_up else None

    @property
    def combines(self) -> bool:
        """Whether only one row per key of the batch is kept."""
        if self.operation is Operation.UPSERT:
            return self.options.one_row_per_upserted_key
        if self.operation is Operation.DELETE_PARTITION:
            return bool(self.options.combine)
        of_inserts = None if self.operation is Operation.DELETE else self.options.combine_inserts
        return _first(self.options.combine, of_inserts, self.operation is Operation.DELETE)

    @property
    def rolls_back_lazily(self) -> bool:
        """Whether only writers without a heartbeat count as dead."""
        return self.options.lazy_rollback if self.options.lazy_rollback is not None else self.options.lock is not None


def listed(partitions: Iterable[str] | None) -> tuple[str, ...] | None:
    """Partitions, by paths and patterns. UsageError: they are none."""
    if partitions is None:
        return None
    named = () if isinstance(partitions, str) or not isinstance(partitions, Iterable) else tuple(partitions)
    if not named or not all(isinstance(one, str) and one for one in named):
        expected = "paths such as 2024/01, or 2024/*"
        raise UsageError("not a list of partitions", expected=expected, found=repr(partitions))
    return named
