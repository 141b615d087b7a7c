"""Hudi's strategies: literal sizes in, choice out; and that nothing is lost or left out without a reason."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import date, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.compactor_daemon.services.hudi_conf import parse_schedule_conf
from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.planning.limits import MB, MergeKind, Picking, PickOptions, Stack, io_mb, pick
from phantombase.timeline.planning.strategies import (
    STRATEGY_CONF,
    Strategy,
    StrategyOptions,
    StrategySelection,
    keep_partitions,
    keep_slices,
    strategy_of,
)
from phantombase.timeline.view.view import DataFile, FileSlice
from tests.support.selection import for_each

S = Strategy
TODAY = date(2026, 11, 22)
PACKAGE = "org.apache.hudi.table.action.compact.strategy."


def slice_of(name: str, base: int | None, *logs: int, day: str = "2026/11/22") -> FileSlice:
    """A file slice with a base file, or None, and logs of so many bytes."""
    return FileSlice(
        partition=day,
        file_id=name,
        base_instant="1",
        base=None
        if base is None
        else DataFile(partition=day, name=BaseFileName(file_id=name, token="0-0-0", instant="1"), size=base),
        logs=tuple(
            DataFile(partition=day, name=LogFileName(file_id=name, instant="2", version=number), size=size)
            for number, size in enumerate(logs, 1)
        ),
    )


def options_of(*strategies: Strategy, **said: Any) -> StrategyOptions:
    """Options of these strategies in order."""
    return StrategyOptions(strategies=strategies, **said)


def names(chosen: StrategySelection[FileSlice]) -> str:
    """File ids of what is kept, in order."""
    return "".join(s.file_id for s in chosen.kept)


A = slice_of("a", 3 * MB, 100)
B = slice_of("b", None, 300, 10)
C = slice_of("c", MB - 1000, 50, 50, 50)
D = slice_of("d", 5 * MB, 2 * MB)
"""6 MB, 120 MB, 0 MB, 12 MB of reads and writes; 1, 2, 3, 1 log files."""


@for_each(
    [
        ("all, as they come", options_of(S.UNBOUNDED), "abcd"),
        ("a target of nothing takes nothing", options_of(S.BOUNDED_IO, strategy_io_mb=0), ""),
        ("the first goes beyond the target and is taken", options_of(S.BOUNDED_IO, strategy_io_mb=1), "a"),
        ("exactly reached: no more", options_of(S.BOUNDED_IO, strategy_io_mb=6), "a"),
        ("just not reached: one more", options_of(S.BOUNDED_IO, strategy_io_mb=7), "ab"),
        ("all but the last reach it together", options_of(S.BOUNDED_IO, strategy_io_mb=126), "ab"),
        ("0 MB more changes nothing", options_of(S.BOUNDED_IO, strategy_io_mb=127), "abcd"),
        ("largest logs first", options_of(S.LOG_FILE_SIZE), "dbca"),
        ("from the threshold on", options_of(S.LOG_FILE_SIZE, log_size_threshold=150), "dbc"),
        ("one byte more", options_of(S.LOG_FILE_SIZE, log_size_threshold=151), "db"),
        ("the largest is enough", options_of(S.LOG_FILE_SIZE, strategy_io_mb=12), "d"),
        ("threshold, then target", options_of(S.LOG_FILE_SIZE, log_size_threshold=150, strategy_io_mb=13), "db"),
        ("most logs first, ties as they come", options_of(S.LOG_FILE_NUM), "cbad"),
        ("at least two logs", options_of(S.LOG_FILE_NUM, log_num_threshold=2), "cb"),
        ("0 MB first, so one more fits", options_of(S.LOG_FILE_NUM, strategy_io_mb=1), "cb"),
        ("day-based keeps the order it is given", options_of(S.DAY_BASED, strategy_io_mb=7), "ab"),
        ("an expression is a matter of partitions", options_of(S.PARTITION_REGEX, partition_regex="x"), "abcd"),
        ("today is no more than 0 days ago", options_of(S.BOUNDED_PARTITION_AWARE, target_partitions=0), "abcd"),
        ("and not older", options_of(S.UNBOUNDED_PARTITION_AWARE, target_partitions=0), ""),
        (
            "the second sees what the first has kept, in its order",
            options_of(S.LOG_FILE_NUM, S.BOUNDED_IO, log_num_threshold=2, strategy_io_mb=120),
            "cb",
        ),
        ("the other way round", options_of(S.BOUNDED_IO, S.LOG_FILE_NUM, strategy_io_mb=1), "a"),
        ("both bounds", options_of(S.LOG_FILE_SIZE, S.LOG_FILE_NUM, log_size_threshold=150, log_num_threshold=2), "cb"),
    ]
)
def test_slices(story: str, options: StrategyOptions, kept: str) -> None:
    """Which slices, in which order."""
    assert names(keep_slices((A, B, C, D), options, TODAY)) == kept, story


def days(*ages: int) -> list[str]:
    """Partitions of so many days ago."""
    return [(TODAY - timedelta(days=age)).strftime("%Y/%m/%d") for age in ages]


@pytest.mark.parametrize(
    ("story", "given", "options", "kept"),
    [
        ("most strategies look everywhere", ["x", ""], options_of(S.LOG_FILE_SIZE), ["x", ""]),
        ("the newest two", days(5, 0, 9, 1), options_of(S.DAY_BASED, target_partitions=2), days(0, 1)),
        ("the future is newest", days(0, -3), options_of(S.DAY_BASED, target_partitions=1), days(-3)),
        ("none", days(0), options_of(S.DAY_BASED, target_partitions=0), []),
        ("months are numbers", ["2026/9/30", "2026/10/1"], options_of(S.DAY_BASED, target_partitions=1), ["2026/10/1"]),
        (
            "partitions count, not days",
            ["2026/11/20/05", "2026/11/21/eu-1", "2026/11/21/us-1"],
            options_of(S.DAY_BASED, target_partitions=2),
            ["2026/11/21/eu-1", "2026/11/21/us-1"],
        ),
        (
            "Hive style",
            ["year=2026/month=11/day=20", "year=2026/month=11/day=21", "dt=2026/11/19"],
            options_of(S.DAY_BASED, target_partitions=2),
            ["year=2026/month=11/day=21", "year=2026/month=11/day=20"],
        ),
        (
            "two days ago and later",
            days(3, 2, -1, 0),
            options_of(S.BOUNDED_PARTITION_AWARE, target_partitions=2),
            days(-1, 0, 2),
        ),
        ("before that", days(3, 2, 9, 0), options_of(S.UNBOUNDED_PARTITION_AWARE, target_partitions=2), days(3, 9)),
        (
            "further back than time",
            days(0, 999),
            options_of(S.BOUNDED_PARTITION_AWARE, target_partitions=10**9),
            days(0, 999),
        ),
        (
            "found anywhere in the path",
            ["a/b", "b/c", "c"],
            options_of(S.PARTITION_REGEX, partition_regex="b"),
            ["a/b", "b/c"],
        ),
        ("digits are ASCII, as in Java", ["1", "١"], options_of(S.PARTITION_REGEX, partition_regex=r"\d"), ["1"]),
        (
            "one after the other",
            days(1, 2, 3, 4),
            options_of(S.DAY_BASED, S.UNBOUNDED_PARTITION_AWARE, target_partitions=3),
            [],
        ),
        (
            "an expression before days, so that all it keeps are days",
            ["default", *days(2, 1)],
            options_of(S.PARTITION_REGEX, S.DAY_BASED, partition_regex="^2", target_partitions=1),
            days(1),
        ),
    ],
)
def test_partitions(story: str, given: list[str], options: StrategyOptions, kept: list[str]) -> None:
    """Which partitions, in which order."""
    chosen = keep_partitions(given, options, TODAY)
    assert list(chosen.kept) == kept, story
    assert sorted([*chosen.kept, *(p for p, _ in chosen.left)]) == sorted(given)


def test_slices_of_newer_days_first() -> None:
    """Bounded partition-aware sorts what is left by day; slices of a day stay as they come, partition by partition."""
    given = [slice_of("a", 1, 1, day=days(2)[0]), *(slice_of(n, 1, 1, day=days(0)[0]) for n in "bc")]
    assert names(keep_slices(given, options_of(S.BOUNDED_PARTITION_AWARE), TODAY)) == "bca"


def test_reasons() -> None:
    """Each left out says the rule and both numbers."""
    size = keep_slices((A, B, D), options_of(S.LOG_FILE_SIZE, log_size_threshold=200, strategy_io_mb=12), TODAY)
    assert {s.file_id: why for s, why in size.left} == {
        "a": "100 bytes of log files, compacted from 200 on",
        "b": "the plan reads and writes 12 MB without it, its target is 12 MB",
    }
    count = keep_slices((A,), options_of(S.LOG_FILE_NUM, log_num_threshold=2), TODAY)
    assert count.left == ((A, "1 log files, compacted from 2 on"),)
    newest = keep_partitions(days(0, 1), options_of(S.DAY_BASED, target_partitions=1), TODAY)
    assert newest.left == ((days(1)[0], "2 partitions, and only the newest 1 are compacted"),)
    old = keep_partitions(days(3), options_of(S.BOUNDED_PARTITION_AWARE, target_partitions=2), TODAY)
    assert old.left == ((days(3)[0], "the partition's day is 3 days ago, compacted up to 2 days"),)
    new = keep_partitions(days(2), options_of(S.UNBOUNDED_PARTITION_AWARE, target_partitions=2), TODAY)
    assert new.left == ((days(2)[0], "the partition's day is 2 days ago, compacted from 3 days on"),)
    other = keep_partitions(["a"], options_of(S.PARTITION_REGEX, partition_regex="b"), TODAY)
    assert other.left == (("a", "the partition's path does not contain 'b'"),)


@for_each(
    product(
        [S.DAY_BASED, S.BOUNDED_PARTITION_AWARE, S.UNBOUNDED_PARTITION_AWARE],
        [
            "",
            "north",
            "2026-11-20",
            "2026/11",
            "2026/13/01",
            "2026/11/200",
            "20261120",
            "dt=2026/11/20/hh=05",
            "٢٠٢٦/11/20",
        ],
    )
)
def test_a_partition_that_is_no_day(strategy: Strategy, partition: str) -> None:
    """Refused, though Hudi lets a single one pass: it would fail with the second."""
    with pytest.raises(UsageError, match="partitions that are days"):
        keep_partitions([partition], options_of(strategy), TODAY)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"strategy_io_mb": -1}, "strategy-io-mb must be at least 0"),
        ({"log_size_threshold": -1}, "log-size-threshold must be at least 0"),
        ({"strategies": (S.LOG_FILE_NUM,), "log_num_threshold": -1}, "log-num-threshold must be at least 0"),
        ({"strategies": (S.DAY_BASED,), "target_partitions": -1}, "target-partitions must be at least 0"),
        ({"log_num_threshold": 1}, "log-num-threshold is set.*expected one of log-file-num; found no strategy"),
        ({"target_partitions": 3}, "target-partitions is set"),
        ({"strategies": (S.UNBOUNDED,), "strategy_io_mb": 3}, "strategy-io-mb is set"),
        ({"partition_regex": "a"}, "partition-regex is set"),
        ({"strategies": (S.PARTITION_REGEX,)}, "needs a partition-regex"),
        ({"strategies": (S.PARTITION_REGEX,), "partition_regex": "("}, "not a regular expression"),
        ({"strategies": (S.PARTITION_REGEX,), "partition_regex": "[a-z&&[^b]]"}, "not a regular expression"),
        ({"strategies": (S.PARTITION_REGEX,), "partition_regex": r"\p{Lower}"}, "not a regular expression"),
    ],
)
def test_refused_options(said: dict[str, Any], match: str) -> None:
    """What would be ignored, or means something else to Hudi, is an error."""
    with pytest.raises(UsageError, match=match):
        StrategyOptions(**said)


def conf_of(conf: dict[str, str]) -> StrategyOptions:
    """Options from Hudi's own names."""
    return StrategyOptions(**parse_schedule_conf(f"{name}={value}" for name, value in conf.items()))


