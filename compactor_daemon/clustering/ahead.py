"""Stages the files of a clustering before its plan is visible, so that writes of its file groups go on meanwhile.

    .hoodie/.phantombase/clusterings/<run>/alive             the heartbeat of the run
    .hoodie/.phantombase/clusterings/<run>/<random>.parquet  a staged file
    .hoodie/.phantombase/clusterings/<run>/<position>.ok     a group of the plan whose files are staged

A run has no instant, and nothing of it is on the timeline: it can only be used or removed. The next run after a death
takes it over: of the groups that it chooses, those that are made are not made again. Under the lock the plan is
put with a new instant, without the groups that differ from what was read (`still_whole`). The plan names the run, so
the attempt at it, and those of later processes, adopt the staged files (`Job.staged_before`); a file that is missing is
made again. So nothing but work depends on a run: it may be removed at any time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import PhantombaseError, StoppedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.replace_request import ClusterGroup, ClusterPlan
from phantombase.timeline.locks.heartbeat import BEAT_S, heartbeat
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.table.table import Table

from ..attempt.attempt import RunTasks, is_current
from ..attempt.clustering import is_there
from ..attempt.outcome import OK
from ..attempt.pending_clusterings import (
    ALIVE,
    PendingClustering,
    dead_runs,
    named_runs,
    remove_dead_runs,
    staging_folder,
)
from ..attempt.slice_record import SliceDone, leave_record, slices_in
from .options import Copy
from .tasks import ClusterTask, whole_tasks

_log = get_logger()
_NO_INSTANT = "0" * 17
"""Earlier than every instant, so that it is none of them."""
_ROUNDS = 10


@contextmanager
def staging_run(table: Table) -> Iterator[str]:
    """A run with its heartbeat, the latest dead one or a new one; other dead ones are removed. Yields its name. At the
    end it is removed, unless a pending plan names it, or it was only stopped: then the next run takes it over."""
    is_stopped = False
    name = next(reversed(dead_runs(table)), f"{table.times.moment(clock_ms())}-{uuid.uuid4().hex[:8]}")
    folder = staging_folder(name)
    try:
        with heartbeat(table.storage, f"{folder}/{ALIVE}", BEAT_S):
            remove_dead_runs(table)
            yield name
    except StoppedError:
        is_stopped = True
        raise
    finally:
        try:
            now = table.snapshot(cached=False)
            if not is_stopped and name not in named_runs(now):
                now.storage.delete_folder(folder)
        except PhantombaseError as error:  # the next run removes it
            _log.warning("staged_files_left", path=folder, error=str(error))


def with_known_ids(table: Table, name: str, groups: Sequence[ClusterGroup]) -> tuple[ClusterGroup, ...]:
    """Groups with the ids under which a dead run has made files of the same slices."""
    known = {
        (one.partition, tuple((group.file_id, tuple(sorted(group.files))) for group in one.replaced)): one.file_id
        for one in slices_in(table.storage, staging_folder(name)).values()
    }
    keys = [(one.partition, tuple((s.file_id, tuple(sorted(s.names))) for s in one.slices)) for one in groups]
    return tuple(replace(one, file_id=known.get(key, one.file_id)) for key, one in zip(keys, groups, strict=True))


def make_ahead(
    table: Table, plan: ClusterPlan, copy: Copy, output: OutputOptions, run: RunTasks
) -> Mapping[str, SliceDone]:
    """Stages the files of a plan that is not visible; returns the records by fingerprint. A group whose inputs change
    meanwhile may be missing: they may be cleaned. Other errors of tasks are raised."""
    storage, folder = table.storage, staging_folder(plan.staged)
    todo = _tasks(table, plan, copy, output)
    made = _adopted(storage, folder, todo)
    todo = [task for task in todo if task.fingerprint not in made]
    for _ in range(_ROUNDS):
        if not todo:  # a runner takes one task at least
            break
        try:
            return made | {done.fingerprint: done for done in run(list(todo))}
        except PhantombaseError as error:
            made |= {done.fingerprint: done for done in slices_in(storage, folder).values()}
            missing = {task.fingerprint for task in todo} - made.keys()
            now = _tasks(table, plan, copy, output)
            todo = [task for task in now if task.fingerprint in missing]
            if len(todo) == len(missing):
                raise
            _log.info("clustering_group_changed", table=storage.base_path, error=str(error))
    return made


def _adopted(storage: Storage, folder: str, tasks: Sequence[ClusterTask]) -> dict[str, SliceDone]:
    """What a dead run has made for these tasks, with records at their positions. Its other records are removed. A file
    that was written with other options is made again: a rewriting may be for them."""
    records = slices_in(storage, folder)
    there = {done.fingerprint: done for done in records.values() if is_there(storage, done)}
    storage.delete_all([f"{folder}/{e.name}" for e in listed_if_there(storage, folder) or () if e.name.endswith(OK)])
    return {
        task.fingerprint: leave_record(storage, task.record_path, replace(done, position=task.position))
        for task in tasks
        if (done := there.get(task.fingerprint)) is not None
        and is_current(done, task.rules.visibility)
        and _is_written_so(done, task)
    }


def _is_written_so(done: SliceDone, task: ClusterTask) -> bool:
    was, now = done.output, task.round.output
    if was is None or (done.copied_row_groups and task.round.copy is Copy.REENCODE):
        return False
    return (was.codec, was.row_group_rows, was.bloom) == (now.codec, now.row_group_rows, now.bloom)


def still_whole(
    table: Table, plan: ClusterPlan, copy: Copy, output: OutputOptions, made: Mapping[str, SliceDone]
) -> ClusterPlan:
    """The groups of a plan whose inputs, schema and rules are those with which their files were made."""
    tasks = _tasks(table, plan, copy, output)
    current = [
        task.part.group
        for task in tasks
        if (done := made.get(task.fingerprint)) is not None and is_current(done, task.rules.visibility)
    ]
    return replace(plan, groups=tuple(current))


def _tasks(table: Table, plan: ClusterPlan, copy: Copy, output: OutputOptions) -> list[ClusterTask]:
    requested = Instant(requested_time=_NO_INSTANT, action=table.layout.pending_clustering, state=State.REQUESTED)
    pending = PendingClustering(requested=requested, plan=plan)
    seen, folder = table.snapshot(), staging_folder(plan.staged)
    return list(whole_tasks(pending, copy, seen, 0, output, folder=folder, is_named=False)[0])
