"""A budget of work, and which work comes first under it: that of the greatest benefit for its cost (no I/O).

    benefit   bytes that readers need not merge any more, and `_FILE_BYTES` for each file, times the reads of an hour
    cost      what the table's last compactions took for each byte that their plans read, in the budget's unit
    first     what would miss its goal of freshness, or has waited for its SLO or a day: the latest first
    then      the greatest benefit for its cost, which counts twice as much after an hour of waiting

Work begins while anything is left of the budget; what it takes beyond that is paid before the next work begins. So a
budget holds on average, nothing is too large for it, and all waits end: it delays work, and drops none. The services of
tables are paid from what is left, and do not wait for it: what they take beyond that is not owed, or services that take
more than the budget would hold all work for ever."""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import TypeAlias

from phantombase.timeline.codec.output_options import parse_bytes
from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.compaction_plan import TOTAL_IO_READ_MB, CompactionPlan
from phantombase.timeline.table.history import WorkDone

_FILE_BYTES = 1 << 20
"""What a file that readers need not open is worth."""
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
    """What a compaction merges, and the bytes that its plan reads for that."""

    log_files: int
    log_bytes: int
    read_bytes: int

    @staticmethod
    def of_plan(plan: CompactionPlan, log_bytes: int) -> Gain:
        """What a plan says; `log_bytes`: of its log files."""
        read_mb = sum((one.metrics or {}).get(TOTAL_IO_READ_MB, 0.0) for one in plan.operations)
        files = sum(len(one.delta_file_paths) for one in plan.operations)
        return Gain(log_files=files, log_bytes=log_bytes, read_bytes=max(log_bytes, round(read_mb) << 20))


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
        return (self.gain.log_bytes + self.gain.log_files * _FILE_BYTES) * self.costs.reads

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
    what = (
        "its plan does not say what it merges"
        if not gain.read_bytes
        else (
            f"{plural(gain.log_files, 'log file')}, {human_bytes(gain.log_bytes)}, for {budget.words(one.cost(budget))}"
        )
    )
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