def test_hudi_names() -> None:
    """Hudi's configuration, with lists of classes."""
    conf = {
        "hoodie.compaction.strategy": f"{PACKAGE}PartitionRegexBasedCompactionStrategy,"
        f"{PACKAGE}LogFileNumBasedCompactionStrategy",
        "hoodie.compaction.target.io": "7",
        "hoodie.compaction.logfile.num.threshold": "3",
        "hoodie.compaction.partition.path.regex": "a,b",
    }
    assert conf_of(conf) == options_of(
        S.PARTITION_REGEX, S.LOG_FILE_NUM, strategy_io_mb=7, log_num_threshold=3, partition_regex="a,b"
    )
    size = conf_of({"hoodie.compaction.logfile.size.threshold": "5"})
    assert size == options_of(S.LOG_FILE_SIZE, log_size_threshold=5), "Hudi's default strategy"
    day_based = {"hoodie.compaction.strategy": "DayBasedCompactionStrategy"}
    two = conf_of({**day_based, "hoodie.compaction.daybased.target.partitions": "2"})
    assert two == options_of(S.DAY_BASED, target_partitions=2)


@pytest.mark.parametrize(
    ("conf", "match"),
    [
        ({"hoodie.compaction.strategy": "com.acme.DayBasedCompactionStrategy"}, "not a compaction strategy of Hudi"),
        ({"hoodie.compaction.strategy": ""}, "not a compaction strategy of Hudi"),
        ({"hoodie.compaction.strategy": f"{PACKAGE}CompositeCompactionStrategy"}, "not a compaction strategy of Hudi"),
        ({"hoodie.compaction.target.io": "much"}, "not a value of hoodie.compaction.target.io"),
        ({"hoodie.compaction.partition.path.regex": "a"}, "partition-regex is set"),
    ],
)
def test_refused_hudi_names(conf: dict[str, str], match: str) -> None:
    """Other classes, no numbers, what Hudi's default strategy does not look at."""
    with pytest.raises(UsageError, match=match):
        conf_of(conf)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("UnBoundedCompactionStrategy", S.UNBOUNDED),
        ("BoundedIOCompactionStrategy", S.BOUNDED_IO),
        (f"{PACKAGE}BoundedPartitionAwareCompactionStrategy", S.BOUNDED_PARTITION_AWARE),
        (f" {PACKAGE}UnBoundedPartitionAwareCompactionStrategy", S.UNBOUNDED_PARTITION_AWARE),
        ("LogFileSizeBasedCompactionStrategy", S.LOG_FILE_SIZE),
    ],
)
def test_classes(name: str, strategy: Strategy) -> None:
    """With and without the package."""
    assert strategy_of(name) is strategy


