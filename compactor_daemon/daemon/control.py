"""What a daemon knows and decides: `apply` changes its state by an event, `decide` begins the next actions (no I/O).

Events are values: the loop acts on them too, and `record` keeps them. The same events and decisions at the same moments
give the same state: a record of them can be replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from phantombase.timeline.dashboard.verdict import Freshness
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.planning.options import Pace, is_near
from phantombase.timeline.planning.schedule import Scheduled
from phantombase.timeline.terminal.text_table import plural

from ..attempt.attempt import WaitScope
from ..attempt.compact_or_resume import Compacted
from ..attempt.failures import Parked, Paused, RetryOptions, Waits
from ..fleet.budget import Spent
from ..fleet.claims import Claims, HeldClaim
from ..fleet.pools import Pool, QuotaUsage
from ..services.serve import ServiceDone
from ..status.lag import PlanState, why_behind
from ..unit_of_work import Limit
from .dispatch import (
    Action,
    NextSteps,
    OfInstant,
    OfTable,
    Relist,
    Request,
    Resting,
    Resume,
    Rules,
    Serve,
    Sharing,
    Stop,
    Sweep,
    Take,
    next_steps,
)
from .table_state import Pending, SeenTable, TableState


class Served(Protocol):
    """A table as a daemon serves it. Each method may be called from any thread, and raises errors of the tree."""

    @property
    def path(self) -> str:
        """The table's base path."""

    @property
    def claims(self) -> Claims:
        """The claims on its instants."""

    @property
    def timeline(self) -> Timeline | None:
        """Of the last snapshot; None: there was none."""

    def snapshot(self) -> SeenTable:
        """What is pending, claimed and due."""

    def request(self, pace: Pace | None = None) -> Scheduled:
        """Requests a compaction. `pace`: for the table's goal of freshness."""

    def sweep(self) -> None:
        """Finishes what other compactors left at completed instants."""

    def serve(
        self, every_s: float, stopping: Callable[[], bool], handing_over: Callable[[], bool] = lambda: False
    ) -> tuple[ServiceDone, ...]:
        """Runs the services, except those that ran less than about `every_s` ago. None begins once `stopping`. Once
        `handing_over`, a clustering stops: the next run takes over what is made."""

    def done_among(self, instant: str, near: Iterable[str] = ()) -> frozenset[str]:
        """Whether daemons have completed an instant since it was found pending: empty if not, otherwise it and those
        of `near` that they have completed, too. Others may be completed as well."""

    def execute(self, instant: str, held: HeldClaim, limit: Limit, wait_scope: WaitScope) -> Compacted | None:
        """Executes a claimed instant; None: it is not pending any more. It waits for writes inside `wait_scope`."""

    def failed(self, instant: str, error: Exception) -> None:
        """Records a failure in the table, so that every daemon sees it."""

    def close(self) -> None:
        """The daemon does not serve the table any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When an event is processed or a decision made: in ms of the loop's clock, and in ms since the epoch."""

    now_ms: int
    epoch_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A table that a daemon serves, and its pool."""

    served: Served
    pool: Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken(OfTable):
    """A snapshot of the table. `available`: its claims can be taken; the loop knows it when it processes the event."""

    seen: SeenTable
    available: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepFailed(OfTable):
    """A snapshot, request or sweep of the table failed."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequested(OfTable):
    """A request of a plan came to its end; `instant` None: nothing is due, for the reason `why`."""

    instant: str | None
    why: str


class Swept(OfTable):
    """What other compactors left at completed instants of the table is finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicesRan(OfTable):
    """The services of the table ran; `error`: why they could not begin. `spent`: what work on the table has taken since
    the last event that says so."""

    done: tuple[ServiceDone, ...] = ()
    error: str | None = None
    spent: Spent = (0.0, 0.0)


class WorkBegan(OfInstant):
    """The instant is claimed."""


class WorkSuspended(OfInstant):
    """The instant waits for writes, and releases its slot."""


class SlotWanted(OfInstant):
    """The writes that the instant waited for have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEnded(OfInstant):
    """How work on an instant ended, see `Ended`. `counts`: the error is a failure of the instant; `is_fatal`: the
    executor has ended. `spent`: as of services."""

    bytes_read: int | None = None
    done_elsewhere: frozenset[str] = frozenset()
    claimed: bool = False
    unknown: bool = False
    error: str | None = None
    counts: bool = False
    is_fatal: bool = False
    spent: Spent = (0.0, 0.0)


class DoorbellRang(OfTable):
    """A plan was requested for the table."""


class ClaimsChanged(OfTable):
    """A process took or released a claim on the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChanged:
    """The connection to ZooKeeper was made or lost. `available`: by table, whether its claims can be taken; the loop
    knows it when it processes the event."""

    available: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesAssigned:
    """The daemon serves these tables and no others. `members`: the daemons that share the quotas of bytes."""

    tables: Mapping[str, Assigned]
    members: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The daemon is to end."""

    how: Stop


