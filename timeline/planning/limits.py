"""Limits of a plan as plain options, plans filled from candidates in order, and the costs of file slices (pure).

Costs of a file slice: `source` is what is read, `io` adds what is written. Both are counted as Hudi counts them
(FileSliceMetricUtils of 0.15.0 and 1.2.0). Rows are those of the base file plus the entries of the logs.

    read    base file and all log files (data and delete blocks)
    write   the base file again, or Hudi's target size of a new base file for a slice without one

Megabytes are integers of 1 << 20 bytes; read and write are floored before they are added: a small slice costs 0 MB."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