def test_every_option_has_hudis_name() -> None:
    """And its default is Hudi's."""
    assert [field for field, _ in STRATEGY_CONF.values()] == list(StrategyOptions.__dataclass_fields__)
    assert options_of(S.LOG_FILE_SIZE) == options_of(
        S.LOG_FILE_SIZE, strategy_io_mb=500 * 1024, log_size_threshold=0, log_num_threshold=0, target_partitions=10
    )


def test_megabytes() -> None:
    """Floored on each side; a slice without base file is taken for 120 MB of writing."""
    assert [io_mb(s) for s in (A, B, C, D)] == [6, 120, 0, 12]
    assert io_mb(slice_of("x", MB - 1, MB)) == 1
    assert io_mb(slice_of("x", None, MB)) == 121


SLICES = st.lists(
    st.builds(
        lambda base, logs, age: (base, tuple(logs), days(age)[0]),
        st.none() | st.integers(0, 4 * MB),
        st.lists(st.integers(0, 3 * MB), min_size=1, max_size=4),
        st.integers(-1, 5),
    ),
    max_size=12,
).map(lambda found: [slice_of(f"f{n}", base, *logs, day=day) for n, (base, logs, day) in enumerate(found)])
OPTIONS = st.lists(st.sampled_from(Strategy), min_size=1, max_size=3).flatmap(
    lambda chosen: st.builds(
        lambda io, size, count, target: usable(tuple(chosen), io, size, count, target),
        st.integers(0, 300),
        st.integers(0, 4 * MB),
        st.integers(0, 4),
        st.integers(0, 6),
    )
)


