"""The daemon's loop: gets the next actions from `control`, gives them to threads, and processes their results.

Only the loop's own thread touches the state. Every event (a finished snapshot or instant, a changed claim, the
doorbell, a signal) is a value of `events` in one queue, and wakes the loop.

The loop uses a monotonic clock: a jump of the machine's clock does not change when it takes snapshots of tables.

Tables may be added and removed while it runs (`assign`): work on a removed one is brought to its end first."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Semaphore
from typing import Any

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.dashboard.verdict import Freshness
from phantombase.timeline.errors import PhantombaseError, SparkError
from phantombase.timeline.event_log import bound, get_logger
from phantombase.timeline.planning.schedule import Scheduled

from ..attempt.failures import FailureClass, RetryOptions, classify
from ..fleet.budget import Spent
from ..fleet.catalog import FleetTables
from ..fleet.pools import Pool, Pools, PoolUsage, QuotaUsage
from ..services.serve import ServiceDone
from ..unit_of_work import spent_on
from .control import (
    Assigned,
    ClaimsChanged,
    Control,
    DoorbellRang,
    Event,
    Moment,
    PlanRequested,
    Served,
    ServicesRan,
    SessionChanged,
    SlotWanted,
    SnapshotTaken,
    Stopped,
    Swept,
    TablesAssigned,
    UpkeepFailed,
    WorkBegan,
    WorkEnded,
    WorkSuspended,
)
from .dispatch import UPKEEP_LEAST, Action, Relist, Request, Resume, Rules, Serve, Stop, Sweep, Take
from .record import Recorder
from .table_state import SeenTable, TableState
from .work import Observer, Reporter, RunningWork, Summary

_log = get_logger()
_SUSPENDED_MAX = 32
"""The most instants that wait for writes in a thread of their own; further ones hold their slot while they wait."""
_UPKEEP_THREADS = 16
_QUEUED_S, _QUEUED_MAX, _LATEST = 0.1, 256, 1 / 16
"""Snapshots wait in the queue for at most about this time, so that a doorbell does too, and at most this number.

