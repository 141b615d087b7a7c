"""The next actions of a daemon, by the state of its tables, its own work and the clock (no I/O).

    relist      list a table's timeline: every `poll_s`, at rest every `rest_s`; after the doorbell rang or a claim
                changed
    request     request a compaction under the table lock (daemons with --schedule): after a snapshot found one due, or
                at the latest moment for a goal of freshness; while no plan of the table waits
    sweep       finish what other compactors left at completed instants: at the start, then every `sweep_s`
    serve       run the services of a table, concurrently with all else: every `services_s`; with `once`, after all else
    take        claim an instant and execute it: while fewer than `max_concurrent` are at work
    resume      continue an instant that has waited for writes and held no slot since: before any `take`

Slots are shared by weight among the shares of pools (`pools`). In a share tables take turns: first the table with the
fewest instants in progress here, then the latest against its goal of freshness or SLO, then the one that was served
longest ago. Under a budget the work with the greatest benefit for its cost comes first, see `fleet.budget`.
Within a table the earliest instant comes first, or the one with the most log bytes. If other daemons claim instants of
the same table, a daemon picks at random among the first few, so that not all of them try the same instant; among more
where others are often faster, as with work of milliseconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import nsmallest
from itertools import islice

from phantombase.timeline.option import check_above_zero, check_least, option
from phantombase.timeline.planning.options import Pace, batch_bytes, latest_starts

from ..attempt.failures import Waits
from ..fleet.budget import Budget, unit_of
from ..fleet.pools import QuotaUsage
from .table_state import DaemonOrder, SeenLag, TableState, in_order

UPKEEP_LEAST = 16
"""The least number of snapshots and requests at a time."""
_SWEEPS = 8
"""The most sweeps at a time: with the report that follows, one takes as long as tens of snapshots of an idle table."""
_REST_POLLS, _REST_MOST_S = 6, 60.0
"""A table at rest is listed at each such poll, if these are not further apart."""
_USUAL_SLO_S = 3600.0
"""The SLO of tables without one, where other tables have one or a goal of freshness."""


class Stop(Enum):
    """How a daemon stops. In both cases it claims no more instants."""

    FINISH = "finish"
    """Instants in progress are completed, except those that wait for writes: they are handed over."""
    HAND_OVER = "hand-over"
    """Staging is stopped; another daemon adopts the finished file slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Options of these decisions; times in seconds."""

    max_concurrent: int = option(1, "how many instants are executed at a time", least=1)
    order: DaemonOrder = option(
        DaemonOrder.EARLIEST, "which pending instant comes first: the earliest, or the one with the most log bytes"
    )
    budget: str | None = option(
        None,
        "the most that work takes in an hour, on average: like 2core-hours, or 200g read and written; the daemons of a "
        "fleet share it. The greatest benefit for its cost comes first",
        metavar="AMOUNT",
    )
    poll_s: float = option(
        10.0,
        "how often each table's timeline is listed; at rest a sixth as often, if that is at most a minute",
        flag="poll_interval",
        least=0.1,
    )
    sweep_s: float = option(300.0, "how often a table is searched for what other compactors left at completed instants")
    services: bool = option(False, "run the services of the tables")
    services_s: float = option(300.0, "how often the services of a table run", flag="services_interval", least=1)
    once: bool = option(False, "end when nothing more can be done now")

    def __post_init__(self) -> None:
        check_least(self, {"max_concurrent": 1})
        check_above_zero(self, "poll_s", "sweep_s", "services_s")
        if self.budget is not None:
            Budget.parse(self.budget)

    @property
    def rest_s(self) -> float:
        """How often the timeline of a table at rest is listed."""
        return max(self.poll_s, min(_REST_POLLS * self.poll_s, _REST_MOST_S))


@dataclass(frozen=True, slots=True)
class OfTable:
    """An action or event of a table."""

    table: str


@dataclass(frozen=True, slots=True)
class OfInstant(OfTable):
    """An action or event of an instant."""

    instant: str


class Relist(OfTable):
    """List the table's timeline again."""


@dataclass(frozen=True, slots=True)
class Request(OfTable):
    """Request a compaction of the table. `pace`: for its goal of freshness."""

    pace: Pace | None = None


class Sweep(OfTable):
    """Finish what other compactors left at completed instants of the table."""


