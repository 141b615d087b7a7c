"""Completes a clustering, or cancels it: each in one section under the table lock.

    check     the plan is pending, its inputs are as planned, and no pending write may still change them
    inflight  put by phantombase: from here on files of the instant may have their final names
    place     each file after its marker. Files of an instant that is not completed are in no slice
    complete  the metadata table, then <T>.replacecommit: the new file groups count, and the old ones do not
    again     the inputs are checked after the commit; if they changed since the check, the commit is deleted

A process that dies in between leaves a pending clustering, which the next run completes or cancels. The names of the
files follow from the plan. A file that already has its final name is verified and kept, so all tries agree on its size.
If Hudi continues instead, it first rolls the inflight instant back and removes the files by their markers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from phantombase.timeline.errors import BarrierError, ConflictError, PhantombaseError, StorageError, UnknownCommitError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import CLUSTER, CommitMetadata, RuntimeStats, WriteStat
from phantombase.timeline.format.commit_metadata import encode as encode_commit
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.ledger import CLUSTERED, GroupLedger, encode_ledgers
from phantombase.timeline.format.replace_request import ClusterGroup
from phantombase.timeline.instants.reserved_times import has_tombstone, put_tombstone
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.metadata_table.update import Change, apply_update, forget
from phantombase.timeline.metadata_table.valid_instants import compacted_after
from phantombase.timeline.planning.schedule import busy_file_groups
from phantombase.timeline.storage.contract import list_of_table
from phantombase.timeline.storage.folders import staged_folder
from phantombase.timeline.storage.staged_file import place_staged
from phantombase.timeline.table.exclusive import READ_INSIDE, Guard, exclusive, regardless
from phantombase.timeline.table.in_progress import is_pending_service, pending_replacing_writes
from phantombase.timeline.table.table import Table, from_one_snapshot, put_completed
from phantombase.timeline.table.traces import Marker, MarkerKind, delete_markers, make_marker, traces_of, undo
from phantombase.timeline.view.view import FileSlice, input_names
from phantombase.timeline.view.witness import lost_completion

from ..attempt.slice_task import read_back
from .choice import slices_of
from .outputs import Made, MadeFile
from .pending import (
    PendingClustering,
    decided_completion,
    inflight_content,
    is_at_work,
    is_of_hudi,
    pending_clusterings,
    refuse_passed,
)
from .stale import refuse_changed_inputs, withdraw_stale

_log = get_logger()
_PENDING = {Guard.ROLLBACK: "a rollback of a completed write does not depend on a plan, which may be what blocks it"}
_CANCELLED = {
    **READ_INSIDE,
    **dict.fromkeys((Guard.RESTORE, Guard.ROLLBACK), "the plan is cancelled: nothing depends on its inflight file"),
}


def complete(
    table: Table, pending: PendingClustering, made: Sequence[Made], rules: SliceRules, lock: TableLock
) -> list[Made]:
    """Makes the staged files visible; returns them with their final sizes, or [] if another process did so. `rules`:
    how the files were read. BarrierError: a pending write may still change the inputs; try again later. ConflictError:
    the inputs changed, the plan was removed or is superseded (see `pending`), or Hudi executes it. UnknownCommitError:
    see there."""
    with exclusive(table, lock, "complete a clustering") as held:
        table, timeline = held.table, held.timeline
        found = _found(table, timeline, pending)
        if found.completed:
            table.storage.delete_folder(staged_folder(pending.time))
            return []
        if has_tombstone(table.storage, pending.time):
            raise _cancelled(table, pending)
        begun, completion = decided_completion(table, pending)
        _refuse_waiting(table, timeline, pending)
        refuse_passed(table, timeline, pending)
        if inputs_now(table, pending, timeline) != tuple(one.inputs for one in made) or _moved(timeline, made):
            raise ConflictError(
                "the files of a clustering are not as they were any more",
                path=table.storage.base_path,
                instant=pending.time,
                todo="Run again: the plan is cancelled, and a new one made.",
            )
        if completion is None or compacted_after(table, completion):
            completion = table.completion_time(timeline, (pending.time,))
        if not begun:
            path = table.instant_path(pending.requested.at(State.INFLIGHT))
            table.storage.put_if_absent(path, inflight_content(table, completion))
        placed = [
            replace(one, files=tuple(_place(table, pending.time, one, file, rules) for file in one.files))
            for one in made
        ]
        # A write may have added a column since the files were made: the table has it, their rows do not.
        metadata = _commit(placed, pending.groups, table.schema_to_cluster(timeline).commit_text)
        files = [file for one in placed for file in one.files]
        change = Change.of(pending.time, metadata, {one.final: one.ranges for one in files if one.ranges is not None})
        apply_update(table, change, None)
        done = replace(pending.requested.at(State.COMPLETED), completion_time=completion)
        _put(table, done, encode_commit(metadata, table.layout.encoding))
        _look_back(table, pending, done)
    table = regardless(table)
    refuse_changed_inputs(table, timeline, done, placed, lock)
    delete_markers(table.storage, pending.time)
    table.storage.delete_folder(staged_folder(pending.time))
    return placed


def cancel_clustering(table: Table, pending: PendingClustering, lock: TableLock, why: str) -> bool:
    """Removes the plan and all files made by it. False: another process has removed or completed the clustering.
    ConflictError: Hudi executes the plan. MissingFileError: its completed file is lost, see `FactLoader.uncompleted`.
    """
    with exclusive(table, lock, "cancel a clustering", _PENDING) as held:
        table = held.table
        found = held.timeline.find(pending.time, "replacecommit")
        if found is None or found.completed:
            return False
        if (later := table.facts.uncompleted(held.timeline).get(pending.time)) is not None:
            raise lost_completion(pending.time, later, table.storage.base_path)
        remove(table, pending)
    _log.info("clustering_cancelled", table=table.storage.base_path, instant=pending.time, why=why)
    return True


def remove(table: Table, pending: PendingClustering) -> None:
    """Removes a pending clustering, its files first. `table`: of a section. ConflictError: Hudi executes the plan."""
    decided_completion(table, pending)
    # From here on no process completes the clustering: another try would give its files the names that are deleted
    # below. Nor does a process with a slow clock get this instant for another action.
    put_tombstone(table.storage, pending.time)
    find = partial(traces_of, table, pending.time, "replacecommit", scan=False)
    undo(table, pending.requested, find, partial(forget, table, pending.time))


def cancel_dead_clusterings(table: Table, timeline: Timeline, lock: TableLock) -> None:
    """Cancels the clusterings of dead processes before a write, which would fail on the file groups in their plans.
    Also withdraws those that committed after they were cancelled, see `withdraw_stale`. One whose completed file is
    lost is left alone. `timeline`: loaded shortly before. Errors: see `cancel_clustering`, `pending_clusterings`."""
    withdraw_stale(table, timeline, lock)
    pending_now = pending_clusterings(table, timeline)
    lost = table.facts.uncompleted(timeline) if pending_now else {}
    for pending in (one for one in pending_now if one.time not in lost):
        if not is_at_work(table, pending) and not is_of_hudi(table, pending):
            cancel_clustering(table, pending, lock, "its process is dead")
    for orphan in _orphans(table, timeline):
        with exclusive(table, lock, "remove what is left of a clustering", _CANCELLED) as held:
            if orphan in _orphans(held.table, held.timeline):
                held.table.storage.delete(held.table.instant_path(orphan))


def _orphans(table: Table, timeline: Timeline) -> tuple[Instant, ...]:
    """Inflight instants whose plan was cancelled: a process that had stalled put the inflight file, and died."""
    pending = [i for i in timeline.instants if i.family == "replacecommit" and i.state is State.INFLIGHT]
    if not pending:
        return ()
    names = {e.name for e in list_of_table(table.storage, table.config.timeline_folder)}
    without = (i for i in pending if table.layout.file_name(i.at(State.REQUESTED)) not in names)
    return tuple(i for i in without if has_tombstone(table.storage, i.requested_time))


def inputs_now(table: Table, pending: PendingClustering, timeline: Timeline) -> tuple[tuple[FileSlice, ...], ...]:
    """The planned slices as they are now, see `slices_of`."""
    there = table.views.existing(group.partition for group in pending.groups)
    others = tuple(i for i in timeline.instants if i.identity != (pending.time, "replacecommit"))
    busy = busy_file_groups(table, replace(timeline, instants=others)).groups.keys()
    return slices_of(from_one_snapshot(lambda: table.load_view(exactly=there)), pending.groups, busy)


def _refuse_waiting(table: Table, timeline: Timeline, pending: PendingClustering) -> None:
    """BarrierError: a pending write may still change the inputs. A write that began before the plan may not know the
    plan. A write that replaces file groups chose them when it began, and does not replace the new one."""
    replacing = {i.requested_time for i in pending_replacing_writes(table, timeline)}
    for write in timeline.inflight_writers:
        may_not_know = write.requested_time < pending.time and not is_pending_service(table, write)
        if write.requested_time in replacing or may_not_know:
            raise BarrierError(
                "a pending write may still change the files of a clustering",
                path=table.instant_path(write),
                instant=pending.time,
                expected="completed, or rolled back",
                found=f"{write.action} {write.requested_time} {write.state.name.lower()}",
                todo="Let the writer finish. If it is dead, the next writer rolls it back. Then run again.",
            )


def _found(table: Table, timeline: Timeline, pending: PendingClustering) -> Instant:
    found = timeline.find(pending.time, "replacecommit")
    if found is None:
        raise _cancelled(table, pending)
    return found


def _cancelled(table: Table, pending: PendingClustering) -> ConflictError:
    return ConflictError(
        "this clustering was cancelled concurrently",
        path=table.storage.base_path,
        instant=pending.time,
        todo="Nothing of it is visible. Run again.",
    )


def _moved(timeline: Timeline, made: Sequence[Made]) -> bool:
    """Whether a write whose log blocks were left out has completed since. On version 6 its files are the same."""
    return any(timeline.is_committed(write) for one in made for write in one.logs.uncommitted)


def _place(table: Table, instant: str, group: Made, one: MadeFile, rules: SliceRules) -> MadeFile:
    """Gives a staged file its final name, or verifies an earlier try's file of that name, whose size is then used."""
    storage = table.storage
    if storage.find(one.final) is None:
        make_marker(storage, instant, Marker(partition=group.partition, file=one.name, kind=MarkerKind.CREATE))
        place_staged(storage, one.staged, one.final, one.size)
        return one
    rows, hash_out, size = read_back(storage, one.final, rules)
    if (rows, hash_out) != (one.rows, one.hash):
        raise StorageError(
            "a file that an earlier try of this clustering placed has other rows",
            path=one.final,
            instant=instant,
            expected=f"{one.rows} rows, of the files of the plan",
            found=f"{rows} rows",
            todo="Nothing of it is visible. Cancel it: compactor-daemon cluster TABLE --cancel.",
        )
    return replace(one, size=size, copied_row_groups=0)


