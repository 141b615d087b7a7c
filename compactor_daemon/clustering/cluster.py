"""Clusters a table: joins small base files, as a clustering of Hudi.

    finish     pending clusterings of dead processes
    choose     see `clustering.choice`
    request    under the lock, <T>.clustering.requested (version 6: <T>.replacecommit.requested): from here on no writer
               changes the planned file groups, and no compaction includes them
    make       outside the lock, each new file, with a heartbeat
    complete   see `complete`. It waits for a pending write that began before the plan. If the inputs changed, or the
               wait times out, the plan is cancelled

A plan is pending only while a process works on it, since updates of its file groups are refused until then.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.copy_rules import Obstacle
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import (
    BarrierError,
    ConflictError,
    PhantombaseError,
    UnknownCommitError,
    UnsupportedError,
)
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import CLUSTER
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.replace_request import ClusterPlan, encode_cluster_plan
from phantombase.timeline.instants.reserved_times import has_tombstone
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import BEAT_S, EXPIRY_S, heartbeat
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.metadata_table.update import upkeep_of
from phantombase.timeline.planning.schedule import busy_file_groups
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.exclusive import READ_INSIDE, exclusive, refuse_in_progress, regardless
from phantombase.timeline.table.in_progress import pending_replacing_writes, refuse_left_to_hudi
from phantombase.timeline.table.table import Table, from_one_snapshot, put_requested
from phantombase.timeline.table.torn import remove_torn
from phantombase.timeline.terminal.text_table import plural

from ..attempt.attempt import merge_rules
from ..leftovers import forget_heartbeats, remove_left_behind
from ..service_run import ServiceAnswer, ServiceMeans
from .choice import ClusterChoice, Standing, choose_windows, living_groups, output_names, planned
from .complete import cancel_clustering, complete, inputs_now
from .options import ClusterOptions, Copy, SortOrder
from .order import check_sortable
from .outputs import Copying, Made, OutputFileSpec, make
from .partitions import chosen_partitions
from .pending import PendingClustering, is_at_work, is_of_hudi, is_passed, pending_clusterings, refuse_passed
from .sorted_files import sorted_already
from .stale import withdraw_stale

_POLL_S = 1.0
_log = get_logger()
ClusterProgress = Callable[[str, int, int], None]
"""Called with (instant, files made, files in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustered:
    """A completed clustering: `files` file slices of `bytes` became `made` files of `bytes_made`, with `rows` rows.
    `copied`: the number of new files copied as bytes; `copied_row_groups`: their row groups; `encoded`: the number of
    files that `try` did not copy, by the reason. `repeated_keys`: rows with the record key of an earlier row of the
    same group; a later upsert or delete changes only the first of these on versions 8 and 9."""

    instant: str
    files: int
    bytes: int
    made: int
    bytes_made: int = 0
    rows: int = 0
    copied: int = 0
    copied_row_groups: int = 0
    encoded: Mapping[str, int] = field(default_factory=dict)
    repeated_keys: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    """`done`: completed now, or what would be done, with instant "". `finished`: clusterings that an earlier run left.
    `cancelled`: instants of cancelled plans of earlier runs, whose files had changed. In a dry run `finished` and
    `cancelled` are what a run would do. `left`: new files that the bounds left to the next run. `why`: why there was
    nothing to do. `small`, `kept`: see `ClusterChoice`."""

    done: Clustered | None
    finished: tuple[Clustered, ...] = ()
    cancelled: tuple[str, ...] = ()
    left: int = 0
    why: str = ""
    small: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)


