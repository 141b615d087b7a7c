"""Pending clusterings: finds them on the timeline, and tells those of phantombase from clusterings of Hudi.

A clustering is a pending clustering whose plan phantombase made (see `format.replace_request`). Its inflight file is
put right before its files get their names. It then contains what this process decided:

    phantombase.cluster        the process
    phantombase.completion    the completion time, from version 8 on

Hudi's executor, which may execute such a plan too, leaves an inflight file without content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError
from phantombase.timeline.format.commit_metadata import CLUSTER, CommitMetadata
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.compaction_plan import pending_clustering_file_groups
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.replace_request import ClusterGroup, ClusterPlan, decode_cluster_plan
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import is_live, process_name, read_heartbeat
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.table import Table

_PROCESS = "phantombase.cluster"
_COMPLETION = "phantombase.completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingClustering:
    """A clustering that is pending: the instant of its plan, in state requested, and the plan."""

    requested: Instant
    plan: ClusterPlan

    @property
    def groups(self) -> tuple[ClusterGroup, ...]:
        """What becomes one file each."""
        return self.plan.groups

    @property
    def time(self) -> str:
        """Its instant time."""
        return self.requested.requested_time


def pending_clusterings(table: Table, timeline: Timeline) -> tuple[PendingClustering, ...]:
    """Those of phantombase, earliest first. MalformedError: a plan of a clustering cannot be read."""
    found = []
    for instant in timeline.instants:
        if instant.family != "replacecommit" or instant.completed:
            continue
        if (pending := planned_clustering(table, instant)) is not None:
            found.append(pending)
    return tuple(found)


def planned_clustering(table: Table, instant: Instant) -> PendingClustering | None:
    """The plan of a replace commit, pending or completed; None: not a clustering of phantombase, or its plan is gone.

    MalformedError: it cannot be read.
    """
    requested = instant.at(State.REQUESTED)
    if instant.completed:
        requested = replace(requested, action=table.layout.pending_clustering)
    path = table.instant_path(requested)
    try:
        data = table.storage.read(path)
    except MissingFileError:  # completed or taken back meanwhile, or never requested
        return None
    pending_clustering_file_groups(data, path)  # names the way out where it cannot be read
    plan = decode_cluster_plan(data, path)
    return None if plan is None else PendingClustering(requested=requested, plan=plan)


def inflight_content(table: Table, completion: str | None) -> bytes:
    """The content of the inflight file: what this process decided."""
    extra = {_PROCESS: process_name()} | ({_COMPLETION: completion} if completion is not None else {})
    return encode_commit(CommitMetadata(operation_type=CLUSTER, extra_metadata=extra), table.layout.encoding)


def decided_completion(table: Table, pending: PendingClustering) -> tuple[bool, str | None]:
    """Whether a process of phantombase began to complete the clustering, and the completion time that it decided.

    ConflictError: Hudi has begun to execute the plan. MalformedError: the file cannot be read.
    """
    path = table.instant_path(pending.requested.at(State.INFLIGHT))
    if table.storage.find(path) is None:
        return False, None
    data = table.storage.read(path)
    try:
        extra = decode_commit(data, path).extra_metadata if data else {}
    except MalformedError as error:
        raise MalformedError(
            "the inflight file of a clustering cannot be read",
            path=path,
            instant=pending.time,
            found=error.found,
            todo="Nothing of it is visible. `compactor-daemon restore TABLE --to INSTANT`, of the newest completed "
            "write, ends it.",
        ) from error
    if _PROCESS not in extra:
        raise ConflictError(
            "Hudi has begun to execute the plan of this clustering",
            path=path,
            instant=pending.time,
            todo="Let Hudi complete it. If its process is dead, its next clustering rolls it back and executes it.",
        )
    return True, extra.get(_COMPLETION)


def is_at_work(table: Table, pending: PendingClustering, now_ms: Callable[[], int] | None = None) -> bool:
    """Whether a process of phantombase works on a clustering, by its heartbeat.

    On an object store also while a request of a process that is gone may yet be answered: its commit may still come.
    `now_ms`: None is the storage's clock; a dry run, which puts nothing on storage, has that of its machine.
    """
    beat = read_heartbeat(table.storage, pending.time)
    if beat is not None and not table.storage.is_file_system:
        beat = replace(beat, owner_gone=False)
    return beat is not None and is_live(beat, storage_ms(table.storage) if now_ms is None else now_ms())


def is_of_hudi(table: Table, pending: PendingClustering) -> bool:
    """Whether Hudi has begun to execute its plan."""
    try:
        decided_completion(table, pending)
    except ConflictError:
        return True
    return False
