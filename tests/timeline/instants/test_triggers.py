"""When a compaction is due: each strategy on both layouts, as Hudi 0.15.0 and 1.2.0 count."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from phantombase.compactor_daemon.services.hudi_conf import parse_schedule_conf
from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2
from phantombase.timeline.instants.triggers import TriggerStrategy, Urgency, UrgencyOptions, triggered
from phantombase.timeline.planning.options import PLAN_NOW, ScheduleOptions
from phantombase.timeline.planning.strategies import Strategy
from tests.support.builders import timeline_of

S = TriggerStrategy
DAY = "20260101"
NOW = datetime(2026, 1, 1, 0, 10, 0, 900_000)
"""Ten minutes and a part of a second after `at(0)`."""


def at(second: int) -> str:
    """An instant time."""
    return f"{DAY}{second // 3600:02d}{second // 60 % 60:02d}{second % 60:02d}500"


def v6(*names: str) -> list[str]:
    """File names of version 6 from `d1` (completed delta commit at second 1), `D` pending, `c`/`C` compactions."""
    kinds = {"d": ".deltacommit", "D": ".deltacommit.inflight", "c": ".commit", "C": ".compaction.requested"}
    return [at(int(n[1:])) + kinds[n[0]] for n in names]


def v9(*names: str) -> list[str]:
    """The same of version 9; `d1-4` completed at second 4, otherwise in the second after."""
    found = []
    for name in names:
        begin, _, end = name[1:].partition("-")
        completed = {"d": "deltacommit", "c": "commit"}.get(name[0])
        pending = {"D": "deltacommit.inflight", "C": "compaction.requested"}.get(name[0])
        found.append(
            f"{at(int(begin))}_{at(int(end or int(begin) + 1))}.{completed}"
            if completed
            else f"{at(int(begin))}.{pending}"
        )
    return found


def counted(names: list[str], strategy: TriggerStrategy) -> int:
    """How many delta commits it counts: the largest number that still fires."""
    timeline = timeline_of(LAYOUT_2 if any("_" in n for n in names) else LAYOUT_1, *names)
    fires = [
        n
        for n in range(1, 20)
        if triggered(timeline, NOW, ScheduleOptions(strategy=strategy, max_delta_commits=n)).fired
    ]
    assert fires == list(range(1, len(fires) + 1))
    return len(fires)


@pytest.mark.parametrize(
    ("names", "completed", "requested"),
    [
        (("d1", "d2", "d3"), 3, 3),
        (("d1", "d2", "D3"), 3, 3),  # a pending delta commit counts on version 6
        (("d1", "c2", "d3", "d4"), 2, 2),
        (("d1", "C2", "d3", "d4"), 3, 2),
        (("d1", "c2", "d3", "C4", "d5"), 2, 1),
        (("d1", "C2", "d3", "c4", "d5"), 1, 2),  # the pending one comes first, though a later one is completed
        (("d1", "c2"), 0, 0),
        (("c2", "d2", "d3"), 1, 1),
    ],
)
def test_commits_on_version_6(names: tuple[str, ...], completed: int, requested: int) -> None:
    """By requested time."""
    assert counted(v6(*names), S.NUM_COMMITS) == completed
    assert counted(v6(*names), S.NUM_COMMITS_AFTER_LAST_REQUEST) == requested


@pytest.mark.parametrize(
    ("names", "completed", "requested"),
    [
        (("d1", "d2", "d3"), 3, 3),
        (("d1", "d2", "D3"), 2, 3),  # completed ones only; after a request pending ones too
        (("d1", "c3", "d5", "d6"), 2, 2),
        (("d1-4", "c3", "d5"), 2, 1),  # begun before the compaction, completed after it was requested
        (("d1", "C3", "d5", "D6"), 2, 2),
        (("d1-3", "c3", "d5"), 1, 1),
    ],
)
def test_commits_on_version_9(names: tuple[str, ...], completed: int, requested: int) -> None:
    """Since the last completed compaction by completion time, since the last request by requested time."""
    assert counted(v9(*names), S.NUM_COMMITS) == completed
    assert counted(v9(*names), S.NUM_COMMITS_AFTER_LAST_REQUEST) == requested


@pytest.mark.parametrize(
    ("names", "seconds"), [(("d0", "d300"), 600), (("d0", "c300", "d400"), 300), (("d0", "C300"), 600), (("D0",), 600)]
)
def test_seconds_are_whole_and_from_the_last_completed_compaction(names: tuple[str, ...], seconds: int) -> None:
    """From the first delta commit where none is completed; half a second more or less is nothing."""
    timeline = timeline_of(LAYOUT_1, *v6(*names))
    for limit, fires in ((seconds, True), (seconds + 1, False)):
        options = ScheduleOptions(strategy=S.TIME_ELAPSED, max_delta_seconds=limit)
        assert triggered(timeline, NOW, options).fired is fires


@pytest.mark.parametrize(("commits", "seconds"), [(2, 600), (2, 601), (3, 600), (3, 601)])
def test_both_and_either(commits: int, seconds: int) -> None:
    """NUM_AND_TIME needs both, NUM_OR_TIME one of them."""
    timeline = timeline_of(LAYOUT_1, *v6("d0", "d1"))
    enough, late = commits == 2, seconds == 600
    for strategy, fires in ((S.NUM_AND_TIME, enough and late), (S.NUM_OR_TIME, enough or late)):
        options = ScheduleOptions(strategy=strategy, max_delta_commits=commits, max_delta_seconds=seconds)
        assert triggered(timeline, NOW, options).fired is fires


@pytest.mark.parametrize("strategy", [s for s in S if s is not S.ALWAYS])
def test_an_empty_timeline_never_fires(strategy: TriggerStrategy) -> None:
    """No delta commit and no compaction: nothing can be due."""
    options = ScheduleOptions(strategy=strategy, max_delta_seconds=0)
    assert triggered(timeline_of(LAYOUT_1), NOW, options).why == "no delta commit yet"


def test_pending_plans_are_limited() -> None:
    """Whatever the strategy says."""
    timeline = timeline_of(LAYOUT_1, *v6("d1", "C2", "C3"))
    for limit, fires in ((2, False), (3, True)):
        found = triggered(timeline, NOW, ScheduleOptions(strategy=S.ALWAYS, max_pending=limit))
        assert found.fired is fires
    assert triggered(timeline, NOW, PLAN_NOW).fired


def test_hudis_names() -> None:
    """Hudi's names and units."""
    pairs = [
        "hoodie.compact.inline.trigger.strategy=NUM_OR_TIME",
        "hoodie.compact.inline.max.delta.commits=7",
        "hoodie.compact.inline.max.delta.seconds=90",
        "hoodie.compaction.target.io=512",
    ]
    expected = ScheduleOptions(
        strategy=S.NUM_OR_TIME,
        max_delta_commits=7,
        max_delta_seconds=90,
        strategies=(Strategy.LOG_FILE_SIZE,),
        strategy_io_mb=512,
    )
    assert ScheduleOptions(**parse_schedule_conf(pairs)) == expected


@pytest.mark.parametrize(
    "pair",
    [
        "hoodie.compact.inline.trigger.strategy=ALWAYS",
        "hoodie.compact.inline.trigger.strategy=SOMETIMES",
        "hoodie.compact.inline.max.delta.commits=many",
        "hoodie.parquet.compression.codec=zstd",
    ],
)
def test_other_names_and_values_are_refused(pair: str) -> None:
    """Never an option that does nothing."""
    with pytest.raises(UsageError):
        parse_schedule_conf([pair])


@pytest.mark.parametrize(
    "options",
    [{"max_delta_commits": 0}, {"max_delta_seconds": -1}, {"max_pending": 0}, {"target_io_bytes": 0}, {"gate_s": 301}],
)
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    """Named, with what is possible."""
    with pytest.raises(UsageError):
        ScheduleOptions(**options)  # type: ignore[arg-type]


# How soon log files are due, by partition.


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
