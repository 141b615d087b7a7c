"""Lanes, hours and shares of a fleet, as pure functions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from phantombase.compactor_daemon.lake.hours import Hours
from phantombase.compactor_daemon.lake.lanes import Lane, lanes_of, matches
from phantombase.compactor_daemon.lake.shares import serves
from phantombase.timeline.errors import UsageError


def at(hour: int, minute: int = 0, day: int = 1, month: int = 1) -> int:
    return round(datetime(2026, month, day, hour, minute, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("name", "pattern", "is_meant"),
    [
        ("db/sales_eu", "sales_*", True),
        ("sales_eu", "sales_*", True),
        ("db/sales_eu", "db/*", True),
        ("db/sales_eu", "other/*", False),
        ("sales/eu", "sales*", False),
        ("db/Sales_eu", "sales_*", False),
        ("/data/lake/orders", "orders", True),
    ],
)
def test_a_pattern_without_a_slash_means_the_last_part_of_a_name(name: str, pattern: str, is_meant: bool) -> None:
    assert matches(name, pattern) is is_meant


def test_the_first_lane_that_matches_counts() -> None:
    lanes = lanes_of([Lane(match="sales_eu"), Lane(match="sales_*"), Lane(match="*", slo_s=5.0)], (), (), slo_s=9.0)
    assert [lanes.of(n).match for n in ("a/sales_eu", "sales_us", "orders")] == ["sales_eu", "sales_*", "*"]
    assert [lane.slo_s for lane in lanes.all] == [9.0, 9.0, 5.0]
    assert lanes_of([], (), (), slo_s=9.0).of("x").slo_s == 9.0
    with pytest.raises(UsageError, match="same pattern"):
        lanes_of([Lane(match="a"), Lane(match="a")], (), ())


def test_tables_are_left_out_by_name() -> None:
    lanes = lanes_of([], ("sales_*", "db/x"), ("*_tmp",))
    assert [n for n in ("db/sales_eu", "db/sales_tmp", "db/x", "other/x") if lanes.takes(n)] == ["db/sales_eu", "db/x"]
    assert lanes_of([], (), ()).takes("anything")


def test_lanes_without_a_weight_share_a_pool() -> None:
    lanes = lanes_of([Lane(match="a"), Lane(match="b", weight=2.0)], (), ())
    assert [lane.pool for lane in lanes.all] == ["*", "b", "*"]


@pytest.mark.parametrize("wrong", [{"weight": 0.0}, {"quota": 1.1}, {"slo_s": -1.0}, {"daemons": 0}])
def test_impossible_rules_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Lane(match="a", **wrong)  # type: ignore[arg-type]


def test_hours_reach_over_midnight_and_follow_their_zone() -> None:
    night = Hours.parse("22:00-06:00")
    assert [night.hold(at(h)) for h in (21, 22, 0, 5, 6, 12)] == [False, True, True, True, False, False]
    day = Hours.parse("9:30-17:00")
    assert [day.hold(at(9, m)) for m in (29, 30)] == [False, True]
    berlin = Hours.parse("22:00-06:00 Europe/Berlin")
    assert [berlin.hold(at(21, month=m)) for m in (1, 7)] == [True, True]
    assert [berlin.hold(at(20, month=m)) for m in (1, 7)] == [False, True], "two hours ahead in summer"
    assert str(berlin) == "22:00-06:00 Europe/Berlin"


@pytest.mark.parametrize("wrong", ["", "22-6", "25:00-06:00", "22:00-22:00", "22:00-06:00 Berlin", "22:00-06:00 ../x"])
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


def test_only_the_tables_of_a_daemon_that_went_move() -> None:
    members, names = ["a", "b", "c", "d"], [f"db/t{n}" for n in range(400)]
    before = {n: next(m for m in members if serves(m, members, n, 1)) for n in names}
    left = members[:3]
    after = {n: next(m for m in left if serves(m, left, n, 1)) for n in names}
    assert all(after[n] == before[n] for n in names if before[n] != "d")
