"""Which small base files of a table become one, and the plan (pure).

The file groups of a partition are taken in the order in which they were made. A run of consecutive small files is cut
into windows:

    a window ends       when its files reach the target size and the least number of files
    it is clustered     if it has the least number of files
    a run ends          at a file group that is large, or that cannot be clustered: it has log files, or is in a plan

So files keep the order of their writes, and filters on times still skip most of them. A clustered file that is still
small is a small file of the next clustering. A full clustering begins after the large files at the head of a partition.
If three or more files follow, most of them small, it includes the large ones among them.

Bucket-indexed tables are refused: the number in the name of a file group decides which rows are in it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.format.file_name import COMPACTOR, BaseFileName
from phantombase.timeline.format.record_key import looks_like_bucket, plain_file_id
from phantombase.timeline.format.replace_request import ClusterGroup, PlannedSlice
from phantombase.timeline.view.view import FileGroup, FileSlice, GroupKey, TableView, input_names, is_replaced

from .options import ClusterOptions

_FULL_MIN_FILES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringWindow:
    """File slices of one partition that become one base file; each is a base file without log files."""

    partition: str
    slices: tuple[FileSlice, ...]

    @property
    def bytes(self) -> int:
        return sum(one.base_bytes for one in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """`windows`: what is clustered now; `left`: windows that `max_bytes` leaves to the next run. `small`: the number of
    small files; `kept`: the number of file groups that cannot be clustered now, by the reason."""

    windows: tuple[ClusteringWindow, ...]
    left: int
    small: int
    kept: Mapping[str, int] = field(default_factory=dict)

    @property
    def why(self) -> str:
        if not self.small:
            return "no file is small"
        return "too few small files in a row"


def choose_windows(view: TableView, busy: Mapping[GroupKey, str], options: ClusterOptions, where: str) -> ClusterChoice:
    """The files to cluster now. `busy`: why some are held. UnsupportedError: the table (`where`) is bucket-indexed."""
    living = [g for g in view.groups if g.slices and not is_replaced(g, view.facts)]
    _refuse_buckets(living, where)
    partitions: defaultdict[str, list[FileGroup]] = defaultdict(list)
    for group in living:
        partitions[group.partition].append(group)
    kept, small, windows = Counter[str](), 0, list[ClusteringWindow]()
    for partition, groups in sorted(partitions.items()):
        groups.sort(key=lambda g: (g.slices[0].base_instant, g.file_id))  # as created, as far as slices still show it
        files = [(g, _why_kept(g, busy)) for g in groups]
        kept.update(why for _, why in files if why is not None)
        small += sum(why is None and _is_small(g, options) for g, why in files)
        for row in _rows(files, options):
            windows += [ClusteringWindow(partition=partition, slices=tuple(some)) for some in _cut(row, options)]
    now, left = _bounded(windows, options)
    return ClusterChoice(windows=now, left=left, small=small, kept=kept)


def _refuse_buckets(living: Sequence[FileGroup], where: str) -> None:
    """Refuses if half of the file ids look like a bucket's: a random one does in 2 of 100 000 cases."""
    buckets = sum(looks_like_bucket(g.file_id) for g in living)
    if buckets and 2 * buckets >= len(living):
        raise UnsupportedError(
            "the files of a bucket-indexed table cannot be clustered",
            path=where,
            expected="file groups that are not buckets",
            found=f"{buckets} of {len(living)} file ids begin with the number of a bucket",
            todo="Only a new table can have fewer buckets: write the rows to one.",
        )


def _why_kept(group: FileGroup, busy: Mapping[GroupKey, str]) -> str | None:
    if group.pending_compaction is not None:
        return "in a pending compaction"
    if (why := busy.get(group.key)) is not None:
        return why
    if group.flaws:
        return str(group.flaws[0].error())
    return "it has log files" if group.slices[-1].logs or group.slices[-1].base is None else None


def _is_small(group: FileGroup, options: ClusterOptions) -> bool:
    return group.slices[-1].base_bytes < options.small


def _rows(files: Iterable[tuple[FileGroup, str | None]], options: ClusterOptions) -> Iterator[list[FileSlice]]:
    """The runs of a partition: consecutive file slices that may become one file."""
    row: list[FileSlice] = []
    takes_large = False
    if options.full:
        files = list(dropwhile(lambda f: not _is_small(f[0], options), files))
        small = sum(_is_small(group, options) for group, _ in files)
        takes_large = len(files) >= _FULL_MIN_FILES and small > len(files) - small
    for group, why in files:
        if why is None and (takes_large or _is_small(group, options)):
            row.append(group.slices[-1])
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
        size += one.base_bytes
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
        if taken and size + one.bytes > options.max_bytes:
            break
        taken.append(one)
        size += one.bytes
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
    )


def output_names(position: int, group: ClusterGroup, instant: str) -> tuple[BaseFileName, ...]:
    """The names of the files that a group may become: the same in every try, so that each is made once."""
    token = f"{position}-0-{COMPACTOR}"
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