Event: TypeAlias = (
    SnapshotTaken
    | UpkeepFailed
    | PlanRequested
    | Swept
    | ServicesRan
    | WorkBegan
    | WorkSuspended
    | SlotWanted
    | WorkEnded
    | DoorbellRang
    | ClaimsChanged
    | SessionChanged
    | TablesAssigned
    | Stopped
)
_NEVER_MS = 1 << 62
_ECHO_MS = 500
"""How soon a table has a snapshot after its claims changed: not at once, since many busy daemons change them often."""


def _on_clock(pending: Pending, at: Moment) -> Pending:
    """Converts the time until which an instant waits, from the machine's clock to the loop's."""
    if isinstance(waits := pending.readiness, Waits):
        return replace(pending, readiness=Waits(waits.until_ms + at.now_ms - at.epoch_ms))
    return pending


def _plan_state(pending: Pending, state: TableState, at: Moment) -> PlanState:
    if (began := state.began.get(pending.instant)) is not None or pending.instant in state.claimed:
        run_s = None if began is None else (at.now_ms - began) / 1000
        return PlanState(instant=pending.instant, state="running", run_s=run_s)
    match pending.readiness:
        case Parked(reason) | Paused(reason):
            return PlanState(instant=pending.instant, state=type(pending.readiness).__name__.lower(), why=reason)
    waits = isinstance(pending.readiness, Waits)
    return PlanState(instant=pending.instant, state="backing off" if waits else "waiting")


