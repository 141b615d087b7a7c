"""Work of a daemon: a compaction in a thread of its own; what observers, the log and the summary of a run tell."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Semaphore

from phantombase.timeline.dashboard.verdict import Freshness
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.timeline import Timeline

from ..attempt.compact_or_resume import Compacted
from ..attempt.failures import FailureClass, Parked, classify
from ..fleet.claims import HeldClaim
from ..fleet.pools import Pool, PoolUsage
from ..services.serve import ServiceDone
from ..unit_of_work import Limit
from .control import (
    Control,
    Event,
    Moment,
    PlanRequested,
    Served,
    ServicesRan,
    SessionChanged,
    SnapshotTaken,
    UpkeepFailed,
    WorkBegan,
    WorkEnded,
    WorkSuspended,
)
from .table_state import TableState

_log = get_logger()
_SUSPENDED_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How work on an instant ended. `done`: completed here. `claimed`: another process holds the claim. `unknown`: the
    outcome of the claim is unknown. `error`: it failed. None of these: the instant was not pending any more, and
    neither are the instants `done_elsewhere`."""

    done: Compacted | None = None
    done_elsewhere: frozenset[str] = frozenset()
    claimed: bool = False
    unknown: bool = False
    error: Exception | None = None


@dataclass(slots=True, kw_only=True)
class RunningWork:
    """An instant in progress. `held`: its claim, once it is claimed. `near`: those that might be taken next, read once.
    `begun`, `suspend`, `wants_slot` are called when it is claimed, waits for writes, and asks for a slot again.
    `resumed`: gets an item when a suspended instant may continue. `suspensions`: for instants that wait."""

    served: Served
    instant: str
    near: Iterable[str]
    once: bool
    suspensions: Semaphore
    begun: Callable[[], None]
    suspend: Callable[[], None]
    wants_slot: Callable[[], None]
    held: HeldClaim | None = None
    limit: Limit = field(default_factory=Limit)
    resumed: SimpleQueue[None] = field(default_factory=lambda: SimpleQueue())
    ended: Ended | None = None

    def stop(self, why: str) -> None:
        """Stops the work, unless the compaction is decided already."""
        self.limit.close(0.0, why)

    def run(self) -> Ended:
        """Claims and executes the instant; the result is `ended`, too. Never raises: any error is in the result."""
        try:
            self.ended = self._claimed_and_executed()
        except Exception as error:
            self._note_failure(error)
            self.ended = Ended(error=error)
        return self.ended

    def _claimed_and_executed(self) -> Ended:
        served, instant = self.served, self.instant
        if done := served.done_among(instant, self.near):  # since the last snapshot: no claim is needed
            return Ended(done_elsewhere=done)
        try:
            held = served.claims.take(instant)
        except PhantombaseError as error:  # no failure of the instant
            _log.warning("claim_failed", error=str(error))
            return Ended(unknown=True)
        if held is None:
            return Ended(claimed=True)
        try:
            self.held = held
            if held.lost:
                self.stop("the loss of its claim")
            self.begun()
            return Ended(done=served.execute(instant, held, self.limit, self._suspended))
        finally:
            held.release()

    @contextmanager
    def _suspended(self) -> Iterator[bool]:
        """Work waits for writes inside: another instant may use its slot. At the end it waits for a slot again. Work
        that fails inside asks for no slot."""
        if not self.suspensions.acquire(blocking=False):
            yield False
            return
        try:
            self.suspend()
            yield not self.once
            self.wants_slot()
            while True:
                self.limit.check()
                with suppress(Empty):
                    self.resumed.get(timeout=_SUSPENDED_POLL_S)
                    return
        finally:
            self.suspensions.release()

    def _note_failure(self, error: Exception) -> None:
        weight = classify(error)
        if not isinstance(error, PhantombaseError):
            _log.exception("internal_error", exc_info=error)
        _log.warning(
            "not_compacted", error=type(error).__name__, what=str(error), counts=weight is not FailureClass.NOTHING
        )
        if weight is FailureClass.NOTHING:
            return
        try:
            self.served.failed(self.instant, error)
        except Exception as unkept:
            _log.warning("failure_not_recorded", error=str(unkept))


class Observer:
    """Ignores every event; subclasses override what they need. Tables are named by their path."""

    def snapshot_taken(
        self, table: str, pending: int, parked: int, oldest_s: float | None, paused: bool = False
    ) -> None:
        """A snapshot of a table was taken."""

    def freshness(self, table: str, found: Freshness | None) -> None:
        """The lag of a table at that snapshot; None: there is no goal, or the lag is unknown."""

    def started(self, table: str, latency_s: float | None) -> None:
        """An instant was claimed, `latency_s` after it was requested."""

    def suspend(self, table: str) -> None:
        """An instant that was started waits for writes now."""

    def resumed(self, table: str) -> None:
        """A suspended instant is in progress again, or has ended."""

    def finished(self, table: str, compacted: Compacted | None) -> None:
        """Work on an instant ended; None: it was completed already, or the work failed or was stopped."""

    def failed(self, table: str) -> None:
        """A try of an instant failed (only errors that count as failures, see `classify`)."""

    def served(self, table: str, done: ServiceDone) -> None:
        """A service ran on a table."""

    def swept(self, table: str, timeline: Timeline, pool: Pool) -> None:
        """A table was searched for what others left; called in the thread that did so. `timeline`: of its last
        snapshot."""

    def failing(self, table: str) -> None:
        """A snapshot of a table failed; called in the thread that took it."""

    def listed(self, error: str | None) -> None:
        """The tables of a root or catalog were listed; `error`: why they could not be."""

    def zookeeper(self, connected: bool) -> None:
        """The connection to ZooKeeper was made or lost."""

    def trouble(self, table: str, error: str | None) -> None:
        """The last snapshot of a table failed; None: it succeeded."""

    def pool(self, use: PoolUsage) -> None:
        """What a pool uses now."""

    def forget(self, table: str) -> None:
        """The table is not served any more."""


