"""The file-system view: which files make a file slice, and which slices a reader merges (pure).

    SC1   base FG_SC1           DC2, DC3 -> logs on base SC1
    SC5.compaction.requested    plan {FG: base SC1, logs of DC2, DC3}
    DC6                         -> logs on the phantom slice SC5, which has no base file yet

**The pending-compaction rule** (`latest_slice`): while SC5 is pending, slice (SC1) and slice (SC5) are read as
one: base SC1, logs of SC1, then logs of SC5. A base file of instant SC5 is ignored until SC5 is completed.
All readers, schedulers and compactors use this file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, TypeAlias, TypeVar

from ..errors import MalformedError, MissingFileError
from ..format.file_name import BaseFileName, LogFileName, parse_data_file
from ..format.layout import Slicing
from ..instants.timeline import Timeline
from ..storage.contract import Entry


def input_names(slice_: FileSlice) -> tuple[str, ...]:
    """Names of the files that a compaction of the slice merges: base first, then logs in order."""
    return tuple(str(file.name) for file in slice_.files)


Name = TypeVar("Name", BaseFileName, LogFileName)

GroupKey: TypeAlias = tuple[str, str]
"""(partition path, file id)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile(Generic[Name]):
    """A base or log file of a partition; `size` in bytes."""

    partition: str
    name: Name
    size: int

    @property
    def path(self) -> str:
        """The path relative to the table's base path."""
        return f"{self.partition}/{self.name}" if self.partition else str(self.name)


BaseFile: TypeAlias = DataFile[BaseFileName]
LogFile: TypeAlias = DataFile[LogFileName]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """A base file, which may be absent, and the log files on top of it in merge order.

    `changes`: files of Hudi's change data capture that belong to the base file. They hold no rows of the table, and go
    when the slice goes.
    """

    partition: str
    file_id: str
    base_instant: str
    base: BaseFile | None
    logs: tuple[LogFile, ...]
    changes: tuple[LogFile, ...] = ()

    @property
    def key(self) -> GroupKey:
        """The file group the slice belongs to."""
        return self.partition, self.file_id

    @property
    def files(self) -> tuple[BaseFile | LogFile, ...]:
        """The base file, if there is one, then the log files."""
        return self.logs if self.base is None else (self.base, *self.logs)

    @property
    def log_bytes(self) -> int:
        """Bytes of all log files."""
        return sum(log.size for log in self.logs)

    @property
    def base_bytes(self) -> int:
        """Bytes of the base file, 0 if there is none."""
        return self.base.size if self.base else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroup:
    """All visible slices of one file id in one partition, oldest first.

    `pending_compaction`: the instant of the plan that contains this group; its slice may lack its base file so far.
    """

    partition: str
    file_id: str
    slices: tuple[FileSlice, ...]
    pending_compaction: str | None = None

    @property
    def key(self) -> GroupKey:
        """(partition path, file id)."""
        return self.partition, self.file_id


@dataclass(frozen=True, kw_only=True)
class ViewFacts:
    """What the files of the timeline record about file groups.

    `pending_plans`: file group -> instant of the pending compaction plan that contains it.
    `replaced`: file group -> instant of the completed replace commit that replaced it.
    `compacted`: file group -> instant -> base file name, of every completed compaction and clustering. `shared`: for
    times that several writes share, the paths of the files that their completed commits name; no other files of these
    times count. `forming`: file groups that a pending resize of buckets will make. Until it completes they are not
    there: what they hold was written to the old file groups, too.
    """

    pending_plans: Mapping[GroupKey, str]
    replaced: Mapping[GroupKey, str]
    compacted: Mapping[GroupKey, Mapping[str, str]]
    shared: Mapping[str, frozenset[str]] = field(default_factory=dict)
    forming: Set[GroupKey] = frozenset()

    def compacted_in(self, partition: str) -> Set[str]:
        """The file ids of one partition that completed compactions and clusterings name."""
        return self._compacted_ids.get(partition, frozenset())

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
        """The file groups by their keys, replaced ones included."""
        return {g.key: g for g in self.groups}