def cluster_table(
    table: Table,
    options: ClusterOptions,
    lock: TableLock,
    *,
    output: OutputOptions,
    threads: int,
    dry_run: bool = False,
    progress: ClusterProgress = lambda *_: None,
) -> ClusterResult:
    """Finishes pending clusterings, then plans one and executes it. `threads`: files that are made at a time.
    `dry_run`: changes nothing, and takes no lock. `lock`: all writers must share it. UnsupportedError: a bucket-indexed
    table, a table with an index of rows, or files that must be copied and cannot be; nothing is changed. BarrierError:
    a write that began before the plan did not end in time. ConflictError: the planned files changed. UsageError: the
    rows of a file do not fit into the memory for sorting. After an error the plan is cancelled; where that fails too,
    the next write or run cancels it."""
    seen = table.reload()
    timeline = seen.load_timeline()
    if not dry_run:
        withdraw_stale(seen, timeline, lock)
    refuse_in_progress(seen, timeline)
    copying = Copying(storage=table.storage, copy=options.copy)
    timeline, choice = _choose(seen, options, copying)
    if dry_run:
        return _result(choice, _would(seen, timeline, choice, options, copying), *_would_finish(seen, timeline))
    # Heartbeats of processes that were killed right after the completion.
    forget_heartbeats(seen, now_ms=partial(storage_ms, seen.storage), expiry_s=EXPIRY_S)
    remove_left_behind(seen)
    if not choice.windows and not pending_clusterings(seen, timeline):
        return _result(choice, None, (), ())
    table.storage.verify()
    work = _Work(table=table, options=options, lock=lock, output=output, threads=threads, progress=progress)
    finished, cancelled = work.finish_pending()
    with ExitStack() as stack:
        with exclusive(table, lock, "plan a clustering", READ_INSIDE) as held:
            seen = held.table
            timeline, choice = _choose(seen, options, copying)
            if not choice.windows:
                return _result(choice, None, finished, cancelled)
            pending = _plan(seen, timeline, choice, options)
            # Before the plan is visible: without a heartbeat the plan is dead.
            stack.enter_context(_beating(regardless(seen), pending))
            put_requested(seen, pending.requested, encode_cluster_plan(pending.plan, seen.storage.base_path))
        done = work.execute(pending, options.copy)
    return _result(choice, done, finished, cancelled)


def commit_stays(table: Table, error: ConflictError) -> bool:
    """Whether the clustering of an error is completed and makes wrong rows visible; the error says what to do. See
    `stale.refuse_changed_inputs`. After other conflicts the next run tries again."""
    if error.instant is None:
        return False
    found = table.reload().load_timeline().find(error.instant, "replacecommit")
    return found is not None and found.completed


def cancel_pending_clusterings(table: Table, lock: TableLock) -> tuple[str, ...]:
    """Cancels pending clusterings, and removes torn plans of clusterings; returns their instants. ConflictError: a
    process works on one, or Hudi executes it."""
    gone, now = [*remove_torn(table.reload(), lock, "clustering", "replacecommit", strict=True)], table.reload()
    for pending in pending_clusterings(now, now.load_timeline()):
        if is_at_work(now, pending):
            raise ConflictError(
                "a process is at work on this clustering",
                path=table.storage.base_path,
                instant=pending.time,
                todo="Stop it, or wait until it has ended.",
            )
        if cancel_clustering(table, pending, lock, "by command"):
            gone.append(pending.time)
    return tuple(gone)


def _choose(table: Table, options: ClusterOptions, copying: Copying) -> tuple[Timeline, ClusterChoice]:
    """The timeline, and the choice made with it. `table`: reloaded."""
    refuse_left_to_hudi(table, "clustering")
    _refuse_indexes(table)
    if options.after_commits:
        timeline = table.load_timeline()
        if (since := _commits_since(table, timeline)) < options.after_commits:
            waits = f"{since} of {options.after_commits} commits have completed since the last clustering"
            return timeline, ClusterChoice(windows=(), left=0, small=0, waits=waits)
    view = from_one_snapshot(lambda: table.load_view())
    timeline = view.timeline
    if options.sort_by:
        check_sortable(table.schema_to_cluster(timeline).arrow, options.sort_by, table.storage.base_path)
    if replacing := pending_replacing_writes(table, timeline):
        raise BarrierError(
            "a write that replaces file groups is pending; it does not say which",
            path=table.instant_path(replacing[0]),
            instant=replacing[0].requested_time,
            todo="Let the writer finish. If it is dead, the next writer rolls it back. Then run again.",
        )
    standing = Standing(
        busy=busy_file_groups(table, timeline).groups,
        sorted=sorted_already(table, view, options),
        partitions=chosen_partitions(table, [group.partition for group in living_groups(view)], options, timeline),
    )
    choice = choose_windows(view, standing, options, table.storage.base_path)
    if choice.windows:
        schema = table.schema_to_cluster(timeline)  # refused before anything is requested
        if options.copy is Copy.FORCE:
            copying.obstacles(choice.windows, schema.arrow)
    return timeline, choice


def _commits_since(table: Table, timeline: Timeline) -> int:
    """The active completed writes and compactions since the last clustering was requested, as Hudi counts them."""
    clustered = (
        i.requested_time
        for i in reversed(timeline.completed)
        if i.family == "replacecommit" and (m := table.files.recorded(i)) is not None and m.operation_type == CLUSTER
    )
    last = next(clustered, "")
    return sum(i.requested_time > last for i in timeline.completed)


