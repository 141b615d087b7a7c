"""Hudi's compaction strategies: which partitions and file slices a plan takes, and in which order (pure).

A strategy chooses twice, as in Hudi: among partitions before they are listed, then among their file slices. The rules
are those of 1.2.0 (org.apache.hudi.table.action.compact.strategy):

                              partitions                                  file slices
    UNBOUNDED                 all                                         all
    BOUNDED_IO                all                                         up to the target, in the given order
    LOG_FILE_SIZE             all                                         log bytes >= threshold, most first, up to it
    LOG_FILE_NUM              all                                         log files >= threshold, most first, up to it
    DAY_BASED                 the newest N                                up to the target, newest day first
    BOUNDED_PARTITION_AWARE   days from N before today on                 all, newest day first
    UNBOUNDED_PARTITION_AWARE days before that                            all
    PARTITION_REGEX           where the expression is found               all

**Target.** The slice that reaches it is the last one; a slice of 0 MB (see `limits`) never does; 0 means no target.
**Order.** Sorts are stable. Before sorting, Hudi's order is that of its listing, so it may order ties differently.
**Days.** yyyy/MM/dd at the start of the path, without the keys of Hive style (`year=2026/month=11/...`); the rest of
the path is ignored. Hudi fails on other forms as soon as it compares two partitions; here they are an error. For a path
with "-" Hudi's partition-aware strategies look for a folder with "/" and silently find no file slice. Here a path that
is no day is an error, and a path with "-" after the day is found. **Several strategies** run in order, each on the
result of the previous one.

What Hudi 1.2.0 records in `missingSchedulePartitions`, and how it plans by that: docs/internals/hudi-format.md 9.

0.15.0 has no PARTITION_REGEX and no lists of strategies. A target of 0 takes one slice. DAY_BASED has no target, and
sorts partitions as text, with "-" instead of "/" (and finds nothing for such paths)."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from enum import Enum
from itertools import accumulate
from typing import Any, Generic, TypeVar

from ..errors import UsageError, in_table
from ..option import check_least, option, whole_number
from ..view.view import FileSlice
from .limits import io_mb

T = TypeVar("T")


class Strategy(Enum):
    """Which file groups a plan prefers and leaves out."""

    UNBOUNDED = "unbounded"
    BOUNDED_IO = "bounded-io"
    LOG_FILE_SIZE = "log-file-size"
    LOG_FILE_NUM = "log-file-num"
    DAY_BASED = "day-based"
    BOUNDED_PARTITION_AWARE = "bounded-partition-aware"
    UNBOUNDED_PARTITION_AWARE = "unbounded-partition-aware"
    PARTITION_REGEX = "partition-regex"


_S = Strategy
_PACKAGE = "org.apache.hudi.table.action.compact.strategy."
_CLASSES = {
    "UnBoundedCompactionStrategy": _S.UNBOUNDED,
    "BoundedIOCompactionStrategy": _S.BOUNDED_IO,
    "LogFileSizeBasedCompactionStrategy": _S.LOG_FILE_SIZE,
    "LogFileNumBasedCompactionStrategy": _S.LOG_FILE_NUM,
    "DayBasedCompactionStrategy": _S.DAY_BASED,
    "BoundedPartitionAwareCompactionStrategy": _S.BOUNDED_PARTITION_AWARE,
    "UnBoundedPartitionAwareCompactionStrategy": _S.UNBOUNDED_PARTITION_AWARE,
    "PartitionRegexBasedCompactionStrategy": _S.PARTITION_REGEX,
}
"""Hudi's class names, the same in 0.15.0, which lacks the last, and in 1.2.0."""


def strategy_of(class_name: str) -> Strategy:
    """The strategy of a Hudi class, named with or without its package; UsageError for any other name."""
    found = _CLASSES.get(class_name.strip().removeprefix(_PACKAGE))
    if found is None:
        raise UsageError("not a compaction strategy of Hudi", expected=", ".join(_CLASSES), found=repr(class_name))
    return found


