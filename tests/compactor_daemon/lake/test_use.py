"""How lanes share the slots of a daemon: weights, quotas, bytes of an hour, in a world with a clock of its own."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest

from phantombase.compactor_daemon.daemon.dispatch import Rules, Sharing, Take, next_steps
from phantombase.compactor_daemon.daemon.table_state import Pending, TableState
from phantombase.compactor_daemon.lake.hours import Hours
from phantombase.compactor_daemon.lake.lanes import Lane, lanes_of
from phantombase.compactor_daemon.lake.use import Use

DAY_MS = 86_400_000
FOREVER = 1 << 50


class World:
    """A daemon's decisions over tables that always have work, until `ends`. Sizes and times of work are drawn."""

    def __init__(self, lanes: list[Lane], tables: dict[str, int], slots: int, seed: int = 1, members: int = 1) -> None:
        self.random = random.Random(seed)
        self.lanes = lanes_of(lanes, (), ())
        self.slots = slots
        self.now = 0
        self.use = Use(lanes=self.lanes, slots=slots, began=0, members=members)
        self.states = {
            f"{name}_{n}": TableState(lane=self.lanes.of(f"{name}_{n}"), looked=True, look_at=FOREVER, sweep_at=FOREVER)
            for name, count in tables.items()
            for n in range(count)
        }
        self.work: dict[tuple[str, str], int] = {}
        self.spent: defaultdict[str, int] = defaultdict(int)
        self.read: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.number = 0
        self.refill = set(self.states)

    def run(self, until: int, seconds: tuple[float, float] = (5, 60), epoch_ms: int = 0) -> None:
        rules = Rules(max_concurrent=self.slots)
        while self.now < until:
            for name in self.refill:
                if not self.states[name].pending:
                    self.number += 1
                    size = self.random.randrange(1, 200)
                    one = Pending(instant=str(self.number), requested_ms=epoch_ms + self.now, log_bytes=size)
                    self.states[name] = replace(self.states[name], pending=(one,))
            sharing = Sharing(use=self.use, epoch_ms=epoch_ms + self.now)
            steps = next_steps(self.states, None, self.now, rules, lambda n: 0, sharing)
            for take in steps.actions:
                assert isinstance(take, Take)
                state = self.states[take.table]
                size = state.log_bytes(take.instant)
                self.use.begin(state.lane, (take.table, take.instant), size, self.now)
                self.states[take.table] = state.begin(take.instant, self.number)
                self.work[take.table, take.instant] = self.now + round(self.random.uniform(*seconds) * 1000)
                self.read[state.lane.match].append((self.now, size))
                self.spent[state.lane.match] += self.work[take.table, take.instant] - self.now
            ends = min(self.work.values(), default=self.now + 1000)
            self.now = min(ends, self.now + 1000) if not steps.actions else self.now
            for key in [k for k, end in self.work.items() if end <= self.now]:
                del self.work[key]
                table, instant = key
                self.use.end(self.states[table].lane, key, None, self.now)
                self.states[table] = self.states[table].end(instant).without(frozenset({instant}))

    def share(self, lane: str) -> float:
        return self.spent[lane] / sum(self.spent.values())


def test_slots_are_shared_by_weight_whatever_the_number_of_tables() -> None:
    world = World([Lane(match="a_*", weight=3.0), Lane(match="b_*", weight=1.0)], {"a": 3, "b": 40}, slots=2)
    world.run(3_600_000)
    assert world.share("a_*") == pytest.approx(0.75, abs=0.05)


def test_what_one_lane_does_not_use_the_others_get() -> None:
    world = World([Lane(match="a_*", weight=9.0), Lane(match="b_*", weight=1.0)], {"a": 1, "b": 10}, slots=4)
    world.run(3_600_000)
    assert world.share("a_*") == pytest.approx(0.25, abs=0.03), "its one table holds one slot of four"


def test_a_lane_saves_up_no_slot_time_while_it_is_idle() -> None:
    world = World([Lane(match="a_*", weight=1.0), Lane(match="b_*", weight=1.0)], {"a": 10, "b": 10}, slots=2)
    world.refill = {name for name in world.states if name.startswith("b")}
    world.run(3_600_000)
    world.refill, world.spent = set(world.states), defaultdict(int)
    world.run(3_600_000 + 900_000)
    assert world.share("a_*") == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("seed", range(2))
