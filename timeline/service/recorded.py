"""What the file of each instant records, by partition, and the facts of each partition made from it.

Each file is read once. `view.facts` makes the facts of a complete table; here the cost of a new instant depends on the
partitions that it touches, not on the size of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..errors import MalformedError, MissingFileError, UnsupportedError
from ..format.clean import decode_clean_plan
from ..format.commit_metadata import CLUSTER, LOG_COMPACT, CommitMetadata
from ..format.compaction_plan import CompactionPlan
from ..format.instant import MERGES, Instant, State
from ..format.replace_request import pending_clustering_file_groups
from ..format.rollback_plan import decode_rollback_plan
from ..record_fields import gathered
from ..storage.contract import Entry, list_of_table
from ..table.table import Snapshot, Table
from ..view.view import GroupKey, ViewFacts
from ..view.witness import Later, NamedFile, Witness, files_of, merged_by

FileIds: TypeAlias = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The content of one file. `partitions`: those whose files the instant adds, removes or plans with; None: any.
    `bases`: partition -> file id -> base file, of a completed compaction or clustering. `replaced`, `planned`: file ids
    by partition, of a completed replace commit and of a pending compaction. `operation`: Hudi's name of the kind of a
    completed write. `plan`: of a pending compaction or log compaction. `clustered`: what a pending clustering will
    replace. `named`: the files that a completed write names, by partition; None: its file is torn, see `FactLoader`."""

    partitions: frozenset[str] | None = frozenset()
    bases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    replaced: Mapping[str, FileIds] = field(default_factory=dict)
    planned: Mapping[str, FileIds] = field(default_factory=dict)
    operation: str | None = None
    plan: CompactionPlan | None = None
    clustered: frozenset[GroupKey] = frozenset()
    named: Mapping[str, tuple[NamedFile, ...]] | None = field(default_factory=dict)


NOTHING = Recorded()
ANYTHING = Recorded(partitions=None)
TORN = Recorded(partitions=None, named=None)


def of_commit(metadata: CommitMetadata, family: str) -> Recorded:
    written = metadata.partition_to_write_stats
    named = family == "commit" or (family == "replacecommit" and metadata.operation_type == CLUSTER)
    replaced = _by_partition(metadata.replaced_groups) if family == "replacecommit" else {}
    bases = {p: {s.file_id: s.path.rpartition("/")[2] for s in of if s.file_id and s.path} for p, of in written.items()}
    return Recorded(
        partitions=frozenset(written) | frozenset(metadata.partition_to_replace_file_ids or ()),
        bases=bases if named else {},
        replaced=replaced,
        operation=metadata.operation_type,
        named=files_of(metadata),
    )


Records: TypeAlias = Sequence[tuple[Instant, Recorded]]
"""The records of the active instants, in the timeline's order."""


def kind_of(instant: Instant, recorded: Recorded) -> str:
    """The kind of an instant, pending or completed: compaction, logcompaction, clustering, or its action."""
    if not instant.completed:
        return "clustering" if recorded.clustered else instant.action
    services = {"deltacommit": (LOG_COMPACT, "logcompaction"), "replacecommit": (CLUSTER, "clustering")}
    operation, kind = services.get(instant.family, (None, ""))
    if instant.family == "commit":  # in a MERGE_ON_READ table only compactions complete as `commit`
        return "compaction"
    return kind if operation is not None and recorded.operation == operation else instant.action


class FactsByPartition:
    """The facts by partition. `shared`: see `ViewFacts`; `uncompleted`: see `Witness`."""

    def __init__(
        self, records: Records, shared: Mapping[str, frozenset[str]], uncompleted: Mapping[str, Later]
    ) -> None:
        self._records = [(i, r) for i, r in records if r.bases or r.replaced or r.planned or r.named]
        merging = ((i.requested_time, r.plan) for i, r in records if r.plan is not None and not r.plan.merges_logs)
        self._shared = shared
        writes = [(i.requested_time, r) for i, r in records if i.is_write and i.completed]
        unread = frozenset(time for time, r in writes if r.named is None)
        self._witness = Witness(
            known=frozenset(time for time, _ in writes) - unread,
            unread=unread,
            plans=tuple((time, merged_by(plan)) for time, plan in merging),
            uncompleted=uncompleted,
        )

    def of(self, partition: str) -> ViewFacts:
        plans: dict[GroupKey, str] = {}
        replaced: dict[GroupKey, str] = {}
        compacted: dict[GroupKey, dict[str, str]] = {}
        named: list[tuple[str, Mapping[str, tuple[NamedFile, ...]]]] = []
        for instant, recorded in self._records:
            time = instant.requested_time
            for file_id, name in recorded.bases.get(partition, _NONE).items():
                compacted.setdefault((partition, file_id), {})[time] = name
            for file_id in recorded.replaced.get(partition, ()):
                replaced[partition, file_id] = time
            for file_id in recorded.planned.get(partition, ()):
                plans[partition, file_id] = time
            if recorded.named and partition in recorded.named:
                named.append((time, {partition: recorded.named[partition]}))
        witness = replace(self._witness, writes=tuple(named))
        return ViewFacts(
            pending_plans=plans, replaced=replaced, compacted=compacted, shared=self._shared, witness=witness
        )