def file_groups(
    partition: str,
    entries: Iterable[Entry],
    timeline: Timeline,
    facts: ViewFacts,
    known: Collection[str] = (),
) -> tuple[FileGroup, ...]:
    """The file groups of one partition from its listing, by file id. `known`: those that are known to be whole, whose
    files are not among the entries.

    MissingFileError: a completed compaction or clustering names a base file that is neither listed nor superseded.
    MalformedError: two base files of one instant.
    """
    bases: defaultdict[str, list[BaseFile]] = defaultdict(list)
    logs: defaultdict[str, list[LogFile]] = defaultdict(list)
    changes: defaultdict[str, list[LogFile]] = defaultdict(list)
    for entry in entries:
        if entry.is_folder:
            continue
        name = parse_data_file(entry.name)
        if isinstance(name, BaseFileName):
            bases[name.file_id].append(DataFile(partition=partition, name=name, size=entry.size))
        elif isinstance(name, LogFileName):
            kept = changes if name.is_cdc else logs
            kept[name.file_id].append(DataFile(partition=partition, name=name, size=entry.size))
    named = facts.compacted_in(partition) - set(known)
    return tuple(
        _with_changes(_file_group((partition, file_id), bases[file_id], logs[file_id], timeline, facts), changes)
        for file_id in sorted(bases.keys() | logs.keys() | named)
        if (partition, file_id) not in facts.forming
    )


def _with_changes(group: FileGroup, changes: Mapping[str, Iterable[LogFile]]) -> FileGroup:
    """The group with its files of change data capture: those of a write that made a base file have its instant."""
    if group.file_id not in changes:
        return group
    of = defaultdict[str, list[LogFile]](list)
    for file in sorted(changes[group.file_id], key=lambda file: file.name.sort_key):
        of[file.name.instant].append(file)
    return replace(group, slices=tuple(replace(s, changes=tuple(of[s.base_instant])) for s in group.slices))


def check_partitions(facts: ViewFacts, listed: Collection[str]) -> None:
    """MissingFileError: a compaction, completed or pending, names a partition that a complete listing did not find."""
    for (partition, file_id), instant in facts.pending_plans.items():
        if partition not in listed:
            raise MissingFileError(
                "a pending compaction plan names a partition that does not exist",
                path=f"{partition}/{file_id}",
                instant=instant,
                expected="a folder with .hoodie_partition_metadata in it",
                todo="Restore the folder or its metadata file: without it readers do not see the partition's rows.",
            )
    for key in facts.compacted:
        if key[0] not in listed and key not in facts.replaced:
            instant, name = facts.last_compaction(key)
            raise _lost_base(f"{key[0]}/{name}", instant)


def _lost_base(path: str, instant: str) -> MissingFileError:
    return MissingFileError(
        "a completed compaction or clustering names a base file that does not exist",
        path=path,
        instant=instant,
        todo="Restore the file, or restore the table to an instant before that one. Do not compact or clean.",
    )


def _file_group(
    key: GroupKey, bases: list[BaseFile], logs: list[LogFile], timeline: Timeline, facts: ViewFacts
) -> FileGroup:
    pending = facts.pending_plans.get(key)
    visible = _visible_bases(key, bases, timeline, facts)
    ordered = sorted(logs, key=lambda log: log.name.sort_key)
    if timeline.layout.slicing is Slicing.BY_BASE_INSTANT:
        stacks = _slices_by_name(visible, ordered, pending, timeline, is_replaced=key in facts.replaced)
    else:
        stacks = _slices_by_completion(visible, ordered, pending, timeline)
    partition, file_id = key
    slices = tuple(
        FileSlice(
            partition=partition,
            file_id=file_id,
            base_instant=instant,
            base=visible.get(instant),
            logs=tuple(stacks[instant]),
        )
        for instant in sorted(stacks)
    )
    return FileGroup(partition=partition, file_id=file_id, slices=slices, pending_compaction=pending)


def _visible_bases(key: GroupKey, bases: list[BaseFile], timeline: Timeline, facts: ViewFacts) -> dict[str, BaseFile]:
    """Base files of committed instants, by instant. A base file of a pending compaction is never visible."""
    compacted, pending = facts.compacted.get(key, {}), facts.pending_plans.get(key)
    visible: dict[str, BaseFile] = {}
    for base in bases:
        instant = base.name.instant
        # The commit names the valid file of a compaction, and does not name stray files of other attempts. A writer's
        # instant of the same time does not matter for a group that is in the plan.
        named = compacted.get(instant)
        if instant in facts.shared:
            if base.path not in facts.shared[instant]:
                continue
        elif named != str(base.name) if named else instant == pending or not timeline.is_committed(instant):
            continue
        if instant in visible:
            raise MalformedError(
                "two base files of one file group and instant",
                path=base.path,
                instant=instant,
                expected=str(visible[instant].name),
                found=str(base.name),
                todo="Find out which attempt wrote each; the commit metadata of the instant names the valid one.",
            )
        visible[instant] = base
    replaced_at = facts.replaced.get(key)
    compacted_at, compacted_name = facts.last_compaction(key)
    if compacted_at and replaced_at is None and max(visible, default="") < compacted_at:
        raise _lost_base(f"{key[0]}/{compacted_name}", compacted_at)
    return visible