@dataclass(frozen=True, kw_only=True)
class StrategyOptions:
    """Options of the strategies; defaults are Hudi's. UsageError: an option that no chosen strategy uses."""

    strategies: tuple[Strategy, ...] = option(
        (), "Hudi's strategies, which prefer some file groups; several run in order", flag="strategy"
    )
    strategy_io_mb: int = option(
        512_000, "megabytes that a plan reads and writes; the slice that reaches it is the last"
    )
    log_size_threshold: int = option(0, "bytes of log files from which a file group is compacted", size=True)
    log_num_threshold: int = option(0, "log files from which a file group is compacted")
    target_partitions: int = option(
        10, "day-based: the newest partitions that are compacted; partition-aware: the days before today"
    )
    partition_regex: str | None = option(None, "compact only partitions whose path contains a match")

    def __post_init__(self) -> None:
        check_least(self, dict.fromkeys(("strategy_io_mb", "log_size_threshold", "log_num_threshold"), 0))
        check_least(self, {"target_partitions": 0})
        for field in fields(self):
            users = _USERS.get(field.name)
            if users and getattr(self, field.name) != field.default and not users.intersection(self.strategies):
                raise UsageError(
                    f"{field.name.replace('_', '-')} is set, but no chosen strategy uses it",
                    expected="one of " + ", ".join(s.value for s in Strategy if s in users),
                    found=", ".join(s.value for s in self.strategies) or "no strategy",
                )
        if self.partition_regex is not None:
            compiled(self.partition_regex)
        elif Strategy.PARTITION_REGEX in self.strategies:
            raise UsageError(
                "the strategy partition-regex needs a partition-regex",
                found="none",
                todo="Give one: --partition-regex PATTERN.",
            )


_USERS: Mapping[str, frozenset[Strategy]] = {
    "strategy_io_mb": frozenset({_S.BOUNDED_IO, _S.LOG_FILE_SIZE, _S.LOG_FILE_NUM, _S.DAY_BASED}),
    "log_size_threshold": frozenset({_S.LOG_FILE_SIZE}),
    "log_num_threshold": frozenset({_S.LOG_FILE_NUM}),
    "target_partitions": frozenset({_S.DAY_BASED, _S.BOUNDED_PARTITION_AWARE, _S.UNBOUNDED_PARTITION_AWARE}),
    "partition_regex": frozenset({_S.PARTITION_REGEX}),
}
"""The strategies that use an option; Hudi silently ignores options of other strategies."""