def _refuse_indexes(table: Table) -> None:
    """UnsupportedError: an index of the metadata table must be dropped, since rows move to other file groups."""
    kept = upkeep_of(table, moves_rows=True)
    if kept.dropped:
        raise UnsupportedError(
            "the files of a table with an index of its rows cannot be clustered",
            path=table.storage.base_path,
            found=", ".join(kept.dropped),
            todo="Let Hudi cluster it, or drop the index with Hudi.",
        )


def _plan(table: Table, timeline: Timeline, choice: ClusterChoice, options: ClusterOptions) -> PendingClustering:
    plan = ClusterPlan(
        groups=tuple(planned(window) for window in choice.windows),
        sort_by=options.sort_by,
        sort_order=options.sort_order.value,
    )
    action, time_ = table.layout.pending_clustering, table.next_time(timeline)
    return PendingClustering(requested=Instant(requested_time=time_, action=action, state=State.REQUESTED), plan=plan)


@contextmanager
def _beating(table: Table, pending: PendingClustering) -> Iterator[None]:
    """A heartbeat. After UnknownCommitError it is kept: no process decides again before the put must be answered."""
    with heartbeat(table.storage, pending.time, BEAT_S) as heartbeats:
        try:
            yield
        except UnknownCommitError:
            heartbeats.keep_on_error = True
            raise


@dataclass(frozen=True, kw_only=True)
class _Work:
    """A run on a table; see `cluster_table`."""

    table: Table
    options: ClusterOptions
    lock: TableLock
    output: OutputOptions
    threads: int
    progress: ClusterProgress

    def finish_pending(self) -> tuple[tuple[Clustered, ...], tuple[str, ...]]:
        """Finishes clusterings of dead processes. One on which another process works, or Hudi, is left alone. The
        windows were not chosen to be copied: those that cannot be copied are encoded."""
        finished, gone = list[Clustered](), list[str]()
        now = self.table.reload()
        for pending in pending_clusterings(now, now.load_timeline()):
            if is_at_work(now, pending) or is_of_hudi(now, pending):
                continue
            try:
                with _beating(self.table, pending):
                    done = self.execute(pending, Copy.TRY if self.options.copy is Copy.FORCE else self.options.copy)
            except ConflictError as error:  # it was cancelled: its files are free for a new plan
                if commit_stays(self.table, error):
                    raise
                _log.warning("clustering_not_finished", table=self.table.storage.base_path, error=str(error))
                gone.append(pending.time)
                continue
            if done is not None:
                finished.append(done)
        return tuple(finished), tuple(gone)

    def execute(self, pending: PendingClustering, copy: Copy) -> Clustered | None:
        """Makes the files and completes the clustering. None: another process has done so concurrently."""
        storage = self.table.storage
        made: list[Made] = []
        try:
            made, rules = self._make_all(pending, copy)
            placed = self._complete_in_time(pending, made, rules)
        except UnknownCommitError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            with suppress(PhantombaseError):  # the first error is the one to raise; the next write, or run, tries again
                cancel_clustering(self.table, pending, self.lock, str(error))
            raise
        finally:
            storage.delete_all(_staged(made))
        if not placed:
            return None
        files = [file for one in placed for file in one.files]
        done = Clustered(
            instant=pending.time,
            files=sum(len(one.inputs) for one in placed),
            bytes=sum(slice_.base_bytes + slice_.log_bytes for one in placed for slice_ in one.inputs),
            made=len(files),
            bytes_made=sum(one.size for one in files),
            rows=sum(one.rows for one in files),
            copied=sum(one.copied_row_groups > 0 for one in files),
            copied_row_groups=sum(one.copied_row_groups for one in files),
            encoded=dict(Counter(one.encoded for one in placed if one.encoded)),
            repeated_keys=sum(one.repeated_keys for one in placed),
        )
        _log.info(
            "clustered",
            table=storage.base_path,
            instant=done.instant,
            files=done.files,
            rows=done.rows,
            copied_row_groups=done.copied_row_groups,
        )
        if done.repeated_keys:
            _log.warning("keys_repeat", table=storage.base_path, instant=done.instant, rows=done.repeated_keys)
        return done

    def _make_all(self, pending: PendingClustering, copy: Copy) -> tuple[list[Made], SliceRules]:
        """The staged files, and the rules by which their inputs were read."""
        now = self.table.reload()
        timeline = now.load_timeline()
        refuse_passed(now, timeline, pending)
        inputs = inputs_now(now, pending, timeline)
        if not all(inputs):
            raise ConflictError(
                "the files of a clustering are not as they were planned",
                path=now.storage.base_path,
                instant=pending.time,
                todo="Run again.",
            )
        schema = now.schema_to_cluster(timeline)
        recipe = OutputFileSpec(
            instant=pending.time,
            rules=merge_rules(now, timeline, schema, self.output),
            schema_text=schema.file_text,
            output=self.output,
            measure=Measure.of(now, schema),
            sort_by=pending.plan.sort_by,
            sort_order=SortOrder(pending.plan.sort_order or SortOrder.ORDER),
            copy=copy,
        )
        names = [output_names(position, group, pending.time) for position, group in enumerate(pending.groups)]
        with ThreadPoolExecutor(self.threads) as pool:
            futures = [
                pool.submit(make, self.table.storage, recipe, of_group, slices)
                for of_group, slices in zip(names, inputs, strict=True)
            ]
            try:
                made = []
                for number, future in enumerate(futures, 1):
                    made.append(future.result())
                    self.progress(pending.time, number, len(futures))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                ended = (f for f in futures if f.done() and not f.cancelled() and f.exception() is None)
                self.table.storage.delete_all(_staged(f.result() for f in ended))
                raise
        return made, recipe.rules

    def _complete_in_time(self, pending: PendingClustering, made: list[Made], rules: SliceRules) -> list[Made]:
        deadline = time.monotonic() + self.options.wait_s
        while True:
            try:
                return complete(self.table, pending, made, rules, self.lock)
            except BarrierError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_S)


