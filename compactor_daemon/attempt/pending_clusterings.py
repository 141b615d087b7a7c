"""Pending clusterings on the timeline: those of phantombase and of Hudi, and those that a clean has passed.

A clustering of phantombase has a plan that phantombase made (see `format.replace_request`). Its inflight file, which is
put right before its files get their final names, names its process; that of Hudi's executor, which may execute such a
plan too, has no content. So it is for a plan of Hudi, which phantombase executes as long as Hudi has not begun.

Passed: a clean of Hudi retained only what is later than the plan. Hudi's cleaner checks only what was requested since
the cutoff of the last clean, and its archiver counts every replace commit below that cutoff as cleaned. By commits, the
cutoff stays below a pending clustering; by hours it does not, and a clean by file versions has none. A clustering that
completed then could be archived while its replaced files still exist: their rows would exist twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from phantombase.timeline.errors import ConflictError, MalformedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import CLUSTER, CommitMetadata
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.replace_request import ClusterPlan, decode_cluster_plan
from phantombase.timeline.locks.heartbeat import is_live, process_name, read_heartbeat
from phantombase.timeline.read.windows import retained_since
from phantombase.timeline.storage.contract import listed_if_there
from phantombase.timeline.storage.folders import CLUSTERINGS
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.storage.snapshot import without_snapshot
from phantombase.timeline.table.table import Snapshot, Table

_log = get_logger()
_PROCESS = "phantombase.cluster"
ALIVE = "alive"
"""The heartbeat of a run that stages a clustering, see `clustering.tasks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingClustering:
    """A pending clustering: the instant of its plan, in state requested, and the plan."""

    requested: Instant
    plan: ClusterPlan

    @property
    def time(self) -> str:
        return self.requested.requested_time


def pending_clusterings(table: Snapshot) -> tuple[PendingClustering, ...]:
    """The pending clusterings of phantombase, earliest first. MalformedError: a plan of a clustering cannot be read."""
    return tuple(pending for pending in every_pending(table) if pending.plan.is_own)


def planned_by_hudi(table: Snapshot) -> tuple[PendingClustering, ...]:
    """The pending plans of Hudi that Hudi has not begun to execute, earliest first. MalformedError: as above."""
    return tuple(one for one in every_pending(table) if not one.plan.is_own and not is_of_hudi(table, one))


def every_pending(table: Snapshot) -> Iterator[PendingClustering]:
    """The pending clusterings, also those that Hudi has begun to execute, earliest first. MalformedError: as above."""
    for instant in table.timeline.instants:
        if instant.family != "replacecommit" or instant.completed:
            continue
        if (pending := planned_clustering(table, instant)) is not None:
            yield pending


def work_left(table: Snapshot, now_ms: Callable[[], int] | None = None) -> tuple[PendingClustering, ...]:
    """The pending clusterings on which no process of phantombase works, and that Hudi has not begun to execute. Any
    process may execute, or publish, them. `now_ms`: see `is_at_work`. MalformedError: as above."""
    found = (one for one in every_pending(table) if not is_of_hudi(table, one))
    return tuple(one for one in found if not is_at_work(table, one, now_ms))


def planned_clustering(table: Table, instant: Instant) -> PendingClustering | None:
    """The plan of a replace commit, pending or completed, also of Hudi; None: not a clustering, or its plan was
    removed. MalformedError: it cannot be read."""
    named = replace(instant, action=table.layout.pending_clustering) if instant.completed else instant
    plan = table.files.plan_there(named, decode_cluster_plan)
    return None if plan is None else PendingClustering(requested=named.at(State.REQUESTED), plan=plan)


def has_begun(table: Table, requested: Instant) -> bool:
    """Whether a process of phantombase has begun to publish the clustering. ConflictError: Hudi has begun to execute
    the plan. MalformedError: the inflight file cannot be read."""
    path = table.instant_path(requested.at(State.INFLIGHT))
    if table.storage.find(path) is None:
        return False
    data = table.storage.read(path)
    try:
        extra = decode_commit(data, path).extra_metadata if data else {}
    except MalformedError as error:
        raise MalformedError(
            "the inflight file of a clustering cannot be read",
            path=path,
            instant=requested.requested_time,
            found=error.found,
            todo="Nothing of it is visible. `compactor-daemon restore TABLE --to INSTANT`, of the newest completed "
            "write, ends it.",
        ) from error
    if _PROCESS not in extra:
        raise ConflictError(
            "Hudi has begun to execute the plan of this clustering",
            path=path,
            instant=requested.requested_time,
            todo="Let Hudi complete it. If its process is dead, its next clustering rolls it back and executes it.",
        )
    return True


def is_of_hudi(table: Table, pending: PendingClustering) -> bool:
    try:
        has_begun(table, pending.requested)
    except ConflictError:
        return True
    return False


def is_at_work(table: Table, pending: PendingClustering, now_ms: Callable[[], int] | None = None) -> bool:
    """Whether a process of phantombase works on a clustering, by its heartbeat. On an object store also while a request
    of an ended process may yet be answered: its commit may still appear. `now_ms`: None is the storage's clock; a dry
    run, which puts nothing on storage, passes its machine's clock."""
    beat = read_heartbeat(table.storage, pending.time)
    if beat is not None and not table.storage.is_file_system:
        beat = replace(beat, owner_gone=False)
    return beat is not None and is_live(beat, storage_ms(table.storage) if now_ms is None else now_ms())


def why_passed(table: Snapshot, time: str) -> str:
    """The clean that has passed a plan; "": none. MalformedError: the record of one cannot be read."""
    retained = retained_since(table)
    return f"a clean has passed the plan: it retained commits from {retained} on" if retained > time else ""


def inflight_content(table: Table) -> bytes:
    """The content of the inflight file that phantombase puts."""
    content = CommitMetadata(operation_type=CLUSTER, extra_metadata={_PROCESS: process_name()})
    return encode_commit(content, table.layout.encoding)


def remove_dead_runs(table: Table) -> None:
    """Removes what dead runs have staged for a clustering, unless a pending plan names it: who continues that adopts
    it. The heartbeats are read before the timeline is loaded: a run lives until its plan is visible."""
    storage = without_snapshot(table.storage)
    for one in dead_runs(replace(table, storage=storage)):
        storage.delete_folder(f"{CLUSTERINGS}/{one}")


def dead_runs(table: Table) -> tuple[str, ...]:
    """The runs that `remove_dead_runs` removes, earliest first."""
    storage = table.storage
    runs = [e.name for e in listed_if_there(storage, CLUSTERINGS) or () if e.is_folder]
    if not runs:
        return ()
    now_ms = storage_ms(storage)
    dead = {one for one in runs if not is_live(read_heartbeat(storage, f"{CLUSTERINGS}/{one}/{ALIVE}"), now_ms)}
    try:
        named = named_runs(table.with_timeline(table.load_timeline())) if dead else frozenset[str]()
    except MalformedError as error:  # the plan may name any
        _log.warning("staged_files_left", path=CLUSTERINGS, error=str(error))
        return ()
    return tuple(sorted(dead - named))


def named_runs(table: Snapshot) -> frozenset[str]:
    """The runs that pending plans name. MalformedError: a plan cannot be read."""
    return frozenset(one.plan.staged for one in pending_clusterings(table))


def staging_folder(staged: str) -> str:
    """Where a run stages files before it puts its plan, see `ClusterPlan.staged`; "": it does not."""
    return f"{CLUSTERINGS}/{staged}" if staged else ""
