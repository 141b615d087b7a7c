"""What a write does for compaction: once it is committed, and while a file group's log is too long.

Once it is committed it requests a compaction, or requests and executes it, by its mode; then the services run that its
options name, and leftovers are removed. The write is complete whatever happens here. Errors are returned, not raised,
so that no caller writes the rows twice.

Back-pressure: a write that would make a file group's log too long waits until a compaction has shortened it.

    check     read the file groups to which the write appends: under a bucket index before it begins, and always
              after staging
    full      the transaction is rolled back: the write has no instant, holds no lock, and has no files in the table
    relieve   the write does what it may do itself: roll back dead writers, request a compaction, compact inline
    again     the write starts from the beginning once the log is short enough

The write waits outside its transaction. On version 6 no compaction can be planned while a delta commit is pending; on
any version no compaction can complete while a write is pending that began before its plan. So a write that waited
inside its transaction would wait for itself. Under a bucket index the rows determine their file groups, so a full group
is found before anything is staged. Under the key index only the look-up determines them, with the transaction's
timeline. The check after staging enforces the limit: a write that has appended to the group since this write began is a
conflict.

A write that requests no compactions waits only if the table shows that another process does (`shows_compaction`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial

from phantombase.compactor_daemon.attempt.compact_or_resume import Compacted
from phantombase.compactor_daemon.attempt.inputs import check_record_ttl
from phantombase.compactor_daemon.attempt.slice_task import Runner
from phantombase.compactor_daemon.clustering.cancel import left_by_dead
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.fleet.zookeeper_claims import ring
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions
from phantombase.compactor_daemon.services.options import Service
from phantombase.compactor_daemon.services.serve import note_runs, serve_table
from phantombase.compactor_daemon.unit_of_work import Limit, ServiceMeans
from phantombase.timeline.clocks import Stopwatch, clock_ms
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import ConflictError, PausedError, PhantombaseError, PressureError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.heartbeat import process_name, read_wanted
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.merge.slice_log import merged_files
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.planning.limits import BoundOptions
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.shown import Shown
from phantombase.timeline.table.in_progress import is_pending_service
from phantombase.timeline.table.table import Table, from_one_snapshot
from phantombase.timeline.table.traces import remove_left_behind
from phantombase.timeline.view.view import FileGroup, FileSlice, GroupKey, is_replaced, latest_slice

from ..engine.row_blobs import remove_old
from ..options import BackPressure, CompactionOptions, FullAction, Mode, WriteOptions

_log = get_logger()
_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """A file group whose log has reached the limit. `plan`: the pending compaction that names it."""

    slice: FileSlice
    logs: int
    plan: str | None

    @property
    def key(self) -> GroupKey:
        return self.slice.key


def full_groups(groups: Iterable[FileGroup], limit: int) -> tuple[Full, ...]:
    """The full groups among the file groups to which a write appends, the longest log first (pure). All log files that
    a reader merges count. Until a pending compaction completes, these include the log files that it will merge."""
    full = [
        Full(slice=slice_, logs=len(slice_.logs), plan=group.pending_compaction)
        for group in groups
        if (slice_ := latest_slice(group)) is not None and len(slice_.logs) >= limit
    ]
    return tuple(sorted(full, key=lambda one: (-one.logs, one.key)))


def shows_compaction(timeline: Timeline) -> bool:
    """Whether the active timeline has a compaction (pure). In a MERGE_ON_READ table only these complete as `commit`."""
    return any(i.action in ("compaction", "logcompaction", "commit") for i in timeline.instants)


class Capacity:
    """Whether the file groups of one write have capacity for it. `waited_s`: seconds it has waited so far. `limit`: the
    number of log files at which a file group is full, None: never. `relieve`: called while the write waits; it does
    what this write may do about the full groups, and returns the result as text. Its argument: whether a full file
    group is in no pending plan. `compacts`: whether this write requests compactions at all."""

    def __init__(
        self, table: Table, options: BackPressure, limit: int | None, relieve: Callable[[bool], str], *, compacts: bool
    ) -> None:
        self._table = table
        self._options = options
        self._limit = limit
        self._relieve = relieve
        self._compacts = compacts
        self._full: tuple[Full, ...] = ()
        self._depth = 0
        self.waited_s = 0.0

    def check(self, partitions: Iterable[str], appends_to: Callable[[FileGroup], bool]) -> None:
        """PressureError: in these partitions a file group that the write appends to is full."""
        limits = [one for one in (self._limit, self._options.slow_trigger) if one is not None]
        found = self._find(partitions, appends_to, min(limits, default=None))
        self._depth = max(self._depth, *(one.logs for one in found), 0)
        self._full = tuple(one for one in found if self._limit is not None and one.logs >= self._limit)
        if self._full:
            raise self._error("")

    def slow_down(self) -> None:
        """After a write that has found a deep file group: the next one begins later."""
        if (seconds := self._options.slow_for(self._depth, self._limit)) > 0:
            _log.info("write_slows", table=self._table.storage.base_path, logs=self._depth, seconds=round(seconds, 1))
            time.sleep(seconds)
            self.waited_s += seconds

    def _find(
        self, partitions: Iterable[str], appends_to: Callable[[FileGroup], bool], limit: int | None
    ) -> tuple[Full, ...]:
        if limit is None:
            return ()
        listed = sorted(set(partitions))
        full = full_groups((g for g in from_one_snapshot(lambda: self._groups(listed)) if appends_to(g)), limit)
        return from_one_snapshot(lambda: self._still_full(full, limit)) if full else ()

    def _still_full(self, full: tuple[Full, ...], limit: int) -> tuple[Full, ...]:
        """The groups that are full without the log files that a log compaction has replaced. Those files are kept until
        a cleaner removes their slice, and only the headers of their blocks show that they were replaced."""
        table = self._table.snapshot(cached=False)
        rules = slice_rules(table, table.newest_schema())
        counted = [replace(one, logs=len(merged_files(table.storage, one.slice, rules))) for one in full]
        return tuple(one for one in counted if one.logs >= limit)

    def _groups(self, partitions: list[str]) -> list[FileGroup]:
        table = self._table.snapshot(cached=False)
        facts = table.load_facts()
        found = prefetched(partitions, lambda one: table.views.partition_groups(one, table.timeline, facts))
        return [group for groups in found for group in groups if not is_replaced(group, facts)]

    def wait(self) -> None:
        """Waits for capacity, after `check` has found none. The caller is outside the transaction. Calls `relieve` at
        least once, unless no compactor is known. PressureError: the write must fail instead of waiting, its wait has
        timed out, or no process is known that compacts the table."""
        limit_s = self._options.wait_s if self._options.action is FullAction.WAIT else 0.0
        self._refuse_endless_wait()
        first, keys = self._full[0], {one.key for one in self._full}
        began = time.monotonic() - self.waited_s
        facts = {"table": self._table.storage.base_path, "file_group": "/".join(first.key), "logs": first.logs}
        _log.info("write_waits", **facts, limit=self._limit, compaction=first.plan)
        while True:
            why = self._relieve(any(one.plan is None for one in self._full))
            self._full = self._find((partition for partition, _ in keys), lambda group: group.key in keys, self._limit)
            self.waited_s = time.monotonic() - began
            if not self._full:
                break
            left = limit_s - self.waited_s
            if left <= 0:
                raise self._error(why)
            time.sleep(min(_POLL_S, left))
        self._depth = 0  # it has waited for the depth that it had found
        _log.info("write_resumes", **facts | {"waited_s": round(self.waited_s, 1)})

    def _refuse_endless_wait(self) -> None:
        """PressureError: no process is known that compacts the table."""
        # The record is read before the timeline: it is removed only after the requested plan is visible.
        wanted = read_wanted(self._table.storage, clock_ms())
        if not (self._compacts or wanted is not None or shows_compaction(self._table.snapshot(cached=False).timeline)):
            raise self._error("no process is known to compact this table")

    def _error(self, why: str) -> PressureError:
        first, others = self._full[0], len(self._full) - 1
        found = [f"{first.logs}, and {others} more such file groups" if others else f"{first.logs}"]
        found.append("its compaction is pending" if first.plan else "no compaction of it is pending")
        found += [f"waited {self.waited_s:,.1f} s"] if self.waited_s else []
        found += [why] if why else []
        limits = ["stop_trigger"] + ["wait_s"] * (self._options.action is FullAction.WAIT)
        return PressureError(
            "a file group has reached the limit of log files",
            path="/".join(part for part in (self._table.storage.base_path, *first.key) if part),
            instant=first.plan,
            expected=f"fewer than {self._limit}",
            found=", ".join(found),
            todo="Nothing of this write is visible. Compact the table: `compactor-daemon compact TABLE --schedule`, or "
            f"inline compaction of this writer; or raise {' or '.join(limits)}.",
        )


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
class AfterCommit(Shown):
    """What happened after a commit. `scheduled`: the requested compaction, or None with the reason in `why`.
    `compacted`: executed inline. `left`: compactions that are still pending because of the limit. `clustered`: how many
    clusterings were completed. `cleaned`: how many files a clean removed. `archived`: how many instants were archived.
    `synced`: how many tables of a catalog were made or changed. `error`: the first error in one line, if any."""

    scheduled: str | None = None
    why: str = ""
    compacted: tuple[Compacted, ...] = ()
    left: tuple[str, ...] = ()
    clustered: int = 0
    cleaned: int = 0
    archived: int = 0
    synced: int = 0
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
        done = schedule_compaction(table, lock, options.schedule, check=partial(check_record_ttl, output))
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
    except PausedError as error:  # what a person has decided is no failure
        return AfterCommit(scheduled=scheduled, why=str(error))
    except PhantombaseError as error:
        _log.warning("after_commit_failed", table=table.storage.base_path, error=str(error))
        return AfterCommit(scheduled=scheduled, why=why, error=str(error))


def remove_leftovers(table: Table) -> None:
    """Removes markers and staged files of finished and dead writes. After an error the next write tries again."""
    try:
        remove_old(table.storage, clock_ms())
        remove_left_behind(table)
    except PhantombaseError as error:
        _log.warning("clean_up_failed", error=str(error))


def services_after(
    table: Table, lock: TableLock, runner: Callable[[], Runner], options: WriteOptions, after: AfterCommit
) -> AfterCommit:
    """`after` with the results of the services that the options of the write name."""
    means = ServiceMeans(output=options.output, runner=runner())
    done = {one.service: one for one in serve_table(table, options.services, lock, means=means)}
    if (sync := done.get(Service.SYNC)) is not None:
        with suppress(PhantombaseError):  # `status` lacks it then; its error is in the result
            note_runs(table.storage, process_name(), [sync], inline=True)
    errors = [after.error, *(one.what for one in done.values() if one.failed)]
    kinds = (Service.CLUSTER, Service.CLEAN, Service.ARCHIVE, Service.SYNC)
    clustered, cleaned, archived, synced = map(done.get, kinds)
    return replace(
        after,
        clustered=0 if clustered is None else clustered.instants,
        cleaned=0 if cleaned is None else cleaned.files,
        archived=0 if archived is None else archived.instants,
        synced=0 if synced is None else synced.instants,
        error=next((error for error in errors if error is not None), None),
    )


_CLUSTERING_POLL_S = 0.5


class ClusteringWait:
    """The waits of one write for clusterings of its file groups: `limit_s` seconds from the first conflict on.
    `pauses`: before a try where none is pending."""

    def __init__(self, table: Table, limit_s: float, pauses: Iterator[float]) -> None:
        self.waited_s = 0.0
        self._table, self._limit_s = table, limit_s
        self._begun: Stopwatch | None = None
        self._pauses = pauses

    def wait(self, error: ConflictError) -> bool:
        """Waits until the clusterings pending now have ended; the next try cancels dead ones. False: the time is up."""
        self._begun = self._begun or Stopwatch()
        if self._begun.seconds() >= self._limit_s:
            return False
        _log.info("write_waits_for_clustering", table=self._table.storage.base_path, error=str(error))
        waiting, here = self._pending(), Stopwatch()
        if not waiting:  # the next try may meet what this one met
            time.sleep(next(self._pauses))
        while waiting and self._begun.seconds() < self._limit_s:
            time.sleep(_CLUSTERING_POLL_S)
            waiting &= self._pending()
        self.waited_s += here.seconds()
        return True

    def _pending(self) -> set[str]:
        """Those of Hudi too, whether Hudi has begun them or not."""
        now = self._table.snapshot(cached=False)
        dead = {one.time for one in left_by_dead(now)}
        found = (i for i in now.timeline.instants if i.family == "replacecommit" and not i.completed)
        return {i.requested_time for i in found if i.requested_time not in dead and is_pending_service(now, i)}
