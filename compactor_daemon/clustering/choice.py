"""Which file slices of a table are clustered together, into how many files, and the plan (pure).

The file groups of a partition are taken in the order in which they were made, so files keep the order of their writes,
and filters on times still skip most of them. Two groupings:

    runs      a run of consecutive small files is cut into windows; each becomes one file
    size      as Hudi's size-based plans: the chosen files, up to a number of bytes, become files of the target size

**Runs.** A window ends when its files reach the target size and the least number of files; it is clustered if it has
the least number. A run ends at a file group that is large, or that cannot be clustered, because it is in a plan. A
clustered file that is still small is a small file of the next clustering. A full clustering begins after the large
files at the head of a partition. If three or more files follow, most of them small, it includes the large ones among
them.

**Size.** Sorted clusterings take files of every size, unless there is a limit, but no file that a clustering has sorted
in this order already, if its size is good. A file alone is clustered only if it is sorted thereby, split, or has logs.

**Rewriting.** Instead of both, each file that has a reason becomes a new one, or several by the target size.

The bytes of a file slice are those of its base file, and of its logs as far as Hudi estimates that they become bytes of
a base file. Bucket-indexed tables are refused: the number in the name of a file group decides which rows are in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import NamedTuple

from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.format.file_name import COMPACTOR, BaseFileName
from phantombase.timeline.format.record_key import plain_file_id, refuse_buckets
from phantombase.timeline.format.replace_request import ClusterGroup, PlannedSlice
from phantombase.timeline.shown import Shown
from phantombase.timeline.view.view import (
    FileGroup,
    FileSlice,
    GroupKey,
    TableView,
    has_new_keys_in_logs,
    input_names,
    is_replaced,
)

from .group_facts import GroupFacts, living_groups
from .options import ClusterOptions, Grouping, Rewrite

_FULL_MIN_FILES = 3


_LOG_SHARE = 35
"""Percent of the bytes of logs that become bytes of a base file: Hudi's hoodie.logfile.to.parquet.compression.ratio."""