def usable(strategies: tuple[Strategy, ...], io: int, size: int, count: int, target: int) -> StrategyOptions:
    """Only what one of them looks at."""
    said = options_of(*strategies, **({"partition_regex": "0$|2"} if S.PARTITION_REGEX in strategies else {}))
    for name, value in zip(
        ("strategy_io_mb", "log_size_threshold", "log_num_threshold", "target_partitions"),
        (io, size, count, target),
        strict=True,
    ):
        try:
            said = replace(said, **dict[str, Any]({name: value}))
        except UsageError:
            continue
    return said


@given(slices=SLICES, options=OPTIONS)
def test_everything_is_kept_or_left_with_a_reason(slices: list[FileSlice], options: StrategyOptions) -> None:
    """Once, whatever the strategies; the same again."""
    chosen = keep_slices(slices, options, TODAY)
    together = [*chosen.kept, *(s for s, _ in chosen.left)]
    assert sorted(s.file_id for s in together) == sorted(s.file_id for s in slices)
    assert all(why for _, why in chosen.left)
    assert keep_slices(slices, options, TODAY) == chosen
    paths = sorted({s.partition for s in slices})
    partitions = keep_partitions(paths, options, TODAY)
    assert sorted([*partitions.kept, *(p for p, _ in partitions.left)]) == paths


