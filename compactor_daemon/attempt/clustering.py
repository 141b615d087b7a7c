"""Clusterings: how an attempt executes one (`job.Job`), and what its commit says.

Rows move to new file groups, which the timeline alone makes visible: if Hudi executed the plan while files of
phantombase have final names, every row would be there twice. So under the lock, before a file gets its final name, the
inflight file is put, and a marker for each file: Hudi rolls an inflight clustering back by its markers before it
executes the plan.

A decision is valid while the files that were read are still what their file groups have, and no clean has passed the
plan (`pending_clusterings`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import ConflictError, MissingFileError, StalePlanError, StorageError
from phantombase.timeline.format.commit_metadata import CLUSTER, CommitMetadata, RuntimeStats, WriteStat
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.ledger import CLUSTERED, encode_ledgers
from phantombase.timeline.format.replace_request import ClusterGroup, ClusterPlan
from phantombase.timeline.instants.reserved_times import has_tombstone
from phantombase.timeline.planning.schedule import busy_file_groups
from phantombase.timeline.record_fields import gathered
from phantombase.timeline.storage.contract import Storage, list_of_table
from phantombase.timeline.table.in_progress import is_pending_service, pending_replacing_writes
from phantombase.timeline.table.table import Snapshot, Table, TableSchema, from_one_snapshot
from phantombase.timeline.table.traces import Marker, MarkerKind, data_files, delete_markers, make_marker
from phantombase.timeline.view.view import FileGroup, GroupKey, TableView, input_names, is_replaced

from .job import Clauses
from .outcome import CommitDecision, Placement, ReplacedGroup, decisions
from .pending_clusterings import (
    has_begun,
    inflight_content,
    planned_clustering,
    remove_dead_runs,
    staging_folder,
    why_passed,
)
from .slice_record import OutputFile, SliceDone, keep_ledger, remove_placed, slices_in
from .slice_task import StageTask

_WRITES = ("commit", "deltacommit", "replacecommit")

ClusterTasks: TypeAlias = Callable[[Table, int, OutputOptions], tuple[Sequence[StageTask], TableSchema]]
"""Makes the tasks of an attempt from (table, attempt, output options); see `Job.tasks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering:
    """A clustering, as a `Job`. `plan`, `make_tasks`: None for the job of a decision."""

    requested: Instant
    plan: ClusterPlan | None = None
    make_tasks: ClusterTasks | None = None

    name = "clustering"
    undo = "compactor-daemon cluster TABLE --cancel"
    waits_for = "a pending write may still change the files of a clustering"
    places_early = False

    @property
    def _time(self) -> str:
        return self.requested.requested_time

    @property
    def partitions(self) -> frozenset[str]:
        return frozenset() if self.plan is None else frozenset(group.partition for group in self.plan.groups)

    def is_planned(self, table: Table) -> bool:
        if has_tombstone(table.storage, self._time):
            return False
        if (now := planned_clustering(table, self.requested)) is None:
            raise MissingFileError("the plan of a clustering is gone", path=table.instant_path(self.requested))
        return self.plan is None or _named(now.plan) == _named(self.plan)

    def barrier(self, table: Snapshot) -> frozenset[str]:
        return frozenset()

    def waiting(self, table: Snapshot, barrier: frozenset[str] = frozenset()) -> list[Instant]:
        """A write that began before the plan may not know the plan. A write that replaces file groups chose them when
        it began, and does not replace the new one."""
        replacing = {i.requested_time for i in pending_replacing_writes(table)}
        return [
            write
            for write in table.timeline.inflight_writers
            if write.requested_time in replacing
            or (write.requested_time < self._time and not is_pending_service(table, write))
        ]

    def tasks(self, table: Table, attempt: int, output: OutputOptions) -> tuple[Sequence[StageTask], TableSchema]:
        assert self.make_tasks is not None, "made from a plan"
        if why := why_passed(table.with_timeline(table.load_timeline()), self._time):
            raise StalePlanError(
                "a clean has passed the plan of a clustering while it was pending",
                path=table.storage.base_path,
                instant=self._time,
                expected=f"cleans that retain commits from {self._time} on",
                found=why,
                todo="Run again: the plan is cancelled, and a new one made. Where this comes again and again, cluster "
                "while Hudi's cleaner does not run, or let it retain commits."
                if self.plan is None or self.plan.is_own
                else "It is a plan of Hudi, and stays: let Hudi execute it, and its cleaner retain commits.",
            )
        return self.make_tasks(table, attempt, output)

    def staged_before(self, table: Table, tasks: Sequence[StageTask]) -> Mapping[int, SliceDone]:
        """A file that a decision names is left out: who reverts that deletes it at any time."""
        folder = "" if self.plan is None else staging_folder(self.plan.staged)
        if not folder:
            return {}
        made = {done.fingerprint: done for done in slices_in(table.storage, folder).values()}
        taken = {one.staged for decision in decisions(table.storage, self._time) for one in decision.placements}
        found = dict[int, SliceDone]()
        for task in tasks:
            if (done := made.get(task.fingerprint)) is None or not is_there(table.storage, done):
                continue
            if taken.isdisjoint(file.staged for file in done.files):
                found[task.position] = done.at(task.position, task.instant, task.attempt)
        return found

    def commit(self, done: Sequence[SliceDone], schema: TableSchema, properties: Mapping[str, str]) -> CommitMetadata:
        return _commit(done, schema.commit_text, properties)

    def passed(self, table: Table, done: Sequence[SliceDone]) -> tuple[str, ...]:
        return ()

    def replaced(self, done: Sequence[SliceDone]) -> tuple[ReplacedGroup, ...]:
        return tuple(group for one in done for group in one.replaced)

    def skipped(self, done: Sequence[SliceDone]) -> tuple[str, ...]:
        return tuple(sorted({write for one in done for write in one.uncommitted or ()}))

    def clauses(self, table: Snapshot, decision: CommitDecision) -> Clauses:
        broken = "it was cancelled" if has_tombstone(table.storage, self._time) else ""
        broken = broken or why_passed(table, self._time) or self._changed(table, decision)
        # On version 6 its files are the same.
        newly = next((write for write in decision.skipped if table.timeline.is_committed(write)), None)
        broken = broken or ("" if newly is None else f"write {newly}, which it left out, has completed")
        if not broken and table.newest_schema().evolved is not None:
            broken = "columns of the table evolve on read now"
        if not broken and (lost := next(_lost(table, decision), None)) is not None:
            broken = f"{lost}, which it made, is lost"
        waiting = self.waiting(table)
        what = "is pending, which may change its files"
        waits = f"{waiting[0].action} {waiting[0].requested_time} {what}" if waiting else ""
        return Clauses(broken=broken, waits=waits)

    def _changed(self, table: Snapshot, decision: CommitDecision) -> str:
        """How a file group that it replaces differs from what was read; "": none does. Asked after the completed file
        was put, too: as if it were not there."""
        there = table.views.existing(one.partition for one in decision.replaced)
        others = tuple(i for i in table.timeline.instants if i.identity != self.requested.identity)
        busy = busy_file_groups(table.with_timeline(replace(table.timeline, instants=others))).groups.keys()
        view = from_one_snapshot(lambda: table.load_view(exactly=there, pending=self.requested))
        known = view.by_key()
        found = (_difference(one, known.get(one.key), view, busy) for one in decision.replaced)
        return next(filter(None, found), "")

    def current(self, table: Snapshot, decision: CommitDecision) -> CommitDecision:
        # A write may have added a column since the decision: the table has it, the rows do not.
        metadata = decode_commit(decision.content, decision.completed_path)
        extra = {**metadata.extra_metadata, "schema": table.newest_schema().commit_text}
        if extra == metadata.extra_metadata:
            return decision
        return replace(decision, content=encode_commit(replace(metadata, extra_metadata=extra), table.layout.encoding))

    def begin_placing(self, table: Table, decision: CommitDecision) -> None:
        if not self._has_begun(table, decision):
            path = table.instant_path(self.requested.at(State.INFLIGHT))
            if not table.storage.put_if_absent(path, inflight_content(table)):
                self._has_begun(table, decision)  # again: Hudi, which takes no lock, may have been first
        for one in decision.placements:
            partition, _, name = one.final.rpartition("/")
            make_marker(table.storage, decision.instant, Marker(partition=partition, file=name, kind=MarkerKind.CREATE))

    def begin_completing(self, table: Table, decision: CommitDecision) -> None:
        """ConflictError: Hudi has begun to execute the plan since then."""
        self._has_begun(table, decision)

    def _has_begun(self, table: Table, decision: CommitDecision) -> bool:
        """See `has_begun`. ConflictError: Hudi executes the plan; no placed file is left then. When Hudi completes the
        instant, every file of it is visible, and each row would be there twice."""
        try:
            return has_begun(table, self.requested)
        except ConflictError:
            remove_placed(table, decision, keep=())
            raise

    def built_upon(self, table: Table, decision: CommitDecision, *, is_valid: bool) -> str:
        if any(table.storage.find(one.final) is None for one in decision.placements):
            return _written_since(table, decision)  # its files were removed before: readers miss them
        return next(_built_upon(table, decision), "")

    def stays(self, table: Table, decision: CommitDecision, why: str) -> None:
        raise ConflictError(
            "another write changed the files of a clustering while its process slept, right before its commit",
            path=table.storage.base_path,
            instant=decision.instant,
            found=f"{why}, so the commit stays",
            todo="Rows that were replaced or undone are visible again. Stop the writers, then restore the table to an "
            "instant before that: compactor-daemon restore TABLE --to INSTANT.",
        )

    def make_again(self, table: Table, decision: CommitDecision, placement: Placement) -> str:
        raise StorageError(
            "a file of a clustering is lost, and so is its staged copy",
            path=placement.final,
            instant=decision.instant,
            todo="Restore the file, or one of those that it was made of, which are there until a clean: "
            f"compactor-daemon rollback {table.storage.base_path} {decision.instant}",
        )

    def end(self, table: Table, decision: CommitDecision, done: Instant) -> None:
        keep_ledger(table, decision, done)
        delete_markers(table.storage, decision.instant)
        remove_dead_runs(table)


def _named(plan: ClusterPlan) -> list[ClusterGroup]:
    """The groups of a plan as its file shows them: without the sizes of the files."""
    return [
        replace(group, slices=tuple(replace(one, base_bytes=0, log_bytes=0) for one in group.slices))
        for group in plan.groups
    ]


def is_there(storage: Storage, done: SliceDone) -> bool:
    """Whether all staged files of a record are there, with their sizes."""
    found = [(file.size, storage.find(file.staged)) for file in done.files]
    return all(entry is not None and entry.size == size for size, entry in found)


def _lost(table: Table, decision: CommitDecision) -> Iterator[str]:
    for one in decision.placements:
        if table.storage.find(one.final) is None and table.storage.find(one.staged) is None:
            yield one.final


def _difference(was: ReplacedGroup, now: FileGroup | None, view: TableView, busy: Collection[GroupKey]) -> str:
    what = f"file group {was.path(was.file_id)}"
    if now is None or not now.slices:
        return f"{what} is gone"
    if is_replaced(now, view.facts):
        return f"{what} was replaced by {view.facts.replaced.get(was.key)}"
    if now.pending_compaction or was.key in busy:
        return f"{what} is in another pending plan"
    last = now.slices[-1]
    if set(input_names(last)) != set(was.files):
        return f"{what} has other files than were read"
    if last.base_bytes + last.log_bytes != was.bytes:  # on version 6 Hudi appends to a log file where the storage can
        return f"{what} has files of another size than were read"
    return ""


def _written_since(table: Table, decision: CommitDecision) -> str:
    """A write that completed in the partitions of a clustering after the put of its commit; "": none. It may have
    written rows again that it did not see."""
    now = table.load_timeline()
    done = now.find(decision.instant, "replacecommit")
    names = {e.name: e.modified_ms for e in list_of_table(table.storage, table.config.timeline_folder)}
    if done is None or (put := names.get(table.layout.file_name(done))) is None:
        return ""
    partitions = {one.partition for one in decision.replaced}
    later = (i for i in now.completed if i.family in _WRITES and names.get(table.layout.file_name(i), put) >= put)
    for other in later:
        if other != done and not partitions.isdisjoint(partition for partition, _ in _groups_of(table, other)):
            return f"{other.action} {other.requested_time} completed behind it"
    return ""


def _built_upon(table: Table, decision: CommitDecision) -> Iterator[str]:
    """What depends on the new file groups, or may soon: then the commit cannot be deleted."""
    now, made = table.load_timeline(), dict[GroupKey, str]()
    for one in decision.placements:
        partition, _, text = one.final.rpartition("/")
        if (name := parse_data_file(text)) is not None:
            made[(partition, name.file_id)] = text
    for instant in now.completed:
        is_other = instant.family in _WRITES and instant.identity != (decision.instant, "replacecommit")
        if is_other and not made.keys().isdisjoint(_groups_of(table, instant)):
            yield f"{instant.action} {instant.requested_time} wrote to its files"
    for write in now.inflight_writers:
        if not is_pending_service(table, write):
            yield f"{write.action} {write.requested_time} is pending, which may write to its files"
    planned = {*table.facts.pending_plans(now), *busy_file_groups(table.with_timeline(now)).groups}
    if not planned.isdisjoint(made):
        yield "a pending plan names its files"
    for partition in sorted({partition for partition, _ in made}):
        for entry, named in data_files(table, partition):
            if made.get((partition, named.file_id), entry.name) != entry.name:
                yield f"{entry.name} belongs to its files"


def _groups_of(table: Table, instant: Instant) -> frozenset[GroupKey]:
    """File groups that a completed write wrote to, or replaced."""
    metadata = table.commit_metadata(instant)
    return metadata.written_groups | metadata.replaced_groups


def _commit(done: Sequence[SliceDone], schema_text: str, properties: Mapping[str, str]) -> CommitMetadata:
    """What Hudi's clusterings record, and the ledger."""
    ledgers = encode_ledgers([one.group_ledger for one in done])
    return CommitMetadata(
        partition_to_write_stats=gathered(
            (one.partition, _write_stat(one, file)) for one in done for file in one.files
        ),
        extra_metadata={**properties, "schema": schema_text, CLUSTERED: ledgers},
        operation_type=CLUSTER,
        partition_to_replace_file_ids=gathered((of.partition, of.file_id) for one in done for of in one.replaced),
    )


def _write_stat(group: SliceDone, one: OutputFile) -> WriteStat:
    return WriteStat(
        file_id=one.file_id,
        path=one.final,
        prev_commit="null",
        num_writes=one.rows,
        num_inserts=one.rows,
        total_write_bytes=one.size,
        file_size_in_bytes=one.size,
        partition_path=group.partition,
        runtime_stats=RuntimeStats(total_create_time=round(group.seconds * 1000 / len(group.files))),
    )
