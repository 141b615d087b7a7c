"""Runs what is due on the metadata table, in Hudi's order: pending compactions, a clean, a compaction, archiving. Last,
secondary indexes that a write took out are built again.

The services run under the data table's lock. A compaction merges all partitions of the metadata table together.

Before them, pending delta commits of the metadata table that the data table does not know are removed. They arise when
a process stalls before it puts a file of one, and loses the lock. Others roll back its write, or cancel its clustering,
and remove the instant here. Then the process puts the file, finds that the lock is lost, and ends. No process of
phantombase would complete or remove that delta commit, and services would wait for it for ever. Hudi's next writer
rolls back all pending ones here.

A live process makes its instant visible on the data table's timeline first, and keeps it there until its work here is
done. So an instant that is neither there nor archived has ended. These are left alone:

    those of version 6's own services                        they are not of the data table
    those that fill a partition, unless our build died       a process of Hudi may be at it, without a heartbeat
    a fresh heartbeat                                        a process of Hudi may not share the lock
    all, while a restore is pending                          Hudi 1.2 records a restore here at a new time
    all, while the table is upgraded                         half of the timeline is elsewhere

Torn plans of rollbacks and cleans of the metadata table are removed too (`timeline.table.torn`). Hudi's next writer
removes such a rollback, and an empty plan of a clean; phantombase's services remove both, since otherwise they would
block cleans and archiving of the metadata table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cache

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError, UnsupportedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.commit_metadata import CommitMetadata
from phantombase.timeline.format.compaction_plan import CompactionOperation, CompactionPlan, operation_metrics
from phantombase.timeline.format.instant import Instant, format_time
from phantombase.timeline.instants.timeline import commits_since_compaction
from phantombase.timeline.locks.heartbeat import is_live, read_heartbeat
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.commit import forget
from phantombase.timeline.metadata_table.index_definitions import note_unbuildable, taken_out_indexes
from phantombase.timeline.metadata_table.read import load_metadata_view
from phantombase.timeline.metadata_table.valid_instants import ARTIFICIAL
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.history import WorkFacts
from phantombase.timeline.table.in_progress import (
    READ_INSIDE,
    Guard,
    exclusive,
    refuse_half_upgraded,
    refuse_in_progress,
)
from phantombase.timeline.table.table import Snapshot, Table, advising_rebuild, open_metadata_table
from phantombase.timeline.table.torn import discard_torn, removable
from phantombase.timeline.terminal.text_table import human_bytes, plural
from phantombase.timeline.view.view import FileSlice, TableView, latest_slice

from ..unit_of_work import ServiceAnswer, ServiceMeans, unit_of_work
from .build import build_metadata
from .chosen import BuildOptions, taken_out
from .due import MetadataDue, MetadataOptions, clean_waits, due
from .retention import (
    MetadataArchived,
    archive_metadata,
    archive_waits,
    clean_due,
    clean_instant,
    execute,
    execute_clean,
    pending_clean,
    request,
    request_clean,
)
from .runs import died

_log = get_logger()
_WAITS = {
    **READ_INSIDE,
    **dict.fromkeys((Guard.RESTORE, Guard.ROLLBACK), "asked inside: where one refuses, nothing is due until it ends"),
}
_PLANS = ("rollback", "clean")
"""Whose torn plans are removed."""
_DIGITS = 17


def unknown(table: Table, metadata: Snapshot, now_ms: Callable[[], int]) -> tuple[Instant, ...]:
    """The pending delta commits that the data table does not know, earliest first. `now_ms`: see `is_live`.
    ConflictError: the table is being upgraded. MalformedError, UnknownStateError: its archive cannot be read."""
    pending = [i for i in metadata.timeline.pending("deltacommit") if len(i.requested_time) == _DIGITS]
    filling = [i for i in pending if i.requested_time.startswith(ARTIFICIAL)]
    if filling and not died(table):
        pending = [i for i in pending if i not in filling]
    if not pending:
        return ()
    # The data table's timeline is read after `metadata`: an instant of `metadata` was there before.
    data = table.load_timeline()
    active = {i.requested_time for i in data.instants}
    if data.pending("restore") or active.issuperset(i.requested_time for i in pending):
        return ()
    refuse_half_upgraded(table)
    known = active | {i.requested_time for i in table.with_archive(data).archived}
    storage = open_metadata_table(table).storage
    gone = [i for i in pending if i.requested_time not in known]
    beats = {i: read_heartbeat(storage, i.requested_time) for i in gone}
    return tuple(i for i in gone if beats[i] is None or not is_live(beats[i], now_ms()))


def forget_unknown(table: Table) -> tuple[str, ...]:
    """Removes the `unknown` delta commits; may be repeated. Returns their times. LockError: the lock was lost."""
    found = unknown(table, open_metadata_table(table), cache(lambda: storage_ms(table.storage)))
    for instant in found:
        forget(table, instant.requested_time)
        _log.warning(
            "metadata_entry_forgotten",
            table=table.storage.base_path,
            instant=instant.requested_time,
            why="the table does not know this instant",
        )
    return tuple(i.requested_time for i in found)


def plan_all(view: TableView, instant: str) -> CompactionPlan | None:
    """The plan of a compaction at `instant`; None: no file group has log files for it."""
    found = [_below(one, view, instant) for g in view.groups if (one := latest_slice(g)) is not None]
    operations = tuple(_operation(slice_) for slice_ in found if slice_.logs and slice_.base_instant < instant)
    if not operations:
        return None
    missing = () if view.timeline.layout.has_completion_times else None
    return CompactionPlan(operations=operations, missing_schedule_partitions=missing)


def _below(slice_: FileSlice, view: TableView, instant: str) -> FileSlice:
    """The slice without the log files of writes that completed after `instant`."""
    if not view.timeline.layout.has_completion_times:
        return slice_
    times = {log.path: view.timeline.completion_time(log.name.instant) for log in slice_.logs}
    logs = tuple(log for log in slice_.logs if (time := times[log.path]) is not None and time < instant)
    return replace(slice_, logs=logs)


def _operation(slice_: FileSlice) -> CompactionOperation:
    return CompactionOperation(
        base_instant_time=slice_.base_instant,
        delta_file_paths=tuple(str(log.name) for log in slice_.logs),
        data_file_path=None if slice_.base is None else str(slice_.base.name),
        file_id=slice_.file_id,
        partition_path=slice_.partition,
        metrics=operation_metrics(
            len(slice_.logs), slice_.log_bytes, slice_.base_bytes + slice_.log_bytes, slice_.base_bytes
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataCompaction(Shown):
    """A compaction of the metadata table: `files` base files of `log_files` log files, and the bytes of both.
    `finished`: the compaction was already pending."""

    instant: str
    finished: bool
    files: int
    log_files: int
    log_bytes: int
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataClean(Shown):
    """A clean of the metadata table: `files` that its plan names. `bytes`: of these, 0 if the clean was pending.
    `finished`: the clean was already pending. `instant`: "" in a dry run."""

    instant: str
    finished: bool
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataServed(Shown):
    """What was done, or would be in a dry run. `why`: why a new compaction was due or not; `why_clean`: of a clean.
    `archived`: instants, and what stopped archiving there. `forgotten`: see `unknown`, `torn.removable`."""

    forgotten: tuple[str, ...] = ()
    compactions: tuple[MetadataCompaction, ...] = ()
    cleans: tuple[MetadataClean, ...] = ()
    why: str = ""
    why_clean: str = ""
    archived: MetadataArchived = field(default_factory=MetadataArchived)


def _said(served: MetadataServed) -> WorkFacts | None:
    """Bytes and files of the metadata table."""
    done, cleans = served.compactions, served.cleans
    if not (done or cleans or served.forgotten or served.archived.instants):
        return None
    instants = (*(one.instant for one in done), *(one.instant for one in cleans))
    return WorkFacts(
        instant=next(iter(instants), None),
        why=served.why if done or not cleans else served.why_clean,
        bytes_read=sum(one.log_bytes for one in done),
        bytes_written=sum(one.bytes_written for one in done),
        bytes_removed=sum(one.bytes for one in cleans),
        files_before=sum(one.log_files for one in done) + sum(one.files for one in cleans),
        files_after=sum(one.files for one in done),
    )


@unit_of_work("metadata", _said)
def serve_metadata(table: Table, options: MetadataOptions, lock: TableLock, *, dry_run: bool = False) -> MetadataServed:
    """Runs the due services of a table's metadata table, under the table's lock; nothing where it has none. May be
    repeated: what a dead process left is finished. `dry_run`: nothing is changed. LockError: the lock was not free, or
    was lost. MalformedError, UnsupportedError, MissingFileError: the metadata table cannot be compacted; it is
    unchanged."""
    if (nothing := _nothing(table.snapshot(cached=False), options)) is not None:  # so that most writes take no lock
        return nothing
    with exclusive(table, lock, "serve the metadata table", _WAITS) as table:
        if (nothing := _nothing(table, options)) is not None:
            return nothing
        try:
            # A compaction would merge a write that is undone: its records could not be removed any more.
            refuse_in_progress(table, {Guard.UPGRADE: "asked before"})
        except ConflictError as error:
            return _idle(f"{error.what}: {error.instant}")
        forgotten = _forget(table, dry_run=dry_run)
        finished = _finish_compactions(table, dry_run=dry_run)
        cleans, why_clean = _clean(table, forgotten, dry_run=dry_run)
        compaction, why = _compact(table, options, forgotten, dry_run=dry_run)
        return MetadataServed(
            forgotten=forgotten,
            compactions=(*finished, *compaction),
            cleans=tuple(cleans),
            why=why,
            why_clean=why_clean,
            archived=archive_metadata(table, dry_run=dry_run),
        )


def _nothing(table: Table, options: MetadataOptions) -> MetadataServed | None:
    """Why nothing is due, by the timelines alone; None: something may be due."""
    if not table.config.metadata_partitions:
        return _idle("the table has no metadata table")
    timeline = open_metadata_table(table).timeline
    if timeline.pending_compactions or timeline.pending("clean"):
        return None
    count = commits_since_compaction(timeline)
    waits, archive = clean_waits(timeline), archive_waits(table.load_timeline(), timeline)
    if count >= options.max_delta_commits or waits is None or archive is None:
        return None
    why = f"{count} of {options.max_delta_commits} delta commits since the last compaction"
    return MetadataServed(why=why, why_clean=waits, archived=MetadataArchived(why=archive))


def _idle(why: str) -> MetadataServed:
    return MetadataServed(why=why, why_clean=why, archived=MetadataArchived(why=why))


def _forget(table: Table, *, dry_run: bool) -> tuple[str, ...]:
    metadata = open_metadata_table(table)
    if not dry_run:
        return (*discard_torn(metadata, *_PLANS), *forget_unknown(table))
    torn = removable(metadata, clock_ms, *_PLANS)
    return (*(one.time for one in torn), *(i.requested_time for i in unknown(table, metadata, clock_ms)))


def _finish_compactions(table: Table, *, dry_run: bool) -> list[MetadataCompaction]:
    done = []
    for pending in open_metadata_table(table).timeline.pending_compactions:
        instant = pending.requested_time
        if dry_run:
            with advising_rebuild(metadata := open_metadata_table(table)):
                done.append(_planned(instant, metadata.compaction_plan(instant)))
        else:
            done.append(_done(instant, execute(table, instant), finished=True))
    return done


def _clean(table: Table, forgotten: Collection[str], *, dry_run: bool) -> tuple[list[MetadataClean], str]:
    """Finishes pending cleans, then plans and executes a new one if it is due."""
    done = []
    metadata = open_metadata_table(table)
    for pending in metadata.timeline.pending("clean"):
        if pending.requested_time in forgotten:  # a dry run
            continue
        plan = pending_clean(metadata, pending)
        if not dry_run:
            execute_clean(table, pending, plan)
        done.append(MetadataClean(instant=pending.requested_time, finished=True, files=plan.count, bytes=0))
    timeline = metadata.load_timeline()
    if (waits := clean_waits(timeline)) is not None:
        return done, waits
    if (found := clean_due(table)) is None:
        return done, "each file group has two slices at most"
    instant = clean_instant(timeline, lambda: _new_time(table, metadata.with_timeline(timeline), dry_run=dry_run))
    if instant is None:
        return done, "no instant of a clean follows the last delta commit"
    if not dry_run:
        execute_clean(table, request_clean(metadata, instant, found.plan), found.plan)
    done.append(MetadataClean(instant=instant, finished=False, files=found.plan.count, bytes=found.bytes))
    return done, "file groups have more than two slices"


def _compact(
    table: Table, options: MetadataOptions, forgotten: Collection[str], *, dry_run: bool
) -> tuple[list[MetadataCompaction], str]:
    decided, plan = _decide(table, options, forgotten, dry_run=dry_run)
    if decided.instant is None or plan is None:
        return [], decided.why
    if dry_run:
        return [_planned(decided.instant, plan, finished=False)], decided.why
    request(open_metadata_table(table), decided.instant, plan)
    return [_done(decided.instant, execute(table, decided.instant), finished=False)], decided.why


def _new_time(table: Table, metadata: Snapshot, *, dry_run: bool) -> str:
    if dry_run:  # choosing one may put an object on storage, to learn its clock
        return format_time(table.now())
    data = table.load_timeline()
    return table.with_timeline(data).next_time(also_above=metadata.timeline.used_times(table.times.going(data)))


def _decide(
    table: Table, options: MetadataOptions, forgotten: Collection[str], *, dry_run: bool
) -> tuple[MetadataDue, CompactionPlan | None]:
    data = table.load_timeline()
    metadata = open_metadata_table(table)
    view = load_metadata_view(metadata, table.config.built_metadata_partitions)
    left = tuple(i for i in view.timeline.instants if i.completed or i.requested_time not in forgotten)  # a dry run
    decided = due(
        data,
        replace(view.timeline, instants=left),
        building=table.config.building_metadata_partitions,
        max_delta_commits=options.max_delta_commits,
        new_time=lambda: _new_time(table, metadata.with_timeline(view.timeline), dry_run=dry_run),
    )
    return decided, None if decided.instant is None else plan_all(view, decided.instant)


def _planned(instant: str, plan: CompactionPlan, *, finished: bool = True) -> MetadataCompaction:
    metrics = [operation.metrics or {} for operation in plan.operations]
    return MetadataCompaction(
        instant=instant,
        finished=finished,
        files=len(plan.operations),
        log_files=sum(len(operation.delta_file_paths) for operation in plan.operations),
        log_bytes=int(sum(of.get("TOTAL_LOG_FILES_SIZE", 0) for of in metrics)),
        bytes_written=0,
    )


def _done(instant: str, commit: CommitMetadata, *, finished: bool) -> MetadataCompaction:
    stats = [stat for of in commit.partition_to_write_stats.values() for stat in of]
    return MetadataCompaction(
        instant=instant,
        finished=finished,
        files=len(stats),
        log_files=sum(stat.total_log_files_compacted for stat in stats),
        log_bytes=sum(stat.total_log_size_compacted for stat in stats),
        bytes_written=sum(stat.file_size_in_bytes for stat in stats),
    )


def build_again(table: Table, lock: TableLock, *, dry_run: bool = False) -> dict[str, str]:
    """Builds the secondary indexes that writes have taken out; by name, why one was not built, "": it was, or would be.
    Pending writes may be long: the next run tries again. What cannot hold a value is not tried. One that cannot be read
    does not keep the others."""
    found = taken_out(table.snapshot(cached=False)) if taken_out_indexes(table) else {}
    for name in [] if dry_run else [name for name, why in found.items() if not why]:
        try:
            build_metadata(table, BuildOptions(indexes=(name,), pending_wait_s=10.0), lock)
        except ConflictError as error:
            found[name] = f"it waits: {error.what}"
        except (MalformedError, MissingFileError) as error:
            found[name] = str(error)
        except UnsupportedError as error:
            found[name] = error.what
            with exclusive(table, lock, "note why an index is not built", READ_INSIDE) as held:
                if not held.config.building_metadata_partitions:  # while Hudi builds one none is built
                    note_unbuildable(held, name, error.what)
    return found


def run_service(table: Table, options: MetadataOptions, lock: TableLock, means: ServiceMeans) -> ServiceAnswer:
    """The service, see `RunService`."""
    served = serve_metadata(table, options, lock, dry_run=means.dry_run)
    again = build_again(table, lock, dry_run=means.dry_run)
    did, due = [], " due" if means.dry_run else ""
    built = f"{means.did('built again')}, since a write took it out"
    did += [f"{name}: {why or built}" for name, why in again.items()]
    if forgotten := len(served.forgotten):
        did.append(f"{plural(forgotten, 'instant')} of the metadata table {means.did('forgotten')}")
    if served.compactions:
        did.append(f"{plural(len(served.compactions), 'compaction')} of the metadata table{due}")
    files, size = sum(one.files for one in served.cleans), sum(one.bytes for one in served.cleans)
    if served.cleans:
        did.append(f"{plural(files, 'file')} of the metadata table {means.did('removed')}, {human_bytes(size)}")
    if archived := len(served.archived.instants):
        did.append(f"{plural(archived, 'instant')} of the metadata table {means.did('archived')}")
    count = forgotten + len(served.compactions) + len(served.cleans) + archived + list(again.values()).count("")
    return ServiceAnswer(what=", ".join(did) or served.why, instants=count, files=files, bytes=size)