def merged_bytes(slice_: FileSlice) -> int:
    """The bytes that a file slice has in a base file, estimated."""
    return slice_.base_bytes + (slice_.log_bytes * _LOG_SHARE // 100 if slice_.logs else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringWindow:
    """File slices of one partition whose rows become `outputs` base files at most."""

    partition: str
    slices: tuple[FileSlice, ...]
    outputs: int = 1

    @property
    def bytes(self) -> int:
        return sum(map(merged_bytes, self.slices))


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesFor(Shown):
    """The number of files for which a reason holds, and their bytes with those of their logs."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """`windows`: what is clustered now; `left`: windows that the bounds leave to the next run. `small`: the number of
    small files; `kept`: the number of file groups that cannot be clustered now, by the reason. `sorted`: the number of
    files that are sorted already. `partitions`: the number of those chosen. `waits`: for what, if it is too early.
    `reasons`: of a rewriting, what each reason holds for, now or later; a file may have several."""

    windows: tuple[ClusteringWindow, ...]
    left: int
    small: int
    kept: Mapping[str, int] = field(default_factory=dict)
    sorted: int = 0
    partitions: int = 0
    waits: str = ""
    reasons: Mapping[str, FilesFor] | None = None

    @property
    def why(self) -> str:
        if self.waits:
            return self.waits
        if not self.partitions:
            return "no partition is chosen"
        if self.reasons is not None:
            return "no file has a reason to be rewritten"
        if self.sorted:
            return "what is chosen is sorted already"
        if not self.small:
            return "no file is small"
        return "too few small files in a row"


def choose_windows(view: TableView, facts: GroupFacts, options: ClusterOptions, where: str) -> ClusterChoice:
    """The files to cluster now. UnsupportedError: the table (`where`) is bucket-indexed, or another engine keeps the
    places of its keys."""
    living = living_groups(view)
    refuse_buckets(
        [group.file_id for group in living],
        "the files of a bucket-indexed table cannot be clustered",
        where,
        "Only a new table can have fewer buckets: write the rows to one.",
    )
    if placed := next((group for group in living if has_new_keys_in_logs(group, view.facts)), None):
        raise UnsupportedError(
            "the files of a table whose index puts new keys into log files cannot be clustered",
            path=f"{where}/{'/'.join(filter(None, placed.key))}",
            expected="new keys in base files only, as with Hudi's SIMPLE and BLOOM index",
            found="log files with inserts",
            todo="Its writers (for example Flink with a state index) would go on to write to the files of before.",
        )
    partitions: defaultdict[str, list[FileGroup]] = defaultdict(list)
    for group in living:
        if facts.takes(group.partition):
            partitions[group.partition].append(group)
    kept, small, done, windows = Counter[str](), 0, 0, list[ClusteringWindow]()
    for partition, groups in sorted(partitions.items()):
        groups.sort(key=lambda g: (g.slices[0].base_instant, g.file_id))  # as created, as far as slices still show it
        files = [_File(g, _why_kept(g, facts.busy, options), _is_small(g, options)) for g in groups]
        movable = [one for one in files if one.why_kept is None]
        kept.update(one.why_kept for one in files if one.why_kept is not None)
        small += sum(one.is_small for one in movable)
        if options.rewrite:
            windows += _rewritten(partition, [one.group for one in movable], facts, options)
        elif options.grouping is Grouping.RUNS:
            for row in _rows(files, options):
                windows += [ClusteringWindow(partition=partition, slices=tuple(some)) for some in _cut(row, options)]
        else:
            todo = [one for one in movable if not _is_done(one.group, facts, options)]
            done += len(movable) - len(todo)
            windows += _packed(partition, [one.group for one in todo if one.is_small], facts, options)
    now, left = _bounded(windows, options)
    return ClusterChoice(
        windows=now,
        left=left,
        small=small,
        kept=kept,
        sorted=done,
        partitions=len(partitions),
        reasons=_counted(windows, facts) if options.rewrite else None,
    )


class _File(NamedTuple):
    """The newest file of a group. `why_kept`: why it cannot be clustered now, None if it can."""

    group: FileGroup
    why_kept: str | None
    is_small: bool


def _rewritten(
    partition: str, groups: Sequence[FileGroup], facts: GroupFacts, options: ClusterOptions
) -> Iterator[ClusteringWindow]:
    for last in (group.slices[-1] for group in groups if facts.reasons.get(group.key)):
        yield ClusteringWindow(partition=partition, slices=(last,), outputs=_outputs([last], options))


def _outputs(slices: Sequence[FileSlice], options: ClusterOptions) -> int:
    return max(1, -(-sum(map(merged_bytes, slices)) // options.target_size))


def _counted(windows: Sequence[ClusteringWindow], facts: GroupFacts) -> dict[str, FilesFor]:
    """The files and bytes of each reason, in the order in which reasons are defined."""
    files, size = Counter[Rewrite](), Counter[Rewrite]()
    for slice_ in (slice_ for window in windows for slice_ in window.slices):
        for reason in facts.reasons[slice_.partition, slice_.file_id]:
            files[reason] += 1
            size[reason] += slice_.base_bytes + slice_.log_bytes
    return {one.value: FilesFor(files=files[one], bytes=size[one]) for one in Rewrite if files[one]}


def _is_done(group: FileGroup, facts: GroupFacts, options: ClusterOptions) -> bool:
    """Whether a file is sorted already, and of a good size."""
    last = group.slices[-1]
    is_good = options.target_size // 2 <= last.base_bytes <= 2 * options.target_size
    return group.key in facts.sorted and not last.logs and is_good


def _packed(
    partition: str, groups: Sequence[FileGroup], facts: GroupFacts, options: ClusterOptions
) -> Iterator[ClusteringWindow]:
    """Consecutive files up to the bytes of a group, each with the number of files that it becomes."""
    packed: list[list[FileGroup]] = []
    size = 0
    for group in groups:
        more = merged_bytes(group.slices[-1])
        if not packed or size + more > options.max_group_bytes:
            packed.append([])
            size = 0
        packed[-1].append(group)
        size += more
    for some in packed:
        slices = tuple(group.slices[-1] for group in some)
        outputs = _outputs(slices, options)
        if _is_worth(some, outputs, facts, options):
            yield ClusteringWindow(partition=partition, slices=slices, outputs=outputs)


def _is_worth(groups: Sequence[FileGroup], outputs: int, facts: GroupFacts, options: ClusterOptions) -> bool:
    """Whether the rows of some files are in fewer files or smaller ones behind it, in another order, or merged."""
    if len(groups) == 1 and not options.single_group:
        return False
    if len(groups) != outputs or any(group.slices[-1].logs for group in groups):
        return True
    return bool(options.sort_by) and not all(group.key in facts.sorted for group in groups)


def _why_kept(group: FileGroup, busy: Mapping[GroupKey, str], options: ClusterOptions) -> str | None:
    if group.pending_compaction is not None:
        return "in a pending compaction"
    if (why := busy.get(group.key)) is not None:
        return why
    if group.flaws:
        return str(group.flaws[0].error())
    return "it has log files" if group.slices[-1].logs and not options.takes_logs else None


def _is_small(group: FileGroup, options: ClusterOptions) -> bool:
    return options.small is None or merged_bytes(group.slices[-1]) < options.small


def _rows(files: Iterable[_File], options: ClusterOptions) -> Iterator[list[FileSlice]]:
    """The runs of a partition: consecutive file slices that may become one file."""
    row: list[FileSlice] = []
    takes_large = False
    if options.full:
        files = list(dropwhile(lambda one: not one.is_small, files))
        small = sum(one.is_small for one in files)
        takes_large = len(files) >= _FULL_MIN_FILES and small > len(files) - small
    for one in files:
        if one.why_kept is None and (takes_large or one.is_small):
            row.append(one.group.slices[-1])
        elif row:
            yield row
            row = []
    if row:
        yield row


def _cut(row: Sequence[FileSlice], options: ClusterOptions) -> Iterator[list[FileSlice]]:
    least = 2 if options.full else options.min_files
    window: list[FileSlice] = []
    size = 0
    for one in row:
        window.append(one)
        size += merged_bytes(one)
        if len(window) >= least and size >= options.target_size:
            yield window
            window, size = [], 0
    if len(window) >= least:
        yield window


def _bounded(windows: Sequence[ClusteringWindow], options: ClusterOptions) -> tuple[tuple[ClusteringWindow, ...], int]:
    """The windows that one execution clusters, at least one, and the number of those left."""
    taken: list[ClusteringWindow] = []
    size = 0
    for one in windows:
        too_many, size = options.grouping is Grouping.SIZE and len(taken) == options.max_groups, size + one.bytes
        if too_many or (taken and size > options.max_bytes):
            break
        taken.append(one)
    return tuple(taken), len(windows) - len(taken)


def planned(window: ClusteringWindow) -> ClusterGroup:
    """The plan of a window; the id of the new file group is random."""
    return ClusterGroup(
        partition=window.partition,
        file_id=plain_file_id(),
        slices=tuple(
            PlannedSlice(
                file_id=one.file_id,
                base="" if one.base is None else str(one.base.name),
                logs=tuple(str(log.name) for log in one.logs),
                base_bytes=one.base_bytes,
                log_bytes=one.log_bytes,
            )
            for one in window.slices
        ),
        outputs=window.outputs,
    )


def output_names(position: int, group: ClusterGroup, instant: str, attempt: int) -> tuple[BaseFileName, ...]:
    """The names of the files that a group may become: each attempt has its own."""
    token = f"{position}-{attempt}-{COMPACTOR}"
    return tuple(BaseFileName(file_id=file_id, token=token, instant=instant) for file_id in group.file_ids)


def slices_of(
    view: TableView, groups: Sequence[ClusterGroup], busy: Collection[GroupKey]
) -> tuple[tuple[FileSlice, ...], ...]:
    """The planned file slices of each group as they are now, in the plan's order; () for a group of which an input
    differs: it has other files than planned, was replaced or removed, or is in another plan (`busy`)."""
    known = view.by_key()

    def slice_of(key: GroupKey, names: tuple[str, ...]) -> FileSlice | None:
        found = known.get(key)
        if (
            found is None
            or not found.slices
            or found.pending_compaction
            or key in busy
            or is_replaced(found, view.facts)
        ):
            return None
        last = found.slices[-1]
        return last if sorted(input_names(last)) == sorted(names) else None

    result = []
    for group in groups:
        slices = [slice_of((group.partition, one.file_id), one.names) for one in group.slices]
        whole = tuple(one for one in slices if one is not None)
        result.append(whole if len(whole) == len(slices) else ())
    return tuple(result)
