"""Limits of a plan as plain options, plans filled from candidates in order, and the costs of file slices; and universal
picking: minor, major or no compaction, by the runs of one file slice (pure).

Costs of a file slice: `source` is what is read, `io` adds what is written. Both are counted as Hudi counts them
(FileSliceMetricUtils of 0.15.0 and 1.2.0). Rows are those of the base file plus the entries of the logs.

    read    base file and all log files (data and delete blocks)
    write   the base file again, or Hudi's target size of a new base file for a slice without one

Megabytes are integers of 1 << 20 bytes; read and write are floored before they are added: a small slice costs 0 MB.

Universal picking: a file slice is a stack of sorted runs: its base file is the oldest, its log files are younger. The
rules and their options are those of Paimon's universal compaction (`num-sorted-run.compaction-trigger`,
`compaction.size-ratio`, `compaction.max-size-amplification-percent`, ...), with log files in place of level-0 files:

    major   a new base file of the complete slice
    minor   the youngest log files become one log file: few bytes to write, and fewer files for readers to open"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import accumulate
from typing import Generic, TypeVar

from ..errors import UsageError
from ..option import check_least, option
from ..view.view import FileSlice

T = TypeVar("T")
MB = 1 << 20
NEW_FILE_BYTES = 120 * MB
"""Hudi's target size of a base file (`hoodie.parquet.max.file.size`); Hudi assumes it for a slice without base file."""


def read_bytes(slice_: FileSlice) -> int:
    return slice_.base_bytes + slice_.log_bytes


def write_bytes(slice_: FileSlice) -> int:
    """Bytes of the base file, or `NEW_FILE_BYTES` for a slice without one."""
    return slice_.base_bytes or NEW_FILE_BYTES


def io_mb(slice_: FileSlice) -> int:
    """Megabytes read and written: Hudi's TOTAL_IO_MB, which is compared with a strategy's target."""
    return read_bytes(slice_) // MB + write_bytes(slice_) // MB


class MissingSize(Enum):
    """What to do if a listing or header does not give a size or row count: look it up with a warning, or fail."""

    STAT = "stat"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class BoundOptions:
    """Limits of one plan, in any combination; None: no limit. Bytes, rows, file slices. Soft limits always admit the
    first candidate, and each further one only if the plan then still satisfies all limits. `hard`: no plan exceeds a
    limit; a file slice that exceeds one by itself is left out."""

    max_file_slices: int | None = option(None, "file slices of one plan")
    max_source_bytes: int | None = option(None, "bytes of base and log files that one plan reads, like 100g", size=True)
    max_source_rows: int | None = option(None, "rows of base files and entries of logs that one plan reads")
    target_io_bytes: int | None = option(
        None, "bytes that one plan reads and writes, like 500g", flag="target_io", size=True
    )
    hard: bool = option(False, "never exceed a limit, not even with the first file slice of a plan")
    max_plans: int = option(1, "plans requested at a time, on different file groups, for several daemons")
    missing_size: MissingSize = option(MissingSize.STAT, "a size that a listing does not give: look it up, or fail")

    def __post_init__(self) -> None:
        check_least(self, _LEAST)
        if self.hard and not self.limited:
            expected = "one of max-file-slices, max-source-bytes, max-source-rows, target-io"
            raise UsageError("hard limits are requested, but no limit is set", expected=expected, found="none of them")

    @property
    def limited(self) -> bool:
        return any(limit is not None for limit, _ in self._limits(Cost()))

    def exceeded(self, cost: Cost) -> str | None:
        """The limit that a plan of this cost exceeds, in words."""
        return self._first(cost, lambda value, limit: value > limit)

    def reached(self, cost: Cost) -> str | None:
        """The limit that a plan of this cost has used up, in words: no further slice fits."""
        return self._first(cost, lambda value, limit: value >= limit)

    def _first(self, cost: Cost, beyond: Callable[[int, int], bool]) -> str | None:
        limits = zip(_NAMES, self._limits(cost), strict=True)
        return next((f"{n}={limit}" for n, (limit, v) in limits if limit is not None and beyond(v, limit)), None)

    def _limits(self, cost: Cost) -> tuple[tuple[int | None, int], ...]:
        return (
            (self.max_file_slices, cost.slices),
            (self.max_source_bytes, cost.source_bytes),
            (self.max_source_rows, cost.rows),
            (self.target_io_bytes, cost.io_bytes),
        )