A turn over thousands of tables takes far longer than the snapshots of 16 local ones. The last number is the weight of
the newest snapshot in the mean.
"""
_SERVICE_THREADS = 2
"""How many tables are served at a time: a clean may take long, and the other tables need snapshots concurrently."""
_NEAR = 64
_REST, _IDLE_REST, _REST_MAX_S = 4.0, 30.0, 0.05
"""After a long turn, as with thousands of tables, events are collected for this multiple of it, up to a limit."""


def _steady_ms() -> int:
    return round(time.monotonic() * 1000)


def _requested(table: str, scheduled: Scheduled) -> PlanRequested:
    return PlanRequested(table=table, instant=scheduled.instant, why=scheduled.why)


def _services_ran(table: str, done: tuple[ServiceDone, ...]) -> ServicesRan:
    return ServicesRan(table=table, done=done)


class Daemon:
    """Serves tables until it is stopped, or with `rules.once` until nothing more can be done now. `events`: a file that
    gets every event and decision, see `record`."""

    def __init__(
        self,
        tables: Mapping[str, Served],
        rules: Rules,
        retry: RetryOptions,
        *,
        pools: Pools | None = None,
        observer: Observer | None = None,
        spark_is_gone: Callable[[], bool] = lambda: False,
        clock: Callable[[], int] = _steady_ms,
        chance: random.Random | None = None,
        events: Path | None = None,
    ) -> None:
        pools = pools or Pools()
        self._served = dict(tables)
        self._observer = observer or Observer()
        self._spark_is_gone = spark_is_gone
        self._clock = clock
        self._chance = chance or random.Random()
        self._news: SimpleQueue[Event] = SimpleQueue()
        self._control = Control(
            rules=rules,
            retry=retry,
            use=QuotaUsage(pools=pools, slots=rules.max_concurrent, began=clock()),
            tables={name: TableState(pool=pools.of(name)) for name in tables},
        )
        self._recorder = None if events is None else Recorder(events, self._control)
        self._reporter = Reporter(self._observer, self._control)
        self.summary = self._reporter.summary
        self._paid: dict[str, Spent] = {}
        self._snapshot_s = _QUEUED_S
        self._work: dict[tuple[str, str], RunningWork] = {}
        self._suspensions = Semaphore(_SUSPENDED_MAX)
        self._fatal: Exception | None = None
        self._beat = time.monotonic()
        self.fleet: FleetTables | None = None
        """All tables of the fleet, as of the last listing; None: tables that were named."""
        self.pages: str | None = None
        """The address of its pages, for the other daemons."""

    # --- called from anywhere ------------------------------------------------------------------------------------

    def stop(self, how: Stop) -> None:
        """Ends the daemon; may be called from a signal handler."""
        self._news.put(Stopped(how=how))

    def wake(self, table: str) -> None:
        """The table's doorbell rang: a plan was requested."""
        self._news.put(DoorbellRang(table=table))

    def claims_changed(self, table: str) -> None:
        """A process took or released a claim on the table."""
        self._news.put(ClaimsChanged(table=table))

    def session_changed(self) -> None:
        """The connection to ZooKeeper was made or lost, or the session was lost with its claims."""
        self._news.put(SessionChanged())

    def assign(self, tables: Mapping[str, Assigned], members: int = 1) -> None:
        """From now on serves these tables and no others. `members`: the daemons that share the quotas of bytes."""
        self._news.put(TablesAssigned(tables=tables, members=members))

    @property
    def silent_s(self) -> float:
        """Seconds since the last turn of the loop."""
        return time.monotonic() - self._beat

    @property
    def trouble(self) -> str | None:
        """Why the daemon cannot work now; None if it can. If only some tables cannot be served, it can."""
        return self._reporter.trouble

    @property
    def pools(self) -> tuple[PoolUsage, ...]:
        """What the pools use, at most some seconds old."""
        return self._reporter.pools

    @property
    def paths(self) -> tuple[str, ...]:
        """The tables that it serves now."""
        return tuple(self._served)

    def pool_of(self, path: str) -> Pool:
        """The rules for a table of the fleet; for another one, the default rules."""
        if (state := self._control.tables.get(path)) is not None:
            return state.pool
        name = None if self.fleet is None else self.fleet.names.get(path)
        return Pool() if self.fleet is None or name is None else self.fleet.pools.of(name)

    def freshness_of(self, path: str) -> Freshness | None:
        """The lag of a table against its goal, as of its last snapshot."""
        return self._reporter.freshness.get(path)

    @property
    def at_work(self) -> tuple[tuple[str, str], ...]:
        """(table, instant) of the compactions that this process executes."""
        return tuple(self._work)

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> Summary:
        """Runs until the end. SparkError: the executor has ended; all claims are released."""
        with (
            ThreadPoolExecutor(self._control.rules.max_concurrent + _SUSPENDED_MAX, "work") as workers,
            ThreadPoolExecutor(_UPKEEP_THREADS, "upkeep") as upkeep,
            ThreadPoolExecutor(_SERVICE_THREADS, "services") as services,
        ):
            self._take_in(0.0, 0.0)  # tables that were assigned before
            while True:
                self._beat = time.monotonic()
                at = self._moment()
                decide = self._control.decide if self._recorder is None else self._recorder.decide
                steps = decide(at, self._chance.randrange, self._upkeeps)
                self._let_go()
                for action in steps.actions:
                    self._act(action, workers, upkeep, services)
                if steps.ended:
                    break
                self._reporter.show(at)
                self._take_in(steps.wait_s, time.monotonic() - self._beat)
        if self._fatal is not None:
            raise self._fatal
        tables = self._control.tables
        self.summary.left = {n: tuple(p.instant for p in t.pending) for n, t in tables.items() if t.pending}
        return self.summary

    def _moment(self) -> Moment:
        return Moment(now_ms=self._clock(), epoch_ms=clock_ms())

    @property
    def _upkeeps(self) -> int:
        """How many snapshots the threads take within `_QUEUED_S`, by how long the last ones took."""
        return min(_QUEUED_MAX, max(UPKEEP_LEAST, round(_UPKEEP_THREADS * _QUEUED_S / max(self._snapshot_s, 1e-6))))

    def _take_in(self, wait_s: float, took_s: float) -> None:
        """Waits for an event, then processes all events. `took_s`: how long the turn took."""
        with suppress(Empty):
            self._process(self._news.get(timeout=wait_s) if wait_s > 0 else self._news.get_nowait())
            if (rest_s := took_s * (_REST if self._work else _IDLE_REST)) > _REST_MAX_S / 10:
                time.sleep(min(rest_s, _REST_MAX_S))
            while True:
                self._process(self._news.get_nowait())

    def _act(
        self, action: Action, workers: ThreadPoolExecutor, upkeep: ThreadPoolExecutor, services: ThreadPoolExecutor
    ) -> None:
        served = self._served[action.table]
        match action:
            case Take(table, instant):
                state = self._control.tables[table]
                work = self._work[table, instant] = RunningWork(
                    served=served,
                    instant=instant,
                    near=(p.instant for p in islice(state.startable(self._clock()), _NEAR + state.spread)),
                    once=self._control.rules.once,
                    suspensions=self._suspensions,
                    begun=partial(self._news.put, WorkBegan(table=table, instant=instant)),
                    suspend=partial(self._news.put, WorkSuspended(table=table, instant=instant)),
                    wants_slot=partial(self._news.put, SlotWanted(table=table, instant=instant)),
                )
                workers.submit(self._execute, table, instant, work)
            case Resume(table, instant):
                self._observer.resumed(table)
                self._work[table, instant].resumed.put(None)
            case Relist(table):
                upkeep.submit(self._timed_snapshot, table, served)
            case Request(table, pace):
                upkeep.submit(self._upkeep, table, partial(served.request, pace), partial(_requested, table))
            case Sweep(table):
                pool = self._control.tables[table].pool
                upkeep.submit(self._upkeep, table, partial(self._sweep, served, pool), lambda _: Swept(table=table))
            case Serve(table):
                ran = partial(_services_ran, table)
                services.submit(self._upkeep, table, partial(self._serve, served), ran, ServicesRan)

    # --- in other threads ----------------------------------------------------------------------------------------

    def _execute(self, table: str, instant: str, work: RunningWork) -> None:
        with bound(table=table, instant=instant):
            ended = work.run()
        error = ended.error
        self._news.put(
            WorkEnded(
                table=table,
                instant=instant,
                bytes_read=None if ended.done is None else ended.done.bytes_read,
                done_elsewhere=ended.done_elsewhere,
                claimed=ended.claimed,
                unknown=ended.unknown,
                error=None if error is None else str(error),
                counts=error is not None and classify(error) is not FailureClass.NOTHING,
                is_fatal=isinstance(error, SparkError) and self._spark_is_gone(),
            )
        )

    def _upkeep(
        self,
        table: str,
        do: Callable[[], Any],
        done: Callable[[Any], Event],
        failed: type[UpkeepFailed | ServicesRan] = UpkeepFailed,
    ) -> None:
        """Does something on a table, then puts the event of its end into the queue."""
        with bound(table=table):
            try:
                event = done(do())
            except Exception as error:
                if not isinstance(error, PhantombaseError):
                    _log.exception("internal_error")
                event = failed(table=table, error=str(error))
        self._news.put(event)

    def _snapshot(self, served: Served) -> SeenTable:
        try:
            return served.snapshot()
        except PhantombaseError:
            self._observer.failing(served.path)
            raise

    def _sweep(self, served: Served, pool: Pool) -> None:
        served.sweep()
        if (timeline := served.timeline) is not None:
            self._observer.swept(served.path, timeline, pool)

    def _serve(self, served: Served) -> tuple[ServiceDone, ...]:
        """Tables wait here for a thread; once the daemon is stopped, none is served any more."""
        rules = self._control.rules
        every_s = 0.0 if rules.once else rules.services_s
        hands_over = partial(self._is_stopping, Stop.HAND_OVER)
        return () if self._is_stopping() else served.serve(every_s, self._is_stopping, hands_over)

    def _is_stopping(self, how: Stop | None = None) -> bool:
        """`how`: only so; None: in any way."""
        return self._control.stop is not None if how is None else self._control.stop is how

    def _timed_snapshot(self, table: str, served: Served) -> None:
        """Takes a snapshot and updates the mean duration: an estimate, which concurrent threads may overwrite."""
        began = time.monotonic()
        self._upkeep(table, partial(self._snapshot, served), lambda seen: SnapshotTaken(table=table, seen=seen))
        self._snapshot_s += (time.monotonic() - began - self._snapshot_s) * _LATEST

    # --- events, in the loop's thread ----------------------------------------------------------------------------

    def _process(self, event: Event) -> None:
        """Changes the state by an event, then does what follows from it outside of the state."""
        match event:
            case SnapshotTaken(table=table):
                if (available := self._served[table].claims.available) != event.available:
                    event = replace(event, available=available)
            case SessionChanged():
                event = SessionChanged(available={name: one.claims.available for name, one in self._served.items()})
            case TablesAssigned(tables=tables):
                for name, one in tables.items():
                    self._served.setdefault(name, one.served)
            case ServicesRan():
                event = replace(event, spent=self._spent_on(event.table))
            case WorkEnded(table=table, instant=instant):
                event = replace(event, spent=self._spent_on(table))
                if instant in self._control.tables[table].suspended:
                    self._observer.resumed(table)
        at = self._moment()
        if self._recorder is not None:
            self._recorder.event(event, at)
        self._control.apply(event, at)
        self._follow(event, at)
        self._let_go()

    def _spent_on(self, table: str) -> Spent:
        """What work on a table has taken here since this was last asked."""
        total, before = spent_on(table), self._paid.get(table, (0.0, 0.0))
        self._paid[table] = total
        return total[0] - before[0], total[1] - before[1]

    def _follow(self, event: Event, at: Moment) -> None:
        match event:
            case WorkSuspended(table=table, instant=instant) if self._is_stopping():
                self._work[table, instant].stop("the end of its daemon")
            case WorkEnded(table=table, instant=instant):
                work = self._work.pop((table, instant))
                self._reporter.ended(event, work)
                if event.is_fatal and work.ended is not None:
                    self._fatal = work.ended.error
                    self._stopped(Stop.HAND_OVER)
            case SessionChanged():
                for (table, instant), work in self._work.items():
                    if work.held is not None and work.held.lost and not work.limit.closed:
                        _log.warning("claim_lost", table=table, instant=instant)
                        work.stop("the loss of its claim")
            case Stopped(how=how):
                self._stopped(how)
        self._reporter.tell(event, at)

    def _stopped(self, how: Stop) -> None:
        _log.info("stopping", how=how.value, running=len(self._work))
        for (table, instant), work in self._work.items():
            if how is Stop.HAND_OVER or instant in self._control.tables[table].suspended:
                work.stop("the end of its daemon")

    def _let_go(self) -> None:
        while self._control.gone:
            name = self._control.gone.pop()
            self._served.pop(name).close()
            self._paid.pop(name, None)
            self._reporter.forget(name)
