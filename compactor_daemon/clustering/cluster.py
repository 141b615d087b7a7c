"""Clusters a table: joins small base files, as a clustering of Hudi.

    finish     pending clusterings of dead processes
    choose     see `clustering.choice`
    stage      the files, while all writes go on, see `clustering.tasks`
    request    under the lock, without the groups that were written to meanwhile: <T>.clustering.requested (version 6:
               <T>.replacecommit.requested). From here on no writer changes the planned file groups, and no compaction
               includes them
    execute    an attempt adopts the files, decides and publishes, as of a compaction (`attempt`), with a heartbeat. It
               waits for a pending write that began before the plan. If the inputs changed, or the wait times out, the
               plan is cancelled; in the first case it is requested again, without these groups

A plan is pending only while a process works on it, since updates of its file groups are refused until then. A decided
one is published, by the next process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from phantombase.timeline.clocks import Stopwatch
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import (
    AttemptDeadError,
    BarrierError,
    ConflictError,
    PhantombaseError,
    StoppedError,
    UnsupportedError,
    UsageError,
)
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import CLUSTER
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.replace_request import ClusterPlan, encode_cluster_plan
from phantombase.timeline.locks.heartbeat import BEAT_S, EXPIRY_S, Heartbeats, heartbeat
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.expression_index import followed_expressions
from phantombase.timeline.metadata_table.record_index import missing_entries, upkeep_of
from phantombase.timeline.metadata_table.records.keys import RECORD_INDEX, RowsChange
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.history import WorkFacts
from phantombase.timeline.table.in_progress import (
    READ_INSIDE,
    exclusive,
    pending_replacing_writes,
    refuse_in_progress,
    refuse_left_to_hudi,
    regardless,
)
from phantombase.timeline.table.table import BUILD_AGAIN, Snapshot, Table, from_one_snapshot, put_requested
from phantombase.timeline.table.traces import forget_heartbeats, remove_left_behind
from phantombase.timeline.terminal.text_table import plural
from phantombase.timeline.view.view import TableView

from ..attempt.attempt import WaitScope, keep_slot, open_attempt
from ..attempt.clustering import Clustering
from ..attempt.compact_or_resume import Compacted, compact_instant, decide
from ..attempt.finish import tidy
from ..attempt.outcome import CommitDecision, decisions, find_decision
from ..attempt.pending_clusterings import (
    PendingClustering,
    is_at_work,
    is_of_hudi,
    pending_clusterings,
    planned_by_hudi,
    remove_dead_runs,
    work_left,
)
from ..attempt.publish import publish, retire
from ..attempt.slice_record import SliceDone, finished_slices, is_ours
from ..attempt.slice_task import Runner
from ..execution.runners import LocalRunner
from ..options import AttemptOptions
from ..unit_of_work import ServiceAnswer, ServiceMeans, note_work, unit_of_work
from .cancel import end_clustering, retract_stale
from .choice import ClusterChoice, choose_windows, planned
from .group_facts import Footers, GroupFacts, group_facts
from .options import ClusterOptions, Copy
from .order import check_sortable
from .outputs import Copying
from .result import (
    Clustered,
    ClusterProgress,
    ClusterResult,
    Earlier,
    check_executable,
    clustered_by,
    put_off,
    result_of,
    would,
    would_finish,
)
from .tasks import make_ahead, staging_run, still_whole, tasks_of, with_known_ids

_log = get_logger()
_REQUESTS = 3
"""How often a plan is put whose groups are written to by writes that did not know it."""
_POLL_S = 0.5


def _said(done: ClusterResult) -> WorkFacts | None:
    all_ = [*done.finished, *([] if done.done is None else [done.done])]
    if not all_:
        return None
    return WorkFacts(
        instant=all_[-1].instant,
        why="; ".join(done.reasons) or ("planned before" if done.done is None else "small files, or rows out of order"),
        bytes_read=sum(one.bytes for one in all_),
        bytes_written=sum(one.bytes_made for one in all_),
        rows_written=sum(one.rows for one in all_),
        files_before=sum(one.files for one in all_),
        files_after=sum(one.made for one in all_),
    )


@unit_of_work("clustering", _said)
def cluster_table(
    table: Table,
    options: ClusterOptions,
    lock: TableLock,
    *,
    output: OutputOptions,
    runner: Runner | None = None,
    resumes: bool = True,
    dry_run: bool = False,
    progress: ClusterProgress = lambda *_: None,
) -> ClusterResult:
    """Finishes pending clusterings, executes the plans of Hudi that Hudi has not begun, then makes one and requests it.
    `runner`: makes the files; None: one group at a time, in this process. `resumes` False: pending ones, and plans of
    Hudi, are left to others. `dry_run`: changes nothing, and takes no lock. `lock`: all writers must share it.
    UnsupportedError: a bucket-indexed table, a table with an index of rows, or files that must be copied and cannot be;
    nothing is changed. BarrierError: a write that began before the plan did not end in time. ConflictError: the planned
    files changed. After an error the plan is cancelled; where that fails too, the next write or run cancels it."""
    seen = table.snapshot(cached=False)
    if not dry_run:
        retract_stale(seen, lock)
    refuse_in_progress(seen)
    copying, footers = Copying(storage=table.storage, copy=options.copy), Footers(storage=table.storage, output=output)
    known, choice = _choose(seen, options, copying, footers)
    if dry_run:
        return result_of(choice, would(known, choice, options, copying), would_finish(known))
    # Heartbeats of processes that were killed right after the completion.
    forget_heartbeats(seen, now_ms=partial(storage_ms, seen.storage), expiry_s=EXPIRY_S)
    remove_left_behind(seen)
    tidy(seen, lock, runs=False)  # this run may take one over
    if not choice.windows and not pending_clusterings(known) and not planned_by_hudi(known):
        remove_dead_runs(seen)
        return result_of(choice, None, Earlier())
    table.storage.verify()
    work = _Work(
        table=table, options=options, lock=lock, output=output, runner=runner or LocalRunner(1), progress=progress
    )
    earlier = work.finish_pending() if resumes else Earlier()
    if earlier != Earlier():
        _, choice = _choose(table.snapshot(cached=False), options, copying, footers)
    if not choice.windows:
        remove_dead_runs(seen)
        return result_of(choice, None, earlier)
    done, left_out = work.cluster(choice)
    return result_of(choice, done, earlier, left_out)


def commit_stays(table: Table, error: ConflictError) -> bool:
    """Whether the clustering of an error is completed and makes wrong rows visible; the error says what to do. See
    `stale.refuse_changed_inputs`. After other conflicts the next run tries again."""
    return error.instant is not None and _is_completed(table, error.instant)


def _is_completed(table: Table, instant: str) -> bool:
    found = table.snapshot(cached=False).timeline.find(instant, "replacecommit")
    return found is not None and found.completed


def _choose(
    table: Snapshot, options: ClusterOptions, copying: Copying, footers: Footers
) -> tuple[Snapshot, ClusterChoice]:
    """The table with the timeline of the choice, and the choice."""
    refuse_left_to_hudi(table, "clustering")
    _refuse_indexes(table)
    if options.after_commits:
        table = table.with_timeline(table.load_timeline())
        if (since := _commits_since(table)) < options.after_commits:
            waits = f"{since} of {options.after_commits} commits have completed since the last clustering"
            return table, ClusterChoice(windows=(), left=0, small=0, waits=waits)
    view, facts = from_one_snapshot(lambda: _facts(table, options, footers))
    table = table.with_timeline(view.timeline)
    if options.sort_by:
        check_sortable(table.schema_to_cluster().arrow, options.sort_by, table.storage.base_path)
    _refuse_replacing(table)
    choice = choose_windows(view, facts, options, table.storage.base_path)
    if choice.windows:
        schema = table.schema_to_cluster()  # refused before anything is requested
        if options.copy is Copy.FORCE:
            copying.obstacles(choice.windows, schema.arrow)
    return table, choice


def _facts(table: Table, options: ClusterOptions, footers: Footers) -> tuple[TableView, GroupFacts]:
    view = table.load_view()
    return view, group_facts(table, view, options, footers)


def _refuse_replacing(table: Snapshot) -> None:
    if replacing := pending_replacing_writes(table):
        raise BarrierError(
            "a write that replaces file groups is pending; it does not say which",
            path=table.instant_path(replacing[0]),
            instant=replacing[0].requested_time,
            todo="Let the writer finish. If it is dead, the next writer rolls it back. Then run again.",
        )


def _commits_since(table: Snapshot) -> int:
    """The active completed writes and compactions since the last clustering was requested, as Hudi counts them."""
    clustered = (
        i.requested_time
        for i in reversed(table.timeline.completed)
        if i.family == "replacecommit" and (m := table.files.recorded(i)) is not None and m.operation_type == CLUSTER
    )
    last = next(clustered, "")
    return sum(i.requested_time > last for i in table.timeline.completed)


def _refuse_indexes(table: Table) -> None:
    """UnsupportedError: an index of the metadata table must be dropped, since rows move to other file groups. The
    record index is kept, if it is one for all partitions, of stored keys."""
    followed = followed_expressions(table)
    change = RowsChange(knows_keys=table.config.populate_meta_fields, same_rows=True, followed=followed)
    kept = upkeep_of(table, change)
    if kept.dropped:
        missing = missing_entries(table) if RECORD_INDEX in kept.dropped else ""
        raise UnsupportedError(
            "the files of a table with an index that phantombase cannot move with the rows cannot be clustered",
            path=table.storage.base_path,
            expected="no other index than a record index over all partitions",
            found=", ".join(kept.dropped) + (f": it lacks entries of rows, since {missing}" if missing else ""),
            todo=BUILD_AGAIN if missing else "Let Hudi cluster it, or drop the index with Hudi.",
        )


@dataclass(frozen=True, kw_only=True)
class _Work:
    """A run on a table; see `cluster_table`."""

    table: Table
    options: ClusterOptions
    lock: TableLock
    output: OutputOptions
    runner: Runner
    progress: ClusterProgress

    def cluster(self, choice: ClusterChoice) -> tuple[Clustered | None, int]:
        """Makes the files, then requests the clustering and completes it. Returns also the number of groups that were
        left out, since they were written to meanwhile. None: all were, or another process completed it. ConflictError:
        the same, behind the request. Then the plan is cancelled, and requested again without them."""
        with staging_run(self.table) as name:
            plan = ClusterPlan(
                groups=with_known_ids(self.table, name, [planned(window) for window in choice.windows]),
                sort_by=self.options.sort_by,
                sort_order=self.options.sort_order.value,
                staged=name,
            )
            run = partial(self.runner, self.table.storage, progress=partial(self.progress, ""))
            sizes = (one.base_bytes + one.log_bytes for window in choice.windows for one in window.slices)
            note_work(planned_bytes=sum(sizes))
            made = make_ahead(self.table, plan, self.options.copy, self.output, run)
            failed: ConflictError | None = None
            for _ in range(_REQUESTS):
                pending: PendingClustering | None = None
                try:
                    with ExitStack() as stack:
                        pending, beats = self._request(plan, made, stack)
                        if pending is None:
                            break
                        done = self.execute(pending, self.options.copy, beats)
                        return done, len(plan.groups) - len(pending.plan.groups)
                except ConflictError as error:
                    if pending is None and failed is not None:  # a rollback is in progress, for example
                        raise failed from error
                    if pending is None or not self._may_request_again(error, pending):
                        raise
                    failed = error
            if failed is not None:
                raise failed
            return None, len(plan.groups)

    def _request(
        self, plan: ClusterPlan, made: Mapping[str, SliceDone], stack: ExitStack
    ) -> tuple[PendingClustering | None, Heartbeats]:
        """Puts what is left of a plan, with a new instant, and its heartbeat. None: nothing is left. BarrierError: a
        write that replaces file groups did not end in time."""
        waited = Stopwatch()
        while True:
            try:
                with exclusive(self.table, self.lock, "plan a clustering", READ_INSIDE) as seen:
                    refuse_left_to_hudi(seen, "clustering")
                    _refuse_indexes(seen)
                    _refuse_replacing(seen)
                    plan = still_whole(seen, plan, self.options.copy, self.output, made)
                    if not plan.groups:
                        return None, Heartbeats()
                    action, time_ = seen.layout.pending_clustering, seen.next_time()
                    requested = Instant(requested_time=time_, action=action, state=State.REQUESTED)
                    # Before the plan is visible: without a heartbeat the plan is dead.
                    beats = stack.enter_context(heartbeat(regardless(seen).storage, time_, BEAT_S))
                    put_requested(seen, requested, encode_cluster_plan(plan, seen.storage.base_path))
                    return PendingClustering(requested=requested, plan=plan), beats
            except BarrierError:
                if waited.seconds() >= self.options.wait_s:
                    raise
                time.sleep(_POLL_S)

    def _may_request_again(self, error: ConflictError, pending: PendingClustering) -> bool:
        """Whether a clustering was cancelled before it was decided, by this process: no other one uses the files."""
        now = self.table.snapshot(cached=False)
        if (
            isinstance(error, AttemptDeadError | BarrierError)
            or now.timeline.find(pending.time, "replacecommit") is not None
        ):
            return False
        return not decisions(now.storage, pending.time)

    def finish_pending(self) -> Earlier:
        """Finishes clusterings of dead processes, and executes plans of Hudi. One on which another process works, or
        Hudi, is left alone. The windows were not chosen to be copied: those that cannot be copied are encoded."""
        finished, gone = list[Clustered](), list[str]()
        now = self.table.snapshot(cached=False)
        for pending in pending_clusterings(now):
            if is_at_work(now, pending) or is_of_hudi(now, pending):
                continue
            try:
                with heartbeat(self.table.storage, pending.time, BEAT_S) as beats:
                    done = self.execute(pending, self.options.resumed_copy, beats)
            except ConflictError as error:
                if commit_stays(self.table, error):
                    raise
                _log.warning("clustering_not_finished", table=self.table.storage.base_path, error=str(error))
                if self.table.snapshot(cached=False).timeline.find(pending.time, "replacecommit") is None:
                    gone.append(pending.time)  # its files are free for a new plan
                continue
            if done is not None:
                finished.append(done)
        left = dict[str, str]()
        for pending in planned_by_hudi(now.with_timeline(now.load_timeline())):
            try:
                if (done := self._execute_for_hudi(now, pending)) is not None:
                    finished.append(done)
            except (UnsupportedError, UsageError, ConflictError, BarrierError) as error:
                if isinstance(error, ConflictError) and commit_stays(self.table, error):
                    raise
                left[pending.time] = str(error)
                _log.warning("clustering_left_to_hudi", table=self.table.storage.base_path, error=str(error))
        return Earlier(finished=tuple(finished), cancelled=tuple(gone), left_to_hudi=left)

    def _execute_for_hudi(self, now: Table, pending: PendingClustering) -> Clustered | None:
        """Executes a plan that Hudi made. None: another process does, or has done. Errors: it is left to Hudi."""
        if is_at_work(now, pending):
            return None
        check_executable(now, pending)
        with heartbeat(self.table.storage, pending.time, BEAT_S) as beats:
            return self.execute(pending, self.options.resumed_copy, beats)

    def execute(self, pending: PendingClustering, copy: Copy, beats: Heartbeats) -> Clustered | None:
        """Makes the files and completes the clustering. None: another process has done so concurrently. `beats`: of its
        heartbeat."""
        table, decision = self.table.snapshot(cached=False), None
        if table.timeline.shares_time(pending.requested):
            end_clustering(table, pending, self.lock, "its time is another's")
            return None
        try:
            decision = find_decision(table.storage, pending.time) or self._decide(table, pending, copy)
            # A request to an object store that failed may still be answered: until then no process cancels it.
            beats.keep_on_error = not table.storage.is_file_system
            made = finished_slices(table.storage, pending.time)
            publish(table, decision, self.lock)
            retire(table, decision)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, PhantombaseError) and self._is_others(pending, decision):
                return None
            if not isinstance(error, AttemptDeadError):  # else another process is at work on it
                with suppress(PhantombaseError):  # the first error is the one to raise; the next write or run goes on
                    end_clustering(table, pending, self.lock, str(error))
            raise
        done = clustered_by(decision, made)
        _log.info(
            "clustered",
            table=table.storage.base_path,
            instant=done.instant,
            files=done.files,
            rows=done.rows,
            copied_row_groups=done.copied_row_groups,
        )
        if done.repeated_keys:
            _log.warning("keys_repeat", table=table.storage.base_path, instant=done.instant, rows=done.repeated_keys)
        return done

    def _is_others(self, pending: PendingClustering, decision: CommitDecision | None) -> bool:
        """Whether another process has completed the clustering, without the decision."""
        table = self.table.snapshot(cached=False)
        done = table.load_timeline().find(pending.time, "replacecommit")
        return done is not None and done.completed and (decision is None or not is_ours(table, done, decision))

    def _decide(self, table: Table, pending: PendingClustering, copy: Copy) -> CommitDecision:
        tasks = partial(tasks_of, pending, copy)
        job = Clustering(requested=pending.requested, plan=pending.plan, make_tasks=tasks)
        options = AttemptOptions(barrier_s=self.options.wait_s)
        return decide(
            table,
            open_attempt(table, pending.time, options, job),
            self.lock,
            runner=self.runner,
            progress=partial(self.progress, pending.time),
            output=self.output,
            options=options,
        )


def resume_clustering(
    table: Table,
    instant: str,
    given: ClusterOptions,
    *,
    lock: TableLock,
    options: AttemptOptions,
    wait_scope: WaitScope = keep_slot,
    **how: Any,
) -> Compacted | None:
    """Executes a pending clustering, or publishes its decision; the caller holds the claim. None: it is not pending any
    more, or a process works on it. `how`: see `compact_instant`. A plan of phantombase waits for writes no longer than
    `given`: until it ends, updates of its file groups are refused. After an error it is cancelled, or given up, unless
    it was only stopped: then the next process adopts what is finished. Errors: see `cluster_table`; StoppedError."""
    now = table.snapshot(cached=False)
    pending = next((one for one in work_left(now) if one.time == instant), None)
    if pending is None:
        return None
    if now.timeline.shares_time(pending.requested):
        end_clustering(table, pending, lock, "its time is another's")
        return None
    refuse_left_to_hudi(now, "clustering")
    _refuse_indexes(now)
    if not pending.plan.is_own:
        check_executable(now, pending)
    if pending.plan.is_own:
        options, wait_scope = replace(options, barrier_s=given.wait_s), partial(_impatient, wait_scope)
    job = Clustering(
        requested=pending.requested, plan=pending.plan, make_tasks=partial(tasks_of, pending, given.resumed_copy)
    )
    try:
        return compact_instant(table, instant, lock=lock, job=job, options=options, wait_scope=wait_scope, **how)
    except PhantombaseError as error:
        if isinstance(error, AttemptDeadError) and _is_completed(table, instant):
            return None
        if not isinstance(error, (AttemptDeadError, StoppedError)):
            with suppress(PhantombaseError):  # the first error is the one to raise; the next write or run goes on
                end_clustering(table, pending, lock, str(error))
        raise


@contextmanager
def _impatient(wait_scope: WaitScope) -> Iterator[bool]:
    with wait_scope():
        yield False


def run_service(table: Table, options: ClusterOptions, lock: TableLock, means: ServiceMeans) -> ServiceAnswer:
    try:
        done = cluster_table(
            table, options, lock, output=means.output, runner=means.runner, resumes=means.resumes, dry_run=means.dry_run
        )
    except UnsupportedError as error:  # such as a bucket-indexed table of a fleet: no failure
        return ServiceAnswer(what=f"not clustered: {error.what}")
    except ConflictError as error:  # others changed the files, or may: the next interval tries again
        if commit_stays(table, error):
            raise
        return ServiceAnswer(what=f"put off: {error.what}")
    all_ = [*done.finished, *([] if done.done is None else [done.done])]
    files, made = sum(one.files for one in all_), sum(one.made for one in all_)
    clustered = f"{plural(files, 'file')} {means.did('clustered')}, {'to' if means.dry_run else 'now'} {made}"
    what = clustered if all_ else f"nothing to cluster: {done.why}"
    if done.left_out and not all_:
        what = put_off(done.left_out, done.done)
    return ServiceAnswer(what=what, instants=len(all_))