def test_a_quota_of_slots_is_held(seed: int) -> None:
    world = World([Lane(match="a_*", quota=0.25), Lane(match="b_*")], {"a": 20, "b": 20}, slots=4, seed=seed)
    world.run(3_600_000)
    held = world.spent["a_*"] / (world.slots * world.now)
    assert held == pytest.approx(0.25, rel=0.1)


def test_a_quota_holds_also_where_nothing_else_wants_the_slots() -> None:
    world = World([Lane(match="a_*", quota=0.5)], {"a": 20}, slots=2)
    world.run(3_600_000)
    assert world.spent["a_*"] / (world.slots * world.now) == pytest.approx(0.5, rel=0.1)
    (lane, _) = world.use.shown(world.now, 0)
    assert lane.occupancy == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("slots", [1, 4])
def test_a_quota_is_held_also_by_work_longer_than_its_window(slots: int) -> None:
    """What one work took too much is not forgotten after ten minutes: the lane waits until it has paid for it."""
    world = World([Lane(match="a_*", quota=0.25), Lane(match="b_*")], {"a": 20, "b": 20}, slots=slots)
    world.run(12 * 3_600_000, seconds=(900, 1800))
    assert world.spent["a_*"] / (world.slots * world.now) == pytest.approx(0.25, rel=0.1)


def test_a_lane_with_a_quota_saves_up_no_more_than_a_window() -> None:
    world = World([Lane(match="a_*", quota=0.25)], {"a": 20}, slots=2)
    world.refill = set()
    world.run(6 * 3_600_000)
    world.refill, began = set(world.states), world.now
    world.run(began + 1_200_000)
    assert world.spent["a_*"] <= 1.25 * 0.25 * world.slots * 1_200_000


@pytest.mark.parametrize("members", [1, 4])
def test_the_bytes_of_an_hour_are_held_in_every_hour(members: int) -> None:
    world = World([Lane(match="a_*", bytes_per_hour=10_000)], {"a": 30, "b": 5}, slots=4, members=members)
    world.run(2 * 3_600_000)
    reads = world.read["a_*"]
    limit = 10_000 // members
    for begin, _ in reads:
        within = sum(size for at, size in reads if begin <= at < begin + 3_600_000)
        assert within <= limit
    assert sum(size for _, size in reads) > 2 * limit * 0.9, "and they are used"


def test_a_plan_larger_than_the_bytes_of_an_hour_runs_alone() -> None:
    lane = Lane(match="a", bytes_per_hour=10)
    use = Use(lanes=lanes_of([lane], (), ()), slots=1, began=0)
    assert use.fits(lane, 500, 0)
    use.begin(lane, ("a", "1"), 500, 0)
    assert not use.fits(lane, 1, 1)
    use.end(lane, ("a", "1"), 700, 1000)
    assert "700 of 10 bytes" in use.why_not(lane, 3_500_000, 0)
    assert use.fits(lane, 1, 3_700_000)


def test_outside_of_its_hours_a_lane_waits() -> None:
    world = World([Lane(match="a_*", hours=Hours.parse("22:00-06:00"))], {"a": 2, "b": 2}, slots=2)
    world.run(20 * 60_000, epoch_ms=12 * 3_600_000)
    assert "a_*" not in world.spent
    assert world.spent["*"]
    assert "hours" in world.use.why_not(world.lanes.of("a_1"), world.now, 12 * 3_600_000)


def test_in_a_pool_the_latest_table_comes_first() -> None:
    lanes = [Lane(match="fast", slo_s=60.0), Lane(match="slow", slo_s=86_400.0)]
    world = World(lanes, {}, slots=1)
    for name, age_s in (("slow", 7200), ("fast", 90), ("other", 3000)):
        one = Pending(instant="1", requested_ms=DAY_MS - age_s * 1000)
        world.states[name] = TableState(
            lane=world.lanes.of(name), looked=True, look_at=FOREVER, sweep_at=FOREVER, pending=(one,)
        )
    order = []
    for _ in range(3):
        sharing = Sharing(use=world.use, epoch_ms=DAY_MS)
        (take,) = next_steps(world.states, None, 0, Rules(), lambda n: 0, sharing).actions
        assert isinstance(take, Take)
        order.append(take.table)
        del world.states[take.table]
    assert order == ["fast", "other", "slow"], "1.5 of its minute, 0.8 of the usual hour, a twelfth of its day"
