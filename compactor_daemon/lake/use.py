"""What the lanes have used of a daemon, and which may begin work now (pure).

Pools share slots by weight: the pool with the least slot time for its weight comes next. A pool that had no work for a
while does not save up slot time: it begins where the others are.

A quota holds over `QUOTA_MS`, and bytes over an hour, each up to now; shorter while the daemon is younger. Work counts
from its beginning, with the bytes of its plan, so that work in progress cannot exceed a quota unseen. What work longer
than `QUOTA_MS` has taken beyond the quota stays a debt, and the lane waits until its part of the slots has paid it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field

from .lanes import Lane, Lanes

QUOTA_MS = 600_000
_HOUR_MS = 3_600_000
_TYPICAL_MS = 1000.0
"""The slot time of work in a lane that has not ended any yet."""
_LEARN = 0.2
_IDLE_MS = 60_000
"""A pool without work for this long is idle. Less may be a table that is looked at between two instants."""


@dataclass(slots=True)
class _Work:
    lane: str
    began: int
    bytes: int
    ended: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneUse:
    """What a lane uses. `occupancy`: its part of the slots; `bytes`: of the last hour. `why_not`: why it waits."""

    lane: str
    running: int
    occupancy: float
    bytes: int
    why_not: str


@dataclass(slots=True)
class Use:
    """See the module. Times in ms of the caller's clock, but `hours` go by `epoch_ms`."""

    lanes: Lanes
    slots: int
    began: int
    members: int = 1
    """How many daemons share the bytes of an hour."""
    _work: dict[str, deque[_Work]] = field(default_factory=dict)
    _open: dict[tuple[str, str], _Work] = field(default_factory=dict)
    _spent: dict[str, float] = field(default_factory=dict)
    _active: dict[str, int] = field(default_factory=dict)
    _typical: dict[str, float] = field(default_factory=dict)
    _credit: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By lane with a quota: a time, and the slot time then that its quota gave and its work has not taken."""
    _lane: dict[str, Lane] = field(init=False)

    def __post_init__(self) -> None:
        self._lane = {one.match: one for one in self.lanes.all}

    def begin(self, lane: Lane, key: tuple[str, str], size: int, now: int) -> None:
        """Work on a (table, instant) of this size begins."""
        self._credited(lane, now)
        one = self._open[key] = _Work(lane.match, now, size)
        self._work.setdefault(lane.match, deque()).append(one)

    def end(self, lane: Lane, key: tuple[str, str], size: int | None, now: int) -> None:
        """It has ended. `size`: the bytes that it has read, None if that is not known."""
        self._credited(lane, now)
        one = self._open.pop(key)
        one.ended = now
        one.bytes = one.bytes if size is None else size
        spent = now - one.began
        self._spent[lane.pool] = self._spent.get(lane.pool, 0.0) + spent / (lane.weight or 1.0)
        before = self._typical.get(lane.match, float(spent))
        self._typical[lane.match] = before + _LEARN * (spent - before)

    def turn(self, pools: Collection[str], now: int) -> dict[str, float]:
        """By pool that has work ready: its slot time for its weight, with what runs counted as it will probably end."""
        weights = {one.pool: one.weight or 1.0 for one in self.lanes.all}
        expected = dict.fromkeys(weights, 0.0)
        for work in self._open.values():
            typical = self._typical.get(work.lane, _TYPICAL_MS)
            expected[self._lane[work.lane].pool] += max(typical, now - work.began)
        active = set(pools) | {pool for pool, ms in expected.items() if ms > 0}
        fresh = {p for p in active if now - self._active.get(p, -_IDLE_MS) >= _IDLE_MS}
        others = [self._spent.get(p, 0.0) for p in active - fresh] or list(self._spent.values())
        for pool in fresh:
            self._spent[pool] = max(self._spent.get(pool, 0.0), min(others, default=0.0))
        self._active.update(dict.fromkeys(active, now))
        return {pool: self._spent.get(pool, 0.0) + expected[pool] / weights[pool] for pool in pools}

    def expected(self, lane: Lane) -> float:
        """What one more work of the lane will probably add to its pool in `turn`."""
        return self._typical.get(lane.match, _TYPICAL_MS) / (lane.weight or 1.0)

    def why_not(self, lane: Lane, now: int, epoch_ms: int) -> str:
        """Why no work may begin in a lane now; empty: it may."""
        if lane.hours is not None and not lane.hours.hold(epoch_ms):
            return f"its hours are {lane.hours}"
        if lane.quota is not None and (self._occupied(lane, now) > lane.quota or self._credited(lane, now) < 0):
            return f"it has had its {lane.quota:g} of the slots"
        if lane.bytes_per_hour is not None and (read := self._bytes(lane, now)) and read >= self._budget(lane):
            return f"it has read {read} of {self._budget(lane)} bytes an hour"
        return ""

    def fits(self, lane: Lane, size: int, now: int) -> bool:
        """Whether work of this size keeps the bytes of the lane; the first of an hour may exceed them alone."""
        if lane.bytes_per_hour is None:
            return True
        read = self._bytes(lane, now)
        return read == 0 or read + size <= self._budget(lane)

    def shown(self, now: int, epoch_ms: int) -> tuple[LaneUse, ...]:
        """What every lane uses."""
        running = Counter(one.lane for one in self._open.values())
        return tuple(
            LaneUse(
                lane=one.match,
                running=running[one.match],
                occupancy=round(self._occupied(one, now), 4),
                bytes=self._bytes(one, now),
                why_not=self.why_not(one, now, epoch_ms),
            )
            for one in self.lanes.all
        )

    def _budget(self, lane: Lane) -> int:
        return (lane.bytes_per_hour or 0) // max(1, self.members)

    def _occupied(self, lane: Lane, now: int) -> float:
        """The lane's part of all slot time, of the last minutes."""
        since = max(self.began, now - QUOTA_MS)
        spans = ((max(w.began, since), now if w.ended is None else w.ended) for w in self._recent(lane, now))
        spent = sum(max(0, end - begin) for begin, end in spans)
        return spent / (self.slots * max(1, now - since))

    def _credited(self, lane: Lane, now: int) -> float:
        """The slot time that a lane with a quota may still take; below 0, what it has taken too much."""
        if lane.quota is None:
            return 0.0
        before, credit = self._credit.get(lane.match, (self.began, 0.0))
        running = sum(one.lane == lane.match for one in self._open.values())
        part = lane.quota * self.slots
        credit = min(part * QUOTA_MS, credit + (now - before) * (part - running))
        self._credit[lane.match] = (now, credit)
        return credit

    def _bytes(self, lane: Lane, now: int) -> int:
        return sum(w.bytes for w in self._recent(lane, now) if w.ended is None or w.began > now - _HOUR_MS)

    def _recent(self, lane: Lane, now: int) -> deque[_Work]:
        """The work of the lane that still counts, by its beginning; earlier work is forgotten."""
        work = self._work.setdefault(lane.match, deque())
        while work and work[0].ended is not None and max(work[0].ended, work[0].began) <= now - _HOUR_MS:
            work.popleft()
        return work