STRATEGY_CONF: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "hoodie.compaction.strategy": ("strategies", lambda text: tuple(strategy_of(name) for name in text.split(","))),
    "hoodie.compaction.target.io": ("strategy_io_mb", whole_number),
    "hoodie.compaction.logfile.size.threshold": ("log_size_threshold", whole_number),
    "hoodie.compaction.logfile.num.threshold": ("log_num_threshold", whole_number),
    "hoodie.compaction.daybased.target.partitions": ("target_partitions", whole_number),
    "hoodie.compaction.partition.path.regex": ("partition_regex", str),
}
"""Hudi's name: the field of `StrategyOptions`, and its value from text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySelection(Generic[T]):
    """The items taken, in the order of the plan, and those left out, each with the reason; together all items."""

    kept: tuple[T, ...]
    left: tuple[tuple[T, str], ...] = ()


def keep_partitions(partitions: Sequence[str], options: StrategyOptions, today: date) -> StrategySelection[str]:
    """The partitions (paths) whose file slices are examined. `today`: by the scheduling process's clock, as in Hudi.
    UsageError: a path that is no day, with a strategy that uses days."""
    return _one_after_the_other(partitions, options.strategies, lambda s, given: _partitions(s, given, options, today))


def keep_slices(slices: Sequence[FileSlice], options: StrategyOptions, today: date) -> StrategySelection[FileSlice]:
    """The file slices that a plan takes, from the partitions that `keep_partitions` kept, in their order. Hudi calls
    the partitions of slices that are left out "missing". UsageError: as in `keep_partitions`."""
    return _one_after_the_other(slices, options.strategies, lambda s, given: _slices(s, given, options, today))


def _one_after_the_other(
    given: Sequence[T], strategies: Sequence[Strategy], choose: Callable[[Strategy, Sequence[T]], StrategySelection[T]]
) -> StrategySelection[T]:
    kept, left = tuple(given), list[tuple[T, str]]()
    for strategy in strategies:
        chosen = choose(strategy, kept)
        kept = chosen.kept
        left += chosen.left
    return StrategySelection(kept=kept, left=tuple(left))


def _partitions(
    strategy: Strategy, partitions: Sequence[str], options: StrategyOptions, today: date
) -> StrategySelection[str]:
    match strategy:
        case Strategy.DAY_BASED:
            newest, count = sorted(partitions, key=_day, reverse=True), options.target_partitions
            why = f"{len(newest)} partitions, and only the newest {count} are compacted"
            return StrategySelection(kept=tuple(newest[:count]), left=tuple((p, why) for p in newest[count:]))
        case Strategy.BOUNDED_PARTITION_AWARE | Strategy.UNBOUNDED_PARTITION_AWARE:
            reverse = sorted(partitions, key=lambda p: p.replace("/", "-"), reverse=True)
            return _sifted(reverse, lambda p: _outside(strategy, p, options, today))
        case Strategy.PARTITION_REGEX:
            regex = options.partition_regex or ""
            found, why = compiled(regex).search, f"the partition's path does not contain {regex!r}"
            return _sifted(partitions, lambda p: None if found(p) else why)
        case _:
            return StrategySelection(kept=tuple(partitions))


def _slices(
    strategy: Strategy, slices: Sequence[FileSlice], options: StrategyOptions, today: date
) -> StrategySelection[FileSlice]:
    match strategy:
        case Strategy.BOUNDED_IO | Strategy.DAY_BASED:
            return _most_first(slices, options, lambda _: 0, 0, "")
        case Strategy.LOG_FILE_SIZE:
            return _most_first(slices, options, lambda s: s.log_bytes, options.log_size_threshold, "bytes of log files")
        case Strategy.LOG_FILE_NUM:
            return _most_first(slices, options, lambda s: len(s.logs), options.log_num_threshold, "log files")
        case Strategy.BOUNDED_PARTITION_AWARE | Strategy.UNBOUNDED_PARTITION_AWARE:
            sifted = _sifted(slices, lambda s: _outside(strategy, s.partition, options, today))
            if strategy is Strategy.UNBOUNDED_PARTITION_AWARE:
                return sifted
            newest = sorted(sifted.kept, key=lambda s: (_day(s.partition), s.partition), reverse=True)
            return StrategySelection(kept=tuple(newest), left=sifted.left)
        case _:
            return StrategySelection(kept=tuple(slices))


def _most_first(
    slices: Sequence[FileSlice], options: StrategyOptions, size: Callable[[FileSlice], int], least: int, what: str
) -> StrategySelection[FileSlice]:
    """Slices of at least this size, largest first, until the bytes that they read and write reach the target."""
    sized = sorted(((size(s), s) for s in slices), key=lambda pair: pair[0], reverse=True)
    enough = [s for n, s in sized if n >= least]
    small = [(s, f"{n} {what}, compacted from {least} on") for n, s in sized if n < least]
    spent = list(accumulate(map(io_mb, enough), initial=0))
    count = bisect_left(spent, options.strategy_io_mb, hi=len(enough))
    why = f"the plan reads and writes {spent[count]} MB without it, its target is {options.strategy_io_mb} MB"
    return StrategySelection(kept=tuple(enough[:count]), left=(*small, *((s, why) for s in enough[count:])))


def _sifted(given: Sequence[T], why: Callable[[T], str | None]) -> StrategySelection[T]:
    """`why`: returns the reason to leave an item out, None to keep it."""
    judged = [(item, why(item)) for item in given]
    return StrategySelection(
        kept=tuple(item for item, reason in judged if reason is None),
        left=tuple((item, reason) for item, reason in judged if reason is not None),
    )


def _outside(strategy: Strategy, partition: str, options: StrategyOptions, today: date) -> str | None:
    age, limit = (today - _day(partition)).days, options.target_partitions
    bounded = strategy is Strategy.BOUNDED_PARTITION_AWARE
    if (age <= limit) is bounded:
        return None
    taken = f"up to {limit} days" if bounded else f"from {limit + 1} days on"
    return f"the partition's day is {age} days ago, compacted {taken}"


_DAY = re.compile(r"(\d{1,4})/(\d{1,2})/(\d{1,2})(?!\d)", re.ASCII)


def _day(partition: str) -> date:
    plain = re.sub("/.*?=", "/", re.sub(".*?=", "", partition, count=1))
    match = _DAY.match(plain)
    try:
        if match is not None:
            return date(*map(int, match.groups()))
    except ValueError:
        pass
    what = "a strategy that uses days needs partitions that are days"
    raise UsageError(
        what,
        path=in_table(partition),
        expected="yyyy/MM/dd",
        found=repr(plain),
        todo="Use another strategy for this table.",
    )


def compiled(regex: str) -> re.Pattern[str]:
    """Compiled as Java reads it: classes like `\\d` are ASCII. UsageError: invalid, or Java reads it differently."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            return re.compile(regex, re.ASCII)
    except (re.error, FutureWarning) as error:
        raise UsageError(
            "not a regular expression", expected="one valid in Python and Java", found=repr(regex)
        ) from error