def _put(table: Table, done: Instant, data: bytes) -> None:
    path = table.instant_path(done)

    def unknown(error: PhantombaseError) -> UnknownCommitError:
        return UnknownCommitError(
            "whether this clustering is completed is not known: the storage did not answer",
            path=path,
            instant=done.requested_time,
            found=str(error),
            todo="Either way no row is lost or doubled. The next run completes it, if it is not.",
        )

    if not put_completed(table, path, data, unknown) and table.storage.find(path) is None:
        raise StorageError("the completed commit is not there after it was written", path=path)


def _look_back(table: Table, pending: PendingClustering, done: Instant) -> None:
    """ConflictError: the process stalled before the put, its lock was lost, and the plan was cancelled. The commit
    replaces file groups by removed files, so it is deleted. Until then readers fail, since the view misses the
    files."""
    requested = table.storage.find(table.instant_path(pending.requested))
    if requested is None or has_tombstone(table.storage, pending.time):
        regardless(table).storage.delete(table.instant_path(done))
        raise ConflictError(
            "this clustering was cancelled while its process was stalled",
            path=table.storage.base_path,
            instant=pending.time,
            todo="Nothing of it is visible. Run again.",
        )


def _commit(placed: Sequence[Made], groups: Sequence[ClusterGroup], schema_text: str) -> CommitMetadata:
    """What Hudi's clusterings record, and the ledger."""
    stats: defaultdict[str, list[WriteStat]] = defaultdict(list)
    replaced: defaultdict[str, list[str]] = defaultdict(list)
    for one in placed:
        if one.files:
            stats[one.partition] += (_write_stat(one, file) for file in one.files)
        replaced[one.partition] += (slice_.file_id for slice_ in one.inputs)
    ledgers = [_ledger(one, group) for one, group in zip(placed, groups, strict=True)]
    return CommitMetadata(
        partition_to_write_stats={partition: tuple(of) for partition, of in stats.items()},
        extra_metadata={"schema": schema_text, CLUSTERED: encode_ledgers(ledgers)},
        operation_type=CLUSTER,
        partition_to_replace_file_ids={partition: tuple(ids) for partition, ids in replaced.items()},
    )


def _ledger(one: Made, group: ClusterGroup) -> GroupLedger:
    outputs = [(file.name, file.size) for file in one.files]
    return GroupLedger(
        partition=one.partition,
        file_id=group.file_id,
        inputs=tuple(name for slice_ in one.inputs for name in input_names(slice_)),
        output=outputs[0][0] if outputs else None,
        size=outputs[0][1] if outputs else 0,
        ledger=one.ledger,
        skipped=one.logs.skipped,
        copied_row_groups=sum(file.copied_row_groups for file in one.files),
        more=tuple(outputs[1:]),
    )


def _write_stat(group: Made, one: MadeFile) -> WriteStat:
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
