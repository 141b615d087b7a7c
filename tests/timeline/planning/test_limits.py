"""Filling plans: literal costs in, plans out. A candidate is a name and a size in bytes, like `a5`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.errors import UsageError
from phantombase.timeline.planning.limits import BoundOptions, Cost, Filled, fill


def cost_of(candidate: str) -> Cost:
    """A slice of so many bytes, twice as much to read and write, a tenth as many rows."""
    size = int(candidate[1:])
    return Cost(slices=1, source_bytes=size, io_bytes=2 * size, rows=size // 10)


def filled(candidates: Iterable[str], **said: Any) -> Filled[str]:
    return fill(candidates, cost_of, BoundOptions(**said))


@pytest.mark.parametrize(
    ("story", "said", "expected"),
    [
        ("no limit: everything in one plan", {}, ["a5 b5 c5 d5"]),
        ("two slices a plan", {"max_file_slices": 2}, ["a5 b5"]),
        ("two slices a plan, two plans", {"max_file_slices": 2, "max_plans": 2}, ["a5 b5", "c5 d5"]),
        ("three plans, and only enough for two", {"max_file_slices": 2, "max_plans": 3}, ["a5 b5", "c5 d5"]),
        ("exactly full", {"max_source_bytes": 10}, ["a5 b5"]),
        ("the next one does not fit", {"max_source_bytes": 14}, ["a5 b5"]),
        ("the first is always in", {"max_source_bytes": 3}, ["a5"]),
        ("what is read and written", {"target_io_bytes": 30}, ["a5 b5 c5"]),
        ("the tighter of two limits", {"target_io_bytes": 30, "max_source_bytes": 10}, ["a5 b5"]),
        ("a first that is too large, hard: an empty plan", {"max_source_bytes": 3, "hard": True}, []),
        ("no limit, two plans: evenly", {"max_plans": 2}, ["a5 b5", "c5 d5"]),
    ],
)
def test_plans_are_filled(story: str, said: dict[str, Any], expected: list[str]) -> None:
    assert [" ".join(p) for p in filled(["a5", "b5", "c5", "d5"], **said).plans] == expected, story


def test_what_is_too_large_is_left_out_and_the_rest_goes_on() -> None:
    """Hard: the giant never fits, and does not stand in the way of those behind it."""
    found = filled(["a5", "g99", "b5", "c5"], max_source_bytes=10, hard=True)
    assert found.plans == (("a5", "b5"),)
    assert [c for c, _ in found.left] == ["g99"]
    assert "by itself larger than max_source_bytes=10" in found.left[0][1]


def test_a_giant_is_a_plan_of_its_own_when_its_turn_comes() -> None:
    """Soft: it closes the plan before it, and is the first of the next."""
    assert filled(["a5", "g99", "b5"], max_source_bytes=10).plans == (("a5",),)
    assert filled(["g99", "b5"], max_source_bytes=10).plans == (("g99",),)
    assert filled(["a5", "g99", "b5"], max_source_bytes=10, max_plans=3).plans == (("a5",), ("g99",), ("b5",))


def test_nothing_behind_the_end_of_the_last_plan_is_asked_for() -> None:
    asked: list[str] = []

    def candidates() -> Iterator[str]:
        for name in "abcdef":
            asked.append(name)
            yield f"{name}5"

    found = fill(candidates(), cost_of, BoundOptions(max_file_slices=2))
    assert asked == ["a", "b"]
    assert found.closed == "max_file_slices=2"
    assert found.left == ()


COSTS = st.lists(st.integers(1, 200), max_size=30)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_file_slices": st.integers(1, 10),
        "max_source_bytes": st.integers(1, 500),
        "max_source_rows": st.integers(1, 50),
        "target_io_bytes": st.integers(1, 1000),
    },
)


@given(COSTS, LIMITS, st.integers(1, 4), st.booleans())
def test_limits_are_kept(costs: list[int], limits: dict[str, int], plans: int, hard: bool) -> None:
    """Never exceeded when hard; else by no more than the first of a plan. Nobody is in two plans, or lost."""
    options = BoundOptions(**limits, max_plans=plans, hard=hard and bool(limits))  # type: ignore[arg-type]
    given_ = [f"{chr(97 + n)}{size}" for n, size in enumerate(costs)]
    found = fill(given_, cost_of, options)
    assert len(found.plans) <= plans
    for plan in found.plans:
        total = sum((cost_of(c) for c in plan), Cost())
        if options.exceeded(total) is not None:
            assert len(plan) == 1
            assert not options.hard
    taken = [c for plan in found.plans for c in plan]
    left = [c for c, _ in found.left]
    assert len({*taken, *left}) == len(taken) + len(left)
    assert all(why for _, why in found.left)
    if found.closed is None:
        assert sorted(taken + left) == sorted(given_)
    if not options.hard:
        assert taken == given_[: len(taken)]
        assert bool(taken) == bool(given_)


@given(st.lists(st.integers(1, 200), min_size=2, max_size=30), st.integers(1, 6))
def test_plans_share_evenly(costs: list[int], plans: int) -> None:
    """No plan is larger than its share by more than the largest candidate."""
    given_ = [f"{chr(97 + n)}{size}" for n, size in enumerate(costs)]
    found = filled(given_, max_plans=plans)
    assert [c for plan in found.plans for c in plan] == given_
    for plan in found.plans:
        assert sum(cost_of(c).io_bytes for c in plan) <= 2 * sum(costs) / plans + 2 * max(costs)


@pytest.mark.parametrize(
    "name", ["max_file_slices", "max_source_bytes", "max_source_rows", "target_io_bytes", "max_plans"]
)
@pytest.mark.parametrize("value", [0, -1])
def test_zero_and_less_are_refused(name: str, value: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        BoundOptions(**{name: value})  # type: ignore[arg-type]


def test_hard_without_a_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="no limit is set"):
        BoundOptions(hard=True)