class Serve(OfTable):
    """Run the services of the table."""


class Take(OfInstant):
    """Claim an instant and execute it."""


class Resume(OfInstant):
    """Continue an instant that was suspended to wait for writes."""


Action = Relist | Request | Sweep | Serve | Take | Resume


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSteps:
    """The actions to do now, then the longest wait for events in seconds. `ended`: the daemon has no work left."""

    actions: tuple[Action, ...] = ()
    wait_s: float = 0.0
    ended: bool = False


@dataclass(slots=True)
class Resting:
    """The tables on which nothing can be due before some moment: of thousands of idle ones, a turn compares each with
    what is known of it, and no more. `until`: when the first of them wakes, `by_goal`: some have a goal of freshness,
    as of the last turn."""

    until: float = math.inf
    by_goal: bool = False
    _known: dict[str, tuple[TableState, int | None]] = field(default_factory=dict)

    def awake(self, tables: Mapping[str, TableState], now_ms: int, rules: Rules, most: int) -> Mapping[str, TableState]:
        """The other tables. Of those that need no more than a snapshot the `most` urgent ones, and few of those that
        need no more than a sweep, since no more can begin in a turn: thousands of them may be behind."""
        known, until, found = self._known, math.inf, dict[str, TableState]()
        due, sweeps = list[tuple[int, str]](), list[tuple[int, str]]()
        if len(known) > len(tables):
            known = self._known = {name: one for name, one in known.items() if name in tables}
        for name, table in tables.items():
            one = known.get(name)
            if one is None or one[0] is not table:
                one = known[name] = (table, table.rests_until(rules.services))
                self.by_goal = self.by_goal or table.lag is not None
            at = one[1]
            if at is not None and at > now_ms:
                until = min(until, at)
            else:
                found[name] = table
                if at is not None and not (rules.once or (rules.services and table.serve_at <= now_ms)):
                    if table.snapshot_at <= now_ms:
                        due.append((table.snapshot_at, name))
                    elif table.available:
                        sweeps.append((table.sweep_at, name))
        self.until = until
        for _, name in (*sorted(due)[most:], *sorted(sweeps)[_SWEEPS:]):
            del found[name]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How pools share the slots: their use, and the ms since the epoch, to which their hours refer. `upkeeps`: the most
    snapshots and requests at a time, the most urgent first. `resting`: the tables of the daemon that are left
    out, with nothing to do, waiting or running."""

    use: QuotaUsage
    epoch_ms: int
    upkeeps: int = UPKEEP_LEAST
    resting: Resting = field(default_factory=Resting)


def next_steps(
    tables: Mapping[str, TableState],
    stop: Stop | None,
    now_ms: int,
    rules: Rules,
    pick: Callable[[int], int],
    sharing: Sharing,
) -> NextSteps:
    """The next actions. `stop`: None while the daemon must continue. `pick(n)`: a random number below n."""
    running = sum(len(t.running) for t in tables.values())
    if stop is not None:
        ended = running == 0 and not any(t.busy or t.serving for t in tables.values())
        return NextSteps(ended=ended, wait_s=rules.poll_s)
    closed = {
        pool.match for pool in sharing.use.pools.all if pool.hours is not None and not pool.hours.hold(sharing.epoch_ms)
    }
    again = running > 0 or not rules.once
    paces = _paces(tables, now_ms, sharing.epoch_ms, rules)
    actions = _upkeeps(tables, closed, paces, now_ms, sharing.upkeeps, again)
    free = rules.max_concurrent - sum(t.slots for t in tables.values())
    waited = (Resume(name, i) for name, t in tables.items() for i in t.resumable)
    resumed = sorted(waited, key=lambda r: (r.instant, r.table))[: max(0, free)]
    takes = _takes(tables, free - len(resumed), now_ms, rules, pick, sharing)
    rests = all(t.seen and not t.busy and not t.due for t in tables.values())
    at_rest = not actions and not takes and running == 0 and rests
    serves = _serves(tables, closed, now_ms) if rules.services and (at_rest or not rules.once) else []
    if rules.once and at_rest and not serves and not any(t.serving for t in tables.values()):
        return NextSteps(ended=True)
    wait_s = 0.0 if takes else min(_wait_s(tables, now_ms, rules), (sharing.resting.until - now_ms) / 1000)
    return NextSteps(actions=(*actions, *serves, *resumed, *takes), wait_s=wait_s)


def _paces(tables: Mapping[str, TableState], now_ms: int, epoch_ms: int, rules: Rules) -> dict[str, Pace]:
    """The tables for whose goals of freshness a plan must be requested now, and at which pace: all that waits or runs
    here, or has rows for a plan, needs a slot before the goal of its oldest row. While instants wait for slots, plans
    are of urgent file groups only. None is requested before a good snapshot follows the last plan or trouble."""
    slots, jobs, asking = rules.max_concurrent, list[tuple[float, float]](), list[tuple[str, SeenLag, int]]()
    waiting = 0
    for name, table in tables.items():
        lag = table.lag
        if lag is None or table.leaving:
            continue
        run_s = table.run_s
        for began in table.began.values():
            rest_s = max(run_s - (now_ms - began) / 1000, 0.1 * run_s)
            jobs.append((epoch_ms / 1000 + rest_s, rest_s))
        if table.is_startable(now_ms):
            waiting += 1
            jobs.append(((lag.oldest_ms or epoch_ms) / 1000 + lag.goal_s, run_s))
        elif lag.free_ms is not None and table.available and table.is_current:
            asking.append((name, lag, len(jobs)))
            jobs.append((lag.free_ms / 1000 + lag.goal_s, run_s))
    starts = latest_starts(jobs, slots) if asking else []
    is_full = waiting + sum(t.slots for t in tables.values()) >= slots
    # A table over its goal has always work, which may take a slot just before another table's plan is due.
    over_s = max((run_s for deadline, run_s in jobs if deadline < epoch_ms / 1000), default=0.0) / slots
    found = dict[str, Pace]()
    for name, lag, number in asking:
        table, (deadline, _), start = tables[name], jobs[number], starts[number] - over_s
        if epoch_ms / 1000 < start - rules.poll_s or now_ms < table.asks_at:
            continue
        most = batch_bytes(table.bytes_s, lag.goal_s)
        found[name] = Pace(
            lead_s=deadline - start + rules.poll_s,
            urgent_only=is_full,
            max_bytes=most if lag.source_bytes > most else None,
        )
    return found


def _upkeeps(
    tables: Mapping[str, TableState], closed: set[str], paces: Mapping[str, Pace], now_ms: int, most: int, again: bool
) -> list[Action]:
    """The most urgent upkeep actions. `most`: how many snapshots and requests run at a time; sweeps have a number of
    their own, so that neither waits for all of the other. `again`: see `_upkeep`."""
    each = (_upkeep(name, t, closed, paces.get(name), now_ms, again) for name, t in tables.items())
    found = [one for one in each if one is not None]
    busy = sum(t.busy for t in tables.values())
    sweeping = sum(t.sweeping for t in tables.values())
    sweeps = [one for one in found if isinstance(one[1], Sweep)]
    if sweeps:
        found = [one for one in found if not isinstance(one[1], Sweep)]
    first = (
        nsmallest(most - busy + sweeping, found, key=_urgency),
        nsmallest(_SWEEPS - sweeping, sweeps, key=_urgency),
    )
    return [action for of in first for _, action in of]


def _urgency(one: tuple[tuple[int, int], Action]) -> tuple[int, int]:
    return one[0]


def _upkeep(
    name: str, table: TableState, closed: set[str], pace: Pace | None, now_ms: int, again: bool
) -> tuple[tuple[int, int], Action] | None:
    """What is due on a table, with its urgency. `again`: also what time alone makes due. A daemon with `once` would
    never end if a round took longer than `poll_s`."""
    if table.busy or table.leaving:
        return None
    if (table.due or pace is not None) and table.pool.match not in closed:
        return (0, 0), Request(name, pace)
    if now_ms >= table.snapshot_at and (again or table.snapshot_at == 0):
        return (1, table.snapshot_at), Relist(name)
    swept = now_ms >= table.sweep_at and (again or table.sweep_at == 0)
    return ((2, table.sweep_at), Sweep(name)) if swept and table.available else None


def _serves(tables: Mapping[str, TableState], closed: set[str], now_ms: int) -> list[Serve]:
    return [
        Serve(name)
        for name, t in tables.items()
        if t.seen
        and t.available
        and not (t.serving or t.leaving or t.troubles)
        and now_ms >= t.serve_at
        and t.pool.match not in closed
    ]


def _takes(
    tables: Mapping[str, TableState],
    slots: int,
    now_ms: int,
    rules: Rules,
    pick: Callable[[int], int],
    sharing: Sharing,
) -> list[Take]:
    """One instant for each free slot; at most one per table, so that a failed claim is known before the next one. Also
    at most one for each pool with a quota: what it uses is known in the next turn."""
    use, taken, limited = sharing.use, list[Take](), set[str]()
    may_begin = {pool.match: not use.why_not(pool, now_ms, sharing.epoch_ms) for pool in use.pools.all}
    shares: dict[str, list[str]] = {}
    for name, t in tables.items():
        if t.available and not t.leaving and t.is_startable(now_ms) and may_begin[t.pool.match]:
            shares.setdefault(t.pool.share, []).append(name)
    spent = use.turn(shares, now_ms)
    if slots <= 0:
        return []
    ranked = {
        share: sorted(names, key=_turn(share, tables, now_ms, rules.order, sharing), reverse=True)
        for share, names in shares.items()
    }
    while ranked and len(taken) < slots:
        share = min(ranked, key=lambda one: (spent[one], one))
        name = ranked[share].pop()
        if not ranked[share]:
            del ranked[share]
        pool = tables[name].pool
        instant = _choose(tables[name], now_ms, rules.order, pick)
        if pool.match in limited or not use.fits(pool, tables[name].log_bytes(instant), now_ms):
            continue
        taken.append(Take(name, instant))
        if use.budget_of(pool) is not None:
            break  # what is left then is known in the next turn
        spent[share] += use.expected(pool)
        if pool.quota is not None or pool.bytes_per_hour is not None:
            limited.add(pool.match)
    return taken


def _turn(
    share: str, tables: Mapping[str, TableState], now_ms: int, order: DaemonOrder, sharing: Sharing
) -> Callable[[str], tuple[float, float, int, str]]:
    """The order of the tables of a share. Where only some of its pools have a budget, that is compared, too."""
    by_lateness = any(pool.slo_s is not None for pool in sharing.use.pools.all)
    by_lateness = by_lateness or sharing.resting.by_goal or any(table.lag is not None for table in tables.values())
    use = sharing.use
    budgets = [one for pool in use.pools.all if pool.share == share and (one := use.budget_of(pool)) is not None]
    if budgets:
        unit = unit_of(budgets)

        def by_benefit(name: str) -> tuple[float, float, int, str]:
            table = tables[name]
            one = next(iter(in_order(table, now_ms, order)))
            first, key, *_ = table.work(name, one, now_ms, sharing.epoch_ms).rank(unit)
            return float(first), key, table.served, name

        return by_benefit

    def key(name: str) -> tuple[float, float, int, str]:
        table = tables[name]
        slo_s = table.pool.slo_s or _USUAL_SLO_S
        late = table.lateness(now_ms, sharing.epoch_ms, slo_s) if by_lateness else 0.0
        return len(table.running), -late, table.served, name

    return key


def _choose(table: TableState, now_ms: int, order: DaemonOrder, pick: Callable[[int], int]) -> str:
    """The first instant by the order. If other daemons hold claims, one of the first few: two more for each claim. If
    they are often faster, one of more (`TableState.spread_by`)."""
    first = list(islice(in_order(table, now_ms, order), 1 + 2 * len(table.claimed) + table.spread))
    return first[pick(len(first))].instant


def _wait_s(tables: Mapping[str, TableState], now_ms: int, rules: Rules) -> float:
    """The time until the next action is due; an event ends the wait earlier."""
    moments = [m for t in tables.values() if not t.busy for m in (t.snapshot_at, t.sweep_at)]
    moments += [t.serve_at for t in tables.values() if rules.services and not t.serving]
    moments += [p.readiness.until_ms for t in tables.values() for p in t.pending if isinstance(p.readiness, Waits)]
    moments += [until for t in tables.values() for until in t.postponed.values()]
    return min(rules.poll_s, min((m - now_ms for m in moments if m > now_ms), default=math.inf) / 1000)
