"""The file-system view: which files make a file slice, which slices a reader merges; and its lag (pure).

    SC1   base FG_SC1           DC2, DC3 -> logs on base SC1
    SC5.compaction.requested    plan {FG: base SC1, logs of DC2, DC3}
    DC6                         -> logs on the phantom slice SC5, which has no base file yet

**The pending-compaction rule** (`latest_slice`): while SC5 is pending, slice (SC1) and slice (SC5) are read as one:
base SC1, logs of SC1, then logs of SC5. A base file of instant SC5 is ignored until SC5 is completed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, TypeAlias, TypeVar

from ..format.file_name import BaseFileName, LogFileName
from ..instants.timeline import UNKNOWN_COMPLETION, Timeline
from ..storage.contract import Entry
from ..storage.folders import join
from .witness import Flaw, Marks, Witness
from .witness import GroupKey as GroupKey


def input_names(slice_: FileSlice) -> tuple[str, ...]:
    """Names of the files that a compaction of the slice merges: base first, then logs in order."""
    return tuple(str(file.name) for file in slice_.files)


Name = TypeVar("Name", BaseFileName, LogFileName)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile(Generic[Name]):
    """A base or log file of a partition; `size` in bytes. `marks`: of a log file, None if unknown."""

    partition: str
    name: Name
    size: int
    marks: Marks | None = field(default=None, compare=False, repr=False)

    @property
    def path(self) -> str:
        return join(self.partition, str(self.name))


BaseFile: TypeAlias = DataFile[BaseFileName]
LogFile: TypeAlias = DataFile[LogFileName]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """A base file, which may be absent, and the log files on top of it in merge order. `changes`: files of Hudi's
    change data capture that belong to the base file. They hold no rows of the table, and are removed with the slice.
    `flaws`: its files that are not as completed writes name them. Every user of the slice calls `check_whole`."""

    partition: str
    file_id: str
    base_instant: str
    base: BaseFile | None
    logs: tuple[LogFile, ...]
    changes: tuple[LogFile, ...] = ()
    flaws: tuple[Flaw, ...] = ()

    @property
    def key(self) -> GroupKey:
        return self.partition, self.file_id

    @property
    def files(self) -> tuple[BaseFile | LogFile, ...]:
        """The base file, if there is one, then the log files."""
        return self.logs if self.base is None else (self.base, *self.logs)

    def check_whole(self, base_path: str = "") -> None:
        """MissingFileError, MalformedError: a file of the slice is not as a completed write names it."""
        for flaw in self.flaws:
            raise flaw.error(base_path)

    @property
    def log_bytes(self) -> int:
        return sum([log.size for log in self.logs])

    @property
    def base_bytes(self) -> int:
        """Bytes of the base file, 0 if there is none."""
        return self.base.size if self.base else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """All visible slices of one file id in one partition, oldest first. `pending_compaction`: the instant of the plan
    that contains this group; its slice may lack its base file so far."""

    partition: str
    file_id: str
    slices: tuple[FileSlice, ...]
    pending_compaction: str | None = None

    @property
    def key(self) -> GroupKey:
        return self.partition, self.file_id

    @property
    def flaws(self) -> tuple[Flaw, ...]:
        return tuple(flaw for s in self.slices for flaw in s.flaws)


@dataclass(frozen=True, kw_only=True)
class ViewFacts:
    """The records about file groups in the files of the timeline. `pending_plans`: file group -> instant of the pending
    compaction plan that contains it. `replaced`: file group -> instant of the completed replace commit that replaced
    it. `compacted`: file group -> instant -> base file name, of every completed compaction and clustering. `shared`:
    for times that several writes share, the paths of the files that their completed commits name; no other files of
    these times count. `forming`: file groups that a pending resize of buckets will make. They do not count until it
    completes, since their rows were written to the old file groups, too. `witness`: the files of completed writes."""

    pending_plans: Mapping[GroupKey, str]
    replaced: Mapping[GroupKey, str]
    compacted: Mapping[GroupKey, Mapping[str, str]]
    shared: Mapping[str, frozenset[str]] = field(default_factory=dict)
    forming: Set[GroupKey] = frozenset()
    witness: Witness = field(default_factory=Witness)

    @cached_property
    def partitions(self) -> Set[str]:
        """The partitions with file groups that completed writes or pending plans name, and that were not replaced."""
        return self.partitions_at(None)

    def partitions_at(self, as_of: str | None) -> Set[str]:
        """The same as `partitions`, as of an instant."""
        replaced = {partition for partition, _ in self.replaced}
        named = {key[0] for key in (*self.compacted, *self.pending_plans) if not self.is_replaced(key, as_of)}
        return named | {
            p
            for p in self.witness.partitions - named
            if p not in replaced or not all(self.is_replaced((p, i), as_of) for i in self.witness.ids_in(p))
        }

    def is_replaced(self, key: GroupKey, as_of: str | None = None) -> bool:
        """Whether a completed replace commit (up to `as_of`) has replaced a file group."""
        instant = self.replaced.get(key)
        return instant is not None and (as_of is None or instant <= as_of)

    def ids_in(self, partition: str) -> Set[str]:
        """The file ids of one partition that completed writes name, compactions and clusterings among them."""
        return self._compacted_ids.get(partition, frozenset()) | self.witness.ids_in(partition)

    @cached_property
    def _compacted_ids(self) -> Mapping[str, Set[str]]:
        found: defaultdict[str, set[str]] = defaultdict(set)
        for partition, file_id in self.compacted:
            found[partition].add(file_id)
        return found

    def last_compaction(self, key: GroupKey) -> tuple[str, str]:
        """(instant, base file name) of a file group's newest completed compaction; two empty texts if there is none."""
        return max(self.compacted.get(key, {}).items(), default=("", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """A consistent state of a table: its timeline, the facts in the timeline's files, and its file groups."""

    timeline: Timeline
    facts: ViewFacts
    groups: tuple[FileGroup, ...]

    def by_key(self) -> dict[GroupKey, FileGroup]:
        return {g.key: g for g in self.groups}

    def living(self, as_of: str | None = None) -> Iterator[FileGroup]:
        """The groups that are not replaced (up to `as_of`)."""
        return (g for g in self.groups if not is_replaced(g, self.facts, as_of))

    def slices(self, as_of: str | None = None) -> Iterator[FileSlice]:
        """What a snapshot reader merges of them, see `latest_slice`."""
        return (s for g in self.living(as_of) if (s := latest_slice(g, as_of)) is not None)


def latest_slice(group: FileGroup, as_of: str | None = None) -> FileSlice | None:
    """The slice that a snapshot reader merges: the newest, or during a pending compaction the two newest as one.
    `as_of`: only slices with a base instant up to this instant, and logs of writes requested up to it."""
    slices = [s for s in group.slices if as_of is None or s.base_instant <= as_of]
    # Logs of writes requested before the base of their slice, and completed after it; version 6 has no such logs.
    later = group.slices[len(slices) :]
    logs = tuple(log for s in later for log in s.logs if log.name.instant <= str(as_of))
    lost = tuple(flaw for s in later for flaw in s.flaws if not flaw.is_base and flaw.named_instant <= str(as_of))
    if not slices:
        # If the first slice of a group has a base, maybe of a clustering, its rows were in other groups before.
        if not logs or group.slices[0].base is not None:
            return None
        return replace(group.slices[0], base_instant=logs[0].name.instant, logs=logs)
    last = slices[-1]
    if last.base_instant == group.pending_compaction and len(slices) > 1:
        before = slices[-2]
        last = replace(before, logs=before.logs + last.logs, flaws=before.flaws + last.flaws)
    return replace(last, logs=last.logs + logs, flaws=last.flaws + lost) if logs or lost else last


def has_new_keys_in_logs(group: FileGroup, facts: ViewFacts) -> bool | None:
    """Whether a snapshot reader finds new keys in the group's logs, as Flink's state index puts them there: it has no
    base file, or the statistics of a write to its logs name inserts. None: those of a log are archived."""
    slice_ = latest_slice(group)
    if slice_ is None or not slice_.logs:
        return False
    names = facts.witness.names(group.key)
    written = [names.get(log.path.rpartition("/")[2], ()) for log in slice_.logs]
    if slice_.base is None or any(one.inserts for of in written for one in of):
        return True
    return False if all(of and not min(one.offset for one in of) for of in written) else None


def slice_before(group: FileGroup, instant: str) -> FileSlice | None:
    """The slice that a compaction at `instant` must merge: the newest slice before it (closure: all its logs)."""
    return max((s for s in group.slices if s.base_instant < instant), key=lambda s: s.base_instant, default=None)


def latest_base(group: FileGroup, as_of: str | None = None) -> BaseFile | None:
    """The base file that a read-optimized reader reads: the newest visible one."""
    bases = [s.base for s in group.slices if s.base and (as_of is None or s.base_instant <= as_of)]
    return bases[-1] if bases else None


def latest_base_slice(group: FileGroup, as_of: str | None = None) -> FileSlice | None:
    """`latest_base` as a slice without logs, with the flaws of base files, also if the newest base file is missing."""
    flaws = tuple(f for f in group.flaws if f.is_base and (as_of is None or f.instant <= as_of))
    base = latest_base(group, as_of)
    if base is None and not flaws:
        return None
    instant = flaws[-1].instant if base is None else base.name.instant
    return FileSlice(
        partition=group.partition, file_id=group.file_id, base_instant=instant, base=base, logs=(), flaws=flaws
    )


def is_replaced(group: FileGroup, facts: ViewFacts, as_of: str | None = None) -> bool:
    """Whether a completed replace commit (up to `as_of`) has replaced the group."""
    return facts.is_replaced(group.key, as_of)


def log_instants(entries: Iterable[Entry]) -> set[str]:
    """The instants in the names of a listing's log files. Does not check the names: `file_groups` does."""
    names = (e.name.partition(".log.") for e in entries if not e.is_folder)
    return {head.rpartition("_")[2] for head, log, _ in names if log and head.startswith(".")}


def base_instants(entries: Iterable[Entry]) -> set[str]:
    """The instants in the names of a listing's base files, like `log_instants`."""
    names = (e.name for e in entries if not e.is_folder and e.name.endswith((".parquet", ".hfile")))
    return {name.rpartition("_")[2].partition(".")[0] for name in names if not name.startswith(".")}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDebt:
    """A file group as a snapshot reads it; a pending compaction's slice counts with the one before as one."""

    partition: str
    file_id: str
    base_instant: str
    base_bytes: int
    log_files: int
    log_bytes: int
    pending_compaction: str | None


def debt_of(group: FileGroup) -> GroupDebt:
    newest = group.slices[-1:] if group.pending_compaction is None else group.slices[-2:]
    return GroupDebt(
        partition=group.partition,
        file_id=group.file_id,
        base_instant=newest[0].base_instant,
        base_bytes=sum(s.base_bytes for s in newest),
        log_files=sum(len(s.logs) for s in newest),
        log_bytes=sum(s.log_bytes for s in newest),
        pending_compaction=group.pending_compaction,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestRow:
    """The oldest row of a file group that is in no base file. `time`: when it was written, an instant time. `plan`: the
    pending compaction that contains it. `held`: why no new plan can take it, None if one can or `plan` has it."""

    time: str
    partition: str
    file_id: str
    plan: str | None = None
    held: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How long rows have waited outside of base files. `oldest`: the oldest one that is in none, which a read-optimized
    reader lacks: its age counts from the completion of its delta commit, on version 6 from its request; rows of pending
    plans count. `free`: the oldest one that a new plan can take: its file group is in no plan, and nothing holds it.
    `source_bytes`: what a plan of all free file groups reads; `log_files`, `log_bytes`: of these the logs."""

    oldest: OldestRow | None = None
    free: OldestRow | None = None
    file_groups: int = 0
    source_bytes: int = 0
    log_files: int = 0
    log_bytes: int = 0


def oldest_time(slice_: FileSlice, timeline: Timeline) -> str | None:
    """When the oldest row in the logs of a slice was written; None: the logs have no row of a completed write. Of an
    archived write only the beginning of the active timeline is known, before which it completed."""
    return min(_times(slice_, timeline), default=None)


def newest_time(slice_: FileSlice, timeline: Timeline) -> str | None:
    """The same of the newest row."""
    return max(_times(slice_, timeline), default=None)


def _times(slice_: FileSlice, timeline: Timeline) -> Iterator[str]:
    for log in slice_.logs:
        if log.size == 0 or (log.marks is not None and log.marks.is_stray):
            continue
        writes = [w.instant for w in log.marks.writes] if log.marks is not None else []
        # Without a known write, the name of version 6 has the base below the log, and so only shows "archived".
        unnamed = log.name.instant if timeline.layout.has_completion_times else ""
        for instant in writes or [unnamed]:
            done = timeline.completion_time(instant) if instant else UNKNOWN_COMPLETION
            if done is not None:
                yield timeline.start if done == UNKNOWN_COMPLETION else done


def table_lag(groups: Iterable[FileGroup], timeline: Timeline, held: Mapping[GroupKey, str]) -> Lag:
    """The lag of a table. `groups`: those that are not replaced. `held`: file groups that no plan can take, with the
    reason; of pending compactions and damaged files the groups themselves tell."""
    oldest: OldestRow | None = None
    free: OldestRow | None = None
    count = size = log_files = log_bytes = 0
    for group in groups:
        slice_ = latest_slice(group)
        time = oldest_time(slice_, timeline) if slice_ is not None else None
        if slice_ is None or time is None:
            continue
        plan = group.pending_compaction
        why = held.get(group.key) or (str(group.flaws[0].error()) if group.flaws else None)
        row = OldestRow(
            time=time, partition=group.partition, file_id=group.file_id, plan=plan, held=None if plan else why
        )
        oldest = row if oldest is None or time < oldest.time else oldest
        if plan is None and why is None:
            free = row if free is None or time < free.time else free
            size += slice_.base_bytes + slice_.log_bytes
            log_files, log_bytes = log_files + len(slice_.logs), log_bytes + sum(log.size for log in slice_.logs)
        count += 1
    found = Lag(oldest=oldest, free=free, file_groups=count, source_bytes=size)
    return replace(found, log_files=log_files, log_bytes=log_bytes)


def with_write(lag: Lag, time: str) -> Lag:
    """The lag after a delta commit with log files, completed at this time: it is younger than the rows before."""
    row = OldestRow(time=time, partition="", file_id="")
    return replace(lag, oldest=lag.oldest or row, free=lag.free or row)
