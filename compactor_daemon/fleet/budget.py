"""A budget of work, and which work comes first under it: that of the greatest benefit for its cost. No I/O, but for
`PastWork`.

    benefit   bytes that readers need not merge any more, and `_FILE_BYTES` for each file that they need not open; of a
              clustering that sorts, a part of its bytes, which filters may skip; times the reads of an hour
    cost      what the table's last compactions took for each byte that their plans read, in the budget's unit
    first     what would miss its goal of freshness, or has waited for its SLO or a day: the latest first
    then      the greatest benefit for its cost, which counts twice as much after an hour of waiting

Work begins while anything is left of the budget; what it takes beyond that is paid before the next work begins. So a
budget holds on average, nothing is too large for it, and all waits end: it delays work, and drops none. The services of
tables are paid from what is left, and do not wait for it: what they take beyond that is not owed, or services that take
more than the budget would hold all work for ever. A daemon that begins owes what the history of its tables shows of the
hour before, so that one that is started again and again does not take more."""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace
from typing import TypeAlias

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.output_options import parse_bytes
from phantombase.timeline.errors import PhantombaseError, UsageError
from phantombase.timeline.format.compaction_plan import TOTAL_IO_READ_MB, TOTAL_LOG_FILES_SIZE, CompactionPlan
from phantombase.timeline.format.replace_request import ClusterPlan
from phantombase.timeline.read.pins import all_pins
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.history import WorkDone, read_history, reads_an_hour

