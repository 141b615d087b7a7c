"""How soon log files are due, by partition."""

from __future__ import annotations

from typing import Any

import pytest

from phantombase.timeline.errors import UsageError
from phantombase.timeline.planning.options import Urgency, UrgencyOptions

RADICAL, GENTLE = Urgency.RADICAL, Urgency.GENTLE


@pytest.mark.parametrize(
    ("story", "said", "partition", "waited", "due"),
    [
        ("gentle waits for the trigger", {}, "2026/11/22", 9e9, False),
        ("radical does not", {"urgency": RADICAL}, "2026/11/22", 0.0, True),
        ("gentle, but too old", {"max_interval_s": 60.0}, "2026/11/22", 60.0, True),
        ("gentle, and young", {"max_interval_s": 60.0}, "2026/11/22", 59.0, False),
        ("nobody knows how old", {"max_interval_s": 60.0}, "2026/11/22", None, False),
        ("this month is radical", {"partition_urgency": ("2026/11/*=radical",)}, "2026/11/22", 0.0, True),
        ("the month before is not", {"partition_urgency": ("2026/11/*=radical",)}, "2026/10/22", 0.0, False),
        ("the first pattern counts", {"partition_urgency": ("2026/*=gentle", "*=radical")}, "2026/11", 0.0, False),
        ("a name with =", {"partition_urgency": ("day=2026*=radical",)}, "day=2026-11-22", 0.0, True),
    ],
)  # fmt: skip
def test_due(story: str, said: dict[str, Any], partition: str, waited: float | None, due: bool) -> None:
    assert UrgencyOptions(**said).is_due(partition, waited) is due, story


def test_the_timeline_alone_says_when_to_look() -> None:
    assert not UrgencyOptions().fires(99, 9e9)
    assert UrgencyOptions(urgency=RADICAL).fires(1, 0.0)
    assert not UrgencyOptions(urgency=RADICAL).fires(0, 9e9)
    assert UrgencyOptions(partition_urgency=("x=radical",)).fires(1, 0.0)
    assert UrgencyOptions(max_interval_s=60).fires(0, 60.0)
    assert not UrgencyOptions(max_interval_s=60).fires(5, 59.0)


@pytest.mark.parametrize(
    "said",
    [
        {"urgency": RADICAL, "max_interval_s": 60.0},
        {"max_interval_s": 0.0},
        {"partition_urgency": ("2026",)},
        {"partition_urgency": ("2026=fast",)},
        {"partition_urgency": ("=radical",)},
    ],
)
def test_contradictions_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        UrgencyOptions(**said)


def test_an_interval_for_the_gentle_partitions_of_a_radical_table() -> None:
    UrgencyOptions(urgency=RADICAL, partition_urgency=("old/*=gentle",), max_interval_s=60.0)
