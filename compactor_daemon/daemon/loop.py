"""The daemon's loop: gets the next actions from `dispatch`, gives them to threads, and processes their results.

Only the loop's own thread touches the state. Every event (a finished snapshot or instant, a changed claim, the
doorbell, a signal) is put into one queue as a change of the state, and wakes the loop.

The loop uses a monotonic clock: a jump of the machine's clock does not change when it takes snapshots of tables.

Tables may be added and removed while it runs (`assign`): work on a removed one is brought to its end first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Semaphore

import structlog

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import PhantombaseError, SparkError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.planning.schedule import Scheduled

from ..attempt.failures import FailureClass, Parked, RetryOptions, Waits, classify
from ..fleet.pools import Pool, Pools, PoolUsage, QuotaUsage
from ..services.serve import ServiceDone
from .dispatch import (
    UPKEEP_LEAST,
    Action,
    Relist,
    Request,
    Resume,
    Rules,
    Serve,
    Sharing,
    Stop,
    Sweep,
    Take,
    next_steps,
)
from .served_table import SeenTable, Served
from .table_state import Pending, TableState
from .work import Ended, Observer, RunningWork, Summary

_log = get_logger()
_SUSPENDED_MAX = 32
"""The most instants that wait for writes in a thread of their own; further ones hold their slot while they wait."""
_UPKEEP_THREADS = 8
_QUEUED_S, _QUEUED_MAX, _LATEST = 0.1, 64, 1 / 16
"""Snapshots wait in the queue for at most about this time, so that a doorbell does too, and at most this number.

A turn over thousands of tables takes far longer than the snapshots of 16 local ones. The last number is the weight of
the newest snapshot in the mean.
"""
_SERVICE_THREADS = 2
"""How many tables are served at a time: a clean may take long, and the other tables need snapshots concurrently."""
_NEVER_MS = 1 << 62
_NEAR = 64
_SHOW_MS = 2000
"""How often the use of the pools is published."""
_REST, _REST_MAX_S = 4.0, 0.05
"""After a long turn, as with thousands of tables, events are collected for this multiple of it, up to a limit."""
_ECHO_S = 0.5
"""How soon a table has a snapshot after its claims changed: not at once, since many busy daemons change them often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    served: Served
    pool: Pool


def _steady_ms() -> int:
    return round(time.monotonic() * 1000)


def _on_clock(pending: Pending, ahead_ms: int) -> Pending:
    """Converts the time until which an instant waits, from the machine's clock to one that is `ahead_ms` ahead."""
    match pending.readiness:
        case Waits(until_ms):
            return replace(pending, readiness=Waits(until_ms + ahead_ms))
    return pending