_FILE_BYTES = 1 << 20
"""What a file that readers need not open is worth."""
_SORTED_PART = 0.1
"""The part of the bytes of sorted rows that filters are expected to skip."""
_PAID = ("compaction", "log compaction", "clustering")
"""The kinds of work that wait for a budget."""
_LEARNED = 32
"""Of how many of the last units of work the costs are learned."""
_STARVED_S = 86_400.0
_HOUR_S = 3600.0
_SAVED_S = 60.0
"""Of how many seconds a daemon has the budget when it begins."""
_CORE_HOURS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*core-hours?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that work may take in an hour: core-seconds, or bytes read and written."""

    most: float
    is_bytes: bool

    @staticmethod
    def parse(text: str) -> Budget:
        """From `2core-hours` or `200g`. UsageError."""
        found, wanted = _CORE_HOURS.fullmatch(text.strip()), "core-hours or bytes an hour: 2core-hours, 200g"
        if text.strip().isdigit():  # a few bytes an hour would hold all work
            raise UsageError("not a budget: it has no unit", expected=wanted, found=text)
        try:
            most = float(found[1]) * _HOUR_S if found is not None else float(parse_bytes(text.strip()))
        except UsageError as error:
            raise UsageError("not a budget", expected=wanted, found=text) from error
        if not 0 < most < math.inf:
            raise UsageError("a budget of nothing would hold all work", expected="more than 0", found=text)
        return Budget(most=most, is_bytes=found is None)

    def of(self, core_s: float, size: float) -> float:
        """What work takes of it."""
        return size if self.is_bytes else core_s

    def words(self, amount: float) -> str:
        """An amount of its unit, for people."""
        from phantombase.timeline.terminal.text_table import human_bytes  # late: writers need no rich

        return str(human_bytes(round(amount))) if self.is_bytes else f"{amount / _HOUR_S:.3g} core-hours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What a compaction or clustering merges, and the bytes that its plan reads for that. Of a clustering: `joined`, by
    how many base files there are fewer after it; `sorts`: its rows get another order."""

    log_files: int
    log_bytes: int
    read_bytes: int
    joined: int = 0
    sorts: bool = False

    @staticmethod
    def of(plan: CompactionPlan | ClusterPlan | None, log_bytes: int = 0) -> Gain | None:
        """What a plan says. `log_bytes`: of the logs of a compaction; 0: its plan does not state them, and None."""
        if isinstance(plan, ClusterPlan):
            slices, log_bytes = (
                [one for of in plan.groups for one in of.slices],
                round(plan.stated(TOTAL_LOG_FILES_SIZE)),
            )
            return Gain(
                log_files=sum(len(one.logs) for one in slices),
                log_bytes=log_bytes,
                read_bytes=max(1, log_bytes, round(plan.stated(TOTAL_IO_READ_MB)) << 20),
                joined=max(0, sum(bool(one.base) for one in slices) - sum(of.outputs for of in plan.groups)),
                sorts=bool(plan.sort_by),
            )
        if plan is None or not log_bytes:
            return None
        read_mb = sum((one.metrics or {}).get(TOTAL_IO_READ_MB, 0.0) for one in plan.operations)
        files = sum(len(one.delta_file_paths) for one in plan.operations)
        return Gain(log_files=files, log_bytes=log_bytes, read_bytes=max(log_bytes, round(read_mb) << 20))

    @property
    def worth(self) -> float:
        """For one reader, in bytes."""
        by_files = (self.log_files + self.joined) * _FILE_BYTES
        return self.log_bytes + by_files + (_SORTED_PART * self.read_bytes if self.sorts else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What compactions of a table take for each byte that their plans read, learned from the last `runs`, of which the
    largest read `most`; and how often the table is read in an hour, as far as its owner says."""

    bytes: float = 2.0
    core_s: float = 30e-9
    runs: int = 0
    most: int = 0
    reads: float = 1.0

    @staticmethod
    def learned(rows: Iterable[WorkDone]) -> Costs:
        """From rows of the history; without any, the usual ones."""
        done = [one for one in rows if one.kind == "compaction" and one.outcome == "done" and one.planned_bytes]
        planned = sum(one.planned_bytes or 0 for one in done)
        if not planned:
            return USUAL
        core_s = sum(one.core_seconds for one in done) / planned
        most = max(one.planned_bytes or 0 for one in done)
        return Costs(bytes=sum(one.bytes for one in done) / planned, core_s=core_s, runs=len(done), most=most)

    def of(self, read_bytes: int, *, is_bytes: bool) -> float:
        """An estimate. What small plans took for each byte is mostly what any plan takes: of a larger one, each further
        byte counts as `_DEAR` usual ones at most."""
        own, usual = (self.bytes, USUAL.bytes) if is_bytes else (self.core_s, USUAL.core_s)
        known = min(read_bytes, self.most) if self.runs else read_bytes
        return known * own + (read_bytes - known) * min(own, _DEAR * usual)


USUAL = Costs()
_DEAR = 10.0
Spent: TypeAlias = tuple[float, float]
"""Core-seconds, and bytes read and written."""


class PastWork:
    """What a table itself shows of the work on it, and of its readers. What cannot be read counts as nothing."""

    def __init__(self) -> None:
        self._costs: Costs | None = None
        self._told = False

    def forget(self) -> None:
        """Work begins: what it takes shall count, too."""
        self._costs = None

    def costs(self, storage: Storage, reads: float) -> Costs:
        """By its history. `reads`: of an hour, as its owner says; each pin, and each read that took one, counts too."""
        if self._costs is None:
            self._costs = Costs.learned(_rows(storage, last=_LEARNED))
        with suppress(PhantombaseError):
            now = clock_ms()
            pins = len({pin.name for pin in all_pins(storage) if pin.is_live(now)})
            reads = max(reads, pins, reads_an_hour(storage, now))
        return replace(self._costs, reads=reads)

    def spent(self, storage: Storage, began_ms: int) -> Spent:
        """What compactions and clusterings took in the last hour, before a daemon began; later nothing."""
        since_ms = clock_ms() - round(1000 * _HOUR_S)
        rows = () if self._told or since_ms >= began_ms else _rows(storage, since_ms=since_ms)
        self._told = True
        paid = [one for one in rows if one.ended_ms < began_ms and one.kind in _PAID]
        return sum(one.core_seconds for one in paid), float(sum(one.bytes for one in paid))


def _rows(storage: Storage, **which: int) -> Sequence[WorkDone]:
    with suppress(PhantombaseError):
        return read_history(storage, **which).work
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingWork:
    """Work that could begin now. `instant` "": a plan that is not requested yet. `late`: 1 and more if it must begin
    now, see `lateness`. `goal`: that a goal of freshness makes it so."""

    table: str
    instant: str
    gain: Gain
    costs: Costs = USUAL
    waits_s: float = 0.0
    late: float = 0.0
    goal: bool = False

    @property
    def benefit(self) -> float:
        return self.gain.worth * self.costs.reads

    def cost(self, budget: Budget) -> float:
        """An estimate, in the budget's unit."""
        return max(1e-3, self.costs.of(self.gain.read_bytes, is_bytes=budget.is_bytes))

    def score(self, budget: Budget) -> float:
        return self.benefit / self.cost(budget) * (1 + self.waits_s / _HOUR_S)

    def rank(self, budget: Budget) -> tuple[bool, float, str, str]:
        """The least comes first."""
        must = self.late >= 1
        return not must, -(self.late if must else self.score(budget)), self.table, self.instant


def lateness(waits_s: float, slo_s: float | None = None) -> float:
    """By its waiting; 1 and more: the work must begin now."""
    return waits_s / min(_STARVED_S, slo_s or _STARVED_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """`begins_s`: when the budget lets it begin, if the work before it costs what is expected. `cost`: in bytes
    (`is_bytes`) or core-seconds, as its first budget is. `score`: benefit for cost."""

    table: str
    instant: str | None
    gain: Gain
    reads: float
    cost: float
    is_bytes: bool
    score: float
    begins_s: float
    why: str


def rank(works: Iterable[WaitingWork], budgets: Callable[[str], Mapping[str, Budget]]) -> list[Ranked]:
    """The work in the order in which it begins, each with its reason. That of one table begins in the order in which it
    is given. `budgets`: what the work on a table is paid from, by name, its own first."""
    waiting, found, before = dict[str, deque[WaitingWork]](), list[Ranked](), defaultdict[str, float](float)
    for one in works:
        waiting.setdefault(one.table, deque()).append(one)
    unit = unit_of(one for table in waiting for one in budgets(table).values())
    first = [(ones[0].rank(unit), table) for table, ones in waiting.items()]
    heapify(first)
    while first:
        ones = waiting[first[0][1]]
        one = ones.popleft()
        if ones:
            heapreplace(first, (ones[0].rank(unit), one.table))
        else:
            heappop(first)
        paid = budgets(one.table)
        budget = next(iter(paid.values()))
        cost = one.cost(budget)
        begins_s = max(0.0, *(before[name] / of.most * _HOUR_S - _SAVED_S for name, of in paid.items()))
        found.append(
            Ranked(
                table=one.table,
                instant=one.instant or None,
                gain=one.gain,
                reads=one.costs.reads,
                cost=cost,
                is_bytes=budget.is_bytes,
                score=one.score(budget),
                begins_s=round(begins_s, 1),
                why=_why(one, budget),
            )
        )
        for name, of in paid.items():
            before[name] += one.cost(of)
    return sorted(found, key=lambda one: one.begins_s)


def unit_of(budgets: Iterable[Budget]) -> Budget:
    """One in whose unit work is compared that is paid from these budgets: theirs, or bytes if they differ."""
    found = tuple(budgets)
    is_bytes = any(one.is_bytes for one in found) or not found
    return Budget(most=1.0, is_bytes=is_bytes)


def _why(one: WaitingWork, budget: Budget) -> str:
    from phantombase.timeline.terminal.text_table import human_bytes, human_duration, plural  # late: as above

    gain, costs = one.gain, one.costs
    parts = [plural(gain.log_files, "log file"), str(human_bytes(gain.log_bytes))] if gain.log_bytes else []
    parts += [f"{plural(gain.joined, 'base file')} less"] if gain.joined else []
    parts += ["rows sorted"] if gain.sorts else []
    cost = f"for {budget.words(one.cost(budget))}"
    what = ", ".join([*parts, cost]) if gain.read_bytes else "its plan does not say what it merges"
    by = f"as its last {plural(costs.runs, 'compaction')} took" if costs.runs else "as compactions usually take"
    reads = "" if costs.reads == 1 else f", {costs.reads:g} reads an hour"
    waits = f", waiting for {human_duration(one.waits_s)}" if one.waits_s >= 1 else ""
    if one.late < 1:
        return f"{what} ({by}){reads}{waits}"
    first = "its goal of freshness would be missed" if one.goal else f"it has waited for {human_duration(one.waits_s)}"
    return f"{first}: {what} ({by}){reads}"


class Purse:
    """What is left of a budget. Times in ms of the caller's clock."""

    def __init__(self, budget: Budget, now: int) -> None:
        self.budget, self._at, self._left = budget, now, budget.most * _SAVED_S / _HOUR_S
        self._expected: dict[tuple[str, str], float] = {}
        self._before = 0.0

    def owes(self, core_s: float, size: float, members: int = 1) -> None:
        """What work on a table has taken in the hour before: more than an hour's budget of it is paid first. Of a table
        that comes later only its own."""
        free = max(0.0, self.budget.most * (1 / max(1, members) - _SAVED_S / _HOUR_S))
        owed = max(0.0, self._before - free)
        self._before += self.budget.of(core_s, size)
        self._left -= max(0.0, self._before - free) - owed

    def begin(self, key: tuple[str, str], cost: float) -> None:
        """Work begins; `cost`: what it is expected to take."""
        self._expected[key] = cost

    def end(self, key: tuple[str, str]) -> None:
        self._expected.pop(key, None)

    def pay(self, core_s: float, size: float, *, owed: bool) -> None:
        """What work, or services, have taken. Not `owed`: at most what is left is paid."""
        left = self._left - self.budget.of(core_s, size)
        self._left = left if owed else max(left, min(self._left, 0.0))

    def left(self, now: int, members: int = 1) -> float:
        """At most that of an hour is saved up. `members`: daemons that share the budget."""
        most = self.budget.most / max(1, members)
        self._left = min(most, self._left + (now - self._at) / 1000 / _HOUR_S * most)
        self._at = now
        return self._left - sum(self._expected.values())

    def why_not(self, now: int, members: int = 1) -> str:
        """Why no work may begin now; empty: it may."""
        left = self.left(now, members)
        if left > 0:
            return ""
        most, over = self.budget.words(self.budget.most), self.budget.words(-left)
        return f"the budget of {most} an hour is used up: {over} over it"
