"""One state of a table, from which requests are answered, as values and as JSON (pure).

With every request a client sends the hash of its timeline and its last instant (`RemoteHoodieTableFileSystemView` of
Hudi 0.15 and 1.2): the state and the client agree, or one of them is stale.

The JSON values are Hudi's data transfer objects. Source: the DTO classes of
`org.apache.hudi.common.table.timeline.dto`, as servers of 0.15.0 and 1.2.0 print them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import count
from typing import Any, TypeAlias

from ..errors import PhantombaseError
from ..format.compaction_plan import CompactionOperation, CompactionPlan
from ..format.file_name import BaseFileName, parse_data_file
from ..format.instant import MERGES, Instant, State
from ..format.table_config import TableConfig
from ..instants.timeline import UNKNOWN_COMPLETION, Timeline
from ..storage.contract import Entry, Storage
from ..storage.folders import as_uri
from ..view.grouping import file_groups
from ..view.view import (
    BaseFile,
    FileGroup,
    FileSlice,
    GroupDebt,
    GroupKey,
    LogFile,
    ViewFacts,
    base_instants,
    debt_of,
    is_replaced,
    log_instants,
)
from ..view.view_loader import believed
from .recorded import InstantRecords, kind_of

Json: TypeAlias = Any
"""A value that `json.dumps` accepts."""
_BLOCK_BYTES = 32 << 20
"""The block size that Hadoop's local file system reports; clients do not use it."""
_NOT_IN_A_URI = re.compile(r"[^A-Za-z0-9_\-!.~'()*,;:$&+=@/\u0080-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints files below a base path, as the client spells it. `modified`: ms since the epoch, by partition, name."""

    base_path: str
    modified: Mapping[str, Mapping[str, int]]

    def base_file(self, file: BaseFile) -> Json:
        return {
            "fileStatus": self._status(file),
            "fullPath": self._full(file.path),
            "fileLen": file.size,
            "commitTime": file.name.instant,
            "fileId": file.name.file_id,
            "bootstrapBaseFile": None,
        }

    def file_slice(self, slice_: FileSlice) -> Json:
        """A `FileSliceDTO`: log files newest first."""
        return {
            "baseFile": None if slice_.base is None else self.base_file(slice_.base),
            "logFiles": [
                {"fileStatus": self._status(log), "path": self._full(log.path), "len": log.size}
                for log in reversed(slice_.logs)
            ],
            "partition": slice_.partition,
            "fileId": slice_.file_id,
            "baseInstant": slice_.base_instant,
        }

    def file_groups(self, groups: list[FileGroup], timeline: Timeline) -> Json:
        """`FileGroupDTO`s: slices newest first; the first group carries the timeline for all of them."""
        writes = {"instants": [instant(i, timeline) for i in counted(timeline) if i.is_write]}
        return [
            {
                "partition": group.partition,
                "fileId": group.file_id,
                "slices": [self.file_slice(s) for s in reversed(group.slices)],
                "timeline": None if number else writes,
            }
            for number, group in enumerate(groups)
        ]

    def _status(self, file: BaseFile | LogFile) -> Json:
        return {
            "path": {"uri": self._uri(file.path)},
            "length": file.size,
            "isdir": False,
            "blockReplication": 0,
            "blocksize": _BLOCK_BYTES,
            "modificationTime": self.modified.get(file.partition, {}).get(str(file.name), 0),
        }

    def _full(self, path: str) -> str:
        """As Hadoop prints a path: one slash after `file:`."""
        return f"{as_uri(self.base_path)}/{path}"

    def _uri(self, path: str) -> str:
        """As Java prints a URI: only characters that a path must not contain are escaped, not non-ASCII ones."""
        scheme, found, rest = self.base_path.partition("://")
        head, below = (f"{scheme}://", rest) if found else ("file://", self.base_path)
        return head + _NOT_IN_A_URI.sub(lambda m: f"%{ord(m[0]):02X}", f"{below}/{path}")


def instant(instant_: Instant, timeline: Timeline) -> Json:
    """An `InstantDTO`. Version 6 has no completion times: there it is the requested time, which orders its slices."""
    completion = instant_.completion_time or timeline.legacy_completions.get(instant_.requested_time)
    return {
        "action": instant_.action,
        "ts": instant_.requested_time,
        "state": instant_.state.name,
        "requestedTime": instant_.requested_time,
        "completionTime": completion if timeline.layout.has_completion_times else instant_.requested_time,
    }


def compaction_operation(operation: CompactionOperation, plan_instant: str) -> Json:
    base = operation.data_file_path or None
    name = parse_data_file(base) if base else None
    return {
        "baseInstant": operation.base_instant_time,
        "compactionInstant": plan_instant,
        "dataFileInstant": name.instant if isinstance(name, BaseFileName) else None,
        "deltaFiles": list(operation.delta_file_paths),
        "baseFile": base,
        "id": operation.file_id,
        "partition": operation.partition_path,
        "metrics": {name: float(value) for name, value in (operation.metrics or {}).items()},
        "bootstrapBaseFile": operation.bootstrap_file_path or None,
    }


def clustering_operation(key: GroupKey, instant_: Instant) -> Json:
    """A `ClusteringOpDTO`: a file group that a pending instant will replace."""
    return {
        "id": key[1],
        "partition": key[0],
        "instantTime": instant_.requested_time,
        "instantState": instant_.state.name,
        "instantAction": instant_.action,
    }


NO_INSTANT = "0"
"""The last instant of a client without instants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientState:
    """The client's side: the time of its last instant, and the hash of its timeline."""

    last: str
    digest: str


def counted(timeline: Timeline) -> tuple[Instant, ...]:
    """The instants in a client's hash: completed ones of any action, and pending compactions."""
    return tuple(i for i in timeline.instants if i.completed or i.action == "compaction")


def digest(instants: Iterable[Instant]) -> str:
    """SHA-256 of `<requested time>_<action>_<STATE>` of the instants in order, without separators."""
    text = "".join(f"{i.requested_time}_{i.action}_{i.state.name}" for i in instants)
    return sha256(text.encode()).hexdigest()


def digests(timeline: Timeline) -> frozenset[str]:
    """The hashes that agree with a timeline. Hudi's server also counts pending log compactions, which its clients leave
    out; and it accepts a client that does not know a final `clean` yet."""
    known = counted(timeline)
    with_log_compactions = tuple(i for i in timeline.instants if i.completed or i.action in MERGES)
    forms = [known, with_log_compactions]
    if known and known[-1].action == "clean":
        forms.append(known[:-1])
    return frozenset(map(digest, forms))


def agree(times: Sequence[str], accepted: frozenset[str], client: ClientState) -> bool:
    """Whether a client may be answered from a state. `times`: of its `counted` instants; `accepted`: its `digests`."""
    if not times and client.last == NO_INSTANT:
        return True
    return client.digest in accepted and (not times or client.last in times or client.last < times[0])


def may_stay_behind(old: Timeline, new: Timeline) -> bool:
    """Whether a client that knows only `old` may be answered from it although the table is at `new`. It may if nothing
    since then removed a file of `old`, or opened a file slice into which the client must write: only delta commits and
    savepoints were added, and compactions of `old` have progressed."""
    known = {i.identity: i for i in counted(old)}
    now = {i.identity: i for i in counted(new)}
    for key, instant in now.items():
        before = known.get(key)
        if before is None and not (instant.completed and instant.action in ("deltacommit", "savepoint")):
            return False
    start = new.start
    return all(key in now or (i.completed and i.requested_time < start) for key, i in known.items())


def refusal(timeline: Timeline, client: ClientState) -> str:
    """Why a client is not answered, in the words of Hudi's server."""
    return (
        f"Last known instant from client was {client.last} but server has the following timeline "
        f"[{', '.join(map(_shown, counted(timeline)))}]"
    )


def _shown(instant: Instant) -> str:
    if instant.state is State.COMPLETED:
        return f"[{instant.requested_time}__{instant.completion_time or ''}__{instant.action}__COMPLETED]"
    return f"[==>{instant.requested_time}__{instant.action}__{instant.state.name}]"


_serials = count(1)
_PARTITION_BYTES, _GROUP_BYTES, _FILE_BYTES = 2000, 600, 450
"""Measured: 100 thousand file groups of three files each."""


@dataclass(frozen=True, kw_only=True)
class PartitionFiles:
    """The file groups of a partition as readers see them, and what made them. `modified`: file name -> milliseconds
    since the epoch. `times`: the instants in the names of its files. `serial`: a number unique among the listings of
    this process. `refused`: a file is lost or damaged. Hudi's server answers without the file; a writer that uses such
    an answer would lose the file's rows."""

    groups: tuple[FileGroup, ...]
    facts: ViewFacts
    modified: Mapping[str, int]
    times: frozenset[str] = frozenset()
    refused: PhantombaseError | None = field(default=None, compare=False)
    serial: int = field(default_factory=lambda: next(_serials), compare=False)

    @cached_property
    def by_file_id(self) -> Mapping[str, FileGroup]:
        return {g.file_id: g for g in self.groups}

    @cached_property
    def bytes(self) -> int:
        return _PARTITION_BYTES + _GROUP_BYTES * len(self.groups) + _FILE_BYTES * len(self.modified)

    @cached_property
    def live(self) -> tuple[FileGroup, ...]:
        return tuple(g for g in self.groups if not is_replaced(g, self.facts))

    @cached_property
    def debts(self) -> tuple[GroupDebt, ...]:
        """The debt of each file group that has a slice and is not replaced."""
        return tuple(debt_of(g) for g in self.live if g.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFiles:
    """A partition with files of pending writes: `with_logs` with their log files, `with_all` with base files too."""

    with_logs: tuple[FileGroup, ...]
    with_all: tuple[FileGroup, ...]


@dataclass(frozen=True, kw_only=True)
class ServedState:
    """The result of a load. `partitions`: also empty ones. `records`: of the active instants."""

    config: TableConfig
    timeline: Timeline
    partitions: Mapping[str, PartitionFiles]
    records: InstantRecords

    @cached_property
    def digests(self) -> frozenset[str]:
        return digests(self.timeline)

    @cached_property
    def refused(self) -> frozenset[str]:
        """The partitions that are not served, see `PartitionFiles`."""
        return frozenset(name for name, files in self.partitions.items() if files.refused is not None)

    @cached_property
    def _times(self) -> tuple[str, ...]:
        return tuple(i.requested_time for i in counted(self.timeline))

    @cached_property
    def bytes(self) -> int:
        """Its approximate memory; states of one table share most of it."""
        return sum(files.bytes for files in self.partitions.values())

    def agrees(self, client: ClientState) -> bool:
        return agree(self._times, self.digests, client)

    @cached_property
    def modified(self) -> Mapping[str, Mapping[str, int]]:
        """See `PartitionFiles`, by partition."""
        return {name: files.modified for name, files in self.partitions.items()}

    @cached_property
    def pending_files(self) -> bool:
        """Whether pending writes exist whose files some answers show."""
        return any(map(writes_files, self.timeline.instants))

    @cached_property
    def kinds(self) -> Mapping[tuple[str, str], str]:
        """(requested time, family) -> kind of the instant: a completed compaction is a `commit` on the timeline."""
        return {i.identity: kind_of(i, r) for i, r in self.records.records}

    @cached_property
    def plans(self) -> Mapping[str, CompactionPlan]:
        return self._plans("compaction")

    @cached_property
    def log_plans(self) -> Mapping[str, CompactionPlan]:
        return self._plans("logcompaction")

    def _plans(self, action: str) -> dict[str, CompactionPlan]:
        pending = ((i, r.plan) for i, r in self.records.records if i.action == action)
        return {i.requested_time: plan for i, plan in pending if plan is not None}

    @cached_property
    def clusterings(self) -> Mapping[GroupKey, Instant]:
        """File group -> the pending instant that will replace it."""
        return {key: i for i, r in self.records.records for key in r.clustered}


def partition_files(
    partition: str, entries: Iterable[Entry], timeline: Timeline, facts: ViewFacts, storage: Storage
) -> PartitionFiles:
    entries = tuple(entries)
    groups = believed(storage, file_groups(partition, entries, timeline, facts))
    flaws = (flaw for g in groups for flaw in g.flaws)
    refused = next((flaw.error(storage.base_path) for flaw in flaws), None)
    modified = {e.name: e.modified_ms for e in entries if not e.is_folder}
    times = frozenset(log_instants(entries) | base_instants(entries))
    return PartitionFiles(groups=groups, refused=refused, facts=facts, modified=modified, times=times)


def pending_files(partition: str, entries: Iterable[Entry], timeline: Timeline, files: PartitionFiles) -> PendingFiles:
    """The partition with the files of pending writes. `files`: of the same listing."""
    if not any(map(writes_files, timeline.instants)):
        return PendingFiles(with_logs=files.groups, with_all=files.groups)
    entries = tuple(entries)
    shown = _as_completed(timeline, writes_files)
    pending = shown.completed_writes.keys() - timeline.completed_writes.keys()
    return PendingFiles(
        with_all=file_groups(partition, _one_base_each(entries, pending, keep=True), shown, files.facts),
        with_logs=file_groups(partition, _one_base_each(entries, pending, keep=False), shown, files.facts),
    )


def writes_files(instant: Instant) -> bool:
    """Whether an instant's files are shown before the instant completes. A compaction's base file never is."""
    return instant.is_write and not instant.completed and instant.action != "compaction"


def _as_completed(timeline: Timeline, which: Callable[[Instant], bool]) -> Timeline:
    """The timeline with some pending instants completed last, since Hudi puts their log files on the newest slice."""

    def shown(i: Instant) -> Instant:
        done = which(i)
        return replace(i, action=i.family, state=State.COMPLETED, completion_time=UNKNOWN_COMPLETION) if done else i

    return replace(timeline, instants=tuple(map(shown, timeline.instants)))


def _one_base_each(entries: tuple[Entry, ...], pending: Iterable[str], *, keep: bool) -> list[Entry]:
    """The listing with at most one base file a group and pending instant; `keep` False: none of pending ones."""
    pending = frozenset(pending)
    found: dict[object, Entry] = {}
    for entry in entries:
        name = None if entry.is_folder else parse_data_file(entry.name)
        if isinstance(name, BaseFileName) and name.instant in pending:
            if keep:
                found[name.file_id, name.instant] = entry
        else:
            found[entry.name] = entry
    return list(found.values())
