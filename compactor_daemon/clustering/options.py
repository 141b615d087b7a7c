"""How a table is clustered: the options, defined only here (pure)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from phantombase.timeline.errors import UsageError
from phantombase.timeline.filter.tree import parse_filter
from phantombase.timeline.option import check_finite, check_least, least_of, option, spelled_class
from phantombase.timeline.planning.strategies import compiled


class SortOrder(Enum):
    """How several columns are combined."""

    ORDER = "order"
    ZORDER = "zorder"
    HILBERT = "hilbert"


class Grouping(Enum):
    """Which files become one group of a plan, see `choice`."""

    RUNS = "runs"
    SIZE = "size"


class PartitionSelection(Enum):
    """Which partitions are looked at, see `partitions`; the values are Hudi's names in lower case."""

    NONE = "none"
    RECENT_DAYS = "recent-days"
    SELECTED_PARTITIONS = "selected-partitions"
    DAY_ROLLING = "day-rolling"


class Copy(Enum):
    """Whether row groups go into a clustered file as bytes. REENCODE: never. TRY: where all row groups of a new file
    are large, and can be copied. FORCE: of every size; files that cannot be copied are an error."""

    REENCODE = "reencode"
    TRY = "try"
    FORCE = "force"


class Rewrite(Enum):
    """Why a file is rewritten, whatever its size, see `group_facts`."""

    CODEC = "codec"
    ROW_GROUPS = "row-groups"
    DROPPED_COLUMNS = "dropped-columns"
    WIDENED_TYPES = "widened-types"
    BLOOM_FILTERS = "bloom-filters"
    SORT_ORDER = "sort-order"


_ALL = "all"


