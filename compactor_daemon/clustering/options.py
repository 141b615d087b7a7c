"""How small files are clustered: the options, defined only here (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from phantombase.timeline.errors import UsageError
from phantombase.timeline.option import check_finite, check_least, least_of, option


class SortOrder(Enum):
    """How several columns are combined."""

    ORDER = "order"
    ZORDER = "zorder"
    HILBERT = "hilbert"


class Copy(Enum):
    """Whether row groups go into a clustered file as bytes. REENCODE: never. TRY: where all row groups of a new file
    are large, and can be copied. FORCE: of every size; files that cannot be copied are an error."""

    REENCODE = "reencode"
    TRY = "try"
    FORCE = "force"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Which files are joined, and how large the new ones become. Sizes in bytes, `wait_s` in seconds. `small_size`:
    files below it are small; None: half of `target_size`. `full`: see `choice`. `sort_by`: columns; the rows of each
    new file are sorted in memory. `copy`: sorted rows are never copied."""

    target_size: int = option(
        120 << 20, "size of a clustered file, like 120m; it is as large as its last input larger", size=True, least=1
    )
    small_size: int | None = option(
        None, "files below this size are small; default: half of --target-size", size=True, least=1
    )
    min_files: int = option(
        5, "the least number of small files in a row that are clustered", flag="min_file_num", least=2
    )
    max_bytes: int = option(10 << 30, "the most bytes that one run clusters", size=True, least=1)
    full: bool = option(
        False, "cluster across larger files too, in partitions with more small files than others, and three at least"
    )
    sort_by: tuple[str, ...] = option(
        (), "sort the rows of each new file by this column; may be repeated", metavar="COLUMN"
    )
    sort_order: SortOrder = option(SortOrder.ORDER, "how several --sort-by columns are combined")
    copy: Copy = option(
        Copy.REENCODE,
        "copy row groups as bytes: never, where all that become one file are large and alike, or always, else fail",
    )
    wait_s: float = option(
        60.0, "seconds; how long to wait for writes that began before the plan", flag="wait", least=0
    )

    def __post_init__(self) -> None:
        check_least(self, least_of(ClusterOptions))
        check_finite(self, {"wait_s": 0})
        if self.sort_order is not SortOrder.ORDER and not self.sort_by:
            raise UsageError(
                "an order without columns sorts nothing",
                expected="sort-by with sort-order",
                found=f"sort-order {self.sort_order.value}",
            )
        if self.copy is Copy.FORCE and self.sort_by:
            raise UsageError(
                "rows that are sorted cannot be copied as bytes",
                expected="copy reencode or try with sort-by",
                found=f"copy force, sort-by {', '.join(self.sort_by)}",
            )
        if self.small > self.target_size:
            raise UsageError(
                "small-size must not be above target-size",
                expected=f"at most {self.target_size} bytes",
                found=f"{self.small} bytes",
            )

    @property
    def small(self) -> int:
        return self.small_size if self.small_size is not None else max(1, self.target_size // 2)