def _staged(made: Iterable[Made]) -> list[str]:
    return [file.staged for one in made for file in one.files]


def _would(
    table: Table, timeline: Timeline, choice: ClusterChoice, options: ClusterOptions, copying: Copying
) -> Clustered | None:
    if not choice.windows:
        return None
    obstacles: list[Obstacle | None] = []
    if options.copy is not Copy.REENCODE and not options.sort_by:
        obstacles = copying.obstacles(choice.windows, table.schema_to_cluster(timeline).arrow)
    return Clustered(
        instant="",
        files=sum(len(window.slices) for window in choice.windows),
        bytes=sum(window.bytes for window in choice.windows),
        made=sum(window.outputs for window in choice.windows),
        copied=obstacles.count(None),
        encoded=dict(Counter(one.why for one in obstacles if one is not None)),
    )


def _would_finish(table: Table, timeline: Timeline) -> tuple[tuple[Clustered, ...], tuple[str, ...]]:
    """The pending clusterings that a run would finish, and the instants of those that it would cancel."""
    finished, gone = list[Clustered](), list[str]()
    for pending in pending_clusterings(table, timeline):
        if is_at_work(table, pending, clock_ms) or is_of_hudi(table, pending):
            continue
        inputs = inputs_now(table, pending, timeline)
        passed = is_passed(table, timeline, pending)
        if has_tombstone(table.storage, pending.time) or passed or not all(inputs):
            gone.append(pending.time)
            continue
        sizes = [slice_.base_bytes + slice_.log_bytes for group in inputs for slice_ in group]
        outputs = sum(group.outputs for group in pending.groups)
        finished.append(Clustered(instant=pending.time, files=len(sizes), bytes=sum(sizes), made=outputs))
    return tuple(finished), tuple(gone)


def _result(
    choice: ClusterChoice, done: Clustered | None, finished: tuple[Clustered, ...], cancelled: tuple[str, ...]
) -> ClusterResult:
    return ClusterResult(
        done=done,
        finished=finished,
        cancelled=cancelled,
        left=choice.left,
        why="" if choice.windows else choice.why,
        small=choice.small,
        kept=dict(choice.kept),
    )


def run_service(table: Table, options: ClusterOptions, lock: TableLock, means: ServiceMeans) -> ServiceAnswer:
    try:
        done = cluster_table(table, options, lock, output=means.output, threads=means.threads)
    except UnsupportedError as error:  # such as a bucket-indexed table of a fleet: no failure
        return ServiceAnswer(what=f"not clustered: {error.what}")
    except ConflictError as error:  # others changed the files, or may: the next interval tries again
        if commit_stays(table, error):
            raise
        return ServiceAnswer(what=f"put off: {error.what}")
    all_ = [*done.finished, *([] if done.done is None else [done.done])]
    files, made = sum(one.files for one in all_), sum(one.made for one in all_)
    what = f"{plural(files, 'file')} clustered, now {made}" if all_ else f"nothing to cluster: {done.why}"
    return ServiceAnswer(what=what, instants=len(all_))
