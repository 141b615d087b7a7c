"""What a daemon knows about a table, and how events change it (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from phantombase.timeline.planning.options import batch_bytes, estimated_s
from phantombase.timeline.view.view import OldestRow

from ..attempt.failures import Readiness, Ready, Waits
from ..fleet.budget import USUAL, Costs, Gain, Spent, WaitingWork, lateness
from ..fleet.pools import Pool

_KEPT, _LEARN = 5, 0.3
"""How many runs are kept, and the weight of the newest rate in the mean."""
_SPREAD_MAX = 256
_BACKOFF_MAX_MS = 300_000
"""The longest wait for the next snapshot of a table in trouble, if polls are not further apart."""


class DaemonOrder(Enum):
    """Which pending instant of a table is claimed first."""

    EARLIEST = "earliest"
    LARGEST = "largest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A pending instant. `log_bytes`: only if order or pool need it; `gain`: only if there is a budget. `requested_ms`:
    since the epoch, None: made up."""

    instant: str
    requested_ms: int | None = None
    readiness: Readiness = field(default_factory=Ready)
    log_bytes: int = 0
    gain: Gain | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLag:
    """The rows of a table in no base file, as of a snapshot. `goal_s`: how long they may wait. `oldest`: the oldest of
    them; `oldest_ms`, `free_ms`: when it, and the oldest one that a new plan can take, was written, since the epoch;
    None without any. `source_bytes`: what a plan of all reads. `runs`: how long the last compactions took, in seconds.
    `writer`: a pending write that prevents a plan. `held`: what else holds all plans of the table, in words."""

    goal_s: float
    oldest: OldestRow | None = None
    oldest_ms: int | None = None
    free_ms: int | None = None
    source_bytes: int = 0
    runs: tuple[float, ...] = ()
    writer: str | None = None
    held: str | None = None

    def is_over(self, epoch_ms: int) -> bool:
        """Whether the goal is missed."""
        return self.oldest_ms is not None and epoch_ms - self.oldest_ms >= self.goal_s * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTable:
    """What a snapshot found: the pending instants, earliest first, the claimed instants, and whether a plan is due.
    `oldest_s`: age of the oldest pending instant in seconds, see `Clock.oldest`. `parked`: the clusterings that daemons
    plan were parked when the services ran last. `paused`: a person has paused services of the
    table; of one with nothing to do, as far as is known. `lag`: where there is a goal of freshness, and its state is
    known. `costs`: see `fleet.budget`. `plan`: what a plan that is due would gain, if that is asked for. `before`: what
    work took in the hour before the daemon began; of the first snapshot under a budget. `rests`: there is nothing to
    do, and there was no write for a while."""

    pending: tuple[Pending, ...]
    claimed: frozenset[str]
    due: bool
    oldest_s: float | None
    parked: bool = False
    paused: bool = False
    lag: SeenLag | None = None
    costs: Costs = USUAL
    plan: Gain | None = None
    before: Spent = (0.0, 0.0)
    rests: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """What the daemon knows about a table. Times in ms of the loop's clock. `busy`: a snapshot, request or sweep
    runs, `sweeping`: it is a sweep; `rung`: since it began, the doorbell has rung; `serving`: its services run.
    `claimed`: instants that other processes had claimed at the last snapshot. `running`: instants in progress here;
    of these, `suspended` wait for writes without a slot, and `resumable` have waited and ask for a slot.
    `postponed`: instants that must not be tried before the given time. `seen`: a snapshot was tried. `served`: the
    number of the last take on this table, counted over all tables. `troubles`: the number of failed snapshots since
    the last good one. `leaving`: no new work begins on the table. `lag`: of the last snapshot. `runs`, `bytes_s`:
    how long the last compactions took here, and the bytes that they read in a second; `run_s`: how long the next
    one will take. `taken_ms`: of the last take while the table was over its goal, since the epoch. `began`: by
    instant in progress. `asks_at`: when a plan may be requested again. `spread`: among how many more of the first
    instants it picks, since other daemons were faster. `costs`: of its work, as of the last snapshot."""

    pool: Pool = field(default_factory=Pool)

    pending: tuple[Pending, ...] = ()
    claimed: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    suspended: frozenset[str] = frozenset()
    resumable: frozenset[str] = frozenset()
    postponed: Mapping[str, int] = field(default_factory=dict)
    available: bool = True
    due: bool = False
    busy: bool = False
    sweeping: bool = False
    rung: bool = False
    serving: bool = False
    seen: bool = False
    snapshot_at: int = 0
    sweep_at: int = 0
    serve_at: int = 0
    served: int = 0
    troubles: int = 0
    leaving: bool = False
    lag: SeenLag | None = None
    runs: tuple[float, ...] = ()
    bytes_s: float | None = None
    run_s: float = 0.0
    taken_ms: int = 0
    began: Mapping[str, int] = field(default_factory=dict)
    asks_at: int = 0
    spread: int = 0
    costs: Costs = USUAL

    def startable(self, now_ms: int) -> Iterator[Pending]:
        """The pending instants that may be claimed now. An iterator: of thousands, only the first few are needed."""
        return (
            p
            for p in self.pending
            if p.instant not in self.claimed
            and p.instant not in self.running
            and self.postponed.get(p.instant, 0) <= now_ms
            and (isinstance(p.readiness, Ready) or (isinstance(p.readiness, Waits) and p.readiness.until_ms <= now_ms))
        )

    def is_startable(self, now_ms: int) -> bool:
        return next(self.startable(now_ms), None) is not None

    def after_snapshot(
        self, pending: tuple[Pending, ...], claimed: frozenset[str], now_ms: int, poll_ms: int
    ) -> TableState:
        """The state after a snapshot: what the snapshot found replaces what was known."""
        there = {p.instant for p in pending}
        return replace(
            self,
            pending=pending,
            claimed=claimed - self.running,
            postponed={i: t for i, t in self.postponed.items() if i in there and t > now_ms},
            busy=False,
            seen=True,
            troubles=0,
            snapshot_at=0 if self.rung else now_ms + poll_ms,
            rung=False,
        )

    def snapshot_by(self, moment_ms: int) -> TableState:
        """The next snapshot is taken by this time at the latest."""
        return replace(self, snapshot_at=min(self.snapshot_at, moment_ms))

    def after_trouble(self, now_ms: int, poll_ms: int) -> TableState:
        """Nothing is known after a failed snapshot, and no instant starts. Each failure doubles the next wait."""
        wait_ms = min(poll_ms << min(self.troubles, 16), max(poll_ms, _BACKOFF_MAX_MS))
        return replace(
            self,
            pending=(),
            busy=False,
            sweeping=False,
            seen=True,
            troubles=self.troubles + 1,
            snapshot_at=now_ms + wait_ms,
            sweep_at=max(now_ms + wait_ms, self.sweep_at),
        )

    def begin(self, instant: str, served: int, now_ms: int, epoch_ms: int) -> TableState:
        began = {**self.began, instant: now_ms}
        taken_ms = epoch_ms if self.lag is not None and self.lag.is_over(epoch_ms) else self.taken_ms
        return replace(self, running=self.running | {instant}, served=served, taken_ms=taken_ms, began=began)

    @property
    def slots(self) -> int:
        """How many of the instants in progress hold a slot."""
        return len(self.running) - len(self.suspended)

    def suspend(self, instant: str) -> TableState:
        """The instant waits for writes, and releases its slot."""
        return replace(self, suspended=self.suspended | {instant})

    def wants_slot(self, instant: str) -> TableState:
        """The writes that the instant waited for have ended; it asks for a slot."""
        return replace(self, resumable=self.resumable | {instant})

    def resume(self, instant: str) -> TableState:
        return replace(self, suspended=self.suspended - {instant}, resumable=self.resumable - {instant})

    def end(self, instant: str) -> TableState:
        began = {one: ms for one, ms in self.began.items() if one != instant}
        return replace(self.resume(instant), running=self.running - {instant}, began=began)

    def spread_by(self, *, is_missed: bool) -> TableState:
        """The state after an instant was completed here, or another daemon had it (`is_missed`). Work of milliseconds
        is missed often: a wide choice delays no instant for long then. Work that takes longer is hardly missed."""
        found = 2 * self.spread + 2 if is_missed else self.spread - 1
        return replace(self, spread=min(max(found, 0), _SPREAD_MAX))

    def learned(self, run_s: float, bytes_read: int) -> TableState:
        """The state after a compaction was completed here."""
        bytes_s = bytes_read / max(run_s, 0.001)
        known = bytes_s if self.bytes_s is None else self.bytes_s + _LEARN * (bytes_s - self.bytes_s)
        return replace(self, runs=(*self.runs, run_s)[-_KEPT:], bytes_s=known)

    def with_lag(self, lag: SeenLag | None) -> TableState:
        """The state with the lag of a snapshot, and how long the next compaction will take: by those here, or else by
        those on the timeline; and by its bytes, of which one plan takes a batch."""
        if lag is None:
            return self if self.lag is None else replace(self, lag=None)
        by_runs = estimated_s(self.runs or lag.runs, lag.goal_s)
        size = min(lag.source_bytes, batch_bytes(self.bytes_s, lag.goal_s))
        by_bytes = 0.0 if self.bytes_s is None else estimated_s((size / self.bytes_s,), lag.goal_s)
        return replace(self, lag=lag, run_s=min(max(by_runs, by_bytes), lag.goal_s))

    def requested_ms(self, instant: str) -> int | None:
        """When the instant was requested, since the epoch."""
        return next((p.requested_ms for p in self.pending if p.instant == instant), None)

    def log_bytes(self, instant: str) -> int:
        """The bytes of the instant, 0 where they are not known."""
        return next((p.log_bytes for p in self.pending if p.instant == instant), 0)

    def lateness(self, now_ms: int, epoch_ms: int, slo_s: float) -> float:
        """The age of the earliest instant that may be claimed, divided by the SLO: 1 and more is overdue. With a goal
        of freshness: the age of its oldest row, divided by the goal. Of a table over its goal only the time since its
        last take counts: one with the rows of a year does not keep the others from their turn."""
        if self.lag is not None and self.lag.oldest_ms is not None:
            since_ms = max(self.lag.oldest_ms, self.taken_ms if self.lag.is_over(epoch_ms) else 0)
            return max(0.0, (epoch_ms - since_ms) / (self.lag.goal_s * 1000))
        asked = next((p.requested_ms for p in self.startable(now_ms)), None)
        return 0.0 if asked is None else max(0.0, (epoch_ms - asked) / (slo_s * 1000))

    def work(self, name: str, one: Pending, now_ms: int, epoch_ms: int) -> WaitingWork:
        """The work on a pending instant, for a budget. `name`: of the table."""
        gain = one.gain or Gain(log_files=0, log_bytes=one.log_bytes, read_bytes=one.log_bytes)
        waits_s = 0.0 if one.requested_ms is None else max(0.0, (epoch_ms - one.requested_ms) / 1000)
        late, goal = lateness(waits_s, self.pool.slo_s), False
        if self.lag is not None and self.lag.oldest_ms is not None:
            by_goal = self.lateness(now_ms, epoch_ms, self.lag.goal_s) + self.run_s / self.lag.goal_s
            late, goal = max(late, by_goal), by_goal >= late
        return WaitingWork(
            table=name, instant=one.instant, gain=gain, costs=self.costs, waits_s=waits_s, late=late, goal=goal
        )

    @property
    def is_current(self) -> bool:
        """Whether the last snapshot was a good one, and nothing has asked for another one since: after a plan, only the
        next one tells which rows are left."""
        return self.troubles == 0 and self.snapshot_at > 0

    def rests_until(self, services: bool) -> int | None:
        """When a snapshot, a sweep or services are due on the table next; nothing else can be before, and it counts for
        no other table. None: something else is, or is in progress. `services`: these run."""
        if self.pending or self.postponed or self.due or not (self.seen and self.idle) or self.leaving:
            return None
        if self.lag is not None and (self.lag.oldest_ms is not None or self.lag.free_ms is not None):
            return None
        return min(self.snapshot_at, self.sweep_at, self.serve_at if services else self.sweep_at)

    @property
    def idle(self) -> bool:
        """Whether no work is in progress here."""
        return not (self.busy or self.serving or self.running)


def in_order(table: TableState, now_ms: int, order: DaemonOrder) -> Iterable[Pending]:
    """What may be claimed of a table now, as it is taken."""
    ones = table.startable(now_ms)
    return ones if order is DaemonOrder.EARLIEST else sorted(ones, key=lambda p: (-p.log_bytes, p.instant))
