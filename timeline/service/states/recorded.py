"""What the file of one instant records, by partition; from it the facts of each partition (pure).

`view.fact_loader` makes the facts of a whole table. Here a new instant costs what it touches, not what the table has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...format.commit_metadata import CLUSTER, LOG_COMPACT, CommitMetadata
from ...format.compaction_plan import CompactionPlan
from ...format.instant import Instant
from ...view.named_files import NamedFile, files_of, merged_by
from ...view.view import GroupKey, ViewFacts
from ...view.witness import Later, Witness

_NO_LATER: Mapping[str, Later] = {}

FileIds: TypeAlias = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What one file says. `partitions`: those whose files the instant adds, removes or plans with; None: it may be all.

    `bases`: partition -> file id -> base file, of a completed compaction or clustering. `replaced`, `planned`: file
    ids by partition, of a completed replace commit and of a pending compaction. `operation`: Hudi's name of what a
    completed write was. `plan`: of a pending compaction or log compaction. `clustered`: what a pending clustering will
    replace. `named`: the files that a completed write names, by partition; None: its file is torn, see `FactLoader`.
    """

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
    """A completed write of an action's family."""
    written = metadata.partition_to_write_stats
    named = family == "commit" or (family == "replacecommit" and metadata.operation_type == CLUSTER)
    replaced = _by_partition(metadata.replaced_groups) if family == "replacecommit" else {}
    return Recorded(
        partitions=frozenset(written) | frozenset(metadata.partition_to_replace_file_ids or ()),
        bases={
            partition: {s.file_id: s.path.rpartition("/")[2] for s in stats if s.file_id and s.path}
            for partition, stats in written.items()
        }
        if named
        else {},
        replaced=replaced,
        operation=metadata.operation_type,
        named=files_of(metadata),
    )


def of_plan(plan: CompactionPlan) -> Recorded:
    """A pending compaction or log compaction."""
    groups = _by_partition(plan.groups)
    return Recorded(partitions=frozenset(groups), planned={} if plan.merges_logs else groups, plan=plan)


def of_clustering(groups: Collection[GroupKey]) -> Recorded:
    """A pending replace commit, and what its plan says it will replace."""
    return Recorded(clustered=frozenset(groups))


def of_removal(files: Iterable[tuple[str, str]]) -> Recorded:
    """A clean or a rollback: (partition, anything) of what it removes or adds."""
    return Recorded(partitions=frozenset(partition for partition, _ in files))


Records: TypeAlias = Sequence[tuple[Instant, Recorded]]
"""Of the active instants, in the timeline's order."""


def kind_of(instant: Instant, recorded: Recorded) -> str:
    """What an instant is, also when it is completed: compaction, logcompaction, clustering, or its action."""
    if not instant.completed:
        return "clustering" if recorded.clustered else instant.action
    services = {"deltacommit": (LOG_COMPACT, "logcompaction"), "replacecommit": (CLUSTER, "clustering")}
    operation, kind = services.get(instant.family, (None, ""))
    if instant.family == "commit":  # in a MERGE_ON_READ table only compactions complete as this
        return "compaction"
    return kind if operation is not None and recorded.operation == operation else instant.action


class FactsByPartition:
    """The facts of one partition after the other. `shared`: see `ViewFacts`; `uncompleted`: see `Witness`."""

    def __init__(
        self, records: Records, shared: Mapping[str, frozenset[str]], uncompleted: Mapping[str, Later]
    ) -> None:
        self._records = [(i, r) for i, r in records if r.bases or r.replaced or r.planned or r.named]
        merging = ((i.requested_time, r.plan) for i, r in records if r.plan is not None and not r.plan.merges_logs)
        self._plans = tuple((time, merged_by(plan)) for time, plan in merging)
        self._shared, self._uncompleted = shared, uncompleted
        writes = [(i.requested_time, r) for i, r in records if i.is_write and i.completed]
        self._unread = frozenset(time for time, r in writes if r.named is None)
        self._known = frozenset(time for time, _ in writes) - self._unread

    def of(self, partition: str) -> ViewFacts:
        """See `ViewFacts`; of the file groups of one partition."""
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
        witness = Witness(
            known=self._known,
            writes=tuple(named),
            unread=self._unread,
            plans=self._plans,
            uncompleted=self._uncompleted,
        )
        return ViewFacts(
            pending_plans=plans, replaced=replaced, compacted=compacted, shared=self._shared, witness=witness
        )


_NONE: Mapping[str, Any] = {}


def planned_twice(records: Records) -> bool:
    """Whether a file group is in two pending compactions."""
    plans = [(partition, ids) for _, r in records for partition, ids in r.planned.items()]
    seen: dict[str, set[str]] = {}
    for partition, ids in plans:
        before = seen.setdefault(partition, set())
        if not before.isdisjoint(ids):
            return True
        before |= ids
    return False


def _by_partition(groups: Iterable[GroupKey]) -> dict[str, FileIds]:
    found: dict[str, set[str]] = {}
    for partition, file_id in groups:
        found.setdefault(partition, set()).add(file_id)
    return {partition: frozenset(ids) for partition, ids in found.items()}