class Daemon:
    """Serves tables until it is stopped, or with `rules.once` until nothing more can be done now."""

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
    ) -> None:
        pools = pools or Pools()
        self._served = dict(tables)
        self._rules = rules
        self._retry = retry
        self._observer = observer or Observer()
        self._spark_is_gone = spark_is_gone
        self._clock = clock
        self._chance = chance or random.Random()
        self._news: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._states = {name: TableState(pool=pools.of(name)) for name in tables}
        self._leaving: set[str] = set()
        self._use = QuotaUsage(pools=pools, slots=rules.max_concurrent, began=clock())
        self._show_at = 0
        self._snapshot_s = _QUEUED_S
        self._work: dict[tuple[str, str], RunningWork] = {}
        self._stop: Stop | None = None
        self._takes = 0
        self._room_aside = Semaphore(_SUSPENDED_MAX)
        self._fatal: PhantombaseError | None = None
        self._beat = time.monotonic()
        self.summary = Summary()
        self.pools: tuple[PoolUsage, ...] = ()
        """What the pools use, at most some seconds old."""

    # --- called from anywhere ------------------------------------------------------------------------------------

    def stop(self, how: Stop) -> None:
        """Ends the daemon; may be called from a signal handler."""
        self._news.put(partial(self._stopped, how))

    def wake(self, table: str) -> None:
        """The table's doorbell rang: a plan was requested."""
        self._news.put(partial(self._snapshot_by, table, 0))

    def claims_changed(self, table: str) -> None:
        """A process took or released a claim on the table."""
        self._news.put(partial(self._echo, table))

    def session_changed(self) -> None:
        """The connection to ZooKeeper was made or lost, or the session was lost with its claims."""
        self._news.put(self._session_changed)

    def assign(self, tables: Mapping[str, Assigned], members: int = 1) -> None:
        """From now on serves these tables and no others. `members`: the daemons that share the quotas of bytes."""
        self._news.put(partial(self._assigned, tables, members))

    @property
    def silent_s(self) -> float:
        """Seconds since the last turn of the loop."""
        return time.monotonic() - self._beat

    @property
    def trouble(self) -> str | None:
        """Why the daemon cannot work now; None if it can. If only some tables cannot be served, it can."""
        found = None
        for name, state in tuple(self._states.items()):
            if (problem := self._trouble_of(name, state)) is None:
                return None
            found = found or problem
        return found

    @property
    def paths(self) -> tuple[str, ...]:
        """The tables that it serves now."""
        return tuple(self._served)

    def pool_of(self, path: str) -> Pool:
        """The rules for a table; for one that it does not serve, the default rules."""
        state = self._states.get(path)
        return Pool() if state is None else state.pool

    @property
    def at_work(self) -> tuple[tuple[str, str], ...]:
        """(table, instant) of the compactions that this process executes."""
        return tuple(self._work)

    def _trouble_of(self, name: str, state: TableState) -> str | None:
        if (problem := self.summary.problems.get(name)) is not None:
            return problem
        if not state.seen:
            return f"{name} has had no snapshot yet"
        return None if state.available else f"claims on {name} cannot be taken: no connection to ZooKeeper"

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> Summary:
        """Runs until the end. SparkError: the executor has ended; all claims are released."""
        with (
            ThreadPoolExecutor(self._rules.max_concurrent + _SUSPENDED_MAX, "work") as workers,
            ThreadPoolExecutor(_UPKEEP_THREADS, "upkeep") as upkeep,
            ThreadPoolExecutor(_SERVICE_THREADS, "services") as services,
        ):
            self._take_in(0.0, 0.0)  # tables that were assigned before
            while True:
                self._beat = time.monotonic()
                now = self._clock()
                sharing = Sharing(use=self._use, epoch_ms=clock_ms(), upkeeps=self._upkeeps)
                steps = next_steps(self._states, self._stop, now, self._rules, self._chance.randrange, sharing)
                for action in steps.actions:
                    self._act(action, workers, upkeep, services)
                if steps.ended:
                    break
                self._show(now)
                self._take_in(steps.wait_s, time.monotonic() - self._beat)
        if self._fatal is not None:
            raise self._fatal
        self.summary.left = {n: tuple(p.instant for p in t.pending) for n, t in self._states.items() if t.pending}
        return self.summary

    @property
    def _upkeeps(self) -> int:
        """How many snapshots the threads take within `_QUEUED_S`, by how long the last ones took."""
        return min(_QUEUED_MAX, max(UPKEEP_LEAST, round(_UPKEEP_THREADS * _QUEUED_S / max(self._snapshot_s, 1e-6))))

    def _take_in(self, wait_s: float, took_s: float) -> None:
        """Waits for an event, then processes all events. `took_s`: how long the turn took."""
        with suppress(Empty):
            self._news.get(timeout=wait_s)() if wait_s > 0 else self._news.get_nowait()()
            if (rest_s := took_s * _REST) > _REST_MAX_S / 10:
                time.sleep(min(rest_s, _REST_MAX_S))
            while True:
                self._news.get_nowait()()

    def _act(
        self, action: Action, workers: ThreadPoolExecutor, upkeep: ThreadPoolExecutor, services: ThreadPoolExecutor
    ) -> None:
        match action:
            case Take(table, instant):
                self._take(table, instant, workers)
            case Resume(table, instant):
                self._resume(table, instant)
                self._work[table, instant].resumed.put(None)
            case Relist(table):
                self._change(table, busy=True)
                upkeep.submit(self._timed_snapshot, table, self._served[table].snapshot)
            case Request(table):
                self._change(table, busy=True, due=False)
                upkeep.submit(self._upkeep, table, self._served[table].request, self._requested)
            case Sweep(table):
                self._change(table, busy=True)
                upkeep.submit(self._upkeep, table, self._served[table].sweep, self._swept)
            case Serve(table):
                self._change(table, serving=True)
                every_s = 0.0 if self._rules.once else self._rules.services_s
                serve = partial(self._serve, table, every_s)
                services.submit(self._upkeep, table, serve, self._services_ran, self._services_failed)

    def _take(self, table: str, instant: str, workers: ThreadPoolExecutor) -> None:
        self._takes += 1
        state = self._states[table]
        near = tuple(p.instant for p in islice(state.startable(self._clock()), _NEAR))
        self._states[table] = state.begin(instant, self._takes)
        self._use.begin(state.pool, (table, instant), state.log_bytes(instant), self._clock())
        work = self._work[table, instant] = RunningWork(
            served=self._served[table],
            instant=instant,
            near=near,
            once=self._rules.once,
            suspensions=self._room_aside,
            begun=self._event(self._begun, table, instant),
            suspend=self._event(self._suspend, table, instant),
            wants_slot=self._event(self._wants_slot, table, instant),
        )
        workers.submit(self._execute, table, instant, work)

    # --- in other threads ----------------------------------------------------------------------------------------

    def _execute(self, table: str, instant: str, work: RunningWork) -> None:
        with structlog.contextvars.bound_contextvars(table=table, instant=instant):
            ended = work.run()
        self._news.put(partial(self._ended, table, instant, work, ended))

    def _event(self, change: Callable[[str, str], None], table: str, instant: str) -> Callable[[], None]:
        """For another thread: puts a change of an instant's state into the queue."""
        return lambda: self._news.put(partial(change, table, instant))

    def _upkeep(
        self,
        table: str,
        do: Callable[[], object],
        then: Callable[[str, object], None],
        failed: Callable[[str, Exception], None] | None = None,
    ) -> None:
        with structlog.contextvars.bound_contextvars(table=table):
            try:
                found = do()
            except Exception as error:
                if not isinstance(error, PhantombaseError):
                    _log.exception("internal_error")
                self._news.put(partial(failed or self._upkeep_failed, table, error))
            else:
                self._news.put(partial(then, table, found))

    def _serve(self, table: str, every_s: float) -> tuple[ServiceDone, ...]:
        """Tables wait here for a thread; once the daemon is stopped, none is served any more."""
        return () if self._is_stopping() else self._served[table].serve(every_s, self._is_stopping)

    def _is_stopping(self) -> bool:
        return self._stop is not None

    def _timed_snapshot(self, table: str, snapshot: Callable[[], object]) -> None:
        """Takes a snapshot and updates the mean duration: an estimate, which concurrent threads may overwrite."""
        began = time.monotonic()
        self._upkeep(table, snapshot, self._snapshot_taken)
        self._snapshot_s += (time.monotonic() - began - self._snapshot_s) * _LATEST

    # --- changes of the state, in the loop's thread --------------------------------------------------------------

    def _change(self, table: str, **fields: object) -> None:
        self._states[table] = replace(self._states[table], **fields)  # type: ignore[arg-type]

    def _snapshot_taken(self, table: str, found: object) -> None:
        assert isinstance(found, SeenTable)
        now = self._clock()
        self.summary.problems.pop(table, None)
        pending = tuple(_on_clock(p, now - clock_ms()) for p in found.pending)
        self._states[table] = self._states[table].after_snapshot(pending, found.claimed, now, self._poll_ms)
        self._change(table, due=found.due and self._stop is None, available=self._served[table].claims.available)
        parked = sum(isinstance(p.readiness, Parked) for p in found.pending)
        self._observer.snapshot_taken(table, len(found.pending), parked, found.oldest_s)
        self._observer.trouble(table, None)

    def _requested(self, table: str, found: object) -> None:
        assert isinstance(found, Scheduled)
        if found.instant is not None:
            _log.info("requested", table=table, instant=found.instant, why=found.why)
        self._change(table, busy=False)
        self._snapshot_by(table, 0)

    def _swept(self, table: str, _: object) -> None:
        self._change(table, busy=False, sweep_at=self._clock() + round(self._rules.sweep_s * 1000))

    def _services_ran(self, table: str, found: object) -> None:
        assert isinstance(found, tuple)
        for done in found:
            self._observer.served(table, done)
            if done.failed or done.instants or done.files:
                self.summary.services.append((table, done))
        after = _NEVER_MS if self._rules.once else self._clock() + round(self._rules.services_s * 1000)
        self._change(table, serving=False, serve_at=after)

    def _services_failed(self, table: str, error: Exception) -> None:
        """The services could not begin."""
        _log.warning("services_failed", table=table, error=str(error))
        self.summary.problems[table] = str(error)
        self._services_ran(table, ())

    def _upkeep_failed(self, table: str, error: Exception) -> None:
        if self.summary.problems.get(table) != str(error):
            _log.warning("table_trouble", table=table, error=str(error))
        self.summary.problems[table] = str(error)
        self._observer.trouble(table, str(error))
        self._states[table] = self._states[table].after_trouble(self._clock(), self._poll_ms)

    def _begun(self, table: str, instant: str) -> None:
        requested = self._states[table].requested_ms(instant)
        self._observer.started(table, None if requested is None else max(0, clock_ms() - requested) / 1000)

    def _suspend(self, table: str, instant: str) -> None:
        self._states[table] = self._states[table].suspend(instant)
        self._observer.suspend(table)
        if self._stop is not None:
            self._work[table, instant].stop("the end of its daemon")

    def _resume(self, table: str, instant: str) -> None:
        if instant in self._states[table].suspended:
            self._states[table] = self._states[table].resume(instant)
            self._observer.resumed(table)

    def _wants_slot(self, table: str, instant: str) -> None:
        self._states[table] = self._states[table].wants_slot(instant)

    def _ended(self, table: str, instant: str, work: RunningWork, ended: Ended) -> None:
        del self._work[table, instant]
        read = None if ended.done is None else ended.done.bytes_read
        self._use.end(self._states[table].pool, (table, instant), read, self._clock())
        self._resume(table, instant)
        state = self._states[table] = self._states[table].end(instant)
        if ended.claimed:
            self._change(table, claimed=state.claimed | {instant})
        elif ended.unknown:
            self._postpone(table, instant)
        elif ended.error is not None:
            self._failed(table, instant, ended.error)
        else:
            gone = ended.done_elsewhere | {instant}
            self._change(table, pending=tuple(p for p in state.pending if p.instant not in gone))
            self._postpone(table, instant)  # a restore may make it pending again: then it must not be tried in a loop
        if ended.done is not None:
            self.summary.done.append((table, ended.done))
        if work.held is not None:
            self._observer.finished(table, ended.done)
        if not self._states[table].is_startable(self._clock()):
            self._snapshot_by(table, 0)

    def _failed(self, table: str, instant: str, error: Exception) -> None:
        weight = classify(error)
        self._postpone(table, instant)
        if weight is not FailureClass.NOTHING:
            self._observer.failed(table)
            self.summary.failed.append((table, instant, str(error)))
        if isinstance(error, SparkError) and self._spark_is_gone():
            self._fatal = error
            self._stopped(Stop.HAND_OVER)

    def _postpone(self, table: str, instant: str) -> None:
        """Does not try the instant for a while. A daemon that runs once never tries it again, or it would never end."""
        until = _NEVER_MS if self._rules.once else self._clock() + round(self._retry.backoff_s * 1000)
        self._change(table, postponed={**self._states[table].postponed, instant: until})

    def _assigned(self, tables: Mapping[str, Assigned], members: int) -> None:
        self._use.members = members
        for name in self._states.keys() - tables.keys():
            self._change(name, leaving=True)
            self._leaving.add(name)
        for name, one in tables.items():
            if name not in self._states:
                self._served[name], self._states[name] = one.served, TableState(pool=one.pool)
            elif name in self._leaving:
                self._leaving.discard(name)
                self._change(name, leaving=False)
        self._let_go()

    def _let_go(self) -> None:
        """Removes the tables that are not served any more and have no work in progress."""
        for name in [n for n in self._leaving if self._states[n].idle]:
            self._leaving.discard(name)
            del self._states[name]
            self._served.pop(name).close()
            self.summary.problems.pop(name, None)
            self._observer.forget(name)

    def _show(self, now: int) -> None:
        if self._leaving:
            self._let_go()
        if now < self._show_at:
            return
        self._show_at = now + _SHOW_MS
        self.pools = self._use.shown(now, clock_ms())
        for one in self.pools:
            self._observer.pool(one)

    def _snapshot_by(self, table: str, moment: int) -> None:
        if table in self._states:  # else a doorbell or claim of a table that is not served any more
            self._change(table, snapshot_at=min(self._states[table].snapshot_at, moment))

    def _echo(self, table: str) -> None:
        if table in self._states and not self._states[table].is_startable(self._clock()):
            self._snapshot_by(table, self._clock() + round(_ECHO_S * 1000))

    def _session_changed(self) -> None:
        for (table, instant), work in self._work.items():
            if work.held is not None and work.held.lost and not work.limit.closed:
                _log.warning("claim_lost", table=table, instant=instant)
                work.stop("the loss of its claim")
        for name, served in self._served.items():
            self._observer.zookeeper(served.claims.available)
            self._change(name, available=served.claims.available)
            if served.claims.available:
                self._snapshot_by(name, 0)

    def _stopped(self, how: Stop) -> None:
        self._stop = how
        _log.info("stopping", how=how.value, running=len(self._work))
        for (table, instant), work in self._work.items():
            if how is Stop.HAND_OVER or instant in self._states[table].suspended:
                work.stop("the end of its daemon")

    @property
    def _poll_ms(self) -> int:
        return round(self._rules.poll_s * 1000)