def _slices_by_name(
    bases: Mapping[str, BaseFile], logs: list[LogFile], pending: str | None, timeline: Timeline, *, is_replaced: bool
) -> dict[str, list[LogFile]]:
    """Version 6: a log's name contains the base instant of its slice.

    A slice counts if its base instant is committed or is the instant of the pending compaction. Without a base file
    it is a log-only slice, opened by the delta commit in its name. A completed compaction opens none without a base
    file: it left this file group out, which was replaced when it completed, and its logs belong to the slice below.
    That counts where the replacing write is not seen, as in a read as of an earlier instant. Where the compaction is
    archived, a slice below shows that it was one: a writer opens a log-only slice in a new file group only.
    """
    stacks: dict[str, list[LogFile]] = {instant: [] for instant in bases}
    if pending is not None:
        stacks.setdefault(pending, [])
    for log in logs:
        instant = log.name.instant
        write = timeline.completed_writes.get(instant)
        left_out = is_replaced and timeline.is_committed(instant) if write is None else write.action == "commit"
        if instant not in stacks and left_out:
            instant = max((time for time in stacks if time < instant), default=instant)
        if instant in stacks or timeline.is_committed(instant):
            stacks.setdefault(instant, []).append(log)
    return stacks


def _slices_by_completion(
    bases: Mapping[str, BaseFile], logs: list[LogFile], pending: str | None, timeline: Timeline
) -> dict[str, list[LogFile]]:
    """Versions 8 and 9: a log belongs to the newest base requested before its delta commit completed.

    Logs of delta commits that are not completed are dropped. A log older than every base opens its own slice.
    """
    stacks: dict[str, list[LogFile]] = {instant: [] for instant in bases}
    if pending is not None:
        stacks.setdefault(pending, [])
    for log in logs:
        completion = timeline.completion_time(log.name.instant)
        if completion is None:
            continue
        home = max((instant for instant in stacks if instant <= completion), default=log.name.instant)
        stacks.setdefault(home, []).append(log)
    return stacks


def latest_slice(group: FileGroup, as_of: str | None = None) -> FileSlice | None:
    """The slice that a snapshot reader merges: the newest, or during a pending compaction the two newest as one.

    `as_of`: only slices with a base instant up to this one, and logs of writes requested up to it (blocks are filtered
    separately).
    """
    slices = [s for s in group.slices if as_of is None or s.base_instant <= as_of]
    # Its write was requested before the base of its slice, and completed after it; version 6 has no such logs.
    logs = tuple(log for s in group.slices[len(slices) :] for log in s.logs if log.name.instant <= str(as_of))
    if not slices:
        # Rows of a group that began with a base, which a clustering may have made, are in other groups before it.
        if not logs or group.slices[0].base is not None:
            return None
        return replace(group.slices[0], base_instant=logs[0].name.instant, logs=logs)
    last = slices[-1]
    if last.base_instant == group.pending_compaction and len(slices) > 1:
        before = slices[-2]
        last = replace(before, logs=before.logs + last.logs)
    return replace(last, logs=last.logs + logs) if logs else last


def slice_before(group: FileGroup, instant: str) -> FileSlice | None:
    """The slice that a compaction at `instant` must merge: the newest slice before it (closure: all its logs)."""
    return max((s for s in group.slices if s.base_instant < instant), key=lambda s: s.base_instant, default=None)


def latest_base(group: FileGroup, as_of: str | None = None) -> BaseFile | None:
    """The base file that a read-optimized reader reads: the newest visible one."""
    bases = [s.base for s in group.slices if s.base and (as_of is None or s.base_instant <= as_of)]
    return bases[-1] if bases else None


def is_replaced(group: FileGroup, facts: ViewFacts, as_of: str | None = None) -> bool:
    """Whether a completed replace commit (up to `as_of`) has replaced the group."""
    instant = facts.replaced.get(group.key)
    return instant is not None and (as_of is None or instant <= as_of)


def log_instants(entries: Iterable[Entry]) -> set[str]:
    """The instants in the names of a listing's log files. Does not check the names: `file_groups` does."""
    names = (e.name.partition(".log.") for e in entries if not e.is_folder)
    return {head.rpartition("_")[2] for head, log, _ in names if log and head.startswith(".")}


def base_instants(entries: Iterable[Entry]) -> set[str]:
    """The instants in the names of a listing's base files, like `log_instants`."""
    names = (e.name for e in entries if not e.is_folder and e.name.endswith((".parquet", ".hfile")))
    return {name.rpartition("_")[2].partition(".")[0] for name in names if not name.startswith(".")}
