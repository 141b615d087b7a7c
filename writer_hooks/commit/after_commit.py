"""What a write does once it is committed: compaction, the table's services, removal of leftovers.

By its mode it requests a compaction, or requests and executes it; then the services run that its options name. The
write is complete whatever happens here. Errors are returned, not raised, so that no caller writes the rows twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from phantombase.compactor_daemon.attempt.compact_or_resume import Compacted, Limit
from phantombase.compactor_daemon.attempt.slice_task import Runner
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.fleet.zookeeper_claims import ring
from phantombase.compactor_daemon.leftovers import remove_left_behind
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions
from phantombase.compactor_daemon.services.options import Service
from phantombase.compactor_daemon.services.serve import serve_table
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.planning.limits import BoundOptions
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.table.table import Table

from ..engine.row_blobs import remove_old
from ..options import CompactionOptions, Mode, WriteOptions

_log = get_logger()


def due_at_once(options: CompactionOptions) -> CompactionOptions:
    """The same options, but every file group with log files is due for a new base file, within the limits of a plan. No
    strategy, picking or trigger may leave out a file group for which a write waits. The trigger is not ALWAYS, because
    a write that waits repeats the request, and would use the gate of version 6 each time."""
    own = options.schedule
    at_once = ScheduleOptions(
        strategy=TriggerStrategy.TIME_ELAPSED,
        max_delta_seconds=0,
        max_pending=own.max_pending,
        gate_s=own.gate_s,
        incremental=False,
        **{limit.name: getattr(own, limit.name) for limit in fields(BoundOptions)},
    )
    return replace(options, schedule=at_once)


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterCommit:
    """What happened after a commit. `scheduled`: the requested compaction, or None with the reason in `why`.
    `compacted`: executed inline. `left`: compactions that are still pending because of the limit. `cleaned`: how many
    files a clean removed. `archived`: how many instants were archived. `error`: the first error in one line, if there
    was one."""

    scheduled: str | None = None
    why: str = ""
    compacted: tuple[Compacted, ...] = ()
    left: tuple[str, ...] = ()
    cleaned: int = 0
    archived: int = 0
    error: str | None = None


def after_commit(
    table: Table,
    lock: TableLock,
    lock_name: str | None,
    runner: Callable[[], Runner],
    output: OutputOptions,
    options: CompactionOptions,
) -> AfterCommit:
    """Requests and executes compactions according to the mode; returns a `PhantombaseError` as text."""
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
            table,
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


def remove_leftovers(table: Table) -> None:
    """Removes markers and staged files of finished and dead writes. After an error the next write tries again."""
    try:
        remove_old(table.storage, round(time.time() * 1000))
        remove_left_behind(table)
    except PhantombaseError as error:
        _log.warning("clean_up_failed", error=str(error))


def services_after(table: Table, lock: TableLock, options: WriteOptions, after: AfterCommit) -> AfterCommit:
    """`after` with the results of the services that the options of the write name."""
    done = {one.service: one for one in serve_table(table, options.services, lock)}
    errors = [after.error, *(one.what for one in done.values() if one.failed)]
    cleaned, archived = done.get(Service.CLEAN), done.get(Service.ARCHIVE)
    return replace(
        after,
        cleaned=0 if cleaned is None else cleaned.files,
        archived=0 if archived is None else archived.instants,
        error=next((error for error in errors if error is not None), None),
    )
