"""How pools share the slots of a daemon: weights, quotas, bytes of an hour, in a world with a clock of its own."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.daemon.control import Control, Moment, ServicesRan, WorkEnded, WorkSuspended
from phantombase.compactor_daemon.daemon.dispatch import Rules, Sharing, Take, next_steps
from phantombase.compactor_daemon.daemon.table_state import Pending, TableState
from phantombase.compactor_daemon.fleet.budget import Budget, Costs, Gain, Purse, WaitingWork, rank
from phantombase.compactor_daemon.fleet.catalog import FolderListing, fleet_of, serves
from phantombase.compactor_daemon.fleet.pools import Hours, Pool, QuotaUsage, matches, pools_of
from phantombase.timeline.errors import UsageError
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.table.history import WorkDone
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.selection import for_each

DAY_MS = 86_400_000
FOREVER = 1 << 50


class World:
    """A daemon's decisions over tables that always have work, until `ends`. Sizes and times of work are drawn."""

    def __init__(self, pools: list[Pool], tables: dict[str, int], slots: int, seed: int = 1, members: int = 1) -> None:
        self.random = random.Random(seed)
        self.pools = pools_of(pools, (), ())
        self.slots = slots
        self.now = 0
        self.use = QuotaUsage(pools=self.pools, slots=slots, began=0, members=members)
        self.states = {
            f"{name}_{n}": TableState(
                pool=self.pools.of(f"{name}_{n}"), seen=True, snapshot_at=FOREVER, sweep_at=FOREVER
            )
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
                self.use.begin(state.pool, (take.table, take.instant), size, self.now)
                self.states[take.table] = state.begin(take.instant, self.number, self.now, self.now)
                self.work[take.table, take.instant] = self.now + round(self.random.uniform(*seconds) * 1000)
                self.read[state.pool.match].append((self.now, size))
                self.spent[state.pool.match] += self.work[take.table, take.instant] - self.now
            ends = min(self.work.values(), default=self.now + 1000)
            self.now = min(ends, self.now + 1000) if not steps.actions else self.now
            for key in [k for k, end in self.work.items() if end <= self.now]:
                del self.work[key]
                table, instant = key
                self.use.end(self.states[table].pool, key, None, self.now)
                state = self.states[table].end(instant)
                self.states[table] = replace(state, pending=tuple(p for p in state.pending if p.instant != instant))

    def share(self, pool: str) -> float:
        return self.spent[pool] / sum(self.spent.values())


def test_slots_are_shared_by_weight_whatever_the_number_of_tables() -> None:
    world = World([Pool(match="a_*", weight=3.0), Pool(match="b_*", weight=1.0)], {"a": 3, "b": 40}, slots=2)
    world.run(3_600_000)
    assert world.share("a_*") == pytest.approx(0.75, abs=0.05)


def test_what_one_lane_does_not_use_the_others_get() -> None:
    world = World([Pool(match="a_*", weight=9.0), Pool(match="b_*", weight=1.0)], {"a": 1, "b": 10}, slots=4)
    world.run(3_600_000)
    assert world.share("a_*") == pytest.approx(0.25, abs=0.03), "its one table holds one slot of four"


def test_a_lane_saves_up_no_slot_time_while_it_is_idle() -> None:
    world = World([Pool(match="a_*", weight=1.0), Pool(match="b_*", weight=1.0)], {"a": 10, "b": 10}, slots=2)
    world.refill = {name for name in world.states if name.startswith("b")}
    world.run(3_600_000)
    world.refill, world.spent = set(world.states), defaultdict(int)
    world.run(3_600_000 + 900_000)
    assert world.share("a_*") == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("seed", range(2))
def test_a_quota_of_slots_is_held(seed: int) -> None:
    world = World([Pool(match="a_*", quota=0.25), Pool(match="b_*")], {"a": 20, "b": 20}, slots=4, seed=seed)
    world.run(3_600_000)
    held = world.spent["a_*"] / (world.slots * world.now)
    assert held == pytest.approx(0.25, rel=0.1)


def test_a_quota_holds_also_where_nothing_else_wants_the_slots() -> None:
    world = World([Pool(match="a_*", quota=0.5)], {"a": 20}, slots=2)
    world.run(3_600_000)
    assert world.spent["a_*"] / (world.slots * world.now) == pytest.approx(0.5, rel=0.1)
    (pool, _) = world.use.shown(world.now, 0)
    assert pool.occupancy == pytest.approx(0.5, abs=0.1)


@one_of("slots", 4, 1)
def test_a_quota_is_held_also_by_work_longer_than_its_window(slots: int) -> None:
    """What one work took too much is not forgotten after ten minutes: the pool waits until it has paid for it."""
    world = World([Pool(match="a_*", quota=0.25), Pool(match="b_*")], {"a": 5, "b": 5}, slots=slots)
    world.run(12 * 3_600_000, seconds=(900, 1800))
    assert world.spent["a_*"] / (world.slots * world.now) == pytest.approx(0.25, rel=0.1)


def test_a_lane_with_a_quota_saves_up_no_more_than_a_window() -> None:
    world = World([Pool(match="a_*", quota=0.25)], {"a": 20}, slots=2)
    world.refill = set()
    world.run(3_600_000)
    world.refill, began = set(world.states), world.now
    world.run(began + 1_200_000)
    assert world.spent["a_*"] <= 1.25 * 0.25 * world.slots * 1_200_000


@one_of("members", 4, 1)
def test_the_bytes_of_an_hour_are_held_in_every_hour(members: int) -> None:
    world = World([Pool(match="a_*", bytes_per_hour=10_000)], {"a": 30, "b": 5}, slots=4, members=members)
    world.run(2 * 3_600_000)
    reads = world.read["a_*"]
    limit = 10_000 // members
    for begin, _ in reads:
        within = sum(size for at, size in reads if begin <= at < begin + 3_600_000)
        assert within <= limit
    assert sum(size for _, size in reads) > 2 * limit * 0.9, "and they are used"


def test_a_plan_larger_than_the_bytes_of_an_hour_runs_alone() -> None:
    pool = Pool(match="a", bytes_per_hour=10)
    use = QuotaUsage(pools=pools_of([pool], (), ()), slots=1, began=0)
    assert use.fits(pool, 500, 0)
    use.begin(pool, ("a", "1"), 500, 0)
    assert not use.fits(pool, 1, 1)
    use.end(pool, ("a", "1"), 700, 1000)
    assert "700 of 10 bytes" in use.why_not(pool, 3_500_000, 0)
    assert use.fits(pool, 1, 3_700_000)


def test_outside_of_its_hours_a_lane_waits() -> None:
    world = World([Pool(match="a_*", hours=Hours.parse("22:00-06:00"))], {"a": 2, "b": 2}, slots=2)
    world.run(20 * 60_000, epoch_ms=12 * 3_600_000)
    assert "a_*" not in world.spent
    assert world.spent["*"]
    assert "hours" in world.use.why_not(world.pools.of("a_1"), world.now, 12 * 3_600_000)


def test_in_a_pool_the_latest_table_comes_first() -> None:
    pools = [Pool(match="fast", slo_s=60.0), Pool(match="slow", slo_s=86_400.0)]
    world = World(pools, {}, slots=1)
    for name, age_s in (("slow", 7200), ("fast", 90), ("other", 3000)):
        one = Pending(instant="1", requested_ms=DAY_MS - age_s * 1000)
        world.states[name] = TableState(
            pool=world.pools.of(name), seen=True, snapshot_at=FOREVER, sweep_at=FOREVER, pending=(one,)
        )
    order = []
    for _ in range(3):
        sharing = Sharing(use=world.use, epoch_ms=DAY_MS)
        (take,) = next_steps(world.states, None, 0, Rules(), lambda n: 0, sharing).actions
        assert isinstance(take, Take)
        order.append(take.table)
        del world.states[take.table]
    assert order == ["fast", "other", "slow"], "1.5 of its minute, 0.8 of the usual hour, a twelfth of its day"


# Pools, hours and shares of a fleet, as pure functions.


def at(hour: int, minute: int = 0, day: int = 1, month: int = 1) -> int:
    return round(datetime(2026, month, day, hour, minute, tzinfo=UTC).timestamp() * 1000)


@for_each(
    [
        ("db/sales_eu", "sales_*", True),
        ("sales_eu", "sales_*", True),
        ("db/sales_eu", "db/*", True),
        ("db/sales_eu", "other/*", False),
        ("sales/eu", "sales*", False),
        ("db/Sales_eu", "sales_*", False),
        ("/data/lake/orders", "orders", True),
    ]
)
def test_a_pattern_without_a_slash_means_the_last_part_of_a_name(name: str, pattern: str, is_meant: bool) -> None:
    assert matches(name, pattern) is is_meant


def test_the_first_lane_that_matches_counts() -> None:
    pools = pools_of([Pool(match="sales_eu"), Pool(match="sales_*"), Pool(match="*", slo_s=5.0)], (), (), slo_s=9.0)
    assert [pools.of(n).match for n in ("a/sales_eu", "sales_us", "orders")] == ["sales_eu", "sales_*", "*"]
    assert [pool.slo_s for pool in pools.all] == [9.0, 9.0, 5.0]
    assert pools_of([], (), (), slo_s=9.0).of("x").slo_s == 9.0
    with pytest.raises(UsageError, match="same pattern"):
        pools_of([Pool(match="a"), Pool(match="a")], (), ())


def test_tables_are_left_out_by_name() -> None:
    pools = pools_of([], ("sales_*", "db/x"), ("*_tmp",))
    assert [n for n in ("db/sales_eu", "db/sales_tmp", "db/x", "other/x") if pools.takes(n)] == ["db/sales_eu", "db/x"]
    assert pools_of([], (), ()).takes("anything")


def test_lanes_without_a_weight_share_a_pool() -> None:
    pools = pools_of([Pool(match="a"), Pool(match="b", weight=2.0)], (), ())
    assert [pool.share for pool in pools.all] == ["*", "b", "*"]


@for_each([{"weight": 0.0}, {"quota": 1.1}, {"slo_s": -1.0}, {"daemons": 0}])
def test_impossible_rules_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Pool(match="a", **wrong)  # type: ignore[arg-type]


def test_hours_reach_over_midnight_and_follow_their_zone() -> None:
    night = Hours.parse("22:00-06:00")
    assert [night.hold(at(h)) for h in (21, 22, 0, 5, 6, 12)] == [False, True, True, True, False, False]
    day = Hours.parse("9:30-17:00")
    assert [day.hold(at(9, m)) for m in (29, 30)] == [False, True]
    berlin = Hours.parse("22:00-06:00 Europe/Berlin")
    assert [berlin.hold(at(21, month=m)) for m in (1, 7)] == [True, True]
    assert [berlin.hold(at(20, month=m)) for m in (1, 7)] == [False, True], "two hours ahead in summer"
    assert str(berlin) == "22:00-06:00 Europe/Berlin"


@for_each(["", "22-6", "25:00-06:00", "22:00-22:00", "22:00-06:00 Berlin", "22:00-06:00 ../x"])
def test_wrong_hours_are_refused(wrong: str) -> None:
    with pytest.raises(UsageError):
        Hours.parse(wrong)


def test_every_table_is_served_by_as_many_daemons_as_asked_for() -> None:
    members, names = ["a", "b", "c", "d"], [f"db/t{n}" for n in range(400)]
    for daemons, expected in ((1, 1), (2, 2), (4, 4), (9, 4)):
        assert all(sum(serves(m, members, n, daemons) for m in members) == expected for n in names)
    shares = [sum(serves(m, members, n, 1) for n in names) for m in members]
    assert min(shares) > 60
    assert not serves("not a member", members, "db/t1", 9)


def test_one_root_is_one_fleet_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lake").mkdir()
    monkeypatch.chdir(tmp_path)
    written = ("lake", "./lake/", f"{tmp_path}/lake//", f"file://{tmp_path}/lake", f"file:{tmp_path}/lake/")
    assert len({fleet_of(FolderListing(root, StorageOptions()).shown) for root in written}) == 1
    assert len({fleet_of(f"{scheme}://bucket/lake") for scheme in ("s3", "s3a", "s3n")}) == 1


def test_only_the_tables_of_a_daemon_that_went_move() -> None:
    members, names = ["a", "b", "c", "d"], [f"db/t{n}" for n in range(400)]
    before = {n: next(m for m in members if serves(m, members, n, 1)) for n in names}
    left = members[:3]
    after = {n: next(m for m in left if serves(m, left, n, 1)) for n in names}
    assert all(after[n] == before[n] for n in names if before[n] != "d")


# A budget: what begins first, and how much in an hour.


GB = 1 << 30


def work(name: str, gb: float = 1.0, logs: float = 1.0, **given: object) -> WaitingWork:
    """Of `gb` that are read, of which `logs` are log files."""
    gain = Gain(log_files=1, log_bytes=round(logs * GB), read_bytes=round(gb * GB))
    return WaitingWork(table=name, instant="1", gain=gain, **given)  # type: ignore[arg-type]


def test_the_order_of_work_under_a_budget() -> None:
    """The benefit for the cost, by what the table's own work took; waiting and reads count; a goal comes first."""
    found = rank(
        [
            work("dear", gb=10),
            work("cheap", gb=2),
            work("read", gb=10, costs=Costs(reads=4.0)),
            work("slow", gb=2, costs=Costs(core_s=60e-9 * 10, runs=3)),
            work("old", gb=10, waits_s=3600.0 * 5),
            work("goal", gb=50, late=1.2, goal=True),
            work("forgotten", gb=50, waits_s=DAY_MS / 1000, late=1.0),
        ],
        lambda _: {"": Budget.parse("2 core-hours")},
    )
    assert [one.table for one in found] == ["goal", "forgotten", "old", "cheap", "read", "dear", "slow"]
    assert found[0].why.startswith("its goal of freshness would be missed: 1 log file, 1.0 GiB, for 0.447 core-hours")
    assert "as its last 3 compactions took" in found[-1].why
    assert (found[0].begins_s, found[1].begins_s) == (0.0, round(50 * GB * 30e-9 / 2 - 60, 1)), (
        "a minute is saved up at first"
    )
    assert found[3].score == pytest.approx(5 * found[5].score)
    learned = Costs.learned(
        [
            WorkDone(id="0", kind=kind, outcome=outcome, who="", started_ms=0, ended_ms=1, planned_bytes=100,
                     bytes_read=100, bytes_written=50, core_seconds=2.0)
            for kind, outcome in (("compaction", "done"), ("compaction", "failed"), ("clean", "done"))
        ]
    )  # fmt: skip
    assert learned == Costs(bytes=1.5, core_s=0.02, runs=1, most=100)
    assert [learned.of(size, is_bytes=False) for size in (50, 100, GB)] == [1.0, 2.0, pytest.approx(2.0 + GB * 3e-7)]


@pytest.mark.parametrize("text", ["", "2", "2 core", "0core-hours", "0g", "-1g", "9" * 400 + "core-hours"])
def test_no_budget(text: str) -> None:
    """A number without a unit is no budget: two bytes an hour would hold all work."""
    with pytest.raises(UsageError, match="budget"):
        Rules(budget=text)
    with pytest.raises(UsageError, match="budget"):
        Pool(budget=text)


def test_the_order_of_a_dry_run_is_that_of_a_daemon() -> None:
    """A table's work begins in its own order, and what has a budget of its own is paid from both."""
    day, own = Budget.parse("24g"), Budget.parse("2g")
    works = [work("a", gb=10), work("a"), work("b", gb=5), work("c", gb=3), work("c")]
    found = rank(works, lambda name: {"c": own, "": day} if name == "c" else {"": day})
    assert [(one.table, round(one.cost / GB), round(one.begins_s)) for one in found] == [
        ("c", 6, 0), ("b", 10, 3600 * 8 // 24 - 60), ("a", 20, 3600 * 18 // 24 - 60), ("a", 2, 3600 * 38 // 24 - 60),
        ("c", 2, 3600 * 3 - 60),
    ]  # fmt: skip


def test_nothing_holds_the_work_of_a_budget_for_ever() -> None:
    """Not services that take more than the budget, nor work that waits for writers. An SLO counts as a day does."""
    use = QuotaUsage(pools=pools_of([Pool(match="a", slo_s=900.0)], (), ()), slots=9, began=0)
    states = dict[str, TableState]()
    for name in ("a", "b"):
        gain = Gain(log_files=1, log_bytes=GB, read_bytes=GB * (9 if name == "a" else 1))
        ones = tuple(Pending(instant=one, gain=gain, requested_ms=0) for one in ("1", "2"))
        states[name] = TableState(
            pool=use.pools.of(name), pending=ones, seen=True, snapshot_at=FOREVER, sweep_at=FOREVER
        )
    control = Control(rules=Rules(max_concurrent=9, budget="1g"), retry=RetryOptions(), use=use, tables=states)

    def turn(now: int) -> list[tuple[str, str]]:
        steps = control.decide(Moment(now_ms=now, epoch_ms=1_000_000 + now), lambda n: 0, 16)
        return [(one.table, one.instant) for one in steps.actions if isinstance(one, Take)]

    now = Moment(now_ms=0, epoch_ms=1_000_000)
    assert (turn(0), turn(0)) == ([("a", "1")], [])
    control.apply(WorkSuspended("a", "1"), now)
    assert turn(0) == [("a", "2")]
    control.apply(WorkSuspended("a", "2"), now)
    assert turn(0) == [("b", "1")]
    control.apply(WorkEnded("b", "1", bytes_read=GB), now)
    control.apply(ServicesRan("b", spent=(0.0, 100.0 * GB)), now)
    assert (turn(0), turn(1000)) == ([], [("b", "2")])


def test_a_budget_delays_and_drops_nothing() -> None:
    """Ten tables always have work, one of it larger than the budget of an hour. What work takes is twice of what was
    expected, and a service takes a part. Over thirty hours the average holds, and each table has its turns."""
    rules, now, begun = Rules(max_concurrent=2, budget="10g"), 0, Counter[str]()
    names = [f"t{n}" for n in range(10)]
    use = QuotaUsage(pools=pools_of([], (), ()), slots=2, began=0, members=1)
    states = {name: TableState(seen=True, snapshot_at=FOREVER, sweep_at=FOREVER) for name in names}
    control, spent = Control(rules=rules, retry=RetryOptions(), use=use, tables=states), 0

    def ask(name: str) -> None:
        gain = Gain(log_files=1, log_bytes=GB // 10, read_bytes=(20 if name == "t0" else 1) * GB // 2)
        one = Pending(instant=str(now), requested_ms=now, gain=gain)
        control.tables[name] = replace(control.tables[name], pending=(one,), postponed={}, snapshot_at=FOREVER)

    for name in names:
        ask(name)
    while now < DAY_MS * 5 // 4:
        at = Moment(now_ms=now, epoch_ms=now)
        for take in control.decide(at, lambda n: 0, 16).actions:
            assert isinstance(take, Take)
            size = 2 * (20 if take.table == "t0" else 1) * GB
            begun[take.table] += 1
            spent += size
            end = Moment(now_ms=now + 1000, epoch_ms=now + 1000)
            control.apply(WorkEnded(take.table, take.instant, bytes_read=size // 2, spent=(0.0, float(size))), end)
            ask(take.table)
        if now % 3_600_000 == 0:
            spent += GB
            control.apply(ServicesRan("t1", spent=(0.0, float(GB))), at)
        now += 60_000
    assert 29 * 10 * GB < spent <= 31 * 10 * GB + 40 * GB
    assert begun["t0"] >= 1
    assert min(begun.values()) > 0
    why = control.use.why_not(Pool(), now, now)
    assert why == "" or "the budget of 10.0 GiB an hour is used up" in why


def test_a_dry_run_prints_the_order_and_changes_nothing(tmp_path: Path) -> None:
    """Of all tables below a root; one that cannot be read is named, and one of which nothing is pending has no work."""
    for name in ("v9_pending", "v9_two_pending", "v9_plain"):
        unzip_golden(name, tmp_path / "zips" / name).rename(tmp_path / f"{name}-table")
    shutil.rmtree(tmp_path / "zips")
    (tmp_path / "v9_two_pending-table/.hoodie/hoodie.properties").write_text("hoodie.table.version=99")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    words = ["run", "--root", str(tmp_path), "--budget", "1g", "--dry-run"]
    shown = CliRunner().invoke(app, words)
    assert (shown.exit_code, "1 unit of work on 3 tables" in shown.stdout) == (1, True), shown.output
    assert re.search(
        r"^  1\. v9_pending-table, \d{17}, now: it has waited for .*: 4 log files, .*as compactions usually take",
        shown.stdout,
        re.M,
    )
    assert "not read: v9_two_pending-table: incomplete table properties" in shown.stdout
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    due = ["--schedule", "--sole-writer", "--trigger", "always"]
    wrong = CliRunner().invoke(app, [*words, "--include", "v9_plain*", *due, "--where", "nope = 1"])
    assert (wrong.exit_code, "other columns than those of partitions" in wrong.stdout) == (1, True), wrong.output
    refused = CliRunner().invoke(app, [*words[:3], "--dry-run"])
    assert "Add --budget" in str(refused.exception)


def test_a_daemon_that_begins_owes_what_was_spent_in_the_hour_before() -> None:
    """More than an hour's budget of it is paid first, by each of several daemons in its part; less changes nothing."""
    for members, size, free_s in ((1, 0.5, 0), (1, 1.5, 1801), (2, 1.5, 7201)):
        purse = Purse(Budget.parse("1g"), 0)
        for _ in range(2):
            purse.owes(9.0, size * GB / 2, members)
        assert bool(purse.why_not(0, members)) is bool(free_s)
        assert bool(purse.why_not(free_s * 1000 - 2000, members)) is bool(free_s)
        assert not purse.why_not(free_s * 1000, members)
        if free_s:  # a table that comes later: what others owed is paid
            purse.owes(0.0, GB / 2, members)
            assert not purse.why_not((free_s + members * 1801) * 1000, members)