_NAMES = ("max_file_slices", "max_source_bytes", "max_source_rows", "target_io_bytes")
_LEAST = {**dict.fromkeys(_NAMES, 1), "max_plans": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of compacting some file slices. `rows` is 0 if no limit needs it."""

    slices: int = 0
    source_bytes: int = 0
    io_bytes: int = 0
    rows: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            slices=self.slices + other.slices,
            source_bytes=self.source_bytes + other.source_bytes,
            io_bytes=self.io_bytes + other.io_bytes,
            rows=self.rows + other.rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled(Generic[T]):
    """Plans as lists of their candidates, with their cost in `total`. `left`: not admitted, with the reason. `closed`:
    the limit that closed the last plan before the end of the candidates; None: the end was reached."""

    plans: tuple[tuple[T, ...], ...]
    total: Cost
    left: tuple[tuple[T, str], ...] = ()
    closed: str | None = None


def fill(candidates: Iterable[T], cost: Callable[[T], Cost], options: BoundOptions) -> Filled[T]:
    """Admits candidates in their order. The iterator is not advanced after the candidate that closes the last plan.
    Without limits, several plans share the candidates evenly by the bytes that they read and write."""
    if not options.limited:
        given = list(candidates)
        costs = list(map(cost, given))
        return Filled(plans=shared([c.io_bytes for c in costs], given, options.max_plans), total=_sum(costs))
    plans: list[tuple[T, ...]] = []
    current: list[T] = []
    spent, total, left, closed = Cost(), Cost(), list[tuple[T, str]](), None
    for candidate in candidates:
        one = cost(candidate)
        alone = options.exceeded(one)
        if options.hard and alone is not None:
            left.append((candidate, f"by itself larger than {alone}"))
            continue
        over = options.exceeded(total + one)
        if over is not None and current:
            plans.append(tuple(current))
            current, total = [], Cost()
            if len(plans) == options.max_plans:
                left.append((candidate, f"does not fit: {over}"))
                closed = over
                break
        current.append(candidate)
        spent, total = spent + one, total + one
        full = options.reached(total)
        if full is not None:
            plans.append(tuple(current))
            current, total = [], Cost()
            if len(plans) == options.max_plans:
                closed = full
                break
    if current:
        plans.append(tuple(current))
    return Filled(plans=tuple(plans), total=spent, left=tuple(left), closed=closed)


def _sum(costs: Sequence[Cost]) -> Cost:
    """The sum, by columns: adding a million costs one by one would take a second."""
    return Cost(
        slices=sum(c.slices for c in costs),
        source_bytes=sum(c.source_bytes for c in costs),
        io_bytes=sum(c.io_bytes for c in costs),
        rows=sum(c.rows for c in costs),
    )


def shared(sizes: Sequence[int], given: Sequence[T], count: int) -> tuple[tuple[T, ...], ...]:
    """The candidates, with these sizes, in at most `count` runs of about equal size."""
    if not given:
        return ()
    share = max(1, sum(sizes)) / count
    plans: list[list[T]] = [[] for _ in range(count)]
    for candidate, size, end in zip(given, sizes, accumulate(sizes), strict=True):
        plans[min(count - 1, int((end - size / 2) / share))].append(candidate)
    return tuple(tuple(p) for p in plans if p)


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
        check_least(self, _LEAST_RULES)
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
_LEAST_RULES = {"compaction_trigger": 2, "full_compaction_delta_commits": 1, "size_ratio": 0, "off_peak_ratio": 0}
_LEAST_RULES |= dict.fromkeys(_FROM_ONE, 1)


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
        return f"{age:,.0f} s since its base file, the interval is {limit:,.0f} s"
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
