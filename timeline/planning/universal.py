"""Universal picking: minor, major or no compaction, by the runs of one file slice (pure).

A file slice is a stack of sorted runs: its base file is the oldest, its log files are younger. The rules and their
options are those of Paimon's universal compaction (`num-sorted-run.compaction-trigger`, `compaction.size-ratio`,
`compaction.max-size-amplification-percent`, ...), with log files in place of level-0 files:

    major   a new base file of the complete slice
    minor   the youngest log files become one log file: few bytes to write, and fewer files for readers to open"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ..errors import UsageError
from ..option import check_least, option


class Picking(Enum):
    """Which file slices with log files are compacted: all of them, or those that the universal rules pick."""

    ALL = "all"
    UNIVERSAL = "universal"


class MergeKind(Enum):
    NONE = "none"
    MINOR = "minor"
    MAJOR = "major"


@dataclass(frozen=True, kw_only=True)
class PickOptions:
    """The universal rules; all except `picking` require picking UNIVERSAL. Sizes in bytes."""

    picking: Picking = option(Picking.ALL, "every file group with log files, or those that the universal rules pick")
    compaction_trigger: int = option(5, "log files of a file group that make it a candidate")
    size_ratio: int = option(1, "percent by which the next older log may be larger to be merged with younger ones")
    max_size_amplification: int = option(200, "log bytes, in percent of the base file, that make a new base file due")
    optimization_interval_s: float | None = option(None, "seconds after which a file group gets a new base file anyway")
    total_size_threshold: int | None = option(
        None, "slices of fewer bytes in all get a new base file, like 64m", size=True
    )
    incremental_size_threshold: int | None = option(
        None, "slices with more log bytes get a new base file, like 1g", size=True
    )
    full_compaction_delta_commits: int | None = option(None, "delta commits on a slice that make a new base file due")
    delete_ratio_threshold: float | None = option(None, "share of deleted rows (0 to 1) that makes a new base file due")
    off_peak_hours: str | None = option(None, "hours of the table's clock like 22-6, with their own size ratio")
    off_peak_ratio: int = option(0, "percent added to the size ratio in off-peak hours")
    readers_1x_only: bool = option(
        False, "version 6: all readers are Hudi 1.x or phantombase, which read minor compactions correctly"
    )

    def __post_init__(self) -> None:
        check_least(self, _LEAST)
        ratio = self.delete_ratio_threshold
        if ratio is not None and not 0 < ratio <= 1:
            raise UsageError("delete-ratio-threshold is out of range", expected="above 0, at most 1", found=str(ratio))
        if self.off_peak_hours is not None:
            _hours(self.off_peak_hours)
        elif self.off_peak_ratio:
            raise UsageError("off-peak-ratio has no effect without off-peak-hours", expected="hours like 22-6")
        if self.picking is Picking.ALL and (changed := self._changed()):
            raise UsageError(
                "options of universal picking, which is off",
                expected="picking=universal",
                found=", ".join(changed),
                todo="Add it, or leave them out: every file group with log files is compacted.",
            )

    def _changed(self) -> list[str]:
        # Without the trigger: writers' back-pressure uses it with every picking.
        rules = (n for n in PickOptions.__dataclass_fields__ if n not in ("picking", "compaction_trigger"))
        return [n for n in rules if getattr(self, n) != PickOptions.__dataclass_fields__[n].default]

    def ratio_at(self, now: datetime) -> int:
        if self.off_peak_hours is None:
            return self.size_ratio
        begin, end = _hours(self.off_peak_hours)
        inside = begin <= now.hour < end if begin < end else now.hour >= begin or now.hour < end
        return self.size_ratio + (self.off_peak_ratio if inside else 0)


_FROM_ONE = ("max_size_amplification", "optimization_interval_s", "total_size_threshold", "incremental_size_threshold")
_LEAST = {"compaction_trigger": 2, "full_compaction_delta_commits": 1, "size_ratio": 0, "off_peak_ratio": 0}
_LEAST |= dict.fromkeys(_FROM_ONE, 1)


def _hours(text: str) -> tuple[int, int]:
    begin, _, end = text.partition("-")
    if not (
        text.isascii() and begin.isdecimal() and end.isdecimal() and int(begin) < 24 and int(end) <= 24 and begin != end
    ):
        raise UsageError("not a span of hours", expected="two different hours of the day like 22-6", found=text)
    return int(begin), int(end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A file slice in the form of the rules. `logs`: bytes of its log files, oldest first; `base` 0: no base file.
    `age_s`: since its base file was made, None if unknown. `deleted_share`: delete entries per row of the base file."""

    base: int
    logs: tuple[int, ...]
    delta_commits: int
    age_s: float | None = None
    deleted_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """`logs`: how many of the youngest log files to merge (minor: at least two)."""

    kind: MergeKind
    logs: int
    why: str


