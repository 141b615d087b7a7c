"""What a write does for compaction once it is committed: nothing, request one, or execute it too.

The write stands whatever comes of this: an error here is reported, not raised, so that nobody writes twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import Enum

import structlog

from compactor_daemon.compactor import Compacted
from compactor_daemon.doorbell import ring
from compactor_daemon.execute import Runner
from compactor_daemon.limit import Limit
from compactor_daemon.options import AttemptOptions, ExecuteOptions, OutputOptions
from compactor_daemon.run import run_compactions
from compactor_daemon.zookeeper import ZooKeeperOptions
from timeline.bounds import BoundOptions
from timeline.errors import PhantombaseError
from timeline.lock import TableLock
from timeline.option import check_finite
from timeline.schedule import schedule_compaction
from timeline.schedule_options import ScheduleOptions
from timeline.table import Table
from timeline.triggers import TriggerStrategy

_log = structlog.get_logger()


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


def due_at_once(options: CompactionOptions) -> CompactionOptions:
    """The same, but every file group with log files is due, as a new base file, within the limits of a plan.

    No strategy, picking or trigger may leave out what somebody waits for. Not the trigger ALWAYS: who asks again and
    again uses the gate of version 6.
    """
    said = options.schedule
    at_once = ScheduleOptions(
        strategy=TriggerStrategy.TIME_ELAPSED,
        max_delta_seconds=0,
        max_pending=said.max_pending,
        gate_s=said.gate_s,
        incremental=False,
        **{limit.name: getattr(said, limit.name) for limit in fields(BoundOptions)},
    )
    return replace(options, schedule=at_once)


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterCommit:
    """`scheduled`: the compaction requested, or None with the reason in `why`; `compacted`: executed inline; `left`:
    pending ones the limit left over; `error`: what went wrong, in one line."""

    scheduled: str | None = None
    why: str = ""
    compacted: tuple[Compacted, ...] = ()
    left: tuple[str, ...] = ()
    error: str | None = None


def after_commit(
    table: Table,
    lock: TableLock,
    lock_name: str | None,
    runner: Callable[[], Runner],
    output: OutputOptions,
    options: CompactionOptions,
) -> AfterCommit:
    """Does what the mode says; never raises an error of the tree."""
    if options.mode is Mode.WRITE_ONLY:
        return AfterCommit()
    scheduled, why = None, ""
    try:
        done = schedule_compaction(table, lock, options.schedule)
        scheduled, why = done.instant, done.why
        if options.notify is not None and scheduled is not None:
            options.notify()
        if options.fleet is not None and scheduled is not None:
            ring(table, scheduled, options.fleet)
        if options.mode is Mode.SCHEDULE:
            return AfterCommit(scheduled=scheduled, why=why)
        ran = run_compactions(
            table.storage.base_path,
            lock=lock_name,
            output=output,
            execute=ExecuteOptions(),
            attempt=AttemptOptions(),
            runner=runner(),
            limit=Limit(options.limit_s),
            clock=table.clock,
        )
        return AfterCommit(scheduled=scheduled, why=why, compacted=ran.done, left=ran.left)
    except PhantombaseError as error:
        _log.warning("after_commit_failed", table=table.storage.base_path, error=str(error))
        return AfterCommit(scheduled=scheduled, why=why, error=str(error))
