"""Options of a write: each in one home, with its unit, its default and Hudi's name for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from phantombase.compactor_daemon.zookeeper.session import ZooKeeperOptions
from phantombase.timeline.clock.options import ClockOptions
from phantombase.timeline.errors import UsageError
from phantombase.timeline.locks.heartbeat import BEAT_S, EXPIRY_S
from phantombase.timeline.log.encode import LogFormat
from phantombase.timeline.option import check_above_zero, check_below, check_finite, check_least, option
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.planning.options import ScheduleOptions


class Mode(Enum):
    """Who compacts.

    WRITE_ONLY: this writer has nothing to do with it. SCHEDULE: it requests compactions when they are due, somebody
    else executes them. INLINE: it executes what pends, before the write returns.
    """

    WRITE_ONLY = "write-only"
    SCHEDULE = "schedule"
    INLINE = "inline"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    """`limit_s`: how long inline compaction may take; what is left is for the next one (None: as long as it takes).

    How much one plan holds is `schedule.target_io_bytes`. In brackets: Hudi's names. `mode`: SCHEDULE
    (`hoodie.compact.schedule.inline`) or INLINE (`hoodie.compact.inline`). `notify`: called when a compaction was
    requested, to wake up whoever executes it in this process. `fleet`: the ZooKeeper of the daemons to wake up.
    """

    mode: Mode = Mode.WRITE_ONLY
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    limit_s: float | None = None
    notify: Callable[[], None] | None = None
    fleet: ZooKeeperOptions | None = None

    def __post_init__(self) -> None:
        check_finite(self, {"limit_s": 0})


class FullAction(Enum):
    """What a write does that meets a full file group, and cannot make room itself. GO_ON: none counts as full."""

    WAIT = "wait"
    FAIL = "fail"
    GO_ON = "go-on"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackPressure:
    """How long a file group's log may become. `wait_s` is all a write waits, however often, in seconds;
    an inline compaction it has begun meanwhile is under its own limit.

    `stop_trigger`: Paimon's `num-sorted-run.stop-trigger`, with its default: three above the compaction trigger.
    """

    stop_trigger: int | None = option(None, "log files of one file group that no write goes beyond")
    action: FullAction = option(FullAction.WAIT, "what a write does that would go beyond: wait, fail, or go on")
    wait_s: float = option(600.0, "seconds that one write waits at most before it fails")

    def __post_init__(self) -> None:
        check_least(self, {"stop_trigger": 1})
        if not 0 < self.wait_s < math.inf:
            raise UsageError("wait-s is out of range", expected="more than 0 seconds", found=str(self.wait_s))
        if self.action is FullAction.GO_ON and self.stop_trigger is not None:
            raise UsageError(
                "stop-trigger says nothing with go-on", expected="wait or fail", found=str(self.stop_trigger)
            )

    def limit(self, compaction_trigger: int) -> int | None:
        """Log files of one file group at which it is full; None: never."""
        if self.action is FullAction.GO_ON:
            return None
        return self.stop_trigger if self.stop_trigger is not None else compaction_trigger + _ABOVE_TRIGGER


_ABOVE_TRIGGER = 3


NO_LIMIT = BackPressure(action=FullAction.GO_ON)
"""The default of a write that is no batch of a stream."""


class Operation(Enum):
    """What a write does with its rows; the value is Hudi's name in the commit."""

    UPSERT = "UPSERT"
    INSERT = "INSERT"
    BULK_INSERT = "BULK_INSERT"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How a write works; sizes in bytes, times in seconds. In brackets: Hudi's name.

    `buckets`: the bucket index with so many buckets a partition (`hoodie.bucket.index.num.buckets`); None: the key
    index, which reads the key columns of base files.
    `bucket_fields`: key fields the bucket is made of, () for all (`hoodie.bucket.index.hash.field`).
    `combine`: keep one row a key of the batch; None: for upsert and delete (`hoodie.combine.before.upsert`, `.insert`).
    `log_format`: of log blocks (`hoodie.logfile.data.block.format`).
    `file_bytes`: where a new base file ends (`hoodie.parquet.max.file.size`); `small_file_bytes`: base files below it
    take inserts (`hoodie.parquet.small.file.limit`), 0: none does.
    `slots`: tasks of a shuffle (`hoodie.upsert.shuffle.parallelism`); None: by the size of the input, see
    `spark_engine.default_slots`.
    `batch_bytes`: input gathered by a task before it is split.
    `retries`: how often a write that lost against another one is tried again.
    `lazy_rollback`: only writers without heartbeat for `heartbeat_expiry_s` are taken for dead
    (`hoodie.cleaner.policy.failed.writes=LAZY`); None: when a lock is given, since others write too.
    `lock`: `file:PATH` or `zookeeper:HOST:PORT/BASE/KEY`, the same for all who write to or schedule on the table
    (`hoodie.write.lock.*`), or `storage`; None is `storage` too, by a sole writer: a file in the table, which real Hudi
    does not know, and on S3 the lock of Hudi's StorageBasedLockProvider.
    `drop_metadata_table`: turn the metadata table off first, as Hudi's writers do with `hoodie.metadata.enable=false`;
    else it is kept true where the table has one.
    `compaction`: what is done for it after the commit.
    `back_pressure`: how long a file group's log may become; None: batches of a stream wait, other writes go on.
    `times`: how TIMESTAMP partition values are formatted, as far as the table does not store it, under Hudi's names
    (`hoodie.keygen.timebased.*`).
    `clock`: the zone of the table's instants, and how far this process's clock may be off.
    """

    output: OutputOptions = field(default_factory=OutputOptions)
    buckets: int | None = None
    bucket_fields: tuple[str, ...] = ()
    combine: bool | None = None
    log_format: LogFormat = LogFormat.PARQUET
    file_bytes: int = 120 << 20
    small_file_bytes: int = 100 << 20
    slots: int | None = None
    batch_bytes: int = 32 << 20
    retries: int = 0
    heartbeat_s: float = BEAT_S
    heartbeat_expiry_s: float = EXPIRY_S
    lazy_rollback: bool | None = None
    lock: str | None = None
    drop_metadata_table: bool = False
    compaction: CompactionOptions = field(default_factory=CompactionOptions)
    back_pressure: BackPressure | None = None
    times: tuple[tuple[str, str], ...] = ()
    clock: ClockOptions = field(default_factory=ClockOptions)

    def __post_init__(self) -> None:
        check_least(self, _LEAST)
        check_above_zero(self, "heartbeat_s", "heartbeat_expiry_s")
        check_below(self, "heartbeat_s", "heartbeat_expiry_s")
        if self.heartbeat_s >= EXPIRY_S:
            raise UsageError(
                "heartbeat-s is as long as the time after which Hudi's writers take a write for dead",
                expected=f"less than {EXPIRY_S:g}",
                found=f"{self.heartbeat_s:g}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What a write does with its rows, and how."""

    operation: Operation
    options: WriteOptions = field(default_factory=WriteOptions)

    @property
    def deletes(self) -> bool:
        """Whether the rows are keys to delete."""
        return self.operation is Operation.DELETE

    @property
    def looks_keys_up(self) -> bool:
        """Whether it matters where the keys are already."""
        return self.operation in (Operation.UPSERT, Operation.DELETE)

    @property
    def combines(self) -> bool:
        """Whether one row a key of the batch is kept."""
        return self.options.combine if self.options.combine is not None else self.looks_keys_up

    @property
    def rolls_back_lazily(self) -> bool:
        """Whether only writers without heartbeat are taken for dead."""
        return self.options.lazy_rollback if self.options.lazy_rollback is not None else self.options.lock is not None


_LEAST = {"buckets": 1, "file_bytes": 1, "small_file_bytes": 0, "slots": 1, "batch_bytes": 1, "retries": 0}