@dataclass(slots=True, kw_only=True)
class Control:
    """See the module. `gone`: tables that were let go since the caller last emptied the list."""

    rules: Rules
    retry: RetryOptions
    use: QuotaUsage
    tables: dict[str, TableState]
    stop: Stop | None = None
    gone: list[str] = field(default_factory=list)
    takes: int = 0
    _leaving: set[str] = field(default_factory=set)
    _resting: Resting = field(default_factory=Resting)

    def __post_init__(self) -> None:
        self.use.limit("", self.rules.budget)

    def decide(self, at: Moment, pick: Callable[[int], int], upkeeps: int) -> NextSteps:
        """The next actions, see `next_steps`; in the state they have begun. `upkeeps`: see `Sharing`."""
        self._let_go()
        tables, rules = self.tables, self.rules
        awake = self._resting.awake(tables, at.now_ms, rules, upkeeps) if self.stop is None else tables
        sharing = Sharing(use=self.use, epoch_ms=at.epoch_ms, upkeeps=upkeeps, resting=self._resting)
        steps = next_steps(awake, self.stop, at.now_ms, rules, pick, sharing)
        for action in steps.actions:
            self.tables[action.table] = self._begun(action, self.tables[action.table], at)
        return steps

    def _begun(self, action: Action, state: TableState, at: Moment) -> TableState:
        match action:
            case Take(table, instant):
                self.takes += 1
                one = next((p for p in state.pending if p.instant == instant), None)
                work = None if one is None else state.work(table, one, at.now_ms, at.epoch_ms)
                self.use.begin(state.pool, (table, instant), state.log_bytes(instant), at.now_ms, work)
                return state.begin(instant, self.takes, at.now_ms, at.epoch_ms)
            case Resume(_, instant):
                return state.resume(instant)
            case Request():
                return replace(state, busy=True, due=False)
            case Serve():
                return replace(state, serving=True)
            case Relist():
                return replace(state, busy=True)
            case Sweep():
                return replace(state, busy=True, sweeping=True)

    def apply(self, event: Event, at: Moment) -> None:
        """Changes the state by an event."""
        match event:
            case Stopped(how=how):
                self.stop = how
            case TablesAssigned():
                self._assigned({name: one.pool for name, one in event.tables.items()}, event.members)
            case SessionChanged(available=available):
                for name in available.keys() & self.tables.keys():
                    state = replace(self.tables[name], available=available[name])
                    self.tables[name] = state.snapshot_by(0) if available[name] else state
            case DoorbellRang(table=table) | ClaimsChanged(table=table) if table not in self.tables:
                pass  # it is not served any more
            case _:
                self.tables[event.table] = self._changed(event, self.tables[event.table], at)

    def _changed(self, event: Event, state: TableState, at: Moment) -> TableState:
        now, poll_ms = at.now_ms, round(self.rules.poll_s * 1000)
        match event:
            case SnapshotTaken(seen=seen, available=available):
                pending = tuple(_on_clock(p, at) for p in seen.pending)
                next_ms = round(self.rules.rest_s * 1000) if seen.rests and not seen.claimed else poll_ms
                state = state.after_snapshot(pending, seen.claimed, now, next_ms).with_lag(seen.lag)
                self.use.owes(state.pool, seen.before)
                due = seen.due and self.stop is None
                if (due, available, seen.costs) == (state.due, state.available, state.costs):
                    return state
                return replace(state, due=due, available=available, costs=seen.costs)
            case UpkeepFailed():
                return state.after_trouble(now, poll_ms)
            case PlanRequested(instant=instant):
                return replace(state, busy=False, asks_at=0 if instant else now + poll_ms).snapshot_by(0)
            case Swept():
                return replace(state, busy=False, sweeping=False, sweep_at=now + round(self.rules.sweep_s * 1000))
            case ServicesRan():
                self.use.pay(state.pool, event.spent, owed=False)
                after = _NEVER_MS if self.rules.once else now + round(self.rules.services_s * 1000)
                return replace(state, serving=False, serve_at=after)
            case WorkSuspended(instant=instant):
                self.use.suspend(state.pool, (event.table, instant))
                return state.suspend(instant)
            case SlotWanted(instant=instant):
                return state.wants_slot(instant)
            case WorkEnded():
                return self._ended(event, state, at)
            case DoorbellRang():
                return replace(state, rung=state.busy).snapshot_by(0)
            case ClaimsChanged():
                return state if state.is_startable(now) else state.snapshot_by(now + _ECHO_MS)
        assert isinstance(event, WorkBegan)
        return state

    def _ended(self, event: WorkEnded, state: TableState, at: Moment) -> TableState:
        self.use.end(state.pool, (event.table, event.instant), event.bytes_read, at.now_ms)
        self.use.pay(state.pool, event.spent, owed=True)
        began = state.began.get(event.instant, at.now_ms)
        state = state.end(event.instant)
        if event.bytes_read is not None:
            state = state.learned((at.now_ms - began) / 1000, event.bytes_read)
        if not (event.unknown or event.claimed) and event.error is None:
            done = event.done_elsewhere | {event.instant}
            state = replace(state, pending=tuple(p for p in state.pending if p.instant not in done))
            state = state.spread_by(is_missed=event.bytes_read is None)
        if event.claimed:
            state = replace(state, claimed=state.claimed | {event.instant})
        else:
            # Not tried for a while, also after a success: a restore may make it pending again, and then it must not be
            # tried in a loop. A daemon that runs once never tries it again, or it would never end.
            until = _NEVER_MS if self.rules.once else at.now_ms + round(self.retry.backoff_s * 1000)
            state = replace(state, postponed={**state.postponed, event.instant: until})
        if event.is_fatal:
            self.stop = Stop.HAND_OVER
        return state if state.is_startable(at.now_ms) else state.snapshot_by(0)

    def _assigned(self, pools: Mapping[str, Pool], members: int) -> None:
        self.use.members = members
        for name in self.tables.keys() - pools.keys():
            self.tables[name] = replace(self.tables[name], leaving=True)
            self._leaving.add(name)
        for name, pool in pools.items():
            if name not in self.tables:
                self.tables[name] = TableState(pool=pool)
            elif name in self._leaving:
                self._leaving.discard(name)
                self.tables[name] = replace(self.tables[name], leaving=False)
        self._let_go()

    def freshness(self, table: str, at: Moment) -> Freshness | None:
        """The lag of a table against its goal; None: there is no goal, or the lag is unknown."""
        state = self.tables.get(table)
        if state is None or (lag := state.lag) is None:
            return None
        lag_s = 0.0 if lag.oldest_ms is None else max(0.0, (at.epoch_ms - lag.oldest_ms) / 1000)
        row = lag.oldest
        if row is not None and row.plan is None and lag.held is not None:
            row = replace(row, held=lag.held)
        if row is None or not is_near(lag_s, lag.goal_s):
            return Freshness(lag_s=round(lag_s, 3), goal_s=lag.goal_s)
        states = tuple(self.tables.values())
        waiting = sum(one.is_startable(at.now_ms) for one in states)
        is_full = waiting and sum(one.slots for one in states) >= self.rules.max_concurrent
        slots = f"too few slots: {plural(waiting, 'table')} wait for one" if is_full else ""
        slots = self.use.why_not(state.pool, at.now_ms, at.epoch_ms) or slots
        plans = [_plan_state(one, state, at) for one in state.pending]
        why = why_behind(row, lag_s, lag.goal_s, plans, writer=lag.writer, requested=True, slots=slots)
        return Freshness(lag_s=round(lag_s, 3), goal_s=lag.goal_s, why=why)

    def _let_go(self) -> None:
        """Removes the tables that are not served any more and have no work in progress."""
        for name in [n for n in self._leaving if self.tables[n].idle]:
            self._leaving.discard(name)
            del self.tables[name]
            self.gone.append(name)