def _reasons(given: tuple[str, ...] | str, sort_by: tuple[str, ...]) -> frozenset[Rewrite]:
    """The reasons of a rewriting. UsageError: unknown, or the order without columns."""
    texts = (given,) if isinstance(given, str) else given
    words = [word.strip() for text in texts for word in text.split(",")]
    known = {one.value: one for one in Rewrite}
    if odd := [word for word in words if word not in known and word != _ALL]:
        expected = ", ".join((*known, _ALL))
        raise UsageError("rewrite has a word that is no reason to rewrite files", expected=expected, found=repr(odd[0]))
    if Rewrite.SORT_ORDER.value in words and not sort_by:
        raise UsageError("rewrite by sort-order needs columns", expected="sort-by", found="no sort-by")
    if _ALL in words:
        return frozenset(one for one in Rewrite if sort_by or one is not Rewrite.SORT_ORDER)
    return frozenset(known[word] for word in words)


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Which files are clustered, and how large the new ones become. Sizes in bytes, `wait_s` in seconds. `small_size`:
    files below it are small; None: half of `target_size`, every size for a sorted clustering by size. `full`: see
    `choice`. `sort_by`: columns; the rows of each group are sorted. `copy`: sorted rows are never copied."""

    grouping: Grouping = option(
        Grouping.RUNS,
        "runs: consecutive small files become one each; size: files of a partition, up to --max-group-bytes, become "
        "files of --target-size, as Hudi's size-based plans",
    )
    rewrite: tuple[str, ...] = option(
        (),
        "instead, rewrite each file for one of these reasons: codec (not --codec), row-groups (not near "
        "--row-group-rows), dropped-columns, widened-types, bloom-filters (not as --bloom), sort-order (not known to "
        "be as --sort-by), all; several with commas",
        metavar="REASON",
    )
    target_size: int = option(
        120 << 20,
        "size of a clustered file, like 120m; of runs it is as large as its last input larger",
        size=True,
        least=1,
    )
    small_size: int | None = option(
        None,
        "files below this size are clustered; default: half of --target-size; with --grouping size and --sort-by all",
        size=True,
        least=1,
    )
    where: str | None = option(None, "only partitions whose rows all match this condition over columns of partitions")
    partitions: tuple[str, ...] = option(
        (), "only this partition; may be repeated", flag="partition", metavar="PARTITION"
    )
    partition_regex: str | None = option(None, "only partitions whose whole path matches")
    partition_filter: PartitionSelection = option(
        PartitionSelection.NONE, "Hudi's selection among the partitions by their names"
    )
    lookback_partitions: int = option(2, "recent-days: the number of partitions; 0: all", least=0)
    skip_newest_partitions: int = option(0, "recent-days: the newest partitions that are left out", least=0)
    begin_partition: str | None = option(None, "selected-partitions: the first one")
    end_partition: str | None = option(None, "selected-partitions: the last one")
    max_group_bytes: int = option(2 << 30, "grouping by size: the most bytes of a group", size=True, least=1)
    max_groups: int = option(30, "grouping by size: the most groups of one run", least=1)
    single_group: bool = option(True, "grouping by size: also groups of one file, if it is sorted, split or has logs")
    logs: bool = option(True, "cluster file groups with log files too; their logs are merged")
    min_files: int = option(
        5, "the least number of small files in a row that are clustered", flag="min_file_num", least=2
    )
    max_bytes: int = option(10 << 30, "the most bytes that one run clusters", size=True, least=1)
    full: bool = option(
        False, "cluster across larger files too, in partitions with more small files than others, and three at least"
    )
    after_commits: int = option(
        0, "only when as many writes and compactions have completed since the last clustering; 0: always", least=0
    )
    sort_by: tuple[str, ...] = option(
        (), "sort the rows of each group by this column; may be repeated", metavar="COLUMN"
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
        self._check_rewrite()
        self._check_grouping()
        self._check_partitions()
        if self.small is not None and self.small > self.target_size and not (self.sort_by and self._by_size):
            raise UsageError(
                "small-size must not be above target-size",
                expected=f"at most {self.target_size} bytes",
                found=f"{self.small} bytes",
            )

    @property
    def _by_size(self) -> bool:
        return self.grouping is Grouping.SIZE

    @property
    def reasons(self) -> frozenset[Rewrite]:
        """Why files are rewritten; empty: they are clustered by `grouping`."""
        return _reasons(self.rewrite, self.sort_by)

    def _check_rewrite(self) -> None:
        if self.reasons and (idle := [name for name in _OF_SIZES if getattr(self, name) != _DEFAULTS[name]]):
            raise UsageError(
                f"a rewriting does not use {idle[0].replace('_', '-')}",
                expected="rewrite without options that choose files by their sizes, or copy row groups",
                found=f"rewrite {', '.join(sorted(one.value for one in self.reasons))}",
            )

    def _check_grouping(self) -> None:
        unused = ("min_files", "full") if self._by_size else ("max_group_bytes", "max_groups", "single_group")
        if idle := [name for name in unused if getattr(self, name) != _DEFAULTS[name]]:
            raise UsageError(
                f"the grouping {self.grouping.value} does not use {idle[0].replace('_', '-')}",
                expected=f"grouping {(Grouping.RUNS if self._by_size else Grouping.SIZE).value}",
                found=f"grouping {self.grouping.value}",
            )

    def _check_partitions(self) -> None:
        for name, users in _OF_SELECTION.items():
            if getattr(self, name) != _DEFAULTS[name] and self.partition_filter is not users:
                raise UsageError(
                    f"{name.replace('_', '-')} is set, but the partition-filter does not use it",
                    expected=f"partition-filter {users.value}",
                    found=f"partition-filter {self.partition_filter.value}",
                )
        if self.partitions and self.partition_regex is not None:
            raise UsageError("partitions are listed, and a partition-regex is set", expected="one of both")
        if self.partition_regex is not None:
            compiled(self.partition_regex)
        if self.where is not None:
            parse_filter(self.where)

    @property
    def chooses_partitions(self) -> bool:
        """Whether partitions may be left out."""
        named = self.where is not None or bool(self.partitions) or self.partition_regex is not None
        return named or self.partition_filter is not PartitionSelection.NONE

    @property
    def takes_logs(self) -> bool:
        """Whether file groups with log files are clustered; these cannot be copied."""
        return self.logs and self.copy is not Copy.FORCE

    @property
    def resumed_copy(self) -> Copy:
        """For files of pending plans, which were not chosen to be copied: those that cannot be are encoded."""
        return Copy.TRY if self.copy is Copy.FORCE else self.copy

    @property
    def small(self) -> int | None:
        """Files below it are clustered; None: all."""
        if self.small_size is None and self._by_size and self.sort_by:
            return None
        return self.small_size if self.small_size is not None else max(1, self.target_size // 2)


_OF_SELECTION = {
    "lookback_partitions": PartitionSelection.RECENT_DAYS,
    "skip_newest_partitions": PartitionSelection.RECENT_DAYS,
    "begin_partition": PartitionSelection.SELECTED_PARTITIONS,
    "end_partition": PartitionSelection.SELECTED_PARTITIONS,
}
"""Hudi silently ignores the settings of other selections."""
_OF_SIZES = ("grouping", "small_size", "min_files", "full", "max_group_bytes", "max_groups", "single_group", "copy")
_DEFAULTS = {field.name: field.default for field in fields(ClusterOptions)}
