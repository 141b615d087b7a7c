"""Pools: rules for the tables whose names match a pattern, and which pool may begin work now (no I/O).

A table belongs to the first pool that matches it, else to the pool of the other tables. A name is the path below the
root, or DATABASE/TABLE in a catalog. A pattern without `/` is compared with the last part of a name.

Shares share slots by weight: the share with the least slot time for its weight comes next. An idle share
accumulates no slot time: it begins level with the others.

A quota holds over `QUOTA_MS`, and bytes over an hour, each up to now; shorter while the daemon is younger. Work counts
from its beginning, with the bytes of its plan, so that work in progress cannot exceed a quota unseen. What work longer
than `QUOTA_MS` has taken beyond the quota remains a debt, and the pool waits until its part of the slots has paid it.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, time
from fnmatch import fnmatchcase
from zoneinfo import ZoneInfo

from phantombase.timeline.errors import UsageError
from phantombase.timeline.option import check_above_zero, check_least, option
from phantombase.timeline.planning.options import ScheduleOptions

from .budget import Budget, Purse, Spent, WaitingWork

_HOURS = re.compile(r"(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)(?:\s+(\S+))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """From `start` until before `end`, over midnight if that is earlier."""

    start: time
    end: time
    zone: str = "UTC"

    @staticmethod
    def parse(text: str) -> Hours:
        """From `HH:MM-HH:MM [ZONE]`; UsageError."""
        found = _HOURS.fullmatch(text.strip())
        try:
            if found is None:
                raise ValueError(text)
            hours = Hours(
                start=time(int(found[1]), int(found[2])), end=time(int(found[3]), int(found[4])), zone=found[5] or "UTC"
            )
            ZoneInfo(hours.zone)
        except (ValueError, OSError, KeyError) as error:
            raise UsageError("not hours of a day", expected="HH:MM-HH:MM [ZONE]", found=repr(text)) from error
        if hours.start == hours.end:
            raise UsageError("hours of no length", expected="two different times", found=repr(text))
        return hours

    def hold(self, now_ms: int) -> bool:
        """Whether a time (ms since the epoch) lies within."""
        now = datetime.fromtimestamp(now_ms / 1000, ZoneInfo(self.zone)).time()
        if self.start < self.end:
            return self.start <= now < self.end
        return now >= self.start or now < self.end

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M} {self.zone}"


OTHERS = "*"
"""The name of the pool of the tables that no pool matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Rules for the tables that `match`. `weight` None: they share slots with those of other pools without one."""

    match: str = option(OTHERS, "a pattern of names")
    weight: float | None = option(None, "share of the daemon's slots, against the weights of other pools")
    slo_s: float | None = option(None, "a compaction that is pending for longer is late: the latest table comes first")
    hours: Hours | None = option(None, "when its tables are compacted: HH:MM-HH:MM and a time zone, UTC by default")
    quota: float | None = option(None, "the most of the daemon's slots, from 0 to 1, over some minutes")
    bytes_per_hour: int | None = option(None, "the most bytes that compactions of the fleet read in an hour", size=True)
    budget: str | None = option(None, "core-hours or bytes that the fleet's work takes in an hour, see --budget")
    daemons: int = option(1, "how many daemons of a fleet serve each table", least=1)
    schedule: ScheduleOptions | None = option(None, "how plans are requested")

    def __post_init__(self) -> None:
        check_above_zero(self, "weight", "slo_s", "quota", "bytes_per_hour")
        check_least(self, {"daemons": 1})
        if self.budget is not None:
            Budget.parse(self.budget)
        if self.quota is not None and self.quota > 1:
            raise UsageError("quota is a part of the slots", expected="at most 1", found=f"{self.quota:g}")

    @property
    def share(self) -> str:
        """The share of the pool: the pools of one share divide its slots by lateness, shares divide all by weight."""
        return OTHERS if self.weight is None else self.match


def matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name if "/" in pattern else name.rpartition("/")[2], pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """The pools, first match first, and the tables to serve: `include` (empty: all) without `exclude`."""

    pools: tuple[Pool, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    others: Pool = Pool(match=OTHERS)

    def __post_init__(self) -> None:
        if len({one.match for one in self.all}) < len(self.all):
            raise UsageError(
                "two pools have the same pattern",
                found=", ".join(one.match for one in self.all),
                todo="Join them, or give one another `match`.",
            )

    @property
    def all(self) -> tuple[Pool, ...]:
        """Every pool; that of the other tables comes last."""
        return (*self.pools, self.others)

    def takes(self, name: str) -> bool:
        return (not self.include or _any(name, self.include)) and not _any(name, self.exclude)

    def unmatched(self, names: Iterable[str]) -> tuple[str, ...]:
        """The patterns of `include` and `exclude` that match none of these names."""
        found = tuple(names)
        return tuple(one for one in (*self.include, *self.exclude) if not any(matches(name, one) for name in found))

    def empty(self, names: Iterable[str]) -> tuple[str, ...]:
        """The patterns of pools that none of these tables is in; an earlier pool may have those that match."""
        used = {self.of(name).match for name in names}
        return tuple(one.match for one in self.pools if one.match not in used)

    def of(self, name: str) -> Pool:
        return next((one for one in self.pools if matches(name, one.match)), self.others)


def pools_of(
    pools: Iterable[Pool], include: Sequence[str], exclude: Sequence[str], slo_s: float | None = None
) -> Pools:
    """The pools. One whose pattern is `*` is the pool of the other tables. `slo_s`: for pools without one."""
    given = [one if one.slo_s is not None or slo_s is None else replace(one, slo_s=slo_s) for one in pools]
    last = next((one for one in given if one.match == OTHERS), Pool(match=OTHERS, slo_s=slo_s))
    named = tuple(one for one in given if one is not last)
    return Pools(pools=named, include=tuple(include), exclude=tuple(exclude), others=last)


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(matches(name, one) for one in patterns)


QUOTA_MS = 600_000
_HOUR_MS = 3_600_000
_TYPICAL_MS = 1000.0
"""The expected slot time of work in a pool where no work has ended yet."""
_LEARN = 0.2
_IDLE_MS = 60_000
"""A share without work for this long is idle. A shorter gap may be the snapshot of a table between two instants."""


@dataclass(slots=True)
class _Work:
    pool: str
    began: int
    bytes: int
    ended: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUsage:
    """What a pool uses. `occupancy`: its part of the slots; `bytes`: of the last hour. `why_not`: why it waits."""

    pool: str
    running: int
    occupancy: float
    bytes: int
    why_not: str


@dataclass(slots=True)
class QuotaUsage:
    """See the module. Times in ms of the caller's clock, but `hours` are compared with `epoch_ms`."""

    pools: Pools
    slots: int
    began: int
    members: int = 1
    """How many daemons share the bytes of an hour."""
    _purses: dict[str, Purse] = field(default_factory=dict)
    """By pool with a budget; that of the daemon is called ""."""
    _work: dict[str, deque[_Work]] = field(default_factory=dict)
    _open: dict[tuple[str, str], _Work] = field(default_factory=dict)
    _spent: dict[str, float] = field(default_factory=dict)
    _active: dict[str, int] = field(default_factory=dict)
    _typical: dict[str, float] = field(default_factory=dict)
    _credit: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By pool with a quota: a time, and the slot time of its quota that was unused at that time."""
    _pool: dict[str, Pool] = field(init=False)

    def __post_init__(self) -> None:
        self._pool = {one.match: one for one in self.pools.all}
        for one in self.pools.all:
            self.limit(one.match, one.budget)

    def limit(self, pool: str, budget: str | None) -> None:
        """Gives a pool a budget, or the daemon: ""."""
        if budget is not None:
            self._purses[pool] = Purse(Budget.parse(budget), self.began)

    def budget_of(self, pool: Pool) -> Budget | None:
        """The budget from which work of a pool is paid: its own, or else that of the daemon."""
        return next((purse.budget for purse in self._purses_of(pool)), None)

    def suspend(self, pool: Pool, key: tuple[str, str]) -> None:
        """Work waits for writers, maybe for hours: it keeps nothing of a budget from other work, and pays later."""
        for purse in self._purses_of(pool):
            purse.end(key)

    def _purses_of(self, pool: Pool) -> list[Purse]:
        """Its own first."""
        return [purse for name in (pool.match, "") if (purse := self._purses.get(name)) is not None]

    def pay(self, pool: Pool, spent: Spent, *, owed: bool) -> None:
        """What work or services on a table of a pool have taken. `owed`: see `Purse.pay`."""
        for purse in self._purses_of(pool):
            purse.pay(*spent, owed=owed)

    def owes(self, pool: Pool, spent: Spent) -> None:
        """See `Purse.owes`."""
        for purse in self._purses_of(pool):
            purse.owes(*spent, self.members)

    def begin(self, pool: Pool, key: tuple[str, str], size: int, now: int, work: WaitingWork | None = None) -> None:
        """Work begins. `work`: for budgets."""
        self._credited(pool, now)
        for purse in self._purses_of(pool):
            purse.begin(key, 0.0 if work is None else work.cost(purse.budget))
        one = self._open[key] = _Work(pool.match, now, size)
        self._work.setdefault(pool.match, deque()).append(one)

    def end(self, pool: Pool, key: tuple[str, str], size: int | None, now: int) -> None:
        """The work has ended. `size`: the bytes that it has read, None if unknown."""
        self._credited(pool, now)
        for purse in self._purses_of(pool):
            purse.end(key)
        one = self._open.pop(key)
        one.ended = now
        one.bytes = one.bytes if size is None else size
        spent = now - one.began
        self._spent[pool.share] = self._spent.get(pool.share, 0.0) + spent / (pool.weight or 1.0)
        before = self._typical.get(pool.match, float(spent))
        self._typical[pool.match] = before + _LEARN * (spent - before)

    def turn(self, shares: Collection[str], now: int) -> dict[str, float]:
        """By share with ready work: slot time divided by weight; running work counts with its expected time."""
        weights = {one.share: one.weight or 1.0 for one in self.pools.all}
        expected = dict.fromkeys(weights, 0.0)
        for work in self._open.values():
            typical = self._typical.get(work.pool, _TYPICAL_MS)
            expected[self._pool[work.pool].share] += max(typical, now - work.began)
        active = set(shares) | {share for share, ms in expected.items() if ms > 0}
        fresh = {p for p in active if now - self._active.get(p, -_IDLE_MS) >= _IDLE_MS}
        others = [self._spent.get(p, 0.0) for p in active - fresh] or list(self._spent.values())
        for share in fresh:
            self._spent[share] = max(self._spent.get(share, 0.0), min(others, default=0.0))
        self._active.update(dict.fromkeys(active, now))
        return {share: self._spent.get(share, 0.0) + expected[share] / weights[share] for share in shares}

    def expected(self, pool: Pool) -> float:
        """What one more work of the pool will probably add to its share in `turn`."""
        return self._typical.get(pool.match, _TYPICAL_MS) / (pool.weight or 1.0)

    def why_not(self, pool: Pool, now: int, epoch_ms: int) -> str:
        """Why no work may begin in a pool now; empty: it may."""
        if pool.hours is not None and not pool.hours.hold(epoch_ms):
            return f"its hours are {pool.hours}"
        if pool.quota is not None and (self._occupied(pool, now) > pool.quota or self._credited(pool, now) < 0):
            return f"its quota of {pool.quota:.0%} of the slots is used up"
        if pool.bytes_per_hour is not None and (read := self._bytes(pool, now)) and read >= self._budget(pool):
            return f"its bytes of an hour are used up: {read} of {self._budget(pool)} bytes read"
        return next((why for purse in self._purses_of(pool) if (why := purse.why_not(now, self.members))), "")

    def fits(self, pool: Pool, size: int, now: int) -> bool:
        """Whether work of this size is within the bytes of the pool; the first work of an hour may exceed them."""
        if pool.bytes_per_hour is None:
            return True
        read = self._bytes(pool, now)
        return read == 0 or read + size <= self._budget(pool)

    def shown(self, now: int, epoch_ms: int) -> tuple[PoolUsage, ...]:
        running = Counter(one.pool for one in self._open.values())
        return tuple(
            PoolUsage(
                pool=one.match,
                running=running[one.match],
                occupancy=round(self._occupied(one, now), 4),
                bytes=self._bytes(one, now),
                why_not=self.why_not(one, now, epoch_ms),
            )
            for one in self.pools.all
        )

    def _budget(self, pool: Pool) -> int:
        return (pool.bytes_per_hour or 0) // max(1, self.members)

    def _occupied(self, pool: Pool, now: int) -> float:
        """The pool's part of all slot time, of the last minutes."""
        since = max(self.began, now - QUOTA_MS)
        spans = ((max(w.began, since), now if w.ended is None else w.ended) for w in self._recent(pool, now))
        spent = sum(max(0, end - begin) for begin, end in spans)
        return spent / (self.slots * max(1, now - since))

    def _credited(self, pool: Pool, now: int) -> float:
        """The slot time that a pool with a quota may still take; below 0, its debt."""
        if pool.quota is None:
            return 0.0
        before, credit = self._credit.get(pool.match, (self.began, 0.0))
        running = sum(one.pool == pool.match for one in self._open.values())
        part = pool.quota * self.slots
        credit = min(part * QUOTA_MS, credit + (now - before) * (part - running))
        self._credit[pool.match] = (now, credit)
        return credit

    def _bytes(self, pool: Pool, now: int) -> int:
        return sum(w.bytes for w in self._recent(pool, now) if w.ended is None or w.began > now - _HOUR_MS)

    def _recent(self, pool: Pool, now: int) -> deque[_Work]:
        """The work of the pool that still counts, by its beginning; earlier work is removed."""
        work = self._work.setdefault(pool.match, deque())
        while work and work[0].ended is not None and max(work[0].ended, work[0].began) <= now - _HOUR_MS:
            work.popleft()
        return work
