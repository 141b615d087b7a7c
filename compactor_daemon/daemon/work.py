"""Work of a daemon: a compaction in a thread of its own, the events that observers hear, the summary of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Semaphore

from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.timeline import Timeline

from ..attempt.compact_or_resume import Compacted, Limit
from ..attempt.failures import FailureClass, classify
from ..fleet.claims import HeldClaim
from ..fleet.pools import Pool, PoolUsage
from ..services.serve import ServiceDone
from ..status.lag import Freshness
from .control import Served

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