_NONE: Mapping[str, Any] = {}


def planned_twice(records: Records) -> bool:
    groups = [(partition, i) for _, r in records for partition, ids in r.planned.items() for i in ids]
    return len(set(groups)) < len(groups)


def _by_partition(groups: Iterable[GroupKey]) -> dict[str, FileIds]:
    return {partition: frozenset(ids) for partition, ids in gathered(groups).items()}


FileKey: TypeAlias = tuple[str, int, int, str]
"""Name, size, modification time and tag of a file: if these are unchanged, so is its content."""
_NO_FILES = frozenset({"savepoint", "indexing", "schemacommit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantRecords:
    """The records of all active instants. `known`: by the file read; a later load reuses the unchanged ones."""

    records: Records
    known: Mapping[FileKey, Recorded]


def load_records(table: Snapshot, known: Mapping[FileKey, Recorded]) -> InstantRecords:
    """MalformedError, MissingFileError: a plan, or a commit that is no delta commit, cannot be read."""
    entries = {e.name: e for e in list_of_table(table.storage, table.config.timeline_folder)}
    instants = (*table.timeline.hidden, *table.timeline.instants)
    unread = [i for i in instants if _key(table, i, entries) not in known and _is_read(i)]
    table.files.read_ahead(map(_source, unread))
    used: dict[FileKey, Recorded] = {}
    records = []
    for instant in instants:
        key = _key(table, instant, entries)
        recorded = known.get(key)
        if recorded is None:
            recorded = _read(table, instant)
        used[key] = recorded
        records.append((instant, recorded))
    return InstantRecords(records=records, known=used)


def _source(instant: Instant) -> Instant:
    """The instant in the state whose file has the most content."""
    return instant if instant.is_write and instant.completed else instant.at(State.REQUESTED)


def _key(table: Table, instant: Instant, entries: Mapping[str, Entry]) -> FileKey:
    name = table.instant_path(_source(instant)).rpartition("/")[2]
    entry = entries.get(name)
    state = f"{name} {instant.action} {instant.state.name}"
    return (state, -1, 0, "") if entry is None else (state, entry.size, entry.modified_ms, entry.tag)


def _is_read(instant: Instant) -> bool:
    pending = instant.action in MERGES or instant.family == "replacecommit"
    return (instant.completed or pending) if instant.is_write else instant.action in ("clean", "rollback")


def _read(table: Table, instant: Instant) -> Recorded:
    if instant.action in _NO_FILES or (instant.is_write and not _is_read(instant)):
        return NOTHING
    if instant.is_write and instant.completed:
        try:
            metadata = table.files.recorded(instant)
            return TORN if metadata is None else of_commit(metadata, instant.family)
        except (MalformedError, MissingFileError):
            if instant.family != "deltacommit":
                raise
            return TORN
    if instant.action in MERGES:
        plan = table.compaction_plan(instant.requested_time)
        groups = _by_partition(plan.groups)
        return Recorded(partitions=frozenset(groups), planned={} if plan.merges_logs else groups, plan=plan)
    path = table.instant_path(_source(instant))
    if instant.is_write:
        clustered = table.files.plan_there(instant, pending_clustering_file_groups)
        if clustered is None:
            raise MissingFileError("the plan of a pending write is gone", path=path, instant=instant.requested_time)
        return Recorded(clustered=frozenset(clustered))
    try:
        if instant.action == "clean":
            clean = decode_clean_plan(table.storage.read(path), path)
            return Recorded(partitions=frozenset((*clean.files, *clean.partitions)))
        if instant.action == "rollback":
            undone = decode_rollback_plan(table.storage.read(path), path)
            doomed = frozenset(partition for partition, _ in undone.doomed)
            return Recorded(partitions=doomed.union(s.partition for s in undone.revoked))
    except (MalformedError, MissingFileError, UnsupportedError):
        pass  # what it removes is unknown
    return ANYTHING