@given(slices=SLICES, options=OPTIONS, seed=st.integers())
def test_the_order_given_matters_in_ties_only(slices: list[FileSlice], options: StrategyOptions, seed: int) -> None:
    """Where all sizes differ and the first strategy sorts by size, any order gives the same plan."""
    distinct = list({s.log_bytes: s for s in slices}.values())
    sorting = replace(options, strategies=(S.LOG_FILE_SIZE, *options.strategies))
    mixed = random.Random(seed).sample(distinct, len(distinct))
    assert keep_slices(mixed, sorting, TODAY).kept == keep_slices(distinct, sorting, TODAY).kept
    paths = sorted({s.partition for s in slices})
    other = random.Random(seed).sample(paths, len(paths))
    assert set(keep_partitions(other, options, TODAY).kept) == set(keep_partitions(paths, options, TODAY).kept)
    by_count, again = (keep_slices(given, options_of(S.LOG_FILE_NUM), TODAY).kept for given in (distinct, mixed))
    assert [len(s.logs) for s in by_count] == [len(s.logs) for s in again]


@given(slices=SLICES, target=st.integers(0, 600))
def test_the_target_is_reached_by_the_last_one_only(slices: list[FileSlice], target: int) -> None:
    """Without its last slice a plan is below the target; with all left out it would still not be empty."""
    chosen = keep_slices(slices, options_of(S.BOUNDED_IO, strategy_io_mb=target), TODAY)
    assert chosen.kept == tuple(slices[: len(chosen.kept)])
    assert not chosen.kept or sum(map(io_mb, chosen.kept[:-1])) < target
    assert not chosen.left or sum(map(io_mb, chosen.kept)) >= target


# Universal picking: literal sizes in, decision out.


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


@for_each(
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
