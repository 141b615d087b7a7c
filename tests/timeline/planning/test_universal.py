"""Universal picking: literal sizes in, decision out."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.errors import UsageError
from phantombase.timeline.planning.universal import MergeKind, Picking, PickOptions, Stack, pick

NOON, NIGHT = datetime(2026, 11, 22, 12), datetime(2026, 11, 22, 23)
U = Picking.UNIVERSAL


def options(**said: Any) -> PickOptions:
    """Universal options."""
    return PickOptions(picking=U, **said)


def picked(base: int, *logs: int, now: datetime = NOON, stack: dict[str, Any] | None = None, **said: Any) -> str:
    """`major`, `none`, or `minor` with the number of log files merged."""
    given_ = Stack(base=base, logs=logs, delta_commits=len(logs), **(stack or {}))
    found = pick(given_, options(**said), now)
    assert found.why
    return f"minor {found.logs}" if found.kind is MergeKind.MINOR else found.kind.value


@pytest.mark.parametrize(
    ("story", "expected", "base", "logs", "said"),
    [
        ("four small logs are fewer than the trigger", "none", 1000, (1, 1, 1, 1), {}),
        ("five equal small logs become one", "minor 5", 1000, (1, 1, 1, 1, 1), {}),
        ("a trigger of three is reached by three", "minor 3", 1000, (1, 1, 1), {"compaction_trigger": 3}),
        ("logs of three times the base: a new base", "major", 100, (60, 60, 60, 60, 60), {}),
        ("at exactly the amplification: not yet", "minor 5", 1000, (40,) * 5, {"max_size_amplification": 20}),
        ("above the amplification: a new base", "major", 1000, (40,) * 5, {"max_size_amplification": 19}),
        ("a slice without base file gets one", "major", 0, (1, 1, 1, 1, 1), {}),
        ("the older log is much larger: it stays", "minor 4", 10_000, (1000, 1, 1, 1, 1), {}),
        ("each older log is much larger, five of five: nothing", "none", 10**6, (10**5, 10**4, 1000, 100, 10), {}),
        ("six such logs: the youngest two", "minor 2", 10**7, (10**6, 10**5, 10**4, 1000, 100, 10), {}),
        ("a ratio of 900 % takes them all", "minor 5", 10**7, (10**5, 10**4, 1000, 100, 10), {"size_ratio": 900}),
        ("equal to the base: it is merged as well", "major", 5, (1, 1, 1, 1, 1), {}),
        ("the interval has not passed", "none", 100, (1,), {"optimization_interval_s": 61.0}),
        ("the interval has passed", "major", 100, (1,), {"optimization_interval_s": 60.0}),
        ("a tiny slice, whatever its logs", "major", 100, (1,), {"total_size_threshold": 102}),
        ("not that tiny", "none", 100, (1,), {"total_size_threshold": 101}),
        ("many log bytes, however few files", "major", 10**6, (51,), {"incremental_size_threshold": 50}),
        ("not that many", "none", 10**6, (50,), {"incremental_size_threshold": 50}),
        ("so many delta commits", "major", 10**6, (1, 1), {"full_compaction_delta_commits": 2}),
        ("fewer", "none", 10**6, (1, 1), {"full_compaction_delta_commits": 3}),
        ("half of its rows deleted", "major", 10**6, (1,), {"delete_ratio_threshold": 0.5}),
        ("fewer deleted", "none", 10**6, (1,), {"delete_ratio_threshold": 0.6}),
    ],
)  # fmt: skip
def test_a_slice_is_picked(story: str, expected: str, base: int, logs: tuple[int, ...], said: dict[str, Any]) -> None:
    stack: dict[str, Any] = {"age_s": 60.0, "deleted_share": 0.5}
    assert picked(base, *logs, stack=stack, **said) == expected, story


def test_off_peak_hours_have_a_ratio_of_their_own() -> None:
    logs = (10**5, 10**4, 1000, 100, 10)
    said: dict[str, Any] = {"off_peak_hours": "22-6", "off_peak_ratio": 900}
    assert picked(10**7, *logs, now=NOON, **said) == "none"
    assert picked(10**7, *logs, now=NIGHT, **said) == "minor 5"
    assert picked(10**7, *logs, now=NIGHT, off_peak_hours="6-22", off_peak_ratio=900) == "none"


def test_an_unknown_age_fires_no_interval() -> None:
    assert picked(100, 1, optimization_interval_s=1.0) == "none"


def test_a_pick_is_possible_and_useful() -> None:
    """Minor takes two of the logs at least, and a slice above the trigger never stays as it is."""
    seen = set()

    @given(
        st.integers(0, 10**6),
        st.lists(st.integers(1, 10**6), min_size=1, max_size=12),
        st.integers(2, 8),
        st.integers(0, 500),
    )
    def check(base: int, logs: list[int], trigger: int, ratio: int) -> None:
        stack = Stack(base=base, logs=tuple(logs), delta_commits=len(logs))
        found = pick(stack, options(compaction_trigger=trigger, size_ratio=ratio), NOON)
        seen.add(found.kind)
        if found.kind is MergeKind.MINOR:
            assert 2 <= found.logs <= len(logs)
        if found.kind is MergeKind.NONE:
            assert len(logs) <= trigger
        if len(logs) < trigger:
            assert found.kind is MergeKind.NONE

    check()
    assert seen == set(MergeKind)


@pytest.mark.parametrize(
    "said",
    [
        {"picking": U, "compaction_trigger": 1},
        {"picking": U, "size_ratio": -1},
        {"picking": U, "max_size_amplification": 0},
        {"picking": U, "delete_ratio_threshold": 0.0},
        {"picking": U, "delete_ratio_threshold": 1.1},
        {"picking": U, "off_peak_hours": "22"},
        {"picking": U, "off_peak_hours": "6-6"},
        {"picking": U, "off_peak_hours": "24-6"},
        {"picking": U, "off_peak_ratio": 5},
        {"size_ratio": 50},
        {"total_size_threshold": 1},
        {"readers_1x_only": True},
    ],
)
def test_options_that_say_nothing_possible_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        PickOptions(**said)
