"""The facts of a view: what the files of completed and pending instants record about file groups.

Completed files of many megabytes of JSON on a local disk are parsed once a process, then read partition by partition.
A write of tens of thousands of files has a completed file of as many write statistics, and each step asks all completed
writes of the active timeline for the files of a few partitions. So one parse finds where the statistics of each
partition stand, and checks them all; nothing else of the file stays in memory. They are decoded again where they are
asked for. A file is known by its path, size and modification time: a completed file is put once. Of Avro nothing
stays: where its partitions stand only a parse of all shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..errors import MalformedError, MissingFileError, TableChangedError
from ..format.commit_metadata import CLUSTER
from ..format.compaction_plan import CompactionPlan
from ..format.instant import Instant, State
from ..format.replace_request import forming_groups
from ..format.rollback_plan import decode_rollback_plan
from ..instants.instant_files import InstantFiles
from ..instants.timeline import UNKNOWN_COMPLETION, Timeline
from ..storage.contract import Entry, Storage, listed_if_there
from ..storage.folders import HOODIE
from ..storage.local import large_file, read_part
from .view import GroupKey, ViewFacts
from .witness import (
    JsonStat,
    Later,
    NamedFile,
    NamedFiles,
    Witness,
    files_of,
    files_of_json,
    merged_by,
    named_files,
    named_instant,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_KEPT = 256


class _Stat(JsonStat, gc=False, rename="camel"):
    file_id: str | None = None


class _Ranges(msgspec.Struct, rename="camel"):
    partition_to_write_stats: dict[str, msgspec.Raw] | None


_RANGES = msgspec.json.Decoder(_Ranges)
_STATS = msgspec.json.Decoder(list[_Stat])


class _Range(NamedTuple):
    """The first byte of a partition's write statistics, their number of bytes, and the hashes of their file ids; None:
    not all have one."""

    begin: int
    length: int
    ids: npt.NDArray[np.int64] | None


class LargeFiles(NamedFiles):
    """See the module."""

    __slots__ = ("_path", "_ranges", "_storage")

    def __init__(self, storage: Storage, path: str, ranges: Mapping[str, _Range]) -> None:
        super().__init__(ranges, files_of_json)
        self._storage, self._path, self._ranges = storage, path, ranges

    def __getitem__(self, partition: str) -> tuple[NamedFile, ...]:
        return self._decoded(self._bytes(partition))

    def of_group(self, partition: str, file_id: str) -> Sequence[NamedFile]:
        found = self._ranges.get(partition)
        if found is None or (found.ids is not None and hash(file_id) not in found.ids):
            return ()
        return super().of_group(partition, file_id)

    def _bytes(self, partition: str) -> bytes:
        begin, length, _ = self._ranges[partition]
        return read_part(self._storage, self._path, begin, length)

    def _decoded(self, data: bytes) -> tuple[NamedFile, ...]:
        try:
            return tuple([file for stat in _STATS.decode(data) for file in files_of_json(stat)])
        except (msgspec.MsgspecError, ValueError) as error:
            raise TableChangedError(
                "a completed file was replaced while the table was read", path=self._path, todo="Run it again."
            ) from error


def named_files_of(storage: Storage, path: str) -> NamedFiles:
    """See `named_files`, of a completed file on a storage. MissingFileError: it does not exist."""
    found = large_file(storage, path)
    large = None if found is None else _large(found[0], path, found[1])
    return named_files(storage.read(path), path) if large is None else large


@lru_cache(maxsize=_KEPT)
def _large(storage: Storage, path: str, entry: Entry) -> LargeFiles | None:
    """None: see `_ranges`, or another content was read than that of the entry."""
    data = storage.read(path)
    ranges = _ranges(data) if len(data) == entry.size else None
    return None if ranges is None else LargeFiles(storage, path, ranges)


def _ranges(data: bytes) -> Mapping[str, _Range] | None:
    """Where the write statistics of each partition are that has some; None: another way has to read or refuse them."""
    import numpy as np  # late: few tables have such a file

    start, found = _address(data), dict[str, _Range]()
    try:
        for partition, raw in (_RANGES.decode(data).partition_to_write_stats or {}).items():
            if stats := _STATS.decode(raw):
                ids = [hash(stat.file_id) for stat in stats if stat.file_id]
                hashes = np.array(ids, np.int64) if len(ids) == len(stats) else None
                found[partition] = _Range(_address(raw) - start, len(memoryview(raw)), hashes)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found


def _address(data: bytes | msgspec.Raw) -> int:
    import numpy as np

    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


HASHING_METADATA = f"{HOODIE}/.bucket_index/consistent_hashing_metadata"
"""The folder in a table with such buckets: it has a folder for each partition, with files `<instant>.hashing_meta`."""


def is_consistently_hashed(storage: Storage) -> bool:
    return listed_if_there(storage, HASHING_METADATA) is not None


_RECORDING = ("commit", "replacecommit")


@dataclass(frozen=True, slots=True)
class FactLoader:
    files: InstantFiles

    def load(self, timeline: Timeline, prevails: str | None = None, *, witness: bool = True) -> ViewFacts:
        """Pending plans, replaced file groups, and the files of completed writes, from the instants' files. `prevails`:
        see `pending_plans`. `witness`: False leaves out the files of delta commits."""
        self.read_ahead(timeline, every=witness)
        plans = self._plans(timeline)
        planned = _by_group(plans, prevails)
        compacted: defaultdict[GroupKey, dict[str, str]] = defaultdict(dict)
        for instant in timeline.completed:
            if instant.family not in _RECORDING:
                continue
            metadata = self.files.recorded(instant)
            if metadata is None:
                continue
            if instant.family == "commit" or metadata.operation_type == CLUSTER:
                for part, stats in metadata.partition_to_write_stats.items():
                    for stat in stats:
                        if stat.file_id and stat.path:
                            compacted[part, stat.file_id][instant.requested_time] = stat.path.rpartition("/")[2]
        return ViewFacts(
            pending_plans=planned,
            replaced=self.replaced_groups(timeline),
            compacted=compacted,
            shared={time: self.named_files(timeline, time) for time in timeline.shared_times},
            forming=self.forming(timeline),
            witness=self._witness(timeline, plans) if witness else Witness(),
        )

    def _witness(self, timeline: Timeline, plans: Sequence[tuple[str, CompactionPlan]]) -> Witness:
        named = {write: self._named(write) for write in (*timeline.completed, *timeline.hidden)}
        return Witness.of(
            ((write.requested_time, files) for write, files in named.items()),
            ((time, merged_by(plan)) for time, plan in plans),
            self.uncompleted(timeline, named, dict(plans)),
        )

    def with_archived(self, facts: ViewFacts, timeline: Timeline) -> ViewFacts:
        """The facts, including those of archived writes: the files they name, and the file groups they replaced.
        `timeline`: with its archive. Reads the complete archive. UnknownStateError: it cannot be read."""
        from ..instants.archived_timeline import archived_writes  # imported here: only one command needs it

        named, replaced = dict[Instant, NamedFiles](), dict[GroupKey, str]()
        for write, metadata in archived_writes(self.files.storage, self.files.config, timeline.archived):
            named[write] = files_of(metadata)
            replaced.update(dict.fromkeys(metadata.replaced_groups, write.requested_time))
        writes = ((i.requested_time, named.get(i)) for i in timeline.archived if i.is_write)
        return replace(facts, replaced={**replaced, **facts.replaced}, witness=facts.witness.with_writes(writes))

    def _named(self, write: Instant) -> NamedFiles | None:
        """The files that a completed write names; None: its file is empty, torn (by a Hudi killed while completing the
        write), or was archived since. Then its rows count in all files that may hold them."""
        if write.family in _RECORDING:
            metadata = self.files.recorded(write)
            return None if metadata is None else files_of(metadata)
        try:
            return named_files_of(self.files.storage, self.files.path(write))
        except (MalformedError, MissingFileError):
            return None

    def uncompleted(
        self,
        timeline: Timeline,
        named: Mapping[Instant, NamedFiles | None] | None = None,
        plans: Mapping[str, CompactionPlan] = MappingProxyType({}),
    ) -> Mapping[str, Later]:
        """Pending writes that had completed, see `Witness.uncompleted`. `named`: files of completed writes, if known.
        `plans`: those that are known, by instant. A plan names base files of completed writes, and from version 8 on
        log files of completed writes; the base file below a log file was completed when the log file's write started,
        as was the base file that a new one replaces. A clustering is known by base files alone: while buckets are
        resized, log files have the resize's instant. Writes that a rollback or restore undoes are left out, since they
        are pending for that reason. Only instants later than a pending write are read."""
        writers = {i.requested_time for i in timeline.inflight_writers}
        pending = writers | {i.requested_time for i in timeline.pending("clustering")}
        pending -= {i.requested_time for i in timeline.completed}  # file names do not distinguish writes of one time
        if not pending or (undone := self._being_undone(timeline)) is None:
            return {}
        pending -= undone
        first, found = min(pending, default=UNKNOWN_COMPLETION), dict[str, Later]()

        def compare(name: str | None, of: Instant) -> None:
            show(named_instant(name.rpartition("/")[2]) if name else "", of)

        def show(time: str, of: Instant) -> None:
            if time in pending and time < of.requested_time:
                later = Later(of.requested_time, self.files.path(of))
                found[time] = min(found.get(time, later), later)

        for write in (i for i in timeline.completed if i.requested_time > first and not timeline.is_compaction(i)):
            for files in ((self._named(write) if named is None else named.get(write)) or {}).values():
                for one in files:
                    compare(one.path if one.is_below else None, write)
                    show(one.replaces, write)
        done = (i for i in timeline.completed if timeline.is_compaction(i))
        times = {i.requested_time for i in (*timeline.pending_merges, *done) if i.requested_time > first}
        for time, plan in self._readable_plans(times, plans):
            of = Instant(requested_time=time, action=plan.action, state=State.REQUESTED)
            for operation in plan.operations:
                compare(operation.data_file_path, of)
                for path in operation.delta_file_paths if timeline.layout.has_completion_times else ():
                    compare(path if named_instant(path.rpartition("/")[2]) in writers else None, of)
        return found

    def _readable_plans(
        self, times: Iterable[str], known: Mapping[str, CompactionPlan]
    ) -> Iterator[tuple[str, CompactionPlan]]:
        for time in times:
            with suppress(MissingFileError, MalformedError):
                yield time, known[time] if time in known else self.files.compaction_plan(time)

    def _being_undone(self, timeline: Timeline) -> set[str] | None:
        """The targets of pending rollbacks; None: they are unknown, or a restore is pending."""
        if timeline.pending("restore"):
            return None
        targets = {self.files.plan(i, decode_rollback_plan).target for i in timeline.pending("rollback")}
        return None if None in targets else {target for target in targets if target is not None}

    def read_ahead(self, timeline: Timeline, *, every: bool = False) -> None:
        """Reads the files for `load`, and the newest write, which has the schema, concurrently. `every`: all writes."""
        newest = [timeline.completed_writes[t] for t in sorted(timeline.completed_writes)[-1:]]
        plans = [i.at(State.REQUESTED) for i in timeline.pending_compactions]
        writes = timeline.completed if every else [i for i in timeline.completed if i.family in _RECORDING]
        self.files.read_ahead([*plans, *newest, *writes])

    def named_files(self, timeline: Timeline, time: str, but: str | None = None) -> frozenset[str]:
        """Paths of the files that the completed writes of one time name; `but`: without those of this action."""
        writes = (i for i in timeline.completed if i.requested_time == time and i.family != but)
        found = [self.files.commit_metadata(i) for i in writes]
        return frozenset().union(*(m.named_files | m.change_files for m in found))

    def replaced_groups(self, timeline: Timeline) -> dict[GroupKey, str]:
        """File groups that completed replace commits have replaced, each with the replacing instant."""
        replaced: dict[GroupKey, str] = {}
        for instant in timeline.completed:
            if instant.family == "replacecommit":
                gone = self.files.commit_metadata(instant).replaced_groups
                replaced.update(dict.fromkeys(gone, instant.requested_time))
        return replaced

    def forming(self, timeline: Timeline) -> frozenset[GroupKey]:
        """The file groups that pending resizes of consistent-hashing buckets will make. MalformedError: a plan cannot
        be read. MissingFileError: it does not exist, as in a past state whose resize is archived."""
        pending = [i for i in timeline.instants if i.family == "replacecommit" and not i.completed]
        if not pending or not is_consistently_hashed(self.files.storage):
            return frozenset()
        return frozenset().union(*map(self._formed_by, pending))

    def _formed_by(self, instant: Instant) -> frozenset[GroupKey]:
        """The file groups of one resize. Tries both names: a past state has a completed clustering under its family."""
        for action in dict.fromkeys((instant.action, "clustering")):
            path = self.files.path(Instant(requested_time=instant.requested_time, action=action, state=State.REQUESTED))
            if self.files.storage.find(path) is not None:
                return forming_groups(self.files.storage.read(path), path)
        raise MissingFileError(
            "which buckets a replacecommit was to make is not known any more",
            path=self.files.path(instant),
            todo="Read a later state of this table with consistent-hashing buckets.",
        )

    def left_out(self, timeline: Timeline) -> dict[str, dict[GroupKey, str]]:
        """The planned groups that completed compactions left out, with what replaced them; see `compaction_plan`."""
        replaced, found = self.replaced_groups(timeline), dict[str, dict[GroupKey, str]]()
        for done in timeline.completed if replaced else ():
            if done.family == "commit" and (metadata := self.files.commit_metadata(done)).compacted:
                planned = self.files.compaction_plan(done.requested_time).groups
                if out := (planned & replaced.keys()) - metadata.written_groups:
                    found[done.requested_time] = {group: replaced[group] for group in sorted(out)}
        return found

    def pending_plans(self, timeline: Timeline) -> dict[GroupKey, str]:
        """The file groups of pending compaction plans, with the plans' instants. MalformedError: a group is in two."""
        return _by_group(self._plans(timeline), None)

    def _plans(self, timeline: Timeline) -> list[tuple[str, CompactionPlan]]:
        times = (i.requested_time for i in timeline.pending_compactions)
        return [(time, self.files.compaction_plan(time)) for time in times]


def _by_group(plans: Iterable[tuple[str, CompactionPlan]], prevails: str | None) -> dict[GroupKey, str]:
    found: dict[GroupKey, str] = {}
    for time, plan in plans:
        for operation in plan.operations:
            key = (operation.partition_path, operation.file_id)
            other = found.setdefault(key, time)
            if other == time:
                continue
            if prevails not in (other, time):
                raise MalformedError(
                    "file group in two pending compaction plans",
                    path="/".join(key),
                    found=f"{other} and {time}",
                    todo="One of them was requested without the table's lock. Unschedule the later one, or if "
                    f"that is refused the other: compactor-daemon unschedule TABLE {time}.",
                )
            found[key] = prevails
    return found