_KEPT = 10_000


@dataclass(slots=True)
class Summary:
    """What a daemon did: `done` (table, result) and `failed` (table, instant, error), the last ones of each.
    `services`: (table, result) of services that changed something or failed, the last ones. `problems`: by table, why
    the last snapshot of it failed. `left`: the instants still pending at the end."""

    done: deque[tuple[str, Compacted]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    failed: deque[tuple[str, str, str]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    services: deque[tuple[str, ServiceDone]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    problems: dict[str, str] = field(default_factory=dict)
    left: dict[str, tuple[str, ...]] = field(default_factory=dict)


_DIGITS = re.compile(r"\d+")
"""What changes in a reason while it stays the same."""
_SHOW_MS = 2000
"""How often the use of the pools is published."""


class Reporter:
    """Tells the log, observers and the summary of events, after they have changed the state; in the loop's thread.
    `freshness`: the lag of tables against their goals, as of their last snapshots. `pools`: what they use, at most some
    seconds old."""

    def __init__(self, observer: Observer, control: Control) -> None:
        self.summary = Summary()
        self.freshness: dict[str, Freshness] = {}
        self.pools: tuple[PoolUsage, ...] = ()
        self._show_at = 0
        self._observer, self._control = observer, control

    def tell(self, event: Event, at: Moment) -> None:
        match event:
            case SnapshotTaken(table=table, seen=seen):
                self.summary.problems.pop(table, None)
                parked = sum(isinstance(p.readiness, Parked) for p in seen.pending) + seen.parked
                self._observer.snapshot_taken(table, len(seen.pending), parked, seen.oldest_s, paused=seen.paused)
                self._observer.trouble(table, None)
                self._note_lag(table, self._control.freshness(table, at))
            case UpkeepFailed(table=table, error=error):
                if self.summary.problems.get(table) != error:
                    _log.warning("table_trouble", table=table, error=error)
                self.summary.problems[table] = error
                self._observer.trouble(table, error)
            case PlanRequested(table=table, instant=str(instant), why=why):
                _log.info("requested", table=table, instant=instant, why=why)
            case ServicesRan(table=table, error=None, done=done):
                for one in done:
                    self._observer.served(table, one)
                self.summary.services.extend((table, one) for one in done if one.failed or one.instants or one.files)
            case ServicesRan(table=table, error=str(error)):
                _log.warning("services_failed", table=table, error=error)
                self.summary.problems[table] = error
            case WorkBegan(table=table, instant=instant):
                requested = self._control.tables[table].requested_ms(instant)
                self._observer.started(table, None if requested is None else max(0, at.epoch_ms - requested) / 1000)
            case WorkSuspended(table=table):
                self._observer.suspend(table)
            case SessionChanged(available=available):
                for is_available in available.values():
                    self._observer.zookeeper(is_available)

    def ended(self, event: WorkEnded, work: RunningWork) -> None:
        done = None if work.ended is None else work.ended.done
        if done is not None:
            self.summary.done.append((event.table, done))
        if event.counts:
            self._observer.failed(event.table)
            self.summary.failed.append((event.table, event.instant, str(event.error)))
        if work.held is not None:
            self._observer.finished(event.table, done)

    def show(self, at: Moment) -> None:
        """Publishes the use of the pools, from time to time."""
        if at.now_ms >= self._show_at:
            self._show_at = at.now_ms + _SHOW_MS
            self.pools = self._control.use.shown(at.now_ms, at.epoch_ms)
            for one in self.pools:
                self._observer.pool(one)

    @property
    def trouble(self) -> str | None:
        """See `Daemon.trouble`; for any thread."""
        found = None
        for name, state in tuple(self._control.tables.items()):
            if (problem := self._trouble_of(name, state)) is None:
                return None
            found = found or problem
        return found

    def _trouble_of(self, name: str, state: TableState) -> str | None:
        if (problem := self.summary.problems.get(name)) is not None:
            return problem
        if not state.seen:
            return f"{name} has had no snapshot yet"
        return None if state.available else f"claims on {name} cannot be taken: no connection to ZooKeeper"

    def forget(self, table: str) -> None:
        """The table is not served any more."""
        self.summary.problems.pop(table, None)
        self.freshness.pop(table, None)
        self._observer.forget(table)

    def _note_lag(self, table: str, found: Freshness | None) -> None:
        self._observer.freshness(table, found)
        before, words = _reason(self.freshness.pop(table, None)), _reason(found)
        if found is not None:
            self.freshness[table] = found
            if words not in ("", before):
                _log.warning("behind_goal", table=table, lag_s=found.lag_s, goal_s=found.goal_s, why=found.why)


def _reason(found: Freshness | None) -> str:
    return "" if found is None or found.why is None else _DIGITS.sub("", found.why)
