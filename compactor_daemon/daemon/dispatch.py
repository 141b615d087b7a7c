"""What a daemon does next: a pure function of what it knows of its tables, of its own work, and of the clock (pure).

    relist      list a table's timeline: every `poll_s`, or when the doorbell rang or a claim changed
    request     schedule a compaction under the table lock (daemons with --schedule): when a look found one due
    sweep       finish what earlier daemons left behind of instants that are completed: at first, then now and then
    take        claim an instant and execute it: while fewer than `max_concurrent` are at work
    resume      let one go on that has waited for writes: it held no slot meanwhile, and comes before what is taken

Tables take turns: the one with the least work at hand first, then the one served longest ago. Within a table the
earliest instant comes first, or the one with the most log bytes. Where others claim from the same table, a daemon
picks among the first few, so that not all of them reach for the same instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from phantombase.timeline.option import check_above_zero, check_least, option

from ..state.failures import Waits
from .table_state import Pending, TableState


class Order(Enum):
    """Which pending instant of a table is claimed first."""

    EARLIEST = "earliest"
    LARGEST = "largest"


class Stop(Enum):
    """How a daemon stops: it claims nothing more, and"""

    FINISH = "finish"
    """instants at work are brought to their end, but for those that wait for writes: they are handed over."""
    HAND_OVER = "hand-over"
    """staging is stopped; another daemon adopts the finished file slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The options the decisions follow; seconds."""

    max_concurrent: int = option(1, "instants at a time", least=1)
    order: Order = option(
        Order.EARLIEST, "which pending instant first: the earliest, or the one with the most log bytes"
    )
    poll_s: float = option(10.0, "how often each table's timeline is listed", flag="poll_interval", least=0.1)
    sweep_s: float = option(300.0, "how often a table is searched for instants that were left behind")
    once: bool = option(False, "end when nothing is left that can be done now")

    def __post_init__(self) -> None:
        check_least(self, {"max_concurrent": 1})
        check_above_zero(self, "poll_s", "sweep_s")


@dataclass(frozen=True, slots=True)
class Relist:
    """List the table's timeline again."""

    table: str


@dataclass(frozen=True, slots=True)
class Request:
    """Request a compaction of the table."""

    table: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """Finish completed instants of the table that somebody left behind."""

    table: str


@dataclass(frozen=True, slots=True)
class Take:
    """Claim an instant and execute it."""

    table: str
    instant: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Let an instant go on that has waited aside."""

    table: str
    instant: str


Action = Relist | Request | Sweep | Take | Resume


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSteps:
    """What to do now; then how long to wait for news at most (seconds); `ended`: nothing is left to do, for ever."""

    actions: tuple[Action, ...] = ()
    wait_s: float = 0.0
    ended: bool = False


def next_steps(
    tables: Mapping[str, TableState], stop: Stop | None, now_ms: int, rules: Rules, pick: Callable[[int], int]
) -> NextSteps:
    """The next actions. `stop`: None while it is to go on. `pick(n)`: a number below n, by chance."""
    running = sum(len(t.running) for t in tables.values())
    if stop is not None:
        return NextSteps(ended=running == 0 and not any(t.busy for t in tables.values()), wait_s=rules.poll_s)
    actions: list[Action] = [a for name, t in tables.items() if (a := _upkeep(name, t, now_ms)) is not None]
    free = rules.max_concurrent - sum(t.slots for t in tables.values())
    resumed = _resumed(tables)[: max(0, free)]
    takes = _takes(tables, free - len(resumed), now_ms, rules, pick)
    if rules.once and not actions and not takes and running == 0 and _at_rest(tables):
        return NextSteps(ended=True)
    return NextSteps(actions=(*actions, *resumed, *takes), wait_s=0.0 if takes else _wait_s(tables, now_ms, rules))


def _upkeep(name: str, table: TableState, now_ms: int) -> Action | None:
    if table.busy:
        return None
    if table.due:
        return Request(name)
    if now_ms >= table.look_at:
        return Relist(name)
    return Sweep(name) if now_ms >= table.sweep_at and table.available else None


def _resumed(tables: Mapping[str, TableState]) -> list[Resume]:
    """Those that have waited, earliest instant first."""
    return sorted((Resume(name, i) for name, t in tables.items() for i in t.eager), key=lambda r: (r.instant, r.table))


def _takes(
    tables: Mapping[str, TableState], slots: int, now_ms: int, rules: Rules, pick: Callable[[int], int]
) -> list[Take]:
    """One instant a free slot; each table once a round, so that a failed claim is known before the next."""
    ready = [name for name, t in tables.items() if t.available and t.is_startable(now_ms)]
    turns = sorted(ready, key=lambda n: (len(tables[n].running), tables[n].served))
    return [Take(name, _choose(tables[name], now_ms, rules.order, pick)) for name in turns[: max(0, slots)]]


def _choose(table: TableState, now_ms: int, order: Order, pick: Callable[[int], int]) -> str:
    """The first by the order; where others are at work, one of as many more as there are claims."""
    ranked: Iterable[Pending] = table.startable(now_ms)
    if order is Order.LARGEST:
        ranked = sorted(ranked, key=lambda p: (-p.log_bytes, p.instant))
    first = list(islice(ranked, 1 + 2 * len(table.claimed)))
    return first[pick(len(first))].instant


def _at_rest(tables: Mapping[str, TableState]) -> bool:
    """Whether a daemon that runs once has seen every table and nothing is under way."""
    return all(t.looked and not t.busy and not t.due for t in tables.values())


def _wait_s(tables: Mapping[str, TableState], now_ms: int, rules: Rules) -> float:
    """Until the next thing that happens by itself; news ends the wait earlier."""
    moments = [m for t in tables.values() if not t.busy for m in (t.look_at, t.sweep_at)]
    moments += [p.readiness.until_ms for t in tables.values() for p in t.pending if isinstance(p.readiness, Waits)] + [
        until for t in tables.values() for until in t.postponed.values()
    ]
    later = [m for m in moments if m > now_ms]
    return min(rules.poll_s, (min(later, default=now_ms + round(rules.poll_s * 1000)) - now_ms) / 1000)