def pick(stack: Stack, options: PickOptions, now: datetime) -> Picked:
    """The choice of the universal rules for a file slice with log files. `now`: the table's clock."""
    count = len(stack.logs)
    full = _why_full(stack, options)
    if full is not None:
        return Picked(kind=MergeKind.MAJOR, logs=count, why=full)
    if count < options.compaction_trigger:
        return Picked(kind=MergeKind.NONE, logs=0, why=f"{count} of {options.compaction_trigger} log files")
    log_bytes = sum(stack.logs)
    if log_bytes * 100 > options.max_size_amplification * stack.base:
        why_full = f"{log_bytes} log bytes on {stack.base} base bytes, above {options.max_size_amplification} %"
        return Picked(kind=MergeKind.MAJOR, logs=count, why=why_full)
    ratio = options.ratio_at(now)
    runs = (stack.base, *stack.logs)
    taken = _by_ratio(runs, 1, ratio)
    why = f"{taken} runs of about equal size (ratio {ratio} %)"
    if taken < 2 and count > options.compaction_trigger:
        taken = _by_ratio(runs, count - options.compaction_trigger + 1, ratio)
        why = f"{count} log files, above {options.compaction_trigger}"
    if taken > count:
        return Picked(kind=MergeKind.MAJOR, logs=count, why=f"{why}, the base file among them")
    if taken >= 2:
        return Picked(kind=MergeKind.MINOR, logs=taken, why=why)
    return Picked(kind=MergeKind.NONE, logs=0, why=f"{count} log files, each older one much larger")


def _why_full(stack: Stack, options: PickOptions) -> str | None:
    """The rule that requires a new base file regardless of the number of log files."""
    log_bytes = sum(stack.logs)
    total = stack.base + log_bytes
    age, deleted, commits = stack.age_s, stack.deleted_share, stack.delta_commits
    if (limit := options.optimization_interval_s) is not None and age is not None and age >= limit:
        return f"{age:.0f} s since its base file, the interval is {limit:g} s"
    if (limit := options.total_size_threshold) is not None and total < limit:
        return f"{total} bytes in all, below {limit}"
    if (limit := options.incremental_size_threshold) is not None and log_bytes > limit:
        return f"{log_bytes} log bytes, above {limit}"
    if (limit := options.full_compaction_delta_commits) is not None and commits >= limit:
        return f"{commits} delta commits, the limit is {limit}"
    if (limit := options.delete_ratio_threshold) is not None and deleted is not None and deleted >= limit:
        return f"{deleted:.0%} of its rows deleted, the limit is {limit:.0%}"
    return None


def _by_ratio(runs: Sequence[int], begin: int, ratio: int) -> int:
    """How many of the youngest runs to merge: `begin`, and each older run that is not much larger than these."""
    taken, size = begin, sum(runs[len(runs) - begin :])
    while taken < len(runs) and size * (100 + ratio) >= runs[-taken - 1] * 100:
        size += runs[-taken - 1]
        taken += 1
    return taken
