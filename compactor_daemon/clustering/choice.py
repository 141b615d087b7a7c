"""Which small base files of a table become one (pure).

The file groups of a partition are looked at in the order in which they came into being. A row of small files, one
behind the other, is cut into windows:

    a window ends       when its files reach the target size, and are as many as the least number
    it is clustered      if it has the least number of files
    a row ends          at a file group that is large, or that cannot be clustered: it has log files, or is in a plan

So files stay in the order of their writes, and filters on times still skip most of them. A clustered file that is still
small is a small file of the next run. A full run begins behind the large files at the head of a partition. If it then
finds three files or more, most of them small, it takes the large ones among them too.

Bucket-indexed tables are refused: the number in the name of a file group decides which rows are in it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

from phantombase.timeline.errors import UnsupportedError
from phantombase.timeline.format.record_key import looks_like_bucket
from phantombase.timeline.view.view import FileGroup, FileSlice, GroupKey, TableView, is_replaced

from .options import ClusterOptions

_FULL_MIN_FILES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringWindow:
    """File slices of one partition that become one base file; each is a base file without log files."""

    partition: str
    slices: tuple[FileSlice, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(one.base_bytes for one in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """`windows`: what is clustered now; `left`: windows that `max_bytes` leaves to the next run.

    `small`: how many small files there are; `kept`: how many file groups cannot be clustered now, by the reason.
    """

    windows: tuple[ClusteringWindow, ...]
    left: int
    small: int
    kept: Mapping[str, int] = field(default_factory=dict)

    @property
    def why(self) -> str:
        """Why nothing is clustered."""
        if not self.small:
            return "no file is small"
        return "too few small files in a row"


def choose_windows(view: TableView, busy: Mapping[GroupKey, str], options: ClusterOptions, where: str) -> ClusterChoice:
    """The files to cluster now. `busy`: file groups that a pending table service holds, and why.

    UnsupportedError: the table, at `where`, is bucket-indexed.
    """
    living = [g for g in view.groups if g.slices and not is_replaced(g, view.facts)]
    _refuse_buckets(living, where)
    partitions: defaultdict[str, list[FileGroup]] = defaultdict(list)
    for group in living:
        partitions[group.partition].append(group)
    kept, small, windows = Counter[str](), 0, list[ClusteringWindow]()
    for partition, groups in sorted(partitions.items()):
        files = [(g, _why_kept(g, busy)) for g in sorted(groups, key=_came)]
        kept.update(why for _, why in files if why is not None)
        small += sum(why is None and _is_small(g, options) for g, why in files)
        for row in _rows(files, options):
            windows += [ClusteringWindow(partition=partition, slices=tuple(some)) for some in _cut(row, options)]
    now, left = _bounded(windows, options)
    return ClusterChoice(windows=now, left=left, small=small, kept=kept)


def _refuse_buckets(living: Sequence[FileGroup], where: str) -> None:
    """A random file id looks like a bucket's in 2 of 100 000 cases, so half of them never do by chance."""
    buckets = sum(looks_like_bucket(g.file_id) for g in living)
    if buckets and 2 * buckets >= len(living):
        raise UnsupportedError(
            "the files of a bucket-indexed table cannot be clustered",
            path=where,
            expected="file groups that are not buckets",
            found=f"{buckets} of {len(living)} file ids begin with the number of a bucket",
            todo="Only a new table can have fewer buckets: write the rows to one.",
        )


def _came(group: FileGroup) -> tuple[str, str]:
    """The order in which file groups came into being, as far as their slices still show it."""
    return group.slices[0].base_instant, group.file_id


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
    """The rows of a partition: file slices, one behind the other, that may become one file."""
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
    """The windows of one run, at least one, and how many are left."""
    taken: list[ClusteringWindow] = []
    size = 0
    for one in windows:
        if taken and size + one.bytes > options.max_bytes:
            break
        taken.append(one)
        size += one.bytes
    return tuple(taken), len(windows) - len(taken)
