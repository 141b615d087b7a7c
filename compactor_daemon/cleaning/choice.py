"""Which files a clean removes, and what retains the others (pure).

A clean retains the states from a cutoff on, the requested time of a write: of each file group the newest slice below
the cutoff and all later ones; a file group that was replaced below the cutoff is removed. The cutoff is the earliest of

    policy      the n-th newest commit, or the first one of the last hours
    pending     the last completed commit before the earliest pending write
    floor       the first write that completed within the last `floor_s` seconds: a query may have begun before it
    pin         see `pins.earliest_to_retain`
    records     a compaction that phantombase has not cleaned up after: its inputs may be merged again
    replaced    a replace commit whose replaced files are kept: with a later cutoff Hudi would archive the commit, and
                their rows would be visible again. From version 8 on Hudi's archiver is given savepoints instead: it
                retains what is not before the first of them, unless file versions are retained (seen: 1.2.0)

Where file versions are retained, the newest n slices of each file group are kept, and the states from the other cutoffs
on. Savepoints retain their files. File groups of pending clusterings are skipped. A slice is removed or kept as one.

Each clean checks all file groups. Hudi checks only partitions written since its last clean, and never removes the
inputs of a compaction that was requested early and completed late."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.option import check_finite, check_least, least_of, option, spelled_class
from phantombase.timeline.read.windows import earliest_to_retain
from phantombase.timeline.shown import Shown
from phantombase.timeline.view.view import FileSlice, GroupKey, TableView, input_names


class Policy(Enum):
    """What is counted: commits, hours or file versions."""

    COMMITS = "commits"
    HOURS = "hours"
    VERSIONS = "versions"

    @property
    def hudi_name(self) -> str:
        """The name in plans and in `hoodie.clean.policy`."""
        return f"KEEP_LATEST_{ {'commits': 'COMMITS', 'hours': 'BY_HOURS', 'versions': 'FILE_VERSIONS'}[self.value] }"


_RETAINED = {Policy.COMMITS: 10, Policy.HOURS: 24, Policy.VERSIONS: 3}
"""As Hudi."""
_MOST_HOURS = 24 * 365 * 1000
"""An earlier point in time may be no valid date."""


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class CleanOptions:
    """`retain`: how many commits, hours or file versions stay; None: 10, 24 or 3. Besides, everything stays that a
    query needs which began up to `floor_s` seconds ago. `max_files`, `max_partitions`: the most of one clean; the rest
    is left to the next. Replaced file groups count, and are never left."""

    policy: Policy = option(Policy.COMMITS, "what is retained: the newest commits, those of some hours, file versions")
    retain: int | None = option(None, "how many of them [default: 10 commits, 24 hours, 3 versions]", least=1)
    floor_s: float = option(
        3600.0, "seconds; what a query needs that began up to this long ago stays too", flag="floor", least=0
    )
    max_files: int | None = option(None, "the most files of one clean", least=1)
    max_partitions: int | None = option(None, "the most partitions of one clean", least=1)

    def __post_init__(self) -> None:
        check_least(self, least_of(CleanOptions))
        check_finite(self, least_of(CleanOptions))
        if self.policy is Policy.HOURS and self.retained > _MOST_HOURS:
            raise UsageError("too many hours", expected="up to a thousand years", found=str(self.retain))
        if self.floor_s > _MOST_HOURS * 3600:
            raise UsageError(
                "floor is too long", expected=f"up to {_MOST_HOURS * 3600}, a thousand years", found=f"{self.floor_s:g}"
            )

    @property
    def retained(self) -> int:
        return self.retain or _RETAINED[self.policy]


_FLAWED = "a newer file of its file group is lost or damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanFacts:
    """What the choice needs besides the view. `hours_ago`, `floor`: instant times, now minus the retained hours and
    minus the floor. `written`: when the completed files of instants were written, by requested time. `holds`: points in
    time that pins hold. `savepoints`: paths that savepoints keep. `unfinished`: compactions with records of phantombase
    that are still needed. `clustering`: file groups of pending clusterings."""

    hours_ago: str
    floor: str
    written: Mapping[str, str] = field(default_factory=dict)
    holds: tuple[str, ...] = ()
    savepoints: Collection[str] = frozenset()
    unfinished: Collection[str] = frozenset()
    clustering: Collection[GroupKey] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone(Shown):
    """A file slice that is removed: its files by name, and their bytes. `why`: "old" or "replaced"."""

    partition: str
    file_id: str
    base_instant: str
    files: tuple[str, ...]
    bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanChoice:
    """`gone`: removed now; `left`: what the bounds of the options leave to the next clean. `retained`: the cutoff, ""
    if all states are kept, None where file versions are retained and nothing else sets one; `why`: what set it. `kept`:
    the number of old slices that are kept, by the reason."""

    gone: tuple[Gone, ...]
    left: tuple[Gone, ...]
    retained: str | None
    why: str
    kept: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanCutoff:
    """States from `time` on are kept; "": all are."""

    time: str
    why: str


def choose(
    view: TableView, facts: CleanFacts, options: CleanOptions, only: Collection[GroupKey] | None = None
) -> CleanChoice:
    """`only`: nothing of other file groups is removed; None: of any."""
    timeline = view.timeline
    by_versions = options.policy is Policy.VERSIONS
    cutoffs = [b for b in _cutoffs(timeline, facts, options) if b is not None]
    cutoffs += _replaced_but_kept(view, facts, notified=not by_versions and timeline.layout.has_completion_times)
    first = min(cutoffs, key=lambda b: b.time, default=None)
    retained = None if first is None else first.time
    held = held_files(view, retained)
    kept: dict[str, int] = {}
    gone: list[Gone] = []
    for group in view.groups:
        if only is not None and group.key not in only:
            continue
        replaced = view.facts.replaced.get(group.key)
        if replaced is not None:
            some, why = (group.slices if retained is None or replaced < retained else ()), "replaced"
        else:
            some, why = group.slices[: -options.retained if by_versions else -1], "old"
        for slice_ in some:
            if any(file.path in held for file in slice_.files):
                continue
            if group.flaws:
                kept[_FLAWED] = kept.get(_FLAWED, 0) + 1
                continue
            if (reason := _why_kept(slice_, facts)) is None:
                gone.append(_gone(slice_, why))
            else:
                kept[reason] = kept.get(reason, 0) + 1
    now, left = _bounded(gone, options)
    return CleanChoice(
        gone=now,
        left=left,
        retained=retained,
        why="file versions are retained" if first is None else first.why,
        kept=kept,
    )


def _cutoffs(timeline: Timeline, facts: CleanFacts, options: CleanOptions) -> Iterable[CleanCutoff | None]:
    commits = timeline.completed
    if not commits:
        yield CleanCutoff(time="", why="no commit is completed")
        return
    if options.policy is Policy.COMMITS:
        n = options.retained
        time = commits[-n].requested_time if len(commits) > n else ""
        yield CleanCutoff(time=time, why=f"the newest {n} commits are retained")
    if options.policy is Policy.HOURS:
        since = (i.requested_time for i in commits if i.requested_time >= facts.hours_ago)
        time = _or_archived(timeline, facts.hours_ago, next(since, commits[-1].requested_time))
        yield CleanCutoff(time=time, why=f"the commits of {options.retained} hours are retained")
    yield _pending(timeline)
    late = [i.requested_time for i in commits if _completed(timeline, facts, i) > facts.floor]
    floor = _or_archived(timeline, facts.floor, min(late, default=""))
    yield None if not late else CleanCutoff(time=floor, why=f"a query of {options.floor_s:,.0f} s ago may need it")
    if facts.holds:
        held = earliest_to_retain(timeline, facts.holds)
        yield None if held is None else CleanCutoff(time=held, why="a pin holds it")
    if facts.unfinished:
        yield CleanCutoff(time=min(facts.unfinished), why="phantombase has not cleaned up behind this compaction")


def _replaced_but_kept(view: TableView, facts: CleanFacts, *, notified: bool) -> Iterator[CleanCutoff]:
    """The replace commits of which a replaced file group must be kept. `notified`: Hudi's archiver stops at a
    savepoint. A savepoint also keeps what an earlier clustering replaced that completed after the savepoint was
    made."""
    made = (i.requested_time for i in view.timeline.instants if i.action == "savepoint" and i.completed)
    saved = min(made, default="")
    for group in view.groups:
        replaced = view.facts.replaced.get(group.key)
        if replaced is not None:
            kept = next((reason for s in group.slices if (reason := _why_kept(s, facts)) is not None), None)
            if kept is not None and not (notified and replaced >= saved and group.key not in facts.clustering):
                yield CleanCutoff(time=replaced, why=f"{kept}: a file group that it replaced")


def _or_archived(timeline: Timeline, since: str, first: str) -> str:
    """`first`, the first active write since some time; that time if writes since then may be archived."""
    return min(since, first) if since < timeline.start else first


def _pending(timeline: Timeline) -> CleanCutoff | None:
    """The last completed commit before the earliest write that is pending, in any form."""
    first = min(timeline.pending_writes, default=None)
    if first is None:
        return None
    before = [i.requested_time for i in timeline.completed if i.requested_time < first]
    return CleanCutoff(
        time=before[-1] if before else "", why=f"{timeline.pending_writes[first].action} {first} is pending"
    )


def _completed(timeline: Timeline, facts: CleanFacts, write: Instant) -> str:
    """When the write was first visible: a decided compaction may be published long after its completion time."""
    return max(facts.written.get(write.requested_time, ""), timeline.completed_at(write))


def _why_kept(slice_: FileSlice, facts: CleanFacts) -> str | None:
    if slice_.key in facts.clustering:
        return "a pending clustering has it"
    if any(file.path in facts.savepoints for file in slice_.files):
        return "a savepoint keeps it"
    return None


def _gone(slice_: FileSlice, why: str) -> Gone:
    return Gone(
        partition=slice_.partition,
        file_id=slice_.file_id,
        base_instant=slice_.base_instant,
        files=(*input_names(slice_), *(str(file.name) for file in slice_.changes)),
        bytes=slice_.base_bytes + slice_.log_bytes + sum(file.size for file in slice_.changes),
        why=why,
    )


def _bounded(gone: list[Gone], options: CleanOptions) -> tuple[tuple[Gone, ...], tuple[Gone, ...]]:
    """What is removed now, and what is left. Replaced groups are never left: they count if their commit is archived."""
    replaced, old = [g for g in gone if g.why == "replaced"], [g for g in gone if g.why != "replaced"]
    now, left, partitions = list(replaced), list[Gone](), {g.partition for g in replaced}
    files = sum(len(g.files) for g in replaced)
    for one in old:
        wide = options.max_partitions is not None and len({*partitions, one.partition}) > options.max_partitions
        many = options.max_files is not None and files + len(one.files) > options.max_files and bool(now)
        if wide or many:
            left.append(one)
        else:
            now.append(one)
            partitions.add(one.partition)
            files += len(one.files)
    return tuple(now), tuple(left)


def held_files(view: TableView, retain: str | None) -> frozenset[str]:
    """Paths of the files of the states from `retain` on; None: of the newest state only."""
    held: set[str] = set()
    for group in view.groups:
        replaced = view.facts.replaced.get(group.key)
        if replaced is not None and (retain is None or replaced < retain):
            continue
        below = [s.base_instant for s in group.slices if retain is None or s.base_instant < retain]
        first = max(below, default="")
        # A pending compaction's slice is read together with the slice before it.
        pending = group.pending_compaction
        if pending is not None and first == pending:
            first = max((time for time in below if time < pending), default="")
        for one in group.slices:
            if one.base_instant >= first:
                held |= {file.path for file in one.files}
    return frozenset(held)
